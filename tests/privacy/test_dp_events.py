"""Events of dp-accounting as releases: equal to dp-accounting alone, and composed with ours."""

import math
import re
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import randquant as rq
from randquant._internal.rounding import round_up
from randquant.privacy.accounting.accountant import ORDERS, _to_epsilon
from randquant.privacy.accounting.amplification import amplified
from randquant.privacy.accounting.dp_events import _Foreign, event_release
from randquant.privacy.accounting.sampled import Sampled

REPLACE_SPECIAL = dpa.NeighboringRelation.REPLACE_SPECIAL
REPLACE_ONE = dpa.NeighboringRelation.REPLACE_ONE
DELTA = 1e-5
THEORY = (Path(__file__).parents[2] / "docs" / "theory" / "sampling.md").read_text()

EVENTS = [
    dpa.GaussianDpEvent(3.0),
    dpa.LaplaceDpEvent(5.0),
    dpa.ZCDpEvent(rho=0.01),
    dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.5)),
    dpa.RandomizedResponseDpEvent(0.7, 4),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_cost_what_their_accountant_says(event):
    theirs = RdpAccountant(neighboring_relation=REPLACE_SPECIAL).compose(event, 5)
    release = event_release(dpa.SelfComposedDpEvent(event, 5), "zero_out")
    assert (release.trust, release.neighboring) == ("local", "zero_out")
    # Our search also looks between their orders.
    ours = rq.account([release], DELTA).epsilon
    assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=0.02)
    # Where divergences are known, they are theirs, and never below.
    assert all(
        theirs <= release.renyi(order) <= theirs * (1 + 1e-12)
        for order, theirs in zip(theirs._orders, theirs._rdp, strict=True)
        if order > 1
    )


def test_releases_and_events_add_up():
    release = rq.GaussianRelease(3.0, dimension=7, rounds=4, neighboring="zero_out")
    event = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(3.0), 4)
    both = [release, event_release(event, "zero_out", "central")]
    twice = min(_to_epsilon(2 * release.renyi(order), order, DELTA) for order in ORDERS)
    epsilon = rq.account(both, DELTA).epsilon
    assert epsilon == pytest.approx(twice, rel=0.01)
    # By Rényi divergences it is above what accounts for Gaussian noise exactly.
    assert 0.9 * twice < rq.account([release, release], DELTA).epsilon < epsilon
    assert epsilon >= twice


def test_replacing_a_record_moves_their_sums_twice_as_far():
    """dp-accounting's own accountants disagree here: only one of them doubles the distance."""
    event = dpa.GaussianDpEvent(2.0)
    exact = PLDAccountant(REPLACE_ONE, 1e-3).compose(event, 10).get_epsilon(DELTA)
    theirs = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event, 10).get_epsilon(DELTA)
    assert theirs < 0.5 * exact
    ours = rq.account([event_release(dpa.SelfComposedDpEvent(event, 10))], DELTA).epsilon
    assert exact < ours < 1.1 * exact
    assert f"{theirs:.4f} by the first, {exact:.3f} by the second" in THEORY
    assert f"says {ours:.2f}" in THEORY


def test_noise_counts_half_wherever_it_is_in_an_event():
    half, whole = dpa.GaussianDpEvent(1.0), dpa.GaussianDpEvent(2.0)
    for wrap in (
        lambda event: dpa.SelfComposedDpEvent(event, 3),
        lambda event: dpa.ComposedDpEvent([dpa.NoOpDpEvent(), event]),
        lambda event: dpa.SampledWithoutReplacementDpEvent(1000, 10, event),
        lambda event: dpa.dp_event.RepeatAndSelectDpEvent(event, 3.0, 1.0),
    ):
        orders = [4.0, 8.0]
        theirs = RdpAccountant(orders, REPLACE_ONE).compose(wrap(half))
        ours = event_release(wrap(whole), orders=orders)
        found = [ours.renyi(order) for order in orders]
        assert found == pytest.approx(theirs._rdp, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.001, 1.0), (0.02, 0.8), (0.2, 4.0), (0.6, 1.0), (0.99, 2.0)]
)
def test_general_amplification_equals_the_gaussian_one_at_whole_orders(rate, noise):
    """Their formula is for Gaussian noise alone; the general bound meets it from above."""
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    orders = [2, 3, 8, 20]
    theirs = RdpAccountant(orders, REPLACE_SPECIAL).compose(event)._rdp
    release = rq.GaussianRelease(noise, dimension=1, rounds=1, neighboring="zero_out")
    ours = np.array([Sampled(release, rate, rounds=1).renyi(order) for order in orders])
    assert (ours >= theirs * (1 - 1e-12)).all()
    assert (ours <= theirs * 1.03).all()


def theorem_9(curve, rate, order):
    """Wang, Balle and Kasiviswanathan 2019, where pure privacy says nothing."""
    excess = math.comb(order, 2) * rate**2
    excess *= min(4 * math.expm1(curve(2)), 2 * math.exp(curve(2)))
    for j in range(3, order + 1):
        excess += 2 * rate**j * math.comb(order, j) * math.exp((j - 1) * curve(j))
    return math.log1p(excess) / (order - 1)


def test_the_table_of_the_theory_is_what_is_computed():
    rows = re.findall(r"^\| (\d) \| ([\d.]+) \| (\d+) \| (.*) \|$", THEORY, flags=re.MULTILINE)
    assert len(rows) == 5
    for noise, rate, order, figures in rows:
        noise, rate, order = float(noise), float(rate), int(order)

        def gaussian(order, noise=noise):
            return order / (2 * noise**2)

        event = dpa.GaussianDpEvent(noise)
        event = dpa.SampledWithoutReplacementDpEvent(1000, round(1000 * rate), event)
        theirs = RdpAccountant([order], REPLACE_ONE).compose(event)
        ours = amplified(gaussian, rate, order, "replace_one")
        others = (theorem_9(gaussian, rate, order), float(theirs._rdp[0]))
        assert ours < min(others)
        shown = [round_up(ours, 4), *(f"{other:.4g}" for other in others)]
        assert figures == " | ".join(shown)


def test_events_without_a_proof_are_refused():
    for event in (dpa.UnsupportedDpEvent(), dpa.PoissonSampledDpEvent(0.1, EVENTS[0])):
        with pytest.raises(dpa.UnsupportedEventError):
            event_release(event)
    with pytest.raises(ValueError, match="neighboring"):
        event_release(EVENTS[0], "add_or_remove_one")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="trust"):
        event_release(EVENTS[0], trust="none")  # type: ignore[arg-type]


def test_what_protects_nothing_costs_everything_and_what_does_nothing_costs_nothing():
    assert rq.account([event_release(dpa.NonPrivateDpEvent())], DELTA).epsilon == math.inf
    assert rq.account([event_release(dpa.NoOpDpEvent())], DELTA).epsilon == 0


def test_a_foreign_curve_is_above_its_chords_and_ends_where_it_ends():
    orders = np.array([2.0, 4.0, 8.0])
    foreign = _Foreign(orders, orders / 2, "zero_out", "central")
    for order in (2.0, 4.0, 8.0):
        assert order / 2 <= foreign.renyi(order) <= order / 2 * (1 + 1e-12)
    for order in (1.5, 3.0, 6.0):  # (order - 1) · divergence is convex: chords are above it
        low = max(k for k in (1.0, 2.0, 4.0) if k < order)
        high = min(k for k in orders if k > order)
        part = (order - low) / (high - low)
        chord = (1 - part) * (low - 1) * low / 2 + part * (high - 1) * high / 2
        assert foreign.renyi(order) == pytest.approx(chord / (order - 1), rel=1e-12, abs=0)
        assert foreign.renyi(order) > order / 2
    assert foreign.renyi(8.5) == foreign.renyi(math.inf) == math.inf
