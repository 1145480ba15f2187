"""Honest and false reports of a vector of bits, and what aggregators make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from randquant.secure_sums import (
    Field64,
    Prio3,
    SumVec,
    decode_input_share,
    decode_public_share,
    decode_verifier_share,
    encode_input_share,
    encode_public_share,
    encode_verifier_share,
)

LENGTH = 13
CTX, KEY = b"session 7", bytes(range(32))


class Claimed(SumVec):
    """A liar's circuit: it proves whatever entries it is told, as an honest client would."""

    def encode(self, measurement):
        """Take any integers for bits."""
        return self.field.vector([int(entry) for entry in measurement])


def prio3(circuit: type[SumVec] = SumVec, length: int = LENGTH) -> Prio3:
    """Bits over Field64 with three proofs."""
    return Prio3(circuit(Field64, length, 1, 4), 0xFFFFFFFF, proofs=3)


@dataclass(frozen=True)
class Report:
    """What a client sends."""

    nonce: bytes
    public: bytes
    shares: tuple[bytes, ...]


def report(bits: Sequence[int], draw: np.random.Generator, ctx: bytes = CTX) -> Report:
    """A report of these entries, whether they are bits or not."""
    client = prio3(Claimed)
    nonce, rand = draw.bytes(16), draw.bytes(client.RAND_SIZE)
    public, shares = client.shard(ctx, bits, nonce, rand)
    encoded = tuple(bytes(encode_input_share(client, each)) for each in shares)
    return Report(nonce, encode_public_share(public), encoded)


def summed(
    sent: Report,
    ctx: bytes = CTX,
    keys: tuple[bytes, bytes] = (KEY, KEY),
    on_verifier: Callable[[bytes], bytes] = bytes,
    on_message: Callable[[bytes], bytes] = bytes,
) -> list[int] | None:
    """The measurement that two aggregators find, or None if some step refuses the report.

    Args:
        sent: the report.
        ctx: the aggregators' context.
        keys: their verification keys.
        on_verifier: what happens to the helper's verifier share on its way.
        on_message: what happens to the verifier message on its way.
    """
    aggregator = prio3()
    try:
        public = decode_public_share(aggregator, sent.public)
        states, verifiers = [], []
        for j in (0, 1):
            share = decode_input_share(aggregator, j, sent.shares[j])
            state, verifier = aggregator.verify_init(keys[j], ctx, j, sent.nonce, public, share)
            states.append(state)
            encoded = encode_verifier_share(aggregator, verifier)
            encoded = on_verifier(encoded) if j else encoded
            verifiers.append(decode_verifier_share(aggregator, encoded))
        message = aggregator.verifier_shares_to_message(ctx, verifiers)
        out = [aggregator.verify_next(state, on_message(message)) for state in states]
    except ValueError:
        return None
    return Field64.integers(Field64.vec_add(*out))


def flipped(message: bytes, at: int, bit: int = 0) -> bytes:
    """A message with one bit the other way."""
    changed = bytearray(message)
    changed[at] ^= 1 << bit
    return bytes(changed)


def bits(draw: np.random.Generator, length: int = LENGTH) -> list[int]:
    """Random bits."""
    return draw.integers(0, 2, length).tolist()


def with_share(sent: Report, agg_id: int, share: bytes) -> Report:
    """A report with another share for one aggregator."""
    shares = list(sent.shares)
    shares[agg_id] = share
    return replace(sent, shares=tuple(shares))
