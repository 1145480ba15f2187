"""What an attack sees of one round: its laws with either input of a client, and without it.

For lower ends of runs: `docs/theory/composition.md`, Propositions 11 to 13.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from randquant.channels.channel import Channel
from randquant.privacy.certificates.noise import Noise
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring

# Sums of clients that each draw from one of two laws: every such sum, with proven rounding.
#
# Derivation: `docs/theory/sums.md`.

LOST = 1e-300
"""Probabilities below it are taken for 0 while laws are convolved."""

MANY = 2**12
"""Laws of the sum of so many equal bits, or more, are computed outward from their mode."""


@dataclass(frozen=True, slots=True)
class ChainLaw:
    """Probabilities (L,) of start, start + 1, …; outside there is next to nothing."""

    start: int
    mass: np.ndarray

    def convolve(self, other: ChainLaw, lost: float = LOST) -> ChainLaw:
        """The law of the sum; products and sums of positive numbers, so each is nearly exact."""
        mass = np.convolve(self.mass, other.mass)
        # theory/vector-sums.md, Proposition 6: products beyond the range of floats are lost. Fewer
        # than 2n + 64 such losses stay below 1e-294 an entry, which counts where entries are 1e-275
        # or more.
        some = np.flatnonzero(mass >= lost)
        first, last = int(some[0]), int(some[-1])
        return ChainLaw(self.start + other.start + first, mass[first : last + 1])


class Powers:
    """Laws of sums of clients with equal inputs, by halving; computed laws are kept."""

    def __init__(self, row: np.ndarray, lost: float = LOST):
        """`lost` may be larger, where only larger probabilities count: shorter laws take less."""
        self._known = {0: ChainLaw(0, np.ones(1)), 1: ChainLaw(0, row)}
        self._lost = lost

    def of(self, count: int) -> ChainLaw:
        """The law of the sum of `count` codes."""
        if count not in self._known and count >= MANY and len(self._known[1].mass) == 2:
            self._known[count] = _binomial(self._known[1].mass, count, self._lost)
        if count not in self._known:
            # Halves: the error is n log n, where adding one client at a time would make it n^2.
            half = count // 2
            self._known[count] = self.of(half).convolve(self.of(count - half), self._lost)
        return self._known[count]


def _binomial(row: np.ndarray, count: int, lost: float) -> ChainLaw:
    """The law of the sum of many bits with these probabilities, both positive."""
    total = float(row.sum())
    mode = min(int((count + 1) * row[1] / total), count)
    # theory/vector-sums.md, Proposition 6: beyond, all is below 1e-300.
    reach = math.isqrt(350 * count) + 2
    below = np.arange(mode, max(mode - reach, 0), -1)
    above = np.arange(mode, min(mode + reach, count))
    odds = row[1] / row[0]
    parts = [
        np.cumprod(below / ((count - below + 1) * odds))[::-1],
        np.ones(1),
        np.cumprod((count - above) * odds / (above + 1)),
    ]
    mass = np.concatenate(parts)
    mass *= total**count / mass.sum()
    some = np.flatnonzero(mass >= lost)
    first, last = int(some[0]), int(some[-1])
    return ChainLaw(mode - len(below) + first, mass[first : last + 1])


def sums(left: np.ndarray, right: np.ndarray, clients: int) -> Iterator[ChainLaw]:
    """Laws of the sum when k clients draw from `right` and the rest from `left`, k = 0, 1, … n.

    Args:
        left, right: (m,) probabilities.
        clients: n.

    Guarantees:
        Each probability from 1e-275 on is within `rounding(n, m)` of the truth, relatively.
    """
    some_left, some_right = Powers(left), Powers(right)

    def between(low: int, high: int, common: ChainLaw) -> Iterator[ChainLaw]:
        """For k from low to high; `common` is the law of the clients that all of these share."""
        if low == high:
            yield common
            return
        # theory/vector-sums.md, Proposition 2: n convolutions with short laws in all.
        middle = (low + high) // 2
        yield from between(low, middle, common.convolve(some_left.of(high - middle)))
        yield from between(middle + 1, high, common.convolve(some_right.of(middle + 1 - low)))

    return between(0, clients, some_left.of(0))


def rounding(clients: int, levels: int) -> float:
    """Relative error of `sums`, and of `Powers.of(clients)`: each convolution adds its terms.

    A sum of n is convolved from halves, so its error, in units, is twice that of n/2 and n/2 times
    levels - 1, and at most n (1 + (levels - 1)/2 · log2 n) + 2n; the way down the tree of `sums`
    meets such laws of n/2, n/4, … and adds n (levels - 1).
    """
    depth = clients.bit_length()
    # theory/vector-sums.md, Proposition 6; `depth` is at least log2(clients).
    units = clients * ((levels - 1) * (depth / 2 + 1) + 4) + 8 * depth + 16
    return 1.05 * units * UNIT


CELLS = 2**12
"""Outcomes are merged into so many cells, at most: whoever merges them sees less."""

REACH = 14.0
"""Outcomes farther away, in standard deviations, are left out."""

WIDEST = 2**19
"""Integer noise that reaches farther is not attacked."""

MOST_CODES = 2**18
"""Codes that are added up, at most, each counted as the square of its largest value."""

Place = tuple[float, float, float]
"""Inputs of a client in the first world and in the second, and of whoever is there in its place,
in units of the longest update."""


def places_of(neighboring: Neighboring, stand_in: bool) -> tuple[Place, ...]:
    """Where inputs are easy to tell apart, although the client may be absent.

    Args:
        neighboring: what the two worlds differ by.
        stand_in: another client takes the place of an absent one, with any update; else zeros do.

    Example:
        >>> places_of("replace_one", stand_in=False)
        ((1.0, -1.0, 0.0),)
    """
    # theory/sampling.md, Propositions 13, 14 and 19: the worst positions of Gaussian noise.
    if neighboring == "replace_one":
        return ((1.0, -1.0, -1.0 if stand_in else 0.0),)
    aside = ((1.0, 0.0, -1.0),) if stand_in else ()
    return (*aside, (1.0, 0.0, 0.0))


@dataclass(frozen=True, slots=True)
class Laws:
    """Masses of the same outcomes under three laws; some outcomes may be left out.

    Attributes:
        first, second: (k,) with the client's input in the first and in the second world.
        absent: (k,) without the client.
        error: (k,) relative error of each of the three, at most.
    """

    first: np.ndarray
    second: np.ndarray
    absent: np.ndarray
    error: np.ndarray

    def merged(self) -> Laws:
        """The same in at most CELLS cells of neighbouring outcomes."""
        width = -(-len(self.error) // CELLS)
        if width <= 1:
            return self
        starts = np.arange(0, len(self.error), width)
        first, second, absent = (
            np.add.reduceat(law, starts) for law in (self.first, self.second, self.absent)
        )
        # theory/composition.md, Proposition 12: a unit for each mass that is added.
        error = np.maximum.reduceat(self.error, starts) + width * UNIT
        return Laws(first, second, absent, error)


class SeenRound(Protocol):
    """Inputs of one round, and what is seen of them."""

    def laws(self) -> Laws:
        """The laws of what is seen."""
        ...


@dataclass(frozen=True, slots=True)
class NormalRound:
    """A number with noise of standard deviation 1.

    Attributes:
        first, second: the client's input in either world, relative to its absence.

    Example:
        >>> laws = NormalRound(1.0, 0.0).laws()
        >>> round(float(laws.first.sum()), 6), round(float(laws.first @ laws.error), 9)
        (1.0, 0.0)
    """

    first: float
    second: float

    def laws(self) -> Laws:
        """Masses of cells of the line."""
        # theory/composition.md, Proposition 12: the adversary sees the cell, and no tails.
        shifts = (self.first, self.second, 0.0)
        edges = np.linspace(min(shifts) - REACH, max(shifts) + REACH, CELLS + 1)
        (first, one), (second, other), (absent, another) = (_cells(edges - at) for at in shifts)
        return Laws(first, second, absent, np.max([one, other, another], axis=0))


@dataclass(frozen=True, slots=True)
class IntegerRound:
    """A coordinate of a sum with integer noise.

    Attributes:
        noise: of each client.
        clients: whose noise is in the sum.
        first, second: the client's input in either world, relative to its absence.
        modulus: of the sum; None if it is not reduced.
    """

    noise: Noise
    clients: int
    first: int
    second: int
    modulus: int | None = None

    def laws(self) -> Laws:
        """Masses of the integers around."""
        return _of_integers(self)


@dataclass(frozen=True, slots=True)
class SumRound:
    """The sum of all codes of some coordinates of a sum of clients.

    Attributes:
        channel: of every coordinate.
        clients: in the sum.
        coordinates: in which the client's entries differ, all by as much.
        place: the client's entries in either world, and those in its place where it is absent.
        others: entries of all others.
    """

    channel: Channel
    clients: int
    coordinates: int
    place: Place
    others: float

    def laws(self) -> Laws:
        """Masses of the sum."""
        return _of_codes(self)


def few_enough(channel: Channel, clients: int, coordinates: int) -> int:
    """How many coordinates are looked at, of so many that may differ; 0 if a sum is too long."""
    # theory/composition.md, Proposition 12: an attack may use fewer, and its update is shorter.
    return min(coordinates, MOST_CODES // (clients * (channel.levels - 1) ** 2))


def _cells(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Normal masses of cells, and their relative errors; 1 where nothing is left."""
    left, right = edges[:-1], edges[1:]
    # On either side of zero the smaller tails are subtracted.
    sign = np.where(left + right > 0, 1.0, -1.0)
    near, far = np.where(sign > 0, left, right) * sign, np.where(sign > 0, right, left) * sign
    tails = ndtr(-near), ndtr(-far)
    mass = tails[0] - tails[1]
    # theory/sampling.md, Proposition 17: tails are right within 16 (1 + x^2) units of themselves.
    off = sum(16 * UNIT * (1 + z**2) * t for z, t in zip((near, far), tails, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(mass > 0, off / mass + 4 * UNIT, 1.0)
    return mass, np.minimum(error, 1.0)


@functools.lru_cache(maxsize=16)
def _of_integers(seen: IntegerRound) -> Laws:
    shifts = (seen.first, seen.second, 0)
    span = max(shifts) - min(shifts)
    reach = math.ceil(REACH * math.sqrt(seen.clients * seen.noise.variance)) + span + 40
    if reach > WIDEST:
        nothing = np.empty(0)
        return Laws(nothing, nothing, nothing, nothing)
    logs, error = seen.noise.log_law(seen.clients, reach)
    reach = len(logs) - 1
    mass, off = np.exp(logs), error + 8 * UNIT * (1 + np.abs(logs))
    # theory/composition.md, Proposition 12: what is beyond falls at least geometrically.
    ratio = min(float(mass[-1] / mass[-2]) * (1 + 1e-6), 1 - 1e-9) if mass[-1] > 0 else 0.0
    beyond = 2 * float(mass[-1]) * ratio / (1 - ratio)
    total = 2 * float(mass.sum()) - 1 + beyond
    doubt = (2 * float(mass @ off) + beyond) / total + 2 * (reach + 8) * UNIT
    low, high = max(shifts) - reach, min(shifts) + reach
    places = [np.abs(np.arange(low, high + 1) - shift) for shift in shifts]
    first, second, absent = (mass[place] / total for place in places)
    error = np.max([off[place] for place in places], axis=0) + 1.1 * doubt
    laws = Laws(first, second, absent, error)
    if seen.modulus is not None:
        # Of each law, outcomes farther than `reach` from the middle of another are not among them.
        outside = (2 * float(mass[max(reach - span + 1, 0) :].sum()) + beyond) / total
        laws = _folded(laws, seen.modulus, 1.1 * outside)
    return laws.merged()


def _folded(laws: Laws, modulus: int, outside: float) -> Laws:
    """The laws of integers modulo `modulus`, of which so much mass is not among them."""
    rows = np.zeros((3, -(-len(laws.error) // modulus), modulus))
    kept = rows.reshape(3, -1)[:, : len(laws.error)]
    kept[:] = laws.first, laws.second, laws.absent
    errors = np.zeros(rows.shape[1] * modulus)
    errors[: len(laws.error)] = laws.error
    error = errors.reshape(-1, modulus).max(axis=0) + rows.shape[1] * UNIT
    folded = rows.sum(axis=1)
    least = folded.min(axis=0)
    # theory/composition.md, Proposition 12: what is not among them may be anywhere.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        error = np.where(least > 0, error + outside / least, 1.0)
    return Laws(folded[0], folded[1], folded[2], np.minimum(error, 1.0))


@functools.lru_cache(maxsize=16)
def _of_codes(seen: SumRound) -> Laws:
    channel, count = seen.channel, seen.coordinates
    # theory/composition.md, Proposition 12: the others' codes of all coordinates, and the client's.
    others = _added(channel, seen.others, (seen.clients - 1) * count)
    laws = [others.convolve(_added(channel, place, count)) for place in seen.place]
    low = min(law.start for law in laws)
    length = max(law.start + len(law.mass) for law in laws) - low
    rows = np.zeros((3, length))
    for row, law in zip(rows, laws, strict=True):
        row[law.start - low : law.start - low + len(law.mass)] = law.mass
    # theory/composition.md, Proposition 12: as for one coordinate of so many clients.
    error = np.full(length, 2 * rounding(seen.clients * count, channel.levels))
    return Laws(rows[0], rows[1], rows[2], error).merged()


@functools.lru_cache(maxsize=32)
def _added(channel: Channel, place: float, count: int) -> ChainLaw:
    """The law of the sum of so many codes of one input, as the encoder draws them."""
    row, total = channel.mix(place)
    return Powers(np.array([int(weight) / total for weight in row])).of(count)
