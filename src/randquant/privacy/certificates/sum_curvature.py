"""Updates of bounded L2 norm in a secure sum: how fast its divergence grows with distance.

Derivations and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from randquant._internal import validate
from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_bits import PairGrid, Values, searched
from randquant.privacy.certificates.sum_certificate import by_distance, endless
from randquant.privacy.certificates.sum_kernel import evaluate, evaluate_plain
from randquant.privacy.certificates.sum_laws import ClientRows, Law, SumOutcomes, uneven, wrong
from randquant.privacy.certificates.sum_parts import Others, mirrored_by, stand_ins
from randquant.privacy.certificates.vector import Kappa, kappa
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import at_most

LARGEST_SUM = 2**17
"""Most clients that are counted: more only hide more."""

FEW = 2500
"""Laws of others at vertices that are tried, at most: half of all where channels are mirrored."""

ENOUGH = 1.1
"""A bound so many times what is attained is not improved on."""

WORK, CLOSE, LOOSE = 1e9, 2.0**-9, 2.0**-6
"""Sums over outcomes times outcomes that may be computed, about; how far boxes may be above what
pairs have, where all others are at two ends, and elsewhere."""

FAINT = 2.0**-30
"""SumOutcomes that add up to no more than this share of S, at the worst, are not looked at."""

PRECISE = 1e-3
"""Where rounding is more than this, relatively, nothing is bounded."""

LEAST = 1e-290
"""What terms below the range of floats add, at most."""

GROW = 1 + 2.0**-36
"""Rounding of sums of logarithms."""


def kappa_sum(channel: Channel, clients: int, order: float) -> Kappa:
    """Bound the Rényi divergence of a sum of codes by the squared distance of one input.

    Args:
        channel: the channel of every client.
        clients: n >= 1, how many clients' codes are in the sum.
        order: Rényi order in (1, 1e9].

    Returns:
        K, per squared unit of x, with `upper` proven and `lower` attained at `witness`, a pair of
        the client's inputs, and some inputs of the others.

    Guarantees:
        Whatever the other clients' inputs are, D_order <= upper · (x - x')^2 for all inputs x, x'
        of one client; for vectors, summed coordinate by coordinate, upper · ||x - x'||^2. Take the
        distance from `squared_distance`, which allows for the encoder's rounding. A sum of more
        clients has a smaller K.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # one bit, values ±4
        >>> found = kappa_sum(channel, clients=200, order=2.0)
        >>> round(found.upper * 200 * 16 / (2.0 / 2), 3)  # over Gaussian noise of variance 16 · 200
        1.07
    """
    validate.kind("channel", channel, Channel)
    clients = validate.whole("clients", clients, low=1)
    turned, inputs = _facing(channel) if clients > 1 else (channel, 1)
    found = _kappa_sum(turned, clients, validate.renyi_order(order))
    return replace(found, witness=tuple(inputs * at for at in found.witness))


@functools.lru_cache(maxsize=256)
def _facing(channel: Channel) -> tuple[Channel, int]:
    """One of the four channels with inputs or codes turned round: whichever it is, the same.

    Returns:
        That channel; -1 if its inputs are the other's turned round, else 1.
    """
    ways = []
    for inputs, codes in itertools.product((1, -1), repeat=2):
        # There is no -0.
        points, values = inputs * channel.inputs[::inputs] + 0.0, codes * channel.values[::codes]
        turned = Channel(points, values, channel.weights[::inputs, ::codes], channel.denominator)
        ways.append((turned, inputs))
    return min(ways, key=lambda way: (way[0].inputs.tolist(), way[0].weights.tolist()))


@functools.lru_cache(maxsize=4096)
def _kappa_sum(channel: Channel, clients: int, order: float) -> Kappa:
    alone = kappa(channel, order)
    if clients == 1:
        return alone
    if math.isinf(alone.upper):
        # theory/vector-sums.md, Proposition 5.
        lower, witness = endless(channel, alone.witness)
        return Kappa(lower, alone.upper, order, witness)
    # theory/vector-sums.md, Proposition 1: counting on fewer is a bound.
    counted = min(clients, LARGEST_SUM)
    lower, witness = by_distance(channel, counted - 1, order)
    upper = min(_upper(channel, counted - 1, order, lower), alone.upper)
    fewer = 1 << (counted - 1).bit_length() - 1
    # The same Proposition; where they attain more they cannot have a smaller bound.
    if fewer > 1 and by_distance(channel, fewer - 1, order)[0] < upper:
        upper = min(upper, _kappa_sum(channel, fewer, order).upper)
    # theory/vector-sums.md, Proposition 1: what fewer clients attain, more need not.
    lower = lower if clients == counted else 0.0
    return Kappa(at_most(lower, upper), upper, order, witness)


def _upper(channel: Channel, others: int, order: float, attained: float) -> float:
    """A bound for that many others; infinite if none is found."""
    client = ClientRows.of(channel)
    # theory/vector-sums.md, Proposition 21: what is trimmed is e^-50 of what one client shows.
    depth = max(order - 1, 1.0) * client.loss + math.log(order + 1)
    floor = (depth + 65) / math.log(2)
    loose = CLOSE if len(client.inputs) == 2 else LOOSE
    best, mirrored = math.inf, mirrored_by(channel)
    # theory/vector-sums.md, Propositions 2, 11, 19 and 21.
    for found in stand_ins(channel, others, floor, FEW, mirrored, depth + 60, order):
        best = min(best, _bounded(client, found, order, attained, loose))
        if best <= ENOUGH * attained:
            break
    return best


def _bounded(
    client: ClientRows, others: Others, order: float, attained: float, loose: float
) -> float:
    """Bound divergence over squared distance for all pairs of inputs behind such others."""
    if others.mirrored:
        # theory/vector-sums.md, Proposition 21: what is mirrored only nearly counts as an error.
        client = replace(client, error=2.1 * uneven(client.rows))
    most = FAINT * attained / len(others.groups)
    groups = [
        [SumOutcomes.of(client, law, group.log_mass, order, most, others.off) for law in group.laws]
        for group in others.groups
    ]
    alone = SumOutcomes.of(client, Law.nothing(), 0.0, order, 0.0, 0.0)
    sums = _Sums(client, groups, alone, order, others.mirrored)
    outcomes = sum(len(each.scale) for group in groups for each in group)
    grid = PairGrid.whole(client.inputs, order)
    total = searched(grid, sums.evaluate, attained, outcomes, others.mirrored, WORK, loose)
    # theory/vector-sums.md, Propositions 8 and 10: what is left out of a curvature.
    steep = np.abs(client.steps).max(axis=0) / np.diff(client.inputs).min()
    used = client.rows.max(axis=0) > 0
    steepest = float((steep[used] / client.rows.min(axis=0)[used]).max())
    rest = sum(max(each.rest for each in group) for group in groups)
    bound = (total + rest * steepest**2 + FAINT * attained) * (1 + 16 * UNIT)
    return bound if others.unlike == 0 else _unlike(client, bound, others.unlike, order)


def _unlike(client: ClientRows, bound: float, unlike: float, order: float) -> float:
    """What a bound becomes if the others' law is only nearly a mix of those that it is of."""
    # theory/vector-sums.md, Proposition 12.
    if order * unlike > PRECISE:
        return math.inf
    one, two = client.rows[:-1], client.rows[1:]
    near = np.maximum(one, two) / np.minimum(one, two)
    steepest = float(near.max()) / float(np.diff(client.inputs).min())
    added = 8 * max(2 * order, 4 / (order - 1)) * (unlike * steepest) ** 2
    both = (math.sqrt(bound) + math.sqrt(added)) ** 2
    return both * (1 + 8 * (order + 4) * unlike) * (1 + 64 * UNIT)


@dataclass(frozen=True, slots=True)
class _Sums:
    """SumOutcomes of sums, group by group of the others' cases, law by law."""

    client: ClientRows
    groups: list[list[SumOutcomes]]
    alone: SumOutcomes
    order: float
    mirrored: bool

    def evaluate(self, grid: PairGrid, every: int) -> Values:
        """Values of pairs of points: of one in `every` laws of each group."""
        curvature, excess = np.zeros(1), np.full(1, -np.inf)
        for group in self.groups:
            worst = self._values(grid, group[0])
            for done, each in enumerate(group[every::every]):
                if done % 16 == 0:
                    report("how the others are spread", done * every, len(group))
                worst = np.maximum(worst, self._values(grid, each))
            if self.mirrored:
                worst = np.maximum(worst, [grid.turned(each) for each in worst])
            # theory/vector-sums.md, Proposition 19: a mean over the others' cases.
            curvature, excess = curvature + worst[0], np.logaddexp(excess, worst[1])
        # A moment is at most that of one client's code.
        excess = np.minimum(excess + math.log(GROW), self._values(grid, self.alone)[1])
        return curvature * GROW, np.logaddexp(0.0, excess)

    def _values(self, grid: PairGrid, sums: SumOutcomes) -> Values:
        """Curvature, and logarithms of moments less 1, behind one law of the others."""
        off = wrong(sums.error, self.client.loss, sums.scale, self.order)
        curvature, excess = np.empty(len(grid.first)), np.empty(len(grid.first))
        if off > PRECISE:
            curvature[:], excess[:] = np.inf, np.inf
            return curvature, excess
        rows = grid.at_points(sums.rows)
        if sums.plain(self.order):
            weights, steep = rows * np.exp(sums.scale), sums.steep * np.exp(sums.scale)
            grown = np.exp((self.order - 1) * np.log(rows / rows[:1]))
            evaluate_plain(
                weights, grown, steep, *grid.pairs, grid.low, grid.high, self.order, sums.error,
                curvature, excess,
            )  # fmt: skip
            return self._raised(grid, sums, rows, off, curvature * GROW, excess + GROW - 1)
        most = 2 * np.log(np.maximum(sums.steep.max(axis=0), 2)) - np.log(sums.rows.min(axis=0))
        evaluate(
            rows, np.log(rows), sums.scale, most, sums.steep, *grid.pairs, grid.low, grid.high,
            self.order, sums.error, curvature, excess,
        )  # fmt: skip
        return self._raised(grid, sums, rows, off, curvature, excess)

    def _raised(self, grid: PairGrid, sums, rows, off: float, curvature, excess) -> Values:
        # theory/vector-sums.md, Proposition 8: what is left out of a moment.
        rest = math.log(1.1 * sums.missing + LEAST)
        excess = np.logaddexp(excess + math.log1p(off), rest)
        return (curvature * grid.bent(rows, sums.error) + LEAST) * (1 + off), excess
