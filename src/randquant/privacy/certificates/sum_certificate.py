"""Privacy certificate of one coordinate of a secure sum: the divergence of a sum of n codes.

The problem: the server sees only the sum of n clients' codes, and the adversary chooses the inputs
of the other n - 1. The certificate is an interval for the largest Rényi divergence between two
inputs of one client.

The upper end is a maximum over laws that bound the other clients' sum (`sum_parts`), the lower end
is an attack that puts all others at one vertex. Both are proven, with rounding, in
`docs/theory/sums.md`; the lower ends for squared distances in `docs/theory/vector-sums.md`,
Propositions 4 and 5.

From top to bottom: attacks with all others at one vertex (`attained`, `by_distance`,
`infinite_case`); `SumCertificate` and `certify_sum`; then the steps of `_certified`: the attack,
the upper bound, and the moments of all pairs behind one law.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_down, round_up
from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_laws import (
    NO_TRIM_FLOOR_BITS,
    ClientRows,
    Law,
    Rows,
    log_excesses,
    log_moments,
    log_trimmed,
)
from randquant.privacy.certificates.sum_parts import (
    SYMMETRY_TOLERANCE,
    Method,
    OthersBound,
    at_vertices,
    at_vertices_counted,
    bounding_laws,
)
from randquant.privacy.divergence import LARGEST_ORDER, UNIT
from randquant.privacy.guarantee import Interval, Neighboring, at_most

# Attacks: all other clients at one vertex, where they hide a client poorly. Any inputs of the
# others and any pair of the client's give a lower end, so the constants of this part decide only
# how close it comes to the upper end.
#
# Derivations: `docs/theory/sums.md`, `vector-sums.md`.

ATTACK_PARTS = 32
"""Parts of the range of inputs whose ends are tried as pairs, about."""

MAX_ATTACK_VERTICES = 5
"""Vertices at which the other clients are put: spread evenly, both ends among them."""

SQUARED_DISTANCE_PARTS = (2**4, 2**10)
"""For each of these the best pair is taken whose squared distance is at least the largest one
divided by it: moments of distant pairs are known to more digits."""

MAX_CLOSE_POINTS = 8
"""Inputs from which close pairs are tried."""

CLOSE_PAIR_PARTS = (2**5, 2**8, 2**11, 2**20)
"""Distances of close pairs, as parts of a cell. The closer they are, the closer their divergence
over squared distance comes to the Fisher information."""

CLOSE_PAIR_STEPS = (1, 2, 3, 4, 6)
"""Distances of close pairs of the grid, in grid points."""

TAIL_FLOOR_BITS = 150.0
"""Tails of long sums below 2 to minus this are left out, which lower ends account for."""

MAX_UNTRIMMED_CODES = 2**11
"""Clients times levels up to which nothing is trimmed: such laws are short."""

MAX_DEEP_CODES = 2**16
"""Clients times levels up to which the floor is lowered with the order: at high orders very rare
sums decide. Longer laws would take too long."""

Reached = tuple[float, tuple[float, float]]
"""A lower bound of a divergence over squared distance, and the pair of inputs that has it."""


def at_one_vertex(row: np.ndarray, total: int, others: int, depth: float) -> Law:
    """Return the law of the sum of the other clients' codes if they all have one input.

    Args:
        row, total: the input's row in whole numbers, and its sum.
        others: number of other clients.
        depth: in nats: sums of probability e^-depth may decide a moment.
    """
    # theory/sums.md, Proposition 7: where some code is impossible, no tail is harmless.
    codes = 1 if (row == 0).any() else others * len(row)
    depth_bits = depth / math.log(2) if codes <= MAX_DEEP_CODES else 0.0
    floor = TAIL_FLOOR_BITS + depth_bits if codes > MAX_UNTRIMMED_CODES else NO_TRIM_FLOOR_BITS
    return Law.from_weights(row, total, floor).power(others)


def attained(noise: Law, p: np.ndarray, q: np.ndarray, order: float) -> float:
    """Bound log sum_z P(z)^order Q(z)^(1-order) from below, P and Q being p and q * noise.

    Args:
        noise: law of the others' sum.
        p, q: (m,) rows, within 1 unit.
        order: in (1, inf].
    """
    table, slack = log_moments(noise, p[None], q[None], order)
    # theory/sums.md, Proposition 7: without what was trimmed a moment may be larger, so the moment
    # of a trimmed law is no lower bound; the sum of outcomes that certainly count is.
    if math.isinf(order):  # theory/sums.md, Proposition 8
        return max(float(table[0, 0]) - slack, 0.0) if noise.trimmed == 0 else 0.0
    whole = float(table[0, 0]) - slack if noise.trimmed == 0 else 0.0
    pair = np.zeros(1, np.int64), np.ones(1, np.int64)
    excess = log_excesses(noise, np.stack([p, q]), pair, order, upper=False)
    return max(float(np.logaddexp(0.0, excess[0])) * (1 - 32 * UNIT), whole, 0.0)


@functools.lru_cache(maxsize=1024)
def by_distance(
    channel: Channel,
    others: int,
    order: float,
    neighboring: Neighboring = "replace_one",
    farthest: float = math.inf,
) -> Reached:
    """Return the best divergence over squared distance of some pairs, all others at one vertex.

    Args:
        channel: a channel whose curvature is finite.
        others: number of other clients.
        order: in (1, inf).
        neighboring, farthest: which pairs count, as in `kappa`.
    """
    client = ClientRows.from_channel(channel)
    points, with_zero = _points(client.inputs), neighboring == "zero_out"
    if with_zero:
        apart = np.abs(points) >= channel.clip / (2 * ATTACK_PARTS)
        points = np.sort(np.append(points[apart], 0.0))
    square = (points[:, None] - points) ** 2
    square[np.sqrt(square) * (1 + 8 * UNIT) > farthest] = 0.0
    if with_zero:
        square[(points[:, None] != 0) & (points != 0)] = 0.0
    weight = 1 / ((order - 1) * np.where(square > 0, square, np.inf))
    rows = np.stack([_row(channel, at) for at in points])
    close_pairs = _ClosePairs.from_points(channel, points, with_zero, farthest)
    depth = max(order - 1, 1.0) * client.loss
    best: Reached = (0.0, (float(points[0]), float(points[0])))
    # theory/vector-sums.md, Proposition 4: any others and any pair give a lower end.
    for vertex in _evenly_spaced(len(channel.weights), MAX_ATTACK_VERTICES):
        noise = at_one_vertex(channel.weights[vertex], channel.denominator, others, depth)
        best = max(best, close_pairs.best(noise, order), key=lambda reached: reached[0])
        ratio = log_moments(noise, rows, rows, order)[0] * weight
        # Rounded moments choose pairs; of distant ones more digits are known.
        for least_square in square.max() / np.array(SQUARED_DISTANCE_PARTS):
            candidates = np.where(square >= least_square, ratio, -1.0)
            i, j = np.unravel_index(int(candidates.argmax()), candidates.shape)
            if candidates[i, j] > best[0]:
                # Points are off by 1 unit of themselves, the distance of a part by 2048 units of
                # itself, and its square by twice that: 2**13 covers it.
                lower = attained(noise, rows[i], rows[j], order) * (1 - 2**13 * UNIT)
                pair = float(points[i]), float(points[j])
                best = max(best, (lower * float(weight[i, j]), pair))
    # The encoder moves 0 by at most 2**-32 of the range, a 64th of which pairs are apart.
    return best[0] * (1 - 2.0**-20 * with_zero), best[1]


def _evenly_spaced(count: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def _close_index_pairs(
    points: np.ndarray, steps: tuple[int, ...], with_zero: bool
) -> Iterator[tuple[int, int]]:
    # Some i, evenly spaced or only that of 0, and those j that are `steps` away from it.
    count = len(points)
    some = np.flatnonzero(points == 0) if with_zero else _evenly_spaced(count, MAX_CLOSE_POINTS)
    for index in map(int, some):
        for step in steps:
            both = (index - step, index + step)
            yield from ((index, other) for other in both if 0 <= other < count)


@dataclass(frozen=True, slots=True)
class _ClosePairs:
    """Pairs of close inputs, some of which approach the Fisher information.

    Attributes:
        inputs: (P, 2) of each pair.
        distance: (P,) between them, within 4 units; infinite if the pair does not count.
        rows: (2P, m) probabilities: of the first input of each, then of the second.
    """

    inputs: np.ndarray
    distance: np.ndarray
    rows: np.ndarray

    @staticmethod
    def from_points(
        channel: Channel, points: np.ndarray, with_zero: bool, farthest: float
    ) -> _ClosePairs:
        """Pair some vertices and some of the points, or 0, with inputs on both sides of them."""
        inputs, weights, total = channel.inputs, channel.weights.astype(object), channel.denominator
        pairs, distance, rows = [], [], []
        for vertex, other in _close_index_pairs(inputs, (1,), with_zero):
            width = inputs[other] - inputs[vertex]
            # Whole numbers, so that rows are exact, and positions are those of a dither.
            for part in CLOSE_PAIR_PARTS if width != 0 else ():
                pairs.append((inputs[vertex], inputs[vertex] + width / part))
                distance.append(abs(width) / part)
                mixed = (part - 1) * weights[vertex] + weights[other]
                rows.append((weights[vertex] / total, mixed / (part * total)))
        for i, j in _close_index_pairs(points, CLOSE_PAIR_STEPS, with_zero):
            pairs.append((points[i], points[j]))
            distance.append(abs(points[i] - points[j]))
            rows.append((_row(channel, points[i]), _row(channel, points[j])))
        table = np.array(rows, dtype=np.float64)
        table = np.concatenate([table[:, 0], table[:, 1]])
        gap = np.array(distance)
        gap[gap * (1 + 8 * UNIT) > farthest] = np.inf
        return _ClosePairs(np.array(pairs), gap, table)

    def best(self, noise: Law, order: float) -> Reached:
        """Return the largest divergence over squared distance behind a noise, from below."""
        count = len(self.distance)
        first = np.arange(count)
        second = first + count
        # Divergence is not symmetric: both orders of each pair are tried.
        pairs = np.concatenate([first, second]), np.concatenate([second, first])
        excess = log_excesses(noise, self.rows, pairs, order, upper=False)
        # Inputs are off by 1 unit of themselves, a divergence by less than that of its square.
        moved = 8 * UNIT * np.abs(self.inputs).max(axis=1) / self.distance
        ratio = np.logaddexp(0.0, excess) * (1 - 64 * UNIT) / (order - 1)
        ratio *= np.tile(np.maximum(1 - moved, 0.0) / self.distance**2, 2)
        at = int(ratio.argmax())
        x, other = (float(value) for value in self.inputs[at % count])
        return float(ratio[at]), (x, other) if at < count else (other, x)


def _points(inputs: np.ndarray) -> np.ndarray:
    length = inputs[-1] - inputs[0]
    parts = np.maximum(ATTACK_PARTS * np.diff(inputs) / length, 1.0)
    # Powers of two: the encoder's dither has these positions exactly.
    counts = (2 ** np.log2(parts).round()).astype(int)
    cells = zip(inputs[:-1], inputs[1:], counts.tolist(), strict=True)
    points = [np.linspace(left, right, count, endpoint=False) for left, right, count in cells]
    return np.append(np.concatenate(points), inputs[-1])


def _row(channel: Channel, at: float) -> np.ndarray:
    row, total = channel.mix(float(at))
    # Python integers: each quotient is rounded once.
    return np.array([int(weight) / total for weight in row])


def infinite_case(channel: Channel, witness: tuple[float, float]) -> Reached:
    """Return the lower end for a sum of codes of a channel whose own K is infinite.

    Infinite where that of the sum is known to be, else 0: where the channel jumps, so do sums;
    where its largest or least code becomes impossible at a vertex, so does the largest or least
    sum. A code in between may become impossible although every sum still arises from other codes.
    """
    # theory/vector-sums.md, Proposition 5.
    for cell, (left, right) in enumerate(itertools.pairwise(channel.weights)):
        start, stop = (float(end) for end in channel.inputs[cell : cell + 2])
        if start == stop and (left != right).any():
            return math.inf, (start, stop)
        (low, high), (least, most) = (np.flatnonzero(row)[[0, -1]] for row in (left, right))
        if least < low or most > high:
            return math.inf, (stop, start)
        if low < least or high > most:
            return math.inf, (start, stop)
    return 0.0, witness


# The certificate. `_certified` computes the attack first: an upper bound that is close to it need
# not be improved on.

MAX_VERTEX_LAWS = 6500
"""Laws of others at vertices that are tried, half of all arrangements if a channel is symmetric:
enough for 8 clients of RQM with 16 levels. The time is proportional to it."""

SUFFICIENT_BOUND_RATE = 1.1
"""A bound at most this many times the attack ends the search for a better one: what could still be
gained is below 10 %."""

MAX_RELATIVE_ROUNDING_ERROR = 1e-6
"""Where rounding is a larger share of the largest log moment, moments less 1 are computed, which
keep their digits."""

MAX_PRACTICE_CLIENTS = 64
"""Other clients among whom all vertices are compared, to choose those for the attack."""

MAX_ATTACKED_VERTICES = 2
"""Vertices that are compared with the true number of other clients."""

SINGLE_CLIENT_SHARE = 1 - 1e-11
"""An attack with at least this share of one client's own divergence is as strong as without others:
then no bound is lower than the single client's."""

MAX_COUNTED_CLIENTS = 2**17
"""More other clients than this are counted as this many, which is a bound since more only hide
better, and no attack is evaluated. Laws of more would become too long."""

MAX_PURE_CLIENTS = 2**10
"""The same where no sum is too unlikely to count (infinite order or impossible codes), so that laws
cannot be trimmed."""


@dataclass(frozen=True, slots=True)
class SumCertificate:
    """Privacy certificate of one coordinate in a sum of clients' codes.

    Attributes:
        clients: number of codes that are added, the client's own among them.
        order: Rényi order in (1, inf].
        epsilon: the largest divergence of the sum, over all pairs of the client's inputs and all
            inputs of the others, lies in this interval; in nats.
        witness: (x, x'), inputs of the client; behind `others` their divergence is at least
            `epsilon.lower`.
        others: {input: number of other clients that have it} in the strongest attack.
        method: the proof of `epsilon.upper`. `exhaustive`: all inputs of the others were tried;
            `bits`: all arrangements of the bits that their codes are sums of; `blocks`: laws that
            the codes of every few of them have in common; `fewer clients`: only some of the others
            were counted; `one client`: none of them.
        neighboring: the pairs of inputs that the adversary tries to distinguish.
    """

    clients: int
    order: float
    epsilon: Interval
    witness: tuple[float, float]
    others: dict[float, int]
    method: Method
    neighboring: Neighboring

    def __str__(self) -> str:
        x, other = self.witness
        around = ", ".join(f"{count} at {value:g}" for value, count in self.others.items())
        order = f"order {self.order}{', zero_out' * (self.neighboring == 'zero_out')}"
        return (
            f"{order}: epsilon <= {round_up(self.epsilon.upper, 9)} per coordinate of a "
            f"sum of {self.clients} ({self.method}); >= {round_down(self.epsilon.lower)}: x={x:g}, "
            f"x'={other:g}, others {around or 'none'}"
        )


def certify_sum(
    channel: Channel,
    clients: int,
    order: float = math.inf,
    neighboring: Neighboring = "replace_one",
) -> SumCertificate:
    """Certify the sum of n clients' codes at one Rényi order, against adversarial other clients.

    Args:
        channel: the channel that every client sends one coordinate through.
        clients: n >= 1, number of codes that are added; the sum is all that is seen.
        order: Rényi order in (1, inf]; infinity (the default) is pure differential privacy.
        neighboring: `replace_one`, or `zero_out`: one of the client's two inputs is 0.

    Returns:
        A SumCertificate with an interval for the largest divergence, and an attack. Results are
        cached: certifying the same sum again costs nothing.

    Guarantees:
        Whatever the others' inputs in [-clip, clip], fixed or random but independent of the
        client's input, no pair of neighbouring inputs has a divergence of the sum above
        epsilon.upper; the attack has one of at least epsilon.lower. Sums taken modulo anything
        reveal no more.

    Raises:
        ValueError: order is not above 1, clients is below 1, or neighboring is unknown.

    References:
        Balle, Bell, Gascón and Nissim 2019 (the privacy blanket, for shuffled messages).

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> certificate = rq.certify_sum(channel, clients=2, order=2.0)
        >>> round(certificate.epsilon.upper, 6), certificate.method
        (4.319297, 'exhaustive')
    """
    validate.kind("channel", channel, Channel)
    clients = validate.whole("clients", clients, low=1, high=2**53)
    order = validate.renyi_order(order)
    validate.choice("neighboring", neighboring, ("replace_one", "zero_out"))
    return _certified(channel, clients, order, neighboring)


@lru_cache(maxsize=4096)
def _certified(
    channel: Channel, clients: int, order: float, neighboring: Neighboring
) -> SumCertificate:
    if LARGEST_ORDER < order < math.inf:
        # theory/rounding.md, Proposition 6: divergences rise with the order.
        pure = _certified(channel, clients, math.inf, neighboring)
        below = _certified(channel, clients, LARGEST_ORDER, neighboring)
        epsilon = Interval(below.epsilon.lower, pure.epsilon.upper)
        return replace(below, order=order, epsilon=epsilon, method=pure.method)
    rows = Rows.from_channel(channel, neighboring)
    # theory/sums.md, Proposition 2: counting on nobody else is a bound for any number of others.
    single_lower, single_upper = rows.single_divergences(order)
    single = float(single_upper.max())
    if clients == 1:
        pair = divmod(int(single_lower.argmax()), len(rows.weights))
        lower, upper, method, counts = float(single_lower.max()), single, "exhaustive", {}
    else:
        report("the strongest attack", 0, 0)
        lower, pair, vertex = _strongest_attack(rows, clients - 1, order, single)
        counts = {float(rows.inputs[vertex]): clients - 1}
        upper, method = _upper(channel, rows, clients - 1, order, single, lower)
        fewer = 1 << (min(clients, MAX_COUNTED_CLIENTS) - 1).bit_length() - 1
        # theory/sums.md, Proposition 2: a bound for fewer clients holds for more. It can be smaller
        # only if the attack on the fewer ones is below this bound.
        if fewer > 1 and _strongest_attack(rows, fewer - 1, order, single)[0] < upper:
            bound = _certified(channel, fewer, order, neighboring).epsilon.upper
            upper, method = min(
                (upper, method), (bound, "fewer clients"), key=lambda proof: proof[0]
            )
    return SumCertificate(
        clients=clients,
        order=order,
        # Both are proven; equal but for rounding, they may cross.
        epsilon=Interval(at_most(lower, upper), upper),
        witness=(float(rows.inputs[pair[0]]), float(rows.inputs[pair[1]])),
        others=counts,
        method=method,
        neighboring=neighboring,
    )


Attack = tuple[float, tuple[int, int], int]
"""A lower bound of a divergence, the pair of the client's rows, and the vertex of all others."""


def _strongest_attack(rows: Rows, others: int, order: float, single: float) -> Attack:
    """Return the best attack with all others at one vertex.

    Args:
        rows: the rows of the client and of the others.
        others: number of other clients.
        order: in (1, inf].
        single: upper bound of one client's divergence.
    """
    # theory/sums.md, Proposition 5: where an extreme sum shows as much as one client's code does,
    # the others hide nothing.
    extreme = list(_extreme_sum_attacks(rows)) if math.isinf(order) else []
    for attack in extreme:
        if attack[0] >= single * SINGLE_CLIENT_SHARE:
            return attack
    above_one = 1.0 if math.isinf(order) else order - 1
    best, place = -1.0, (0, 0, 0)
    depth = 0.0 if math.isinf(single) else single * above_one
    # Short sums show which vertices are worth a long one.
    practice = [
        _least_hidden_pair(rows, vertex, min(others, MAX_PRACTICE_CLIENTS), order, depth)
        for vertex in range(rows.vertices)
    ]
    ranks = np.argsort([-value for value, *_ in practice], kind="stable").tolist()
    for vertex in ranks[: MAX_ATTACKED_VERTICES if others <= MAX_COUNTED_CLIENTS else 0]:
        _, noise, p, q = _least_hidden_pair(rows, vertex, others, order, depth)
        log_moment = attained(noise, rows.probabilities[p], rows.probabilities[q], order)
        if log_moment > best:
            best, place = log_moment, (vertex, p, q)
    vertex, p, q = place
    # A quotient and a product round: 2 of 4 units.
    lower = max(best, 0.0) / above_one * (1 - 4 * UNIT)
    return max([(lower, (p, q), vertex), *extreme], key=lambda attack: attack[0])


def _least_hidden_pair(
    rows: Rows, vertex: int, others: int, order: float, depth: float
) -> tuple[float, Law, int, int]:
    # (estimated log moment, law of the others' sum, p, q) of the pair that they hide least.
    noise = at_one_vertex(rows.weights[vertex], rows.total, others, depth)
    # Rounded moments choose the pair; its proven lower end counts.
    table = np.where(rows.allowed, _log_moment_table(rows, noise, order), -1.0)
    p, q = np.unravel_index(int(table.argmax()), table.shape)
    return float(table[p, q]), noise, int(p), int(q)


def _extreme_sum_attacks(rows: Rows) -> Iterator[Attack]:
    for code in (0, -1):
        # theory/sums.md, Proposition 5: the least sum is sent only if everybody sends the least
        # code. So if the others can send it too, one client's ratio at that code remains.
        table = rows.ratios(code)
        vertex = int(rows.weights[: rows.vertices, code].argmax())
        p, q = (int(i) for i in np.unravel_index(int(table.argmax()), table.shape))
        if rows.weights[vertex, code] > 0:
            yield float(table[p, q]), (p, q), vertex


def _upper(
    channel: Channel, rows: Rows, others: int, order: float, single: float, attacked: float
) -> tuple[float, Method]:
    """Bound the divergence with this many other clients, and name the proof.

    Args:
        channel, rows, others, order: as in `_certified`.
        single: upper bound of one client's divergence.
        attacked: lower bound of the divergence of the sum.
    """
    above_one = 1.0 if math.isinf(order) else order - 1
    # Two products: at least the largest log moment of one client, as bounds want it.
    log_single = single * above_one * (1 + 4 * UNIT)
    best: tuple[float, Method] = (single, "one client")
    # theory/sums.md, Proposition 5: an attack as strong as without others; no bound is lower.
    if attacked >= single * SINGLE_CLIENT_SHARE:
        return best
    present, others = others, min(others, MAX_COUNTED_CLIENTS)
    # theory/sums.md, Proposition 7: what is trimmed is 2^-90 of one client's moment.
    untrimmable = rows.apart or math.isinf(log_single) or math.isinf(order)
    floor = NO_TRIM_FLOOR_BITS if untrimmable else 90 + log_single / math.log(2)
    mirrored, bounds = rows.asymmetry <= SYMMETRY_TOLERANCE, None
    if untrimmable:
        others = min(others, MAX_PURE_CLIENTS)
    elif at_vertices_counted(channel, others, MAX_VERTEX_LAWS, mirrored) < others:
        depth = log_single + 60
        bounds = bounding_laws(channel, others, floor, MAX_VERTEX_LAWS, mirrored, depth, order)
    # theory/sums.md, Propositions 1 and 2.
    for others_bound in bounds or [at_vertices(channel, others, floor, MAX_VERTEX_LAWS, mirrored)]:
        log_moment = _bounded_log_moment(rows, others_bound, order, log_single)
        bound = log_moment / above_one * (1 + 4 * UNIT)
        reduced = others_bound.method == "exhaustive" and others < present
        method: Method = "fewer clients" if reduced else others_bound.method
        if bound < best[0]:
            best = bound, method
        if best[0] <= SUFFICIENT_BOUND_RATE * attacked:
            break
    return best


def _bounded_log_moment(rows: Rows, others: OthersBound, order: float, log_single: float) -> float:
    """Bound the log moment of all pairs of neighbours behind the other clients.

    Args:
        rows: the client's rows.
        others: the bound over the other clients.
        order: in (1, inf].
        log_single: upper bound of one client's log moment.
    """
    # The row of input 0, if there is one, is its own mirror image.
    mirror = [*range(rows.vertices)[::-1], *range(rows.vertices, len(rows.weights))]
    total = -np.inf
    for component in others.components:
        worst = np.full(rows.allowed.shape, -np.inf)
        for done, law in enumerate(component.laws):
            if done % 64 == 0:
                report("how the others are spread, %", 100 * done // len(component.laws), 100)
            table = _log_moment_table(rows, law, order)
            worst = np.maximum(worst, _add_trimmed(table, law, log_single))
        if others.mirrored:
            # theory/sums.md, Proposition 1: mirrored others have the mirrored pairs' moments.
            error = rows.asymmetry * (4 if math.isinf(order) else 2 * order)
            worst = np.maximum(worst, worst[np.ix_(mirror, mirror)] + error)
        # theory/sums.md, Proposition 2: no noise hides less than none.
        worst = np.minimum(worst[rows.allowed], log_single)
        if math.isinf(order):
            return float(worst.max()) - 2 * math.log1p(-others.law_error - others.mixture_error)
        # theory/sums.md, Proposition 14: a mean of moments less 1, of which small ones keep digits.
        small = np.log(np.expm1(np.minimum(worst, 30.0)) + 1e-300)
        excess = np.where(worst > 30, worst, small) + component.log_mass
        total = np.logaddexp(total, excess + 32 * UNIT * (1 + np.abs(excess)))
    # theory/sums.md, Proposition 12: laws that are known only nearly.
    allowance = -(2 * order - 1) * math.log1p(-others.law_error - others.mixture_error)
    # Each addition rounds a logarithm; what it adds to the end shrinks with its share of the whole.
    units = 64 + 4 * len(others.components) * (2 + np.abs(total))
    return float((np.logaddexp(0.0, total) * (1 + units * UNIT)).max()) + allowance


def _log_moment_table(rows: Rows, noise: Law, order: float) -> np.ndarray:
    # (R, R), without what was trimmed off the noise's law: `_add_trimmed` adds it.
    table, size = rows.probabilities, len(rows.weights)
    if rows.vertices == size:
        moments, slack = log_moments(noise, table, table, order)
    else:
        # Only pairs of a vertex and 0 are neighbours. In one table with the other pairs, whose
        # moments may be far larger, theirs might underflow.
        moments, slack = np.zeros((size, size)), 0.0
        moments[:-1, -1:], slack = log_moments(noise, table[:-1], table[-1:], order)
        moments[-1:, :-1], other_slack = log_moments(noise, table[-1:], table[:-1], order)
        slack = max(slack, other_slack)
    if math.isfinite(order) and slack > MAX_RELATIVE_ROUNDING_ERROR * moments.max():
        p, q = np.nonzero(rows.allowed)
        excess = log_excesses(noise, table, (p, q), order, upper=True)
        precise = np.logaddexp(0.0, excess) * (1 + 32 * UNIT)
        moments[p, q] = np.minimum(moments[p, q], precise)
    return moments


def _add_trimmed(log_moment: np.ndarray, noise: Law, log_single: float) -> np.ndarray:
    """Raise log moments by what was trimmed off a noise's law.

    With the probability of what was trimmed, at most, there is no noise: one client's moment.
    """
    if noise.trimmed == 0:
        return log_moment
    # theory/sums.md, Proposition 7; 1e-9 is far above the rounding of exp.
    added = log_trimmed(noise.trimmed, noise.floor) + log_single - log_moment
    return log_moment + np.exp(np.minimum(added, 700.0)) * (1 + 1e-9)
