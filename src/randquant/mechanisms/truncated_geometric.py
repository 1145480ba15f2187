"""QMGeo, quantisation with mixed truncated geometric distributions, and a repaired version."""

from __future__ import annotations

import numpy as np

from randquant._internal import validate
from randquant.channels.channel import MAX_MAGNITUDE, Channel, from_probabilities
from randquant.mechanisms.record import (
    CLIP,
    LEVELS,
    PROBABILITY_GRID,
    CoordinateFamily,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    six_digits,
)


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
    rows = [_row(cell, end, levels, p, mixing) for cell in cells for end in (0, 1)]
    return from_probabilities(inputs, values, np.array(rows))


def _row(cell: int, position: int, levels: int, p: float, mixing: float) -> np.ndarray:
    # The code's distribution at the lower (0) or upper (1) end of a cell.
    up = mixing + (1 - 2 * mixing) * position
    below, above = _geometric(cell + 1, p)[::-1], _geometric(levels - 1 - cell, p)
    return np.concatenate([(1 - up) * below, up * above])


def _geometric(count: int, p: float) -> np.ndarray:
    # Truncated geometric distribution over distances 1, …, count (equations 10 and 11).
    masses = p * np.concatenate([[1.0], np.cumprod(np.full(count - 1, 1.0 - p))])
    return masses / np.add.accumulate(masses)[-1]


def _updates(setting: UpdateSetting) -> UpdateFamily:
    return UpdateFamily(
        lambda t: {
            "clip": setting.clip,
            "levels": setting.levels,
            "p": 0.1,
            "mixing": six_digits(0.5 * t / (1 + t)),
        },
        reach=(1e-9, 1e6),
        start=lambda deviation: 1.0,
    )


RECORDS = (
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
            update=_updates,
            slow=("aggregate",),
        ),
        place=5,
    ),
)
