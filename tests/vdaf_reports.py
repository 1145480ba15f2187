"""Honest and false reports of a vector of bits, and what aggregators make of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from randquant.aggregation.vdaf import Prio3, SumVec, serialization
from randquant.aggregation.vdaf.field import Field64

LENGTH = 13
CTX, KEY = b"session 7", bytes(range(32))


class Claimed(SumVec):
    """A liar's circuit: it proves whatever entries it is told, as an honest client would."""

    def encode(self, measurement):
        """Take any integers for bits."""
        return self.field.of(measurement)


def prio3(circuit: type[SumVec] = SumVec, length: int = LENGTH, shares: int = 2) -> Prio3:
    """Bits over Field64 with three proofs."""
    return Prio3(circuit(Field64, length, 1, 4), 0xFFFFFFFF, shares, proofs=3)


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
    encoded = tuple(bytes(serialization.encode_input_share(client, each)) for each in shares)
    return Report(nonce, serialization.encode_public_share(public), encoded)


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
        public = serialization.decode_public_share(aggregator, sent.public)
        states, verifiers = [], []
        for j in (0, 1):
            share = serialization.decode_input_share(aggregator, j, sent.shares[j])
            state, verifier = aggregator.verify_init(keys[j], ctx, j, sent.nonce, public, share)
            states.append(state)
            encoded = serialization.encode_verifier_share(aggregator, verifier)
            encoded = on_verifier(encoded) if j else encoded
            verifiers.append(serialization.decode_verifier_share(aggregator, encoded))
        message = aggregator.verifier_shares_to_message(ctx, verifiers)
        encoded = on_message(serialization.encode_verifier_message(message))
        message = serialization.decode_verifier_message(aggregator, encoded)
        out = [aggregator.verify_next(state, message) for state in states]
    except ValueError:
        return None
    return aggregator.unshard(out, 1)


def flipped(message: bytes, at: int, bit: int = 0) -> bytes:
    """A message with one bit the other way."""
    changed = bytearray(message)
    changed[at] ^= 1 << bit
    return bytes(changed)


def bits(draw: np.random.Generator, length: int = LENGTH) -> list[int]:
    """Random bits."""
    return draw.integers(0, 2, length).tolist()


def outside(draw: np.random.Generator) -> list[int]:
    """Bits, but for one entry: 2, -1, one half, or anything."""
    entries, half = bits(draw), (Field64.MODULUS + 1) // 2
    some = int.from_bytes(draw.bytes(8), "little") % (Field64.MODULUS - 2) + 2
    entries[int(draw.integers(LENGTH))] = int([2, -1, half, some][draw.integers(4)])
    return entries


def element(share: bytes, at: int, by: int) -> bytes:
    """A leader's share with `by` added to one of its elements."""
    old = int.from_bytes(share[8 * at : 8 * at + 8], "little")
    new = ((old + by) % Field64.MODULUS).to_bytes(8, "little")
    return share[: 8 * at] + new + share[8 * at + 8 :]


def with_share(sent: Report, agg_id: int, share: bytes) -> Report:
    """A report with another share for one aggregator."""
    shares = list(sent.shares)
    shares[agg_id] = share
    return replace(sent, shares=tuple(shares))


def proofs_of_another(draw: np.random.Generator) -> Report:
    """The measurement of one report, with the proofs of another: its share, seeds or all else."""
    one, other = report(outside(draw), draw), report(bits(draw), draw)
    end = 8 * LENGTH
    leader = one.shares[0][:end] + other.shares[0][end:]
    kept = [one, other][draw.integers(2)]
    return replace(with_share(kept, 0, leader), nonce=[one, other][draw.integers(2)].nonce)


def shifted(draw: np.random.Generator) -> Report:
    """A valid report, to one entry of which something is added afterwards."""
    sent = report(bits(draw), draw)
    by = int([1, 2, -1, 2**63][draw.integers(4)])
    return with_share(sent, 0, element(sent.shares[0], int(draw.integers(LENGTH)), by))


def wrong_seed(draw: np.random.Generator) -> Report:
    """A valid report whose helper gets another seed, blind, or another report's share."""
    sent = report(bits(draw), draw)
    share, fresh = sent.shares[1], draw.bytes(32)
    choices = [fresh + share[32:], share[:32] + fresh, report(bits(draw), draw).shares[1]]
    return with_share(sent, 1, choices[draw.integers(3)])


def flipped_somewhere(draw: np.random.Generator) -> Report:
    """A valid report with one bit the other way: in nonce, public share or an input share."""
    sent, where = report(bits(draw), draw), draw.integers(4)
    parts = [sent.nonce, sent.public, *sent.shares]
    part = parts[where]
    parts[where] = flipped(part, int(draw.integers(len(part))), int(draw.integers(8)))
    return Report(parts[0], parts[1], (parts[2], parts[3]))


def of_another_session(draw: np.random.Generator) -> Report:
    """A valid report of another context."""
    return report(bits(draw), draw, ctx=draw.bytes(9))


def under_another_nonce(draw: np.random.Generator) -> Report:
    """A valid report again, as if it were a new one."""
    return replace(report(bits(draw), draw), nonce=draw.bytes(16))


def out_of_range(draw: np.random.Generator) -> Report:
    """A report of entries of which one is no bit, proven as well as a client can."""
    return report(outside(draw), draw)


def random_entries(draw: np.random.Generator) -> Report:
    """A report of random elements."""
    numbers = [int.from_bytes(draw.bytes(8), "little") for _ in range(LENGTH)]
    return report(numbers, draw)


CRAFTED = [
    out_of_range, proofs_of_another, shifted, wrong_seed, flipped_somewhere, of_another_session,
    under_another_nonce,
]  # fmt: skip
