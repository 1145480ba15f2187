"""Sums: pairs, factors, margins and what is left out, one by one: each against what it is for."""

import dataclasses
import itertools
import math

import mpmath
import numpy as np
import oracle  # noqa: F401 - figures of 60 digits
import pytest
from mpmath import mpf

import randquant as rq
from randquant.privacy.certificates.sums import binomial, bounds, law, pair
from randquant.privacy.certificates.sums import ends as two_ended
from randquant.privacy.certificates.sums import hardest as searching
from randquant.privacy.certificates.sums import kappa_blanket as independent
from randquant.privacy.certificates.sums import mixture as mixed
from randquant.privacy.certificates.sums import rounding as margins
from randquant.privacy.certificates.sums.chain_kernel import attained
from randquant.privacy.certificates.sums.law import Law
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.certificates.vector import Kappa, kappa

LEVEL = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
SKEWED = rq.Channel(
    np.array([-1.0, 1.0]), np.array([-2.0, 0.0, 2.0]), np.array([[5, 2, 1], [1, 3, 4]]), 8
)
ENDLESS = Kappa(0.0, math.inf, 2.0, (0.0, 0.0))


def test_all_ordered_pairs_of_neighbours_count_and_mirrors_are_mirrors():
    rows = Rows.of(SKEWED, "replace_one")
    assert (rows.allowed == ~np.eye(2, dtype=bool)).all()
    assert not rows.mirror
    assert Rows.of(LEVEL, "replace_one").mirror
    assert Rows.of(LEVEL, "zero_out").mirror
    lopsided = rq.Channel(
        np.array([-1.0, 0.5, 1.0]), np.array([-2.0, 2.0]), np.array([[3, 1], [2, 2], [1, 3]]), 4
    )
    assert Rows.of(lopsided, "replace_one").mirror
    assert not Rows.of(lopsided, "zero_out").mirror  # the row of 0 is not its own image
    assert Rows.of(lopsided, "zero_out").allowed.sum() == 6


def test_factors_of_a_law_hand_on_their_errors_and_what_they_trimmed():
    first = dataclasses.replace(law.Law.of(np.array([1, 3]), 4, 50.0), error=7.0, trimmed=2.0)
    second = dataclasses.replace(law.Law.of(np.array([1, 2, 1]), 4, 40.0), error=11.0, trimmed=5.0)
    for product in (first * second, second * first):
        assert product.error >= 7 + 11 + 2 + 1
        assert product.trimmed == 7.0
        assert product.floor == 40.0


def test_what_is_trimmed_is_so_many_entries_below_the_floor():
    for count, floor in ((1.0, 90.0), (500.0, 90.0), (3.0, 1e3)):
        found = law.log_trimmed(count, floor)
        exact = mpmath.log(count) - mpf(floor) * mpmath.log(2)
        assert exact <= found <= exact + 1
    assert law.log_trimmed(0, 90.0) == -math.inf


def test_trimmed_noise_may_have_been_none():
    for log_moment, trimmed, floor, single in ((0.1, 3.0, 8.0, 2.0), (1e-6, 1000.0, 30.0, 5.0)):
        found = float(mixed.add_trimmed(log_moment, trimmed, floor, single))
        exact = mpmath.log(mpmath.exp(log_moment) + trimmed * mpf(2) ** -floor * mpmath.exp(single))
        assert min(exact, mpf(single)) <= found <= single


def test_a_mixture_has_the_moments_of_all_its_groups():
    for logs in ([0.1, 0.3, 2.0], [1e-9, 2e-9, 1e-9], [700.0, 10.0, 0.5]):
        masses = [0.2, 0.5, 0.3]
        exact = mpmath.log(
            mpmath.fsum(m * mpmath.exp(v) for m, v in zip(masses, logs, strict=True))
        )
        found = mixed._mix(np.array(logs), np.log(masses))
        assert exact * (1 - mpf("1e-12")) <= found <= exact * (1 + mpf("1e-12"))


def test_values_too_small_to_be_told_from_nothing_do_not_count_as_nothing():
    rows = Rows.of(
        rq.Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), np.array([[4, 0], [0, 4]]), 4),
        "replace_one",
    )
    noise = law.Law(np.ones(2), np.array([0, -2560]), 1.0, 0.0, law.KEEP_ALL)
    found, _ = mixed.table(rows, noise, 2.0)
    assert found.max() == math.inf
    lower, upper = pair.log_moment(noise, np.array([1.0, 0.0]), np.array([-1.0, 1.0]), 2.0)
    assert (lower, upper) == (0.0, math.inf)


def test_a_code_of_one_world_only_is_infinitely_telling():
    certain = law.Law.nothing()
    q, difference = np.array([1.0, 0.0]), np.array([-0.5, 0.5])
    assert pair.log_moment(certain, q, difference, 2.0) == (math.inf, math.inf)


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_a_lower_moment_allows_for_noise_that_was_trimmed(order):
    """The ends of the noise, 2^-11 each, are left out: the moment with them is smaller."""
    end = 2.0**-11
    p, q = np.array([0.5, 0.5]), np.array([1 / 64, 63 / 64])
    kept = law.Law(np.array([1 - 2 * end]), np.zeros(1, np.int64), 1.0, 2.0, 10.0)
    lower, _ = pair.log_moment(kept, q, p - q, order)
    first, second = (np.convolve(row, [end, 1 - 2 * end, end]) for row in (p, q))
    moment = mpmath.fsum(
        mpf(a) ** order * mpf(b) ** (1 - mpf(order)) for a, b in zip(first, second, strict=True)
    )
    assert lower <= mpmath.log(moment)


@pytest.mark.parametrize("trials", [3, 200, 5000])
def test_chances_of_counts_are_rounded_up(trials):
    found = binomial.LogBinomial.of(trials, 3, 8, 100.0)
    for at in {0, len(found.logs) // 2, len(found.logs) - 1}:
        k = found.first + at
        exact = mpmath.log(mpf(math.comb(trials, k)) * mpf(3) ** k * mpf(5) ** (trials - k))
        exact -= trials * mpmath.log(8)
        assert exact <= found.logs[at] <= exact + found.slack


@pytest.mark.parametrize("others", [5, 40, 1000, 10**5])
def test_a_plan_counts_no_more_whole_blocks_than_the_others_are_sure_to_hold(others):
    rows = Rows.of(rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.5), "replace_one")
    plan = bounds.BlockPlan.of(rows, others, 2.0, 1.0)
    assert plan.depth > 0
    # The worst case: all but a block is left over at every vertex.
    sure = max(others - rows.vertices * (plan.block - 1), 0)
    assert plan.block * (plan.depth - 1) < max(sure, 1)
    if plan.block > 1:
        assert not plan.complete


def test_a_search_is_told_the_error_of_its_laws_and_adds_what_was_trimmed(monkeypatch):
    seen = {}

    def search(*arguments):
        seen["error"] = arguments[9]
        return 0.1, 1e25, 1

    monkeypatch.setattr(searching, "search", search)
    rows = Rows.of(SKEWED, "replace_one")
    plan = bounds.BlockPlan(1, 30, True)
    single = float(np.log(4.0))
    found = bounds.by_search(rows, plan, 2.0, single, 0.0, 1.0)
    floor = bounds.floor_for(rows, single)
    laws = [Law.of(row, rows.total, floor).power(1) for row in rows.weights[: rows.vertices]]
    each, codes = max(law.error for law in laws) + max(map(len, laws)) + 1, rows.weights.shape[1]
    # theory/sums.md, Proposition 6, and 2 units to spare.
    assert 30 * each + codes + 2 <= seen["error"] <= 30 * each + codes + 4
    assert found > 0.1
    assert found == mixed.add_trimmed(0.1, 1e25, floor, single)


def test_beyond_the_largest_order_the_bound_is_pure():
    found, pure = (rq.certify_sum(LEVEL, 3, order).epsilon for order in (1e12, math.inf))
    assert found.upper == pure.upper
    assert found.lower <= pure.lower


@pytest.mark.parametrize("order", [1.5, 2.0, 9.0])
def test_differences_are_raised_and_lowered_by_what_rounding_may_have_done(order):
    first, second, error = np.array([0.5, 0.5]), np.array([0.4, 0.6]), 1e-3
    lowered = np.empty((2, 2))
    search = two_ended._Ends(LEVEL, 6, order, two_ended.LOOSE)
    search.error = error
    raised = search._raised((first, second), 1)
    attained(first, second, 1e-9, error, order, 1, lowered)
    change, larger = np.abs(second - first), np.maximum(first, second)
    for found, sign in ((raised, 1), (lowered, -1)):
        steep = change + sign * 2.5 * error * larger
        assert found[0, 0] == pytest.approx(order / 2 * (steep**2 / first).sum(), rel=1e-12, abs=0)
        assert found[1, 1] == pytest.approx(order / 2 * (steep**2 / second).sum(), rel=1e-12, abs=0)


def test_a_bound_of_whole_updates_raises_differences_and_a_lower_end_lowers_them(monkeypatch):
    """Proposition 9, with laws of which no more than five digits were known."""
    error, channel = 1e-5, rq.stochastic_rounding(clip=1.0, levels=2, margin=2.0)
    monkeypatch.setattr(two_ended, "rounding", lambda *_: error)
    search = two_ended._Ends(channel, 6, 2.0, two_ended.LOOSE)
    found, lower, upper = search.run(kappa(channel, 2.0)), 0.0, 0.0
    grid = np.empty((2, 2))
    for laws in search._neighbours():
        attained(*laws, 1e-250, error, 2.0, 1, grid)
        lower = max(lower, float(grid.diagonal().max()) / search.width**2)
        raised = search._raised(laws, 1).diagonal().max()
        upper = max(upper, float(raised) / search.width**2)
    assert found.upper >= upper * (1 + search.slack)
    assert found.lower <= lower


def test_slack_covers_laws_within_their_error():
    """Of r, within twice the error, and of the row it is over: G changes by at most the order."""
    for order in (1.1, 2.0, 50.0):
        assert margins.slack(1e-9, 1.0, order) >= (2 * order + 1) * 1e-9
        assert margins.slack(0.0, 3.0, order) >= (800 + 400 * order * 3) * 2.0**-53


def test_ratios_are_the_largest_of_any_two_rows_either_way():
    for rows in ([[0.5, 0.5], [0.9, 0.1]], [[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5]] * 3):
        ratio, loss = margins.largest_ratio(np.array(rows))
        exact = 5 if rows[0] != rows[1] else 1
        assert exact <= ratio <= exact * (1 + 1e-12)
        assert loss >= math.log(exact)


def test_float64_must_hold_what_counts():
    assert margins.fits(-600.0, 1e-12, 2.0, 8.0)
    assert not margins.fits(margins.LOG_PRECISE + 1.9, 1e-12, 2.0, 8.0)
    assert not margins.fits(-600.0, 1e-3, 2.0, 8.0)
    assert math.log(1e-280) < margins.LOG_PRECISE


def test_a_contradiction_is_not_passed_over():
    with pytest.raises(ArithmeticError, match="report"):
        margins.between(1.001, (0.0, 0.0), 1.0, kappa(LEVEL, 2.0))


@pytest.mark.parametrize("order", [1.2, 2.0, 2.5, 6.0])
def test_what_is_left_out_and_what_is_not_convex_is_added(order):
    ends = two_ended._Ends(SKEWED, 5, order, two_ended.LOOSE)
    rest = margins.left_out(ends.length, ends.log_keep, ends.loss, order)
    least = rest * (4 - 1) ** 2  # rows are at most 5 to 1 and 1 to 4
    assert ends._bound(np.zeros((3, 3))) >= least > 0
    bend = ends._bent(1)[0]
    exact = mpmath.cosh(mpmath.log(5) / 2) ** (2 * (mpf(order) - 2))
    assert exact <= bend <= exact * (1 + mpf("1e-9"))
    if 2 < order < 3:
        assert ends._bound(np.ones((2, 2))) >= exact


def test_a_blanket_bound_has_the_others_their_errors_and_what_was_left_out(monkeypatch):
    seen = {}
    draws, lines = independent.draws, independent.CellLines

    def counted(blanket, others, depth, parts):
        seen["others"] = others
        return draws(blanket, others, depth, parts)

    class Recorded(lines):  # type: ignore[valid-type,misc]
        def __init__(self, *fields):
            super().__init__(*fields)
            seen["error"], seen["missing"] = self.error, self.missing

    monkeypatch.setattr(independent, "draws", counted)
    monkeypatch.setattr(independent, "CellLines", Recorded)
    for other in ("blankets", "block_blankets"):
        monkeypatch.setattr(independent, other, lambda *_, **__: ())
    monkeypatch.setattr(independent, "by_classes", lambda *_, **__: math.inf)
    bound = independent.by_blanket(SKEWED, 9, 2.0, ENDLESS).upper
    assert seen["others"] == 8
    assert seen["error"] >= (8 + 4 * 3 + 64) * 2.0**-53
    assert seen["missing"] > 0
    monkeypatch.setattr(independent, "left_out", lambda *_: 1.0)
    steepest = (1 / 2) * 4 / 1  # a change of 4/8 over a distance of 2, by a row's 1/8
    assert independent.by_blanket(SKEWED, 9, 2.0, ENDLESS).upper >= bound + steepest**2 / 4


@pytest.mark.parametrize("order", [1.5, 2.0, 2.5, 9.0])
def test_outcomes_that_are_not_looked_at_are_paid_for(order):
    """Their share of S, and of a moment, for any two mixes of rows and any slope between cells."""
    rng = np.random.default_rng(7)
    weights = np.geomspace(1e-12, 0.1, 40) * rng.uniform(0.5, 1, size=(4, 40))
    lines = independent.CellLines(np.array([-1.0, 0.0, 0.5, 1.0]), weights, 1, 1e-12)
    slopes = np.diff(weights, axis=0) / np.diff(lines.inputs)[:, None]
    kept, faint, missing = independent.thinned(lines, order, 1e-3)
    assert 0 < kept.shape[1] < 40
    left = ~np.isin(weights[0], kept[0])
    assert left.sum() == 40 - kept.shape[1]
    for mix, other, part in rng.dirichlet(np.ones(4), size=(60, 3)):
        p, q, slope = mix @ weights, other @ weights, (part[:3] / part[:3].sum()) @ slopes
        share = p**order * q ** (1 - order) - q - order * (p - q)
        share *= slope**2 / ((order - 1) * (p - q) ** 2)
        assert share[left].sum() <= faint
        assert (p**order * q ** (1 - order))[left].sum() <= missing
    assert faint <= 1e-3


def test_what_is_not_looked_at_is_paid_for_where_it_is_rarest():
    """Of S at order 2 it takes slope^2 over the lesser of its two probabilities."""
    rows = np.array([[1 - 1e-9, 1e-9], [1 - 1e-6, 1e-6]])
    lines = independent.CellLines(np.array([-1.0, 1.0]), rows, 1, 0.0)
    kept, faint, _ = independent.thinned(lines, 2.0, 1e-2)
    assert kept.shape[1] == 1
    assert ((1e-6 - 1e-9) / 2) ** 2 / 1e-9 <= faint <= 1e-2


def test_what_is_likely_and_tells_nothing_still_counts_for_a_moment():
    """Of a moment less 1, no more than that share is left out for inputs a cell apart."""
    rows = np.array([[0.5, 0.3, 0.2 - 1e-9, 1e-9], [0.5, 0.2, 0.3 - 1e-9, 1e-9]])
    lines = independent.CellLines(np.array([-1.0, 1.0]), rows, 1, 0.0)
    kept, faint, missing = independent.thinned(lines, 2.0, 1e-3)
    assert kept.shape[1] == 3
    assert faint <= 1e-3
    assert 1e-9 <= missing <= 1e-3 * (2.0 - 1) * 2.0**2


def test_a_search_over_groups_is_told_all_that_was_left_out(monkeypatch):
    groups, thinned = [], independent.thinned

    def spied(few, *rest):
        kept, faint, _ = thinned(few, *rest)
        groups.append(few)
        return kept, faint, 0.25

    monkeypatch.setattr(independent, "thinned", spied)
    found = independent._Sum(SKEWED, 9, 2.0, independent.Blanket.of(SKEWED), 0.1)
    assert len(groups) > 1
    assert found.together.missing >= 0.25 * len(groups) + found.rest
    entries = len(groups) * 9 * SKEWED.levels
    _, loss = margins.largest_ratio(found.rows)
    least = margins.log_keep(entries, loss, 2.0)
    assert found.rest >= margins.left_out(entries, least, loss, 2.0) > 0


def moment_oracle(change, below, order):
    """log of sum below·((1 + r)^a - a r) in 60 digits: the moment of a pair whose rows sum to 1."""
    with mpmath.workdps(60):
        excess = [((1 + mpf(r)) ** order - 1 - order * mpf(r)) / (order - 1) for r in change]
        parts = (mpf(b) * part for b, part in zip(below, excess, strict=True))
        return mpmath.log1p((order - 1) * sum(parts))


@pytest.mark.parametrize("order", [1.5, 2.0, 9.0])
def test_a_moment_counts_both_ends_of_what_a_change_may_be(order):
    """A change is known within its slack: the bounds hold wherever in it the truth is."""
    ratio, slack, below = np.array([0.5, -0.4]), np.array([0.1, 0.05]), np.array([0.4, 0.6])
    exponent = np.zeros(2, np.int64)
    lower, upper = pair._bounds(ratio, slack, below, exponent, 1.0, order)
    worlds = itertools.product((0.4, 0.5, 0.6), (-0.45, -0.4, -0.35))
    exact = [moment_oracle(world, below, order) for world in worlds]
    assert lower <= min(exact)
    assert max(exact) <= upper <= max(exact) * (1 + mpf(1e-9))
    assert min(exact) * (1 - mpf(1e-9)) <= lower


@pytest.mark.parametrize("order", [1500.0, 2000.5])
def test_moments_of_great_orders_are_summed_as_logarithms(order):
    ratio, below = np.array([0.5, -0.4]), np.array([0.4, 0.6])
    lower, upper = pair._bounds(ratio, np.zeros(2), below, np.zeros(2, np.int64), 1.0, order)
    with mpmath.workdps(60):
        exact = mpmath.log(mpf(0.4) * mpf(1.5) ** order + mpf(0.6) * mpf(0.6) ** order)
    assert lower <= exact <= upper <= lower * (1 + 1e-9)


def test_rows_are_apart_where_a_code_is_possible_in_one_of_them_only():
    assert not Rows.of(SKEWED, "replace_one").apart
    rows = np.array([[4, 4, 0], [1, 3, 4]])
    levels = np.array([-2.0, 0.0, 2.0])
    apart = rq.Channel(np.array([-1.0, 1.0]), levels, rows, 8)
    assert Rows.of(apart, "replace_one").apart
    never = rq.Channel(np.array([-1.0, 1.0]), levels, np.array([[4, 0, 4], [1, 0, 7]]), 8)
    assert not Rows.of(never, "replace_one").apart


def test_an_outcome_counts_that_is_likely_in_one_of_the_two_laws():
    first, second = np.array([0.499, 0.5, 1e-3]), np.array([0.5, 0.5 - 1e-9, 1e-9])
    found = np.empty((2, 3, 3))
    for table, keep in zip(found, (1e-6, 1e-12), strict=True):
        attained(first, second, keep, 0.0, 2.0, 2, table)
    assert found[0] == pytest.approx(found[1], rel=0, abs=0)
    assert found[0].max() > 100  # what the third outcome adds


@pytest.mark.parametrize("order", [1.2, 2.0, 2.5, 9.0])
def test_what_is_left_out_is_bounded_where_laws_differ_the_most(order):
    """Outcomes of chance e^-20 in one law and e^3 times that in the other: M, and S's G(r)."""
    outcomes, log_least, loss = 7, -20.0, 3.0
    found = margins.left_out(outcomes, log_least, loss, order)
    assert found >= outcomes * math.exp(log_least + (order - 1) * loss)
    for ratio in (math.exp(loss), math.exp(-loss)):
        share = (ratio**order - 1 - order * (ratio - 1)) / ((order - 1) * (ratio - 1) ** 2)
        assert found >= outcomes * math.exp(log_least) * share


@pytest.mark.parametrize("clients", [2, 3, 4, 9])
def test_every_arrangement_of_the_others_or_its_mirror_image_is_looked_at(clients):
    skewed = two_ended._Ends(SKEWED, clients, 2.0, two_ended.LOOSE)
    mirrored = two_ended._Ends(LEVEL, clients, 2.0, two_ended.LOOSE)._neighbours()
    assert len(list(mirrored)) == (clients + 1) // 2
    assert len(list(skewed._neighbours())) == clients


def test_boxes_are_bounded_by_their_steepest_corner_at_their_least_distance():
    """Box by box of the finest cut; S is great at the far corner alone, and linear between."""
    parts, fine, order = 3, two_ended._finer(3), 4.0
    found = np.zeros((parts + 1, parts + 1))
    found[0, parts] = 1e6
    worst = 0.0
    cells = range(parts * fine)
    for i, j in itertools.product(cells, cells):
        in_corner_box = i < fine and j >= (parts - 1) * fine
        corner = (1 - i / fine) * (j + 1 - (parts - 1) * fine) / fine if in_corner_box else 0.0
        least = max(abs(i - j) - 1, 0) / (parts * fine)
        scale = (order - 1) * least**2
        worst = max(worst, math.log1p(scale * corner * 1e6) / scale if scale else corner * 1e6)
    bound = two_ended._Ends(LEVEL, 3, order, two_ended.LOOSE)._bound(found)
    assert worst <= bound <= worst * (1 + 1e-9)
