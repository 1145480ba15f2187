"""The server's side: it adds masked vectors as they come, and asks the helper for their masks.

Its messages are in a file, from which a killed server goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.files import (
    check_one_name,
    check_private,
    exclusive,
    flush,
    opener,
    sync_folder,
)
from randquant.channels import wire
from randquant.channels.encoding import cores, map_over
from randquant.channels.wire import Payload
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import (
    MAX_CLIENT_NUMBER,
    HelperTerms,
    SealedSeed,
    masked_format,
    read_message,
)
from randquant.secure_sums.helper.prio3 import SEED_SIZE
from randquant.secure_sums.helper.request import (
    LEFT_OUT,
    read_answer,
    read_seed,
    seed_sizes,
    write_request,
    write_seed,
    wrong_verify_key,
)
from randquant.secure_sums.terms import ProtocolError, mask_dtype


class HelperSum:
    """One sum on the server: `add` each client's message, send `request`, `unmask` the answer.

    The transport must tell which client a message is from. Messages are kept until the end, in a
    file, since the vector of a client that the helper leaves out must be subtracted again. Several
    threads may add messages at once.

    Args:
        terms: the public terms.
        directory: each client's public identity, as the helper has them: a client that did not sign
            its seed is then refused at once.
        verify_key: 32 random bytes, where the terms have its `proven.verify_key_commitment`:
            clients then send a `proven_message`. No client may know it.
        file: where messages are kept; None for a temporary file. Where there is such a file of the
            same terms, its messages are in the sum again: a server that was killed goes on.

    Attributes:
        refused: clients whose message is not in the sum, and why. It is not in the file.

    Guarantees:
        With `file`, a client whose message was added is in the sum once, whenever the process is
        killed and however often it goes on, and the request that was made is made again. After a
        power cut the last messages may be missing; the sum is that of `clients`.

    Raises:
        OSError: the file is of other terms, damaged or used by another process, or cannot be
            written.

    Example:
        See `Helper`.
    """

    def __init__(
        self,
        terms: HelperTerms,
        directory: Mapping[int, bytes] | None = None,
        verify_key: bytes = b"",
        file: Path | str | None = None,
    ) -> None:
        validate.kind("terms", terms, HelperTerms)
        self.terms, self._directory, self._verify_key = terms, directory, verify_key
        self.refused: dict[int, str] = {}
        self._digest = terms.digest
        self._seeds: dict[int, SealedSeed] = {}
        self._places: dict[int, int] = {}  # of each client's message, in the file
        # Of the fields above, and of clients whose messages are being added.
        self._changed, self._pending = threading.Condition(), set[int]()
        vectors_class = ProvenVectors if terms.largest else MaskedVectors
        self._running_sum = vectors_class(terms, self._digest, verify_key)
        self._seed_sizes = seed_sizes(terms, signed=True)
        sizes = sum(self._seed_sizes), self._running_sum.size
        path = None if file is None else validate.path("file", file)
        self._file = MessageFile(path, self._digest, sizes, self._running_sum.covered)
        weakref.finalize(self, self._file.close)
        self._places_count = self._file.places
        self._closed = bool(self._file.request_digest)
        self._request, self._clients = b"", frozenset[int]()
        rest = map_over(self._add_again, range(self._places_count), cores())
        # Once more, one by one: a client's refused message may have kept its later one out.
        again = (self._add_again(place) for place in rest if place is not None)
        self._free_places = [place for place in again if place is not None]

    @property
    def clients(self) -> frozenset[int]:
        # After `unmask` without those that the helper has left out.
        return self._clients or frozenset(self._seeds)

    def add(self, client: int, message: Payload) -> None:
        """Add one client's message, which is in the file when this returns.

        Raises:
            ProtocolError: it is malformed, a repetition, too late or not signed. The sum goes on
                without it.
        """
        client = validate.whole("client", client)
        if not 0 <= client <= MAX_CLIENT_NUMBER:
            raise ProtocolError(f"Expected a client's number below 2**64, got {client}.")
        with self._adding(client) as place:
            seed, vector = self._running_sum.read(message)
            if self._directory is not None and not seed.is_signed(
                self._digest, client, self._directory
            ):
                raise ProtocolError(
                    f"Expected a seed signed by this client, {client}, got "
                    f"{'a signature that is not its' if seed.signature else 'no signature'}."
                )
            # Kept before it is added: what is in the sum can always be subtracted again.
            self._file.write(place, write_seed(client, seed, signed=True), vector)
            self._running_sum.add(client, vector)
            with self._changed:
                self._seeds[client], self._places[client] = seed, place

    @contextlib.contextmanager
    def _adding(self, client: int) -> Iterator[int]:
        """Reserve a place in the file, which another message gets if this one is not added."""
        with self._changed:
            # A second message would be a second seed in the request: one client would count as two.
            if client in self._seeds or client in self._pending or self._closed:
                late = self._closed and client not in self._seeds
                problem = "comes after the request" if late else "is here"
                raise ProtocolError(
                    "Expected one message of each client, before the helper is asked; got a "
                    f"message of client {client}, whose message {problem} already."
                )
            self._pending.add(client)
            full = len(self._seeds) + len(self._pending) > self.terms.cohort
            place = self._free_places.pop() if self._free_places else self._places_count
            self._places_count = max(self._places_count, place + 1)
        try:
            # More clients than the terms say could make a sum wrap around.
            if full:
                raise ProtocolError(
                    f"Expected {self.terms.cohort} clients at most, got client {client} as well."
                )
            yield place
        except ProtocolError as error:
            self.refused[client] = str(error)
            raise ProtocolError(f"Client {client}: {error}") from None
        else:
            # A client whose first message was damaged may send it again.
            self.refused.pop(client, None)
        finally:
            with self._changed:
                self._pending.discard(client)
                if client not in self._seeds:
                    self._free_places.append(place)
                self._changed.notify_all()

    def request(self, offer: str = "") -> bytes:
        """Accept no more messages, and return the request to the helper.

        A second call returns the same bytes: the helper answers one request in a session, and the
        same request again by the same answer.

        Args:
            offer: the text that clients have answered, for a helper that counts epsilon: its
                SHA-256 is `terms.offer`.

        Raises:
            ProtocolError: fewer clients than `terms.least`.
        """
        with self._changed:
            if self._request:
                return self._request
            closed, self._closed = self._closed, True
            self._changed.wait_for(lambda: not self._pending)  # they are in the sum, or refused
            try:
                self._check_least(len(self._seeds))
                request = write_request(self.terms, self._seeds, offer, self._verify_key)
                digest, made = hashlib.sha256(request).digest(), self._file.request_digest
                # The helper may have answered it: it answers no other.
                if made and made != digest:
                    raise ProtocolError(
                        f"Expected the request that was made from this file, {made.hex()[:16]}..., "
                        f"got {digest.hex()[:16]}...: the offer is another, or the file has lost "
                        "messages; begin another sum."
                    )
                self._file.close_with(self._digest, digest)
            except BaseException:
                # A sum that is still too small stays open: more clients may come.
                self._closed = closed
                raise
            self._request = request
        return request

    def unmask(self, answer: bytes, largest: int | None = None) -> np.ndarray:
        """Compute the sum of the clients' codes modulo 2**bits.

        Args:
            answer: the helper's. It answers one set of clients in a session, and a repeated request
                by the same bytes (`Helper.answer`).
            largest: the largest code of an honest client: a total above the number of clients times
                this is refused.

        Returns:
            (d,) uint8, uint16 or uint32.

        Raises:
            ProtocolError: the answer belongs to another request, is damaged or leaves too few
                clients, or a total is impossible. A wrong sum of masks is noticed only by an
                impossible total.
        """
        if not self._request:
            raise ProtocolError("Expected the helper to be asked first.")
        digest = hashlib.sha256(self._request).digest()
        left_out, masks_sum = read_answer(self.terms, digest, self._seeds, answer)
        count = len(self._seeds) - len(left_out)
        # The helper checks this too, but the server need not trust it (theory/helper-sums.md,
        # Proposition 3).
        self._check_least(count)
        vectors = ((client, self._vector(client)) for client in left_out)
        total = self._running_sum.without(vectors, masks_sum)
        if self.terms.largest:
            largest = self.terms.largest
        # A damaged sum of masks gives random totals, most of them impossible in a wide modulus. A
        # small error on purpose is not noticed (helper-sums.md, Proposition 3).
        if largest is not None and int(total.max()) > (most := count * largest):
            raise ProtocolError(
                f"Expected totals of {most} at most, got {int(total.max())}: the helper's answer "
                "is wrong, or some client sent an invalid vector; the whole sum is discarded."
            )
        self.refused |= {client: LEFT_OUT[why] for client, why in left_out.items()}
        self._clients = frozenset(self._seeds.keys() - left_out.keys())
        kind = mask_dtype(self.terms.bits)
        return total.astype(kind) & kind.type((1 << self.terms.bits) - 1)

    def _add_again(self, place: int) -> int | None:
        """Add the message at a place of the file; return the place if it has none to add.

        What is not whole is of a client that was not told that its message was added.
        """
        record = self._file.read(place)
        if record is None:
            return place
        client, seed = read_seed(self._seed_sizes, record[0])
        with self._changed:
            if self._places.setdefault(client, place) != place:
                return place
        try:
            self._running_sum.add(client, record[1])
        except ProtocolError:  # it was refused; the client may have sent another since
            with self._changed:
                del self._places[client]
            return place
        with self._changed:
            self._seeds[client] = seed
        return None

    def _vector(self, client: int) -> Payload:
        record = self._file.read(self._places[client])
        if record is None:
            raise OSError(
                f"Expected the message of client {client} on the disk, got damaged bytes."
            )
        return record[1]

    def _check_least(self, count: int) -> None:
        if count < self.terms.least:
            raise ProtocolError(
                f"Expected messages of {self.terms.least} clients or more, got {count}: the "
                "guarantee needs that many."
            )


# The server's running sum of clients' vectors, which are masked, or shares of vectors.


class MaskedVectors:
    """The running sum of masked vectors modulo 2**bits.

    Args:
        terms: the sum's.
        digest: the terms'.
        verify_key: not used.

    Attributes:
        size: bytes that are kept of a client's vector.
        covered: how many of its first bytes have no checksum in it.
    """

    covered = wire.HEADER_BYTES

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        self._terms, self._digest, self._lock = terms, digest, threading.Lock()
        self.size = wire.masked(terms.dimension, terms.bits)
        self._total = np.zeros(terms.dimension, dtype=np.uint32)

    def read(self, message: Any) -> tuple[SealedSeed, Payload]:
        return read_message(self._terms, message)

    def add(self, client: int, packed: Payload) -> None:
        form = masked_format(self._terms.bits, self._digest, client)
        try:
            wire.add(form, packed, self._total, lock=self._lock)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def without(self, left_out: Iterable[tuple[int, Payload]], masks_sum: np.ndarray) -> np.ndarray:
        """Return the sum of all codes but some clients', given the sum of the others' masks."""
        total, bits = self._total.copy(), self._terms.bits
        for client, packed in left_out:
            form = masked_format(bits, self._digest, client)
            total -= wire.unpack(form, packed, self._terms.dimension)
        total = total.astype(masks_sum.dtype) - masks_sum
        return total & total.dtype.type((1 << bits) - 1)


class ProvenVectors:
    """The running sum of the server's shares over Field64, each with a verifier share.

    Args:
        terms: the sum's.
        digest: the terms'.
        verify_key: that of proofs, to which the terms are committed.

    Attributes:
        size, covered: as in `MaskedVectors`: a share has no checksum.
    """

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        validate.whole("bytes of verify_key", len(verify_key), low=SEED_SIZE, high=SEED_SIZE)
        if proven.verify_key_commitment(verify_key) != terms.commitment:
            raise ValueError(wrong_verify_key(terms, verify_key))
        self._terms, self._digest, self._verify_key = terms, digest, verify_key
        self._prio3 = proven.prio3_for(terms)
        self.size = self.covered = terms.dimension * self._prio3.field.ENCODED_SIZE
        self._lock = threading.Lock()
        self._total = self._prio3.agg_init()

    def read(self, message: Any) -> tuple[SealedSeed, Payload]:
        """Return a message's sealed seed with the server's verifier share, and its output share.

        Raises:
            ProtocolError: the message is malformed, or the server's share alone shows that it is
                false.
        """
        # The server keeps its output share only, which is as long as the codes: proofs are not
        # needed again.
        seed, share = proven.read_proven(self._terms, message)
        out_share, verifier = proven.leader_verifier(
            self._terms, self._digest, self._verify_key, seed.bound, share
        )
        seed = SealedSeed(seed.sealed, seed.signature, seed.bound, verifier)
        return seed, bytes(self._prio3.field.encode_vec(out_share))

    def add(self, client: int, packed: Payload) -> None:
        share = self._prio3.field.decode_vec(bytes(packed))
        with self._lock:
            self._prio3.agg_update(self._total, share)

    def without(
        self, left_out: Iterable[tuple[int, Payload]], shares_sum: np.ndarray
    ) -> np.ndarray:
        """Return the sum of all codes but some clients', given the sum of the helper's shares."""
        field = self._prio3.field
        total = field.vec_add(self._total, shares_sum)
        for _, packed in left_out:
            field.vec_sub(total, field.decode_vec(bytes(packed)), total)
        return total


if sys.platform == "linux":
    import fcntl

MAGIC = b"RQHF"
DIGEST_BYTES, TAG_BYTES = 32, 16
PAGE_BYTES = 4096
"""Size of the file's head, and unit in which Linux writes to a disk without its cache."""
LEAST_UNCACHED_BYTES = 2**16
"""Length from which records go to the disk without the system's cache, which copies them and, where
a sum is larger than the memory, writes at a fraction of the disk's speed. Rounding such a record up
to pages costs 6 % at most, and 12 % with half; with twice, vectors of 50,000 coordinates would be
copied."""


class MessageFile:
    """Records of one length, each at a place; several threads may write and read them at once.

    The file:

        bytes   field
        4       "RQHF"
        32      digest of the terms
        32      SHA-256 of the request to the helper, once it was made; zeros before
                zeros up to 4,096 bytes, then records of one length, at multiples of it:
        16      first bytes of SHA-256 over the fields below up to the vector's first bytes
                the client's number (8), its sealed seed, signature or zeros, and parts of its
                proof, as in a request (`helper.request`)
                the client's vector: masked, with a checksum, or a share
                zeros up to a multiple of 4,096 bytes, if it is long

    A record is written before its client is answered, and what was not wholly written fails its
    checks. So a process may be killed at any moment, and no order of the writes is relied on.

    Args:
        path: the file, which is created if need be; None for a temporary one.
        digest: of the sum's terms.
        sizes: bytes of a record's fields before the vector, and bytes of the vector.
        covered: how many of the vector's first bytes the record's own checksum covers: all, or
            those in which the vector has a checksum of the rest.

    Raises:
        OSError: the file is of another sum, has two names, is open to other users, or cannot be
            written.
        BlockingIOError: another process has it.
    """

    def __init__(
        self, path: Path | None, digest: bytes, sizes: tuple[int, int], covered: int
    ) -> None:
        self._entry_bytes, self._vector_bytes = sizes
        self._covered = TAG_BYTES + self._entry_bytes + covered
        self._record_bytes = TAG_BYTES + sum(sizes)
        self._uncached = self._record_bytes >= LEAST_UNCACHED_BYTES
        pages = -(-self._record_bytes // PAGE_BYTES)
        self._step = pages * PAGE_BYTES if self._uncached else self._record_bytes
        self._is_temporary = path is None
        self._local, self._lock = threading.local(), threading.Lock()
        with contextlib.ExitStack() as stack:
            self._file = self._opened(path, stack)
            if self._uncached and sys.platform == "linux":
                flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
                with contextlib.suppress(OSError):  # a file system that always caches
                    fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT)
            self.request_digest = self._begin(path, digest)
            self.close = stack.pop_all().close

    def _opened(self, path: Path | None, stack: contextlib.ExitStack) -> int:
        if path is None:
            return stack.enter_context(tempfile.TemporaryFile(buffering=0)).fileno()
        stack.enter_context(exclusive(path.with_name(path.name + ".lock")))
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
        file = opener(path, flags, 0o600)
        stack.callback(os.close, file)
        # Another name would have another lock: two processes would write over each other's records.
        check_one_name(path, status := os.fstat(file))
        check_private(path, status)
        return file

    def _begin(self, path: Path | None, digest: bytes) -> bytes:
        """Return the digest of the request that was made from the file; b"" for none."""
        empty = bytes(DIGEST_BYTES)
        size = len(MAGIC) + DIGEST_BYTES
        head = bytes(self._load(0, PAGE_BYTES)[: size + DIGEST_BYTES])
        if not any(head):  # new, or its process was killed before anything was in it
            self._write_head(digest, empty)
            if path is not None:
                sync_folder(path.parent)
            return b""
        if head[:size] != MAGIC + digest:
            raise OSError(
                f"Expected a file of messages of the sum with these terms, {digest.hex()[:16]}..., "
                f"got {path} with {head[:size].hex()[:16]}...: one file is of one sum."
            )
        request = head[size:]
        return b"" if request == empty else request

    def close_with(self, digest: bytes, request: bytes) -> None:
        """Write the request's digest, on the disk itself when this returns, after all records."""
        if self._is_temporary:
            return
        # Records first: a head that names a request vouches for all of its messages, also after a
        # power cut.
        flush(self._file)
        self._write_head(digest, request)
        flush(self._file)
        self.request_digest = request

    def _write_head(self, digest: bytes, request: bytes) -> None:
        self._buffer[:PAGE_BYTES] = (MAGIC + digest + request).ljust(PAGE_BYTES, b"\0")
        self._store(0, PAGE_BYTES)

    @property
    def places(self) -> int:
        """The number of records by the file's length, the last of them perhaps in part."""
        return max(0, -(-(os.fstat(self._file).st_size - PAGE_BYTES) // self._step))

    def write(self, place: int, entry: bytes, vector: Payload) -> None:
        """Write a record; OSError if the disk is full."""
        buffer, start = self._buffer, TAG_BYTES + self._entry_bytes
        buffer[TAG_BYTES:start] = entry
        buffer[start : self._record_bytes] = vector
        buffer[:TAG_BYTES] = self._tag(buffer)
        self._store(PAGE_BYTES + place * self._step, self._step)

    def read(self, place: int) -> tuple[bytes, memoryview] | None:
        """Return a record's entry and vector; None if it is not whole.

        The vector is valid until this thread reads or writes again. Beyond its covered bytes it is
        not checked here.
        """
        buffer = self._load(PAGE_BYTES + place * self._step, self._step)
        start = TAG_BYTES + self._entry_bytes
        if bytes(buffer[:TAG_BYTES]) != self._tag(buffer):
            return None
        return bytes(buffer[TAG_BYTES:start]), buffer[start : self._record_bytes]

    def _tag(self, buffer: memoryview) -> bytes:
        return hashlib.sha256(buffer[TAG_BYTES : self._covered]).digest()[:TAG_BYTES]

    @property
    def _buffer(self) -> memoryview:
        # One for each thread. It begins on a page, as writing without the system's cache demands.
        if not hasattr(self._local, "buffer"):
            size = max(self._step, PAGE_BYTES)
            room = np.empty(size + PAGE_BYTES, dtype=np.uint8)
            start = -room.ctypes.data % PAGE_BYTES
            self._local.buffer = room[start : start + size].data
        return self._local.buffer

    def _store(self, offset: int, size: int) -> None:
        buffer, done = self._buffer, 0
        while done < size:
            if sys.platform != "win32" and hasattr(os, "pwrite"):
                done += os.pwrite(self._file, buffer[done:size], offset + done)
                continue
            with self._lock:  # Windows writes at the file's one position only
                os.lseek(self._file, offset + done, os.SEEK_SET)
                done += os.write(self._file, buffer[done:size])

    def _load(self, offset: int, size: int) -> memoryview:
        buffer, done = self._buffer, 0
        # A length that is no multiple of a page is the file's end.
        while done < size and not (self._uncached and done % PAGE_BYTES):
            if sys.platform != "win32" and hasattr(os, "preadv"):  # not before macOS 11
                count = os.preadv(self._file, [buffer[done:size]], offset + done)
            else:
                with self._lock:
                    os.lseek(self._file, offset + done, os.SEEK_SET)
                    part = os.read(self._file, size - done)
                count = len(part)
                buffer[done : done + count] = part
            if not count:
                break
            done += count
        buffer[done:size] = bytes(size - done)
        return buffer
