"""How fast the distribution of the code changes with the input: metric privacy, Fisher information.

Derivations: `docs/theory/design.md` and `docs/theory/imvu.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.channels.channel import Channel
from randquant.privacy.divergence import UNIT, renyi
from randquant.privacy.guarantee import Interval, Neighboring

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


def fisher_information(channel: Channel) -> Interval:
    """Bound the largest Fisher information that a code carries about the input.

    Args:
        channel: the channel.

    Returns:
        An Interval that contains the supremum over x in (-clip, clip) of
        sum_i (dP_x(i)/dx)^2 / P_x(i), per squared unit of x; at a vertex both one-sided
        derivatives count. It is infinite at a jump, and where a code becomes impossible at a
        vertex without its probability levelling off.

    Guarantees:
        Of all inputs, not of a sample: inside a cell the sum is convex in x, so the supremum is
        at the end of a cell. The row is taken as linear inside a cell; that the encoder rounds an
        input's position to 2**-32 of its cell is left out.

    Raises:
        TypeError: channel is not a Channel.

    References:
        Guo et al. 2022 (I-MVU), Definition 1.

    Example:
        >>> import randquant as rq
        >>> round(rq.fisher_information(rq.stochastic_rounding(1.0, levels=2, margin=1.0)).upper, 9)
        0.333333333
    """
    validate.kind("channel", channel, Channel)
    gaps = np.diff(channel.inputs)
    sums = _at_ends(channel, lambda change, row: (change**2 / row).sum(axis=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        # theory/vector.md, Proposition 2: in a cell the sum is convex in x, so its ends are enough.
        information = np.where(sums == 0, 0.0, sums / (channel.denominator * gaps**2))
    return _around(float(information.max()), channel)


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
        Chaudhuri, Guo and Rabbat 2022 (MVU), metric privacy; Guo et al. 2022 (I-MVU), Definition 1.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=2.0)
        >>> [round(certify_metric(channel, g).epsilon.upper, 6) for g in ("l1", "fisher")]
        [0.5, 0.125]
    """
    validate.kind("channel", channel, Channel)
    validate.choice("geometry", geometry, GEOMETRIES)
    if geometry == "l2":
        return _between_vertices(channel)
    width = np.diff(channel.inputs) / channel.clip
    if geometry == "l1":
        # Within a cell the logarithm of a linear function changes fastest at its smaller end.
        loss = _at_ends(channel, lambda change, row: (np.abs(change) / row).max(axis=-1))
    else:
        loss = _at_ends(channel, lambda change, row: (change**2 / row).sum(axis=-1))
        width, loss = width**2, loss / channel.denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.where(loss == 0, 0.0, loss / width)
    end, cell = (int(i) for i in np.unravel_index(int(loss.argmax()), loss.shape))
    x, other = float(channel.inputs[cell + end]), float(channel.inputs[cell + 1 - end])
    witness = (x, other) if geometry == "l1" else (x, x)
    return MetricCertificate(geometry, _around(float(loss.max()), channel), witness, "all inputs")


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
    # A distance is within 2 units, its square within 5, the quotient within 6: 8 cover it.
    epsilon = Interval(lower * (1 - 8 * UNIT), upper * (1 + 8 * UNIT))
    return MetricCertificate("l2", epsilon, witness, "vertices")


def _at_ends(channel: Channel, measure: Callable[[np.ndarray, np.ndarray], np.ndarray]):
    """(2, V-1): a measure of (change, row) at both ends of each cell; row 1 where nothing moves."""
    weights = channel.weights
    change = np.diff(weights, axis=0)  # exact: within 2**62 either way
    still = change == 0
    moves = change.astype(np.float64)
    rows = (np.where(still, 1.0, row) for row in (weights[:-1], weights[1:]))
    with np.errstate(divide="ignore"):  # a code that changes from nothing: infinite
        return np.stack([measure(np.where(still, 0.0, moves), row) for row in rows])


def _around(largest: float, channel: Channel) -> Interval:
    """The interval about a figure of a cell: below 16 roundings and `levels` additions."""
    # A difference, row and width 1 unit each, squares, products and quotients: 10 of 16 units.
    error = (channel.levels + 16) * UNIT
    if math.isinf(largest):
        return Interval(math.inf, math.inf)
    return Interval(largest * (1 - error), largest * (1 + error))
