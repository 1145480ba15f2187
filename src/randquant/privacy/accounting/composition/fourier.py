"""Many releases of one loss by fast Fourier transform on a grid, with every error bounded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from randquant.privacy.accounting.composition.loss import PrivacyLoss, Tilted
from randquant.privacy.divergence import UNIT

GRID = 2**18
"""Points of the grid, at most: 2 MiB an array."""

RARE = 40.0
"""Events of tilted probability e^-40 are left out, and paid for."""

FEW = 24.0
"""The same for losses that were rounded down unusually little: e^-24 costs less than more room."""


@dataclass(frozen=True, slots=True)
class LossGrid:
    """A loss on multiples of a step that is a power of two.

    Attributes:
        loss: losses are step · index.
        index: (k,) int64.
        step: in nats.
        lost: (k,) by how much each loss was rounded down, 0 to step; zeros for upper bounds.
    """

    loss: PrivacyLoss
    index: np.ndarray
    step: float
    lost: np.ndarray


def on_grid(loss: PrivacyLoss, step: float) -> LossGrid:
    """Put a loss on a grid.

    Upward, each loss is split between its two neighbours such that p and q keep their masses: the
    two can be merged back, so the split pair is easier to tell apart. Downward, it is rounded down.
    """
    # theory/composition.md, Proposition 5, upward and downward.
    below = np.floor(loss.losses / step)
    above = loss.losses - below * step  # right within a unit: step is a power of two
    if not loss.upward:
        rounded = _grid_loss(loss, below, loss.masses, step)
        return LossGrid(rounded, below.astype(np.int64), step, above)
    part = np.minimum(np.expm1(-above) / math.expm1(-step), 1.0)
    # theory/composition.md, Proposition 5: 18 of 24 units are needed. Both parts are raised.
    rest = (1 - part * (1 - 24 * UNIT)) * (1 + 4 * UNIT)
    masses = np.concatenate([loss.masses * rest, loss.masses * part * (1 + 24 * UNIT)])
    index = np.concatenate([below, below + 1])
    masses *= 1 + 4 * UNIT
    split = _grid_loss(loss, index, masses, step)
    return LossGrid(split, index.astype(np.int64), step, np.zeros(len(index)))


def joined(first: PrivacyLoss, second: PrivacyLoss, cells: int) -> PrivacyLoss:
    """The upward loss of two independent releases, on a grid of about so many cells.

    Example:
        >>> one = PrivacyLoss(np.array([0.0, 1.0]), np.array([0.5, 0.5]), 0.0, upward=True)
        >>> both = joined(one, one, 4)
        >>> float(both.losses[both.masses > 0].max())
        2.0
    """
    span = max(float(np.ptp(first.losses)), float(np.ptp(second.losses)), 1e-12)
    step = 2.0 ** math.ceil(math.log2(span / cells))
    one, another = (on_grid(loss, step) for loss in (first, second))
    rows = [
        np.bincount(grid.index - grid.index.min(), weights=grid.loss.masses)
        for grid in (one, another)
    ]
    start = int(one.index.min() + another.index.min())
    masses = np.convolve(rows[0], rows[1])
    # theory/sampling.md, Proposition 20: each mass is a sum of as many products as a row has.
    masses *= 1 + (len(one.index) + len(another.index) + 8) * UNIT
    losses = (start + np.arange(len(masses))) * step
    infinite = min((first.infinite + second.infinite) * (1 + 4 * UNIT), 1.0)
    return PrivacyLoss(losses, masses, infinite, upward=True)


def _grid_loss(loss: PrivacyLoss, index: np.ndarray, masses: np.ndarray, step: float):
    return PrivacyLoss(index * step, masses, loss.infinite, loss.upward)


def by_fourier(
    loss: PrivacyLoss, releases: int, tilt: float
) -> tuple[Callable[[float], float], float]:
    """Bound log delta of many releases as a function of epsilon.

    Args:
        loss: of one release.
        releases: how many are composed, 2 to 2**20.
        tilt: see `Tilted`; any gives valid bounds, the Rényi-optimal one good ones.

    Returns:
        (log_delta, centre): a function of epsilon whose values are on the loss's side of the
        truth, and the epsilon near which it is best.
    """
    start = Tilted.of(loss, releases, tilt)
    reach, _ = _reach(start, 0.0)
    step = 2.0 ** math.ceil(math.log2(max(2.1 * reach / GRID, 1e-12)))
    grid = on_grid(loss, step)
    tilted = Tilted.of(grid.loss, releases, tilt)
    mean, _ = tilted.centre
    reach, outside = _reach(tilted, 4 * step)
    first = math.floor((releases * mean - reach) / step) - 2
    first = max(first, releases * int(grid.index.min()))
    size = min(GRID, 1 << (math.ceil(2 * reach / step) + 8).bit_length())
    if size * step < 2 * reach + 6 * step:
        # theory/composition.md, Proposition 6.
        outside = 1.0  # never so, but a bound must not rest on it
    sums, error = powered(tilted.weights, grid.index, first, size, releases)
    points = (first + np.arange(size)) * step
    shift, unlikely = _shift(tilted, grid)

    def log_delta(epsilon: float) -> float:
        from_here = max(math.floor((epsilon - shift) / step) - first, 0)
        over = np.maximum(points[from_here:] - (epsilon - shift), 0.0)
        farthest = float(over[-1]) if over.size else 0.0
        moved = 4 * UNIT * (abs(epsilon) + farthest)  # error of each difference
        # theory/composition.md, Proposition 3: g at the points of the grid.
        kernel = -np.exp(-tilt * over) * np.expm1(-over)
        terms = sums[from_here:] * kernel
        integral, size_of = float(terms.sum()), float(np.abs(terms).sum())
        # theory/composition.md, Proposition 7, to `moved`; then Proposition 6.
        slack = error * float(np.sqrt(kernel @ kernel)) * 1.001
        slack += size_of * (UNIT * (size + 80) + 2 * tilt * moved)
        slack += moved * float(np.abs(sums[from_here:]).sum())  # 1 - e^-x has slope 1 at most
        slack += (outside + unlikely) * tilted.peak * 1.001 + 1e-290  # last: what underflows
        return tilted.log_delta(epsilon - shift, integral + _sign(loss) * slack)

    return log_delta, releases * mean + shift


def _sign(loss: PrivacyLoss) -> int:
    return 1 if loss.upward else -1


def _reach(tilted: Tilted, margin: float) -> tuple[float, float]:
    """(x, bound): total losses are farther than x from their mean with a tilted mass <= bound."""
    mean, variance = tilted.centre
    spread = float(np.abs(tilted.loss.losses - mean).max()) + margin
    # theory/composition.md, Proposition 6: Bernstein's inequality; mean and variance are computed,
    # which 1.001 and 1e-9 cover many times over.
    variance = 1.001 * variance + 1e-9 * spread**2
    n, third = tilted.releases, spread * RARE / 3
    bernstein = third + math.sqrt(third**2 + 2 * n * variance * RARE)
    everything = n * spread * (1 + 1e-9)
    if everything <= bernstein:
        return everything, 0.0
    return bernstein * (1 + 1e-6), 2.1 * math.exp(-RARE)


def _shift(tilted: Tilted, grid: LossGrid) -> tuple[float, float]:
    """(shift, bound): rounding down took less than shift from a sum with tilted mass <= bound."""
    if grid.loss.upward:
        return 0.0, 0.0
    mass = tilted.weights / tilted.weights.sum()
    mean = float(mass @ grid.lost)
    variance = 1.001 * float(mass @ (grid.lost - mean) ** 2) + 1e-9 * grid.step**2
    # theory/composition.md, Proposition 5: Bernstein's inequality, as in `_reach`.
    n, third = tilted.releases, grid.step * FEW / 3
    least = n * mean * (1 - 1e-9) - third - math.sqrt(third**2 + 2 * n * variance * FEW)
    return (least, 1.1 * math.exp(-FEW)) if least > 0 else (0.0, 0.0)


def powered(
    weights: np.ndarray,
    index: np.ndarray,
    first: int,
    size: int,
    power: int,
) -> tuple[np.ndarray, float]:
    """The power-fold convolution from index `first` on, modulo size, and its error in L2.

    Args:
        weights: (k,) of the indices, not negative.
        index: (k,) int64.
        first: the first index of the result.
        size: its length.
        power: how many factors there are.

    Returns:
        (sums, error): sums[i] is the mass of all total indices congruent to first + i; the
        vector of their errors has at most this Euclidean length.
    """
    base = int(index.min())
    place = (index - base) % size
    one = np.bincount(place, weights=weights, minlength=size)
    spectrum = np.fft.rfft(one)
    result, square, left = np.ones_like(spectrum), spectrum, power
    while left:
        if left & 1:
            result = result * square
        left >>= 1
        if left:
            square = square * square
    sums = np.fft.irfft(result, size)
    sums = np.roll(sums, (power * base - first) % size)
    # theory/composition.md, Proposition 7: from here to the end.
    transform = 16 * UNIT * math.log2(size)
    largest, length = _size(weights, one, transform)
    growth = math.exp(power * max(math.log(largest), 0.0))
    rounding = power * (int(np.bincount(place).max()) + 5) * UNIT
    error = 1.02 * growth * length * ((power + 1) * transform + rounding)
    return sums, error + 1e-290


def _size(weights: np.ndarray, one: np.ndarray, transform: float) -> tuple[float, float]:
    """(R, length): the largest component of a computed transform, and the weights' L2 length."""
    length = float(np.sqrt(one @ one)) * 1.001
    largest = float(weights.sum()) * (1 + len(weights) * UNIT)
    return largest + 1.01 * transform * math.sqrt(len(one)) * length, length
