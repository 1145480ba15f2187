"""How fast the distribution of the code changes with the input: Fisher information.

Derivation: `docs/theory/imvu.md`.
"""

from __future__ import annotations

import math

import numpy as np

from randquant import _validate
from randquant.channel import Channel
from randquant.divergence import UNIT
from randquant.privacy import Interval


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
    _validate.kind("channel", channel, Channel)
    weights, gaps = channel.weights, np.diff(channel.inputs)
    change = np.diff(weights, axis=0)  # exact: within 2**62 either way
    sums = np.maximum(_sums(change, weights[:-1]), _sums(change, weights[1:]))
    with np.errstate(divide="ignore", invalid="ignore"):
        information = np.where(sums == 0, 0.0, sums / (channel.denominator * gaps**2))
    largest = float(information.max())
    if math.isinf(largest):
        return Interval(math.inf, math.inf)
    # Below 13 roundings a cell, and one less than `levels` additions of terms >= 0.
    error = (channel.levels + 16) * UNIT
    return Interval(largest * (1 - error), largest * (1 + error))


def _sums(change: np.ndarray, row: np.ndarray) -> np.ndarray:
    """(V-1,) sums of change^2/row over the codes that change."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(change == 0, 0.0, change.astype(np.float64) ** 2 / row).sum(axis=-1)
