"""Steps of a loop with Gaussian noise: what was drawn counts, and where other figures break."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binom, norm

import randquant as rq
from randquant.privacy import UNIT, gaussian_epsilon

DELTA = 1e-5
GRID = np.linspace(-16, 18, 1201)
"""A grid of each coordinate, in standard deviations: sums over it are integrals to 1e-9."""


def epsilon_of(relation="zero_out", **step):
    steps = rq.GaussianSteps(relation)
    steps.step(**step)
    return steps.epsilon(DELTA)


def delta_on_grid(first, second, epsilon):
    """The delta of two mixtures of normal laws in the plane, given as (weight, x, y)."""
    cell = (GRID[1] - GRID[0]) ** 2

    def density(mixture):
        return sum(w * np.outer(norm.pdf(GRID - x), norm.pdf(GRID - y)) for w, x, y in mixture)

    return float(np.maximum(density(first) - math.exp(epsilon) * density(second), 0).sum() * cell)


@pytest.mark.parametrize(("relation", "apart"), [("zero_out", 1), ("replace_one", 2)])
def test_no_two_records_are_farther_apart_than_is_charged(relation, apart):
    """Every pair of vectors of a ball's net, with each count, in standard deviations."""
    noise, count = 0.7, 1.3
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    ball = [(0.0, 0.0), *((r * np.cos(a), r * np.sin(a)) for r in (0.5, 1.0) for a in angles)]
    points = [(x / noise, y / noise, c / count) for x, y in ball for c in (0, 1)]
    others = [(0.0, 0.0, 0.0)] if relation == "zero_out" else points
    farthest = max(math.dist(p, q) for p, q in itertools.product(points, others))
    charged = epsilon_of(relation, noise_multiplier=noise, count_noise=count)
    assert charged == pytest.approx(gaussian_epsilon(farthest, DELTA), rel=1e-9)
    assert farthest == pytest.approx(math.hypot(apart / noise, 1 / count), rel=1e-12)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_a_drawn_step_with_a_count_is_bounded_and_tightly(relation):
    noise, count, rate = 1.2, 1.5, 0.3
    epsilon = epsilon_of(
        relation, noise_multiplier=noise, count_noise=count, drawn="poisson", rate=rate
    )
    there, nobody = (rate, 1 / noise, 1 / count), (1 - rate, 0.0, 0.0)
    # Opposite vectors that both count are the farthest that a replacement can be with counts.
    other = [(1.0, 0.0, 0.0)] if relation == "zero_out" else [nobody, (rate, -1 / noise, 0.0)]
    pairs = [([nobody, there], other), (other, [nobody, there])]
    worst = max(delta_on_grid(*pair, epsilon) for pair in pairs)
    assert worst <= DELTA
    # Under replace_one the bound takes both at the length of a vector that counts.
    share = 0.98 if relation == "zero_out" else 0.85
    assert max(delta_on_grid(*pair, share * epsilon) for pair in pairs) > DELTA


@pytest.mark.parametrize(("noise", "rate", "times"), [(0.8, 1 / 234, 1000), (4.0, 0.05, 200)])
def test_poisson_steps_are_those_of_dp_accounting(noise, rate, times):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    theirs = PLDAccountant()
    theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), times)
    ours = epsilon_of(noise_multiplier=noise, drawn="poisson", rate=rate, times=times)
    assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=0.012)


def test_a_pass_through_shuffled_data_is_no_ten_poisson_steps():
    """Whoever knows the others' vectors, which differ widely, sees which batch lacks the record."""
    passed = epsilon_of(noise_multiplier=1.0)
    taken_for_poisson = epsilon_of(noise_multiplier=1.0, drawn="poisson", rate=0.1, times=10)
    assert gaussian_epsilon(1.0, DELTA) <= passed <= gaussian_epsilon(1.0, DELTA) * (1 + 1e-9)
    attained = norm.sf(taken_for_poisson - 0.5) - math.exp(taken_for_poisson) * norm.sf(
        taken_for_poisson + 0.5
    )
    assert attained > 100 * DELTA
    with pytest.raises(ValueError, match="count one step for each pass"):
        rq.GaussianSteps().step(1.0, rate=0.1)


def test_accumulated_poisson_batches_are_no_larger_batch():
    """A record may be in several: at the figure of one batch of k times the rate delta is more."""
    k, rate = 4, 0.05
    figure = epsilon_of(noise_multiplier=1.0, drawn="poisson", rate=k * rate)
    weights = binom.pmf(range(k + 1), k, rate)
    first = sum(w * norm.pdf(GRID - j) for j, w in enumerate(weights))
    over = np.maximum(first - math.exp(figure) * norm.pdf(GRID), 0).sum() * (GRID[1] - GRID[0])
    assert over > 5 * DELTA


@pytest.mark.parametrize(
    "step",
    [
        {"noise_multiplier": 6.0},
        {"noise_multiplier": 6.0, "count_noise": 9.0},
        {"noise_multiplier": 6.0, "drawn": "poisson", "rate": 0.2},
    ],
)
def test_equal_steps_count_as_often_as_they_are_made(step):
    """A loop counts one at a time, with others between them."""
    at_once, one_by_one = rq.GaussianSteps(), rq.GaussianSteps()
    at_once.step(**step, times=5)
    at_once.step(9.0, times=2)
    for times in (1, 3, 1):
        one_by_one.step(**step, times=times)
        if times == 1:
            one_by_one.step(9.0)
    assert one_by_one.epsilon(DELTA) == at_once.epsilon(DELTA)


def test_adaptive_clipping_with_a_count_that_is_not_centred():
    """The noise that Andrew et al. 2021 set aside for a centred count does not hide this one."""
    wanted, count = 1.0, 1.0
    noise = (wanted**-2 - (2 * count) ** -2) ** -0.5
    replaced = epsilon_of("replace_one", noise_multiplier=noise, count_noise=count, times=9)
    assert replaced == pytest.approx(gaussian_epsilon(2 * 3 / wanted, DELTA), rel=1e-9)
    left_out = epsilon_of(noise_multiplier=noise, count_noise=count, times=9)
    assert left_out == pytest.approx(gaussian_epsilon(3 * math.sqrt(1.75), DELTA), rel=1e-9)
    assert left_out > 1.2 * epsilon_of(noise_multiplier=wanted, times=9)


def test_steps_of_all_kinds_add_up():
    steps = rq.GaussianSteps("replace_one", "client")
    steps.step(4.0, drawn="fixed", rate=0.1, times=50)
    alone = steps.guarantee(DELTA)
    steps.step(30.0, times=3)
    both = steps.guarantee(DELTA)
    assert (both.neighboring, both.unit, both.trust, both.hidden) == (
        "replace_one", "client", "central", True,
    )  # fmt: skip
    rest = epsilon_of("replace_one", noise_multiplier=30.0, times=3)
    assert max(alone.epsilon, rest) < both.epsilon < alone.epsilon + rest
    steps.step(0.0)
    assert math.isinf(steps.epsilon(DELTA))
    assert rq.GaussianSteps().epsilon(DELTA) == 0
    assert epsilon_of(noise_multiplier=2.0) >= gaussian_epsilon(0.5, DELTA) * (1 - UNIT)


@pytest.mark.parametrize("relation", ["zero_out", "replace_one"])
def test_fixed_batches_are_those_of_the_release(relation):
    other = {"zero_out": "replace_one", "replace_one": "zero_out"}[relation]
    noise = {"zero_out": 3.0, "replace_one": 1.5}
    one, absent = (rq.GaussianRelease(noise[r], 1, 1, neighboring=r) for r in (relation, other))
    absent = absent if relation == "zero_out" else None
    release = rq.Sampled(one, 0.2, 40, "fixed", absent=absent)
    ours = epsilon_of(relation, noise_multiplier=3.0, drawn="fixed", rate=0.2, times=40)
    assert ours == pytest.approx(rq.account([release], DELTA).epsilon, rel=1e-9)
