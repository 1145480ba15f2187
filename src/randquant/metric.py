"""How a channel's rows move with x: metric privacy and Fisher information.

Derivations: `docs/theory/design.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from randquant import _validate
from randquant.channel import Channel
from randquant.divergence import UNIT, renyi
from randquant.privacy import Interval, Neighboring, round_up

GEOMETRIES = ("l1", "l2", "fisher")


@dataclass(frozen=True, slots=True)
class MetricCertificate:
    """How fast a channel's rows can change with the input.

    Attributes:
        geometry: `l1`, `l2` or `fisher`: what `epsilon` multiplies.
        epsilon: `l1`: log-likelihoods change by at most epsilon·|x - x'|/clip between any inputs.
            `l2`: by at most epsilon·(x - x')^2/clip^2 between any *vertices*; between other inputs
            nothing is said. `fisher`: the Fisher information about x/clip is at most epsilon.
        witness: inputs (x, x') between which it is attained; the same twice for `fisher`.
        covers: `all inputs` or `vertices`.
    """

    geometry: str
    epsilon: Interval
    witness: tuple[float, float]
    covers: str
    neighboring: Neighboring = "replace_one"

    def __str__(self) -> str:
        if math.isinf(self.epsilon.upper):
            return f"{self.geometry}: epsilon is infinite, at x={self.witness[0]:g}"
        what = {"l1": "|x - x'|/clip", "l2": "(x - x')^2/clip^2", "fisher": "Fisher information"}
        return (
            f"{self.geometry}: epsilon <= {round_up(self.epsilon.upper, 9)} "
            f"({what[self.geometry]}, {self.covers}), at x={self.witness[0]:g}"
        )


def certify_metric(channel: Channel, geometry: str) -> MetricCertificate:
    """Certify how fast a channel's rows change with x, in units of x/clip.

    Args:
        channel: the channel.
        geometry: `l1`, `l2` or `fisher`: see MetricCertificate.

    Returns:
        A MetricCertificate; epsilon is infinite at a jump and where a code becomes impossible.

    Guarantees:
        The bound holds for the distribution at every x as the channel mixes it. (The encoder
        rounds an input's position in its cell to 2**-32 first: distances are those of the rounded
        inputs.)

    Raises:
        ValueError: geometry is unknown.

    References:
        Chaudhuri, Guo and Rabbat 2022 (MVU), metric privacy; Guo et al. 2023 (I-MVU), Definition 1.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=2.0)
        >>> [round(certify_metric(channel, g).epsilon.upper, 6) for g in ("l1", "fisher")]
        [0.5, 0.125]
    """
    _validate.kind("channel", channel, Channel)
    _validate.choice("geometry", geometry, GEOMETRIES)
    if geometry == "l2":
        return _between_vertices(channel)
    width = np.diff(channel.inputs) / channel.clip
    low, high = channel.weights[:-1], channel.weights[1:]
    change = (high - low).astype(np.float64)  # the difference of the integers is exact
    moved = (change != 0).any(axis=1)
    loss = np.zeros((2, len(width)))
    for end, row in enumerate((low, high)):
        with np.errstate(divide="ignore", invalid="ignore"):
            if geometry == "l1":
                part = np.abs(change) / row / width[:, None]
            else:
                part = change / channel.denominator * (change / row) / width[:, None] ** 2
        part = np.where(change == 0, 0.0, part)
        loss[end] = part.max(axis=1) if geometry == "l1" else part.sum(axis=1)
    loss[:, moved & (width == 0)] = math.inf
    loss[np.isnan(loss)] = 0.0
    end, cell = np.unravel_index(int(loss.argmax()), loss.shape)
    worst, error = float(loss.max()), (channel.levels + 12) * UNIT
    x = float(channel.inputs[cell + end])
    other = float(channel.inputs[cell + 1 - end]) if geometry == "l1" else x
    return MetricCertificate(
        geometry, Interval(worst * (1 - error), worst * (1 + error)), (x, other), "all inputs"
    )


def _between_vertices(channel: Channel) -> MetricCertificate:
    best = (-1.0, 0.0, 0, 0)
    for vertex, row in enumerate(channel.weights):
        distance = np.abs(channel.inputs - channel.inputs[vertex]) / channel.clip
        lower, upper = renyi(row, channel.weights, channel.denominator, math.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = lower / distance**2, upper / distance**2
        low, high = (np.where(upper == 0, 0.0, side) for side in (low, high))
        other = int(high.argmax())
        best = max(best, (float(high[other]), float(low[other]), vertex, other))
    upper, lower, vertex, other = best
    witness = (float(channel.inputs[vertex]), float(channel.inputs[other]))
    epsilon = Interval(lower * (1 - 8 * UNIT), upper * (1 + 8 * UNIT))
    return MetricCertificate("l2", epsilon, witness, "vertices")
