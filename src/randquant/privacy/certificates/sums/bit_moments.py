"""The divergence of a sum whose codes are sums of bits: every arrangement of the others' bits.

Derivation: `docs/theory/sums.md`, Propositions 11 and 12.
"""

from __future__ import annotations

import math

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.bits import SCALE, Bits
from randquant.privacy.certificates.sums.bounds import floor_for
from randquant.privacy.certificates.sums.law import Law, multiples
from randquant.privacy.certificates.sums.mixture import add_trimmed, table
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring

ARRANGEMENTS, FEWER = 800, 150
"""So many arrangements are tried: where there are more, bits are counted in blocks."""

LONG, LONGEST = 2**15, 2**18
"""From so many bits on, the lesser number of arrangements is tried; more bits than the second
number are counted as so many."""


def by_bits(
    channel: Channel, others: int, order: float, neighboring: Neighboring, log_single: float
) -> float:
    """Bound the log moment by all arrangements of the others' bits; infinite if there are none.

    Args:
        channel: the channel.
        others: how many other clients there are.
        order: in (1, inf).
        neighboring: what the adversary tries to tell apart.
        log_single: at least the largest log moment of one client.
    """
    bits = Bits.of(channel)
    # theory/sums.md, Proposition 11: all bits of the others are at ends; none is drawn evenly.
    if bits is None or bits.even > 0:
        return math.inf
    low, high = (bits.one().weights[v] for v in (0, 1))
    rows = _rows(channel, bits, low, high, neighboring)
    # theory/sums.md, Proposition 2: counting on fewer bits is a bound for all.
    count = min(others * bits.trials, LONGEST)
    floor = floor_for(rows, log_single)
    block = -(-count // (ARRANGEMENTS if count < LONG else FEWER))
    # Block i holds the arrangements with i·block to (i + 1)·block - 1 bits at the upper end.
    upper = range(0, count + 1, block)
    lower = [max(count - start - block + 1, 0) for start in upper]
    ups = multiples(Law.of(high, SCALE, floor), upper)
    downs = multiples(Law.of(low, SCALE, floor), lower)
    largest = 0.0
    # theory/sums.md, Proposition 11: mirrored arrangements have the same moments.
    looked_at = (len(upper) + 1) // 2 if block == 1 and rows.mirror else len(upper)
    for at, (up, down) in enumerate(zip(upper[:looked_at], lower[:looked_at], strict=True)):
        if at % 16 == 0:
            report("how the others' bits are spread", at, looked_at)
        noise = ups[up] * downs[down]
        moment = float(table(rows, noise, order)[0].max())
        largest = max(largest, float(add_trimmed(moment, noise.trimmed, noise.floor, log_single)))
    # theory/sums.md, Proposition 12.
    error = math.expm1((others + 1) * math.log1p(bits.error)) * (1 + 16 * UNIT)
    if error > 0.01:
        return math.inf
    return (largest - (2 * order - 1) * math.log1p(-error)) * (1 + 16 * UNIT)


def _rows(
    channel: Channel, bits: Bits, low: np.ndarray, high: np.ndarray, neighboring: Neighboring
) -> Rows:
    """The client's rows with each of its bits at one of the two ends, and the row of 0."""
    laws = []
    # theory/sums.md, Proposition 11: t + 1 rows, of which all rows are mixes.
    for above in range(bits.trials + 1):
        law = [1]
        for end in [high] * above + [low] * (bits.trials - above):
            fails, succeeds = (int(weight) for weight in end)
            law = [
                fails * a + succeeds * b for a, b in zip([*law, 0], [0, *law], strict=True)
            ]  # fmt: skip
        laws.append(law)
    total = SCALE**bits.trials
    mirror = bool((low == high[::-1]).all())
    allowed = ~np.eye(len(laws), dtype=bool)
    inputs = np.zeros(len(laws) + 1)  # of no meaning: a bit's end is no input
    if neighboring == "replace_one":
        return Rows(np.array(laws, object), total, inputs[:-1], len(laws), allowed, mirror)
    # Integers over a common total: nothing is rounded.
    zero, zero_total = channel.mix(0.0)
    zero = [int(weight) for weight in zero]
    if bits.turned:
        zero = zero[::-1]
    weights = [[weight * zero_total for weight in law] for law in laws]
    weights.append([weight * total for weight in zero])
    allowed = np.zeros((len(weights), len(weights)), dtype=bool)
    allowed[-1, :-1] = allowed[:-1, -1] = True
    mirror &= zero == zero[::-1]
    return Rows(np.array(weights, object), total * zero_total, inputs, len(laws), allowed, mirror)
