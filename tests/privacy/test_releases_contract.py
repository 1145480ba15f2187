"""What every kind of release promises. A release in `every_release` is in every test."""

import dataclasses
import math
import sys

import pytest
from every_release import ALL, OTHER, TRUSTS, of_group, repeated
from lower_ends import channel_below, lower_end

import randquant as rq
from randquant.privacy import ORDERS, Sampled, VectorRelease, account

FEW = (1.0001, 1.5, 2.0, 8.0, 64.0, math.inf)
every = pytest.mark.parametrize(("trust", "neighboring", "name"), ALL)


def cost(*releases, delta: float = 1e-5, quick: bool = True) -> float:
    return account(releases, delta, quick=quick).epsilon


def test_every_kind_of_release_is_here():
    known = {type(each) for trust in TRUSTS for each in of_group(trust, "zero_out").values()}
    public = {
        value
        for module in {kind.__module__ for kind in known}
        for name, value in vars(sys.modules[module]).items()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
        and hasattr(value, "renyi") and value.__module__ == module
        and not name.startswith("_")
    }  # fmt: skip
    assert public == known


@pytest.mark.slow(after=9)
@every
def test_a_larger_order_never_costs_less(trust, neighboring, name):
    release = of_group(trust, neighboring)[name]
    costs = [release.renyi(order) for order in FEW]
    assert costs[0] > 0
    assert costs == sorted(costs)
    assert 0 <= release.distance < 1e-9


@pytest.mark.parametrize("name", ["noise", "binomial", "laplace"])
def test_each_coordinate_of_each_round_is_drawn_from_a_table(name):
    """Each draw is a little away from its law, and delta pays for them all."""
    release = of_group("aggregate", "replace_one")[name]
    one = dataclasses.replace(release, dimension=1, rounds=1)
    assert one.distance > 0
    for dimension, rounds in ((7, 1), (1, 5), (7, 5)):
        many = dataclasses.replace(release, dimension=dimension, rounds=rounds)
        exact = pytest.approx(dimension * rounds * one.distance, rel=1e-12, abs=0)
        assert many.distance == exact


@pytest.mark.slow(after=9)
@pytest.mark.parametrize(
    ("trust", "name"),
    [(trust, name) for trust, relation, name in ALL if relation == "zero_out" and name != "fixed"],
)
def test_zeros_in_place_of_an_update_cost_no_more_than_any_other_update(trust, name):
    zeroed, replaced = (of_group(trust, neighboring)[name] for neighboring in OTHER.values())
    assert (zeroed.neighboring, replaced.neighboring) == ("zero_out", "replace_one")
    assert all(zeroed.renyi(order) <= replaced.renyi(order) for order in FEW)
    assert zeroed.renyi(2.0) < replaced.renyi(2.0)
    assert cost(zeroed) <= cost(replaced)


@pytest.mark.slow(after=1)
@every
def test_a_guarantee_is_within_the_conversion_of_every_order(trust, neighboring, name):
    """Canonne, Kamath and Steinke 2020, Proposition 12; a reserve of delta pays for a distance."""
    release, delta = of_group(trust, neighboring)[name], 1e-9
    guarantee = account([release], delta)
    assert 0 <= lower_end([release], delta) <= guarantee.epsilon < math.inf
    assert guarantee.releases == release.releases
    assert (guarantee.trust, guarantee.neighboring, guarantee.unit) == (
        trust,
        neighboring,
        "client",
    )
    assert guarantee.hidden == isinstance(release, Sampled)
    assert ("hidden cohorts" in str(guarantee)) == guarantee.hidden
    left = delta * (1 - 2.0**-10)
    for order in ORDERS[100::60]:
        converted = (
            release.renyi(order) + math.log1p(-1 / order)
            - (math.log(left) + math.log(order)) / (order - 1)
        )  # fmt: skip
        assert guarantee.epsilon <= max(converted, 0) + 1e-8
    assert guarantee.epsilon <= release.renyi(math.inf) * (1 + 1e-12)


@pytest.mark.slow(after=9)
@every
def test_less_delta_and_more_rounds_cost_more(trust, neighboring, name):
    release = of_group(trust, neighboring)[name]
    deltas = [cost(release, delta=delta) for delta in (0.1, 1e-5, 1e-9)]
    assert deltas == sorted(deltas)
    assert cost(release, quick=False) < cost(repeated(release, 2), quick=False)


@every
def test_a_guarantee_without_delta_is_the_pure_cost(trust, neighboring, name):
    release = of_group(trust, neighboring)[name]
    # Nothing pays for a distance.
    pure = math.inf if release.distance > 0 else release.renyi(math.inf)
    found = account([release], 0.0)
    assert found.epsilon == pytest.approx(pure, rel=1e-12, abs=0)
    assert found.order == math.inf


WRONG = [
    ({"dimension": 0}, ValueError), ({"dimension": 2**53 + 1}, ValueError),
    ({"dimension": 1.5}, TypeError), ({"rounds": -1}, ValueError),
    ({"rounds": 2**53 + 1}, ValueError), ({"cohort": 10**6 + 1}, ValueError),
    ({"rounds": "3"}, TypeError), ({"neighboring": "add_one"}, ValueError),
    ({"trust": "none"}, ValueError), ({"cohort": 0}, ValueError), ({"cohort": 2.5}, TypeError),
    ({"clip_norm": -1.0}, ValueError), ({"clip_norm": math.nan}, ValueError),
    ({"examples": 0}, ValueError), ({"rate": 0.0}, ValueError), ({"scheme": "none"}, ValueError),
    ({"relative_deviation": 0.0}, ValueError), ({"relative_deviation": math.inf}, ValueError),
    ({"squared_distance": -1}, ValueError), ({"squared_distance": 1.5}, TypeError),
]  # fmt: skip


@every
def test_wrong_arguments_are_refused_in_one_sentence(trust, neighboring, name):
    release = of_group(trust, neighboring)[name]
    fields = {field.name for field in dataclasses.fields(release)}
    tried = [case for case in WRONG if case[0].keys() <= fields]
    assert len(tried) >= 5
    for change, error in tried:
        with pytest.raises(error, match=r"^Expected .*[,;] got ") as stop:
            dataclasses.replace(release, **change)
        assert "\n" not in str(stop.value)


# Whoever sees more knows more, by bounds that hold for some releases alone.


def test_the_lower_end_of_few_releases_of_a_strong_channel_rises():
    """With 10 releases the largest loss alone, all that the best tilt leaves, is too unlikely."""
    channel = rq.rqm(clip=1.5, margin=1.5, levels=5, keep=0.42)
    eight, ten = (channel_below(channel, releases, 1e-5) for releases in (8, 10))
    assert eight < ten


@pytest.mark.slow
def test_many_trials_cost_little_more_than_few():
    """31 trials, of which each adds little: 667 when their bits were not seen."""
    channel = rq.pbm(clip=1.0, theta=0.25, trials=31)
    release = VectorRelease(channel, 1.0, 16, 1, "aggregate", cohort=48)
    assert cost(release, quick=False) < 5.0
