"""What a sum of many clients' codes reveals of one of them: one coordinate, secure aggregation.

The server sees the sum of n codes and may choose the other clients' inputs. Derivations and
rounding: `docs/theory/sums.md`.
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
from randquant._internal.progress import report
from randquant._internal.rounding import round_down, round_up
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_laws import (
    KEEP_ALL,
    ClientRows,
    Law,
    Rows,
    log_excesses,
    log_moments,
    log_trimmed,
)
from randquant.privacy.certificates.sum_parts import (
    NEARLY,
    Method,
    Others,
    at_vertices,
    at_vertices_counted,
    stand_ins,
)
from randquant.privacy.divergence import LARGEST_ORDER, UNIT
from randquant.privacy.guarantee import Interval, Neighboring, at_most

# Inputs of the other clients, all at one vertex, that hide a client poorly: lower ends.
#
# Derivations: `docs/theory/sums.md`, `vector-sums.md`.

PARTS, VERTICES, SQUARES = 32, 5, (2**4, 2**10)
"""Parts into which the way from end to end is cut, about, for pairs of inputs; vertices that others
are put at, at most; and parts of the largest squared distance that distant pairs are apart."""

BESIDE, CLOSE_PARTS, STEPS = 8, (2**5, 2**8, 2**11, 2**20), (1, 2, 3, 4, 6)
"""Inputs beside which pairs are tried, at most; and which parts of a cell, or how many parts of the
way, these are apart."""

FLOOR, LONG, DEEP = 150.0, 2**11, 2**16
"""Bits below which tails are left out, of sums of so many codes, and of so many whatever the order
is; lower ends account for that."""

Reached = tuple[float, tuple[float, float]]
"""A divergence over squared distance, and the pair of inputs that has it."""


def at_one_vertex(row: np.ndarray, total: int, others: int, depth: float) -> Law:
    """The law of the sum of others with equal inputs.

    Args:
        row, total: whole numbers.
        others: how many there are.
        depth: in nats, how rare sums may count.
    """
    # theory/sums.md, Proposition 7: where some code is impossible, no tail is harmless.
    codes = 1 if (row == 0).any() else others * len(row)
    deep = depth / math.log(2) if codes <= DEEP else 0.0
    floor = FLOOR + deep if codes > LONG else KEEP_ALL
    return Law.of(row, total, floor).power(others)


def attained(noise: Law, p: np.ndarray, q: np.ndarray, order: float) -> float:
    """At most log of sum_z P(z)^order Q(z)^(1-order), P and Q being p and q convolved with noise.

    Args:
        noise: law of the others' sum.
        p, q: (m,) rows, within 1 unit.
        order: in (1, inf].
    """
    table, slack = log_moments(noise, p[None], q[None], order)
    # theory/sums.md, Proposition 7: without what was trimmed a moment may be larger.
    if math.isinf(order):  # theory/sums.md, Proposition 8
        return max(float(table[0, 0]) - slack, 0.0) if noise.trimmed == 0 else 0.0
    whole = float(table[0, 0]) - slack if noise.trimmed == 0 else 0.0
    pair = np.zeros(1, np.int64), np.ones(1, np.int64)
    excess = log_excesses(noise, np.stack([p, q]), pair, order, upper=False)
    return max(float(np.logaddexp(0.0, excess[0])) * (1 - 32 * UNIT), whole, 0.0)


@functools.lru_cache(maxsize=1024)
def by_distance(channel: Channel, others: int, order: float) -> Reached:
    """Others all at one vertex: the best divergence over squared distance of some pairs.

    Args:
        channel: a channel whose curvature is finite.
        others: how many there are.
        order: in (1, inf).
    """
    client = ClientRows.of(channel)
    points = _points(client.inputs)
    square = (points[:, None] - points) ** 2
    weight = 1 / ((order - 1) * np.where(square > 0, square, np.inf))
    rows = np.stack([_row(channel, at) for at in points])
    close = _Close.of(channel, points)
    depth = max(order - 1, 1.0) * client.loss
    best: Reached = (0.0, (float(points[0]), float(points[0])))
    # Any others and any pair give a lower end: all are put at one vertex.
    for vertex in _some(len(channel.weights), VERTICES):
        noise = at_one_vertex(channel.weights[vertex], channel.denominator, others, depth)
        best = max(best, close.best(noise, order))
        ratio = log_moments(noise, rows, rows, order)[0] * weight
        # Rounded moments choose pairs; of distant ones more digits are known.
        for apart in square.max() / np.array(SQUARES):
            found = np.where(square >= apart, ratio, -1.0)
            i, j = np.unravel_index(int(found.argmax()), found.shape)
            if found[i, j] > best[0]:
                # Points are off by 1 unit of themselves, a distance of a part by 2048, its
                # square twice.
                lower = attained(noise, rows[i], rows[j], order) * (1 - 2**13 * UNIT)
                pair = float(points[i]), float(points[j])
                best = max(best, (lower * float(weight[i, j]), pair))
    return best


def _some(count: int, most: int) -> list[int]:
    """So many of 0 to count - 1, evenly."""
    return np.unique(np.linspace(0, count - 1, most).round().astype(int)).tolist()


def _beside(count: int, steps: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Some of 0 to count - 1, each with those so many steps away."""
    for here in _some(count, BESIDE):
        for step in steps:
            yield from ((here, at) for at in (here - step, here + step) if 0 <= at < count)


@dataclass(frozen=True, slots=True)
class _Close:
    """Pairs of inputs beside each other, some of which approach the Fisher information.

    Attributes:
        inputs: (P, 2) of each pair.
        distance: (P,) between them, within 4 units.
        rows: (2P, m) probabilities: of the first input of each, then of the second.
    """

    inputs: np.ndarray
    distance: np.ndarray
    rows: np.ndarray

    @staticmethod
    def of(channel: Channel, points: np.ndarray) -> _Close:
        """Beside some vertices and some of the points, on both sides."""
        inputs, weights, total = channel.inputs, channel.weights.astype(object), channel.denominator
        pairs, distance, rows = [], [], []
        for vertex, other in _beside(len(inputs), (1,)):
            way = inputs[other] - inputs[vertex]
            # Whole numbers, so that rows are exact, and positions are those of a dither.
            for part in CLOSE_PARTS if way != 0 else ():
                pairs.append((inputs[vertex], inputs[vertex] + way / part))
                distance.append(abs(way) / part)
                beside = (part - 1) * weights[vertex] + weights[other]
                rows.append((weights[vertex] / total, beside / (part * total)))
        for here, there in _beside(len(points), STEPS):
            pairs.append((points[here], points[there]))
            distance.append(abs(points[here] - points[there]))
            rows.append((_row(channel, points[here]), _row(channel, points[there])))
        both = np.array(rows, dtype=np.float64)
        return _Close(np.array(pairs), np.array(distance), np.concatenate([both[:, 0], both[:, 1]]))

    def best(self, noise: Law, order: float) -> Reached:
        """The largest divergence over squared distance behind a noise."""
        here = np.arange(len(self.distance))
        pairs = np.concatenate([here, here + len(here)]), np.concatenate([here + len(here), here])
        excess = log_excesses(noise, self.rows, pairs, order, upper=False)
        # Inputs are off by 1 unit of themselves, a divergence by less than that of its square.
        moved = 8 * UNIT * np.abs(self.inputs).max(axis=1) / self.distance
        ratio = np.logaddexp(0.0, excess) * (1 - 64 * UNIT) / (order - 1)
        ratio *= np.tile(np.maximum(1 - moved, 0.0) / self.distance**2, 2)
        at = int(ratio.argmax())
        one, two = (float(at) for at in self.inputs[at % len(here)])
        return float(ratio[at]), (one, two) if at < len(here) else (two, one)


def _points(inputs: np.ndarray) -> np.ndarray:
    """Inputs to try, all vertices among them."""
    reach = inputs[-1] - inputs[0]
    parts = np.maximum(PARTS * np.diff(inputs) / reach, 1.0)
    # Powers of two: the encoder's dither has these positions exactly.
    counts = (2 ** np.log2(parts).round()).astype(int)
    cells = zip(inputs[:-1], inputs[1:], counts.tolist(), strict=True)
    points = [np.linspace(left, right, count, endpoint=False) for left, right, count in cells]
    return np.append(np.concatenate(points), inputs[-1])


def _row(channel: Channel, at: float) -> np.ndarray:
    """The row of an input: of exact integers."""
    row, total = channel.mix(float(at))
    return np.array([int(weight) / total for weight in row])


def endless(channel: Channel, witness: tuple[float, float]) -> Reached:
    """For a channel of infinite curvature: infinite where that of a sum is known to be, else 0.

    Where the channel jumps, so do sums. Where its largest or least code becomes impossible at a
    vertex, so does the largest or least sum. A sum in between may arise from other codes.
    """
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


FEW = 6500
"""Laws of others at vertices that are tried, at most: half of all where channels are mirrored."""

ENOUGH = 1.1
"""A bound so many times what is attained is not improved on."""

DIGITS = 1e-6
"""Where rounding is more of the largest moment, relatively, moments less 1 are computed."""

PRACTICE, MOST_PROMISING = 64, 2
"""Others among whom vertices are compared, and how many vertices all others are put at."""

CLOSE = 1 - 1e-11
"""An attack with this share of what one client shows is as strong as without others."""

COUNTED, PURE = 2**17, 2**10
"""More other clients than this are counted as so many, and not attacked: more only hide better;
and where no sum is too unlikely to count."""


@dataclass(frozen=True, slots=True)
class SumCertificate:
    """Privacy certificate of one coordinate in a sum of clients' codes.

    Attributes:
        clients: how many codes are added, the client's own among them.
        order: Rényi order in (1, inf].
        epsilon: the largest divergence of the sum, over all pairs of the client's inputs and all
            inputs of the others, lies in this interval; in nats.
        witness: (x, x'), inputs of the client; behind `others` their divergence is at least
            `epsilon.lower`.
        others: {input: how many other clients have it} in the strongest attack found.
        method: what proved `epsilon.upper`: all others were tried; all arrangements of the bits
            that their codes are sums of; all arrangements of two laws that stand for any few of
            them; only some of the others were counted; or none was.
        neighboring: what the adversary tries to tell apart.
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
        clients: n >= 1, how many codes are added; the sum is all that is seen.
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
        >>> found = rq.certify_sum(channel, clients=2, order=2.0)
        >>> round(found.epsilon.upper, 6), found.method
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
    rows = Rows.of(channel, neighboring)
    # theory/sums.md, Proposition 2: counting on nobody else is a bound for any number of others.
    alone = rows.alone(order)
    single = float(alone[1].max())
    if clients == 1:
        pair = divmod(int(alone[0].argmax()), len(rows.weights))
        lower, upper, method, counts = float(alone[0].max()), single, "exhaustive", {}
    else:
        report("the strongest attack", 0, 0)
        lower, pair, vertex = _attacked(rows, clients - 1, order, single)
        counts = {float(rows.inputs[vertex]): clients - 1}
        upper, method = _upper(channel, rows, clients - 1, order, single, lower)
        fewer = 1 << (min(clients, COUNTED) - 1).bit_length() - 1
        # theory/sums.md, Proposition 2: what fewer clients have bounds more; few attack worse.
        if fewer > 1 and _attacked(rows, fewer - 1, order, single)[0] < upper:
            bound = _certified(channel, fewer, order, neighboring).epsilon.upper
            upper, method = min((upper, method), (bound, "fewer clients"), key=lambda by: by[0])
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


def _attacked(
    rows: Rows, others: int, order: float, single: float
) -> tuple[float, tuple[int, int], int]:
    """The strongest attack, all others at one vertex: at most its divergence; pair, vertex."""
    # theory/sums.md, Proposition 5: where an end shows as much as one client does, others are idle.
    ends = list(_at_ends(rows)) if math.isinf(order) else []
    for found in ends:
        if found[0] >= single * CLOSE:
            return found
    above_one = 1.0 if math.isinf(order) else order - 1
    best, place = -1.0, (0, 0, 0)
    depth = 0.0 if math.isinf(single) else single * above_one
    # Few others show which vertices are worth looking at.
    practice = [
        _pair_at(rows, vertex, min(others, PRACTICE), order, depth)
        for vertex in range(rows.vertices)
    ]
    ranks = np.argsort([-value for value, *_ in practice], kind="stable").tolist()
    for vertex in ranks[: MOST_PROMISING if others <= COUNTED else 0]:
        _, noise, p, q = _pair_at(rows, vertex, others, order, depth)
        found = attained(noise, rows.probabilities[p], rows.probabilities[q], order)
        if found > best:
            best, place = found, (vertex, p, q)
    vertex, p, q = place
    # A quotient and a product round: 2 of 4 units.
    lower = max(best, 0.0) / above_one * (1 - 4 * UNIT)
    return max([(lower, (p, q), vertex), *ends], key=lambda found: found[0])


def _pair_at(
    rows: Rows, vertex: int, others: int, order: float, depth: float
) -> tuple[float, Law, int, int]:
    """The pair that others at a vertex hide least, about: its log moment, their law, the pair."""
    noise = at_one_vertex(rows.weights[vertex], rows.total, others, depth)
    # Rounded moments choose the pair; its proven lower end counts.
    table = np.where(rows.allowed, _table(rows, noise, order), -1.0)
    p, q = np.unravel_index(int(table.argmax()), table.shape)
    return float(table[p, q]), noise, int(p), int(q)


def _at_ends(rows: Rows) -> Iterator[tuple[float, tuple[int, int], int]]:
    """Pure privacy: the least sum (the greatest) is one client's least code (greatest) alone."""
    for code in (0, -1):
        # theory/sums.md, Proposition 5: if the others can send it too, the ratio remains.
        table = rows.ratios(code)
        vertex = int(rows.weights[: rows.vertices, code].argmax())
        p, q = (int(i) for i in np.unravel_index(int(table.argmax()), table.shape))
        if rows.weights[vertex, code] > 0:
            yield float(table[p, q]), (p, q), vertex


def _upper(
    channel: Channel, rows: Rows, others: int, order: float, single: float, attacked: float
) -> tuple[float, Method]:
    """A bound for that many others, or fewer, and how it was proven."""
    above_one = 1.0 if math.isinf(order) else order - 1
    # Two products: at least the largest log moment of one client, as bounds want it.
    log_single = single * above_one * (1 + 4 * UNIT)
    best: tuple[float, Method] = (single, "one client")
    # theory/sums.md, Proposition 5: an attack as strong as without others; no bound is lower.
    if attacked >= single * CLOSE:
        return best
    asked, others = others, min(others, COUNTED)
    # theory/sums.md, Proposition 7: what is trimmed is 2^-90 of one client's moment.
    endless = rows.apart or math.isinf(log_single)
    floor = KEEP_ALL if endless or math.isinf(order) else 90 + log_single / math.log(2)
    mirrored, known = rows.uneven <= NEARLY, None
    if endless or math.isinf(order):
        others = min(others, PURE)
    elif at_vertices_counted(channel, others, FEW, mirrored) < others:
        known = stand_ins(channel, others, floor, FEW, mirrored, log_single + 60, order)
    # theory/sums.md, Propositions 1 and 2.
    for found in known or [at_vertices(channel, others, floor, FEW, mirrored)]:
        bound = _bounded(rows, found, order, log_single) / above_one * (1 + 4 * UNIT)
        cut = found.method == "exhaustive" and others < asked
        method: Method = "fewer clients" if cut else found.method
        if bound < best[0]:
            best = bound, method
        if best[0] <= ENOUGH * attacked:
            break
    return best


def _bounded(rows: Rows, others: Others, order: float, log_single: float) -> float:
    """Bound the log moment of all pairs behind such others."""
    turn = [*range(rows.vertices)[::-1], *range(rows.vertices, len(rows.weights))]
    total, off = -np.inf, 0.0
    for group in others.groups:
        worst = np.full(rows.allowed.shape, -np.inf)
        for done, law in enumerate(group.laws):
            if done % 64 == 0:
                report("how the others are spread, %", 100 * done // len(group.laws), 100)
            worst = np.maximum(worst, _trimmed(_table(rows, law, order), law, log_single))
        if others.mirrored:
            # theory/sums.md, Proposition 1: mirrored others have the mirrored pairs' moments.
            error = rows.uneven * (4 if math.isinf(order) else 2 * order)
            worst = np.maximum(worst, worst[np.ix_(turn, turn)] + error)
        worst = np.minimum(worst[rows.allowed], log_single)
        if math.isinf(order):
            return float(worst.max()) - 2 * math.log1p(-others.off - others.unlike)
        # theory/sums.md, Proposition 14: a mean of moments less 1, of which small ones keep digits.
        small = np.log(np.expm1(np.minimum(worst, 30.0)) + 1e-300)
        excess = np.where(worst > 30, worst, small) + group.log_mass
        total = np.logaddexp(total, excess + 32 * UNIT * (1 + np.abs(excess)))
    # theory/sums.md, Proposition 12: laws that are known only nearly.
    off = -(2 * order - 1) * math.log1p(-others.off - others.unlike)
    # Each addition rounds a logarithm; what it adds to the end shrinks with its share of the whole.
    spare = 64 + 4 * len(others.groups) * (2 + np.abs(total))
    return float((np.logaddexp(0.0, total) * (1 + spare * UNIT)).max()) + off


def _table(rows: Rows, noise: Law, order: float) -> np.ndarray:
    """(R, R) log moments of all pairs behind a noise, rounded up, but for what was trimmed."""
    some, size = rows.probabilities, len(rows.weights)
    if rows.vertices == size:
        found, slack = log_moments(noise, some, some, order)
    else:
        # Pairs of a vertex and 0 only: beside others their moments might be lost.
        found, slack = np.zeros((size, size)), 0.0
        found[:-1, -1:], slack = log_moments(noise, some[:-1], some[-1:], order)
        found[-1:, :-1], other = log_moments(noise, some[-1:], some[:-1], order)
        slack = max(slack, other)
    if math.isfinite(order) and slack > DIGITS * found.max():
        p, q = np.nonzero(rows.allowed)
        excess = log_excesses(noise, some, (p, q), order, upper=True)
        found[p, q] = np.minimum(found[p, q], np.logaddexp(0.0, excess) * (1 + 32 * UNIT))
    return found


def _trimmed(log_moment: np.ndarray, noise: Law, log_single: float) -> np.ndarray:
    """Add the mass trimmed off a noise's law: with at most that probability there is no noise."""
    if noise.trimmed == 0:
        return log_moment
    # theory/sums.md, Proposition 7; 1e-9 is far above the rounding of exp.
    added = log_trimmed(noise.trimmed, noise.floor) + log_single - log_moment
    return log_moment + np.exp(np.minimum(added, 700.0)) * (1 + 1e-9)
