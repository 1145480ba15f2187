"""The server's request to the helper in a sum, and the helper's answer.

A request, numbers in big-endian order:

bytes   field
4       "RQHQ"
4, 4, 4 lengths of the terms and of the offer, and number of clients
1       1 if clients have signatures, else 0
        the terms, as text; the offer, as text; the key that proofs are verified with (32), if
        clients prove their codes
        for each client, in ascending order: its number (8), its sealed seed, its signature or 64
        zeros; nonce, public share and the server's verifier share of its proof, if there is one

An answer: "RQHA", SHA-256 of the request, the number of clients left out (4), for each its number
(8) and the reason (1), and the sum of the others' masks, as a payload of `channels.wire`, or of the
helper's shares of their codes, as in `proven.write_total`.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from randquant.channels import wire
from randquant.secure_sums.helper import proven
from randquant.secure_sums.helper.message import (
    MAX_TERMS_TEXT_LENGTH,
    SIGNATURE_BYTES,
    HelperTerms,
    SealedSeed,
)
from randquant.secure_sums.terms import ProtocolError, mask_dtype

HEAD = struct.Struct(">4sIIIB")
NUMBER_BYTES, KEY_BYTES = 8, 32
REQUEST_MAGIC, ANSWER_MAGIC = b"RQHQ", b"RQHA"
MAX_OFFER_BYTES = 2**20
"""Longest text of an offer, which the journal keeps: the text of a channel has 1,000 to 250,000
bytes. A longer one would let a server fill the helper's disk."""

# The helper sends a number and no text: it reveals no more about seed or codes than the reason.
LEFT_OUT = {
    1: "Expected a seed that the helper can open, sealed to its key for this client and sum.",
    2: "Expected a seed signed by this client: the helper's directory does not confirm it.",
    3: "Expected a client within the helper's limit, got one that has answered too often.",
    4: "Expected codes that are proven valid: the helper refuses the proof.",
}
"""The helper's reasons for leaving a client out, by their numbers in an answer."""
UNOPENED, UNSIGNED, SPENT, INVALID = LEFT_OUT


@dataclass(frozen=True, slots=True)
class HelperRequest:
    """One set of clients, whose masks the helper is asked to add up.

    Attributes:
        terms: the sum's.
        seeds: by client, in ascending order.
        offer: the offer's text, for a helper that counts epsilon.
        digest: SHA-256 of the request's bytes: any change makes it another request.
        verify_key: that of proofs; b"" without proofs.
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
            raise ProtocolError(
                f"Expected a request to a helper in {HEAD.size} bytes or more, got {len(message)}."
            )
        magic, terms_size, offer_size, count, signed = HEAD.unpack_from(message)
        if magic != REQUEST_MAGIC or signed > 1 or terms_size > MAX_TERMS_TEXT_LENGTH:
            raise ProtocolError(
                f"Expected a request to a helper, which starts with {REQUEST_MAGIC!r}, got "
                f"{message[: HEAD.size].hex()}."
            )
        # Lengths are a stranger's: each is bounded before anything of that size is read.
        if offer_size > MAX_OFFER_BYTES:
            raise ProtocolError(
                f"Expected an offer of {MAX_OFFER_BYTES} bytes at most, got {offer_size}."
            )
        start, end = HEAD.size + terms_size, HEAD.size + terms_size + offer_size
        try:
            terms_text, offer = (
                message[low:high].decode() for low, high in ((HEAD.size, start), (start, end))
            )
        except UnicodeDecodeError as error:
            raise ProtocolError(
                f"Expected terms and an offer in text, got bytes that are not: {error.reason}."
            ) from None
        terms = HelperTerms.from_text(terms_text)
        seeds_start = end + (KEY_BYTES if terms.largest else 0)
        verify_key = message[end:seeds_start]
        # theory/helper-sums.md, Proposition 7: fixed before clients have drawn their nonces.
        if terms.largest and proven.verify_key_commitment(verify_key) != terms.commitment:
            raise ProtocolError(wrong_verify_key(terms, verify_key))
        sizes = seed_sizes(terms, signed=bool(signed))
        seeds = _read_seeds(message, seeds_start, count, sizes)
        return cls(terms, seeds, offer, hashlib.sha256(message).digest(), verify_key)


def write_request(
    terms: HelperTerms,
    seeds: Mapping[int, SealedSeed],
    offer: str = "",
    verify_key: bytes = b"",
) -> bytes:
    """Encode the request for the sum of the masks, or of the shares, of these clients."""
    signed = any(seed.signature for seed in seeds.values())
    texts = terms.to_text().encode(), offer.encode()
    parts = [HEAD.pack(REQUEST_MAGIC, *map(len, texts), len(seeds), signed), *texts, verify_key]
    # Sorted: one set of clients has one request.
    parts += (write_seed(client, seeds[client], signed=signed) for client in sorted(seeds))
    return b"".join(parts)


def write_seed(client: int, seed: SealedSeed, *, signed: bool) -> bytes:
    """Encode what the helper is told of a client: of one length for all clients of a sum."""
    # Where some clients sign, the others have a signature of zeros, which no key verifies.
    signature = seed.signature.ljust(SIGNATURE_BYTES, b"\0") if signed else b""
    number = client.to_bytes(NUMBER_BYTES, "big")
    return b"".join((number, seed.sealed, signature, seed.bound, seed.verifier))


def seed_sizes(terms: HelperTerms, *, signed: bool) -> list[int]:
    """Return the lengths of the five fields that `write_seed` writes."""
    proof = [proven.BOUND_BYTES, proven.verifier_bytes(terms)] if terms.largest else [0, 0]
    return [NUMBER_BYTES, terms.key.sealed_bytes, SIGNATURE_BYTES * signed, *proof]


def read_seed(sizes: Sequence[int], encoded: bytes) -> tuple[int, SealedSeed]:
    """Invert `write_seed`, given the fields' lengths."""
    ends = itertools.accumulate(sizes, initial=0)
    number, sealed, signature, *proof = (
        encoded[low:high] for low, high in itertools.pairwise(ends)
    )
    # A signature of zeros stands for none.
    signature = signature if any(signature) else b""
    return int.from_bytes(number, "big"), SealedSeed(sealed, signature, *proof)


def wrong_verify_key(terms: HelperTerms, verify_key: bytes) -> str:
    # Its commitment is shown and never the key, with which clients could make false proofs.
    return (
        "Expected the verification key of the terms, which are committed to "
        f"{terms.commitment.hex()[:16]}..., got a key with the commitment "
        f"{proven.verify_key_commitment(verify_key).hex()[:16]}...."
    )


def _read_seeds(
    message: bytes, start: int, count: int, sizes: Sequence[int]
) -> dict[int, SealedSeed]:
    client_size = sum(sizes)
    # Before anything of the clients is read: a stranger's count of billions takes no memory.
    if len(message) != start + count * client_size:
        raise ProtocolError(
            f"Expected a request of {start + count * client_size} bytes for {count} clients, got "
            f"{len(message)}."
        )
    seeds: dict[int, SealedSeed] = {}
    previous = -1
    for offset in range(start, len(message), client_size):
        client, seed = read_seed(sizes, message[offset : offset + client_size])
        # One seed for each client: its codes are in the sum once (helper-sums.md, Proposition 2).
        if client <= previous:
            raise ProtocolError(
                f"Expected each client once, in ascending order, got {client} after {previous}."
            )
        seeds[client], previous = seed, client
    return seeds


def write_answer(request: HelperRequest, left_out: Mapping[int, int], total: np.ndarray) -> bytes:
    """Encode the helper's answer.

    Args:
        request: the server's.
        left_out: reasons by client, of those whose masks are not in the sum.
        total: the sum of masks (d,), or of the helper's shares.
    """
    terms, listed = request.terms, write_listed(left_out)
    if terms.largest:
        payload = proven.write_total(request.digest, listed, total)
    else:
        # The wire format takes numbers below the modulus only.
        reduced = total & total.dtype.type((1 << terms.bits) - 1)
        codes = reduced.astype(np.uint8 if terms.bits <= 8 else np.uint32, copy=False)
        payload = wire.pack(_answer_format(terms.bits, request.digest, listed), codes)
    count = len(left_out).to_bytes(4, "big")
    return b"".join((ANSWER_MAGIC, request.digest, count, listed, payload))


def read_answer(
    terms: HelperTerms, digest: bytes, clients: Mapping[int, Any], answer: Any
) -> tuple[dict[int, int], np.ndarray]:
    """Invert `write_answer`; ProtocolError if it is damaged or answers another request.

    Args:
        terms: the sum's.
        digest: the request's.
        clients: those of the request.
        answer: the helper's.
    """
    start = len(ANSWER_MAGIC) + len(digest) + 4
    if not isinstance(answer, bytes) or not answer.startswith(ANSWER_MAGIC) or len(answer) < start:
        shown = answer[:8].hex() if isinstance(answer, bytes) else type(answer).__name__
        raise ProtocolError(
            f"Expected a helper's answer, which starts with {ANSWER_MAGIC!r}, got {shown or b''}."
        )
    # First: the lengths below follow from this request's terms, and would split another answer
    # anywhere.
    answered_digest = answer[len(ANSWER_MAGIC) : start - 4]
    if answered_digest != digest:
        raise ProtocolError(
            f"Expected the helper's answer to this request, {digest.hex()[:16]}..., got one to "
            f"{answered_digest.hex()[:16]}...."
        )
    end = start + (NUMBER_BYTES + 1) * int.from_bytes(answer[start - 4 : start], "big")
    packed = wire.masked(terms.dimension, terms.bits)
    size = end + (proven.total_bytes(terms) if terms.largest else packed)
    if len(answer) != size:
        raise ProtocolError(f"Expected an answer of {size} bytes, got {len(answer)}.")
    left_out = read_listed(answer[start:end])
    strangers = left_out.keys() - clients.keys()
    if strangers:
        raise ProtocolError(
            f"Expected only clients of the sum to be left out, got {sorted(strangers)[:3]}."
        )
    try:
        if terms.largest:
            return left_out, proven.read_total(digest, answer[start:end], answer[end:])
        form = _answer_format(terms.bits, digest, answer[start:end])
        total = wire.unpack(form, answer[end:], terms.dimension)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    return left_out, total.astype(mask_dtype(terms.bits))


def write_listed(left_out: Mapping[int, int]) -> bytes:
    return b"".join(
        c.to_bytes(NUMBER_BYTES, "big") + bytes([left_out[c]]) for c in sorted(left_out)
    )


def read_listed(listed: bytes) -> dict[int, int]:
    """Invert `write_listed`; ProtocolError for anything else."""
    size = NUMBER_BYTES + 1
    parts = [listed[start : start + size] for start in range(0, len(listed), size)]
    left_out = {int.from_bytes(part[:-1], "big"): part[-1] for part in parts}
    # Encoded again and compared: no client twice, none out of order.
    if not set(left_out.values()) <= LEFT_OUT.keys() or write_listed(left_out) != listed:
        raise ProtocolError(
            "Expected clients that are left out, each once, in order and with a reason from 1 to "
            f"{len(LEFT_OUT)}, got {len(parts)} entries that are not: {listed[:18].hex()}."
        )
    return left_out


def _answer_format(bits: int, digest: bytes, listed: bytes) -> wire.Format:
    # The payload's checksum depends on the request and on the list of clients left out: a list with
    # another sum of masks is refused.
    return wire.Format.from_facts(
        2**bits, "masks of a sum", digest.hex(), hashlib.sha256(listed).hexdigest()
    )
