"""Claims against exact figures: mpmath for single rounds, dp-accounting for many."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, norm

import randquant as rq
from randquant_papers.claims import PrivacyClaim, Reading, check
from randquant_papers.claims.lower_ends import gaussian_lower, sampled_lower

NEIGHBORINGS = ("replace_one", "zero_out")


def hockey_stick(epsilon: float, rate: float, first: float, second: float) -> float:
    """Of (1-q)N(0) + qN(first) against (1-q)N(0) + qN(second), by quadrature: 1e-7 close."""
    x, step = np.linspace(-15.0, 20.0, 700_001, retstep=True)

    def law(centre):
        return (1 - rate) * norm.pdf(x) + rate * norm.pdf(x, centre)

    return float(np.maximum(law(first) - math.exp(epsilon) * law(second), 0).sum() * step)


def gaussian_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Of Gaussian noise whose neighbours are mu deviations apart."""
    with mpmath.workdps(60):
        e, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


def ends(reading: Reading, neighboring: str) -> tuple[rq.Guarantee, float]:
    """The guarantee for these neighbours, and the lower end."""
    return reading.of(neighboring), reading.lower_ends[NEIGHBORINGS.index(neighboring)]


def test_the_public_default_is_worth_nothing():
    found = check(clip_norm=1.0, sensitivity=1e-4, sigma=4.845e-5, epsilon=10)
    configured, assumed = found.readings
    upper = configured.of("zero_out").epsilon
    assert gaussian_delta(upper, 1 / 4.845e-5) <= 1e-5
    assert gaussian_delta(upper * (1 - 1e-9), 1 / 4.845e-5) > 1e-5
    assert 2.1e8 < upper < 2.2e8
    assert configured.of("replace_one").epsilon == pytest.approx(4 * upper, rel=1e-3)
    assert found.verdicts == {"replace_one": "false", "zero_out": "false"}
    assert assumed.of("zero_out").epsilon == pytest.approx(10.3934, abs=1e-4)
    assert found.saving == ()
    assert any("proven for epsilon < 1" in note for note in found.notes)


def test_noise_for_the_clipping_norm_is_true_for_zero_out_only():
    """2.55 times the norm: epsilon 1.5 if an update is dropped, not if it is replaced."""
    found = check(clip_norm=0.1, sigma=0.255, epsilon=1.6)
    assert found.verdicts == {"replace_one": "false", "zero_out": "true"}
    assert found.saving == (("neighbours are zero_out only",),)
    assert check(clip_norm=0.1, sigma=0.51, epsilon=1.6).verdicts["replace_one"] == "true"
    exact = rq.account([rq.GaussianRelease(2.55, 1, 1)], 1e-5).epsilon
    assert found.readings[0].of("zero_out").epsilon == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("rate", [1.0, 0.2])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_one_round_is_exact_from_both_sides(sampling, rate):
    found = check(noise_multiplier=1.0, sampling=sampling, rate=rate)
    centres = {
        ("poisson", "zero_out"): (1, 0), ("poisson", "replace_one"): (1, -1),
        ("fixed", "zero_out"): (2, 1), ("fixed", "replace_one"): (2, 0),
    }  # fmt: skip
    for each in NEIGHBORINGS:
        guarantee, lower = ends(found.readings[0], each)
        first, second = centres[sampling, each]
        ways = [(first, second), (-second, -first)]
        above = max(hockey_stick(guarantee.epsilon, rate, *way) for way in ways)
        below = max(hockey_stick(lower, rate, *way) for way in ways)
        assert above <= 1e-5 * (1 + 1e-6)
        assert below >= 1e-5 * (1 - 1e-3)
        assert lower > 0.98 * guarantee.epsilon


def test_many_sampled_rounds_are_near_the_privacy_loss_distribution():
    found = check(noise_multiplier=1.0, sampling="poisson", rate=0.02, rounds=200, epsilon=1)
    theirs = pld.from_gaussian_mechanism(
        1.0, sampling_prob=0.02, value_discretization_interval=1e-3
    ).self_compose(200)
    exact = theirs.get_epsilon_for_delta(1e-5)
    guarantee, lower = ends(found.readings[0], "zero_out")
    assert lower < exact < guarantee.epsilon * 1.001
    assert guarantee.epsilon < 1.02 * exact
    assert lower > 0.98 * exact
    assert found.verdicts["zero_out"] == "false"


@pytest.mark.parametrize("sampled", [{}, {"sampling": "poisson", "rate": 0.1}])
def test_no_noise_of_normal_tails_is_pure(sampled):
    found = check(noise_multiplier=1.0, delta=0.0, epsilon=1e6, rounds=3, **sampled)
    assert found.verdicts == dict.fromkeys(NEIGHBORINGS, "false")


def test_a_stand_in_is_not_farther_than_neighbours_are_assumed_to_be():
    """In a cohort of a fixed size, an opposite update in its place would be twice as far."""
    found = check(noise_multiplier=1.0, clip_norm=1.0, sensitivity=0.5, sampling="fixed", rate=0.02)
    guarantee, lower = ends(found.readings[1], "zero_out")
    assert 0 < lower < guarantee.epsilon


@pytest.mark.parametrize("rounds", [1, 7, 20])
def test_a_lower_end_is_below_the_exact_figure_of_two_outcomes(rounds):
    """In the law of a run's sums of scores, hockey-stick divergences are at least delta."""
    low = sampled_lower((1.0, 0.0), 0.3, rounds, 1e-5)
    theirs = pld.from_gaussian_mechanism(
        1.0, sampling_prob=0.3, value_discretization_interval=1e-3
    ).self_compose(rounds)
    exact = theirs.get_epsilon_for_delta(1e-5)
    assert 0.99 * exact < low < exact
    # Far apart, little is likely in both worlds, and then nothing.
    far = gaussian_lower(100 * math.sqrt(rounds), 1e-5)
    assert 0 < sampled_lower((100.0, 0.0), 0.3, rounds, 1e-5) < far
    assert sampled_lower((1000.0, 0.0), 1.0, rounds, 1e-5) == 0


@pytest.mark.parametrize(
    ("apart", "rounds"), [(0.3, 1), (0.5, 100), (400.0, 20), (41280.0, 20), (1e6, 1000)]
)
def test_the_lower_end_of_gaussian_noise_is_nearly_the_exact_figure(apart, rounds):
    """T rounds of Gaussian noise are one with a shift √T times as long."""
    shift = apart * math.sqrt(rounds)
    found = check(sigma=1 / apart, clip_norm=1.0, rounds=rounds, epsilon=10)
    _, low = ends(found.readings[0], "zero_out")
    assert gaussian_delta(low * (1 + 1e-4), shift) < 1e-5
    assert gaussian_delta(low, shift) >= 1e-5 * (1 - 1e-7)  # the shift is rounded
    if apart > 1:  # what hides nothing is refuted
        assert found.verdicts == dict.fromkeys(NEIGHBORINGS, "false")


def test_assumptions_are_kept_apart():
    """What makes the figure true is the least that does."""
    found = check(
        noise_multiplier=1.0, sampling="poisson", rate=0.01, rounds=100, epsilon=3, unit="example"
    )
    assert [reading.assumptions for reading in found.readings] == [
        (),
        ("only one round counts",),
        ("somebody sees who takes part",),
        ("only one round counts", "somebody sees who takes part"),
    ]
    assert found.verdicts == {"replace_one": "true", "zero_out": "true"}
    assert found.saving == ((),)
    assert {guarantee.unit for guarantee in found.guarantees} == {"example"}
    seen = found.readings[2].of("zero_out")
    plain = rq.account([rq.GaussianRelease(1.0, 1, 100)], 1e-5).epsilon
    assert seen.epsilon == pytest.approx(plain, rel=1e-9)
    assert found.readings[2].lower_ends[1] == 0  # it may well take part in no round
    often = check(noise_multiplier=1.0, sampling="poisson", rate=0.5, rounds=9)
    seen = often.readings[2]
    assert 0 < seen.lower_ends[1] < seen.guarantees[1].epsilon
    assert "client that holds several" in str(found)


@pytest.mark.parametrize("delta", [1e-5, 0.05, 0.2, 0.4])
@pytest.mark.parametrize(("rate", "rounds"), [(0.335, 3), (0.5001, 2), (0.21, 5), (0.0501, 100)])
def test_no_figure_of_rounds_that_are_seen_is_refuted_that_is_true(rate, rounds, delta):
    """Its delta is the mean over how often the client takes part, which whoever sees it knows."""
    often = np.arange(1, rounds + 1)
    mass = binom.pmf(often, rounds, rate)
    for apart in (0.3, 1.0, 3.0):
        claim = PrivacyClaim(
            clip_norm=apart, sigma=1.0, sampling="poisson", rate=rate, rounds=rounds, delta=delta
        )
        lower = claim.lower_end("zero_out", seen=True)
        exact = mass @ [float(gaussian_delta(lower, apart * math.sqrt(k))) for k in often]
        assert lower == 0 or exact >= delta * (1 - 1e-9)


def test_local_noise_is_not_amplified():
    local = check(
        clip_norm=1, sigma=1, sampling="fixed", rate=0.1, rounds=50, trust="local", epsilon=8
    )
    seen = check(clip_norm=1, sigma=1, rounds=50, trust="local", epsilon=8)
    pairs = zip(local.readings[0].lower_ends, seen.readings[0].lower_ends, strict=True)
    assert all(one < other for one, other in pairs)
    for one, other in zip(local.guarantees, seen.guarantees, strict=True):
        assert one.epsilon == other.epsilon
    assert any("gains nothing" in note for note in local.notes)


def test_coordinates_clipped_by_themselves_are_far_apart_together():
    found = check(clip=0.01, dimension=10_000, sigma=1.0)
    whole = check(clip_norm=1.0, sigma=1.0)
    assert found.guarantees[0].epsilon == pytest.approx(whole.guarantees[0].epsilon, rel=1e-9)
    assert found.guarantees[0].epsilon >= whole.guarantees[0].epsilon


def test_without_clipping_or_noise_nothing_is_promised():
    found = check(sigma=1.0, sensitivity=1.0, epsilon=5)
    assert found.verdicts == {"replace_one": "false", "zero_out": "false"}
    assert found.saving == (("neighbours are at most 1 apart",),)
    assert "no guarantee" in str(found)
    assert "nothing is clipped" in str(found)
    assert check(clip_norm=1.0, sigma=0.0).guarantees[0].epsilon == math.inf


WRONG = [
    ({}, "Expected sigma or noise_multiplier, and not both"),
    ({"sigma": 1, "noise_multiplier": 1}, "and not both"),
    ({"sigma": 1, "clip": 1}, "Expected dimension with clip"),
    ({"sigma": 1, "clip": 1, "clip_norm": 1, "dimension": 2}, "Expected clip_norm or clip"),
    ({"noise_multiplier": 1, "clip": 1, "dimension": 2}, "Expected sigma with clip"),
    ({"sigma": 1, "clip_norm": 1, "rate": 0.1}, "Expected rate with sampling"),
    ({"sigma": 1, "clip_norm": 1, "sampling": "poisson"}, "Expected rate with sampling"),
    ({"sigma": math.nan}, "Expected sigma to be"),
    ({"sigma": True}, "Expected sigma to be `float | null`, got `bool`"),
    ({"sigma": 1, "noise": 1}, "Expected attributes of PrivacyClaim, it contains unknown field"),
    ({"sigma": -1, "clip_norm": 1}, "Expected sigma to be `float` >= 0"),
    (
        {"sigma": 1, "clip_norm": 1, "sampling": "fixed", "rate": 2},
        "Expected rate to be `float` <= 1",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), WRONG)
def test_what_does_not_go_together_is_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        check(**fields)
