"""Sums in which a few kinds of others, or blocks of them, stand for all, against brute force."""

import functools
import itertools
import math

import numpy as np
import oracle
import pytest
from scipy.optimize import linprog

import randquant as rq
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.blanket import Blanket
from randquant.privacy.certificates.sums.blocks import block_blankets
from randquant.privacy.certificates.sums.classes import SHARES, Classes, by_classes
from randquant.privacy.certificates.sums.kappa_blanket import _best_case, _Sum
from randquant.privacy.certificates.sums.pairs import all_pairs
from randquant.privacy.certificates.sums.reachable import reached
from randquant.privacy.certificates.sums.rounding import largest_ratio

INNER = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.42)
LEVELS = rq.rqm(clip=1.0, margin=3.0, levels=8, keep=0.42)
# Not its own mirror image, and its row in the middle is not between those of the ends.
LOPSIDED = rq.Channel(
    np.array([-1.0, 0.25, 1.0]), np.arange(3.0), np.array([[9, 4, 3], [3, 9, 4], [2, 5, 9]]), 16
)
MANY = rq.imvu(1.0, 4, 1.0)
CHANNELS = {"inner": INNER, "levels": LEVELS, "lopsided": LOPSIDED, "many": MANY}


@pytest.mark.parametrize("order", [1.1, 2.0, 2.5, 8.0])
@pytest.mark.parametrize("name", ["inner", "lopsided", "levels"])
def test_every_arrangement_is_below_the_bound_and_one_is_near(name, order):
    channel = CHANNELS[name]
    truth = oracle.steepest_sum(channel, 4, order)
    found = by_classes(channel, 4, order, truth)
    assert truth * (1 - 1e-9) <= found <= 1.1 * truth


@pytest.mark.parametrize("clients", [2, 3])
def test_three_kinds_stand_for_many_vertices(clients):
    classes = Classes.of(MANY, 10**4)
    assert classes is not None
    assert len(classes.rows) == 3 < len(MANY.inputs)
    for weights in MANY.weights:
        row = weights / MANY.denominator
        most = linprog(-np.ones(3), A_ub=classes.rows.T, b_ub=row, bounds=(0, None))
        assert classes.share / SHARES <= -most.fun + 1e-9
    truth = oracle.steepest_sum(MANY, clients, 4.0)
    assert truth * (1 - 1e-9) <= by_classes(MANY, clients, 4.0, truth) <= 1.25 * truth


def test_blocks_of_others_bound_all_of_them():
    """Where arrangements are too many, clients of each kind are left out; never added."""
    attained = reached(INNER, 150, 2.0)[0]
    assert attained <= by_classes(INNER, 150, 2.0, attained) <= 1.25 * attained


@pytest.mark.parametrize("name", ["inner", "lopsided"])
def test_a_bell_is_under_every_block(name):
    channel = CHANNELS[name]
    rows = channel.weights / channel.denominator
    for blanket in block_blankets(channel):
        bell = blanket.shapes[0] / blanket.shapes[0].sum()
        vertices = range(len(rows))
        several = list(itertools.combinations_with_replacement(vertices, blanket.block))
        if blanket.apart > 1:
            several = [(vertex,) * blanket.block for vertex in vertices]
        assert blanket.apart in (1, len(rows))
        for block in several[:: max(len(several) // 12, 1)]:
            law = functools.reduce(np.convolve, rows[list(block)])
            cover = np.array(
                [np.roll(np.pad(bell, (0, len(law) - len(bell))), t)
                 for t in range(len(law) - len(bell) + 1)]
            ).T  # fmt: skip
            most = linprog(-np.ones(cover.shape[1]), A_ub=cover, b_ub=law, bounds=(0, None))
            assert blanket.shares[0] / channel.denominator <= -most.fun + 1e-6


def test_whole_blocks_are_counted():
    blanket = next(b for b in block_blankets(LEVELS) if b.apart == 1)
    assert [blanket.drawing(blanket.block * 3 + more) for more in (-1, 0, 1)] == [2, 3, 3]
    apart = Blanket((np.ones(2, int),), (1,), 2, block=4, apart=3)
    # However many others of each kind there are, so many blocks are of one kind.
    size, kinds = apart.block, apart.apart
    assert apart.drawing(kinds * (size - 1)) == 0
    assert apart.drawing(kinds * (size - 1) + 1) == 1


@pytest.mark.parametrize("order", [1.3, 2.0, 8.0])
@pytest.mark.parametrize("name", ["inner", "levels"])
def test_blocks_bound_what_brute_force_finds(name, order):
    channel = CHANNELS[name]
    clients = 7 if name == "inner" else 5
    truth = oracle.steepest_sum(channel, clients, order)
    for blanket in block_blankets(channel):
        found = _Sum(channel, clients, order, blanket, truth)
        assert truth * (1 - 1e-9) <= found.bound(math.inf)


@pytest.mark.parametrize("order", [1.3, 8.0])
@pytest.mark.parametrize("clients", [5, 200])
def test_no_blanket_is_better_than_its_best_case(clients, order):
    channel = CHANNELS["inner"]
    for blanket in (Blanket.of(channel), *block_blankets(channel)):
        limit = _best_case(channel, clients, order, blanket)
        found = _Sum(channel, clients, order, blanket, 1e-9)
        assert found.least / 4 < limit <= found.least


@pytest.mark.parametrize("order", [1.1, 2.0, 2.5, 6.0, 40.0])
@pytest.mark.parametrize("name", CHANNELS)
def test_the_grid_of_pairs_bounds_one_client_as_the_search_does(name, order):
    channel = CHANNELS[name]
    lines = CellLines.of(channel)
    rows = CellLines(lines.inputs, lines.weights / lines.denominator, 1, 1e-15)
    known = rq.kappa(channel, order)
    found = all_pairs(rows, order, largest_ratio(rows.weights)[1])
    assert known.lower * (1 - 1e-9) <= found <= 1.5 * known.upper


@pytest.mark.parametrize(
    ("channel", "clients", "order", "slack"),
    [(INNER, 10, 2.0, 1.06), (LEVELS, 10, 8.0, 1.1), (MANY, 10, 2.0, 1.1)],
)
def test_sums_of_several_bits_are_near_the_attack(channel, clients, order, slack):
    found = rq.kappa_sum(channel, clients, order)
    assert 0 < found.lower <= found.upper <= slack * found.lower
