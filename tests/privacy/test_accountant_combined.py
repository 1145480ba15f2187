"""Releases of different kinds in one account: none is forgotten, and order and parts do not matter.

What each kind promises by itself: `test_releases_contract`.
"""

import functools
import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from every_release import ALL, GROUPS, of_group, repeated
from hypothesis import given, settings
from hypothesis import strategies as st
from slow import slow

import randquant as rq
from randquant.planning import Need
from randquant.privacy import (
    DRAWS,
    GaussianRelease,
    HiddenCohorts,
    LaplaceRelease,
    ReleaseDefaults,
    Sampled,
    account,
)

DELTA = 1e-5
PAIRS = [(*g, *pair) for g in GROUPS for pair in itertools.combinations(of_group(*g), 2)]
REPLACED = [pair for pair in PAIRS if pair[1] == "replace_one"]
AGGREGATE = of_group("aggregate", "replace_one")
ZEROED = [pair for pair in PAIRS if pair[1] == "zero_out" and {"poisson", "fixed"} & {*pair[2:]}]
"""Of the others the two relations are composed in the same way."""


def cost(*releases, delta=DELTA, quick=False):
    return account(releases, delta, quick=quick).epsilon


@functools.cache
def alone(trust, neighboring, name, delta=DELTA):
    return cost(of_group(trust, neighboring)[name], delta=delta, quick=True)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("trust", "neighboring", "one", "other"), [*REPLACED, *slow(*ZEROED)])
def test_two_releases_cost_at_least_either_and_at_most_about_both(trust, neighboring, one, other):
    group = of_group(trust, neighboring)
    pair = group[one], group[other]
    both = account(pair, DELTA, quick=True)
    parts = [alone(trust, neighboring, name) for name in (one, other)]
    assert both.epsilon > max(parts) + 1e-3 * min(parts)
    assert both.releases == sum(each.releases for each in pair)
    assert both.hidden == any(each.sampled for each in pair)
    # Basic composition, with half of delta for each.
    assert both.epsilon <= sum(alone(trust, neighboring, n, DELTA / 2) for n in (one, other))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("trust", "neighboring", "name"), ALL)
def test_what_is_done_no_times_adds_nothing_and_twice_is_two(trust, neighboring, name):
    release = of_group(trust, neighboring)[name]
    none, twice = repeated(release, 0), repeated(release, 2)
    assert (none.releases, none.distance, cost(none)) == (0, 0, 0)
    assert [none.renyi(order) for order in (1.5, 2.0, math.inf)] == [0, 0, 0]
    assert account([none], DELTA, quick=True).epsilon == 0
    assert twice.releases == 2 * release.releases
    assert twice.rounds == 2 * release.rounds
    assert twice.distance == pytest.approx(2 * release.distance, rel=1e-9, abs=0)
    for order in (1.5, 2.0, 64.0, math.inf):
        assert twice.renyi(order) == pytest.approx(2 * release.renyi(order), rel=1e-9, abs=0)
    quickly = [account(run, DELTA, quick=True).epsilon for run in
               ([twice], [release, release], [release, none, release], [release])]  # fmt: skip
    assert quickly[0] == pytest.approx(quickly[1], rel=1e-9, abs=0)
    assert quickly[1] == pytest.approx(quickly[2], rel=1e-9, abs=0)
    halves = 2 * alone(trust, neighboring, name, DELTA / 2)
    assert quickly[3] < quickly[0] <= halves * (1 + 1e-9)


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_the_order_of_releases_does_not_matter(neighboring):
    for trust, names in (
        ("central", ("fixed", "plain", "poisson")), ("local", ("plain", "updates", "coordinates")),
        ("aggregate", ("narrow bits", "updates", "three codes")),
    ):  # fmt: skip
        group = [of_group(trust, neighboring)[name] for name in names]
        found = {cost(*run, quick=True) for run in itertools.permutations(group)}
        assert max(found) == pytest.approx(min(found), rel=1e-9, abs=0)


def test_plain_noise_beside_hidden_rounds_counts_in_full():
    """Between what it costs beside rounds that everybody sees, and beside none."""
    plain = GaussianRelease(1.0, 650, 1)
    absent = GaussianRelease(2.0, 650, 1, neighboring="zero_out")
    both = account([Sampled(plain, 0.01, 1000, absent=absent), plain], DELTA)
    assert cost(plain) < both.epsilon < cost(plain, repeated(plain, 10))


class RenyiAlone(ReleaseDefaults):
    """A release of one's own, that no Gaussian noise is known to dominate."""

    trust, neighboring, rounds, releases, distance = "central", "replace_one", 1, 5, 0.0

    def renyi(self, order):
        return order / 2


def test_what_no_noise_is_known_to_dominate_counts_beside_hidden_rounds():
    plain = GaussianRelease(1.0, 650, 1)
    hidden = Sampled(plain, 0.01, 1000, absent=GaussianRelease(2.0, 650, 1, neighboring="zero_out"))
    assert cost(hidden, RenyiAlone()) >= cost(hidden, plain)


def test_beside_gaussian_noise_every_pure_part_adds_its_epsilon():
    """Two of 3 nats: both noises are on one side of zero in half of all runs, and tell 6 nats."""
    table = LaplaceRelease(10.0, 30, 0.0, cohort=1, dimension=1, rounds=1, trust="central")
    run = GaussianRelease(3.0, 1, 1)
    assert cost(run) < 2 < table.renyi(math.inf)
    assert cost(run, table, table) > 6
    assert cost(run, table, table) <= 6.001 + cost(run)


def test_one_hidden_part_makes_the_whole_rest_on_hidden_cohorts():
    plain = GaussianRelease(4.0, 5, 1)
    hidden = Sampled(plain, 0.1, 5)
    for order in ([plain, hidden], [hidden, plain]):
        assert ", hidden cohorts)" in str(account(order, DELTA, quick=True))
    assert not account([plain], DELTA, quick=True).hidden


@settings(max_examples=8)
@given(
    st.sampled_from(["poisson", "fixed"]), st.sampled_from([1e-12, 1e-9, 1e-7, 1e-4]),
    st.sampled_from([0.7, 2.0, 8.0]), st.sampled_from([1e-4, 1e-5, 1e-7]),
)  # fmt: skip
def test_however_rarely_a_client_takes_part_more_rounds_cost_no_less(scheme, rate, noise, delta):
    one = GaussianRelease(noise, 5, 1)
    found = [cost(Sampled(one, rate, 10**k, scheme), delta=delta) for k in (7, 8, 9, 10)]
    assert found == sorted(found)


@pytest.mark.parametrize("rounds", [10**7, 10**8, 10**9])
@pytest.mark.parametrize("noise", [1.0, 2.0])
def test_a_rare_client_costs_what_the_variance_of_its_ratio_says(rounds, noise):
    """Added noise hides it about as a shift of sqrt(rounds · variance) does."""
    rate = 1e-9
    variance = rounds * rate**2 * math.expm1(1 / noise**2)
    found = cost(Sampled(GaussianRelease(noise, 5, 1, neighboring="zero_out"), rate, rounds))
    shift = GaussianRelease(1 / math.sqrt(variance), 5, 1, neighboring="zero_out")
    scarf = math.log1p(max(variance - 4 * DELTA**2, 0) / (4 * DELTA))
    assert cost(shift) * (1 - 1e-3) - 1e-9 <= found <= scarf * (1 + 1e-6) + 1e-12
    assert (found == 0) == (variance <= 4 * DELTA**2)


class Noise:
    """Of a trusted server."""

    def release(self, dimension, rounds, neighboring):
        return GaussianRelease(4.0, dimension, rounds, "central", neighboring)


@pytest.mark.parametrize(("trust", "senders"), [("central", 10), ("local", 100)])
def test_whoever_adds_noise_sends_also_where_it_takes_no_part(trust, senders):
    """Without it the noise of absent clients is missing."""

    class Noisy:
        def release(self, dimension, rounds, neighboring):
            return GaussianRelease(4.0, dimension, rounds, trust, neighboring)

    cohorts = HiddenCohorts("poisson", 100, 10, 20)
    assert cohorts.summands(trust) == senders
    assert cohorts.release(Noisy(), 3, 20, "replace_one").hidden == (senders == 100)
    assert HiddenCohorts("fixed", 100, 10, 20).summands(trust) == 10


@given(st.sampled_from(DRAWS), st.integers(1, 300), st.data())
def test_hidden_cohorts_never_count_less_than_what_is_drawn(draw, population, data):
    cohort = data.draw(st.integers(1, population))
    rounds = data.draw(st.integers(1, 500))
    hidden = HiddenCohorts(draw, population, cohort, rounds)
    exact = Fraction(rounds * cohort, population)
    assert exact <= hidden.participations < exact + 1
    noise = Noise()
    for neighboring in ("replace_one", "zero_out"):
        for done in (1, rounds):
            release = hidden.release(noise, 3, done, neighboring)
            assert Fraction(release.rate) >= Fraction(cohort, population)
            assert release.rounds == done
    # The same number wherever it is computed.
    sizes = 3, population, cohort, rounds
    assert hidden.participations == Need(*sizes, 1.0, DELTA, "local").balanced


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("scheme", ["poisson", "fixed"])
def test_hidden_rounds_in_parts_cost_what_they_cost_at_once(scheme, neighboring):
    """By the composed loss too, which no quick account looks at."""
    one, other = (
        GaussianRelease(1.5, 5, 1, neighboring=n)
        for n in (neighboring, "zero_out" if neighboring == "replace_one" else "replace_one")
    )
    needed = (neighboring == "zero_out") == (scheme == "fixed")
    part = Sampled(one, 0.1, 40, scheme, absent=other if needed else None)
    found = [cost(*run) for run in ([part] * 3, [repeated(part, 3)], [part, repeated(part, 2)])]
    assert found == pytest.approx([found[0]] * 3, rel=1e-9, abs=0)
    assert found[0] > 1.2 * cost(part)


def test_a_pure_release_adds_its_epsilon_to_others():
    """Beside Gaussian noise, Laplace noise compared with Gaussian noise would cost more."""
    laplace = LaplaceRelease(10.0, 5, 0.0, cohort=1, dimension=3, rounds=1, trust="central")
    gaussian = rq.GaussianRelease(8.0, dimension=5, rounds=1, trust="central")
    alone = rq.account([gaussian], 1e-6).epsilon
    assert rq.account([laplace], 1e-6).epsilon == pytest.approx(0.5)
    for order in ([laplace, gaussian], [gaussian, laplace]):
        both = rq.account(order, 1e-6)
        assert both.epsilon == pytest.approx(0.5 + alone)
        assert both.epsilon >= 0.5 + alone
    many = [replace(gaussian, rounds=1000), laplace]  # then they hide each other better together
    assert rq.account(many, 1e-6).epsilon < 0.5 + rq.account(many[:1], 1e-6).epsilon


NOTHING = LaplaceRelease(40.0, 0, 0.0, cohort=20, dimension=3, rounds=1)


@pytest.mark.parametrize("name", [n for n, each in AGGREGATE.items() if each.distance > 0])
def test_the_part_of_delta_for_the_law_that_is_drawn_is_set_aside_in_every_comparison(name):
    """A pure part is composed by itself; what is left for the rest must stay the same."""
    release = AGGREGATE[name]
    assert cost(NOTHING) == 0
    beside = cost(release, NOTHING, quick=True)
    assert cost(release, quick=True) <= beside <= cost(release, quick=True) * (1 + 1e-6)
