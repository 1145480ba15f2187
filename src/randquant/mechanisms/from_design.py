"""Designed channels as mechanisms: MVU, the optimum under any constraint, or one from a file."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel
from randquant.mechanisms.registry import (
    CLIP,
    EPSILON,
    INPUTS,
    LEVELS,
    REACH,
    VALUES,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    even_values,
    few_margins,
    six_digits,
)
from randquant.privacy.certificates.coordinate import load_channel

TWO_LEVELS_MIN_NOISE_UNITS = 16.0
"""Noise of a coordinate, in units of its clipping threshold, above which two levels are within
0.2 % of the least noise of any unbiased channel. At half of it they have 0.8 % more; at twice it,
linear programmes would be solved for a gain of 0.05 %."""


def optimal(
    clip: float,
    epsilon: float,
    values: Sequence[float] | np.ndarray | None = None,
    levels: int | None = None,
    reach: float | None = None,
    objective: str = "mse",
    inputs: int | None = None,
    constraint: str = "pure",
) -> Channel:
    """Return the channel of `design.optimal`, as a mechanism like the others.

    Here the constraint is given as a name and a number instead of a value such as
    `design.Fisher(0.1)`, since a mechanism's parameters are written to files and messages as JSON.

    Args:
        clip: per-coordinate clipping threshold.
        epsilon: bound of the constraint per coordinate: pure epsilon, in nats, or that of the
            other constraints.
        values: what the codes decode to; or give `levels`.
        levels: number of evenly spaced levels to search for, so that sums of codes decode.
        reach: largest magnitude of a searched level, in units as clip; `mae` needs one.
        objective: `mae`, `mse` or `worst_variance`.
        inputs: vertices between which inputs are dithered; 33, or 129 if levels are searched.
        constraint: `pure`, or `fisher`, `l1` or `l2`, as in `design.named_constraint`. Use `fisher`
            for updates whose L2 norm is clipped.

    Returns:
        A Channel.

    Raises:
        ValueError, TypeError: as `design.optimal`.

    Example:
        >>> optimal(clip=1.0, epsilon=2.0, values=[-2, -1, 0, 1, 2]).levels
        5
    """
    return designed(
        clip,
        None if values is None else tuple(values),
        epsilon,
        constraint,
        objective=objective,
        inputs=inputs,
        levels=levels,
        reach=reach,
        lattice=levels is not None,
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
        # The published objective: the variance at the vertices, not over all inputs.
        density=tuple(clip * np.linspace(-1, 1, inputs)),
        levels=levels,
    )


@functools.lru_cache(maxsize=64)
def designed(
    clip: float,
    values: tuple[float, ...] | None,
    epsilon: float,
    constraint: str = "pure",
    **options: Any,
) -> Channel:
    """Return the channel of `design.optimal`, remembered: a run builds its mechanism many times.

    Args:
        clip, values: as `design.optimal`.
        epsilon, constraint: the constraint by number and name, as `design.named_constraint`.
        options: further arguments of `design.optimal`, all hashable.
    """
    from randquant.mechanisms import design

    bound = design.named_constraint(constraint, epsilon)
    return design.optimal(clip, values, constraint=bound, **options).channel


def channel_file(path: str) -> Channel:
    """Return the channel of a file that `save_channel` wrote; loading certifies it again.

    Args:
        path: the file.

    Raises:
        ValueError: the file holds no channel, or its certificate does not match the channel.
        OSError: the file cannot be read.
    """
    return load_channel(path)[0]


def _updates(setting: UpdateSetting) -> UpdateFamily:
    return _least_information(setting) if setting.trust == "local" else _least_ratio(setting)


def _least_information(setting: UpdateSetting) -> UpdateFamily:
    """Return channels with a Fisher information of at most 1/t^2 about x/clip.

    L2 clipping makes use of it. No unbiased channel then has less noise than t·clip (Cramér and
    Rao), and four levels nearly attain that. With much noise two levels do, which need no linear
    programme.
    """
    clip = setting.clip

    def parameters(t: float) -> dict[str, Any]:
        two = setting.levels == 2 or t >= TWO_LEVELS_MIN_NOISE_UNITS
        # The least magnitude of two levels with this information; 1e-5 more is for rounding.
        # Four levels up to 1 + 1.5 t are within 0.5 % of the bound at t = 2 (theory/plan.md, "Why
        # Fisher information").
        reach = math.sqrt(1 + t**2) * (1 + 1e-5) if two else 1 + 1.5 * t
        return {
            "clip": clip,
            "epsilon": six_digits(t**-2),
            "constraint": "fisher",
            "values": even_values(clip * reach, 2 if two else 4),
            "inputs": 9,
        }

    # With four levels and less noise than this the programmes take seconds, and soon a probability
    # is too small for 62 bits.
    least = 0.1 if setting.levels == 2 else 0.46
    return UpdateFamily(parameters, (least, 1e6), lambda deviation: deviation / clip)


def _least_ratio(setting: UpdateSetting) -> UpdateFamily:
    """Return channels of pure epsilon on evenly spaced values.

    The outermost values are further out than unbiasedness requires. Under aggregate trust the bound
    of a sum depends on the mass that all rows have in common, which is large if the ratios of their
    probabilities are small.
    """
    clip, levels = setting.clip, setting.levels
    # 1 + 2/(e^epsilon - 1) clips is the least reach of an unbiased channel of this epsilon. Two
    # levels need no more than that and room for rounding.
    further = 1.5 if levels > 2 else 1 + 1e-5

    def parameters(t: float) -> dict[str, Any]:
        # Six digits, as printed: what is accounted is what a reader can build again.
        epsilon = six_digits(2 / t)
        values = even_values(clip * (1 + 2 / math.expm1(epsilon)) * further, levels)
        return {"clip": clip, "epsilon": epsilon, "values": values, "inputs": 17}

    return UpdateFamily(parameters, (0.1, 1e6), lambda deviation: 1.5 * deviation / clip)


def _two_levels(setting: UpdateSetting) -> UpdateFamily:
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
        tuning=Tuning(update=_two_levels, slow=("aggregate",)),
        place=6,
    ),
    MechanismRecord(
        "optimal",
        optimal,
        help={
            "clip": CLIP,
            "epsilon": "bound of the constraint per coordinate; pure epsilon by default",
            "values": VALUES,
            "levels": LEVELS,
            "reach": REACH,
            "objective": "mae, mse or worst_variance",
            "inputs": INPUTS,
            "constraint": "what epsilon bounds: pure, l1, l2 (in units of clip) or fisher",
        },
        example={"clip": 1.5, "epsilon": 1.5, "values": [-3.0, -1.0, 1.0, 3.0]},
        # Evenly spaced levels, so that summed codes decode.
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": few_margins(target)},
                lambda target, at: {
                    "clip": target.clip,
                    "values": target.even_values(at["margin"]),
                    "epsilon": target.epsilon,
                    "objective": target.objective,
                    "inputs": 33 if target.levels <= 16 else 17,
                },
            ),
            update=_updates,
            slow=("aggregate",),
        ),
        place=8,
    ),
    MechanismRecord(
        "channel-file",
        channel_file,
        help={"path": "channel file, as design --save writes it"},
        tuning=Tuning(possible=False),
        place=9,
    ),
)
