"""Verifiable Shamir sharing: each share comes with a commitment to it, a point of the group.

A dealer draws a polynomial p of degree threshold - 1 with p(0) its secret; the share at place x is
p(x), and its commitment p(x) times the base point. Any `threshold` shares give the secret; fewer
reveal nothing beyond the commitments. The holder of a share checks it against its commitment
(Feldman 1987); everyone checks that the commitments belong to one polynomial of that degree
(Cascudo and David 2017, "SCRAPE", section 4), with a random word of the dual code: commitments of
a higher degree pass with probability 1/ORDER.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

from randquant.aggregation.secagg import group
from randquant.aggregation.secagg.group import ORDER
from randquant.aggregation.secagg.terms import ProtocolError

NEAR = 16
"""Most places by which a set may fall short of one with known weights to reuse these."""


def split(secret: int, threshold: int, places: Sequence[int]) -> list[int]:
    """The shares at these places, each 1 or more; any `threshold` of them give the secret."""
    coefficients = [secret, *(group.random_scalar() for _ in range(threshold - 1))]
    return [_value(coefficients, place) for place in places]


def combine(shares: Mapping[int, int], known: tuple[int, ...] = ()) -> int:
    """The secret, from at least `threshold` shares of one polynomial, by place.

    Args:
        known: places, 0 included, that contain these and a few more: their weights are reused.
    """
    weights = _weights(known, (0, *sorted(shares)))
    weighted = sum(weights[place] * share for place, share in shares.items())
    return -weighted * pow(weights[0], -1, ORDER) % ORDER


def check(
    commitments: Mapping[int, bytes], word: Sequence[int], known: tuple[int, ...] = ()
) -> None:
    """Raise ProtocolError unless the commitments belong to one polynomial of low degree.

    Args:
        commitments: at all places; at place 0 that to the secret.
        word: coefficients of a polynomial that the dealer could not foresee, as many as there are
            commitments beyond the threshold.
        known: as in `combine`.
    """
    weights = _weights(known, tuple(sorted(commitments)))
    parts = [
        group.times(weights[place] * _value(word, place) % ORDER, point)
        for place, point in commitments.items()
    ]
    if group.total(parts) != group.IDENTITY:
        raise ProtocolError("Expected shares of one secret, got others.")


def random_word(commitments: int, threshold: int) -> list[int]:
    """Coefficients for `check`; commitments include that at place 0."""
    return [group.random_scalar() for _ in range(commitments - threshold)]


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % ORDER
    return value


def _weights(known: tuple[int, ...], places: tuple[int, ...]) -> Mapping[int, int]:
    """Weights w with sum of w(x) p(x) = 0 for every polynomial p of degree len(places) - 2.

    They are 1 / product of (x - y) over the other places y; removing a place y multiplies each by
    x - y. So the weights of a set that lacks a few places take time proportional to its size, not
    to its square.
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
