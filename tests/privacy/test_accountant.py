import dataclasses
import math

import mpmath
import oracle
import pytest
from every_release import OTHER
from hypothesis import given, settings
from hypothesis import strategies as st
from lower_ends import channel_below, lower_end

import randquant as rq
from randquant.privacy import (
    ORDERS,
    RESERVED_SHARE,
    ChannelRelease,
    GaussianRelease,
    Mixture,
    ReleaseDefaults,
    VectorRelease,
    account,
    account_at,
    compose,
)
from randquant.privacy.accounting.accountant import _to_epsilon

PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)


def test_an_iterator_of_releases_is_read_once():
    releases = [ChannelRelease(PAPER, 600, 20), ChannelRelease(PAPER, 7, 20)]
    assert account(iter(releases), 1e-5) == account(releases, 1e-5)
    with pytest.raises(TypeError, match="list of releases"):
        account(releases[0], 1e-5)  # type: ignore[arg-type]


def test_an_infinite_certificate_stays_infinite():
    channel = rq.stochastic_rounding(1.0, 16)
    guarantee = account([ChannelRelease(channel, 10, 1)], 1e-5)
    assert guarantee.epsilon == math.inf
    assert "no guarantee" in str(guarantee)


@dataclasses.dataclass
class CloseRelease(ReleaseDefaults):
    """A Gaussian's bound for something that is only close to it."""

    distance: float
    trust: str = "aggregate"
    neighboring = "replace_one"
    releases: int = 1
    spread: float = 2.0

    def renyi(self, order: float) -> float:
        return order / (2 * self.spread**2)


@dataclasses.dataclass
class Paired(CloseRelease):
    """Known by the dominating pairs of its rounds alone."""

    def renyi(self, order: float) -> float:
        return math.inf

    @property
    def dominating_pairs(self):
        return Mixture.from_distances(0.1, 1.0, 1.0, 0.0), 50


@dataclasses.dataclass
class LikeNoise(Paired):
    """Known by the Gaussian noise that dominates it alone."""

    dominating_pairs = None
    squared_mu = 0.25


def test_what_is_set_aside_for_closeness_no_bound_spends():
    for made in (Paired, LikeNoise):
        for delta in (1e-9, 1e-5, 1e-2):
            left = account([made(0.0)], delta * (1 - RESERVED_SHARE)).epsilon
            assert account([made(0.0)], delta).epsilon < left < math.inf
            assert account([made(1e-300)], delta).epsilon == left


@pytest.mark.parametrize("multiplier", [0.05, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-300, 1e-9, 1e-5, 0.5, 0.99, 0.9999, 0.9999985874634529])
def test_renyi_bounds_alone_are_converted_at_their_best_order(multiplier, delta):
    release = CloseRelease(0.0, spread=multiplier / math.sqrt(30))
    guarantee = account([release], delta)
    exact = min(oracle.rdp_to_epsilon(release.renyi(order), order, delta) for order in ORDERS)
    assert exact <= guarantee.epsilon <= max(exact, 0) * (1 + 1e-12) + 1e-8
    assert guarantee.trust == "aggregate"


@dataclasses.dataclass
class GivingUp(CloseRelease):
    """Bounded like a Gaussian to some order, and beyond it by what one client tells."""

    last: float = 16.0
    rounds: int = 1

    def renyi(self, order: float) -> float:
        return self.rounds * (order / 2000 if order <= self.last else 600.0)


@pytest.mark.parametrize("last", [3.0, 16.0])
def test_a_bound_that_gives_up_at_high_orders_is_used_below_them(last):
    """More rounds reveal more: what bounds two rounds bounds one."""
    epsilons = [account([GivingUp(0.0, last=last, rounds=n)], 1e-5).epsilon for n in (1, 2, 64)]
    assert epsilons == sorted(epsilons)
    exact = min(
        oracle.rdp_to_epsilon(order / 2000, order, 1e-5) for order in ORDERS if order <= last
    )
    # At order 2 a variance of e^0.001 - 1, theory/accounting.md.
    exact = min(exact, mpmath.log1p((mpmath.expm1(0.001) - 4e-10) / 4e-5))
    assert exact <= epsilons[0] <= exact * (1 + 1e-12)


@pytest.mark.parametrize(
    ("spread", "delta"), [(2.0, 1e-9), (2.0, 1e-5), (2.0, 0.01), (400.0, 1e-5)]
)
def test_closeness_is_paid_for_out_of_delta(spread, delta):
    """(epsilon, delta) of what is bounded is delta + (1 + e^epsilon) · distance of what is sent.

    Of a spread of 400 epsilon is small, and neither direction may be left out.
    """

    def close(distance):
        return CloseRelease(distance, spread=spread)

    assert RESERVED_SHARE * 1024 == 1  # the part that docs/theory/accounting.md states
    exact = account([close(0.0)], delta).epsilon
    left = account([close(0.0)], delta * (1 - RESERVED_SHARE)).epsilon
    assert exact < left < 1.02 * exact
    most = delta * RESERVED_SHARE / (1 + math.exp(left))
    assert account([close(most * 0.999)], delta).epsilon == left
    assert account([close(most * 1.001)], delta).epsilon == math.inf
    order = account([close(0.0)], delta).order
    assert account_at([close(0.0)], delta, order) == exact
    assert account_at([close(most * 0.999)], delta, order) == left
    assert account_at([close(most * 1.001)], delta, order) == math.inf
    both = [close(most * 0.51), close(most * 0.51)]
    assert account(both, delta).epsilon == math.inf
    assert account([close(1e-300)], 0.0).epsilon == math.inf


def test_releases_that_do_not_compose_are_refused():
    with pytest.raises(ValueError, match="one trust"):
        account([ChannelRelease(PAPER, 1, 1), GaussianRelease(1.0, 1, 1)], 1e-5)
    with pytest.raises(ValueError, match="one trust"):
        account([], 1e-5)
    with pytest.raises(ValueError, match="one neighboring"):
        account([ChannelRelease(PAPER, 1, 1, neighboring=n) for n in OTHER], 1e-5)


@settings(max_examples=300, deadline=None)
@given(
    st.floats(1e-12, 1e12) | st.just(0.0),
    st.sampled_from(ORDERS) | st.floats(1.0000001, 1e5),
    st.floats(1e-300, 0.999) | st.sampled_from([1e-5, 1e-9]),
)
def test_the_conversion_is_rounded_up_from_the_exact_one(divergence, order, delta):
    exact = max(oracle.rdp_to_epsilon(divergence, order, delta), 0)
    found = _to_epsilon(divergence, order, delta)
    terms = divergence + (abs(math.log(delta)) + math.log(order)) / (order - 1) + 1
    assert exact <= found <= exact + 1e-14 * terms * 3 + 1e-14 / (order - 1)


def test_different_releases_add_up_and_so_do_their_distances():
    two = [CloseRelease(0.0, spread=2 / math.sqrt(3), releases=15), CloseRelease(0.0, spread=1.0)]
    guarantee = account(two, 1e-5)
    exact = min(
        oracle.rdp_to_epsilon(order * (3 / (2 * 4) + 1 / 2), order, 1e-5) for order in ORDERS
    )
    assert exact <= guarantee.epsilon <= exact * (1 + 1e-9)
    assert guarantee.releases == 15 + 1
    close = [CloseRelease(1e-12), CloseRelease(2e-12)]
    left = account([CloseRelease(0.0)] * 2, 1e-5 * (1 - RESERVED_SHARE)).epsilon
    most = 1e-5 * RESERVED_SHARE / (1 + math.exp(left))
    assert account(close, 1e-5).epsilon == left
    assert account([CloseRelease(most * 0.49)] * 2, 1e-5).epsilon == left
    assert account([CloseRelease(most * 0.6)] * 2, 1e-5).epsilon == math.inf


@pytest.mark.parametrize("spread", [1e-6, 1e8])
def test_the_best_order_may_be_beyond_those_that_are_tried(spread):
    """Of hardly any noise, or of much: the first or the last order bounds it best."""
    found = account([CloseRelease(0.0, spread=spread)], 1e-5)
    every = [account_at([CloseRelease(0.0, spread=spread)], 1e-5, order) for order in ORDERS]
    assert found.epsilon == min(every)


def test_zero_out_costs_less_than_any_proof_gives_for_replace_one():
    for releases in (1, 50):
        zeroed = account([ChannelRelease(PAPER, releases, 1, neighboring="zero_out")], 1e-5)
        assert zeroed.epsilon < lower_end([ChannelRelease(PAPER, releases, 1)], 1e-5)


def test_every_release_of_a_channel_counts():
    for releases in (1, 2):
        guarantee = account([ChannelRelease(PAPER, releases, 1)], 1e-5)
        composed, _ = compose(PAPER, releases, 1e-5)
        assert channel_below(PAPER, releases, 1e-5) < guarantee.epsilon <= composed
    guarantee = account([ChannelRelease(PAPER, 600, 1)], 1e-5, quick=True)
    assert guarantee.epsilon == compose(PAPER, 600, 1e-5, quick=True)[0]


@pytest.mark.parametrize("cohort", [1, 3])
def test_codes_that_say_nothing_of_the_input_cost_nothing(cohort):
    """A channel of equal rows, as a hostile server may offer: no bound may divide by its zero."""
    rows = [[3, 5], [3, 5]]
    channel = rq.Channel([-1.0, 1.0], [0.0, 1.0], rows, 8)
    trust = "local" if cohort == 1 else "aggregate"
    for release in (VectorRelease(channel, 0.5, 4, 3, trust, cohort=cohort),
                    ChannelRelease(channel, 4, 3, trust, cohort=cohort)):  # fmt: skip
        for quick in (False, True):
            assert rq.account([release], 1e-5, quick=quick).epsilon == 0
