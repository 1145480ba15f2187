"""The dominating pair of a channel against the hull of all its tests' points, in fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from randquant.channels.channel import Channel
from randquant.privacy.accounting.composition.envelope import _not_above, _pruned, dominating_pair


def points(rows):
    """(Q(S), P(S)) of every set of codes S and every ordered pair of rows."""
    codes = range(len(rows[0]))
    sets = [s for size in range(len(rows[0]) + 1) for s in itertools.combinations(codes, size)]
    return {
        (sum(int(q[code]) for code in s), sum(int(p[code]) for code in s))
        for p, q in itertools.product(rows, repeat=2)
        for s in sets
    }


def height(corners, x):
    """Of the broken line through corners, at x; the highest where it rises straight up."""
    known = [y for at, y in corners if at == x]
    if known:
        return Fraction(max(known))
    (a, low), (b, high) = next(
        pair for pair in itertools.pairwise(corners) if pair[0][0] < x < pair[1][0]
    )
    return low + Fraction(high - low) * (x - a) / (b - a)


@pytest.mark.parametrize("seed", range(12))
def test_the_pair_is_the_hull_of_all_points_and_its_corners_are_among_them(seed):
    random = np.random.default_rng(seed)
    vertices, levels, total = random.integers(2, 5), random.integers(2, 5), 2**8
    cuts = np.sort(random.integers(0, total + 1, (vertices, levels - 1)), axis=1)
    rows = np.diff(cuts, axis=1, prepend=0, append=total)
    channel = Channel(np.linspace(-1, 1, vertices), np.arange(float(levels)), rows, total)
    p, q = dominating_pair(channel)
    assert p.sum() == q.sum() == total
    corners = [(0, 0), *zip(np.cumsum(q).tolist(), np.cumsum(p).tolist(), strict=True)]
    slopes = [(int(a), int(b)) for a, b in zip(p, q, strict=True)]
    assert all(a * d > c * b for (a, b), (c, d) in itertools.pairwise(slopes))  # it falls, strictly
    every = points(rows)
    assert set(corners) <= every
    assert all(y <= height(corners, x) for x, y in every)


@pytest.mark.parametrize("middle", [(3, 5), (3, 4), (3, 3)])
def test_a_point_is_above_a_chord_or_not(middle):
    """From (1, 2) to (5, 6) the chord is at 4 over 3."""
    assert _not_above((1, 2), middle, (5, 6)) == (middle[1] <= 4)
    far = 2**61
    assert _not_above((1, far), (3, far + middle[1] - 2), (5, far + 4)) == (middle[1] <= 4)


def test_what_is_pruned_is_no_corner():
    """A concave curve with many points below it: its corners stay."""
    x = np.arange(0, 2001, 10, dtype=np.int64)
    curve = 4000 * x - x * x
    inner = np.arange(5, 2000, 10, dtype=np.int64)
    false, true = _pruned(np.append(x, inner), np.append(curve, 3000 * inner - inner * inner))
    assert set(zip(x.tolist(), curve.tolist(), strict=True)) <= set(
        zip(false.tolist(), true.tolist(), strict=True)
    )
