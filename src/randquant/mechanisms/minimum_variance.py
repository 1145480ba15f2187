"""MVU, the minimum-variance unbiased mechanism."""

from __future__ import annotations

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel
from randquant.mechanisms.from_design import designed
from randquant.mechanisms.record import (
    CLIP,
    EPSILON,
    INPUTS,
    LEVELS,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    six_digits,
)


def mvu(
    clip: float, levels: int, epsilon: float, inputs: int = 9, geometry: str = "pure"
) -> Channel:
    """Minimum-variance unbiased mechanism: levels and rows are optimised together.

    Args:
        clip: per-coordinate clipping threshold, > 0.
        levels: B_out, number of levels, 2 to 32; they are symmetric about 0.
        epsilon: target, > 0: pure epsilon in nats with `pure`; with `l1` log-likelihoods change by
            at most epsilon·|x - x'|/clip, with `l2` by at most epsilon·(x - x')^2/clip^2.
        inputs: B_in, evenly spaced vertices in [-clip, clip], between which inputs are dithered.
        geometry: `pure`, `l1` or `l2`.

    Returns:
        A Channel with the least variance summed over the vertices. (The published programme is not
        convex, and neither is this one: the levels are the best of several local optima. With two
        inputs all levels but two coincide, up to 1e-6·clip: see `docs/theory/imvu.md`.)

    Guarantees:
        Unbiased up to rounding, by a constraint rather than a penalty.
        `pure` and `l1` hold between any two inputs; `l2` between vertices only, as published:
        between them rows are linear in x, and no bound in (x - x')^2 can hold.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Chaudhuri, Guo and Rabbat 2022, sections 3 and 4.

    Example:
        >>> import randquant as rq
        >>> channel = mvu(clip=1.0, levels=2, epsilon=1.0)
        >>> [round(float(value), 3) for value in channel.values]
        [-2.164, 2.164]
    """
    validate.choice("geometry", geometry, ("pure", "l1", "l2"))
    inputs = validate.whole("inputs", inputs, low=2, high=1000)
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    levels = validate.whole("levels", levels, low=2)
    epsilon = validate.real("epsilon", epsilon, above=0)
    return designed(
        clip,
        None,
        epsilon,
        geometry,
        objective="mse",
        inputs=inputs,
        density=tuple(clip * np.linspace(-1, 1, inputs)),
        levels=levels,
    )


def _updates(setting: UpdateSetting) -> UpdateFamily:
    # Two levels: with much noise all further levels coincide with them.
    return UpdateFamily(
        lambda t: {"clip": setting.clip, "levels": 2, "epsilon": six_digits(2 / t)},
        reach=(0.1, 1e6),
        start=lambda deviation: deviation / setting.clip,
    )


RECORDS = (
    MechanismRecord(
        "mvu",
        mvu,
        help={
            "clip": CLIP,
            "levels": LEVELS,
            "epsilon": EPSILON,
            "inputs": INPUTS,
            "geometry": "pure, l1 or l2",
        },
        example={"clip": 1.5, "levels": 2, "epsilon": 1.5, "inputs": 2},
        tuning=Tuning(update=_updates, slow=("aggregate",)),
        place=6,
    ),
)
