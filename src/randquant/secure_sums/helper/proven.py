"""Codes that a client proves to be valid: its message, and what the helper verifies.

A client splits its codes by Prio3 between the server, which is the leader, and the helper, whose
share follows from the sealed seed. `docs/theory/helper-sums.md` says what each of them learns.

bytes   field
4       "RQH2"
16, 64  nonce and public share of the report
n       the sealed seed; n = 1,168, or 80 with X25519; it opens with these two only
0 or 64 the client's signature of the sealed seed, if it has an identity
rest    the leader's input share
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from randquant._internal import validate
from randquant.channels.wire import Payload
from randquant.secure_sums.helper.circuits import (
    Field64,
    SumVec,
    Vector,
    XofTurboShake128,
    chunk_length,
)
from randquant.secure_sums.helper.message import (
    MAX_CLIENT_NUMBER,
    SEALED_BYTES,
    SEED_BYTES,
    SIGNATURE_BYTES,
    HelperTerms,
    SealedSeed,
    check_codes,
    context,
    signed_bytes,
)
from randquant.secure_sums.helper.prio3 import (
    SEED_SIZE,
    HelperShare,
    LeaderShare,
    Prio3,
    decode_input_share,
    decode_public_share,
    decode_verifier_share,
    encode_input_share,
    encode_public_share,
    encode_verifier_share,
    leader_share_size,
)
from randquant.secure_sums.terms import ProtocolError

MAGIC = b"RQH2"
ALGORITHM_CODE = 0xFFFFFFFF  # of the range for private use
PROOFS_COUNT = 3
"""Proofs of one message over Field64 (theory/vdaf.md, Proposition 2). A client could search for a
message with one proof that is accepted, in 2**56 hashes; six would double the proof's bytes."""
LEADER_NUMBER, HELPER_NUMBER = 0, 1  # Prio3's numbers of the two aggregators
BOUND_BYTES = Prio3.NONCE_SIZE + 2 * SEED_SIZE
VERIFY_KEY_BYTES = Prio3.VERIFY_KEY_SIZE
TOTAL_TAG_BYTES = 32  # of SHA-256
MAX_SEALED_BYTES = max(SEALED_BYTES.values())
SHARE_TAG = b"randquant helper share"


def prio3_for(terms: HelperTerms) -> Prio3:
    return _prio3(terms.dimension, terms.largest)


@functools.lru_cache(maxsize=8)
def _prio3(dimension: int, largest: int) -> Prio3:
    chunk = chunk_length(dimension * largest.bit_length())
    return Prio3(SumVec(Field64, dimension, largest, chunk), ALGORITHM_CODE, PROOFS_COUNT)


def proof_context(digest: bytes) -> bytes:
    # Prio3 itself does not bind a proof to the circuit's parameters: they are in the terms.
    return b"randquant proven codes\0" + digest


def proven_message(
    terms: HelperTerms,
    client: int,
    codes: np.ndarray,
    helper: bytes,
    identity: Ed25519PrivateKey | None = None,
) -> bytes:
    """Split a client's codes with a proof that they are valid: all that it sends in a sum.

    Args:
        terms: as the server sent them, with `largest`, which must be at least the largest code of
            the client's mechanism: compare them before codes are drawn, since a refusal that
            depends on codes says something of them.
        client, codes, helper, identity: as in `masked_message`, codes up to `terms.largest`.

    Guarantees:
        The message is independent of the codes for everybody who does not have the helper's key.
        Each call draws fresh seeds and a fresh nonce.

    Raises:
        ProtocolError: the key in the terms is not that of this helper.
        ValueError, TypeError: the codes, the number or the terms are not as described.

    Example:
        >>> import tempfile
        >>> from randquant.secure_sums.helper import Helper, HelperSum, verify_key_commitment
        >>> identity, verify_key = Ed25519PrivateKey.generate(), os.urandom(32)
        >>> pinned = identity.public_key().public_bytes_raw()
        >>> helper = Helper(tempfile.mkdtemp(), identity)
        >>> terms = HelperTerms(
        ...     b"run 7, round 1", helper.key, 100, 3, dimension=4, bits=8,
        ...     largest=1, commitment=verify_key_commitment(verify_key),
        ... )
        >>> server = HelperSum(terms, verify_key=verify_key)
        >>> for client in (3, 5, 8):
        ...     codes = np.array([0, 1, client > 3, 1], dtype=np.uint8)
        ...     server.add(client, proven_message(terms, client, codes, pinned))
        >>> server.unmask(helper.answer(server.request()))
        array([0, 3, 2, 3], dtype=uint8)
    """
    validate.kind("terms", terms, HelperTerms)
    client = validate.whole("client", client, low=0, high=MAX_CLIENT_NUMBER)
    if not terms.largest:
        raise ValueError(
            "Expected terms of a sum with proofs, got largest=0: use `masked_message`."
        )
    check_codes(terms, codes, terms.largest)
    terms.key.check(helper)
    digest, prio3, seed = terms.digest, prio3_for(terms), os.urandom(SEED_BYTES)
    nonce, share = os.urandom(prio3.NONCE_SIZE), helper_share(seed)
    # The helper's share and blind follow from the sealed seed, so that it gets 32 bytes and not a
    # vector; the rest of Prio3's randomness is drawn.
    rand = share.share + share.blind + os.urandom(prio3.RAND_SIZE - 2 * SEED_SIZE)
    public, shares = prio3.shard(proof_context(digest), codes, nonce, rand)
    # The seal opens with this nonce and public share only: a server that could change them would
    # choose the query, and learn from verdicts (theory/helper-sums.md, Proposition 7).
    bound = nonce + encode_public_share(public)
    sealed = terms.key.seal(seed, context(digest, client) + bound)
    signature = b"" if identity is None else identity.sign(signed_bytes(digest, client, sealed))
    leader = encode_input_share(prio3, shares[LEADER_NUMBER])
    return b"".join((MAGIC, bound, sealed, signature, leader))


def message_bytes(terms: HelperTerms) -> int:
    return proven_bytes(terms.dimension, terms.largest, terms.key.sealed_bytes)


def proven_bytes(dimension: int, largest: int, sealed: int = MAX_SEALED_BYTES) -> int:
    """Return the length of a message without signature.

    Args:
        dimension: number of codes.
        largest: the largest code.
        sealed: length of the sealed seed in bytes, by default with a hybrid key.

    Raises:
        ValueError: there are more codes than a proof can cover.
    """
    leader = leader_share_size(_prio3(dimension, largest)) + SEED_SIZE
    return len(MAGIC) + BOUND_BYTES + sealed + leader


def read_proven(terms: HelperTerms, message: Any) -> tuple[SealedSeed, LeaderShare]:
    """Split a message into sealed seed and leader's share; ProtocolError if it is malformed."""
    unsigned_size = message_bytes(terms)
    # The length alone tells whether there is a signature, and it is checked before anything is
    # decoded: a message that is too long costs the server nothing more.
    sizes = (unsigned_size, unsigned_size + SIGNATURE_BYTES)
    if not isinstance(message, Payload) or len(message) not in sizes:
        size = len(message) if isinstance(message, Payload) else type(message).__name__
        raise ProtocolError(
            f"Expected a message of {sizes[0]} bytes, or {sizes[1]} with a signature, got {size}."
        )
    message = bytes(message)
    if not message.startswith(MAGIC):
        raise ProtocolError(f"Expected a message that starts with {MAGIC!r}, got {message[:4]!r}.")
    start = len(MAGIC) + BOUND_BYTES
    middle = start + terms.key.sealed_bytes
    end = middle + len(message) - unsigned_size
    try:
        share = decode_input_share(prio3_for(terms), LEADER_NUMBER, message[end:])
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    bound = message[len(MAGIC) : start]
    assert isinstance(share, LeaderShare)
    return SealedSeed(message[start:middle], message[middle:end], bound), share


def helper_share(seed: bytes) -> HelperShare:
    """Expand a sealed seed into the helper's input share."""
    stream = XofTurboShake128(seed, SHARE_TAG).next(2 * SEED_SIZE)
    return HelperShare(stream[:SEED_SIZE], stream[SEED_SIZE:])


def leader_verifier(
    terms: HelperTerms, digest: bytes, verify_key: bytes, bound: bytes, share: LeaderShare
) -> tuple[Vector, bytes]:
    """Compute the server's output share and verifier share; ProtocolError for a false report."""
    prio3, ctx = prio3_for(terms), proof_context(digest)
    nonce, encoded = bound[: prio3.NONCE_SIZE], bound[prio3.NONCE_SIZE :]
    try:
        public = decode_public_share(prio3, encoded)
        state, verifier = prio3.verify_init(verify_key, ctx, LEADER_NUMBER, nonce, public, share)
    except ValueError as error:
        raise ProtocolError(str(error)) from None
    # Prio3 compares the parts in its last step only, when the helper's sum is out already.
    if verifier.joint_rand_part != public[LEADER_NUMBER]:
        raise ProtocolError(
            "Expected the joint randomness of the server's share, got a public share without it."
        )
    return state.out_share, encode_verifier_share(prio3, verifier)


def invalid(
    terms: HelperTerms,
    digest: bytes,
    verify_key: bytes,
    seeds: Mapping[int, SealedSeed],
    opened: Iterable[tuple[int, bytes]],
) -> set[int]:
    """Return the clients, of those whose seeds opened, whose codes are not proven valid."""
    clients = set()
    for client, seed in opened:
        try:
            _verify(terms, digest, verify_key, seeds[client], seed)
        # A report that fails, for whatever reason, is left out alone: the others' sum goes on.
        except ValueError:
            clients.add(client)
    return clients


def _verify(
    terms: HelperTerms, digest: bytes, verify_key: bytes, report: SealedSeed, seed: bytes
) -> None:
    # ValueError unless the proofs of one report are those of valid codes.
    prio3, ctx = prio3_for(terms), proof_context(digest)
    nonce, encoded = report.bound[: prio3.NONCE_SIZE], report.bound[prio3.NONCE_SIZE :]
    public = decode_public_share(prio3, encoded)
    state, helper = prio3.verify_init(
        verify_key, ctx, HELPER_NUMBER, nonce, public, helper_share(seed)
    )
    leader = decode_verifier_share(prio3, report.verifier)
    # theory/helper-sums.md, Proposition 9: Prio3 leaves the helper's part to the server to compare,
    # which would find a report false when it is in the helper's sum already.
    if public != [leader.joint_rand_part, helper.joint_rand_part]:
        raise ValueError(
            "Expected the joint randomness of both shares, got a public share that differs from it."
        )
    prio3.verify_next(state, prio3.verifier_shares_to_message(ctx, [leader, helper]))


def helper_total(terms: HelperTerms, digest: bytes, seeds: Iterable[bytes]) -> Vector:
    """Add up the helper's shares of these clients' codes."""
    prio3, ctx = prio3_for(terms), proof_context(digest)
    total = prio3.agg_init()
    for seed in seeds:
        meas_share = prio3.helper_meas_share(ctx, HELPER_NUMBER, helper_share(seed).share)
        total = prio3.agg_update(total, prio3.flp.valid.truncate(meas_share))
    return total


def write_total(request: bytes, listed: bytes, total: Vector) -> bytes:
    """Encode the helper's total, with a checksum that covers the list of clients left out.

    Args:
        request: digest of the request.
        listed: the clients that are left out, encoded.
        total: the sum of shares.
    """
    # A list that does not belong to the total would give a wrong sum without an error.
    encoded = bytes(Field64.encode_vec(total))
    return encoded + hashlib.sha256(request + listed + encoded).digest()


def read_total(request: bytes, listed: bytes, payload: bytes) -> Vector:
    """Invert `write_total`; ValueError if it is damaged."""
    encoded, tag = payload[:-TOTAL_TAG_BYTES], payload[-TOTAL_TAG_BYTES:]
    if hashlib.sha256(request + listed + encoded).digest() != tag:
        raise ValueError(
            f"Expected a helper's answer that is not damaged, got one of {len(payload)} bytes with "
            f"a wrong checksum, {tag.hex()[:16]}...."
        )
    return Field64.decode_vec(encoded)


def total_bytes(terms: HelperTerms) -> int:
    return terms.dimension * Field64.ENCODED_SIZE + TOTAL_TAG_BYTES


def verifier_bytes(terms: HelperTerms) -> int:
    prio3 = prio3_for(terms)
    return prio3.flp.VERIFIER_LEN * PROOFS_COUNT * prio3.field.ENCODED_SIZE + SEED_SIZE


def verify_key_commitment(verify_key: bytes) -> bytes:
    """Return the commitment to a verification key, 32 bytes, for `HelperTerms.commitment`.

    Clients see the commitment alone: one who knew the key could forge proofs.
    """
    return hashlib.sha256(b"randquant verification key\0" + verify_key).digest()
