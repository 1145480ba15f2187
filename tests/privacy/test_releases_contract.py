"""What every kind of release promises. One line of LINES adds a kind to every test."""

import dataclasses
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
from every_release import repeated

import randquant as rq
from randquant.mechanisms.noise.laws import Binomial, Skellam
from randquant.privacy.accounting.accountant import ORDERS, account
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.laplace import LaplaceRelease
from randquant.privacy.accounting.releases import (
    ChannelRelease,
    GaussianRelease,
    VectorRelease,
)

BIT = rq.stochastic_rounding(clip=0.25, levels=2, margin=1.75)
RQM = rq.rqm(clip=1.5, margin=1.5, levels=5, keep=0.42)
DIMENSION, FEW = 6, (1.0001, 1.5, 2.0, 8.0, 64.0, math.inf)
REPLACED, ZEROED = "replace_one", "zero_out"

# Each makes a release of DIMENSION coordinates from its rounds, its neighbours and how far apart
# they are in units of clip_norm (2 where an update is replaced, 1 where zeros take its place).
LINES: dict[str, Callable[..., Any]] = {
    "channel": lambda rounds, n, far: ChannelRelease(RQM, DIMENSION, rounds, "local", n),
    "channel, sums": lambda rounds, n, far: ChannelRelease(
        BIT, DIMENSION, rounds, "aggregate", n, 3
    ),
    "vector": lambda rounds, n, far: VectorRelease(BIT, 0.1, DIMENSION, rounds, "local", n),
    "vector, sums": lambda rounds, n, far: VectorRelease(
        BIT, 0.1, DIMENSION, rounds, "aggregate", n, cohort=9
    ),
    "vector, examples": lambda rounds, n, far: VectorRelease(
        RQM, 0.1, DIMENSION, rounds, "local", n, examples=10
    ),
    "gaussian": lambda rounds, n, far: GaussianRelease(6.0 / far, DIMENSION, rounds, "central", n),
    "gaussian, local": lambda rounds, n, far: GaussianRelease(
        6.0 / far, DIMENSION, rounds, "local", n
    ),
    "skellam": lambda rounds, n, far: NoiseRelease(
        Skellam(50.0), 20, 100 * far**2, DIMENSION, rounds, n
    ),
    "laplace": lambda rounds, n, far: LaplaceRelease(
        40.0, 4 * far, 1e-50, 20, DIMENSION, rounds, n
    ),
    "binomial": lambda rounds, n, far: NoiseRelease(
        Binomial(200), 20, 100 * far**2, DIMENSION, rounds, n
    ),
}  # fmt: skip

KINDS = ChannelRelease, NoiseRelease, LaplaceRelease
kinds = pytest.mark.parametrize("make", LINES.values(), ids=LINES)


def replaced(make, rounds: int = 3):
    return make(rounds, REPLACED, 2)


def zeroed(make, rounds: int = 3):
    return make(rounds, ZEROED, 1)


def test_every_kind_of_release_has_a_line():
    modules = [sys.modules[kind.__module__] for kind in KINDS]
    public = {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
        and hasattr(value, "renyi") and value.__module__ == module.__name__
        and not name.startswith("_")
    }  # fmt: skip
    assert public == {type(replaced(make)) for make in LINES.values()}


def grows_with_the_order(release) -> bool:
    costs = [release.renyi(order) for order in FEW]
    return costs[0] > 0 and costs == sorted(costs)


@pytest.mark.seldom(1)
@kinds
def test_a_larger_order_never_costs_less(make):
    assert grows_with_the_order(replaced(make))
    assert grows_with_the_order(zeroed(make))


def adds_up_over_rounds(make) -> bool:
    """Rounds add, and are never rounded below their sum."""
    one, many = replaced(make, 1), replaced(make, 7)
    return all(
        math.isclose(many.renyi(order), 7 * one.renyi(order), rel_tol=1e-12)
        for order in FEW
    ) and many.releases == 7 * one.releases == 7 * DIMENSION  # fmt: skip


@kinds
def test_rounds_add_up_and_no_round_costs_nothing(make):
    assert adds_up_over_rounds(make)
    assert repeated(replaced(make, 2), 3) == replaced(make, 6)
    none = replaced(make, 0)
    assert none.releases == none.distance == 0
    assert [none.renyi(order) for order in FEW] == [0] * len(FEW)
    assert account([none], 1e-5).epsilon == 0


def zeros_cost_no_more(make) -> bool:
    pairs = [(zeroed(make).renyi(order), replaced(make).renyi(order)) for order in FEW]
    return all(zeros <= other for zeros, other in pairs)


@kinds
def test_zeros_in_place_of_an_update_cost_no_more_than_any_other_update(make):
    assert zeros_cost_no_more(make)
    assert zeroed(make).renyi(2.0) < replaced(make).renyi(2.0)


@kinds
def test_the_distance_to_what_is_certified_adds_up_and_is_small(make):
    one, many = replaced(make, 1).distance, replaced(make, 5).distance
    assert 0 <= one <= many < 1e-9
    assert many == pytest.approx(5 * one, rel=1e-12, abs=0)


@pytest.mark.seldom(1)
@kinds
def test_a_guarantee_is_within_the_conversion_of_every_order(make):
    """Canonne, Kamath and Steinke 2020, Proposition 12; a reserve of delta pays for a distance."""
    release, delta = replaced(make), 1e-9
    guarantee = account([release], delta)
    assert 0 <= guarantee.lower <= guarantee.epsilon < math.inf
    assert guarantee.releases == release.releases == 3 * DIMENSION
    assert (guarantee.trust, guarantee.neighboring) == (release.trust, REPLACED)
    left = delta * (1 - 2.0**-10)
    for order in ORDERS[100::60]:
        converted = (
            release.renyi(order) + math.log1p(-1 / order)
            - (math.log(left) + math.log(order)) / (order - 1)
        )  # fmt: skip
        assert guarantee.epsilon <= max(converted, 0) + 1e-8
    assert guarantee.epsilon <= release.renyi(math.inf) * (1 + 1e-12)


def cost(*releases, delta: float = 1e-5) -> float:
    return account(releases, delta, quick=True).epsilon


@pytest.mark.seldom(1)
@kinds
def test_less_delta_more_rounds_and_parts_of_a_run_cost_as_they_should(make):
    deltas = [cost(replaced(make), delta=delta) for delta in (0.1, 1e-5, 1e-9)]
    assert deltas == sorted(deltas)
    rounds = [cost(replaced(make, count)) for count in (1, 3, 8)]
    assert rounds == sorted(rounds)
    parts = cost(replaced(make, 1), replaced(make, 7))
    assert parts == pytest.approx(rounds[-1], rel=1e-9, abs=0)
    assert cost(zeroed(make)) <= cost(replaced(make))


@kinds
def test_a_guarantee_without_delta_is_the_pure_cost(make):
    pure = replaced(make).renyi(math.inf)
    if replaced(make).distance > 0:
        pure = math.inf  # nothing pays for it
    found = account([replaced(make)], 0.0)
    assert found.epsilon == pytest.approx(pure, rel=1e-12, abs=0)
    assert found.order == math.inf


WRONG = [
    ({"dimension": 0}, ValueError), ({"dimension": 2**53 + 1}, ValueError),
    ({"dimension": 1.5}, TypeError), ({"rounds": -1}, ValueError),
    ({"rounds": 2**53 + 1}, ValueError), ({"cohort": 10**6 + 1}, ValueError),
    ({"rounds": "3"}, TypeError), ({"neighboring": "add_one"}, ValueError),
    ({"trust": "none"}, ValueError), ({"cohort": 0}, ValueError), ({"cohort": 2.5}, TypeError),
    ({"clip_norm": -1.0}, ValueError), ({"clip_norm": math.nan}, ValueError),
    ({"examples": 0}, ValueError),
    ({"noise_multiplier": 0.0}, ValueError), ({"noise_multiplier": math.inf}, ValueError),
    ({"squared_distance": -1}, ValueError), ({"squared_distance": 1.5}, TypeError),
]  # fmt: skip


@kinds
def test_wrong_arguments_are_refused_in_one_sentence(make):
    release = replaced(make)
    fields = {field.name for field in dataclasses.fields(release)}
    tried = [case for case in WRONG if case[0].keys() <= fields]
    assert len(tried) >= 6
    for change, error in tried:
        with pytest.raises(error, match=r"^Expected .*[,;] got ") as stop:
            dataclasses.replace(release, **change)
        assert "\n" not in str(stop.value)


class Planted:
    """A release with one fault."""

    def __init__(self, release, fault: str) -> None:
        self._release, self._fault = release, fault

    def __getattr__(self, name: str):
        return getattr(self._release, name)

    def renyi(self, order: float) -> float:
        if self._fault == "order":
            return self._release.renyi(1 + 1 / (order - 1)) if order < math.inf else 0.0
        if self._fault == "rounds":
            return self._release.renyi(order) / max(self.rounds, 1)
        return self._release.renyi(order) * (4.5 if self.neighboring == ZEROED else 1)


@pytest.mark.parametrize(
    ("fault", "holds"),
    [
        ("order", lambda make: grows_with_the_order(replaced(make))),
        ("rounds", adds_up_over_rounds),
        ("zeros", zeros_cost_no_more),
    ],
)
def test_planted_faults_are_noticed(fault, holds):
    make = LINES["gaussian"]
    assert holds(make)
    assert not holds(lambda *arguments: Planted(make(*arguments), fault))
