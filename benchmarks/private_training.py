"""Training to epsilon 8 in one bit, with baselines: python benchmarks/private_training.py [DATA]

Digits, 200 clients, all in every round, 50 rounds, 5 seeds, for both neighbouring relations. With
the folder of the Fashion-MNIST files also Fashion-MNIST, 3,400 clients, all in every round, one
seed. The Gaussian baseline is a trusted server's noise on the exact sum, at the same guarantee. The
other baseline only clips, without privacy.
"""

import statistics
import sys
import tempfile
from pathlib import Path

from results import save

from randquant.aggregation import update_mechanism
from randquant.planning import calibrate
from randquant.training import train_run
from randquant_papers.configuration import PaperConfig
from randquant_papers.problems import create

EPSILON, DELTA = 8.0, 1e-5
DIGITS = PaperConfig.of(
    dataset="digits", model="softmax", mechanism="", population=200, cohort=200, rounds=50,
    learning_rate=2.0, clip_norm=0.5, stop_at_epsilon=EPSILON,
)  # fmt: skip
FASHION = DIGITS.changed(
    dataset="fashion-mnist",
    model="mlp",
    population=3400,
    cohort=3400,
    rounds=100,
)
RATES = {  # step sizes: less noise allows larger ones
    "digits": {"replace_one": 2.0, "zero_out": 4.0},
    "fashion-mnist": {"replace_one": 1.0, "zero_out": 1.5},
}


def one_bit(config: PaperConfig, dimension: int) -> PaperConfig:
    """One bit per coordinate; coordinates are clipped at 3 deviations of a rotated update's."""
    size = 1 << (dimension - 1).bit_length()
    clip = float(f"{3 * config.privacy.clip_norm / size**0.5:.4g}")
    parameters = {"clip": clip, "levels": 2}

    def build(margin: float):
        return update_mechanism(
            "stochastic-rounding", {**parameters, "margin": margin}, trust="aggregate",
            cohort=config.cohort, clip_norm=config.privacy.clip_norm,
        )  # fmt: skip

    found = calibrate(
        build, EPSILON, DELTA, dimension, config.rounds, neighboring=config.privacy.neighboring
    )
    parameters["margin"] = found.noise
    return config.changed(mechanism="stochastic-rounding", parameters=parameters, trust="aggregate")


def gaussian(config: PaperConfig, dimension: int) -> PaperConfig:
    """Gaussian noise on the exact sum."""
    parameters = {"clip_norm": config.privacy.clip_norm}

    def build(noise_multiplier: float):
        return update_mechanism("gaussian", {**parameters, "noise_multiplier": noise_multiplier})

    found = calibrate(
        build, EPSILON, DELTA, dimension, config.rounds, neighboring=config.privacy.neighboring
    )
    parameters["noise_multiplier"] = found.noise
    return config.changed(mechanism="gaussian", parameters=parameters, clip_norm=None)


def clipped(config: PaperConfig, dimension: int) -> PaperConfig:
    """Clipping alone: no privacy."""
    parameters = {"clip_norm": config.privacy.clip_norm}
    return config.changed(
        mechanism="clipped-sgd", parameters=parameters, clip_norm=None, stop_at_epsilon=None
    )


def trained(config: PaperConfig) -> tuple[float, float | None, float]:
    """Return (accuracy, epsilon, seconds) of a run; epsilon is None without privacy."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "run"
        run = train_run(home, create(home, config))
    summary = run.summary
    assert summary.rounds == config.rounds
    epsilon = summary.guarantee.epsilon if summary.guarantee else None
    return summary.accuracy, epsilon, run.seconds


def measured(start: PaperConfig, dimension: int, seeds: range) -> list[dict]:
    rows = []
    for neighboring, rate in RATES[start.data.dataset].items():
        for make in (one_bit, gaussian, clipped):
            asked = start.changed(neighboring=neighboring, learning_rate=rate)
            config = make(asked, dimension)
            results = [trained(config.changed(seed=seed)) for seed in seeds]
            accuracy = [run[0] for run in results]
            row = {
                "dataset": config.data.dataset,
                "neighboring": neighboring,
                "mechanism": config.mechanism,
                "parameters": dict(config.parameters),
                "rounds": config.rounds,
                "epsilon": max((run[1] for run in results if run[1]), default=None),
                "accuracy": statistics.mean(accuracy),
                "accuracy_by_seed": accuracy,
                "seconds": results[0][2],
            }
            print(row, flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    rows = measured(DIGITS, 650, range(5))
    if len(sys.argv) > 1:
        fashion = FASHION.changed(data_dir=sys.argv[1])
        rows += measured(fashion, 50_890, range(1))
    save("private_training", {"target_epsilon": EPSILON, "delta": DELTA, "runs": rows})
