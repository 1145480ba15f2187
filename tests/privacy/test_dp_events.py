"""Our releases in dp-accounting: equal to `account` alone, to dp-accounting for its own events."""

import dataclasses
import math
import re
from pathlib import Path

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as TheirRdpAccountant
from scipy.special import ndtr

import randquant as rq
from randquant._internal.rounding import round_up
from randquant.mechanisms.noise.laws import Skellam
from randquant.privacy.accounting.accountant import ORDERS, _by_renyi, _to_epsilon
from randquant.privacy.accounting.amplification import amplified
from randquant.privacy.accounting.composition.envelope import dominating_pair
from randquant.privacy.accounting.dp_events import (
    PldAccountant,
    RdpAccountant,
    ReleaseEvent,
    _dots,
    _Foreign,
)
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.release import ReleaseDefaults
from randquant.privacy.accounting.releases import VectorRelease
from randquant.privacy.accounting.sampled import Sampled

CHANNEL = rq.stochastic_rounding(clip=1.0, levels=2, margin=4.0)
RELEASE = rq.ChannelRelease(CHANNEL, dimension=20, rounds=5)
ZERO = rq.ChannelRelease(CHANNEL, dimension=20, rounds=5, neighboring="zero_out")
CENTRAL = rq.GaussianRelease(2.0, dimension=20, rounds=1)
REPLACE_SPECIAL = dpa.NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5


def epsilon(event, count=1, **options):
    return RdpAccountant(**options).compose(event, count).get_epsilon(DELTA)


@pytest.mark.parametrize(
    ("release", "options"),
    [
        (RELEASE, {}),
        (ZERO, {"neighboring": "zero_out"}),
        (CENTRAL, {"trust": "central"}),
        (VectorRelease(CHANNEL, 1.0, 16, 2), {}),
        (NoiseRelease(Skellam(200.0), 40, 64, 16, 3), {"trust": "aggregate"}),
        (Sampled(CENTRAL, 0.05, rounds=9), {"trust": "central"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_releases_alone_are_accounted_as_ever(release, options):
    orders = [2.0, 8.0, 20.0]
    accountant = RdpAccountant(orders, **options).compose(ReleaseEvent(release))
    alone = rq.account([release], DELTA)
    assert accountant.guarantee(DELTA) == alone
    assert accountant.rdp == pytest.approx(
        [release.renyi(order) for order in orders], rel=1e-12, abs=0
    )


def test_compositions_repeat_what_is_in_them():
    longer = rq.ChannelRelease(CHANNEL, dimension=20, rounds=35, neighboring="zero_out")
    zero: dict = {"neighboring": "zero_out"}
    expected = rq.account([longer], DELTA).epsilon
    event = ReleaseEvent(ZERO)
    assert epsilon(event, 7, **zero) == expected
    assert epsilon(dpa.SelfComposedDpEvent(event, 7), **zero) == expected
    mixed = dpa.ComposedDpEvent([event, dpa.SelfComposedDpEvent(event, 3), dpa.NoOpDpEvent()])
    assert epsilon(dpa.ComposedDpEvent([mixed, event, event, event]), **zero) == expected
    accountant = RdpAccountant(**zero).compose(event, 3).compose(event, 4)
    assert accountant.get_epsilon(DELTA) == expected
    assert accountant.ledger == dpa.SelfComposedDpEvent(event, 7)


FOREIGN = [
    dpa.GaussianDpEvent(3.0),
    dpa.LaplaceDpEvent(5.0),
    dpa.ZCDpEvent(rho=0.01),
    dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.5)),
    dpa.RandomizedResponseDpEvent(0.7, 4),
]


@pytest.mark.parametrize("event", FOREIGN, ids=lambda event: type(event).__name__)
def test_events_that_are_not_ours_cost_what_their_accountant_says(event):
    theirs = TheirRdpAccountant(neighboring_relation=REPLACE_SPECIAL).compose(event, 5)
    ours = RdpAccountant(neighboring="zero_out").compose(event, 5)
    # Our search also looks between their orders.
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=0.02)
    assert ours.get_delta(1.0) == pytest.approx(theirs.get_delta(1.0), rel=1e-9, abs=0)
    assert (ours.rdp == theirs.rdp).all()


def test_a_gaussian_release_is_their_gaussian():
    """Noise over the distance of neighbours is their multiplier for one record against none."""
    release = rq.GaussianRelease(3.0, dimension=7, rounds=4, neighboring="zero_out")
    ours = RdpAccountant(neighboring="zero_out", trust="central").compose(ReleaseEvent(release))
    theirs = TheirRdpAccountant(neighboring_relation=REPLACE_SPECIAL)
    theirs.compose(dpa.GaussianDpEvent(3.0), 4)
    assert ours.rdp == pytest.approx(theirs.rdp, rel=1e-12, abs=0)
    both = RdpAccountant(neighboring="zero_out", trust="central")
    both.compose(ReleaseEvent(release)).compose(dpa.GaussianDpEvent(3.0), 4)
    twice = min(_to_epsilon(2 * release.renyi(order), order, DELTA) for order in ORDERS)
    assert both.get_epsilon(DELTA) == pytest.approx(twice, rel=0.01)
    # Theirs by Rényi divergences is above what accounts for Gaussian noise exactly.
    assert 0.9 * twice < rq.account([release, release], DELTA).epsilon < both.get_epsilon(DELTA)
    assert both.get_epsilon(DELTA) >= twice


def test_replacing_a_record_moves_their_sums_twice_as_far():
    """dp-accounting's own accountants disagree here: only one of them doubles the distance."""
    relation = dpa.NeighboringRelation.REPLACE_ONE
    event = dpa.GaussianDpEvent(2.0)
    exact = PLDAccountant(relation, 1e-3).compose(event, 10).get_epsilon(DELTA)
    theirs = TheirRdpAccountant(neighboring_relation=relation).compose(event, 10)
    assert theirs.get_epsilon(DELTA) < 0.5 * exact
    assert exact < epsilon(event, 10) < 1.1 * exact
    shown = (theirs.get_epsilon(DELTA), exact, epsilon(event, 10))
    assert "{:.4f} by the first, {:.3f} by the second".format(*shown) in THEORY
    assert f"says {shown[2]:.2f}" in THEORY
    sampled = dpa.SampledWithoutReplacementDpEvent(1000, 10, dpa.SelfComposedDpEvent(event, 2))
    half = dpa.SampledWithoutReplacementDpEvent(1000, 10, dpa.GaussianDpEvent(1 / math.sqrt(2)))
    theirs = TheirRdpAccountant(neighboring_relation=relation).compose(half)
    assert RdpAccountant().compose(sampled).rdp == pytest.approx(theirs.rdp, rel=1e-9, abs=0)


def test_sampled_releases_are_amplified_where_it_is_proven():
    event = dpa.PoissonSampledDpEvent(0.05, ReleaseEvent(CENTRAL))
    expected = rq.account([Sampled(CENTRAL, 0.05, rounds=9)], DELTA).epsilon
    assert epsilon(event, 9, trust="central") == expected
    event = dpa.SampledWithoutReplacementDpEvent(100, 5, ReleaseEvent(CENTRAL))
    expected = rq.account([Sampled.of_cohort(CENTRAL, 100, 5, rounds=9)], DELTA).epsilon
    assert epsilon(event, 9, trust="central") == expected


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.001, 1.0), (0.02, 0.8), (0.2, 4.0), (0.6, 1.0), (0.99, 2.0)]
)
def test_general_amplification_equals_the_gaussian_one_at_whole_orders(rate, noise):
    """Their formula is for Gaussian noise alone; the general bound meets it from above."""
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    orders = [2, 3, 8, 20]
    theirs = TheirRdpAccountant(orders, REPLACE_SPECIAL).compose(event).rdp
    release = rq.GaussianRelease(noise, dimension=1, rounds=1, neighboring="zero_out")
    ours = np.array([Sampled(release, rate, rounds=1).renyi(order) for order in orders])
    assert (ours >= theirs * (1 - 1e-12)).all()
    assert (ours <= theirs * 1.03).all()


THEORY = (Path(__file__).parents[2] / "docs" / "theory" / "sampling.md").read_text()


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
        theirs = TheirRdpAccountant([order], dpa.NeighboringRelation.REPLACE_ONE).compose(event)
        ours = amplified(gaussian, rate, order, "replace_one")
        others = (theorem_9(gaussian, rate, order), float(theirs.rdp[0]))
        assert ours < min(others)
        shown = [round_up(ours, 4), *(f"{other:.4g}" for other in others)]
        assert figures == " | ".join(shown)


class Unknown(dpa.DpEvent):
    """An event that nobody knows."""


REFUSED = [
    (Unknown(), {}, "Unsupported event"),
    (dpa.UnsupportedDpEvent(), {}, "Unsupported event"),
    (dpa.ComposedDpEvent([ReleaseEvent(RELEASE), Unknown()]), {}, "Unsupported event"),
    (ReleaseEvent(RELEASE), {"trust": "aggregate"}, "under local trust"),
    (ReleaseEvent(RELEASE), {"neighboring": "zero_out"}, "replace_one neighbours"),
    (ReleaseEvent(ZERO), {}, "zero_out neighbours"),
]


@pytest.mark.parametrize("accountant", [RdpAccountant, PldAccountant])
@pytest.mark.parametrize(("event", "options", "message"), REFUSED)
def test_unknown_events_are_refused_and_leave_nothing_behind(accountant, event, options, message):
    accountant = accountant(**options)
    assert not accountant.supports(event)
    with pytest.raises(dpa.UnsupportedEventError, match=message):
        accountant.compose(event)
    assert accountant.get_epsilon(DELTA) == 0
    assert accountant.ledger == dpa.NoOpDpEvent()


@pytest.mark.parametrize(
    ("event", "options", "message"),
    [
        (
            dpa.PoissonSampledDpEvent(0.1, ReleaseEvent(rq.ChannelRelease(CHANNEL, 20, 1))),
            {},
            "sees who takes part",
        ),
        (dpa.PoissonSampledDpEvent(0.1, ReleaseEvent(RELEASE)), {}, "rounds=1"),
        (dpa.PoissonSampledDpEvent(2.0, ReleaseEvent(CENTRAL)), {"trust": "central"}, "rate"),
        (
            dpa.PoissonSampledDpEvent(0.1, dpa.ComposedDpEvent([ReleaseEvent(CENTRAL)])),
            {"neighboring": "zero_out", "trust": "central"},
            "Subevent",
        ),
        (
            dpa.SampledWithReplacementDpEvent(10, 2, ReleaseEvent(CENTRAL)),
            {"trust": "central"},
            "Unsupported event",
        ),
        (
            dpa.dp_event.RepeatAndSelectDpEvent(
                dpa.ComposedDpEvent([ReleaseEvent(RELEASE)]), 3.0, 1.0
            ),
            {},
            "no proof",
        ),
    ],
)
def test_events_about_releases_without_a_proof_are_refused(event, options, message):
    with pytest.raises(dpa.UnsupportedEventError, match=message):
        RdpAccountant(**options).compose(event)


def test_their_accountants_do_not_know_ours():
    for theirs in (TheirRdpAccountant(), PLDAccountant()):
        assert not theirs.supports(ReleaseEvent(RELEASE))
    with pytest.raises(ValueError, match="neighboring"):
        RdpAccountant(neighboring="add_or_remove_one")
    with pytest.raises(ValueError, match="trust"):
        PldAccountant(trust="none")


def test_what_protects_nothing_costs_everything():
    event = dpa.ComposedDpEvent([ReleaseEvent(RELEASE), dpa.NonPrivateDpEvent()])
    for accountant in (RdpAccountant(), PldAccountant()):
        accountant.compose(event)
        assert accountant.get_epsilon(DELTA) == math.inf
        assert accountant.get_delta(1.0) == 1


def test_delta_pays_for_the_distance_of_noise():
    release = NoiseRelease(Skellam(200.0), 40, 64, 16, 3)
    accountant = RdpAccountant(trust="aggregate").compose(ReleaseEvent(release))
    near, far = accountant.get_delta(0.5), accountant.get_delta(2.0)
    assert near > far > 0
    # The account at that delta, which keeps a part in reserve; Rényi divergences give less.
    assert 0.495 < rq.account([release], near).epsilon <= 0.5
    renyi, _ = _by_renyi([release], near * (1 - 2**-10))
    assert renyi > 0.5
    assert accountant.get_epsilon(near) < renyi
    assert far >= release.distance * (1 + math.exp(2.0))


@dataclasses.dataclass(frozen=True)
class TwoCodes(ReleaseDefaults):
    """Two codes of pure epsilon 1: e/(1 + e) against 1/(1 + e), and laws so far from them."""

    distance: float
    rounds: int = 1
    releases: int = 1
    trust: str = "local"
    neighboring: str = "replace_one"

    def renyi(self, order):
        if math.isinf(order):
            return math.inf  # not needed here
        # e^order · 1^(1 - order) + 1^order · e^(1 - order), over 1 + e
        moment = np.logaddexp(order, 1 - order) - math.log1p(math.e)
        return float(moment) / (order - 1) * (1 + 1e-12)

    def repeated(self, times):
        return self if times == 1 else None


def test_delta_is_above_that_of_laws_at_a_distance():
    """0.1 more likely in the one law, 0.1 less in the other: delta grows by 0.1 and 0.1 e."""
    code, moved = np.array([math.e, 1.0]) / (1 + math.e), np.array([0.1, -0.1])
    laws = [code + moved, code[::-1] - moved]
    truth = np.maximum(laws[0] - math.e * laws[1], 0).sum()
    assert truth == pytest.approx(0.1 * (1 + math.e), rel=1e-12, abs=0)
    near, exact = (RdpAccountant().compose(ReleaseEvent(TwoCodes(d))) for d in (0.1, 0.0))
    assert truth <= near.get_delta(1.0) <= truth + 1e-3
    for epsilon in (0.25, 1.0, 1.5):
        grown, tiny = 0.1 * (1 + math.exp(epsilon)), 1e-12
        by_orders = exact._delta_by_orders(epsilon)[0] + grown
        # What `account` finds beyond orders it finds with a part of delta kept for the distance.
        least = exact.get_delta(epsilon) + grown
        assert least * (1 - tiny) <= near.get_delta(epsilon) <= by_orders * (1 + tiny)
    assert near.get_delta(5.0) == near.get_delta(1e4) == 1


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_loss_distributions_of_channels_are_between_both_ends(neighboring):
    release = rq.ChannelRelease(CHANNEL, 20, 5, neighboring=neighboring)
    accountant = PldAccountant(neighboring, value_discretization_interval=1e-3)
    accountant.compose(ReleaseEvent(release), 3)
    replaced = rq.account([rq.ChannelRelease(CHANNEL, 20, 15)], DELTA)
    assert replaced.lower < accountant.get_epsilon(DELTA) < replaced.epsilon * 1.001
    accountant.compose(dpa.GaussianDpEvent(5.0))
    assert accountant.get_epsilon(DELTA) > replaced.epsilon


def test_loss_distributions_of_gaussian_releases_are_their_gaussian():
    release = rq.GaussianRelease(3.0, 7, rounds=2, neighboring="zero_out")
    ours = PldAccountant("zero_out", "central").compose(ReleaseEvent(release), 2)
    theirs = PLDAccountant(REPLACE_SPECIAL).compose(dpa.GaussianDpEvent(3.0), 4)
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-9, abs=0)
    # Over the distance of two records, their multiplier, over one record, is twice as large.
    release = rq.GaussianRelease(3.0, 7, rounds=4)
    ours = PldAccountant("replace_one", "central").compose(ReleaseEvent(release))
    theirs = PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dpa.GaussianDpEvent(6.0), 4)
    assert ours.get_epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-4)


def test_loss_distributions_that_are_too_large_or_unknown_are_refused():
    large = rq.ChannelRelease(CHANNEL, dimension=10**6, rounds=10)
    with pytest.raises(dpa.UnsupportedEventError, match="RdpAccountant"):
        PldAccountant().compose(ReleaseEvent(large))
    assert RdpAccountant().supports(ReleaseEvent(large))
    with pytest.raises(dpa.UnsupportedEventError, match="no privacy loss distribution"):
        PldAccountant().compose(ReleaseEvent(VectorRelease(CHANNEL, 1.0, 16, 2)))
    none = rq.ChannelRelease(CHANNEL, dimension=10, rounds=0)
    assert PldAccountant().compose(ReleaseEvent(none)).get_epsilon(DELTA) == 0


def test_a_release_that_does_not_say_its_rounds_is_refused():
    class Mine(ReleaseDefaults):
        trust, neighboring, releases, distance = "local", "replace_one", 1, 0.0

        def renyi(self, order):
            return 0.1 * order

    with pytest.raises(dpa.UnsupportedEventError, match="number of rounds"):
        RdpAccountant().compose(ReleaseEvent(Mine()))


def test_releases_and_other_events_add_up_in_every_figure():
    release = rq.GaussianRelease(3.0, dimension=7, rounds=4, neighboring="zero_out")
    both = RdpAccountant([2.0, 8.0], "zero_out", "central")
    both.compose(ReleaseEvent(release), 3).compose(dpa.GaussianDpEvent(2.0))
    wanted = [12 * order / (2 * 9) + order / (2 * 4) for order in (2.0, 8.0)]
    assert both.rdp == pytest.approx(wanted, rel=1e-12, abs=0)
    theirs = TheirRdpAccountant([2.0, 8.0], REPLACE_SPECIAL)
    theirs.compose(dpa.GaussianDpEvent(3.0), 12).compose(dpa.GaussianDpEvent(2.0))
    # Orders between theirs are bounded by chords: no more than by the two orders.
    assert 0.8 * theirs.get_delta(3.0) < both.get_delta(3.0) <= theirs.get_delta(3.0) * (1 + 1e-9)


def test_a_foreign_curve_is_above_its_chords_and_ends_where_it_ends():
    orders, neighbours = np.array([2.0, 4.0, 8.0]), ("zero_out", "central")
    foreign = _Foreign(orders, orders / 2, *neighbours)
    for order in (2.0, 4.0, 8.0):
        assert order / 2 <= foreign.renyi(order) <= order / 2 * (1 + 1e-12)
    for order in (1.5, 3.0, 6.0):  # (order - 1) · divergence is convex: chords are above it
        low, high = (
            max(k for k in (1.0, 2.0, 4.0) if k < order),
            min(k for k in orders if k > order),
        )
        part = (order - low) / (high - low)
        chord = (1 - part) * (low - 1) * low / 2 + part * (high - 1) * high / 2
        assert foreign.renyi(order) == pytest.approx(chord / (order - 1), rel=1e-12, abs=0)
        assert foreign.renyi(order) > order / 2
    assert foreign.renyi(8.5) == foreign.renyi(math.inf) == math.inf


def test_half_of_a_rate_or_another_scheme_is_another_release():
    poisson = dpa.PoissonSampledDpEvent(0.05, ReleaseEvent(CENTRAL))
    accountant = RdpAccountant([4.0], trust="central").compose(poisson)
    assert accountant.rdp == pytest.approx([Sampled(CENTRAL, 0.05, 1).renyi(4.0)], rel=1e-12, abs=0)
    zeroed = rq.GaussianRelease(2.0, 20, 1, neighboring="zero_out")
    fixed = dpa.SampledWithoutReplacementDpEvent(100, 5, ReleaseEvent(zeroed))
    with pytest.raises(dpa.UnsupportedEventError, match="another takes its place"):
        RdpAccountant(neighboring="zero_out", trust="central").compose(fixed)


def test_loss_distributions_count_coordinates_rounds_and_repetitions():
    once = PldAccountant(value_discretization_interval=1e-3)
    once.compose(ReleaseEvent(rq.ChannelRelease(CHANNEL, 6, 4)), 2)
    flat = PldAccountant(value_discretization_interval=1e-3)
    flat.compose(ReleaseEvent(rq.ChannelRelease(CHANNEL, 48, 1)))
    assert once.get_epsilon(DELTA) == flat.get_epsilon(DELTA)


def test_a_loss_distribution_is_of_the_worse_direction():
    """Code 1 is rare in one row: only one way is the loss large, and one way is the other code."""
    weights = np.array([[8, 8], [15, 1]])
    channel = rq.Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), weights, 16)
    p, q = dominating_pair(channel)
    points, deltas = _dots(channel, 0.25)
    with mpmath.workdps(40):
        for point, delta in zip(points, deltas, strict=True):
            ratio = mpmath.exp(mpmath.mpf(int(point)) / 4)
            exact, reverse, mine = (
                sum(max(0, int(a) - ratio * int(b)) for a, b in zip(*pair, strict=True)) / 16
                for pair in (weights, weights[::-1], (p, q))
            )
            assert max(exact, reverse, mine) <= delta <= mine * (1 + 1e-12) + 1e-14


def test_delta_at_epsilon_is_as_tight_as_the_account():
    """Of Gaussian noise delta is known; of sampled noise it is what dp-accounting says, about."""
    noise = rq.GaussianRelease(2.0, dimension=10, rounds=10)
    accountant = RdpAccountant(trust="central").compose(ReleaseEvent(noise))
    mu = math.sqrt(10) / 2
    exact = float(ndtr(mu / 2 - 5 / mu) - math.exp(5) * ndtr(-mu / 2 - 5 / mu))
    assert exact <= accountant.get_delta(5.0) <= 1.02 * exact
    assert rq.account([noise], accountant.get_delta(5.0)).epsilon <= 5.0
