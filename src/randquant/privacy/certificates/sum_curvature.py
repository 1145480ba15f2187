"""Updates of bounded L2 norm in a secure sum: how fast the divergence grows with distance.

The problem: coordinate certificates of a whole update add up to far too much. If the divergence of
one coordinate's sum is at most K times the squared distance of the client's two inputs, then that
of the whole update is at most K times its squared L2 distance, in any dimension.

The bound: for each law of the other clients (`sum_parts`), the divergence of a pair is bounded by
its curvature (close pairs: the squared slope of the law over its probabilities, summed) or by its
moment (distant pairs), on a grid of pairs (`sum_tools`). It is proven in
`docs/theory/vector-sums.md`: Proposition 15 is the bound, 1 and 16 say which others suffice, 23
which pairs; 2 to 4, 8, 10, 12 and 19 to 21 are what they need.

From top to bottom: `kappa_sum`; `_upper`, the bounds over the other clients one after the other;
`_bounded`, the search on the grid for one of them; `_Sums`, which evaluates its points.
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
from randquant.privacy.certificates.sum_certificate import by_distance, infinite_case
from randquant.privacy.certificates.sum_kernel import evaluate, evaluate_plain
from randquant.privacy.certificates.sum_laws import (
    ClientRows,
    Law,
    SumOutcomes,
    asymmetry,
    moment_error,
)
from randquant.privacy.certificates.sum_parts import (
    VERTICES_LAST_LIMIT,
    OthersBound,
    at_vertices_counted,
    bounding_laws,
    max_affordable_laws,
    mirrored_by,
)
from randquant.privacy.certificates.sum_tools import Bits, PairGrid, Values, bound_by_refinement
from randquant.privacy.certificates.vector import CellLines, Kappa, kappa
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, at_most

MAX_SUM_CLIENTS = 2**17
"""Most clients that are counted: more only hide more (Proposition 1), and laws would be longer."""

MAX_VERTEX_LAWS = 2500
"""Laws of others at vertices that are tried, half of all arrangements if a channel is symmetric.
Fewer than for a coordinate's certificate, because each needs a grid of pairs."""

SUFFICIENT_BOUND_RATE = 1.1
"""A bound at most this many times the attack ends the search for a better one."""

MAX_WORK = 1e9
"""Products of sums over outcomes and of outcomes that a search on a grid may take, roughly: some
seconds. Less of it ends searches on a coarser grid, with a looser bound."""

END_TOLERANCE_RATE, TOLERANCE_RATE = 2.0**-9, 2.0**-6
"""Shares by which the bound of a box may exceed the largest value of a pair without being cut:
where a channel has two vertices only, and elsewhere. There the bound over the others is nearly
exact, so that the grid decides."""

OMITTED_SHARE = 2.0**-30
"""Outcomes that together add at most this share of the attained K are left out, and counted."""

MAX_RELATIVE_ERROR = 1e-3
"""Where rounding may be a larger share than this, nothing is bounded (Propositions 12 and 21)."""

MIN_TERM = 1e-290
"""Bound of what terms below the range of floats add."""

ROUND_UP_FACTOR = 1 + 2.0**-36
"""Above the rounding of sums of logarithms (Proposition 21)."""

ALL_PAIRS: tuple[Neighboring, float] = ("replace_one", math.inf)
"""Relation and largest distance where any pair of inputs counts."""

SUFFICIENT_PAIRS_SHARE = 0.97
"""Where an attack on pairs that neighbours may have attains this share of one on all pairs, their
bound is that of all pairs: hardly more than 3 % could still be gained."""


def kappa_sum(
    channel: Channel,
    clients: int,
    order: float,
    neighboring: Neighboring = "replace_one",
    farthest: float | None = None,
) -> Kappa:
    """Bound the Rényi divergence of a sum of codes by the squared distance of one input.

    Args:
        channel: the channel of every client.
        clients: n >= 1, how many clients' codes are in the sum.
        order: Rényi order in (1, 1e9].
        neighboring: `replace_one`: the client has any two inputs; `zero_out`: any input and 0.
        farthest: pairs of the client's inputs that are farther apart do not count, as in `kappa`;
            None if all pairs count.

    Returns:
        K, per squared unit of x, with `upper` proven and `lower` attained at `witness`, a pair of
        the client's inputs, and some inputs of the others.

    Guarantees:
        Whatever the other clients' inputs are, D_order <= upper · (x - x')^2 for all such inputs
        x, x' of one client; for vectors, summed coordinate by coordinate, upper · ||x - x'||^2.
        Take the distance from `squared_distance`, which allows for the encoder's rounding. A sum of
        more clients has a smaller K. No bound for fewer pairs exceeds that for all pairs.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # one bit, values ±4
        >>> bound = kappa_sum(channel, clients=200, order=2.0)
        >>> round(bound.upper * 200 * 16 / (2.0 / 2), 3)  # over Gaussian noise of variance 16 · 200
        1.07
    """
    validate.kind("channel", channel, Channel)
    clients = validate.whole("clients", clients, low=1)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    reach = math.inf if farthest is None else validate.real("farthest", farthest, above=0)
    canonical, sign = _canonical_orientation(channel) if clients > 1 else (channel, 1)
    reach = math.inf if reach >= 2 * channel.clip else reach
    constant = _kappa_sum(canonical, clients, validate.renyi_order(order), neighboring, reach)
    return replace(constant, witness=tuple(sign * at for at in constant.witness))


@functools.lru_cache(maxsize=256)
def _canonical_orientation(channel: Channel) -> tuple[Channel, int]:
    """Choose one of the four channels that differ in the direction of inputs or codes only.

    Returns:
        (channel, sign): the same channel for all four; -1 if its inputs are negated, else 1.
    """
    # Reversing inputs or codes changes no divergence. With one choice for all four, equal channels
    # have equal bounds, and none is computed twice.
    orientations = []
    for inputs, codes in itertools.product((1, -1), repeat=2):
        # Adding 0.0 turns -0.0 into 0.0, so that equal channels compare equal.
        points, values = inputs * channel.inputs[::inputs] + 0.0, codes * channel.values[::codes]
        turned = Channel(points, values, channel.weights[::inputs, ::codes], channel.denominator)
        orientations.append((turned, inputs))
    return min(orientations, key=lambda pair: (pair[0].inputs.tolist(), pair[0].weights.tolist()))


@functools.lru_cache(maxsize=4096)
def _kappa_sum(
    channel: Channel, clients: int, order: float, neighboring: Neighboring, farthest: float
) -> Kappa:
    single = kappa(channel, order, neighboring, None if math.isinf(farthest) else farthest)
    if clients == 1:
        return single
    pairs: tuple[Neighboring, float] = (neighboring, farthest)
    if math.isinf(single.upper):
        # theory/vector-sums.md, Proposition 5.
        lower, witness = infinite_case(channel, single.witness)
        return Kappa(lower if pairs == ALL_PAIRS else 0.0, single.upper, order, witness)
    # theory/vector-sums.md, Proposition 1: counting on fewer is a bound.
    counted = min(clients, MAX_SUM_CLIENTS)
    lower, witness = by_distance(channel, counted - 1, order, *pairs)
    strongest = by_distance(channel, counted - 1, order, *ALL_PAIRS)[0]
    upper = single.upper
    if pairs == ALL_PAIRS or lower < SUFFICIENT_PAIRS_SHARE * strongest:
        upper = min(upper, _upper(channel, counted - 1, order, lower, *pairs))
        fewer = 1 << (counted - 1).bit_length() - 1
        # theory/vector-sums.md, Proposition 1. Where an attack on fewer clients attains more than
        # this bound, theirs cannot be smaller.
        if fewer > 1 and by_distance(channel, fewer - 1, order, *pairs)[0] < upper:
            upper = min(upper, _kappa_sum(channel, fewer, order, *pairs).upper)
    if pairs != ALL_PAIRS and upper > strongest:
        # theory/vector-sums.md, Proposition 23: a bound for all pairs is one for fewer.
        upper = min(upper, _kappa_sum(channel, clients, order, *ALL_PAIRS).upper)
    # theory/vector-sums.md, Proposition 1: a lower end for fewer clients is none for more.
    lower = lower if clients == counted else 0.0
    return Kappa(at_most(lower, upper), upper, order, witness)


def _upper(
    channel: Channel,
    others: int,
    order: float,
    attained: float,
    neighboring: Neighboring = "replace_one",
    farthest: float = math.inf,
) -> float:
    """Bound K with this number of other clients; infinite if rounding lets nothing be bounded.

    Args:
        channel, others, order, neighboring, farthest: as in `kappa_sum`.
        attained: lower end of K.
    """
    client = ClientRows.from_channel(channel)
    # theory/vector-sums.md, Proposition 21: what is trimmed is e^-50 of what one client shows.
    depth = max(order - 1, 1.0) * client.loss + math.log(order + 1)
    floor = (depth + 65) / math.log(2)
    tolerance = END_TOLERANCE_RATE if len(client.inputs) == 2 else TOLERANCE_RATE
    best, mirrored = math.inf, mirrored_by(channel)
    zero = CellLines.from_channel(channel).around_zero() if neighboring == "zero_out" else None
    grid = PairGrid.whole(client.inputs, order, zero, farthest)
    # theory/vector-sums.md, Propositions 2, 11, 19 and 21.
    for others_bound in bounding_laws(
        channel, others, floor, MAX_VERTEX_LAWS, mirrored, depth + 60, order
    ):
        best = min(best, _bounded(client, others_bound, grid, attained, tolerance))
        if best <= SUFFICIENT_BOUND_RATE * attained:
            break
    return best


def _bounded(
    client: ClientRows, others: OthersBound, grid: PairGrid, attained: float, tolerance: float
) -> float:
    """Bound divergence over squared distance for the pairs of a grid, behind the other clients.

    Args:
        client: the client's rows.
        others: the bound over the other clients.
        grid: the pairs of inputs, and the order.
        attained: lower end of K.
        tolerance: see `bound_by_refinement`.
    """
    order = grid.order
    if others.mirrored:
        # theory/vector-sums.md, Proposition 21: what is mirrored only nearly counts as an error.
        client = replace(client, error=2.1 * asymmetry(client.rows))
    omitted = OMITTED_SHARE * attained / len(others.components)
    components = [
        [
            SumOutcomes.from_noise(
                client, law, component.log_mass, order, omitted, others.law_error
            )
            for law in component.laws
        ]
        for component in others.components
    ]
    single = SumOutcomes.from_noise(client, Law.empty_sum(), 0.0, order, 0.0, 0.0)
    sums = _Sums(client, components, single, order, others.mirrored)
    outcomes = sum(len(each.scale) for component in components for each in component)
    total = bound_by_refinement(
        grid, sums.evaluate, attained, outcomes, others.mirrored, MAX_WORK, tolerance
    )
    # theory/vector-sums.md, Propositions 8 and 10: what is left out of a curvature.
    steep = np.abs(client.steps).max(axis=0) / np.diff(client.inputs).min()
    used = client.rows.max(axis=0) > 0
    steepest = float((steep[used] / client.rows.min(axis=0)[used]).max())
    rest = sum(max(each.rest for each in component) for component in components)
    bound = (total + rest * steepest**2 + OMITTED_SHARE * attained) * (1 + 16 * UNIT)
    error = others.mixture_error
    return bound if error == 0 else _with_mixture_error(client, bound, error, order)


def _with_mixture_error(client: ClientRows, bound: float, error: float, order: float) -> float:
    """Raise a bound for laws of the others that are only nearly mixtures of those it was made of.

    Args:
        client: the client's rows.
        bound: K for exact mixtures.
        error: largest relative difference between a law and a mixture.
        order: in (1, inf).
    """
    # theory/vector-sums.md, Proposition 12: eta is the error, rho/w the steepest slope, A the added
    # term. Its proof needs a small order times eta.
    if order * error > MAX_RELATIVE_ERROR:
        return math.inf
    left, right = client.rows[:-1], client.rows[1:]
    ratio = np.maximum(left, right) / np.minimum(left, right)
    steepest = float(ratio.max()) / float(np.diff(client.inputs).min())
    added = 8 * max(2 * order, 4 / (order - 1)) * (error * steepest) ** 2
    total = (math.sqrt(bound) + math.sqrt(added)) ** 2
    return total * (1 + 8 * (order + 4) * error) * (1 + 64 * UNIT)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums that bound K, with the curvature and the moments of their pairs of points.

    Attributes:
        client: the client's rows.
        components: outcomes of the sum for every law of every component.
        single: outcomes of the client's code alone.
        order: in (1, inf).
        mirrored: whether each component has only one law of every mirrored pair.
    """

    client: ClientRows
    components: list[list[SumOutcomes]]
    single: SumOutcomes
    order: float
    mirrored: bool

    def evaluate(self, grid: PairGrid, step: int) -> Values:
        """Bound curvature and log moments of a grid's pairs of points.

        Args:
            grid: the pairs of points.
            step: every step-th law of each component is evaluated; below 2 all of them.
        """
        curvature, excess = np.zeros(1), np.full(1, -np.inf)
        for component in self.components:
            worst = self._values(grid, component[0])
            for done, outcomes in enumerate(component[step::step]):
                if done % 16 == 0:
                    report("how the others are spread", done * step, len(component))
                worst = np.maximum(worst, self._values(grid, outcomes))
            if self.mirrored:
                worst = np.maximum(worst, [grid.mirrored_values(values) for values in worst])
            # theory/vector-sums.md, Proposition 19: a mean over the others' cases, masses included
            # in the outcomes' scales.
            curvature, excess = curvature + worst[0], np.logaddexp(excess, worst[1])
        # theory/vector-sums.md, Proposition 21: a moment is at most that of one client's code.
        # (Curvature may be larger, with slopes that are not p - q.)
        single_excess = self._values(grid, self.single)[1]
        excess = np.minimum(excess + math.log(ROUND_UP_FACTOR), single_excess)
        return curvature * ROUND_UP_FACTOR, np.logaddexp(0.0, excess)

    def _values(self, grid: PairGrid, sums: SumOutcomes) -> Values:
        # Curvature and log(M - 1), (N,) each; infinite where rounding may be too large a share.
        error = moment_error(sums.error, self.client.loss, sums.scale, self.order)
        curvature, excess = np.empty(len(grid.first)), np.empty(len(grid.first))
        if error > MAX_RELATIVE_ERROR:
            curvature[:], excess[:] = np.inf, np.inf
            return curvature, excess
        rows = grid.at_points(sums.rows)
        if sums.fits_floats(self.order):
            weights, steep = rows * np.exp(sums.scale), sums.steep * np.exp(sums.scale)
            grown = np.exp((self.order - 1) * np.log(rows / rows[:1]))
            evaluate_plain(
                weights, grown, steep, *grid.pairs, grid.low, grid.high, self.order, sums.error,
                curvature, excess,
            )  # fmt: skip
            curvature, excess = curvature * ROUND_UP_FACTOR, excess + ROUND_UP_FACTOR - 1
            return self._with_errors(grid, sums, rows, error, curvature, excess)
        # theory/vector-sums.md, Proposition 21: a log bound of what an outcome adds, by which the
        # kernel passes over outcomes that hardly count.
        reach = 2 * np.log(np.maximum(sums.steep.max(axis=0), 2)) - np.log(sums.rows.min(axis=0))
        evaluate(
            rows, np.log(rows), sums.scale, reach, sums.steep, *grid.pairs, grid.low, grid.high,
            self.order, sums.error, curvature, excess,
        )  # fmt: skip
        return self._with_errors(grid, sums, rows, error, curvature, excess)

    def _with_errors(
        self,
        grid: PairGrid,
        sums: SumOutcomes,
        rows: np.ndarray,
        error: float,
        curvature: np.ndarray,
        excess: np.ndarray,
    ) -> Values:
        # theory/vector-sums.md, Proposition 8: what is left out of a moment.
        rest = math.log(1.1 * sums.missing + MIN_TERM)
        excess = np.logaddexp(excess + math.log1p(error), rest)
        factor = grid.convexity_factor(rows, sums.error)
        return (curvature * factor + MIN_TERM) * (1 + error), excess


MAX_WORK_UNITS = 63_000
"""About a minute on one core, mostly less; the time is roughly proportional."""


def check_work(channel: Channel, clients: int, *, clipped: bool = True) -> None:
    """Refuse a channel whose certificates would take too long; no bound rests on the estimate.

    A channel may come from a file or a message. Without a limit its author could keep the reader
    busy for hours, for the time grows with vertices, codes and clients.

    Args:
        channel: a channel from an untrusted source.
        clients: number of clients whose codes are in the sum that is certified.
        clipped: whether updates are clipped as a whole.

    Raises:
        ValueError: the certificates would take too long.

    Example:
        >>> import randquant as rq
        >>> check_work(rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42), clients=400)
    """
    vertices, codes = channel.weights.shape
    used = channel.weights[:, channel.weights.any(axis=0)]
    # All pairs of inputs; some 350 bytes of memory each, whatever the codes.
    work = vertices**2 * max(codes, 2**4) // 2**9
    # Where a code is impossible at a vertex, K of clipped updates is infinite, which is soon known.
    if clients > 1 and (used.all() or not clipped):
        work = max(work, _sum_work(channel, clients))
    if work > MAX_WORK_UNITS:
        raise ValueError(
            f"its certificate would take too long, with {vertices} inputs, {codes} codes and "
            f"{clients} clients in a sum"
        )


def _sum_work(channel: Channel, clients: int) -> int:
    # The bounds of a sum are computed for each of several orders.
    vertices, codes = channel.weights.shape
    pairs, each = vertices**2 * codes, max(codes, min(clients, MAX_SUM_CLIENTS) // 2**7)
    bits = Bits.from_channel(channel)
    if bits is not None and (bits.trials > 1 or codes == 2):
        return max(pairs // 2**6, vertices * codes * 4)
    laws, others = 0, min(clients, MAX_SUM_CLIENTS) - 1
    counted = at_vertices_counted(channel, others, MAX_VERTEX_LAWS, False)
    if vertices > 2 and others <= VERTICES_LAST_LIMIT * counted:
        arrangements = math.comb(clients + vertices - 2, vertices - 1)
        laws = min(arrangements, max_affordable_laws(channel, others))
    # Kinds of blocks are fitted once, by linear programmes, and then tried at each order.
    return max(pairs * each // 2**4, 2 * vertices * codes * each, laws * others * codes // 2**7)
