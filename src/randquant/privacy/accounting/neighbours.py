"""How far apart what two neighbouring clients send can be: derived here and nowhere else.

Neighbours differ in all data of a client, or in one of its examples. Whoever accounts for a
mechanism asks `cohorts.release_of`, which refuses every combination that has no derivation.
"""

from __future__ import annotations

import math

from randquant._internal import validate
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring

ROUNDING = 2.0**-20
"""What rounding to float32 adds to the distance of two means of gradients, over clip_norm.

Each mean is rounded where it is computed and where it is clipped again, by 2**-24 of its norm each
time: 2**-21 is needed (theory/vector.md, Proposition 16), and less than as much again for the
second clip of a subset (theory/subsets.md, Proposition 5)."""


def update_distance(
    clip_norm: float,
    neighboring: Neighboring,
    *,
    examples: int | None = None,
    norm_sent: float | None = None,
) -> float:
    """Bound the L2 distance between what two neighbouring clients send, before any noise.

    Args:
        clip_norm: C, threshold of the norm of an update, or of each example's gradient.
        neighboring: updates or gradients that are replaced, or become zeros.
        examples: fewest examples whose clipped gradients an update is the mean of, if neighbours
            differ in one of them; None if they differ in the whole update.
        norm_sent: threshold of the part of a rotated update that is sent; None if all is sent.

    Example:
        >>> update_distance(1.0, "replace_one"), update_distance(1.0, "zero_out", norm_sent=0.5)
        (2.0, 0.5)
        >>> round(update_distance(1.0, "replace_one", examples=50, norm_sent=0.125), 4)
        0.04
    """
    # Two vectors within a ball are a diameter apart; one of them and zero half of it.
    radii = 2 if neighboring == "replace_one" else 1
    reach = clip_norm if norm_sent is None else norm_sent
    if examples is not None:
        # theory/subsets.md, Proposition 5: the whole of a gradient may lie in the part that is
        # sent, so that an example's share is one of clip_norm, not of norm_sent.
        reach = min(reach, clip_norm * (1 / examples + ROUNDING))
    return radii * reach


def squared_distance_on_grid(steps: float, size: int, most: int) -> int:
    """Bound the squared L2 distance of two vectors once they are rounded at random to integers.

    Args:
        steps: their distance before that, in steps of the grid.
        size: coordinates, of which rounding moves each by less than a step.
        most: a bound of the squared distance of any two rounded updates.

    Example:
        >>> squared_distance_on_grid(3.0, 4, 1000), squared_distance_on_grid(3.0, 4, 10)
        (50, 10)
    """
    # theory/additive.md, Proposition 9; some roundings of floats.
    return min(math.ceil((steps + 2 * math.sqrt(size)) ** 2 * (1 + 64 * UNIT)), most)


def check_examples(examples: int) -> int:
    """Refuse a number of examples that is not within 1 and 10^9."""
    return validate.whole("examples", examples, low=1, high=10**9)
