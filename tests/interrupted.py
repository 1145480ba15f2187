"""Stored runs that are interrupted after a round, to be gone on with."""

import problems
import pytest

SMALL = problems.config_of(
    "breast-cancer", "softmax", "gaussian", {"clip_norm": 0.5, "noise_multiplier": 8.0},
    population=8, cohort=2, rounds=9, checkpoint_every=4, evaluate_every=3, threads=1,
)  # fmt: skip
BITS = {"clip": 0.05, "levels": 2, "margin": 0.5}
SUMS = {"clip_norm": 0.5, "noise_multiplier": 8.0}
SETTINGS = {
    "as it is": {},
    "Adam": {"server_optimizer": "Adam", "learning_rate": 0.01},
    "momentum": {"server_options": {"momentum": 0.9}, "learning_rate": 0.3},
    "batches": {"local_epochs": 2, "batch": 5, "local_learning_rate": 0.1},
    "examples": {"unit": "example", "batch": 5},
    "poisson": {"sampling": "poisson", "cohort": 2},
    "a cap": {"max_participations": 5},
    "a limit": {"stop_at_epsilon": 2.0},
    "hidden, poisson": {"mechanism": "local-gaussian", "trust": "model", "sampling": "poisson"},
    "summed noise": {"mechanism": "skellam", "parameters": SUMS},
    "some bits": {
        "mechanism": "stochastic-rounding", "parameters": BITS, "clip_norm": 0.5,
        "coordinates": 20, "trust": "aggregate",
    },
    "numbers and weights": {
        "numbers": ("accuracy", "num-examples:0:40:0.1"),
        "weighted_by": "num-examples",
        "mechanism": "local-gaussian",
    },
    "secret key": {"seed": None},
}  # fmt: skip
"""Of runs that draw in every way there is, beside those of SMALL."""


class Interrupted(BaseException):
    """As a kill: nothing that a program can answer to."""


def stop_after(last, error=Interrupted):
    """A callback that raises after round `last`, but not in a run's twin without privacy."""

    def on_round(*seen):
        *config, metrics = seen
        if metrics.round == last and not (config and config[0].mechanism == "clipped-sgd"):
            raise error

    return on_round


def dying(real, left):
    """A function that works `left[0]` times, which it shares with others, and then kills."""

    def call(*args, **named):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupted
        return real(*args, **named)

    return call


def begin(folder, config, last, **options):
    """Create a run, and interrupt it after round `last`; return its folder."""
    problems.create_run(folder, config)
    go_on(folder, last, **options)
    return folder


def go_on(folder, last, **options):
    """Go on with a run, and interrupt it after round `last`."""
    with pytest.raises(Interrupted):
        problems.train_run(folder, stop_after(last), **options)


def whole(folder, config, **options):
    """Create a run, and run it to its end; return the run."""
    problems.create_run(folder, config)
    return problems.train_run(folder, **options)
