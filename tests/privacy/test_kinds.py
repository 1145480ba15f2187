"""Kinds of blocks of the others: under every block, and above what brute force finds."""

import functools
import itertools
import math

import numpy as np
import oracle
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

import randquant as rq
from randquant.privacy.certificates.sums.classes import SHARES, by_classes
from randquant.privacy.certificates.sums.kinds import by_kinds, kinds_of_blocks

INNER = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.42)
LEVELS = rq.rqm(clip=1.0, margin=3.0, levels=8, keep=0.42)
# Not its own mirror image, and its row in the middle is not between those of the ends.
LOPSIDED = rq.Channel(
    np.array([-1.0, 0.25, 1.0]), np.arange(3.0), np.array([[9, 4, 3], [3, 9, 4], [2, 5, 9]]), 16
)
CHANNELS = {"inner": INNER, "levels": LEVELS, "lopsided": LOPSIDED}
SIXTEEN = rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42)


def shifted(kind: np.ndarray, length: int) -> list[np.ndarray]:
    """A kind at all its places among so many sums."""
    shape = np.trim_zeros(kind)
    return [np.pad(shape, (t, length - len(shape) - t)) for t in range(length - len(shape) + 1)]


@pytest.mark.parametrize(("name", "size", "middle"), [("lopsided", 6, False), ("levels", 3, True)])
def test_kinds_together_are_under_every_block(name, size, middle):
    """So much of each block is a mix of shifted kinds, and of one block no more is."""
    channel = CHANNELS[name]
    kinds = kinds_of_blocks(channel, size, middle)
    assert kinds is not None
    assert kinds.block == size
    assert len(kinds.rows) == 2 + middle
    rows, shares = channel.weights / channel.denominator, []
    for block in itertools.combinations_with_replacement(range(len(rows)), size):
        law = functools.reduce(np.convolve, rows[list(block)])
        cover = np.array([at for kind in kinds.rows for at in shifted(kind, len(law))]).T
        most = linprog(-np.ones(cover.shape[1]), A_ub=cover, b_ub=law, bounds=(0, None))
        shares.append(-most.fun)
    assert kinds.share / SHARES == pytest.approx(min(shares), rel=1e-5)
    assert kinds.share / SHARES <= min(shares) + 1e-7


@pytest.mark.parametrize("order", [1.3, 2.5, 8.0])
@pytest.mark.parametrize(("name", "size", "clients"), [("lopsided", 6, 7), ("levels", 2, 5)])
def test_kinds_bound_what_brute_force_finds(name, size, clients, order):
    channel = CHANNELS[name]
    kinds = kinds_of_blocks(channel, size)
    assert kinds is not None
    truth = oracle.steepest_sum(channel, clients, order)
    assert truth * (1 - 1e-9) <= by_classes(channel, clients, order, truth, kinds)


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_the_bound_is_the_mean_of_the_worst_arrangements(order):
    """Of every number of blocks that draw a kind, all arrangements, in plain floating point."""
    kinds = kinds_of_blocks(LEVELS, 4)
    assert kinds is not None
    inputs, own = oracle.between_vertices(LEVELS)
    clients, share = 12, kinds.share / SHARES  # two whole blocks, three clients left over
    excess = np.zeros((len(own), len(own)))
    for drawn in range(3):
        worst = np.zeros_like(excess)
        for right in range(drawn + 1):
            noise = [kinds.rows[1]] * right + [kinds.rows[0]] * (drawn - right)
            laws = np.array([functools.reduce(np.convolve, noise, row) for row in own])
            laws = laws[:, laws.min(axis=0) > 0]
            moments = (laws[:, None] ** order * laws[None] ** (1 - order)).sum(axis=2)
            worst = np.maximum(worst, moments - 1)
        excess += binom.pmf(drawn, 2, share) * worst
    apart = inputs[:, None] - inputs
    ratio = np.log1p(excess) / (order - 1) / np.where(apart == 0, np.inf, apart) ** 2
    truth = float(ratio.max())
    assert truth * (1 - 1e-9) <= by_classes(LEVELS, clients, order, truth, kinds) <= 1.03 * truth


def test_channels_of_two_rows_or_of_many_have_no_kinds():
    assert kinds_of_blocks(rq.stochastic_rounding(1.0, 2, 3.0), 4) is None
    assert kinds_of_blocks(rq.pbm(1.0, 0.25, 3, inputs=65), 4) is None
    assert by_kinds(rq.pbm(1.0, 0.25, 3, inputs=65), 100, 2.0, 0.0) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("order", [2.0, 8.0])
def test_sixteen_levels_are_within_a_quarter_of_the_attack(order):
    found = rq.kappa_sum(SIXTEEN, 100, order)
    assert 0 < found.lower <= found.upper <= 1.25 * found.lower
