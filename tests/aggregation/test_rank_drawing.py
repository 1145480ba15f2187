"""A coordinate's place by magnitude is that of a stable sort, found without one."""

import numpy as np
import pytest

from randquant.aggregation.rank.drawing import SORTED, place_of

RNG = np.random.default_rng(4)
SIZE = SORTED + 100


def vectors():
    yield RNG.normal(size=SIZE)
    yield RNG.integers(-3, 4, SIZE).astype(np.float64)  # many ties, and zeros
    yield np.full(SIZE, -2.5)
    yield RNG.normal(size=SIZE).astype(np.float32)
    yield np.ldexp(1.0, RNG.integers(-1074, 1023, SIZE)) * RNG.choice([-1.0, 1.0], SIZE)


@pytest.mark.parametrize(
    "vector", list(vectors()), ids=["normal", "ties", "equal", "short", "wide"]
)
def test_places_are_those_of_a_stable_sort(vector):
    expected = np.argsort(-np.abs(vector), kind="stable")
    for size in (7, SORTED, SIZE):
        part = vector[:size]
        order = expected[expected < size]
        for place in {0, 1, 5, size // 3, size // 2, size - 2, size - 1}:
            assert place_of(part, place) == order[place]
