"""All pairs of inputs beside every arrangement of the others' bits: the curvature of their sums.

Derivation: `docs/theory/vector-sums.md`, Proposition 24.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums import kernel
from randquant.privacy.certificates.sums.law import Law, log_trimmed, multiples
from randquant.privacy.certificates.sums.pairs import PairGrid, Values, searched
from randquant.privacy.certificates.sums.pairs_kernel import scaled_curvatures
from randquant.privacy.certificates.sums.rounding import FAINT, largest_ratio, slack, spent
from randquant.privacy.divergence import UNIT

ARRANGEMENTS, FEWER = 80, 10
"""So many are tried at most, of the likeliest group; of each of the next ones half as many, down to
the second number."""

WORK = 8e8
"""Curvatures of one outcome that may be computed, about: each takes a logarithm's time."""

MOST = 2e9
"""Pairs of points times outcomes that are looked at, at most: hundreds of vertices have more."""

DRAWS = 8
"""Codes drawn evenly that are counted on, at most."""

PRECISE = 1e-3
"""Where rounding is more than this, relatively, nothing is bounded."""

PLAIN = 300.0
"""Logarithms up to this, and sums of two, have exponentials within the range of floats."""

PLAIN_EXPONENT = -3 * kernel.LIMB
"""Of a law; then its products with rows, 2**-958 or more, are within that range."""

GROW = 1 + 2.0**-36
"""Rounding of a product of such an exponential."""

LEAST = 1e-290
"""What terms below the range of floats add, at most."""

Group = tuple[float, int, int]
"""The logarithm of at least its mass; how many of the others send bits and how many a code that is
drawn evenly, at least."""


@dataclass(frozen=True, slots=True)
class CountedSums:
    """Sums that count, for one arrangement of the others.

    Attributes:
        lines: laws at the vertices, over the largest of them at each outcome.
        scale: (L,) the logarithm of that, and of how likely the arrangement is.
        rest: what was trimmed off the others' sum may add to a moment, at most; to a curvature,
            over the square of the largest relative change.
    """

    lines: CellLines
    scale: np.ndarray
    rest: float = 0.0

    @staticmethod
    def of(
        client: CellLines, loss: float, noise: Law, log_mass: float, order: float, most: float
    ) -> CountedSums:
        """Of the sum of one client's code and a noise.

        Args:
            client: the client's rows, over a denominator of 1.
            loss: at least the log of their largest ratio at one code.
            noise: the law of what the others send.
            log_mass: of the noise.
            order: in (1, inf).
            most: what outcomes that are left out may add to a curvature.
        """
        values, exponents, lost = _spread(noise, client.weights)
        top = values.max(axis=0)
        scale = np.log(top) + exponents * math.log(2) + log_mass
        # theory/sums.md, Proposition 6.
        error = client.error + (noise.error + client.weights.shape[1] + 4) * UNIT
        every = CellLines(client.inputs, values / top, 1, error)
        # theory/vector-sums.md, Proposition 12, in logarithms: twice, which pays for rounding.
        ratio = -np.log(every.weights.min(axis=0)) * (1 + 4 * error)
        steep = 2 * np.log(every.slopes().max(axis=0)) + math.log(order)
        with np.errstate(over="ignore"):
            curvature = np.exp(steep + (abs(order - 2) + 1) * ratio + scale)
            moments = 2 * np.exp((order - 1) * ratio + scale)
        # A moment less 1 is S times this, or more, for inputs a cell apart.
        apart = (order - 1) * float(every.widths.min()) ** 2
        left = np.maximum(curvature, moments / apart) <= most / len(scale)
        power = max(order - 1, 1.0) * loss + log_mass
        rest = 2 * (order + 1) * math.exp(log_trimmed(noise.trimmed, noise.floor) + power)
        missing = math.inf if lost else float(moments[left].sum()) + rest
        kept = CellLines(client.inputs, every.weights[:, ~left], 1, error, missing)
        return CountedSums(kept, scale[~left], rest)

    def plain(self, order: float) -> bool:
        """Whether no power of a ratio, and no likelihood, is beyond floats."""
        ratio = -float(np.log(self.lines.weights).min(initial=0.0))
        return (order - 1) * ratio < PLAIN and float(self.scale.min(initial=0.0)) > -PLAIN

    def evaluate(self, grid: PairGrid, loss: float) -> Values:
        """Values of a grid's pairs of points; of moments less 1 the logarithms.

        Args:
            grid: the pairs.
            loss: at least the log of the largest ratio of two laws at one outcome.
        """
        order, error = grid.order, self.lines.error
        # theory/vector-sums.md, Proposition 24: logarithms as large as these.
        deep = loss + float(np.abs(self.scale).max(initial=0.0))
        wrong = slack(error, loss, order) + spent(len(self.scale), deep, order)
        if wrong > PRECISE:
            return np.full(grid.start[-1], np.inf), np.full(len(grid.first), np.inf)
        if self.plain(order):
            # The powers of two laws' ratios are within the range of floats: faster.
            weights = self.lines.weights * np.exp(self.scale)
            lines = CellLines(grid.inputs, weights, 1, error, self.lines.missing)
            curvature, moments = grid.evaluate(lines, loss)
            return curvature * GROW, np.log((order - 1) * moments * GROW + LEAST)
        rows = grid.rows(self.lines.weights)
        curvature, excess = np.empty(grid.start[-1]), np.empty(len(grid.first))
        steep = self.lines.slopes()
        most = 2 * np.log(np.maximum(steep.max(axis=0), 2)) - np.log(self.lines.weights.min(axis=0))
        scaled_curvatures(
            rows, np.log(rows), self.scale, most, steep, *grid.pairs, grid.low, grid.start,
            order, error, curvature, excess,
        )  # fmt: skip
        # theory/vector-sums.md, Proposition 10: what is left out of a moment.
        rest = math.log(1.1 * self.lines.missing + LEAST)
        excess = np.logaddexp(excess + math.log1p(wrong), rest)
        return (curvature * grid.bent(rows, error) + LEAST) * (1 + wrong), excess


@dataclass(frozen=True, slots=True)
class Arrangements:
    """All sums that others may send beside a client.

    Attributes:
        groups: for each group of how many of the others draw evenly, outcomes of each arrangement.
        alone: outcomes of the client's code alone.
        loss: at least the log of the largest ratio of two of its rows at one code.
        mirrored: whether half of the arrangements stand for the rest.
    """

    groups: list[list[CountedSums]]
    alone: CountedSums
    loss: float
    mirrored: bool

    @property
    def outcomes(self) -> int:
        """How many there are in all."""
        return sum(len(each.scale) for group in self.groups for each in group)

    @property
    def rest(self) -> float:
        """As of `CountedSums`, of all groups."""
        return sum(max(each.rest for each in group) for group in self.groups)

    def evaluate(self, grid: PairGrid, every: int) -> Values:
        """Values of pairs of points, moments in logarithms; of one in `every` arrangements."""
        curvature, excess = np.zeros(1), np.full(1, -np.inf)
        for group in self.groups:
            worst = group[0].evaluate(grid, self.loss)
            for done, each in enumerate(group[every::every]):
                if done % 16 == 0:
                    report("how the others' bits are spread", done * every, len(group))
                worst = _largest(worst, each.evaluate(grid, self.loss))
            if self.mirrored:
                worst = _largest(worst, grid.turned(worst))
            # theory/vector-sums.md, Proposition 24: a mean over how many draw evenly.
            curvature, excess = curvature + worst[0], np.logaddexp(excess, worst[1])
        # A moment of a sum is no more than that of one client's code; of S that is not proven.
        _, single = self.alone.evaluate(grid, self.loss)
        excess = np.minimum(excess + math.log(GROW), single)
        return curvature * GROW, np.logaddexp(0.0, excess)


def by_arrangements(
    channel: Channel,
    ends: np.ndarray,
    even: float,
    error: float,
    clients: int,
    order: float,
    attained: float,
) -> float:
    """Bound the curvature of a sum of codes, each a sum of bits, by every arrangement of these.

    Args:
        channel: a channel whose curvature is finite.
        ends: (2, 2) whole numbers: a bit's two probabilities at either end.
        even: the share of all codes that is spread evenly.
        error: relative, of the client's own rows, beside that of floats.
        clients, order: as in `kappa_sum`.
        attained: at most what the bound will be.

    Returns:
        An upper bound; infinite where it would take too long, or be rounded too much.
    """
    trials, lines = channel.levels - 1, CellLines.of(channel)
    rows, inputs = lines.weights / lines.denominator, lines.inputs
    # theory/vector-sums.md, Proposition 24: what is mirrored only nearly counts as an error.
    uneven = max(_off(rows), (clients - 1) * trials * _off(ends))
    mirrored = uneven < 1e-9 and np.array_equal(inputs, -inputs[::-1])
    client = CellLines(inputs, rows, 1, error + 2 * UNIT + 2.1 * uneven * mirrored)
    _, loss = largest_ratio(rows)
    # The same Proposition: what is trimmed is e^-50 of what one client shows.
    floor = (max(order - 1, 1.0) * loss + math.log(order + 1) + 65) / math.log(2)
    drawn, groups = _groups(clients - 1, even), []
    most = FAINT * attained / len(drawn)
    for log_mass, sending, draws in drawn:
        laws = _laws(
            ends, sending * trials, max(ARRANGEMENTS >> len(groups), FEWER), mirrored, floor
        )
        evenly = Law.of(np.ones(trials + 1, int), trials + 1, floor).power(draws)
        noises = (law * evenly for law in laws)
        groups.append([CountedSums.of(client, loss, law, log_mass, order, most) for law in noises])
    alone = CountedSums.of(client, loss, Law.nothing(), 0.0, order, 0.0)
    others = Arrangements(groups, alone, loss, mirrored)
    whole = PairGrid.whole(inputs, order)
    if len(whole.first) * others.outcomes > MOST:
        return math.inf
    total = searched(whole, others.evaluate, attained, others.outcomes, mirrored, WORK)
    # theory/vector-sums.md, Propositions 10 and 12: what is left out of a curvature.
    steepest = float((client.slopes().max(axis=0) / rows.min(axis=0)).max())
    return (total + others.rest * steepest**2 + FAINT * attained) * (1 + 16 * UNIT)


def _spread(noise: Law, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Laws of a noise plus a code of each row: mantissas, exponents, whether some may be lost."""
    codes, length = rows.shape[1], len(noise)
    exponents = np.zeros(length + codes - 1, np.int64)
    if noise.exponent.min() >= PLAIN_EXPONENT:
        # Every product is within the range of floats: faster.
        law = np.pad(np.ldexp(noise.mantissa, noise.exponent), codes - 1)
        windows = np.lib.stride_tricks.sliding_window_view(law, codes)
        return rows[:, ::-1] @ windows.T, exponents, False
    values = np.empty((len(rows), len(exponents)))
    lost = kernel.spread(noise.mantissa, noise.exponent, rows, values, exponents)
    return values, exponents, lost


def _off(rows: np.ndarray) -> float:
    """By how much, relatively, rows differ from their mirror images."""
    return float(np.abs(rows / rows[::-1, ::-1] - 1).max())


def _largest(one: Values, two: Values) -> Values:
    return np.maximum(one[0], two[0]), np.maximum(one[1], two[1])


def _groups(others: int, even: float) -> list[Group]:
    """How many of the others draw evenly, cut into groups."""
    if even == 0:
        return [(0.0, others, 0)]
    least = [2**k for k in range(others.bit_length())] + [others + 1]
    # theory/vector-sums.md, Proposition 24: P(k or more draw evenly), and that of none.
    groups = [(others * math.log1p(-even) * (1 - 16 * UNIT), others, 0)]
    for count, after in itertools.pairwise(least):
        mass = math.log(math.comb(others, count)) * (1 + 16 * UNIT)
        mass += count * math.log(even) * (1 - 16 * UNIT)
        groups.append((mass, others - after + 1, min(count, DRAWS)))
    return groups


def _laws(ends: np.ndarray, bits: int, most: int, mirrored: bool, floor: float) -> Iterator[Law]:
    """Laws of the sum of so many bits, each at one of two ends, that hide no more than any other.

    Args:
        ends: (2, 2) a bit's two probabilities at either end.
        bits: how many there are.
        most: into so many blocks, at most.
        mirrored: whether the laws of half of them stand for the rest.
        floor: in bits, see `Law`.
    """
    total = int(ends[0].sum())
    # theory/vector-sums.md, Proposition 24: from k bits at the far end to k + block - 1.
    block = -(-bits // most) or 1
    upper = range(0, bits // 2 + 1 if mirrored else bits + 1, block)
    lower = [max(bits - count - block + 1, 0) for count in upper]
    ups = multiples(Law.of(ends[1], total, floor), upper)
    downs = multiples(Law.of(ends[0], total, floor), lower)
    for up, down in zip(upper, lower, strict=True):
        yield ups[up] * downs[down]
