"""Expected error of a decoded mean, per coordinate.

An expectation and not a guarantee. Derivation: `docs/theory/plan.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate

GRID = np.linspace(-8, 8, 4001)
"""Points, in standard deviations, at which a normal coordinate is evaluated."""


@dataclass(frozen=True, slots=True)
class CoordinateError:
    """Error of one client's decoded coordinate x: decoded / gain = x + bias + noise.

    Attributes:
        variance: of the decoded coordinate, averaged over x.
        bias: mean square of the bias that is not proportional to x.
        gain: E[x · decoded] / E[x^2], the factor by which a decoded update is scaled.
        of_sum: standard deviation of noise that is added once, to the sum of a cohort.
        omitted: squared error per squared length of the mean, because only a subset of the
            coordinates is sent.
        longest: largest length of the mean.
    """

    variance: float
    bias: float = 0.0
    gain: float = 1.0
    of_sum: float = 0.0
    omitted: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(
        cls, x: np.ndarray, weights: np.ndarray, variance: np.ndarray, bias: np.ndarray
    ) -> CoordinateError:
        """From points x, their weights, and the variance and bias at each of them."""
        square, along = float(weights @ x**2), float(weights @ (bias * x))
        rest = float(weights @ bias**2) - along**2 / square
        return cls(float(weights @ variance), max(rest, 0.0), 1 + along / square)

    def deviation(self, cohort: int, mean_norm: float | None = None) -> float:
        """Root mean squared error of a coordinate of the decoded mean of a cohort.

        Args:
            cohort: how many clients send an update.
            mean_norm: length of the mean of their clipped updates, which matters if only a subset
                of coordinates is sent; by default `longest`, as if all updates were the same.

        Returns:
            sqrt(E|decoded mean / gain - mean of clipped updates|^2 / dimension). The gain is 1 if
            the mechanism is unbiased; otherwise the mean is rescaled first, as a step size would:
            without it, a mechanism that sends nothing would have a small error.
            Variances average out over clients; the remaining bias is counted as if all clients had
            the same update, the worst case.

        Example:
            >>> CoordinateError(variance=16.0).deviation(cohort=16)
            1.0
        """
        cohort = validate.whole("cohort", cohort, low=1)
        if self.gain <= 0:
            return math.inf
        added = (self.of_sum / cohort) ** 2
        noise = (self.variance / cohort + added + self.bias) / self.gain**2
        length = self.longest
        if mean_norm is not None:
            length = validate.real("mean_norm", mean_norm, low=0)
        return math.sqrt(noise + self.omitted * length**2)

    def mean_norm(self, means: Sequence[np.ndarray], cohort: int) -> float:
        """Estimate the length of a mean of clipped updates from means that were decoded.

        It costs no privacy: these means have been released.

        Args:
            means: (d,) floats each, decoded means of rounds of the same mechanism.
            cohort: how many clients' updates are in each.

        Returns:
            Root mean square of the length over these rounds, of which the expected errors are
            subtracted; 0 if nothing is seen above the noise.

        Example:
            >>> CoordinateError(variance=16.0).mean_norm([np.array([3.0, 4.0, 3.0])], cohort=16)
            5.5677...
        """
        squares = []
        for mean in validate.listed("means", means):
            decoded = np.asarray(mean, dtype=np.float64)
            # theory/subsets.md, Proposition 4: E|decoded/g|^2 = |m|^2 + d·(noise + omitted·|m|^2).
            seen = float(decoded @ decoded) / self.gain**2
            noise = decoded.size * self.deviation(cohort, 0.0) ** 2
            squares.append((seen - noise) / (1 + decoded.size * self.omitted))
        if not squares:
            raise ValueError("Expected a decoded mean of at least one round, got none.")
        return math.sqrt(max(math.fsum(squares) / len(squares), 0.0))


def normal_coordinate(norm: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of a normal coordinate of a vector of this norm.

    No coordinate exceeds the norm; a vector's only coordinate equals it up to its sign.

    Args:
        norm: L2 norm of the vector.
        size: its coordinates.

    Returns:
        (points, weights), (k,) float64 each; the weights sum to 1.

    Example:
        >>> normal_coordinate(2.0, 1)
        (array([-2.,  2.]), array([0.5, 0.5]))
    """
    size = validate.whole("size", size, low=1)
    if size == 1:
        return np.array([-norm, norm]), np.array([0.5, 0.5])
    return np.clip(GRID * (norm / math.sqrt(size)), -norm, norm), _weights()


@functools.cache
def _weights() -> np.ndarray:
    density = np.exp(-(GRID**2) / 2)
    return density / density.sum()
