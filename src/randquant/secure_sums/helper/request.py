"""What the server asks the helper in a sum, and what the helper answers.

A request, numbers in big-endian order:

bytes   field
4       "RQHQ"
4, 4, 4 how long the terms and the offer are, and how many clients there are
1       1 if clients have signatures, else 0
        the terms, as text; the offer, as text; the key that proofs are verified with (32), if
        clients prove their codes
        for each client, in ascending order: its number (8), its sealed seed, its signature or 64
        zeros; nonce, public share and the server's verifier share of its proof, if there is one

An answer: "RQHA", SHA-256 of the request, how many clients are left out (4), for each its number
(8) and why (1), and the sum of the others' masks, as a payload of `channels.wire`, or of the
helper's shares of their codes, as in `proven.write_total`.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels import wire
from randquant.secure_sums import masks
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import (
    LONGEST_TEXT,
    HelperTerms,
    SealedSeed,
    masked_format,
    read_message,
)
from randquant.secure_sums.helper.sealing import SIGNATURE_BYTES
from randquant.secure_sums.secagg.terms import ProtocolError
from randquant.secure_sums.vdaf.prio3 import SEED_SIZE

HEAD = struct.Struct(">4sIIIB")
NUMBER_BYTES, KEY_BYTES = 8, 32
ASKED, ANSWERED = b"RQHQ", b"RQHA"
LONGEST_OFFER = 2**20
"""Bytes of an offer's text, which the journal keeps: one of a channel has 1,000 to 250,000."""

LEFT_OUT = {
    1: "Expected a seed that the helper can open for this client and sum, got another.",
    2: "Expected a seed signed by this client, got another.",
    3: "Expected a client within the helper's limit, got one that has answered too often.",
    4: "Expected codes that are proven valid, got others.",
}
"""Why the helper leaves a client out."""
UNOPENED, UNSIGNED, SPENT, INVALID = LEFT_OUT


@dataclass(frozen=True, slots=True)
class HelperRequest:
    """One set of clients, whose masks the helper is asked to add up.

    Attributes:
        terms: of the sum.
        seeds: by client, in ascending order.
        offer: its text, for a helper that counts epsilon.
        digest: SHA-256 of the request's bytes: any change makes it another request.
        verify_key: of proofs; b"" without.
    """

    terms: HelperTerms
    seeds: Mapping[int, SealedSeed]
    offer: str
    digest: bytes
    verify_key: bytes = b""

    @classmethod
    def from_bytes(cls, message: Any) -> HelperRequest:
        """Invert `write_request`; ProtocolError for anything else."""
        if not isinstance(message, bytes):
            raise ProtocolError(f"Expected a request in bytes, got {type(message).__name__}.")
        if len(message) < HEAD.size:
            raise ProtocolError("Expected a request to a helper, got fewer bytes.")
        magic, of_terms, of_offer, count, signed = HEAD.unpack_from(message)
        if magic != ASKED or signed > 1 or of_terms > LONGEST_TEXT:
            raise ProtocolError("Expected a request to a helper, got something else.")
        if of_offer > LONGEST_OFFER:
            raise ProtocolError(
                f"Expected an offer of {LONGEST_OFFER} bytes at most, got {of_offer}."
            )
        start, end = HEAD.size + of_terms, HEAD.size + of_terms + of_offer
        try:
            terms_text, offer = (
                message[low:high].decode() for low, high in ((HEAD.size, start), (start, end))
            )
        except UnicodeDecodeError:
            raise ProtocolError("Expected terms and an offer in text, got others.") from None
        terms = HelperTerms.from_text(terms_text)
        begin = end + (KEY_BYTES if terms.largest else 0)
        verify_key = message[end:begin]
        # theory/helper-sums.md, Proposition 7: fixed before clients have drawn their nonces.
        if terms.largest and proven.commitment_of(verify_key) != terms.commitment:
            raise ProtocolError("Expected the verification key of the terms, got another.")
        seeds = _seeds(message, begin, count, terms, SIGNATURE_BYTES * signed)
        return cls(terms, seeds, offer, hashlib.sha256(message).digest(), verify_key)


def write_request(
    terms: HelperTerms,
    seeds: Mapping[int, SealedSeed],
    offer: str = "",
    verify_key: bytes = b"",
) -> bytes:
    """The request for the masks, or the shares, of these clients, in bytes."""
    signed = any(each.signature for each in seeds.values())
    texts = terms.to_text().encode(), offer.encode()
    parts = [HEAD.pack(ASKED, *map(len, texts), len(seeds), signed), *texts, verify_key]
    for client in sorted(seeds):
        seed = seeds[client]
        parts += [client.to_bytes(NUMBER_BYTES, "big"), seed.sealed]
        if signed:
            parts.append(seed.signature.ljust(SIGNATURE_BYTES, b"\0"))
        parts += [seed.bound, seed.verifier]
    return b"".join(parts)


def _seeds(
    message: bytes, start: int, count: int, terms: HelperTerms, signature: int
) -> dict[int, SealedSeed]:
    """The clients of a request; ProtocolError unless they ascend and fill it to its end."""
    sizes = [NUMBER_BYTES, terms.key.sealed_bytes, signature]
    sizes += [proven.BOUND_BYTES, proven.verifier_bytes(terms)] if terms.largest else [0, 0]
    each = sum(sizes)
    if len(message) != start + count * each:
        raise ProtocolError(
            f"Expected a request of {start + count * each} bytes for {count} clients, got "
            f"{len(message)}."
        )
    found: dict[int, SealedSeed] = {}
    before = -1
    for at in range(start, len(message), each):
        client = int.from_bytes(message[at : at + NUMBER_BYTES], "big")
        if client <= before:
            raise ProtocolError(
                f"Expected each client once, in ascending order, got {client} after {before}."
            )
        ends = [at + size for size in itertools.accumulate(sizes)]
        parts = [message[low:high] for low, high in itertools.pairwise(ends)]
        found[client], before = SealedSeed(*parts), client
    return found


def write_answer(request: HelperRequest, left_out: Mapping[int, int], total: np.ndarray) -> bytes:
    """The helper's answer: the sum of masks (d,), and whose it leaves out, by number and reason."""
    terms, listed = request.terms, write_listed(left_out)
    if terms.largest:
        payload = proven.write_total(request.digest, listed, total)
    else:
        kept = total & total.dtype.type((1 << terms.bits) - 1)
        codes = kept.astype(np.uint8 if terms.bits <= 8 else np.uint32, copy=False)
        payload = wire.pack(_format(terms.bits, request.digest, listed), codes)
    count = len(left_out).to_bytes(4, "big")
    return b"".join((ANSWERED, request.digest, count, listed, payload))


def read_answer(
    terms: HelperTerms, digest: bytes, clients: Mapping[int, Any], answer: Any
) -> tuple[dict[int, int], np.ndarray]:
    """Invert `write_answer`; ProtocolError if it is damaged or answers another request.

    Args:
        terms: of the sum.
        digest: of the request.
        clients: those that were asked for.
        answer: the helper's.
    """
    start = len(ANSWERED) + len(digest) + 4
    if not isinstance(answer, bytes) or not answer.startswith(ANSWERED) or len(answer) < start:
        raise ProtocolError("Expected a helper's answer, got something else.")
    if answer[len(ANSWERED) : start - 4] != digest:
        raise ProtocolError("Expected the helper's answer to this request, got another's.")
    end = start + (NUMBER_BYTES + 1) * int.from_bytes(answer[start - 4 : start], "big")
    packed = wire.masked(terms.dimension, terms.bits)
    size = end + (proven.total_bytes(terms) if terms.largest else packed)
    if len(answer) != size:
        raise ProtocolError(f"Expected an answer of {size} bytes, got {len(answer)}.")
    left_out = read_listed(answer[start:end])
    if not left_out.keys() <= clients.keys():
        raise ProtocolError("Expected only clients of the sum to be left out, got others.")
    try:
        if terms.largest:
            return left_out, proven.read_total(digest, answer[start:end], answer[end:])
        form = _format(terms.bits, digest, answer[start:end])
        total = wire.unpack(form, answer[end:], terms.dimension)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    return left_out, total.astype(masks.dtype(terms.bits))


def write_listed(left_out: Mapping[int, int]) -> bytes:
    """Clients that are left out, with reasons, in bytes."""
    return b"".join(
        c.to_bytes(NUMBER_BYTES, "big") + bytes([left_out[c]]) for c in sorted(left_out)
    )


def read_listed(listed: bytes) -> dict[int, int]:
    """Invert `_listed`; ProtocolError for anything else."""
    each = NUMBER_BYTES + 1
    parts = [listed[at : at + each] for at in range(0, len(listed), each)]
    found = {int.from_bytes(part[:-1], "big"): part[-1] for part in parts}
    if not set(found.values()) <= LEFT_OUT.keys() or write_listed(found) != listed:
        raise ProtocolError("Expected clients that are left out, in order, got others.")
    return found


def _format(bits: int, digest: bytes, listed: bytes) -> wire.Format:
    """Wire format of the answer to one request: its checksum covers who is left out, too."""
    return wire.Format.of(
        2**bits, "masks of a sum", digest.hex(), hashlib.sha256(listed).hexdigest()
    )


# What the server has of each client's vector, and its running sum: masked, or a share of it.


class MaskedVectors:
    """Masked vectors modulo 2**bits.

    Args:
        terms: of the sum.
        digest: of the terms.
        verify_key: none.

    Attributes:
        size: bytes that are kept of a client's vector.
    """

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        self._terms, self._digest = terms, digest
        self.size = wire.masked(terms.dimension, terms.bits)
        self._total = np.zeros(terms.dimension, dtype=np.uint32)

    def read(self, message: Any) -> tuple[SealedSeed, bytes]:
        """A message's sealed seed, and what is kept of its vector; ProtocolError if malformed."""
        return read_message(self._terms, message)

    def add(self, client: int, kept: bytes) -> None:
        """Add a vector to the sum; ProtocolError if it is damaged."""
        try:
            wire.add(masked_format(self._terms.bits, self._digest, client), kept, self._total)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def without(self, left_out: Iterable[tuple[int, bytes]], answered: np.ndarray) -> np.ndarray:
        """The sum of codes of all but some clients, given the sum of their masks."""
        total, bits = self._total.copy(), self._terms.bits
        for client, kept in left_out:
            form = masked_format(bits, self._digest, client)
            total -= wire.unpack(form, kept, self._terms.dimension)
        total = total.astype(answered.dtype) - answered
        return total & total.dtype.type((1 << bits) - 1)


class ProvenVectors:
    """The server's shares of vectors over Field64, each with a verifier share of its proof.

    Args:
        terms: of the sum.
        digest: of the terms.
        verify_key: of proofs, to which the terms are committed.

    Attributes:
        size: bytes that are kept of a client's vector.
    """

    def __init__(self, terms: HelperTerms, digest: bytes, verify_key: bytes) -> None:
        validate.whole("bytes of verify_key", len(verify_key), low=SEED_SIZE, high=SEED_SIZE)
        if proven.commitment_of(verify_key) != terms.commitment:
            raise ValueError("Expected the verification key of the terms, got another.")
        self._terms, self._digest, self._verify_key = terms, digest, verify_key
        self._prio3 = proven.prio3_of(terms)
        self.size = terms.dimension * self._prio3.field.ENCODED_SIZE
        self._total = self._prio3.agg_init()

    def read(self, message: Any) -> tuple[SealedSeed, bytes]:
        """A message's sealed seed with the server's verifier share, and its output share.

        Raises:
            ProtocolError: the message is malformed, or false already by the server's share.
        """
        seed, share = proven.read_proven(self._terms, message)
        out_share, verifier = proven.leader_verifier(
            self._terms, self._digest, self._verify_key, seed.bound, share
        )
        seed = SealedSeed(seed.sealed, seed.signature, seed.bound, verifier)
        return seed, bytes(self._prio3.field.encode_vec(out_share))

    def add(self, client: int, kept: bytes) -> None:
        """Add a share to the sum."""
        self._prio3.agg_update(self._total, self._prio3.field.decode_vec(kept))

    def without(self, left_out: Iterable[tuple[int, bytes]], answered: np.ndarray) -> np.ndarray:
        """The sum of codes of all but some clients, given the sum of the helper's shares."""
        field = self._prio3.field
        total = field.vec_add(self._total, answered)
        for _, kept in left_out:
            field.vec_sub(total, field.decode_vec(kept), total)
        return total
