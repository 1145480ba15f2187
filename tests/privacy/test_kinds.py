"""Kinds of blocks of the others: under every block, and above what brute force finds."""

import functools
import itertools
import math

import numpy as np
import oracle
import pytest
from scipy.optimize import linprog
from scipy.special import logsumexp
from scipy.stats import multinomial

import randquant as rq
from randquant.privacy.certificates.sums import kind_moments
from randquant.privacy.certificates.sums.classes import SHARES, Classes, by_classes
from randquant.privacy.certificates.sums.kinds import by_kinds, kinds_of_blocks
from randquant.privacy.certificates.sums.reachable import reached
from randquant.privacy.certificates.sums.rows import Rows

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


@pytest.mark.parametrize(("name", "size"), [("lopsided", 4), ("levels", 3)])
def test_kinds_and_bells_fit_under_every_block_at_once(name, size):
    """So much of each, shifted, is under each block together; it is more than kinds alone are."""
    channel = CHANNELS[name]
    found = kinds_of_blocks(channel, size, False, (0.5, 0.2))
    assert found is not None
    shares = np.array([found.share, *found.bell_shares]) / SHARES
    assert len(found.bells) == 2
    assert (shares > 0).all()
    rows = channel.weights / channel.denominator
    for block in itertools.combinations_with_replacement(range(len(rows)), size):
        law = functools.reduce(np.convolve, rows[list(block)])
        layers = [found.rows, found.bells[:1], found.bells[1:]]
        places = [np.array([at for k in layer for at in shifted(k, len(law))]) for layer in layers]
        of = np.repeat(np.eye(3), [len(each) for each in places], axis=1)
        # As much as is stated of each is under the law: of the smallest multiple of it that is.
        cover = np.append(np.concatenate(places).T, -law[:, None], axis=1)
        least = linprog(
            np.append(np.zeros(of.shape[1]), 1.0), A_ub=cover, b_ub=np.zeros(len(law)),
            A_eq=np.append(of, np.zeros((3, 1)), axis=1), b_eq=shares, bounds=(0, None),
        )  # fmt: skip
        assert least.fun <= 1 + 1e-7
    assert shares.sum() > kinds_of_blocks(channel, size).share / SHARES


@pytest.mark.parametrize("order", [1.3, 2.5, 8.0])
@pytest.mark.parametrize(("name", "size", "clients"), [("lopsided", 6, 7), ("levels", 2, 5)])
def test_kinds_bound_what_brute_force_finds(name, size, clients, order):
    channel = CHANNELS[name]
    kinds = kinds_of_blocks(channel, size)
    assert kinds is not None
    truth = oracle.steepest_sum(channel, clients, order)
    assert truth * (1 - 1e-9) <= by_classes(channel, clients, order, truth, kinds)


def mean_of_the_worst(own: np.ndarray, parts, order: float) -> np.ndarray:
    """M - 1 of all pairs in float64: of each number of blocks that draw a kind the worst way."""
    excess = np.zeros((len(own), len(own)))
    for drawn in itertools.product(*(counts(kinds, count) for kinds, count in parts)):
        worst = np.zeros_like(excess)
        noises = [
            itertools.combinations_with_replacement(kinds.rows, number[0])
            for (kinds, _), number in zip(parts, drawn, strict=True)
        ]
        bells = [
            bell
            for (kinds, _), number in zip(parts, drawn, strict=True)
            for bell, several in zip(kinds.bells, number[1:], strict=True)
            for _ in range(several)
        ]
        for noise in itertools.product(*noises):
            every = [law for several in noise for law in several] + bells
            laws = np.array([functools.reduce(np.convolve, every, row) for row in own])
            laws = laws[:, laws.min(axis=0) > 0]
            moments = (laws[:, None] ** order * laws[None] ** (1 - order)).sum(axis=2)
            worst = np.maximum(worst, moments - 1)
        mass = 1.0
        for (kinds, count), number in zip(parts, drawn, strict=True):
            shares = np.array([kinds.share, *kinds.bell_shares]) / SHARES
            rest = [*number, count - sum(number)]
            mass *= multinomial.pmf(rest, count, [*shares, 1 - shares.sum()])
        excess += mass * worst
    return excess


def counts(kinds, blocks: int):
    """How many of so many blocks draw a kind, and how many each bell."""
    each = itertools.product(range(blocks + 1), repeat=1 + len(kinds.bells))
    return [number for number in each if sum(number) <= blocks]


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_the_bound_is_the_mean_of_the_worst_arrangements(order):
    """Of every number of blocks that draw a kind, all arrangements, in plain floating point."""
    kinds = kinds_of_blocks(LEVELS, 4)
    assert kinds is not None
    inputs, own = oracle.between_vertices(LEVELS)
    # Of 11 others two whole blocks, three clients left over.
    excess = mean_of_the_worst(own, [(kinds, 2)], order)
    apart = inputs[:, None] - inputs
    ratio = np.log1p(excess) / (order - 1) / np.where(apart == 0, np.inf, apart) ** 2
    truth = float(ratio.max())
    assert truth * (1 - 1e-9) <= by_classes(LEVELS, 12, order, truth, kinds) <= 1.03 * truth


@pytest.mark.parametrize("order", [1.5, 8.0])
@pytest.mark.parametrize(("name", "sizes"), [("lopsided", [4, 6]), ("levels", [2, 3])])
@pytest.mark.parametrize("bells", [(), (0.4,)])
def test_one_coordinate_is_bounded_by_the_mean_of_the_worst_arrangements(
    name, sizes, order, bells, monkeypatch
):
    """Nothing between vertices is worse, so the mean itself is the bound: of blocks of any size."""
    channel = CHANNELS[name]
    rows = Rows.of(channel, "replace_one")
    several = [kinds_of_blocks(channel, size, False, bells) for size in sizes]
    blocks = ((several[1], 1), (several[0], 2))
    monkeypatch.setattr(kind_moments, "_blocks", lambda *_: blocks)
    truth = math.log1p(mean_of_the_worst(rows.probabilities, blocks, order).max())
    found = kind_moments.by_kinds(channel, rows, sum(sizes) + sizes[0], order, 1e3)
    # Groups that hardly count are counted as if fewer blocks drew anything.
    assert truth * (1 - 1e-9) <= found <= math.log1p(math.expm1(truth) * 1.004)


@pytest.mark.parametrize("order", [1.5, 8.0, 32.0])
@pytest.mark.parametrize("name", ["lopsided", "levels"])
def test_arrangements_that_others_settle_are_none_of_the_worst(name, order, monkeypatch):
    """Without settling, all are evaluated: the bound is the same."""
    channel, found = CHANNELS[name], []
    rows = Rows.of(channel, "replace_one")
    kinds = kinds_of_blocks(channel, 3 if name == "levels" else 4, name == "levels", (0.4,))
    monkeypatch.setattr(kind_moments, "_blocks", lambda *_: ((kinds, 7),))
    for nearest in (kind_moments.NEAREST, 0):
        monkeypatch.setattr(kind_moments, "NEAREST", nearest)
        found.append(kind_moments.by_kinds(channel, rows, 30, order, 1e3))
    assert found[0] == pytest.approx(found[1], rel=1e-12, abs=0)


@pytest.mark.parametrize("falls", [(0.5, 0.3, 0.1), (3.0, 8.0, 5.0), (3.0, 0.1, 3.0)])
def test_groups_of_counts_hold_all_of_them(falls):
    """Of what falls in every count the mean is at most that over groups: it is known exactly."""
    shares = [int(share * SHARES) for share in (0.93, 0.05, 0.015)]
    kinds = Classes(np.ones((1, 1)), shares[0], bells=(np.ones(1),) * 2, bell_shares=(*shares[1:],))
    chances = np.array([*shares, SHARES - sum(shares)]) / SHARES
    exact = 30 * math.log(chances @ np.exp(-np.array([*falls, 0.0])))
    groups = kind_moments._drawn(kinds, 30, 200.0)
    found = logsumexp([mass - np.dot(falls, counts) for counts, mass in groups])
    assert exact <= found + 1e-12
    # Groups are coarse where counts are unlikely: where those do not decide, little is lost.
    assert falls != (0.5, 0.3, 0.1) or found <= exact + 2e-3


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("order", [1.3, 8.0])
def test_no_others_exceed_the_bound_of_one_coordinate(order, neighboring):
    rows = Rows.of(LEVELS, neighboring)
    vertices = rows.probabilities[: rows.vertices]
    worst = 0.0
    for beside in itertools.combinations_with_replacement(vertices, 5):
        laws = [functools.reduce(np.convolve, beside, row) for row in rows.probabilities]
        moments = [[(p**order * q ** (1 - order)).sum() for q in laws] for p in laws]
        worst = max(worst, float(np.array(moments)[rows.allowed].max()))
    found = kind_moments.by_kinds(LEVELS, rows, 5, order, 1e3)
    assert math.log(worst) <= found < math.inf


def test_whoever_is_left_over_fills_smaller_blocks():
    for usable in ((2, 3, 4), (2, 3), (3,)):
        for others in range(3, 40):
            sizes = kind_moments._sizes(others, usable[-1], usable)
            held = sum(each * count for each, count in sizes.items())
            assert set(sizes) <= set(usable)
            assert held == others - others % 3 if usable == (3,) else others


def test_channels_of_two_rows_or_of_many_have_no_kinds():
    assert kinds_of_blocks(rq.stochastic_rounding(1.0, 2, 3.0), 4) is None
    assert kinds_of_blocks(rq.pbm(1.0, 0.25, 3, inputs=65), 4) is None
    assert by_kinds(rq.pbm(1.0, 0.25, 3, inputs=65), 100, 2.0, 0.0) == math.inf


@pytest.mark.slow
def test_blocks_of_another_size_bound_high_orders():
    """The blocks that hide most leave few of them more likely, which decides at order 64."""
    channel = rq.rqm(clip=1.0, margin=3.0, levels=16, keep=0.42)
    attained = reached(channel, 100, 64.0)[0]
    several = [kinds_of_blocks(channel, size) for size in (6, 4)]
    bounds = [by_classes(channel, 100, 64.0, attained, kinds) for kinds in several]
    assert bounds[0] > 1.4 * attained
    assert attained <= by_kinds(channel, 100, 64.0, attained) == min(bounds) <= 1.15 * attained


@pytest.mark.slow
@pytest.mark.parametrize("order", [2.0, 8.0])
def test_sixteen_levels_are_within_a_quarter_of_the_attack(order):
    found = rq.kappa_sum(SIXTEEN, 100, order)
    assert 0 < found.lower <= found.upper <= 1.25 * found.lower


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "order", "most"),
    [(25, 8.0, 1.06), (100, 2.0, 1.05), (100, 8.0, 1.06), (64, 32.0, 1.08), (100, 32.0, 1.1)],
)
def test_one_coordinate_of_sixteen_levels_is_near_the_attack(clients, order, most):
    found = rq.certify_sum(SIXTEEN, clients, order)
    assert found.method == "blocks"
    assert found.epsilon.upper <= most * found.epsilon.lower
