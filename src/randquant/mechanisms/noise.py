"""Integer noise for sums over many clients: its laws, their curvature, and exact draws.

The curvature of a law p on the integers is the largest second difference of -log p. Together with
the law's spread it bounds the Rényi divergence between shifts of the law, in any dimension
(`shift_divergence`), with one proof for all laws: `docs/theory/additive.md`.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.privacy.divergence import ROUND_UP_FACTOR, UNIT, Noise
from randquant.privacy.guarantee import LARGEST_COHORT

# Drawing integers from a table with a proven, tiny distance to the target law.
#
# Derivation: `docs/theory/additive.md`.

BITS = 192
"""Bits of one draw: probabilities are integer multiples of 2**-192. With half of them, 1e12 draws
from a table of a million entries would be 1e-11 away from their law, and e^epsilon times that in
delta; with twice as many, tables would only take longer."""

# Decimal digits of the arithmetic: 22 more than 2**-192, for the errors of millions of products.
_DECIMAL_DIGITS = 80
_LOW_BITS = BITS - 64


@dataclass(frozen=True, slots=True, eq=False)
class CumulativeTable:
    """A law on the integers first, first + 1, …, as cumulative thresholds in units of 2**-192.

    Attributes:
        first: the smallest integer with mass.
        high: (K - 1,) uint64, the thresholds' first 64 bits, non-decreasing.
        low: their remaining 128 bits.
    """

    first: int
    high: np.ndarray
    low: list[int]

    @classmethod
    def from_ratios(
        cls,
        mode: int,
        up: Iterable[Decimal],
        down: Iterable[Decimal],
        limit: Decimal | None = None,
    ) -> CumulativeTable:
        """Tabulate a law whose ratios do not increase (a log-concave law), or are limited.

        Args:
            mode: an integer of largest mass.
            up: the ratios p(mode + 1) / p(mode), p(mode + 2) / p(mode + 1), …, non-increasing; the
                law's support ends where they end.
            down: the same on the other side.
            limit: an upper bound of all ratios, below 1; they may then increase.

        Guarantees:
            The total variation distance between the draws and the law is at most `distance`.
        """
        with decimal.localcontext(decimal.Context(prec=_DECIMAL_DIGITS, Emin=-(10**9), Emax=10**9)):
            above, below = _weights(up, limit), _weights(down, limit)
            weights = [*reversed(below), Decimal(1), *above]
            unit = Decimal(1 << BITS) / sum(weights)
            thresholds, total = [], Decimal(0)
            for weight in weights[:-1]:
                total += weight
                thresholds.append(min(int(total * unit), (1 << BITS) - 1))
        high = np.array([threshold >> _LOW_BITS for threshold in thresholds], dtype=np.uint64)
        low = [threshold & ((1 << _LOW_BITS) - 1) for threshold in thresholds]
        return cls(mode - len(below), high, low)

    @property
    def distance(self) -> float:
        # Each threshold is rounded by less than one unit, and the tail that is left out is smaller.
        return 2.0 ** (1 - BITS) * (len(self.low) + 1)

    def draw(self, count: int, key: Key) -> np.ndarray:
        """Draw (count,) int64, with a key used for nothing else.

        The draw at index k depends only on the key and k.
        """
        # 64 bits decide almost every draw: the other 128 are drawn only for those that are equal to
        # a threshold's first 64 bits.
        words = key.fold_in("high").words(count)
        index = np.searchsorted(self.high, words, side="right")
        ties = np.flatnonzero(np.searchsorted(self.high, words, side="left") < index)
        if ties.size:
            low_words = key.fold_in("low").words(2 * count)
            for k in ties:
                left = int(np.searchsorted(self.high, words[k], side="left"))
                low = int(low_words[2 * k]) << 64 | int(low_words[2 * k + 1])
                index[k] = bisect_right(self.low, low, left, int(index[k]))
        return self.first + index.astype(np.int64)


def _weights(ratios: Iterable[Decimal], limit: Decimal | None) -> list[Decimal]:
    # Masses relative to the mode's, up to a tail of less than 2**-200 of it.
    weights: list[Decimal] = []
    weight, cut = Decimal(1), Decimal(2) ** -(BITS + 8)
    for ratio in ratios:
        # No later ratio is larger than this: the tail is at most a geometric series.
        most = ratio if limit is None else limit
        if most < 1 and weight * most < cut * (1 - most):
            break
        weight *= ratio
        weights.append(weight)
    return weights


LARGEST_VARIANCE = 2.0**30
"""Largest variance of one client's noise, whose table then has a million entries."""

_WINDOW_TAIL_NATS = 100.0
"""-log of half the mass that a binomial's certified window may exclude.

This mass, times coordinates, rounds and e^epsilon, is subtracted from delta: at 1e10 coordinates in
all and delta 1e-6 it is negligible up to an epsilon of 60. With 140 instead, sums of 204 to 282
trials would have no window.
"""


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """Integers k with probability proportional to exp(-k^2 / (2 · variance)).

    Args:
        variance: parameter sigma^2, 1/4 to 2**30.

    References:
        Canonne, Kamath and Steinke 2020 (the law); Kairouz, Liu and Steinke 2021, Theorem 1 and
        Proposition 14 (sums of them), whose tau becomes a curvature here.
    """

    variance: float

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_variance(self.variance, 0.25)

    @classmethod
    def at_least(cls, variance: float) -> DiscreteGaussian:
        return cls(variance)

    def curvature(self, terms: int) -> float:
        # That of a Gaussian law, 1/(n · sigma^2), plus twice the largest deviation of a sum's log
        # law from it: a second difference has weights 1, -2, 1 (theory/additive.md, Proposition 2).
        return (1 / (terms * self.variance) + 2 * self._log_deviation(terms)) * ROUND_UP_FACTOR

    def spread(self, terms: int) -> float:
        # n · sigma^2: a discrete Gaussian law is subgaussian with its parameter.
        return terms * self.variance * ROUND_UP_FACTOR

    def _log_deviation(self, terms: int) -> float:
        # Bound of the difference between the log of a sum's law and a Gaussian's, up to a constant.
        k = np.arange(1, terms)
        q = np.exp(-2 * math.pi**2 * self.variance * (k / (k + 1))) * ROUND_UP_FACTOR
        deviation = float(np.sum(np.log1p(2 * q / (1 - q**3)) - np.log1p(-2 * q)))
        return deviation * (1 + terms * UNIT)  # rounding of a sum of `terms` numbers

    def distance(self, terms: int) -> float:
        # Each client draws once from the table, and distances of independent draws add up.
        return terms * self._table().distance * ROUND_UP_FACTOR

    def draw(self, count: int, key: Key) -> np.ndarray:
        return self._table().draw(count, key)

    def _table(self) -> CumulativeTable:
        return _gaussian_table(self.variance)


@dataclass(frozen=True, slots=True)
class Skellam:
    """The difference of two Poisson variables of mean variance / 2 each.

    Args:
        variance: mu, 1/1000 to 2**30.

    References:
        Agarwal, Kairouz and Liu 2021, whose bound at integer orders
        (alpha D2^2 / (2 mu) + min(((2 alpha - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu)), D1 and D2
        the L1 and L2 distance of the shifts) the curvature here improves on for mu >= 8, unless the
        shift is large against mu.
    """

    variance: float

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_variance(self.variance, 1e-3)

    @classmethod
    def at_least(cls, variance: float) -> Skellam:
        return cls(variance)

    def curvature(self, terms: int) -> float:
        """Bound 2 log(I_0(mu) / I_1(mu)) at the sum's variance mu, by elementary functions."""
        # Rounded down: the bound decreases in mu.
        mu = terms * self.variance * (1 - 4 * UNIT)
        c = 1.0 if mu >= 7 else 2.25
        root = math.sqrt(mu * mu + c)
        return 2 * math.log1p((0.5 + c / (root + mu)) / mu) * ROUND_UP_FACTOR

    def spread(self, terms: int) -> float:
        """Bound the spread slightly above the variance mu; infinite if mu < 1.

        It comes from log E exp(a X) = mu (cosh a - 1).
        """
        mu = terms * self.variance
        return (mu + 1 / (11 * mu)) * ROUND_UP_FACTOR if mu >= 1 else math.inf

    def distance(self, terms: int) -> float:
        # Each client draws twice.
        return 2 * terms * self._table().distance * ROUND_UP_FACTOR

    def draw(self, count: int, key: Key) -> np.ndarray:
        # The two Poisson variables must be independent: each has a key of its own.
        table = self._table()
        return table.draw(count, key.fold_in("plus")) - table.draw(count, key.fold_in("minus"))

    def _table(self) -> CumulativeTable:
        return _poisson_table(self.variance / 2)


@dataclass(frozen=True, slots=True)
class Binomial:
    """Binomial(trials, 1/2) minus trials / 2.

    Its support is finite, so shifts of it have infinite divergence. The curvature is that of a
    different law, which differs from the sum's only outside a window that excludes at most
    2 · exp(-100) of its mass; `distance` bounds the difference.

    Args:
        trials: even, 2 to 2**32.

    References:
        Dwork et al. 2006 (Our data, ourselves); Agarwal et al. 2018 (cpSGD), Theorem 1; its
        (epsilon, delta) bound for one round is not used: the one here composes, and is tighter.
    """

    trials: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("trials", self.trials, low=2, high=2**32)
        if self.trials % 2:
            raise ValueError(f"Expected an even number of trials, got {self.trials}.")

    @classmethod
    def at_least(cls, variance: float) -> Binomial:
        """Return the smallest noise of at least this variance."""
        _check_variance(variance, 1e-3)
        return cls(2 * math.ceil(2 * variance))

    @property
    def variance(self) -> float:
        return self.trials / 4

    def curvature(self, terms: int) -> float:
        """Return the largest second difference within the window; infinite without a window.

        Sums of at least 204 trials have one.
        """
        total, reach = self._window(terms)
        if 2 * reach >= total:
            return math.inf
        return math.log1p((total + 1) / (total * total / 4 - reach * reach)) * ROUND_UP_FACTOR

    def spread(self, terms: int) -> float:
        # The variance plus 2, which covers the law outside the window.
        return (terms * self.trials / 4 + 2) * ROUND_UP_FACTOR

    def distance(self, terms: int) -> float:
        """Bound the mass outside the window, under both laws, plus the distance of the tables."""
        total, reach = self._window(terms)
        if 2 * reach >= total:
            return 1.0
        slope = math.log1p((2 * reach - 1) / (total / 2 - reach + 1)) / ROUND_UP_FACTOR
        outside = 2 * math.exp(-2 * reach * reach / total * (1 - 8 * UNIT)) * (1 + 1 / slope)
        return (outside + terms * self._table().distance) * ROUND_UP_FACTOR

    def draw(self, count: int, key: Key) -> np.ndarray:
        return self._table().draw(count, key)

    def _window(self, terms: int) -> tuple[int, int]:
        # Number of all trials, and half the width of the window: by Hoeffding's inequality, at most
        # 2 exp(-2 reach^2 / total) of the mass is outside.
        total = terms * self.trials
        return total, math.ceil(math.sqrt(_WINDOW_TAIL_NATS * total / 2))

    def _table(self) -> CumulativeTable:
        return _binomial_table(self.trials)


NOISES: dict[str, Callable[[float], Noise]] = {
    "discrete-gaussian": DiscreteGaussian.at_least,
    "skellam": Skellam.at_least,
    "binomial": Binomial.at_least,
}
"""Noises by name: each a function from a variance to the smallest noise with at least it. A new one
also needs an entry in `rounds.statement.LAWS`, and one in `statistics.surveys.LAWS` for tables."""


def _check_variance(variance: float, low: float) -> None:
    validate.real(
        "one client's noise variance", variance, low=low, high=LARGEST_VARIANCE,
        why="it is in steps of the grid that updates are rounded to: more bits make it larger",
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _gaussian_table(variance: float) -> CumulativeTable:
    def ratios() -> Iterator[Decimal]:
        # exp(-(2k + 1) / (2 · variance)) for k = 0, 1, …
        with localcontext(Context(prec=80)):
            ratio = (Decimal(-1) / (2 * Decimal(variance))).exp()
            step = ratio * ratio
        while True:
            yield ratio
            ratio *= step

    return CumulativeTable.from_ratios(0, ratios(), ratios())


@functools.lru_cache(maxsize=8)
def _poisson_table(mean: float) -> CumulativeTable:
    mode, exact = math.floor(mean), Decimal(mean)
    up = (exact / k for k in itertools.count(mode + 1))
    down = (k / exact for k in range(mode, 0, -1))
    return CumulativeTable.from_ratios(mode, up, down)


@functools.lru_cache(maxsize=8)
def _binomial_table(trials: int) -> CumulativeTable:
    half = trials // 2

    def ratios() -> Iterator[Decimal]:
        return (Decimal(half - k) / (half + k + 1) for k in range(half))

    return CumulativeTable.from_ratios(0, ratios(), ratios())


# Discrete Laplace noise, drawn by one client or as the sum of several clients' shares.
#
# Derivations: `docs/theory/statistics.md`.

LARGEST_SCALE = 2.0**15
"""Largest scale, whose table then has four million entries."""


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """One client's share of integers k with probability proportional to exp(-|k| / scale).

    Shares are differences of two Pólya variables (negative binomial of 1/clients successes), whose
    sum over this number of clients has that law.

    Args:
        scale: that of the sum, in steps, 1/8 to 2**15.
        clients: number of shares that add up to it; 1 for the whole noise.

    References:
        Ghosh, Roughgarden and Sundararajan 2009 (the law); Goryczka and Xiong 2017 (shares).

    Example:
        >>> noise = DiscreteLaplace(scale=3.0, clients=10)
        >>> round(10 * noise.variance, 1), noise.draw(4, Key.from_seed(0)).shape
        (17.8, (4,))
    """

    scale: float
    clients: int = 1

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("scale", self.scale, low=0.125, high=LARGEST_SCALE)
        validate.whole("clients", self.clients, low=1, high=LARGEST_COHORT)

    @property
    def variance(self) -> float:
        # That of the law, 2p / (1 - p)^2 at p = exp(-1/scale), over the number of shares.
        return 0.5 / math.sinh(0.5 / self.scale) ** 2 / self.clients

    def distance(self, terms: int) -> float:
        # Each share is two draws from the table.
        return 2 * terms * _polya_table(self.scale, self.clients).distance * ROUND_UP_FACTOR

    def draw(self, count: int, key: Key) -> np.ndarray:
        """Draw (count,) int64, with a key used for nothing else."""
        table = _polya_table(self.scale, self.clients)
        return table.draw(count, key.fold_in("plus")) - table.draw(count, key.fold_in("minus"))


@functools.lru_cache(maxsize=8)
def _polya_table(scale: float, clients: int) -> CumulativeTable:
    with localcontext(Context(prec=80)):
        p = (Decimal(-1) / Decimal(scale)).exp()
    # (k + 1/n) / (k + 1) · p, which is at most p.
    up = (p * (clients * k + 1) / (clients * k + clients) for k in itertools.count())
    return CumulativeTable.from_ratios(0, up, (), limit=p)
