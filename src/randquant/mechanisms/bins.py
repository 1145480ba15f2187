"""The two-bin family: pick a bin on either side of the input, then round between them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.record import (
    CLIP,
    VALUES,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    even_values,
    margins,
    six_digits,
)

MAX_ROUNDING_STEP = 1e-12
"""Largest difference of a row's two limits at a bin that counts as rounding, and not as a jump. Far
above float64 rounding, and far below any step that a mechanism means to have."""


def two_bins(
    clip: float,
    bins: Sequence[float] | np.ndarray,
    left: Sequence[Sequence[float] | np.ndarray],
    right: Sequence[Sequence[float] | np.ndarray],
) -> Channel:
    """Select one bin at or below the input and one above it, then round between them, unbiased.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        bins: B_1 < … < B_m, what the codes decode to; 2 to 256, covering [-clip, clip].
        left: for each of the m - 1 intervals [bins[j], bins[j+1]], the selection distribution of
            the lower bin: (j + 1,) probabilities of bins[0] … bins[j].
        right: likewise for the upper bin: (m - 1 - j,) probabilities of bins[j+1] … bins[m-1].

    Returns:
        A Channel whose vertices are ±clip and the bins between them. A bin is a jump if the rows of
        its two intervals differ there.

    Guarantees:
        Unbiased up to float64 rounding; if a bin lies inside ±clip by less than 1e-9·clip, up to
        that distance (`moments(channel).bias_max` includes it).

    Raises:
        ValueError, TypeError: bins do not increase or do not cover [-clip, clip], a distribution
            has the wrong length or does not sum to 1 within 1e-9.

    References:
        The OPTM and ERM paper, Algorithm 1 and equation 4.

    Example:
        >>> import randquant as rq
        >>> channel = two_bins(1.0, [-2, 0, 2], left=[[1], [0.5, 0.5]], right=[[0.5, 0.5], [1]])
        >>> [float(w / channel.denominator) for w in channel.weights[0]]
        [0.625, 0.25, 0.125]
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    grid = checked_bins(bins, clip)
    lower = _distributions("left", left, [j + 1 for j in range(len(grid) - 1)])
    upper = _distributions("right", right, [len(grid) - 1 - j for j in range(len(grid) - 1)])
    # A bin just inside ±clip would make a cell too narrow for float64 inputs: it counts as ±clip
    # itself, whose row is then that of the bin.
    inner = [j for j in range(len(grid)) if abs(grid[j]) < clip * (1 - 1e-9)]
    first = int(np.searchsorted(grid, -clip * (1 - 1e-9), side="right")) - 1
    last = int(np.searchsorted(grid, clip * (1 - 1e-9), side="left")) - 1
    inputs, rows = [-clip], [_row(max(-clip, grid[first]), first, grid, lower, upper)]
    for j in inner:
        before = _row(grid[j], j - 1, grid, lower, upper)
        after = _row(grid[j], j, grid, lower, upper)
        # Both limits of a jump are rows: the certificate then covers inputs on either side of it.
        continuous = np.abs(before - after).max() <= MAX_ROUNDING_STEP
        sides = [after] if continuous else [before, after]
        inputs += [grid[j]] * len(sides)
        rows += sides
    inputs.append(clip)
    rows.append(_row(min(clip, grid[last + 1]), last, grid, lower, upper))
    return from_probabilities(np.array(inputs), grid, np.array(rows))


def erm(clip: float, bins: Sequence[float] | np.ndarray, gamma: float) -> Channel:
    """Exponential randomised mechanism: a two-bin mechanism that prefers near bins exponentially.

    The lower bin B_i of the interval [B_j, B_{j+1}] is selected with probability proportional to
    exp(-gamma·(B_j - B_i) / (2(B_j - B_1))), the upper one likewise from B_{j+1} to B_m.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        bins: B_1 < … < B_m, 2 to 256, covering [-clip, clip]; symmetric in the paper, any here.
        gamma: γ >= 0, up to 100; larger keeps the output nearer the input.

    Returns:
        A Channel; most bins inside [-clip, clip] are jumps.

    Guarantees:
        Unbiased up to float64 rounding.
        The same integers on every IEEE 754 machine (exponentials are computed in decimal).

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        The OPTM and ERM paper, equation 2. Its Theorem 1 fails for small margins:
        `papers/docs/errata.md`.

    Example:
        >>> import numpy as np, randquant as rq
        >>> channel = erm(clip=1.0, bins=np.linspace(-2, 2, 16), gamma=1.0)
        >>> round(rq.certify(channel).epsilon.upper, 4)
        2.9267
    """
    gamma = validate.real("gamma", gamma, low=0, high=100, why="weights are exp(-gamma/2) and up")
    clip = validate.real("clip", clip, above=0, high=MAX_MAGNITUDE)
    grid = checked_bins(bins, clip)
    cells = range(len(grid) - 1)
    left = [_exponential(gamma, grid[j] - grid[: j + 1]) for j in cells]
    right = [_exponential(gamma, grid[j + 1 :] - grid[j + 1]) for j in cells]
    return two_bins(clip, grid, left, right)


def _exponential(gamma: float, distances: np.ndarray) -> np.ndarray:
    # Probabilities proportional to exp(-gamma·distance / (2·largest distance)).
    reach = distances.max() if distances.max() > 0 else 1.0
    exponents = -gamma * (distances / reach) / 2
    weights = np.array([_exp(float(e)) for e in exponents])
    return weights / np.add.accumulate(weights)[-1]


@lru_cache(maxsize=1 << 14)  # evenly spaced bins repeat their exponents
def _exp(exponent: float) -> float:
    # In decimal: the C library's exponential differs in its last bit from machine to machine.
    return float(Context(prec=30).exp(Decimal(exponent)))


def checked_bins(bins: Sequence[float] | np.ndarray, clip: float) -> np.ndarray:
    """Return (m,) float64 bins, or raise ValueError unless they increase and cover ±clip."""
    grid = validate.array("bins", bins)
    if grid.ndim != 1 or not 2 <= grid.size <= 256 or not np.isfinite(grid).all():
        raise ValueError(f"Expected 2 to 256 finite bins, got {bins!r}.")
    decreasing = np.flatnonzero(np.diff(grid) <= 0)
    if decreasing.size:
        j = int(decreasing[0])
        raise ValueError(
            f"Expected bins in increasing order, got {grid[j + 1]:g} after {grid[j]:g}."
        )
    if grid[0] > -clip or grid[-1] < clip:
        raise ValueError(
            f"Expected bins that cover [-{clip:g}, {clip:g}], got [{grid[0]:g}, {grid[-1]:g}]: "
            "inputs beyond the bins cannot be sent without bias."
        )
    return grid


def _distributions(
    name: str, rows: Sequence[Sequence[float] | np.ndarray], lengths: list[int]
) -> list[np.ndarray]:
    tables = [validate.array(name, row) for row in validate.listed(name, rows)]
    if [table.shape for table in tables] != [(length,) for length in lengths]:
        raise ValueError(
            f"Expected {name} to hold distributions of lengths {lengths}, one for each interval, "
            f"got {[list(table.shape) for table in tables]}."
        )
    for j, table in enumerate(tables):
        if not ((table >= 0).all() and abs(table.sum() - 1) <= 1e-9):
            raise ValueError(f"Expected {name}[{j}] to be >= 0 and to sum to 1, got {table}.")
    return [table / np.add.accumulate(table)[-1] for table in tables]


def _row(
    x: float, cell: int, grid: np.ndarray, left: list[np.ndarray], right: list[np.ndarray]
) -> np.ndarray:
    # The code's distribution at x in the interval `cell` (equation 4).
    below, above = grid[: cell + 1, None], grid[None, cell + 1 :]
    pair = left[cell][:, None] * right[cell][None, :]
    up = pair * ((x - below) / (above - below))
    down = pair * ((above - x) / (above - below))
    return np.concatenate([_ordered_sum(down.T), _ordered_sum(up)])


def _ordered_sum(terms: np.ndarray) -> np.ndarray:
    # Over the first axis, from first to last: NumPy's own sum adds in an order that depends on the
    # machine, and a different bit would be a different channel.
    return np.add.accumulate(terms, axis=0)[-1]


def _updates(setting: UpdateSetting) -> UpdateFamily:
    clip, levels = setting.clip, setting.levels
    return UpdateFamily(
        lambda t: {"clip": clip, "bins": even_values(clip * t, levels), "gamma": 1.0},
        reach=(1.01, 1e12),
        start=lambda deviation: 2 * deviation / clip,
    )


RECORDS = (
    MechanismRecord(
        "erm",
        erm,
        help={"clip": CLIP, "bins": VALUES, "gamma": "how strongly near bins are preferred, >= 0"},
        example={"clip": 1.5, "bins": [-3.0, -1.0, 1.0, 3.0], "gamma": 1.0},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": margins(target), "gamma": [0.0, 1.0, 3.0, 10.0, 100.0]},
                lambda target, at: {
                    "clip": target.clip,
                    "bins": target.even_values(at["margin"]),
                    "gamma": six_digits(at["gamma"]),
                },
            ),
            update=_updates,
            slow=("aggregate",),
        ),
        place=3,
    ),
)
