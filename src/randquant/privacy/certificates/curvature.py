"""Rows, slopes and curvature of a channel between any two inputs, with proven rounding.

The search of `vector` runs over these. Derivations and rounding: `docs/theory/vector.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT, renyi


@dataclass(frozen=True, slots=True)
class CellLines:
    """A channel's cells of positive width, as lines; codes that are never sent are left out."""

    inputs: np.ndarray  # (V,) rising
    weights: np.ndarray  # (V, m) int64, all positive
    denominator: int

    @classmethod
    def of(cls, channel: Channel) -> CellLines:
        """The lines of a channel without jumps."""
        keep = np.append(True, np.diff(channel.inputs) > 0)
        weights = channel.weights[keep][:, channel.weights.any(axis=0)]
        return cls(channel.inputs[keep], weights, channel.denominator)

    @property
    def widths(self) -> np.ndarray:
        """(V-1,) widths of the cells, within 1 unit."""
        return np.diff(self.inputs)

    def rows(self, cell: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Probabilities at positions (exact, in [0, 1]) in cells: within 3 units."""
        # theory/vector.md, Proposition 10: positions are dyadic, so 1 - part is exact.
        left, right = self.weights[cell] / self.denominator, self.weights[cell + 1]
        part = position[..., None]
        return left * (1 - part) + right / self.denominator * part

    def chords(self, cells: np.ndarray, x: np.ndarray, y: np.ndarray):
        """(gap, slope): |x' - x| and at least |P_x' - P_x|/|x' - x|, code by code.

        Args:
            cells: (..., 2) the cells of x and x'.
            x, y: (...) positions in them.

        Returns:
            gap: (...), within 6 units. slope: (..., m), above the truth by at most 16 units of
            the sum of its absolute parts; in one cell the cell's slope; 0 between cells if gap is.
        """
        first, second = cells[..., 0], cells[..., 1]
        ahead = first <= second
        low, high = np.minimum(first, second), np.maximum(first, second)
        until, since = 1 - np.where(ahead, x, y), np.where(ahead, y, x)
        gap = until * self.widths[low] + (self.inputs[high] - self.inputs[low + 1])
        gap += since * self.widths[high]
        step = np.diff(self.weights, axis=0) / self.denominator
        between = (self.weights[high] - self.weights[low + 1]) / self.denominator
        parts = [until[..., None] * step[low], between, since[..., None] * step[high]]
        change = np.abs(parts[0] + parts[1] + parts[2])
        # theory/vector.md, Proposition 10: the sum of three products needs 4 of these 8 units.
        change += 8 * UNIT * (np.abs(parts[0]) + np.abs(parts[1]) + np.abs(parts[2]))
        same = first == second
        change = np.where(same[..., None], np.abs(step[first]), change)
        divisor = np.where(same, self.widths[first], gap)[..., None]
        slope = np.divide(change, divisor, out=np.zeros_like(change), where=divisor > 0)
        gap = np.where(same, np.abs(x - y) * self.widths[first], gap)
        # The gap may be 4 units too large, the quotient and this product 1 too small each.
        return gap, slope * (1 + 8 * UNIT)

    def divergences(self, order: float) -> tuple[np.ndarray, np.ndarray]:
        """(V, V) lower and upper bounds of the divergence between the rows of any two vertices."""
        pairs = [renyi(row, self.weights, self.denominator, order) for row in self.weights]
        lower, upper = (np.array(side) for side in zip(*pairs, strict=True))
        return lower, upper

    def exact(self, x: float) -> tuple[np.ndarray, int]:
        """The row at x in exact integers, and their sum; no rounded dither."""
        cell = min(int(np.searchsorted(self.inputs, x, side="right")), len(self.inputs) - 1) - 1
        left, right = (Fraction(float(end)) for end in self.inputs[cell : cell + 2])
        part = (Fraction(x) - left) / (right - left)
        n, d = part.numerator, part.denominator
        start, end = self.weights[cell : cell + 2].astype(object)
        return (d - n) * start + n * end, d * self.denominator


def log_curvature(slope: np.ndarray, p: np.ndarray, q: np.ndarray, order: float) -> np.ndarray:
    """(n, 4, 4): log of sum_i slope_i^2 C(p_i, q_i), slopes of one corner, rows of another.

    C(p, q) = (p^a q^(1-a) - q - a(p - q))/((a - 1)(p - q)^2); rounded up.

    Guarantees:
        Probabilities may be as small as 1e-280: their squares are not formed.
    """
    # theory/vector.md, Proposition 12.
    exponent, factor = _curvature(p / q, order)
    shift = exponent.max(axis=-1)
    # The floor of -700 only adds: no term is lost to underflow.
    factor *= np.exp(np.maximum(exponent - shift[..., None], -700.0))
    # The size of a code's probabilities, a power of two, is taken out: nothing is rounded by that.
    size = np.ldexp(1.0, np.frexp(q.max(axis=-2, keepdims=True))[1])
    factor *= size / q * size
    total = np.matmul((slope / size) ** 2, factor.swapaxes(1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(total) + shift[:, None, :]
        # theory/vector.md, Proposition 12: 1300 holds 1,150 of G, 1.05 the second order of all.
        error = 1300 + 9 * order + slope.shape[-1] + 12 * shift[:, None, :] + 10 * np.abs(logs)
        return np.where(total > 0, logs + 1.05 * UNIT * error, -np.inf)


def _curvature(ratio: np.ndarray, order: float) -> tuple[np.ndarray, np.ndarray]:
    """(exponent, factor): G(r) = factor·e^exponent, where

    G(r) = (r^a - 1 - a(r - 1))/((a - 1)(r - 1)^2), a the order; no overflow, no cancellation.
    """
    change = ratio - 1
    close = np.abs(change) * (order + 1) <= 1 / 8
    z = change[close]
    # theory/vector.md, Proposition 11: each factor is at most 1/16, so 14 terms leave 2**-56.
    series = np.ones_like(z)
    for k in reversed(range(14)):
        series = 1 + (order - (2 + k)) / (k + 3) * z * series
    factor, exponent = np.empty_like(ratio), np.zeros_like(ratio)
    factor[close] = order / 2 * series
    z, r = change[~close], ratio[~close]
    power = (order - 1) * np.log(r)
    grown = np.maximum(power, 0.0)
    # Both parts are scaled by e^-grown: the larger of r^(order - 1) and 1 never overflows.
    first = -np.sign(z) * r * np.expm1(-np.abs(power)) / (order - 1)
    factor[~close] = (first - z * np.exp(-grown)) / z**2
    exponent[~close] = grown
    return exponent, factor
