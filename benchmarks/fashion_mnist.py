"""The full Fashion-MNIST run: python benchmarks/fashion_mnist.py DATA_DIR [RUN]

3,400 clients (Dirichlet 0.3), 40 a round, the CNN of 50,226 parameters, RQM with 16 levels, 300
rounds, beside clipped SGD at the same clip and rates. Leaves the run's folder with its report.
At these rates accuracy moves by a point from one evaluation to the next, so two more seeds are run.
"""

import resource
import sys
from pathlib import Path

import numpy as np
from results import save

from randquant.cli import train as command
from randquant.training import RunRecord, train_run
from randquant_papers.configuration import PaperConfig
from randquant_papers.problems import create

CLIP = 0.003
CONFIG = PaperConfig.of(
    dataset="fashion-mnist",
    model="cnn",
    mechanism="rqm",
    parameters={"clip": CLIP, "margin": CLIP, "levels": 16, "keep": 0.42},
    population=3400,
    cohort=40,
    rounds=300,
    partition="dirichlet",
    concentration=0.3,
    learning_rate=0.03 / CLIP,
)


def trained(config: PaperConfig, folder: Path) -> RunRecord:
    return train_run(folder, create(folder, config.changed(baseline=True), overwrite=True))


def accuracies(config: PaperConfig, folder: Path) -> tuple[float, float]:
    beside = folder.with_name(f"{folder.name}-seed{config.seed}")
    result = command.finished_json(beside, trained(config, beside))
    return result["accuracy"], result["baseline_accuracy"]


def main(data_dir: str, folder: Path) -> None:
    config = CONFIG.changed(data_dir=data_dir)
    run = trained(config, folder)
    result = command.finished_json(folder, run)
    print("\n".join(command.finished_lines(folder, run)))
    others = [accuracies(config.changed(seed=seed), folder) for seed in (1, 2)]
    seeds = [(result["accuracy"], result["baseline_accuracy"]), *others]
    print("accuracy, and without privacy, by seed:", seeds)
    steady = run.metrics[10:]
    gradient = np.array([m.seconds_gradient for m in steady])
    protect = np.array([m.seconds_protect for m in steady])
    save(
        "fashion_mnist",
        {
            "accuracy": result["accuracy"],
            "baseline_accuracy": result["baseline_accuracy"],
            "accuracy_by_seed": [accuracy for accuracy, _ in seeds],
            "baseline_accuracy_by_seed": [accuracy for _, accuracy in seeds],
            "guarantee": result["guarantee"],
            "per_coordinate": result["per_coordinate"],
            "bytes_per_upload": result["bytes_per_upload"],
            "dimension": result["dimension"],
            "participations": result["participations"],
            "seconds_per_round_median": float(np.median(gradient + protect)),
            "share_outside_gradients": float(protect.sum() / (gradient + protect).sum()),
            "peak_memory_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "parameters": dict(config.parameters),
            "learning_rate": config.server.learning_rate,
        },
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "runs/fashion-mnist"))
