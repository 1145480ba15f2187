"""Sparse ternary codes: mostly silent, so that sums over many clients take few bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.record import (
    CLIP,
    MARGIN,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    six_digits,
)

MIN_ACTIVE_CODES = 25
"""Average number of codes of a sum's coordinate that are not silent. At 25 a sum is within 0.5 % of
the noise of one-bit codes, whose certificate is the same (`docs/theory/plan.md`). With half of it
an epsilon of 8.0 becomes more than 8.1; with twice it sums take half a bit more."""

MIN_COHORT = 4 * MIN_ACTIVE_CODES
"""Smallest cohort for which the lattice is coarser than that of one-bit codes."""


def sparse_ternary(clip: float, margin: float, rate: float) -> Channel:
    """Send one of two far levels with a small probability, and else the level in the middle.

    The code is 0, 1 or 2 for -reach, 0 and reach = clip + margin: 0 and 2 with the probabilities
    rate/2 - x/(2 reach) and rate/2 + x/(2 reach). The variance of a decoded code is
    rate · reach^2 - x^2, as that of two levels at reach · sqrt(rate), which are closer.

    Args:
        clip: per-coordinate clipping threshold, > 0.
        margin: how far the outer levels lie beyond clip, >= 0.
        rate: probability that a code is not silent, clip / (clip + margin) to 1.

    Returns:
        A Channel with two vertices.

    Guarantees:
        Unbiased up to float64 rounding.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> channel = sparse_ternary(clip=1.0, margin=9.0, rate=0.25)
        >>> channel.values, channel.probabilities
        (array([-10.,   0.,  10.]), array([[0.175, 0.75 , 0.075],
               [0.075, 0.75 , 0.175]]))
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    margin = validate.real("margin", margin, low=0, high=MAX_MAGNITUDE - clip)
    reach = clip + margin
    rate = validate.real(
        "rate", rate, low=clip / reach, high=1, why="rate/2 - clip/(2 reach) is a probability"
    )
    outer = rate / 2 + np.array([-clip, clip]) / (2 * reach)
    rows = np.stack([outer[::-1], np.full(2, 1 - outer.sum()), outer], axis=1)
    return from_probabilities(np.array([-clip, clip]), np.array([-reach, 0.0, reach]), rows)


def _updates(setting: UpdateSetting) -> UpdateFamily:
    # The noise of two levels at ±t · clip, on a lattice as coarse as MIN_ACTIVE_CODES allows.
    if setting.levels < 3:
        raise ValueError("needs bits=2, since it has three codes")
    if setting.sharing < MIN_COHORT:
        raise ValueError(f"is for sums of {MIN_COHORT} clients or more: two levels are as narrow")

    def parameters(t: float) -> dict[str, Any]:
        # At least 4/t^2: at ±clip the rarer outer code is sent a third as often as the other.
        rate = six_digits(min(max(MIN_ACTIVE_CODES / setting.cohort, 4 / t**2), 1.0))
        margin = setting.clip * (t / math.sqrt(rate) - 1)
        return {"clip": setting.clip, "margin": six_digits(margin), "rate": rate}

    return UpdateFamily(
        parameters,
        reach=(1.05, 1e12),
        start=lambda deviation: deviation / setting.clip,
    )


RECORDS = (
    MechanismRecord(
        "sparse-ternary",
        sparse_ternary,
        help={
            "clip": CLIP,
            "margin": MARGIN,
            "rate": "probability that a code is not silent, clip/(clip + margin) to 1",
        },
        example={"clip": 1.5, "margin": 6.0, "rate": 0.5},
        tuning=Tuning(update=_updates),
        trusts=("aggregate",),
        place=11,
    ),
)
