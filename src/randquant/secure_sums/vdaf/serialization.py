"""Prio3's messages in bytes (draft-irtf-cfrg-vdaf-20, section 7.2.7).

A decoded message has exactly its length, and numbers below the modulus: anything else is a
ValueError, since aggregators decode what hostile clients send.
"""

from __future__ import annotations

from randquant.secure_sums.vdaf.field import Vector
from randquant.secure_sums.vdaf.prio3 import (
    SEED_SIZE,
    HelperShare,
    LeaderShare,
    Prio3,
    PublicShare,
    VerifierShare,
)


def encode_public_share(public_share: PublicShare) -> bytes:
    return b"".join(public_share or [])


def decode_public_share(prio3: Prio3, encoded: bytes) -> PublicShare:
    _check(encoded, SEED_SIZE * prio3.SHARES if prio3.has_joint_rand else 0)
    parts = [encoded[i : i + SEED_SIZE] for i in range(0, len(encoded), SEED_SIZE)]
    return parts or None


def encode_input_share(prio3: Prio3, share: LeaderShare | HelperShare) -> bytes:
    blind = share.blind or b""
    if isinstance(share, HelperShare):
        return share.share + blind
    encode = prio3.field.encode_vec
    return b"".join([encode(share.meas_share), encode(share.proofs_share), blind])


def decode_input_share(prio3: Prio3, agg_id: int, encoded: bytes) -> LeaderShare | HelperShare:
    """Decode the input share of aggregator `agg_id`."""
    blind_size = SEED_SIZE * prio3.has_joint_rand
    end = leader_share_size(prio3) if agg_id == 0 else SEED_SIZE
    _check(encoded, end + blind_size)
    blind = encoded[end:] or None
    if agg_id:
        return HelperShare(encoded[:end], blind)
    vector = prio3.field.decode_vec(memoryview(encoded)[:end])
    return LeaderShare(vector[: prio3.flp.MEAS_LEN], vector[prio3.flp.MEAS_LEN :], blind)


def encode_verifier_share(prio3: Prio3, share: VerifierShare) -> bytes:
    return bytes(prio3.field.encode_vec(share.verifiers_share)) + (share.joint_rand_part or b"")


def decode_verifier_share(prio3: Prio3, encoded: bytes) -> VerifierShare:
    end = prio3.flp.VERIFIER_LEN * prio3.PROOFS * prio3.field.ENCODED_SIZE
    _check(encoded, end + SEED_SIZE * prio3.has_joint_rand)
    return VerifierShare(prio3.field.decode_vec(encoded[:end]), encoded[end:] or None)


def encode_verifier_message(message: bytes | None) -> bytes:
    return message or b""


def decode_verifier_message(prio3: Prio3, encoded: bytes) -> bytes | None:
    _check(encoded, SEED_SIZE * prio3.has_joint_rand)
    return encoded or None


def encode_agg_share(prio3: Prio3, share: Vector) -> bytes:
    # Also of an output share.
    return bytes(prio3.field.encode_vec(share))


def decode_agg_share(prio3: Prio3, encoded: bytes) -> Vector:
    _check(encoded, prio3.flp.OUTPUT_LEN * prio3.field.ENCODED_SIZE)
    return prio3.field.decode_vec(encoded)


def leader_share_size(prio3: Prio3) -> int:
    # In bytes, without the blind.
    flp = prio3.flp
    return (flp.MEAS_LEN + flp.PROOF_LEN * prio3.PROOFS) * prio3.field.ENCODED_SIZE


def _check(encoded: bytes, size: int) -> None:
    if len(encoded) != size:
        raise ValueError(f"Expected a message of {size} bytes, got {len(encoded)}.")
