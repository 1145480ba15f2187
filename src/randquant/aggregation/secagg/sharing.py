"""Shamir's shares that can be checked: each comes with its public side, a point of the group.

A dealer draws a polynomial p of degree threshold - 1 with p(0) its secret; the share at place x is
p(x), and its commitment p(x) times the base point. Any `threshold` shares give the secret, fewer
say nothing that the commitments do not. Who holds a share checks it against its commitment
(Feldman 1987); everyone checks that the commitments are those of one polynomial (Cascudo and David
2017, "SCRAPE", section 4): against a random word of the dual code, which commitments of a higher
degree pass with probability 1/ORDER.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

from randquant.aggregation.secagg import group
from randquant.aggregation.secagg.group import ORDER
from randquant.aggregation.secagg.terms import ProtocolError

NEAR = 16
"""Places that may be missing from a set whose weights are known, for a set's to come from it."""


def split(secret: int, threshold: int, places: Sequence[int]) -> list[int]:
    """The shares at these places, each 1 or more: `threshold` of them give the secret back."""
    coefficients = [secret, *(group.random_scalar() for _ in range(threshold - 1))]
    return [_value(coefficients, place) for place in places]


def combine(shares: Mapping[int, int], known: tuple[int, ...] = ()) -> int:
    """The secret, from shares by place: all of one polynomial, and `threshold` or more.

    Args:
        known: places, 0 among them, that are these or a few more: what was computed for them once
            serves again.
    """
    weights = _weights(known, (0, *sorted(shares)))
    weighted = sum(weights[place] * share for place, share in shares.items())
    return -weighted * pow(weights[0], -1, ORDER) % ORDER


def check(
    commitments: Mapping[int, bytes], word: Sequence[int], known: tuple[int, ...] = ()
) -> None:
    """ProtocolError unless commitments, by place, are those of one polynomial of low degree.

    Args:
        commitments: at all places, and at place 0 the public side of the secret.
        word: coefficients of a polynomial that the dealer could not foresee, as many as there are
            commitments beyond the threshold.
        known: as of `combine`.
    """
    weights = _weights(known, tuple(sorted(commitments)))
    parts = [
        group.times(weights[place] * _value(word, place) % ORDER, point)
        for place, point in commitments.items()
    ]
    if group.total(parts) != group.IDENTITY:
        raise ProtocolError("Expected shares of one secret, got others.")


def random_word(commitments: int, threshold: int) -> list[int]:
    """Coefficients for `check`: commitments are counted with that at place 0."""
    return [group.random_scalar() for _ in range(commitments - threshold)]


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % ORDER
    return value


def _weights(known: tuple[int, ...], places: tuple[int, ...]) -> Mapping[int, int]:
    """Weights w with sum of w(x) p(x) = 0 for every polynomial p of degree len(places) - 2.

    They are 1 / product of (x - y) over the other places y: without a place y, each grows by the
    factor x - y. So the weights of a set that lacks a few places take time proportional to its
    size, not to its square.
    """
    gone = set(known).difference(places)
    if len(gone) > NEAR or not set(places) <= set(known):
        return _all_weights(places)
    weights = _all_weights(known)
    return {x: weights[x] * math.prod(x - y for y in gone) % ORDER for x in places}


@functools.lru_cache(maxsize=64)
def _all_weights(places: tuple[int, ...]) -> Mapping[int, int]:
    return {x: pow(_product(x, places), -1, ORDER) for x in places}


def _product(x: int, places: Collection[int]) -> int:
    product = 1
    for y in places:
        if y != x:
            product = product * (x - y) % ORDER
    return product
