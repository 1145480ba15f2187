"""Bias, variance, mean absolute and mean squared error of a decoded code, in closed form.

Within a cell the row is linear in x, so the mean is linear and the other moments are piecewise
quadratic; Simpson's rule on each piece is then the exact integral (`docs/theory/channel.md`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import DITHER_STEPS, Channel


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments of one coordinate's decoded value.

    Attributes:
        bias_max: upper bound of |E[decoded] - x| over [-clip, clip], including the encoder's
            rounded dither (at most 2**-33 of a cell's range of means) and float64 rounding.
        variance: mean over x uniform on [-clip, clip] of Var[decoded | x].
        variance_max: the largest Var[decoded | x] over [-clip, clip], up to float64 rounding.
        mae: mean of E|decoded - x|, x uniform.
        mse: mean of E(decoded - x)^2, x uniform.

    The methods `bias_at` (E[decoded | x] - x), `variance_at`, `mae_at` and `mse_at` are these
    moments as functions of x: they take float64 of any shape within [-clip, clip] and return an
    array of that shape.
    """

    channel: Channel
    bias_max: float
    variance: float
    variance_max: float
    mae: float
    mse: float

    def bias_at(self, x: np.ndarray | float) -> np.ndarray:
        return _bias(self.channel, *_located(self.channel, x))

    def variance_at(self, x: np.ndarray | float) -> np.ndarray:
        return _variance(self.channel, *_located(self.channel, x))

    def mae_at(self, x: np.ndarray | float) -> np.ndarray:
        return _mae(self.channel, *_located(self.channel, x))

    def mse_at(self, x: np.ndarray | float) -> np.ndarray:
        return _mse(self.channel, *_located(self.channel, x))


def moments(channel: Channel) -> Moments:
    """Compute a channel's moments.

    Args:
        channel: the channel.

    Returns:
        Moments: numbers for x uniform on [-clip, clip], and functions of x.

    Guarantees:
        The averages are exact integrals up to float64 rounding, without sampling.

    Raises:
        TypeError: channel is not a Channel.

    Example:
        >>> import randquant as rq
        >>> m = rq.moments(rq.stochastic_rounding(clip=1.0, levels=2))
        >>> round(m.mse, 12), round(m.mae, 12), m.bias_max < 1e-9
        (0.666666666667, 0.666666666667, True)
    """
    validate.kind("channel", channel, Channel)
    means = channel.probabilities @ channel.values
    bias = np.abs(means - channel.inputs).max()
    dither = np.abs(np.diff(means)).max() / (2 * DITHER_STEPS)
    largest = np.abs(channel.values).max() + channel.clip
    rounding = (channel.levels + 8) * 2.0**-53 * largest
    average = {kind: _average(channel, kind) for kind in (_variance, _mae, _mse)}
    return Moments(
        channel=channel,
        bias_max=float(bias + dither + rounding),
        variance=average[_variance],
        variance_max=_largest_variance(channel),
        mae=average[_mae],
        mse=average[_mse],
    )


def _located(channel: Channel, x: np.ndarray | float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points = validate.array("x", x)
    return points, *channel.locate(points)


def _row(channel: Channel, cell: np.ndarray, position: np.ndarray) -> np.ndarray:
    table, part = channel.probabilities, position[..., None]
    return (1 - part) * table[cell] + part * table[cell + 1]


def _errors(
    channel: Channel, x: np.ndarray, cell: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return _row(channel, cell, position), channel.values - x[..., None]


def _bias(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * error).sum(axis=-1)


def _mae(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * np.abs(error)).sum(axis=-1)


def _mse(channel, x, cell, position) -> np.ndarray:
    row, error = _errors(channel, x, cell, position)
    return (row * error**2).sum(axis=-1)


def _variance(channel, x, cell, position) -> np.ndarray:
    # Moments around x rather than around 0: the squared bias is small, so nothing cancels.
    return _mse(channel, x, cell, position) - _bias(channel, x, cell, position) ** 2


def _largest_variance(channel: Channel) -> float:
    # In each cell the variance is a concave parabola, largest at an end or at its apex.
    means = channel.probabilities @ channel.values
    centred = channel.values - means[:, None]
    ends = (channel.probabilities * centred**2).sum(axis=1)
    cells = np.diff(channel.inputs) > 0  # not the jumps, which contain no inputs
    a, b, curve = ends[:-1][cells], ends[1:][cells], np.diff(means)[cells] ** 2
    # a + t·(b - a) + t·(1 - t)·curve
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.clip(np.where(curve > 0, 0.5 + (b - a) / (2 * curve), 0), 0, 1)
    return float(np.max((1 - part) * a + part * b + part * (1 - part) * curve))


def _average(channel: Channel, moment) -> float:
    # The exact mean of a piecewise quadratic over [-clip, clip], piece by piece (Simpson).
    # theory/channel.md, Proposition 3: quadratic between neighbouring vertices and values.
    inner = channel.values[np.abs(channel.values) < channel.clip]
    points = np.unique(np.concatenate([channel.inputs, inner]))
    left, right = points[:-1], points[1:]
    middle = (left + right) / 2
    cell, _ = channel.locate(middle)
    start, width = channel.inputs[cell], channel.inputs[cell + 1] - channel.inputs[cell]

    def at(x: np.ndarray) -> np.ndarray:
        return moment(channel, x, cell, (x - start) / width)  # one-sided at a jump

    area = (right - left) * (at(left) + 4 * at(middle) + at(right)) / 6
    return float(area.sum() / (2 * channel.clip))
