"""Rounds settled beforehand: epsilon and participations stay within their limits, never early."""

import math

import numpy as np
import problems
import pytest

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant.channels import Key
from randquant.privacy import Ledger, account
from randquant.training import Schedule, Task, TrainConfig, check_config, sample

MECHANISMS = [
    ("stochastic-rounding", {"clip": 0.1, "levels": 2, "margin": 2.0}, {}),
    ("stochastic-rounding", {"clip": 0.1, "levels": 2, "margin": 0.4}, {"clip_norm": 0.5}),
    (
        "stochastic-rounding",
        {"clip": 0.1, "levels": 2, "margin": 0.4},
        {"clip_norm": 0.5, "trust": "aggregate"},
    ),
    ("gaussian", {"clip": 0.1, "noise_multiplier": 6.0}, {}),
    ("sign-sgd", {"clip_norm": 1.0, "noise_multiplier": 4.0}, {}),
    ("skellam", {"clip_norm": 1.0, "noise_multiplier": 8.0}, {}),
]
"""Name, parameters, other settings: under every trust, per coordinate and whole."""


def a_config(name: str, parameters: dict, **settings) -> TrainConfig:
    given = {"population": 12, "cohort": 4, "rounds": 40, **settings}
    return problems.config_of("digits", "softmax", name, parameters, **given)


def mechanism_of(config: TrainConfig):
    return update_mechanism(
        config.mechanism, config.parameters, trust=config.trust, cohort=config.cohort,
        clip_norm=config.privacy.clip_norm,
    )  # fmt: skip


def schedule_of(config: TrainConfig, dimension: int) -> Schedule:
    ledger = Ledger(
        mechanism_of(config), dimension, delta=config.delta, neighboring=config.privacy.neighboring,
        limit=config.stop_at_epsilon,
    )  # fmt: skip
    return Schedule(config, ledger, Key.from_seed(config.seed or 0))


def epsilon_of(config: TrainConfig, dimension: int, participations: int) -> float:
    """The guarantee as anyone would compute it afterwards."""
    release = mechanism_of(config).release(dimension, participations, config.privacy.neighboring)
    return account([release], config.delta).epsilon


# Sums, and noise of more than a few participations, take seconds each.
@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", range(12))
def test_epsilon_is_never_above_the_limit_and_no_round_is_given_away(case):
    rng = np.random.default_rng(case)
    name, parameters, settings = MECHANISMS[case % len(MECHANISMS)]
    dimension = int(rng.integers(1, 700))
    cohort = int(rng.integers(1, 8))
    population = int(rng.integers(cohort, 30))
    settings = {
        **settings,
        "population": population,
        "cohort": cohort,
        "neighboring": str(rng.choice(["replace_one", "zero_out"])),
        "delta": float(rng.choice([1e-8, 1e-5])),
        "seed": case,
        "rounds": int(rng.integers(1, 40)),
    }
    if rng.random() < 0.5:
        settings["max_participations"] = -(-cohort * settings["rounds"] // population)
    free = a_config(name, parameters, **settings)
    dear, cheap = int(rng.integers(1, 12)), epsilon_of(free, dimension, 1)
    limit = cheap + rng.random() * (epsilon_of(free, dimension, dear) - cheap)
    config = a_config(name, parameters, **settings, stop_at_epsilon=limit)
    check_config(config)
    schedule = schedule_of(config, dimension)
    calls, done, spent = np.zeros(population, dtype=np.int64), 0, []
    while (step := schedule.step(done, calls)).cohort is not None:
        calls[step.cohort] += 1
        done += 1
        assert len(set(step.cohort)) == cohort
        assert step.participations == calls.max()
        spent.append((int(calls.max()), step.epsilon))
    for participations, epsilon in set(spent):
        assert epsilon_of(config, dimension, participations) <= epsilon <= limit
    assert calls.max() <= settings.get("max_participations", math.inf)
    assert schedule.declared() == (done, calls.max())
    assert done >= 1
    assert bool(step.stopped) == (done < config.rounds)
    if step.stopped:
        assert epsilon_of(config, dimension, int(calls.max()) + 1) > limit
        assert f"before round {done + 1} of {config.rounds}:" in step.stopped
    else:
        assert done == config.rounds


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_cohorts_that_nobody_sees_are_drawn_by_words_of_the_secret_key_alone(draw, monkeypatch):
    """Whoever could foresee a draw would see who takes part: a generator for simulations may be."""

    def refuse(*args, **options):
        raise AssertionError("a generator that is no cipher")

    seen, hidden = (
        TrainConfig(
            Task(12), "gaussian", {"clip_norm": 1.0, "noise_multiplier": 6.0}, cohort=4, rounds=5,
            trust=trust, privacy=rq.Privacy(sampling=draw if trust == "model" else "fixed"),
        )
        for trust in (None, "model")
    )  # fmt: skip
    nobody, key = np.zeros(12, np.int64), Key.from_seed(0)
    monkeypatch.setattr(np.random, "Generator", refuse)
    with pytest.raises(AssertionError, match="no cipher"):
        sample(seen, 1, nobody, key)
    cohorts = [sample(hidden, number, nobody, key) for number in range(1, 6)]
    assert len(set(map(tuple, cohorts))) == 5


@pytest.mark.parametrize("draw", ["fixed", "poisson"])
def test_where_nobody_sees_who_takes_part_a_run_ends_before_its_limit_too(draw):
    noise = {"clip_norm": 1.0, "noise_multiplier": 6.0}
    config = TrainConfig(
        Task(12), "gaussian", noise, cohort=4, rounds=40, trust="model", stop_at_epsilon=2.0,
        privacy=rq.Privacy(sampling=draw),
    )  # fmt: skip
    ledger = Ledger(
        update_mechanism("gaussian", noise), 1, delta=1e-5, neighboring="replace_one", limit=2.0,
        cohorts=config.hidden_cohorts,
    )  # fmt: skip
    schedule = Schedule(config, ledger, Key.from_seed(0))
    calls, done = np.zeros(12, dtype=np.int64), 0
    while (step := schedule.step(done, calls)).cohort is not None:
        calls[step.cohort] += 1
        done += 1
        assert step.epsilon == ledger.epsilon(done) <= 2.0
    assert ledger.epsilon(done + 1) > 2.0
    assert done == schedule.declared()[0]
