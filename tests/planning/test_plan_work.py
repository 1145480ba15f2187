"""How many of the expensive bounds a plan asks for: what keeps it quick, whatever the machine."""

import math

import pytest
from slow import slow

from randquant.mechanisms import UpdateSetting
from randquant.planning import tune_update, update_family
from randquant.planning.planner import plan
from randquant.privacy import Neighboring, ReleaseDefaults, Trust, account, gaussian_order
from randquant.privacy.accounting import releases


@pytest.mark.parametrize(("name", "most"), [("stochastic-rounding", 2), *slow(("imvu", 5))])
def test_a_calibration_asks_for_few_bounds_of_sums(monkeypatch, name, most):
    """The best order at two noises, or three, and the orders beside it at the last one."""
    asked = set()

    def counted(channel, clients, order, *pairs):
        asked.add((channel, order))
        return plain(channel, clients, order, *pairs)

    plain = releases.kappa_sum
    monkeypatch.setattr(releases, "kappa_sum", counted)
    found = plan(10**6, 1000, 1000, 50, 8.0, mechanisms=[name])
    guarantee = found.entries[0].guarantee
    assert guarantee is not None
    assert 7.99 < guarantee.epsilon <= 8
    assert 2 <= len(asked) <= most


class Costly(ReleaseDefaults):
    """A divergence like Gaussian noise's, up to one that it has at every higher order."""

    trust: Trust = "local"
    neighboring: Neighboring = "replace_one"
    rounds, releases, distance = 1, 1, 0.0

    def __init__(self, rate: float, most: float):
        self.rate, self.most, self.asked = rate, most, set()

    def renyi(self, order):
        self.asked.add(order)
        return min(self.rate * order, self.most)


def test_the_best_order_is_found_from_far_away_with_few_bounds():
    for near in (1.001, 3.0, 1e4):
        release = Costly(2.0, math.inf)
        found = account([release], 1e-5, start_order=near)
        assert found.epsilon == account([Costly(2.0, math.inf)], 1e-5).epsilon
        assert len(release.asked) <= 18
        assert abs(math.log(found.order / gaussian_order(found.epsilon, 1e-5))) < 0.3


def test_a_generous_target_does_not_search_where_channels_cannot_be_made():
    """Near the least noise that 62 bits allow a programme takes seconds, and beyond it fails."""
    setting = UpdateSetting(dimension=22, cohort=20, bits=2, trust="local")
    found = tune_update("optimal", setting, 1000.0, 1e-5, 5, deviation=0.03).calibration
    assert found.noise == update_family("optimal", setting).reach[0]
    assert found.guarantee.epsilon <= 1000
    assert found.calls <= 4
