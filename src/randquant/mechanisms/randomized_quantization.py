"""RQM, the randomised quantization mechanism, and plain stochastic rounding.

Given the input, the nearest kept levels below and above it are independent, so that RQM is a
two-bin mechanism with geometric selection distributions (Lemma 5.3).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel
from randquant.mechanisms.bins import two_bins
from randquant.mechanisms.record import (
    CLIP,
    CLIP_RMS_UNITS,
    CLOSE_CLIP_RMS_UNITS,
    LEVELS,
    MARGIN,
    MAX_CLOSE_CLIP_COHORT,
    PROBABILITY_GRID,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    margins,
    six_digits,
)

KEEP_PROBABILITY = 0.42
"""Probability that a level is kept, for whole updates; the paper's value. The margin, which is
searched, sets the noise."""


def rqm(clip: float, margin: float, levels: int, keep: float) -> Channel:
    """Randomised quantization mechanism: round to a random subset of the levels.

    The levels are evenly spaced over [-(clip + margin), clip + margin]. The outer two are always
    kept, each inner one with probability `keep`; the input is rounded at random, without bias, to
    one of its two nearest kept neighbours.

    Args:
        clip: c, per-coordinate clipping threshold, > 0.
        margin: Δ, how far the outermost level lies beyond clip, >= 0.
        levels: m, how many levels, 2 to 256.
        keep: q, probability that an inner level is kept, in [0, 1].

    Returns:
        A Channel whose vertices are ±clip and the levels between them. It is exactly the mechanism,
        whose rows are linear between neighbouring levels. (A level inside ±clip by less than
        1e-9·clip counts as ±clip: see `two_bins`.)

    Guarantees:
        Unbiased up to float64 rounding.
        The same integers on every IEEE 754 machine: only +, -, *, / in a fixed order.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        "Randomized Quantization is All You Need for Differential Privacy in Federated Learning",
        Algorithm 2 and Lemma 5.3.

    Example:
        >>> import randquant as rq
        >>> channel = rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> rq.moments(channel).bias_max < 1e-9
        True
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    margin = validate.real(
        "margin", margin, low=0, high=MAX_MAGNITUDE, why="levels must cover [-clip, clip]"
    )
    levels = validate.whole(
        "levels", levels, low=2, high=256, why="a code is one byte, and one level sends nothing"
    )
    keep = validate.real("keep", keep, low=0, high=1, why="keep is a probability")
    reach = clip + margin
    validate.real("clip + margin", reach, above=0)
    values = reach * (2 * np.arange(levels) - (levels - 1)) / (levels - 1)
    values[[0, -1]] = -reach, reach  # rounding must not put the outermost levels inside clip
    below = [_nearest_kept(j + 1, keep)[::-1] for j in range(levels - 1)]
    above = [_nearest_kept(levels - 1 - j, keep) for j in range(levels - 1)]
    return two_bins(clip, values, below, above)


def stochastic_rounding(clip: float, levels: int, margin: float = 0.0) -> Channel:
    """Round at random, without bias, to one of the two nearest of evenly spaced levels.

    This is RQM with every level kept. It protects nothing (its certificate is infinite) unless all
    inputs lie between two neighbouring levels: with two levels and a margin, or with an even
    number of levels and a margin large enough that only the middle two are ever sent.

    Args:
        clip: per-coordinate clipping threshold, > 0.
        levels: how many levels, 2 to 256, evenly spaced over [-(clip + margin), clip + margin].
        margin: how far the outermost level lies beyond clip, >= 0.

    Returns:
        A Channel.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Alistarh et al. 2017 (QSGD).

    Example:
        >>> import randquant as rq
        >>> print(rq.certify(stochastic_rounding(clip=1.0, levels=3)))
        order inf: epsilon is infinite: x=-1 can send code 0, x'=0 never does
    """
    return rqm(clip, margin, levels, keep=1.0)


def _nearest_kept(count: int, keep: float) -> np.ndarray:
    # Probabilities that the nearest kept of `count` levels is the first, second, …, last. The last
    # one is always kept.
    none_nearer = np.concatenate([[1.0], np.cumprod(np.full(count - 1, 1.0 - keep))])
    nearest = none_nearer * keep
    nearest[-1] = none_nearer[-1]
    return nearest


def _rqm_updates(setting: UpdateSetting) -> UpdateFamily:
    clip = setting.clip
    return UpdateFamily(
        lambda t: {
            "clip": clip,
            "margin": six_digits(clip * (t - 1)),
            "levels": setting.levels,
            "keep": KEEP_PROBABILITY,
        },
        reach=(1.01, 1e12),
        start=lambda deviation: 4 * deviation / clip,
    )


def _rounding_updates(setting: UpdateSetting) -> UpdateFamily:
    # Two levels: with more there is no privacy unless only the middle two are sent.
    def parameters(t: float) -> dict[str, Any]:
        clip = setting.clip_at(_clip_units(t, setting.cohort))
        return {"clip": clip, "levels": 2, "margin": six_digits(setting.clip * t - clip)}

    return UpdateFamily(
        parameters,
        reach=(1.05, 1e12),
        start=lambda deviation: deviation / setting.clip,
    )


def _clip_units(t: float, cohort: int) -> float:
    """Return the clipping threshold for two levels at ±t·CLIP_RMS_UNITS, in the same units.

    Levels that are near have little variance, so that clipping closer pays (`docs/theory/plan.md`).
    From t = 5 to 7 the threshold changes gradually: with a step, a larger t might be less private,
    and the search for t would fail.
    """
    if cohort > MAX_CLOSE_CLIP_COHORT:
        return CLIP_RMS_UNITS
    wider = CLIP_RMS_UNITS - CLOSE_CLIP_RMS_UNITS
    return CLOSE_CLIP_RMS_UNITS + wider * min(max((t - 5) / 2, 0.0), 1.0)


RECORDS = (
    MechanismRecord(
        "rqm",
        rqm,
        help={
            "clip": CLIP,
            "margin": MARGIN,
            "levels": LEVELS,
            "keep": "probability that an inner level is kept, 0 to 1",
        },
        example={"clip": 1.5, "margin": 1.5, "levels": 8, "keep": 0.42},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": margins(target), "keep": PROBABILITY_GRID},
                lambda target, at: target.sized(margin=target.clip * at["margin"], keep=at["keep"]),
            ),
            update=_rqm_updates,
            slow=("aggregate",),
        ),
        place=1,
    ),
    MechanismRecord(
        "stochastic-rounding",
        stochastic_rounding,
        help={"clip": CLIP, "levels": LEVELS, "margin": MARGIN},
        example={"clip": 1.5, "levels": 2, "margin": 1.0},
        # Epsilon is finite only if all inputs lie between the two middle levels: search these.
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"middle": margins(target)},
                lambda target, at: target.sized(
                    margin=target.clip * ((target.levels - 1) * (1 + at["middle"]) - 1)
                ),
            ),
            update=_rounding_updates,
        ),
        place=10,
    ),
)
