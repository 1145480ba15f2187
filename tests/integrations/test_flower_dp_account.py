"""Flower's own DP strategies with this package's account: right for the distance of their sums."""

import json
import math

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import fedavg, model, mover
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy.dp_adaptive_clipping import (
    DifferentialPrivacyServerSideAdaptiveClipping,
)
from flwr.supercore.privacy_accounting import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    SamplingMethod,
)
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from scipy.stats import norm

import randquant as rq
from randquant.integrations import GaussianAccountant
from randquant.privacy import gaussian_epsilon

DELTA = 1e-5
ADDED, REPLACED = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
POISSON, FIXED, SEEN = (
    SamplingMethod.POISSON, SamplingMethod.WITHOUT_REPLACEMENT, SamplingMethod.NO_AMPLIFICATION,
)  # fmt: skip


def accountant_of(relation=ADDED, sampling=SEEN, population=4, kind=GaussianAccountant, **options):
    return kind(PrivacyConfig(DELTA, population, relation, sampling, **options))


def composed(asked, noise=1.0, times=10, kind=GaussianAccountant, **options):
    accountant = accountant_of(kind=kind, **options)
    population = accountant.config.population_size
    accountant.compose(GaussianPrivacyEvent(noise, asked, population), times)
    return accountant


def delta_of(distance, epsilon):
    """Of two normal laws at a distance, both ways alike."""
    a, b = epsilon / distance - distance / 2, epsilon / distance + distance / 2
    return norm.sf(a) - math.exp(epsilon) * norm.sf(b)


def run(strategy, clients=4, rounds=3):
    """Rounds of Flower's own loop, on a grid of clients with equal weights."""
    app = client_app(lambda message, context, call: call(message, context), mover,
                     metrics=lambda node: {"num-examples": 10})  # fmt: skip
    grid = InProcessGrid(app, range(1, clients + 1))
    return strategy.start(grid, model(), num_rounds=rounds)


def test_flowers_strategy_runs_with_it_and_states_the_exact_figure():
    accountant = accountant_of()
    strategy = DifferentialPrivacyServerSideFixedClipping(
        fedavg(), 2.0, 1.0, num_sampled_clients=4, accountant=accountant
    )
    run(strategy)
    spent = strategy.privacy_spent()
    assert (spent.num_releases, spent.delta, spent.accounting_method) == (3, DELTA, "randquant")
    assert spent.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(3) / 2, DELTA), rel=1e-9)
    theirs = composed(4, 2.0, 3, RdpAccountant).get_epsilon(DELTA)
    assert 0.8 * theirs < spent.epsilon < theirs
    assert str(accountant.guarantee(DELTA)).endswith("(zero_out, central trust)")


def test_flowers_strategy_stops_at_its_limit():
    accountant = accountant_of(max_epsilon=3.2)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        fedavg(), 2.0, 1.0, num_sampled_clients=4, accountant=accountant
    )
    with pytest.raises(PrivacyBudgetExhausted):
        run(strategy, rounds=9)
    one_more = GaussianPrivacyEvent(2.0, 4, 4)
    assert accountant.get_epsilon(DELTA) <= 3.2
    assert accountant.would_exceed(one_more)
    assert not accountant.would_exceed(one_more, max_epsilon=9.0)
    assert accountant.num_releases == 2
    with pytest.raises(ValueError, match="Expected max_epsilon"):
        accountant_of().would_exceed(one_more)


def test_a_limit_is_compared_with_all_sums_that_are_about_to_be_released():
    event, limit = GaussianPrivacyEvent(2.0, 4, 4), composed(4, 2.0, 3).get_epsilon(DELTA)
    assert not accountant_of().would_exceed(event, limit, count=3)
    assert accountant_of().would_exceed(event, limit, count=4)


def test_a_removed_client_is_replaced_where_not_all_are_asked():
    """Two of three clients, opposite updates: the sums differ by twice the clip norm."""
    ours, theirs = (
        composed(2, population=3, times=1, kind=kind).get_epsilon(DELTA)
        for kind in (GaussianAccountant, RdpAccountant)
    )
    with_client, without_it = 1 + 0.5, -1 + 0.5  # the client's update, or its stand-in's
    apart = with_client - without_it
    assert delta_of(apart, theirs) > 100 * DELTA
    assert delta_of(apart, ours) == pytest.approx(DELTA, rel=1e-6)
    # A guarantee for a client that counts as zeros is asked for by name.
    zeros = rq.GaussianSteps("zero_out", "client")
    zeros.step(1.0)
    assert zeros.epsilon(DELTA) < theirs < ours


@pytest.mark.parametrize("order", [1, -1])
def test_rounds_of_everybody_beside_others_are_counted_at_the_larger_distance(order):
    accountant = accountant_of(population=4)
    for asked in (2, 4)[::order]:
        accountant.compose(GaussianPrivacyEvent(3.0, asked, 4), 5)
    assert accountant.guarantee(DELTA).neighboring == "replace_one"
    both = gaussian_epsilon(math.sqrt(10) * 2 / 3, DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(both, rel=1e-6)


def test_a_replaced_client_moves_a_sum_by_twice_the_clip_norm():
    options = {"relation": REPLACED, "sampling": FIXED, "times": 1}
    ours, theirs = (
        composed(4, kind=kind, **options).get_epsilon(DELTA)
        for kind in (GaussianAccountant, RdpAccountant)
    )
    assert delta_of(2.0, theirs) > 100 * DELTA
    assert delta_of(2.0, ours) <= DELTA * (1 + 1e-6)
    sampled = composed(10, noise=2.0, population=1000, times=50, relation=REPLACED, sampling=FIXED)
    release = rq.Sampled.from_cohort(rq.GaussianRelease(1.0, 1, 1), 1000, 10, 50)
    assert sampled.get_epsilon(DELTA) == pytest.approx(
        rq.account([release], DELTA).epsilon, rel=1e-9
    )


def test_poisson_cohorts_are_those_of_dp_accounting():
    options = {"population": 1000, "sampling": POISSON, "times": 200, "noise": 2.0}
    ours, theirs = (
        composed(50, kind=kind, **options).get_epsilon(DELTA)
        for kind in (GaussianAccountant, RdpAccountant)
    )
    assert 0.8 * theirs < ours < theirs


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_adaptive_clipping_is_counted_with_its_second_query(relation):
    """Flower has no accountant for it: its own loop's figure, from what the strategy adds."""
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(fedavg(), 1.0, num_sampled_clients=20)
    steps = rq.GaussianSteps(relation, "client")
    steps.step(strategy.noise_multiplier, count_noise=strategy.clipped_count_stddev, times=10)
    alone = rq.GaussianSteps(relation, "client")
    alone.step(1.0, times=10)
    # The noise that was asked for hides both for a client that is replaced, not for one of zeros.
    ratio = steps.epsilon(DELTA) / alone.epsilon(DELTA)
    assert ratio == pytest.approx(1.0, rel=1e-9) if relation == "replace_one" else ratio > 1.2


def test_delta_inverts_epsilon():
    accountant = composed(4, noise=3.0)
    delta = accountant.get_delta(2.0)
    assert accountant.get_epsilon(delta) <= 2.0 < accountant.get_epsilon(delta * 0.99)
    assert delta_of(math.sqrt(10) / 3, 2.0) == pytest.approx(delta, rel=2e-3)
    assert accountant_of().get_epsilon(DELTA) == 0


def test_a_state_goes_through_json_and_damage_is_refused():
    accountant = composed(4, noise=3.0)
    accountant.compose(GaussianPrivacyEvent(5.0, 2, 4))
    state = json.loads(json.dumps(accountant.state_dict()))
    again = accountant_of()
    again.load_state_dict(state)
    assert again.num_releases == 11
    assert again.get_privacy_spent() == accountant.get_privacy_spent()
    for change in ({"backend": "rdp"}, {"config": {}}, {"more": 1}):
        with pytest.raises(ValueError, match="Expected a state of an accountant"):
            again.load_state_dict({**state, **change})
    for events in ([{"count": 1}], [{**state["events"][0], "noise_multiplier": -1.0}]):
        with pytest.raises((TypeError, ValueError)):
            again.load_state_dict({**state, "events": events})
    assert again.num_releases == 11
    with pytest.raises(ValueError, match="an event of 4 clients"):
        again.compose(GaussianPrivacyEvent(1.0, 1, 5))
    assert np.isfinite(again.get_epsilon(DELTA))
