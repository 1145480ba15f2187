"""The file in which a server keeps the messages of one sum, and from which a killed one goes on.

bytes   field
4       "RQHF"
32      digest of the terms
32      SHA-256 of the request to the helper, once it was made; zeros before
        zeros up to 4,096 bytes, then records of one length, at multiples of it:
16      first bytes of SHA-256 over the fields below up to the vector's first bytes
        the client's number (8), its sealed seed, signature or zeros, and parts of its proof, as in
        a request (`helper.request`)
        the client's vector: masked, with a checksum, or a share
        zeros up to a multiple of 4,096 bytes, if it is long

A record is written before its client is answered, and what was not wholly written fails its
checks. So a process may be killed at any moment, and no order of the writes is relied on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from randquant._internal.files import (
    check_one_name,
    check_private,
    exclusive,
    flush,
    opener,
    sync_folder,
)
from randquant.channels.wire import Payload

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
            if hasattr(os, "pwrite"):
                done += os.pwrite(self._file, buffer[done:size], offset + done)
                continue
            with self._lock:  # Windows writes at the file's one position only
                os.lseek(self._file, offset + done, os.SEEK_SET)
                done += os.write(self._file, buffer[done:size])

    def _load(self, offset: int, size: int) -> memoryview:
        buffer, done = self._buffer, 0
        # A length that is no multiple of a page is the file's end.
        while done < size and not (self._uncached and done % PAGE_BYTES):
            if hasattr(os, "preadv"):
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
