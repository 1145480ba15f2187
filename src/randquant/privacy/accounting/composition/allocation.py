"""The privacy loss of Gaussian noise in rounds of which a client takes part in one, at random.

The likelihood ratio is a mean of independent lognormal terms. Everything is rounded up:
`docs/theory/sampling.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from randquant.privacy.accounting.composition.fourier import RARE, on_grid, powered
from randquant.privacy.accounting.composition.loss import PrivacyLoss
from randquant.privacy.divergence import UNIT

SIZE = 2**17
"""Points of the grid of sums."""

CELLS = 2**12
"""Cells into which losses are put, about."""

FAR = 64
"""Cells for the client's own term beyond the grid."""

FINE = 1e-9
"""What sums and logarithms of some thousand terms are off by, at most, relative to themselves."""

SPARED = 2.0**-10
"""Share of delta, about, that terms beyond the grid cost."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The worlds of a block of rounds: a client takes part in one of them, or in none.

    Attributes:
        apart: distance of the client's update from zero, at most, in standard deviations.
        rounds: of the block, at least 1.
        through: whether the client is in both worlds: the ways are from one of them to a world
            without it, and from there to the other.
    """

    apart: float
    rounds: int
    through: bool = False

    def losses(self, releases: int, delta: float) -> tuple[PrivacyLoss, ...]:
        """The loss of one of so many blocks, rounded up: the client is there first, or second."""
        rare = math.log(delta) + math.log(SPARED) - math.log(releases)
        # theory/sampling.md, Proposition 21: any ends give a bound.
        reach = math.sqrt(2 * (math.log(self.rounds) - rare))
        return self._present(reach, self.apart + math.sqrt(-2 * rare)), self._absent(reach)

    def _present(self, reach: float, last: float) -> PrivacyLoss:
        """Log of the mean of the terms, one of which is larger: the client is there."""
        terms = _Terms.of(self, reach, 1)
        sums, error = terms.folded(terms.masses * terms.values * (1 + 4 * UNIT))
        top = terms.step * (terms.first + SIZE)
        # theory/sampling.md, Proposition 21: another term beyond, and what the window misses.
        missed = self.rounds * float(ndtr(-reach)) + error * math.sqrt(SIZE)
        missed += terms.beyond(top, 1) * (1 + top / self.rounds)
        # The client's own term may be beyond the grid, alone.
        z = np.linspace(reach, max(reach, last), FAR + 1)
        tail = ndtr(self.apart - z)
        far = np.logaddexp(self.apart * (z[1:] - self.apart / 2), math.log(top))
        far -= math.log(self.rounds)
        some = (sums > 0) & (terms.ratios > 0)
        losses = np.concatenate([np.log(terms.ratios[some]), far])
        masses = np.concatenate([sums[some], -np.diff(tail) + FINE * tail[:-1]])
        return _merged(losses, masses, missed + float(tail[-1]))

    def _absent(self, reach: float) -> PrivacyLoss:
        """Minus the log of the mean of the terms without the client."""
        # theory/sampling.md, Proposition 20: a term beyond the end is moved down to it.
        # What is far above the mean is a gain that hardly counts; a finer grid does.
        largest = min(4096 + 100 * math.sqrt(self.rounds), 64.0 * self.rounds)
        end = min(self.apart + 5, math.log(largest) / self.apart + self.apart / 2)
        terms = _Terms.of(self, min(reach, end), -1)
        lost = float(terms.masses[0])
        if lost <= FINE / 1e3:
            terms.masses[0] = 0.0  # what rounding down took to 0 hides what is likely there
            lost *= self.rounds
        else:
            lost = 0.0
        sums, error = terms.folded(None)
        missed = lost + error * math.sqrt(SIZE) + terms.beyond(terms.step * terms.first, -1)
        some = (sums > 0) & (terms.ratios > 0)
        missed += max(float(sums[terms.ratios <= 0].sum()), 0.0)
        return _merged(-np.log(terms.ratios[some]), sums[some], missed)


@dataclass(frozen=True, slots=True)
class _Terms:
    """A term of the mean on multiples of a step, and the window that their sums fall into.

    Attributes:
        rounds: how many terms are summed.
        step: of the grid.
        masses: (k,) of 0, 1, … steps.
        first: the least sum, in steps, of the window, which has SIZE of them.
    """

    rounds: int
    step: float
    masses: np.ndarray
    first: int = 0

    @classmethod
    def of(cls, block: Allocation, reach: float, sign: int) -> _Terms:
        """Terms up to a reach, rounded up (sign 1) or down (-1)."""
        # Where sums are likely enough is seen on a coarser grid: any window gives a bound.
        largest = float(_term(block.apart, np.array([reach]))[0])
        rough = cls(block.rounds, largest / CELLS, _split(block.apart, largest / CELLS, CELLS, 1))
        tilts = np.geomspace(1e-6, 600, 150) / largest
        high = float(((rough.log_moments(tilts) + RARE + 5) / tilts).min())
        low = max(float((-(rough.log_moments(-tilts) + RARE) / tilts).max()), 0.0)
        step = max((high - low) / (SIZE - 8), largest / (4 * SIZE))
        masses = _split(block.apart, step, math.ceil(largest / step), sign)
        return cls(block.rounds, step, masses, math.floor(low / step))

    @property
    def values(self) -> np.ndarray:
        """(k,) of the term."""
        return np.arange(len(self.masses)) * self.step

    @property
    def ratios(self) -> np.ndarray:
        """(SIZE,) of the likelihoods: means of the terms."""
        return (self.first + np.arange(SIZE)) * (self.step / self.rounds)

    def folded(self, once: np.ndarray | None) -> tuple[np.ndarray, float]:
        """Masses of all sums, modulo the window; `powered`."""
        index = np.arange(len(self.masses))
        return powered(self.masses, index, self.first, SIZE, self.rounds, once)

    def log_moments(self, tilts: np.ndarray) -> np.ndarray:
        """log of the mean of e^(tilt · sum), raised; one for each tilt."""
        moments = [float(self.masses @ np.exp(tilt * self.values)) for tilt in tilts]
        return self.rounds * (np.log(moments) + FINE)

    def beyond(self, edge: float, sign: int) -> float:
        """Bound the mean of sum/edge above an edge (sign 1), or the probability below it (-1)."""
        if edge <= 0:
            return 0.0
        # theory/sampling.md, Proposition 21: Chernoff's bound, by the best of some tilts.
        tilts = np.geomspace(1 / edge, max(600 / self.values[-1], 2 / edge), 40)
        exponents = self.log_moments(sign * tilts) - sign * tilts * edge
        return math.exp(min(float(exponents.min()), 0.0))


def _term(apart: float, z: np.ndarray) -> np.ndarray:
    """The likelihood ratio of one round whose noise is z."""
    return np.exp(apart * (z - apart / 2))


def _split(apart: float, step: float, cells: int, sign: int) -> np.ndarray:
    """(cells + 1,) masses of a term on 0, 1, … steps, mass and mean of each cell kept."""
    y = np.arange(cells + 1) * step
    with np.errstate(divide="ignore"):
        z = np.log(y) / apart + apart / 2
    tail, mean = ndtr(-z), ndtr(apart - z)
    # theory/sampling.md, Propositions 20 and 21: what of a cell goes to its upper end.
    error = sign * 256 * UNIT * (1 + apart)
    inside = -np.diff(tail)
    upper = np.clip((-np.diff(mean) - y[:-1] * inside + error) / step, 0.0, inside)
    above = np.concatenate([[1.0], tail[1:] + upper + error, [0.0]])
    return np.maximum(-np.diff(above), 0.0)


def _merged(losses: np.ndarray, masses: np.ndarray, infinite: float) -> PrivacyLoss:
    """The same loss on fewer points; all is rounded up."""
    losses = losses + 16 * UNIT * (1 + np.abs(losses))
    loss = PrivacyLoss(losses, masses, 0.0, upward=True)
    grid = on_grid(loss, 2.0 ** math.ceil(math.log2(max(float(np.ptp(losses)) / CELLS, 1e-12))))
    first = int(grid.index.min())
    sums = np.bincount(grid.index - first, weights=grid.loss.masses)
    losses = (first + np.arange(len(sums))) * grid.step
    # theory/sampling.md, Proposition 21: sums of as many masses as the grid has points.
    infinite = min(infinite * (1 + FINE) + 1e-300, 1.0)
    return PrivacyLoss(losses, sums * (1 + 4 * SIZE * UNIT), infinite, upward=True)
