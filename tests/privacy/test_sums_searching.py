"""Parts of the searches over sums, beside what they must give for every input."""

import itertools
import math

import numpy as np
import pytest

import randquant as rq
from randquant.privacy.certificates.sums import (
    bell,
    blocks,
    bounds,
    hardest,
    kernel,
    pairs_kernel,
)
from randquant.privacy.certificates.sums.mixture import table
from randquant.privacy.certificates.sums.rows import Rows


def last_first(vertices, several):
    """The mirror image of a multiset of vertices, in order."""
    return tuple(sorted(vertices - 1 - each for each in several))


@pytest.mark.parametrize(("vertices", "size"), [(3, 1), (4, 2), (4, 3), (5, 4)])
def test_of_a_multiset_and_its_mirror_image_one_is_evaluated(vertices, size):
    first = hardest._mirrored_first.py_func
    several = list(itertools.combinations_with_replacement(range(vertices), size))
    kept = {each for each in several if not first((-1, *each), size, size, vertices)}
    for each in several:
        assert (each in kept) + (last_first(vertices, each) in kept) == 1 + (
            each == last_first(vertices, each)
        )
    for each in several:  # a beginning is passed over only if all that go on from it are
        for at in range(1, size):
            if first((-1, *each), at, size, vertices):
                goes_on = [other for other in several if other[:at] == each[:at]]
                assert not kept & {*goes_on}


@pytest.mark.parametrize("ahead", [-1, 1])
@pytest.mark.parametrize("seed", range(4))
def test_a_box_is_bounded_everywhere_in_it(ahead, seed):
    """At any place in it, with the distance that inputs have there."""
    draw = np.random.default_rng(seed)
    mixed, corners = draw.uniform(0.5, 40, (2, 2, 2))
    between, first, second, above = 0.3, *draw.uniform(0.05, 0.6, 2), 3.0
    # Roots of the curvature and of the moment, as in theory/vector-sums.md, Proposition 23.
    powers, place = (1 / 2, 1 / 3), (ahead, between, first, second)
    bound = pairs_kernel._inside.py_func(mixed, corners, True, *place, powers, above)
    assert math.isfinite(bound)
    for s, t in itertools.product(np.linspace(0, 1, 33), repeat=2):
        apart = first * (1 - s) + second * t if ahead < 0 else first * s + second * (1 - t)
        near = between + apart
        mix = [
            (1 - s) * ((1 - t) * of[0, 0] + t * of[0, 1]) + s * ((1 - t) * of[1, 0] + t * of[1, 1])
            for of in (mixed, corners)
        ]
        close, far = math.log1p(above * mix[0] ** 2 * near**2), 3 * math.log1p(mix[1])
        assert min(close, far) / (above * near**2) <= bound * (1 + 1e-12)
    # Where nothing but the distance differs, the nearest place has the bound.
    flat, free = np.full((2, 2), 20.0**0.5), np.full((2, 2), 1e9)
    bound = pairs_kernel._inside.py_func(flat, free, True, *place, powers, above)
    nearest = math.log1p(above * 20 * between**2) / (above * between**2)
    assert bound == pytest.approx(nearest, rel=1e-9, abs=0)


def test_a_sum_that_nobody_can_have_stops_no_product():
    values = np.array([[0.5, 0.0, 0.25], [0.25, 0.0, 0.5]])
    table = np.zeros((2, 2))
    found = kernel._whole_moments.py_func(values, np.zeros(3, np.int64), 3, 2, table)
    assert math.isfinite(found)
    assert table[0, 1] == pytest.approx(math.log(1.125), rel=1e-12, abs=0)


def test_less_rare_sums_than_the_bound_of_their_tails_needs_are_not_bounded():
    """At 91 bits of 0.3 none is set with chance e^-31.96, at 92 with e^-32.3."""
    assert bell._beyond(0, 91, 0.1, 0.3, 1) == math.inf
    assert 0 < bell._beyond(0, 92, 0.1, 0.3, 1) < 0.2


def test_blocks_are_listed_where_they_are_few():
    rows = np.random.default_rng(0).uniform(size=(20, 3))
    assert len(blocks.multisets(rows, 2, 240)) == math.comb(21, 2)
    assert len(blocks.multisets(rows, 2, 104)) == 105  # said to be too many
    mirrored = rq.stochastic_rounding(clip=1.0, levels=4, margin=0.5).probabilities
    mirrored = (mirrored + mirrored[::-1, ::-1]) / 2
    few = blocks.multisets(mirrored, 2, 240)
    ends = len(mirrored)
    assert {(*each, *last_first(ends, each)) for each in few} | {
        (*last_first(ends, each), *each) for each in few
    } == {
        (*each, *last_first(ends, each))
        for each in itertools.combinations_with_replacement(range(ends), 2)
    }


SEVERAL = (rq.rqm(1.0, 1.0, 4, 0.4), rq.qmgeo(1.0, 4, 0.4, mixing=0.3), rq.rqm(1.5, 1.5, 7, 0.42))


def every_moment(rows, others, order):
    """Of all multisets of the others' vertices, the largest log moment of any pair."""
    laws = bounds._powers(rows, 1, bounds.KEEP_ALL)
    for several in itertools.combinations_with_replacement(range(rows.vertices), others):
        law = laws[several[0]]
        for vertex in several[1:]:
            law = law * laws[vertex]
        yield float(table(rows, law, order)[0].max())


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("order", [1.1, 2.0, 8.0, 40.5])
@pytest.mark.parametrize("channel", SEVERAL)
def test_a_near_search_misses_no_others(channel, order, neighboring):
    """Of 5 others, whatever attack it is told of: its own bound, or the worst multiset's."""
    rows = Rows.of(channel, neighboring)
    worst = max(every_moment(rows, 5, order))
    single = float(rows.alone(order)[1].max()) * (order - 1)
    for share in (1.0, 0.99, 0.6, 1e-3):
        bound = bounds.by_near_search(rows, 5, order, single, worst * share)
        larger = max(worst, worst * share * (1 + bounds.NEAR))
        assert larger * (1 - 1e-9) <= bound <= larger * (1 + 1e-9)


def test_a_near_search_is_given_up_where_it_takes_long(monkeypatch):
    rows = Rows.of(SEVERAL[0], "replace_one")
    monkeypatch.setattr(bounds, "EVALUATED", 10)
    assert bounds.by_near_search(rows, 8, 2.0, 5.0, 1e-3) == math.inf
    monkeypatch.setattr(bounds, "PROMISING", 20)
    assert bounds.by_near_search(rows, 10**15, 2.0, 5.0, 1e-3) == math.inf


def test_no_others_are_searched_where_the_bound_would_be_that_of_one_client():
    """There it would want room for the laws of all beginnings at once: 24 TB."""
    rows = Rows.of(SEVERAL[0], "replace_one")
    single = float(rows.alone(1e9)[1].max()) * 1e9
    assert bounds.by_near_search(rows, 10**6, 1e9, single, 0.97 * single) == math.inf


@pytest.mark.parametrize(("clients", "order"), [(11, 8.0), (14, 32.0)])
def test_sums_of_more_clients_are_searched_at_high_orders(clients, order):
    found = rq.certify_sum(rq.rqm(1.5, 1.5, 16, 0.42), clients, order)
    assert found.method == "near search"
    assert found.epsilon.upper <= (1 + 1e-6 + bounds.NEAR) * found.epsilon.lower
