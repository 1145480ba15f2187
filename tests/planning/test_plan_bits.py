"""How many bits a code gets by itself: one, or integer noise where one bit is too coarse."""

import functools
import math

import pytest

from randquant.aggregation import most_bits, update_mechanism
from randquant.mechanisms import UpdateSetting
from randquant.planning import (
    MAX_BITS_ERROR_RATIO,
    ONE_BIT_ERROR_RATIO,
    Need,
    Privacy,
    choose,
    fewest_bits,
    tune_update,
)
from randquant.planning.planner import plan
from randquant.privacy import account
from randquant.reports import as_json, as_text

SMALL, LARGE = (11, 350, 350, 20, 8.0), (650, 200, 200, 50, 8.0)


ONE = "stochastic-rounding"


@functools.cache
def planned(asked, bits="auto", mechanisms=None):
    return plan(*asked, privacy=Privacy(bits=bits), mechanisms=mechanisms)


@pytest.fixture
def small():
    """Few parameters of many clients: one bit's own randomness is a floor of the noise."""
    return planned(SMALL, mechanisms=(ONE, "binomial", "discrete-gaussian", "skellam"))


def target(bits, dimension=11, clients=350, rounds=20, epsilon=8.0, **others):
    return Need(dimension, clients, clients, rounds, epsilon, 1e-5, "aggregate",
                Privacy(bits=bits), rounds, **others)  # fmt: skip


def test_what_one_bit_cannot_spend_integer_noise_does(small):
    entries = {entry.mechanism: entry for entry in small.entries}
    one, best = entries["stochastic-rounding"], small.recommended
    assert one.guarantee.epsilon < 0.5 * 8
    assert one.noise.relative > 3
    assert 0.95 * 8 < best.guarantee.epsilon <= 8
    assert best.noise.relative < ONE_BIT_ERROR_RATIO
    assert best.bytes_up <= one.bytes_up + 16  # masked, one bit travels as nine
    assert "as few bits as do" in "\n".join(as_text(small))
    assert as_json(small)["need"].privacy.bits == "auto"


@pytest.mark.slow
def test_the_choice_of_a_run_is_what_a_plan_recommends(small):
    found, best = choose(target("auto")), small.recommended
    assert (found.mechanism, found.parameters) == (best.mechanism, best.parameters)
    assert (found.clip_norm, found.warning) == (None, "")


@pytest.mark.slow
def test_one_bit_that_leaves_epsilon_says_so():
    found = planned(SMALL, 1, ONE)
    (said,) = (each for each in found.advice if each.startswith("Codes of so few bits"))
    for part in ("3.0221 of 8 is spent", "3.58 times", "bits='auto'"):
        assert part in said
    assert choose(target(1)).warning == said
    assert not any("Codes of so few" in each for each in planned(LARGE, 1, ONE).advice)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("asked", [(650, 200, 50, 8.0), (82, 100, 20, 8.0), (650, 200, 20, 1.0)])
def test_one_bit_stays_where_it_is_enough(asked):
    """To the last digit what one bit was."""
    assert choose(target("auto", *asked)) == choose(target(1, *asked))


def test_what_is_chosen_meets_the_target_for_the_client_called_most_often():
    """Here in 9 rounds; in 5, if all took part equally often."""
    need = Need(11, 40, 20, 10, 8.0, 1e-5, "aggregate", Privacy(), 9)
    assert need.balanced == 5
    found = choose(need)
    mechanism = update_mechanism(
        found.mechanism, found.parameters, clip_norm=found.clip_norm, cohort=20, trust="aggregate"
    )
    assert account([mechanism.release(11, 9)], 1e-5).epsilon <= 8.0


def test_one_bit_is_recommended_where_it_is_enough():
    found = planned(LARGE)
    assert found.recommended.mechanism == "stochastic-rounding"
    assert found.recommended.parameters["levels"] == 2
    assert found.recommended.bytes_up == 936


def test_integer_noise_gets_the_fewest_bits_that_do():
    setting = target("auto").setting
    bits = fewest_bits("discrete-gaussian", setting, 0.3)
    errors = [
        plan(*SMALL, privacy=Privacy(bits=each), mechanisms="discrete-gaussian").entries[0].noise
        for each in (bits - 1, bits, 24)
    ]
    assert errors[1].deviation <= MAX_BITS_ERROR_RATIO * errors[2].deviation < errors[0].deviation
    assert fewest_bits("sparse-ternary", setting, 0.3) == 2  # it has three codes
    assert fewest_bits("optm", setting, 0.3) == 2  # has no family: the plan says so


@pytest.mark.parametrize(("cohort", "bits"), [(2, 20), (10, 24)])
def test_no_more_bits_are_taken_than_noise_can_be_drawn_for(cohort, bits):
    setting = UpdateSetting(1000, cohort, bits, "aggregate")
    tuned = tune_update("skellam", setting, 50.0, 1e-5, 1, deviation=0.3 / math.sqrt(cohort))
    assert tuned.parameters["bits"] == most_bits(cohort) < bits
    assert tuned.calibration.tight


@pytest.mark.slow
def test_records_of_few_clients_get_sums_of_bits():
    found = choose(target(2, dimension=62, clients=3, rounds=4, epsilon=3.0), examples=90)
    assert (found.mechanism, found.parameters["trials"]) == ("pbm", 3)
