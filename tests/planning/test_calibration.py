"""Calibration: the least noise that meets a target, checked again, and what is out of reach."""

import itertools
import math
import resource

import pytest
from around import Around
from hypothesis import example, given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.aggregation import CentralGaussian, ClippedSGD, LocalGaussian
from randquant.mechanisms import NOISES, UpdateSetting
from randquant.planning import (
    EDGE_TOLERANCE,
    TOLERANCE,
    NoiseSearch,
    OutOfReach,
    calibrate,
    gaussian_multiplier,
    protecting_mechanisms,
    tuned_mechanism,
    update_family,
)
from randquant.privacy import run_release


def one_number(
    name: str, setting: UpdateSetting, epsilon: float = 1.0, delta=1e-6, rounds: int = 1
):
    """A mechanism's family, and options to calibrate it from where `plan` would start."""
    family = update_family(name, setting)
    multiplier = gaussian_multiplier(epsilon, delta or 1e-15, rounds)
    many = setting.cohort if setting.trust == "aggregate" else 1
    start = family.start(multiplier * 2 * setting.clip_norm / math.sqrt(many))
    return (
        lambda noise: tuned_mechanism(name, setting, family.parameters(noise)),
        {"start": start, "reach": family.reach},
    )


def local_gaussian(noise: float) -> LocalGaussian:
    # Noise relative to the distance of two updates.
    return LocalGaussian(1.0, 2 * noise)


def test_the_gaussian_is_calibrated_to_what_is_known():
    """To the exact one, but for the tolerance of the search in epsilon."""
    for epsilon, delta, rounds in ((8.0, 1e-6, 5), (1.0, 1e-5, 1), (0.1, 1e-9, 100)):
        found = calibrate(local_gaussian, epsilon, delta, 10, rounds)
        exact = gaussian_multiplier(epsilon, delta, rounds)
        assert exact * (1 - 1e-9) <= found.noise <= exact * (1 + TOLERANCE)
        assert found.tight
        assert epsilon * (1 - TOLERANCE) <= found.guarantee.epsilon <= epsilon


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("start", [0.5, 2.0, 10.0])
def test_where_any_noise_is_enough_it_is_the_least_of_the_range(start, delta):
    """Of no round nothing is lost, from whichever end the search starts."""
    found = calibrate(local_gaussian, 2.0, delta, 10, 0, start=start, reach=(0.5, 10.0))
    assert (found.noise, found.guarantee.epsilon) == (0.5, 0.0)


def assert_refused(error: OutOfReach, epsilon: float):
    assert error.nearest > epsilon
    assert "out of reach" in str(error)
    assert "nan" not in str(error)


def assert_at_an_edge(build, found, epsilon, delta, dimension, rounds, options):
    less = max(float(f"{found.noise * (1 - 2 * EDGE_TOLERANCE):.6g}"), options["reach"][0])
    if less == found.noise:
        return
    try:
        release = build(less).release(dimension, rounds)
    except ValueError:
        return
    assert not rq.account([release], delta).epsilon <= epsilon


def test_why_a_target_is_out_of_reach_is_said():
    def nothing(noise: float) -> LocalGaussian:
        raise ValueError("Expected a better day.")

    few, options = one_number("skellam", UpdateSetting(650, 100, 4, "aggregate"))
    for build, epsilon, delta, others, reason in (
        (local_gaussian, 1.0, 0.0, {}, "infinite for any noise"),
        (nothing, 1.0, 1e-6, {}, "better day"), (few, 8.0, 1e-6, options, "add bits"),
    ):  # fmt: skip
        with pytest.raises(OutOfReach, match=reason):
            calibrate(build, epsilon, delta, 650, 5, **others)


def test_what_protects_nothing_is_refused():
    with pytest.raises(TypeError, match="protects"):
        calibrate(lambda noise: ClippedSGD(clip_norm=noise), 1.0, 1e-6, 10, 1)


@pytest.mark.parametrize("room", [1.3, 1.01])
def test_between_too_little_noise_and_what_cannot_be_built_the_least_is_found(room):
    """Epsilon falls as the fourth power, so that the search guesses far too high."""
    least = gaussian_multiplier(1.0, 1e-5, 1) ** (1 / 4)

    def build(noise: float) -> LocalGaussian:
        if noise > least * room:
            raise ValueError("too much")
        return LocalGaussian(1.0, 2 * noise**4)

    found = calibrate(build, 1.0, 1e-5, 10, 1, start=0.5)
    assert least * (1 - 1e-9) <= found.noise <= least * (1 + TOLERANCE)


@pytest.mark.parametrize("proves_nothing", [lambda: math.inf, lambda: 1 / 0])
def test_an_edge_below_which_nothing_is_proven_is_approached_in_few_steps(proves_nothing):
    """Each step may take seconds: tables of integer noise."""
    search = NoiseSearch(
        lambda noise: noise,
        lambda noise: 9 / noise if noise > 0.1 else proves_nothing(),
        100.0, lambda epsilon: 1 / epsilon, 1e-6, 1e6,
    )  # fmt: skip
    assert 0.1 < search.run(1.0) < 0.1 * (1 + EDGE_TOLERANCE)
    assert len(search.tried) < 15


def test_an_epsilon_that_rises_again_is_searched_too():
    """Privacy is best at noise 3; both sides and the end of the range are worse."""

    def bowl(noise: float) -> CentralGaussian:
        away = abs(math.log(noise / 3))
        return CentralGaussian(None, 20 / (1 + away), 1.0)

    best = rq.account([bowl(3.0).release(10, 1)], 1e-6).epsilon
    found = calibrate(bowl, best * 1.02, 1e-6, 10, 1, start=0.1, reach=(1e-3, 1e3))
    assert found.guarantee.epsilon <= best * 1.02
    assert 2 < found.noise < 4
    with pytest.raises(OutOfReach) as refused:
        calibrate(bowl, best * 0.9, 1e-6, 10, 1, start=0.1, reach=(1e-3, 1e3))
    assert best <= refused.value.nearest < best * 1.02


@settings(max_examples=40, deadline=None)
@example(1e-4, 0.0, 10**6, 10**9, 1.0, "skellam")
@example(8.0, 1e-12, 1, 1, 1.0, "skellam")
@example(1e4, 0.5, 5, 10**9, 1.0, "skellam")
@example(1e4, 0.5, 10**6, 650, 1.0, "stochastic-rounding")
@example(8.0, 1e-12, 10**6, 650, 1.0, "local-gaussian")
@given(
    epsilon=st.floats(1e-4, 1e4),
    delta=st.sampled_from([0.0, 1e-12, 1e-6, 0.5]),
    rounds=st.integers(1, 10**6),
    dimension=st.integers(1, 10**9),
    start=st.floats(1e-6, 1e9),
    name=st.sampled_from(["stochastic-rounding", "local-gaussian", "sign-sgd"]),
)
def test_a_calibration_never_exceeds_its_target(epsilon, delta, rounds, dimension, start, name):
    """Nor is it far below, where that noise can be had."""
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trust, cohort, bits = ("aggregate", 100, 12) if name == "skellam" else ("local", 1, 1)
    build, options = one_number(name, UpdateSetting(dimension, cohort, bits, trust))
    options["start"] = start
    try:
        found = calibrate(build, epsilon, delta, dimension, rounds, **options)
    except OutOfReach as error:
        assert_refused(error, epsilon)
        return
    assert rq.account([found.mechanism.release(dimension, rounds)], delta).epsilon <= epsilon
    assert math.isfinite(found.guarantee.epsilon)
    assert found.guarantee.delta == delta
    if not found.tight:  # a hair less noise is too little, or cannot be had
        assert_at_an_edge(build, found, epsilon, delta, dimension, rounds, options)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500_000  # kB


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.slow
def test_every_family_meets_a_target(trust):
    """But OPTM, which has none, and QMGeo, whose least epsilon is far above."""
    for name in protecting_mechanisms(UpdateSetting(50, 5, 2, trust)):
        cohort = 100 if name == "sparse-ternary" else 5
        setting = UpdateSetting(50, cohort, 10 if name in NOISES else 2, trust)
        if name == "optm":
            with pytest.raises(ValueError, match="one coordinate"):
                update_family(name, setting)
            continue
        build, options = one_number(name, setting, 20.0, 1e-5, 2)
        if name == "qmgeo":
            with pytest.raises(OutOfReach, match="least epsilon found"):
                calibrate(build, 20.0, 1e-5, 50, 2, **options)
            continue
        found = calibrate(build, 20.0, 1e-5, 50, 2, **options)
        assert found.guarantee.trust == trust
        assert found.guarantee.epsilon <= 20
        parameters = update_family(name, setting).parameters(found.noise)
        again = tuned_mechanism(name, setting, parameters).release(50, 2)
        assert rq.account([again], 1e-5) == found.guarantee


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"epsilon": math.nan}, "finite"),
        ({"delta": 1.0}, "delta"),
        ({"start": -1.0}, "start"),
        ({"start": -0.5}, "start"),
        ({"start": 0.0}, "start"),
        ({"reach": (2.0, 1.0)}, "largest noise"),
        ({"reach": (0.0, 1.0)}, "least noise"),
        ({"reach": (1.0,)}, "got 1 numbers"),
        ({"reach": (1.0, 2.0, 3.0)}, "got 3 numbers"),
    ],
)
def test_arguments_are_checked(change, wanted):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "dimension": 10, "rounds": 1, **change}
    with pytest.raises(ValueError, match=wanted):
        calibrate(local_gaussian, **arguments)


def test_what_is_returned_belongs_together():
    """The mechanism is the returned number's, and the guarantee is the mechanism's."""
    for neighboring, examples in (("replace_one", None), ("zero_out", None), ("replace_one", 10)):
        found = calibrate(
            local_gaussian, 3.0, 1e-6, 50, 4, neighboring=neighboring, examples=examples
        )
        assert found.mechanism == local_gaussian(found.noise)
        release = run_release(found.mechanism, 50, 4, neighboring, examples=examples)
        assert found.guarantee == rq.account([release], 1e-6)
        assert found.noise == float(f"{found.noise:.6g}")
        assert found.tight == (3.0 * (1 - TOLERANCE) <= found.guarantee.epsilon <= 3.0)
        assert found.tight


def counting(last):
    """Says less noise than it adds, once it has been asked so often."""
    asked = itertools.count(1)

    def build(noise):
        def release(dimension, rounds, neighboring):
            multiplier = noise / (2 if next(asked) == last else 1)
            return rq.GaussianRelease(multiplier, dimension, rounds, "local", neighboring)

        return Around(local_gaussian(noise), release=release)

    return build


def test_a_guarantee_that_changes_when_asked_again_is_not_returned():
    calls = calibrate(counting(-1), 2.0, 1e-6, 10, 1).calls
    with pytest.raises(ArithmeticError, match="gave less before"):
        calibrate(counting(calls + 1), 2.0, 1e-6, 10, 1)


def test_no_target_is_exceeded_by_less_than_the_tolerance():
    """Epsilon jumps over the target: what is a hair above it is not enough."""

    def steps(noise: float) -> LocalGaussian:
        return local_gaussian(2.0 ** round(math.log2(noise) * 4))

    powers = [local_gaussian(2.0**k).release(10, 1) for k in range(-4, 5)]
    above = min(e for e in (rq.account([each], 1e-6).epsilon for each in powers) if e > 1)
    target = above * (1 - TOLERANCE / 3)
    assert calibrate(steps, target, 1e-6, 10, 1).guarantee.epsilon <= target
