"""Example-level privacy: the influence of one of a client's examples on a mean over many."""

from __future__ import annotations

from randquant._internal import validate
from randquant.privacy.accounting.release import Release

ROUNDING = 2.0**-20
"""Increase of the distance of two means by rounding to float32, over clip_norm. Each mean is
rounded when it is computed and when it is clipped again, by a relative 2**-24."""


def of_one_example(release: Release | None, examples: int) -> Release | None:
    """The same release for neighbours that differ in one example instead of a whole update.

    Args:
        release: of updates that are means of examples' gradients, each clipped to clip_norm.
        examples: fewest examples in such a mean.

    Guarantees:
        Means of n vectors of norm at most C that differ in one vector are at most 2C/n apart
        (C/n if it is replaced by zeros). 2**-20 · C is added for rounding to float32.

    Raises:
        ValueError: the release does not clip in L2, or examples is not within 1 and 10^9.

    Example:
        >>> import randquant as rq
        >>> release = rq.GaussianRelease(noise_multiplier=1.0, dimension=5, rounds=1)
        >>> of_one_example(release, 10)
        GaussianRelease(noise_multiplier=9.9999..., dimension=5, rounds=1, ...)
    """
    examples = check_examples(examples)
    return None if release is None else release.of_one_example(examples)


def share(examples: int | None) -> float:
    """Distance of neighbours at example level, relative to that at client level."""
    # theory/vector.md, Proposition 16: 2**-21 is needed; the rest covers rounding of this sum.
    return 1.0 if examples is None else 1 / examples + ROUNDING


def check_examples(examples: int) -> int:
    """A number of examples; ValueError unless it is within 1 and 10^9."""
    return validate.whole("examples", examples, low=1, high=10**9)
