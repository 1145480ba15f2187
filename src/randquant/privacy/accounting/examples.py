"""One example of a client's as the unit of privacy: how little it moves a mean of many."""

from __future__ import annotations

from randquant._internal import validate
from randquant.privacy.accounting.release import Release

ROUNDING = 2.0**-20
"""Over clip_norm: what rounding to float32 may add to the distance of two means of examples. Each
is rounded when it is taken and when it is clipped again, by 2**-24 of its length."""


def of_one_example(release: Release | None, examples: int) -> Release | None:
    """The same release where neighbours differ in one example instead of a whole update.

    Args:
        release: of updates that are means of examples' gradients, each clipped to its clip_norm.
        examples: of how many, at least.

    Guarantees:
        Means of n vectors that differ in one of them, each at most C long, are at most 2C/n apart
        (C/n where it is replaced by zeros). 2**-20 · C is added for what float32 rounds.

    Raises:
        ValueError: release is of another kind, or examples is not within 1 and 10^9.

    Example:
        >>> import randquant as rq
        >>> release = rq.GaussianRelease(noise_multiplier=1.0, dimension=5, rounds=1)
        >>> of_one_example(release, 10)
        GaussianRelease(noise_multiplier=9.9999..., dimension=5, rounds=1, ...)
    """
    check_examples(examples)
    return None if release is None else release.of_one_example(examples)


def share(examples: int | None) -> float:
    """One example's distance as a share of that of a whole update."""
    # theory/vector.md, Proposition 16: 2**-21 is needed, so the rounding of this sum is paid for.
    return 1.0 if examples is None else 1 / examples + ROUNDING


def check_examples(examples: int) -> None:
    """Refuse a number of examples that is not within 1 and 10^9."""
    validate.whole("examples", examples, low=1, high=10**9)
