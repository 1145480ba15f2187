"""How far a decoded mean is from the mean of the updates, coordinate by coordinate, on average.

An expectation and not a guarantee. Derivation: `docs/theory/plan.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate

GRID = np.linspace(-8, 8, 4001)
"""Points, in standard deviations, at which a normal coordinate is looked at."""


@dataclass(frozen=True, slots=True)
class CoordinateError:
    """One client's coordinate x: mean decoded / gain = x + what varies + what does not.

    Attributes:
        variance: of what is decoded.
        bias: mean square of what is neither noise nor proportional to x.
        gain: E[x · decoded] / E[x^2]: how long an update is decoded, over how long it is.
        of_sum: standard deviation of noise that is added once, to the sum of a cohort.
    """

    variance: float
    bias: float = 0.0
    gain: float = 1.0
    of_sum: float = 0.0

    @classmethod
    def of(
        cls, x: np.ndarray, weights: np.ndarray, variance: np.ndarray, bias: np.ndarray
    ) -> CoordinateError:
        """From variance and bias at each x."""
        square, along = float(weights @ x**2), float(weights @ (bias * x))
        rest = float(weights @ bias**2) - along**2 / square
        return cls(float(weights @ variance), max(rest, 0.0), 1 + along / square)

    def deviation(self, cohort: int) -> float:
        """Root mean squared error of a coordinate of the decoded mean of a cohort.

        Args:
            cohort: how many clients send an update.

        Returns:
            sqrt(E|decoded mean / gain - mean of clipped updates|^2 / dimension). The gain is 1
            where the mechanism is unbiased; else the mean is scaled to the updates' length first,
            as a step size does: or else a mechanism that sends nothing would have a small error.
            Variances add up over clients; what is left of biases is counted as if all clients'
            updates were the same, which is the worst they can do.

        Example:
            >>> CoordinateError(variance=16.0).deviation(cohort=16)
            1.0
        """
        validate.whole("cohort", cohort, low=1)
        if self.gain <= 0:
            return math.inf
        added = (self.of_sum / cohort) ** 2
        return math.sqrt(self.variance / cohort + added + self.bias) / self.gain


def coordinate_clipping(threshold: float) -> float:
    """Mean squared error of clipping a standard normal variable to [-threshold, threshold].

    Example:
        >>> [f"{coordinate_clipping(t):.1e}" for t in (2, 3, 4)]
        ['1.2e-02', '4.1e-04', '6.2e-06']
    """
    beyond = 0.5 * math.erfc(threshold / math.sqrt(2))
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    return 2 * ((1 + threshold**2) * beyond - threshold * density)


def normal_coordinate(norm: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of a coordinate of a vector of this norm, taken for normal.

    No coordinate is longer than the vector; a single one is as long.

    Args:
        norm: L2 norm of the vector.
        size: its coordinates.

    Returns:
        (points, weights), (k,) float64 each; the weights sum to 1.

    Example:
        >>> normal_coordinate(2.0, 1)
        (array([-2.,  2.]), array([0.5, 0.5]))
    """
    validate.whole("size", size, low=1)
    if size == 1:
        return np.array([-norm, norm]), np.array([0.5, 0.5])
    return np.clip(GRID * (norm / math.sqrt(size)), -norm, norm), _weights()


@functools.cache
def _weights() -> np.ndarray:
    density = np.exp(-(GRID**2) / 2)
    return density / density.sum()
