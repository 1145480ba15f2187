"""Arrangements that need not be looked at: never above the bound, whatever is allowed."""

import functools
import itertools
import math

import numpy as np
import oracle
import pytest

import randquant as rq
from randquant.privacy.certificates.sums import pruned
from randquant.privacy.certificates.sums.classes import Arranged, Classes
from randquant.privacy.certificates.sums.pairs import PairGrid
from randquant.privacy.certificates.sums.pruned import by_pruning
from randquant.privacy.certificates.sums.reachable import reached

INNER = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.42)
LEVELS = rq.rqm(clip=1.0, margin=3.0, levels=8, keep=0.42)
# Not its own mirror image, and its row in the middle is not between those of the ends.
LOPSIDED = rq.Channel(
    np.array([-1.0, 0.25, 1.0]), np.arange(3.0), np.array([[9, 4, 3], [3, 9, 4], [2, 5, 9]]), 16
)
CHANNELS = {"inner": INNER, "lopsided": LOPSIDED, "levels": LEVELS}


@pytest.mark.parametrize("order", [3.0, 8.0, 9.5, 32.0])
@pytest.mark.parametrize("name", CHANNELS)
def test_no_arrangement_is_above_the_bound(name, order):
    truth = oracle.steepest_sum(CHANNELS[name], 4, order)
    attained = reached(CHANNELS[name], 4, order)[0]
    found = by_pruning(CHANNELS[name], 4, order, attained)
    assert truth * (1 - 1e-9) <= found <= 1.25 * max(attained, truth)


@pytest.mark.parametrize("aim", [1e-9, 1.0, 3.0])
@pytest.mark.parametrize("order", [4.0, 6.5, 20.0])
@pytest.mark.parametrize("name", CHANNELS)
def test_every_pair_has_its_worst_arrangement_or_more(name, order, aim):
    """Pair by pair of points, however much is allowed: of little, nothing but the truth is left."""
    channel, clients = CHANNELS[name], 4
    attained = reached(channel, clients, order)[0]
    search = Arranged(channel, clients, order, attained, Classes.every(channel))
    grid = PairGrid.whole(search.inputs, order)
    curvature, moments = pruned._Pruned(search, aim * attained).evaluate(grid, 1)
    at = np.append(grid.cells, grid.cells[-1])
    part, rows = grid.positions[:, None], search.places
    own = (1 - part) * rows[at] + part * rows[at + 1]
    worst = np.zeros(len(grid.first))
    for others in itertools.combinations_with_replacement(search.kinds, clients - 1):
        laws = np.array([functools.reduce(np.convolve, others, row) for row in own])
        powers = laws[grid.first] ** order * laws[grid.second] ** (1 - order)
        worst = np.maximum(worst, powers.sum(axis=1) - 1)
    truth, apart = worst / (order - 1), grid.first != grid.second
    assert (moments[apart] >= truth[apart] * (1 - 1e-9)).all()
    # Of neighbouring points the curvature of the cell between them is the moment's.
    near = apart & (at[np.minimum(grid.first, grid.second)] == grid.low)
    near &= abs(grid.first - grid.second) == 1
    steep = truth / np.where(apart, grid.squares(), 1.0)
    assert (curvature[grid.start[:-1][near]] >= steep[near] * (1 - 1e-9)).all()
    if aim == 1e-9:  # all are looked at
        assert (moments[apart] <= truth[apart] * (1 + 1e-6)).all()


def test_many_arrangements_and_low_orders_are_not_tried():
    assert by_pruning(INNER, 100, 8.0, 0.1) == math.inf
    assert by_pruning(INNER, 4, 2.9, 0.1) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("order", [8.0, 32.0, 64.0])
def test_ten_clients_of_sixteen_levels_are_within_a_quarter_of_the_attack(order):
    found = rq.kappa_sum(rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42), 10, order)
    assert 0 < found.lower <= found.upper <= 1.25 * found.lower
