"""Random rounding to evenly spaced levels: RQM, stochastic rounding, QMGeo, sparse ternary codes.

RQM is the randomised quantization mechanism. Given the input, its nearest kept levels below and
above it are independent, so that RQM is a two-bin mechanism with geometric selection distributions
(Lemma 5.3). QMGeo is quantisation with mixed truncated geometric distributions; `mixing` repairs
it. Sparse ternary codes are mostly silent, so that sums over many clients take few bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.registry import (
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
from randquant.mechanisms.two_bin_family import two_bins

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
    # Not linspace, which adds steps to one end: this is odd in the index, so that levels are
    # symmetric to the last bit, and the middle one of an odd number is 0.
    values = reach * (2 * np.arange(levels) - (levels - 1)) / (levels - 1)
    values[[0, -1]] = -reach, reach  # rounding must not put the outermost levels inside clip
    # Lowest level first: of the levels below an input the nearest is the last.
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
    # A running product and no power: its last digits are the same with every C library.
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


def qmgeo(clip: float, levels: int, p: float, mixing: float = 0.0) -> Channel:
    """Mixed truncated geometric mechanism: pick a side of the input, then a level on that side.

    For an input between levels r and r + 1, the lower side is picked with a probability that falls
    linearly from 1 at level r to 0 at level r + 1; on either side the distance of the code is a
    truncated geometric variable.

    Args:
        clip: W_max, per-coordinate clipping threshold, > 0; the levels span [-clip, clip].
        levels: R, number of levels, 2 to 256.
        p: success probability of the geometric variables, in (0, 1).
        mixing: mu in [0, 1/2]; keeps the probability of either side within [mu, 1 - mu].
            0 is the published mechanism.

    Returns:
        A Channel; every inner level is a jump.

    Guarantees:
        As published (mixing = 0) the certificate is infinite: next to a level all codes on one
        side have probability zero. With mixing > 0 it is finite.
        The mechanism is biased, also as published (`moments(channel).bias_max` is the bound).
        The same integers on every IEEE 754 machine.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        The QMGeo paper, equations 9 to 11; its equation 21 holds at two cell mid-points only:
        `papers/docs/errata.md`.

    Example:
        >>> import randquant as rq
        >>> print(rq.certify(qmgeo(clip=1.0, levels=4, p=0.5)))
        order inf: epsilon is infinite: x=-1 can send code 0, x'=-0.333333 never does
        >>> round(rq.certify(qmgeo(clip=1.0, levels=4, p=0.5, mixing=0.1)).epsilon.upper, 4)
        4.1431
    """
    clip = validate.real(
        "clip", clip, above=0, high=MAX_MAGNITUDE, why="clip is the largest magnitude sent"
    )
    levels = validate.whole(
        "levels", levels, low=2, high=256, why="a code is one byte, and one level sends nothing"
    )
    p = validate.real("p", p, above=0, below=1, why="p is a probability")
    mixing = validate.real("mixing", mixing, low=0, high=0.5, why="mixing is half a side at most")
    values = clip * (2 * np.arange(levels) - (levels - 1)) / (levels - 1)
    values[[0, -1]] = -clip, clip
    cells = range(levels - 1)
    # Each cell contributes its two ends, so every inner level occurs twice: a jump.
    inputs = np.array([values[cell + end] for cell in cells for end in (0, 1)])
    rows = [_qmgeo_row(cell, end, levels, p, mixing) for cell in cells for end in (0, 1)]
    return from_probabilities(inputs, values, np.array(rows))


def _qmgeo_row(cell: int, position: int, levels: int, p: float, mixing: float) -> np.ndarray:
    # The code's distribution at the lower (0) or upper (1) end of a cell.
    # Linear between a cell's ends, as a channel mixes its rows, so that two rows a cell are exact.
    up = mixing + (1 - 2 * mixing) * position
    below, above = _geometric(cell + 1, p)[::-1], _geometric(levels - 1 - cell, p)
    return np.concatenate([(1 - up) * below, up * above])


def _geometric(count: int, p: float) -> np.ndarray:
    # Truncated geometric distribution over distances 1, …, count (equations 10 and 11).
    masses = p * np.concatenate([[1.0], np.cumprod(np.full(count - 1, 1.0 - p))])
    # Added one after the other: the order of NumPy's sum depends on the processor.
    return masses / np.add.accumulate(masses)[-1]


def _qmgeo_updates(setting: UpdateSetting) -> UpdateFamily:
    return UpdateFamily(
        lambda t: {
            "clip": setting.clip,
            "levels": setting.levels,
            "p": 0.1,
            # From 0 to 1/2 as t grows: at 1/2 a code does not say where in its cell an input lies.
            "mixing": six_digits(0.5 * t / (1 + t)),
        },
        reach=(1e-9, 1e6),
        # Codes never decode to more than the clip, so Gaussian noise's deviation tells nothing of
        # where mixing should start: in the middle, at 1/4.
        start=lambda deviation: 1.0,
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


def _ternary_updates(setting: UpdateSetting) -> UpdateFamily:
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
    MechanismRecord(
        "qmgeo",
        qmgeo,
        help={
            "clip": CLIP,
            "levels": LEVELS,
            "p": "success probability of the geometric distances, between 0 and 1",
            "mixing": "keeps the probability of either side within mixing and 1 - mixing",
        },
        example={"clip": 1.5, "levels": 4, "p": 0.3, "mixing": 0.2},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {
                    "p": [1e-3, *PROBABILITY_GRID[4:-1], 0.999],
                    "mixing": np.geomspace(1e-9, 0.5, 19),
                },
                lambda target, at: target.sized(p=at["p"], mixing=at["mixing"]),
            ),
            update=_qmgeo_updates,
            slow=("aggregate",),
        ),
        place=5,
    ),
    MechanismRecord(
        "sparse-ternary",
        sparse_ternary,
        help={
            "clip": CLIP,
            "margin": MARGIN,
            "rate": "probability that a code is not silent, clip/(clip + margin) to 1",
        },
        example={"clip": 1.5, "margin": 6.0, "rate": 0.5},
        tuning=Tuning(update=_ternary_updates),
        trusts=("aggregate",),
        place=11,
    ),
)
