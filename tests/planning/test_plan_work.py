"""How many of the expensive bounds a plan asks for: what keeps it quick, whatever the machine."""

import pytest

import randquant as rq
from randquant.planning.plan.planner import plan
from randquant.privacy.accounting import releases
from randquant.privacy.accounting.martingale import steps_of_sums
from randquant.privacy.certificates.sums import blocks, ends


@pytest.mark.parametrize(("name", "most"), [("imvu", 6), ("stochastic-rounding", 2)])
def test_a_calibration_asks_for_few_bounds_of_sums(monkeypatch, name, most):
    """The best order at two noises, or three, and the orders beside it at the last one."""
    asked = set()

    def counted(channel, clients, order):
        asked.add((channel, order))
        return plain(channel, clients, order)

    plain = releases.kappa_sum
    monkeypatch.setattr(releases, "kappa_sum", counted)
    found = plan(10**6, 1000, 1000, 50, 8.0, mechanisms=[name])
    guarantee = found.entries[0].guarantee
    assert guarantee is not None
    assert 7.99 < guarantee.epsilon <= 8
    assert 2 <= len(asked) <= most


def test_arrangements_of_fewer_clients_are_tried_only_where_they_may_help(monkeypatch):
    far = rq.stochastic_rounding(1.0, 2, 50.0)

    def none(*given):
        raise AssertionError

    found = ends.between_ends(far, 9000, 2.0)
    assert found.lower <= found.upper <= 1.05 * found.lower
    monkeypatch.setattr(ends, "_Ends", none)
    ends.between_ends.cache_clear()
    assert ends.between_ends(far, 9000, 2.0) == found


def test_where_no_moments_are_known_no_curvature_is_asked_for(monkeypatch):
    monkeypatch.setattr("randquant.privacy.accounting.martingale.kappa_sum", None)
    assert steps_of_sums(rq.rqm(1.0, 1.0, 4, 0.4), 1000, 1.0, 1) is None
    assert steps_of_sums(rq.stochastic_rounding(1.0, 2, 3.0), 10_000, 1.0, 1) is None


def test_a_bell_that_one_law_has_no_room_for_is_fitted_under_no_other(monkeypatch):
    channel, fitted = rq.rqm(1.0, 1.0, 8, 0.4), []

    def none(law, bells, first):
        fitted.append(law)
        return 0 * plain(law, bells, first)

    plain = blocks._shares
    monkeypatch.setattr(blocks, "_shares", none)
    blocks.block_blankets.cache_clear()
    assert blocks.block_blankets(channel) == ()
    blocks.block_blankets.cache_clear()
    assert 1 <= len(fitted) <= 2
