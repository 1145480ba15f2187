"""The one proof for every channel: blocks of clients, against fractions and against attacks."""

import functools
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from slow import slow
from whole import worst

import randquant as rq
from randquant.privacy import (
    NO_TRIM_FLOOR_BITS,
    SHARE_DENOMINATOR,
    Law,
    Rows,
    block_covers,
    symmetric_rows,
)
from randquant.privacy.certificates import sum_certificate, sum_curvature, sum_parts
from randquant.privacy.certificates.sum_parts import _arrangement_laws

CHANNELS = {
    "rqm": rq.rqm(1.0, 1.0, 4, 0.42), "wide": rq.rqm(1.0, 3.0, 8, 0.42),
    "levels": rq.rqm(1.0, 1.0, 8, 0.42), "imvu": rq.imvu(1.0, 8, 2.0),
    "skewed": rq.Channel(np.array([-1.0, 0.0, 1.0]), np.arange(3.0),
                         np.array([[5, 2, 1], [3, 3, 2], [1, 3, 4]]), 8),
}  # fmt: skip
named = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
EACH = [*itertools.product((9, 200), CHANNELS)]
QUICK = [(9, "rqm"), (9, "skewed"), (200, "wide")]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("count", "name"),
    [*QUICK, *slow(*(each for each in EACH if each not in QUICK))],
)
def test_kinds_and_bells_lie_below_the_law_of_every_block(count, name):
    """By a linear programme of its own: shares of all at once fit under it."""
    from scipy.optimize import linprog

    channel = CHANNELS[name]
    rows = symmetric_rows(channel)
    for cover in [each for each in block_covers(channel, count) if each.size <= 3]:
        layers = [list(cover.kinds), *([bell] for bell in cover.bells)]
        for block in itertools.combinations_with_replacement(range(len(rows)), cover.size):
            law = functools.reduce(np.convolve, rows[list(block)])
            columns, of = [], []
            for layer, shapes in enumerate(layers):
                for shape in map(np.trim_zeros, shapes):
                    for at in range(len(law) - len(shape) + 1):
                        columns.append(np.pad(shape, (at, len(law) - len(shape) - at)) / law)
                        of.append(layer)
            sums = np.eye(len(layers))[:, of]
            shares = np.array(cover.shares) / SHARE_DENOMINATOR
            found = linprog(
                np.zeros(len(of)), A_ub=np.array(columns).T, b_ub=np.ones(len(law)) + 1e-7,
                A_eq=sums, b_eq=shares,
            )  # fmt: skip
            assert found.status == 0


@pytest.mark.slow(after=1)
@named
@pytest.mark.parametrize("order", [2.5, 8.0])
def test_blocks_bound_what_fractions_say_of_few_clients(channel, order, monkeypatch):
    """Where nothing is tried exhaustively, no pair and no others exceed the bound."""
    if len(channel.inputs) > 5:
        pytest.skip("too many arrangements for fractions")
    monkeypatch.setattr(sum_parts, "at_vertices_counted", lambda *_: 0)
    monkeypatch.setattr(sum_parts, "at_two_ends", lambda *_: None)
    clients = 4
    places = sorted({Fraction(float(u)) for u in channel.inputs} | {Fraction(1, 7), Fraction(8, 9)})
    exact = worst(channel, clients, order, places)
    attained = sum_curvature.by_distance(channel, clients - 1, order)[0]
    assert exact <= sum_curvature._upper(channel, clients - 1, order, attained)


@pytest.mark.slow(after=1)
@named
@pytest.mark.parametrize("order", [6.0])
def test_blocks_bound_what_all_others_say_of_one_coordinate(channel, order):
    rows = Rows.from_channel(channel, "replace_one")
    single = float(rows.single_divergences(order)[1].max()) * (order - 1)
    exact = rq.certify_sum(channel, 5, order).epsilon.lower * (order - 1)
    floor, mirrored = 90 + single / math.log(2), sum_parts.mirrored_by(channel)
    for found in sum_parts.in_blocks(channel, 4, floor, mirrored, single + 60, order):
        assert (
            exact
            <= sum_certificate._bounded_log_moment(rows, found, order, single)
            <= single * (1 + 1e-9)
        )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "clients", "order"), [
    ("wide", 12, 16.0), ("imvu", 100, 2.0), ("skewed", 100, 16.0),
    *slow(("rqm", 60, 2.0), ("levels", 12, 16.0), ("levels", 40, 2.0)),
])  # fmt: skip
def test_both_forms_are_within_half_of_the_best_attack(name, clients, order):
    channel = CHANNELS[name]
    whole = rq.certify_sum(channel, clients, order).epsilon
    assert 0 < whole.lower <= whole.upper <= 1.5 * whole.lower
    curvature = rq.kappa_sum(channel, clients, order)
    assert 0 < curvature.lower <= curvature.upper <= 1.5 * curvature.lower
    x, other = (-channel.clip, channel.clip)
    assert whole.lower <= curvature.upper * (x - other) ** 2


@pytest.mark.parametrize(("kinds", "units", "most"), [(2, 12, 100), (2, 40, 8), (3, 20, 30)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_every_arrangement_of_units_has_a_law_that_counts_no_more(kinds, units, most, mirrored):
    """The length of a law says how many units of each kind are counted."""
    ends = [
        Law.from_weights(np.array([1, *[0] * (64**k - 1), 1]), 2, NO_TRIM_FLOOR_BITS)
        for k in range(kinds)
    ]
    laws = _arrangement_laws(ends, units, most, mirrored, Law.empty_sum(NO_TRIM_FLOOR_BITS))
    counted = [[(len(law) - 1) // 64**k % 64 for k in range(kinds)] for law in laws]
    for arranged in itertools.product(range(units + 1), repeat=kinds):
        if sum(arranged) == units:
            turned = [arranged, arranged[::-1]] if mirrored else [arranged]
            assert any(np.less_equal(each, way).all() for each in counted for way in turned)
    assert len(laws) <= most * (1 + mirrored)
