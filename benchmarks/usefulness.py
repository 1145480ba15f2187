"""How much noise training bears: python benchmarks/usefulness.py

Federated SGD with updates clipped to a norm and Gaussian noise on the mean. The noise is
set by its share of the run, sqrt(dimension · rounds) · deviation / (rounds · clip_norm): how long
the run's noises add up to be, over the longest that its means can. For each share, the best of a
few step sizes.
"""

from __future__ import annotations

import math

import numpy as np
from results import save

from randquant.channels import Key
from randquant.local_training import Learner
from randquant.training import sample_cohort
from randquant_papers import problems

SHARES = (0.0, 0.1, 0.3, 1.0, 3.0)
STEPS = (0.06, 0.2, 0.6)
"""Step sizes, over the clipping norm."""

SETTINGS = (
    ("digits", "softmax", 50, 200, 0.5),
    ("digits", "softmax", 200, 40, 0.5),
    ("digits", "mlp", 100, 40, 0.5),
    ("breast-cancer", "softmax", 100, 40, 0.5),
    ("breast-cancer", "mlp", 100, 40, 0.5),
)
"""Data set, model, rounds, cohort (of 200 clients), clipping norm."""


def accuracy(setting, share: float, step: float, seed: int) -> tuple[float, int]:
    name, model, rounds, cohort, clip_norm = setting
    learner = Learner(problems.problem(name, model, 200, seed=seed))
    parameters, noise = learner.parameters(), np.random.default_rng(seed)
    deviation = share * clip_norm * math.sqrt(rounds / learner.dimension)
    for number in range(1, rounds + 1):
        learner.load(parameters)
        gradients, _ = learner.updates(sample_cohort(200, cohort, number, Key.from_seed(seed)))
        rows = np.asarray(gradients, dtype=np.float64)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        mean = (rows * np.minimum(1, clip_norm / np.maximum(lengths, 1e-30))).mean(axis=0)
        mean += deviation * noise.standard_normal(mean.size)
        parameters = (parameters - step / clip_norm * mean).astype(np.float32)
    learner.load(parameters)
    return learner.evaluate().accuracy, learner.dimension


def main() -> None:
    found = []
    for setting in SETTINGS:
        name, model, rounds, cohort, _ = setting
        line = {"data": name, "model": model, "rounds": rounds, "cohort": cohort, "accuracy": {}}
        for share in SHARES:
            best = 0.0
            for step in STEPS:
                scores = [accuracy(setting, share, step, seed) for seed in (0,)]
                line["dimension"] = scores[0][1]
                best = max(best, float(np.mean([score for score, _ in scores])))
            line["accuracy"][str(share)] = round(best, 4)
        print(line, flush=True)
        found.append(line)
    save("usefulness", {"lines": found})


if __name__ == "__main__":
    main()
