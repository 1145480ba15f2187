"""How well `rq.train` learns without tuning: python benchmarks/defaults.py DATA_DIR

Beside it, the same runs with plain local SGD at the best of a grid of rates and thresholds, which
nobody could choose so on private data, and with the defaults of a usual DP-FedAvg (rate 0.1, clip
norm 1, server rate 1). `--quick` takes few tasks, one seed and a coarse grid: about five minutes.
Scores are test accuracy, or R^2 of a regression, in per cent.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path

import numpy as np
import torch
from defaults_tasks import HELD_OUT, LOOKED_AT, Task
from results import stored, write

import randquant as rq

RATES, NORMS = (0.02, 0.1, 0.5, 2.0), (0.1, 0.3, 1.0)
QUICK = ("digits, linear", "wine", "MNIST, perceptron", "breast cancer, hidden layer")
ROUNDS = 30


def score(task: Task, epsilon: float, rate: float | None, norm: float | None) -> float:
    """Of one run: untuned if there is no rate."""
    settings = dict(task.settings)
    unit, parts = settings.pop("unit", "client"), settings.pop("parts", None)
    if rate is None:
        local, server = rq.Local(parts=parts), rq.Server()
    elif unit == "example":  # one gradient of a client
        local, server = rq.Local(parts=parts), rq.Server("SGD", learning_rate=rate)
    else:
        local, server = rq.Local(learning_rate=rate, parts=parts), rq.Server("SGD")
    privacy = rq.Privacy(unit=unit, clip_norm=1.0 if norm is None else norm)
    run = rq.train(
        task.model, task.clients, test=task.test, epsilon=epsilon, rounds=ROUNDS, local=local,
        server=server, privacy=privacy, progress=False, **settings,
    )  # fmt: skip
    if run.accuracy is not None:
        return 100 * run.accuracy
    x, y = task.test
    with torch.no_grad():
        rest = (run.model(x) - y).square().mean() / (y - y.mean()).square().mean()
    return 100 * max(-1.0, 1 - float(rest))


def measured(name: str, make, epsilon: float, options: argparse.Namespace) -> dict:
    """Scores of one task, by seed."""
    tasks = [make(options.folder, seed) for seed in range(options.seeds)]

    def of(rate: float | None, norm: float | None) -> list[float]:
        return [round(score(task, epsilon, rate, norm), 2) for task in tasks]

    grid = {pair: of(*pair) for pair in itertools.product(options.rates, options.norms)}
    best = max(grid, key=lambda pair: np.mean(grid[pair]))
    return {
        "task": name, "held_out": name in HELD_OUT, "epsilon": epsilon, "untuned": of(None, None),
        "usual": grid.get((0.1, 1.0)) or of(0.1, 1.0), "grid": grid[best],
        "rate": best[0], "clip_norm": best[1],
    }  # fmt: skip


def table(rows: list[dict]) -> str:
    """Means by task, and the regret against the grid."""
    lines = [
        "| task | epsilon | untuned | usual defaults | best of the grid |",
        "|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: (row["held_out"], row["task"], -row["epsilon"])):
        shown = " | ".join(f"{np.mean(row[way]):.1f}" for way in ("untuned", "usual", "grid"))
        mark = " (held out)" if row["held_out"] else ""
        lines.append(f"| {row['task']}{mark} | {row['epsilon']:g} | {shown} |")
    for held, epsilon in sorted({(row["held_out"], -row["epsilon"]) for row in rows}):
        those = [r for r in rows if (r["held_out"], -r["epsilon"]) == (held, epsilon)]
        for way in ("untuned", "usual"):
            regrets = [np.mean(row[way]) - np.mean(row["grid"]) for row in those]
            lines.append(
                f"{'held out' if held else 'looked at'}, epsilon {-epsilon:g}, {way}: mean regret "
                f"{np.mean(regrets):+.1f}, worst {min(regrets):+.1f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DATA_DIR")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--epsilons", nargs="*", type=float, default=[8.0, 2.0, 1.0])
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--norms", nargs="*", type=float, default=NORMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="add to the stored results")
    options = parser.parse_args()
    known = LOOKED_AT | HELD_OUT
    names = options.tasks or list(known)
    if options.quick:
        names, options.epsilons, options.seeds = QUICK, [8.0], 1
        options.rates, options.norms = (0.1, 0.5), (1.0,)
    warnings.filterwarnings("ignore", category=UserWarning)
    rows = [] if not options.save else stored("defaults").get("rows", [])
    for name, epsilon in itertools.product(names, options.epsilons):
        row = measured(name, known[name], epsilon, options)
        print(row, flush=True)
        rows = [r for r in rows if (r["task"], r["epsilon"]) != (name, epsilon)] + [row]
        if options.save:
            write(
                "defaults",
                {
                    "benchmark": "defaults",
                    "rounds": ROUNDS,
                    "seeds": options.seeds,
                    "rates": options.rates,
                    "norms": options.norms,
                    "rows": rows,
                },
            )
    print(table(rows))


if __name__ == "__main__":
    main()
