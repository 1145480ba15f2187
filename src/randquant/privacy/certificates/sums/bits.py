"""Channels whose code is a sum of independent bits: the curvature of their sums, bit by bit.

Derivation: `docs/theory/vector-sums.md`, "Sums of bits".
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from randquant.channels.channel import Channel
from randquant.channels.probabilities import EVEN
from randquant.privacy.certificates.sums.bit_pairs import by_arrangements
from randquant.privacy.certificates.sums.ends import between_ends

SCALE = 2**62
"""Denominator of the bits' probabilities."""

LARGEST_ERROR = 2.0**-20
"""Rows further from binomial laws than this, relatively, are not taken for sums of bits."""

ROUGH = 0.1
"""How far the curvature of wider bits may be above the truth: it enters in second order."""

WINDOWS = (1, 2, 3, 4, 6, 9)
"""Up to so many cells apart inputs count as close: the best of these is taken."""

GROW = 1 + 2.0**-36
"""Outward rounding of factors that are formed from positive terms."""

CLOSE = ((2**14, 1.03), (2**15, 1.05))
"""Of so many bits or fewer a bound so near what is attained is not improved on; of more none is:
that takes long."""


@dataclass(frozen=True, slots=True)
class Bits:
    """A channel whose row at vertex v is Binomial(trials, first + v·step), up to rounding.

    Of all rows a share may be spread evenly over the codes.

    Attributes:
        trials: t >= 1, how many bits a code is the sum of.
        first, step: whole numbers over `SCALE`; step > 0.
        cells: how many steps there are from the first vertex to the last.
        narrowest: width of the narrowest cell of inputs.
        error: no weight is further than this from the binomial law's, relatively.
        turned: whether codes are counted from the other end.
        even: the share that is spread evenly, 0 or EVEN.
    """

    trials: int
    first: int
    step: int
    cells: int
    narrowest: float
    error: float
    turned: bool = False
    even: float = 0.0

    @staticmethod
    def of(channel: Channel) -> Bits | None:
        """Read the bits off the rows; None if they are not (nearly) such sums."""
        plain = Bits._of(channel, 0.0)
        return Bits._of(channel, EVEN) if plain is None and channel.levels > 2 else plain

    @staticmethod
    def _of(channel: Channel, even: float) -> Bits | None:
        trials, cells = channel.levels - 1, len(channel.inputs) - 1
        widths = np.diff(channel.inputs)
        weights = channel.weights
        if trials < 1 or widths.min() <= 0 or not weights.all():
            return None
        ends = [_mean(row, channel.denominator) for row in (weights[0], weights[-1])]
        ends = [(end - even * trials / 2) / (1 - even) for end in ends]
        turned = ends[0] > ends[1]
        if turned:
            weights, ends = weights[:, ::-1], [trials - end for end in ends]
        first = round(ends[0] / trials * SCALE)
        step = round((ends[1] - ends[0]) / trials * SCALE) // cells
        # theory/vector-sums.md, Proposition 17: whatever they are read off as, rows are compared.
        if step <= 0 or first <= 0 or first + cells * step >= SCALE:
            return None
        error = 0.0
        for vertex, row in enumerate(weights.tolist()):
            error = max(error, _off(row, channel.denominator, first + vertex * step, even))
            if error > LARGEST_ERROR:
                return _bent(channel, widths) if trials == 1 else None
        return Bits(trials, first, step, cells, float(widths.min()), error, turned, even)

    def one(self, beyond: int = 0) -> Channel:
        """One of the bits, for inputs -1 to 1; its ends are moved outward by `beyond` steps."""
        low = self.first - beyond * self.step
        high = self.first + (self.cells + beyond) * self.step
        weights = np.array([[SCALE - low, low], [SCALE - high, high]], dtype=np.int64)
        return Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), weights, SCALE)

    @property
    def rarest(self) -> float:
        """The least probability of a bit's value, rounded down."""
        last = self.first + self.cells * self.step
        return min(self.first, SCALE - last) / SCALE / GROW

    @property
    def loss(self) -> float:
        """The largest log-ratio of two exactly binomial rows at one code, rounded up."""
        last = self.first + self.cells * self.step
        ratio = max(last / self.first, (SCALE - self.first) / (SCALE - last))
        return self.trials * math.log(ratio) * GROW

    def dithering(self, order: float, curvature: float, wider: float, window: int) -> float:
        """Factor for inputs between vertices, which are rounded to one for all bits at once.

        Args:
            order: Rényi order.
            curvature: of a sum of one bit of each client, per squared step.
            wider: that of bits whose ends are window + 1 steps further out.
            window: inputs up to so many steps apart are close.
        """
        # theory/vector-sums.md, Proposition 15.
        exact = np.arange(self.trials) * np.log1p(self.least(1))
        most, least = np.expm1(2 * exact).sum(), -np.expm1(-2 * exact).sum()
        mean = np.expm1(np.arange(self.trials) * np.log1p(self._drift(order, wider, window))).sum()
        mean = min(float(mean), float(most))
        scale = (order - 1) * curvature * window**2
        grown = (mean + least) / (most + least) * np.expm1(scale * (most + least))
        near = (scale * (self.trials - least) + np.log1p(grown)) / (scale * self.trials)
        return max(float(near), _far(order, self.trials * curvature, window, self.cells)) * GROW

    def least(self, steps: int) -> float:
        """So many steps over the least probability of a bit's value."""
        return steps * self.step / SCALE / self.rarest

    def _drift(self, order: float, wider: float, window: int) -> float:
        """By how much, at most, a sum raises the mean square of a likelihood ratio of vertices."""
        # theory/vector-sums.md, Proposition 15; lengths are in steps, `reach` is its g.
        reach, near, cell = window + 1, self.least(window + 1), self.least(1)
        if near >= 0.5:
            return math.inf
        spread = (order - 1) * wider * reach**2
        slope = np.expm1(4 * spread / order) / reach
        square = (np.expm1(4 * spread) + np.expm1(spread)) / reach**2
        square /= order * (order - 1) * math.sqrt(1 - near**2)
        bend = 2 / (1 - near) ** 4 + 4 * reach * (1 + cell / (1 - near)) / (1 - near) ** 3
        return float(2 * slope + bend * square / 2)

    def rounding(self, order: float, curvature: float, second: float, clients: int) -> float:
        """Factor for rows that are binomial only up to `error`.

        Args:
            order: Rényi order.
            curvature: of the sum of exactly binomial codes, per squared step.
            second: the same at order 2, or at the order where that is larger.
            clients: how many codes are in the sum.
        """
        # theory/vector-sums.md, Proposition 16.
        error = math.expm1(clients * math.log1p(self.error)) * GROW
        if error > 0.01:
            return math.inf
        ratio = math.exp(min(2 * self.trials * math.log1p(self.least(1)), 300.0))
        zeta = error * ratio * math.sqrt(2 * order * (order - 1))
        above = (order - 1) * curvature
        if order >= 2:
            share = 2 * self.cells**2 + 3 / above
        else:
            share = (1 + 2 * math.exp(min(second * self.cells**2, 700.0))) / above
        grown = 1 + zeta * math.sqrt(share)
        if grown > 1e150 or -order * math.log1p(-error) > 300:  # too large for a float, nearly
            return math.inf
        return grown**2 * (1 - error) ** (-2 * order) * GROW


def _far(order: float, curvature: float, window: int, cells: int) -> float:
    """Factor for inputs at least `window` cells apart: both dithered by one random number."""
    if window >= cells:
        return 1.0
    # theory/vector-sums.md, Proposition 15: the numerator at the end of each part, the denominator
    # at its beginning.
    part = np.arange(2**10 + 1) / 2**10
    apart = np.arange(window, cells)[:, None]
    unit = (order - 1) * curvature
    moment = unit * apart**2 + np.log1p(part[1:] * np.expm1(unit * (2 * apart + 1)))
    moment = np.fmin(moment, unit * (apart + 1) ** 2)
    return float((moment / (unit * (apart + part[:-1]) ** 2)).max())


def curvature_of_bits(
    channel: Channel, clients: int, order: float, attained: float = math.inf
) -> float:
    """Bound the curvature of a sum of clients' codes, each a sum of bits; infinite if they are not.

    Args:
        channel: the channel of every client.
        clients, order: as in `kappa_sum`; clients > 1.
        attained: a bound hardly above it is not improved on.
    """
    bits = _bits(channel)
    if bits is None:
        return math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        total = _with_even(bits, clients, order)
        second = _with_even(bits, clients, 2.0) if order < 2 else 0.0
        total *= bits.rounding(order, total, second, clients)
        # theory/vector-sums.md, Proposition 17: a step is at least the narrowest cell apart.
        total *= GROW / bits.narrowest**2
        near = next((near for most, near in CLOSE if bits.trials * clients <= most), math.inf)
        if not total <= near * attained and bits.trials > 1 and near < math.inf:
            # theory/vector-sums.md, Proposition 24; in steps, and back.
            least = _in_all_arrangements(channel, bits, clients, order, attained)
            step = least * float(np.diff(channel.inputs).max()) ** 2 * GROW
            step *= bits.rounding(order, step, second, clients) * GROW / bits.narrowest**2
            total = step if math.isnan(total) else min(total, step)
    return total if total > 0 else math.inf  # also where it is not a number


def _in_all_arrangements(
    channel: Channel, bits: Bits, clients: int, order: float, attained: float
) -> float:
    """Bound the curvature of exactly binomial codes with all bits of the others at ends."""
    low, high = bits.first, bits.first + bits.cells * bits.step
    ends = np.array([[SCALE - low, low], [SCALE - high, high]])
    if bits.turned:
        ends = ends[:, ::-1]
    return by_arrangements(channel, ends, bits.even, 4 * bits.error, clients, order, attained)


def _with_even(bits: Bits, clients: int, order: float) -> float:
    """Bound the curvature of codes of which some are drawn evenly, per squared step."""
    if bits.even == 0:
        return _per_step(bits, clients, order)
    # theory/vector-sums.md, Proposition 24, codes drawn evenly: in each group at least so many of
    # the others draw evenly, and fewer than in the next one. Logarithms, for the rarest groups are
    # the least hidden and must not underflow.
    least = sorted({0, 1, clients // 16 + 1, clients // 2 + 1, clients})
    log_share = math.log(min(clients * bits.even, 1.0))
    at_least = [count * log_share for count in least[:-1]] + [-math.inf]
    longest, most = float(bits.cells**2), (order - 1) * bits.loss
    total, together = 0.0, -math.inf
    for place, after in enumerate(least[1:]):
        if at_least[place] == at_least[place + 1]:  # the next group has all of its mass
            continue
        log_mass = at_least[place] + math.log(-math.expm1(at_least[place + 1] - at_least[place]))
        rate = (order - 1) * _per_step(bits, clients - after + 1, order)
        if not rate < math.inf:
            return math.inf
        # Beyond this squared distance the moment grows no more.
        reach = min(longest, most / rate)
        grown = rate * reach
        # Of e^x - 1 the logarithm.
        excess = log_mass + (grown if grown > 30 else math.log(math.expm1(grown)))
        if reach < longest:
            total += float(np.logaddexp(0.0, excess)) / reach
        else:
            together = float(np.logaddexp(together, excess))
    return (total + float(np.logaddexp(0.0, together)) / longest) / (order - 1) * GROW


def _per_step(bits: Bits, clients: int, order: float) -> float:
    """Bound the curvature of exactly binomial codes, per squared step."""
    # A bit's inputs -1 to 1 are all the cells.
    unit = (2 / bits.cells) ** 2 * GROW
    single = between_ends(bits.one(), clients, order).upper * unit
    if bits.trials == 1:
        return single
    # theory/vector-sums.md, Proposition 15: whatever the sums before show.
    steps = 2 * np.arange(bits.trials) * math.log1p(bits.least(1))
    best = float(np.exp(steps).mean()) * GROW
    windows = [w for w in WINDOWS if w <= bits.cells and bits.least(w + 1) < 0.5]
    if windows:
        cells = bits.cells + 2 * (windows[-1] + 1)
        outer = between_ends(bits.one(windows[-1] + 1), clients, order, ROUGH)
        wider = outer.upper * (2 / cells) ** 2 * GROW
        found = [bits.dithering(order, single, wider, window) for window in windows]
        best = min([best, *(factor for factor in found if not math.isnan(factor))])
    return bits.trials * single * best * GROW


def straightened(channel: Channel) -> Bits | None:
    """One bit for the codes of a channel that has two; None where it has more, or jumps."""
    widths, weights = np.diff(channel.inputs), channel.weights
    constant = bool((weights == weights[0]).all())
    if channel.levels != 2 or constant or widths.min() <= 0 or not weights.all():
        return None
    return _bent(channel, widths)


def _bent(channel: Channel, widths: np.ndarray) -> Bits:
    """Two codes, whose probabilities are no straight line of the inputs: one cell, as steep."""
    # theory/vector-sums.md, Proposition 17: whole numbers, and a step over the steepest slope.
    chances = [int(weight) * (SCALE // channel.denominator) for weight in channel.weights[:, 1]]
    steps = np.array([abs(b - a) / SCALE for a, b in itertools.pairwise(chances)])
    step = max(chances) - min(chances)
    return Bits(1, min(chances), step, 1, step / SCALE / float((steps / widths).max()), 0.0)


_bits = functools.lru_cache(maxsize=256)(Bits.of)


def is_sum_of_bits(channel: Channel) -> bool:
    """Whether the curvature of its sums is bounded bit by bit, which is quick."""
    return _bits(channel) is not None


def _mean(row: np.ndarray, total: int) -> float:
    return float(sum(code * int(weight) for code, weight in enumerate(row)) / total)


def _off(row: list[int], total: int, bit: int, even: float) -> float:
    """How far a row is from a binomial law, partly spread evenly, at most: relatively, rounded up.

    All are exact integers.
    """
    trials, worst = len(row) - 1, 0.0
    spread, parts = even.as_integer_ratio()
    unit = SCALE**trials * (trials + 1) * parts
    evenly = SCALE**trials * spread * total
    for code, weight in enumerate(row):
        law = math.comb(trials, code) * bit**code * (SCALE - bit) ** (trials - code)
        exact = law * (trials + 1) * (parts - spread) * total + evenly
        difference = abs(weight * unit - exact)
        # A quotient of integers is rounded once.
        worst = max(worst, difference / exact * GROW)
    return worst
