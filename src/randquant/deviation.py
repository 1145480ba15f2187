"""How far a decoded mean is from the mean of the updates, coordinate by coordinate, on average.

An expectation and not a guarantee. Derivation: `docs/theory/plan.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erf

from randquant import _validate
from randquant.aggregate import (
    AdditiveMechanism,
    CentralGaussian,
    LocalGaussian,
    SignSGD,
    UpdateMechanism,
    VectorMechanism,
)
from randquant.moments import moments

GRID = np.linspace(-8, 8, 4001)
"""Points, in standard deviations, at which a normal coordinate is looked at."""


def deviation(mechanism: UpdateMechanism, dimension: int, cohort: int) -> float:
    """Root mean squared error of a coordinate of the decoded mean of a cohort.

    Args:
        mechanism: for whole updates clipped in L2.
        dimension: coordinates of an update.
        cohort: how many clients send one.

    Returns:
        sqrt(E|decoded mean / gain - mean of clipped updates|^2 / dimension), with updates as long
        as clip_norm whose rotated coordinates are normal (as those of a vector that was not chosen
        with the rotation in mind nearly are). The gain is 1 where the mechanism is unbiased; else
        the mean is scaled to the updates' length first, as a step size does: or else a mechanism
        that sends nothing would have a small error. Variances add up over clients; what is left of
        biases is counted as if all clients' updates were the same, which is the worst they can do.

    Raises:
        TypeError: the mechanism is of another kind.

    Example:
        >>> round(deviation(LocalGaussian(clip_norm=1.0, noise_multiplier=2.0), 100, 16), 9)
        1.0
    """
    _validate.whole("dimension", dimension, low=1)
    _validate.whole("cohort", cohort, low=1)
    if isinstance(mechanism, VectorMechanism) and mechanism.norm == "l2":
        found = _channel(mechanism, dimension)
    elif isinstance(mechanism, AdditiveMechanism):
        found = _Error(_additive(mechanism, dimension))
    elif isinstance(mechanism, SignSGD):
        found = _signs(mechanism, dimension)
    elif isinstance(mechanism, LocalGaussian):
        found = _Error(mechanism.deviation**2)
    elif isinstance(mechanism, CentralGaussian) and mechanism.clip_norm is not None:
        return mechanism.noise_multiplier * 2 * mechanism.clip_norm / cohort
    else:
        raise TypeError(f"Expected a mechanism for whole updates clipped in l2, got {mechanism!r}.")
    if found.gain <= 0:
        return math.inf
    return math.sqrt(found.variance / cohort + found.bias) / found.gain


def gain(mechanism: UpdateMechanism, dimension: int) -> float:
    """How long an update is decoded, over how long it is: what `deviation` divides by."""
    if isinstance(mechanism, VectorMechanism):
        return _channel(mechanism, dimension).gain
    return _signs(mechanism, dimension).gain if isinstance(mechanism, SignSGD) else 1.0


@dataclass(frozen=True, slots=True)
class _Error:
    """One client's coordinate: mean decoded / gain = x + what varies + what does not.

    Attributes:
        variance: of what is decoded.
        bias: mean square of what is neither noise nor proportional to x.
        gain: E[x · decoded] / E[x^2].
    """

    variance: float
    bias: float = 0.0
    gain: float = 1.0

    @classmethod
    def of(
        cls, x: np.ndarray, weights: np.ndarray, variance: np.ndarray, bias: np.ndarray
    ) -> _Error:
        """From variance and bias at each x."""
        square, along = float(weights @ x**2), float(weights @ (bias * x))
        rest = float(weights @ bias**2) - along**2 / square
        return cls(float(weights @ variance), max(rest, 0.0), 1 + along / square)


def coordinate_clipping(threshold: float) -> float:
    """Mean squared error of clipping a standard normal variable to [-threshold, threshold].

    Example:
        >>> [f"{coordinate_clipping(t):.1e}" for t in (2, 3, 4)]
        ['1.2e-02', '4.1e-04', '6.2e-06']
    """
    beyond = 0.5 * math.erfc(threshold / math.sqrt(2))
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    return 2 * ((1 + threshold**2) * beyond - threshold * density)


def _channel(mechanism: VectorMechanism, dimension: int) -> _Error:
    rotation, channel = mechanism.rotation(dimension), mechanism.channel
    assert rotation is not None
    x, weights = _coordinate(mechanism.clip_norm, rotation.size)
    inside = np.clip(x, -channel.clip, channel.clip)
    measured = moments(channel)
    bias = measured.bias_at(inside) + inside - x
    return _Error.of(x, weights, measured.variance_at(inside), bias)


def _additive(mechanism: AdditiveMechanism, dimension: int) -> float:
    """Of noise and of rounding to the grid."""
    plan = mechanism.plan(dimension)
    steps, weights = _coordinate(mechanism.clip_norm * plan.scale, plan.rotation.size)
    part = steps - np.floor(steps)
    return (plan.noise.variance + float(weights @ (part * (1 - part)))) / plan.scale**2


def _signs(mechanism: SignSGD, dimension: int) -> _Error:
    x, weights = _coordinate(mechanism.clip_norm, dimension)
    noise = mechanism.noise_multiplier * 2 * mechanism.clip_norm
    mean = mechanism.value * erf(x / (noise * math.sqrt(2)))
    return _Error.of(x, weights, mechanism.value**2 - mean**2, mean - x)


def _coordinate(norm: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of a coordinate of a vector of this norm, taken for normal.

    No coordinate is longer than the vector; a single one is as long.
    """
    if size == 1:
        return np.array([-norm, norm]), np.array([0.5, 0.5])
    return np.clip(GRID * (norm / math.sqrt(size)), -norm, norm), _weights()


@functools.cache
def _weights() -> np.ndarray:
    density = np.exp(-(GRID**2) / 2)
    return density / density.sum()
