"""How well `rq.train` learns without tuning: python benchmarks/defaults.py [DATA_DIR]

Beside it, in a simulation with a trusted server (`defaults_peers`): plain local SGD at the best of
a grid of rates and thresholds by test score, which nobody could choose so on private data, and the
settings of other libraries' examples. `--quick` takes few tasks, one seed and a coarse grid: about
five minutes. Without a folder, the stored results are shown. `--rounds` runs `rq.train` without
tuning for other numbers of rounds. `--check` compares the simulation with `rq.train` at the same
rate and threshold. Scores are test accuracy, or R^2, in per cent.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path

import numpy as np
import torch
from defaults_peers import (
    ROUNDS,
    GaussianMechanism,
    Simulator,
    flower_adaptive,
    flower_fixed,
    pfl,
    plain,
)  # fmt: skip
from defaults_tasks import HELD_OUT, LOOKED_AT, Task
from results import stored, write

import randquant as rq

KNOWN = LOOKED_AT | HELD_OUT
RATES, NORMS = (0.02, 0.1, 0.5, 2.0), (0.1, 0.3, 1.0)
QUICK = ("digits, linear", "wine", "MNIST, perceptron", "breast cancer, hidden layer")
PEERS = {"flower_fixed": flower_fixed, "flower_adaptive": flower_adaptive, "pfl": pfl}
WAYS = ("untuned", "grid", "usual", *PEERS)
TITLES = (
    "untuned", "best of grid", "0.1, norm 1", "Flower, fixed norm", "Flower, adaptive norm", "pfl",
)  # fmt: skip


def score(
    task: Task,
    epsilon: float,
    rate: float | None = None,
    norm: float = 1.0,
    rounds: int = ROUNDS,
) -> float:
    """Of a run of `rq.train`, without tuning or with plain SGD."""
    settings = dict(task.settings)
    unit, parts = settings.pop("unit", "client"), settings.pop("parts", None)
    local, server = (
        rq.Local(learning_rate=rate, parts=parts),
        rq.Server("SGD") if rate else rq.Server(),
    )
    privacy = rq.Privacy(unit=unit, clip_norm=norm)
    run = rq.train(
        task.model, task.clients, test=task.test, epsilon=epsilon, rounds=rounds, local=local,
        server=server, privacy=privacy, progress=False, **settings,
    )  # fmt: skip
    if run.accuracy is not None:
        return 100 * run.accuracy
    x, y = task.test
    with torch.no_grad():
        rest = (run.model(x) - y).square().mean() / (y - y.mean()).square().mean()
    return 100 * max(-1.0, 1 - float(rest))


def measured(name: str, epsilon: float, options: argparse.Namespace) -> dict:
    """Scores of one task by seed; of the grid, at the pair that is best on average."""

    seeds = range(options.seeds)
    tasks = [KNOWN[name](options.folder, seed) for seed in seeds]
    untuned = [round(score(task, epsilon), 2) for task in tasks]
    made = [Simulator(task) for task in tasks]
    pairs = {*itertools.product(options.rates, options.norms), (0.1, 1.0)}
    found = {pair: [plain(made[seed], epsilon, *pair, seed) for seed in seeds] for pair in pairs}
    best = max(found, key=lambda pair: np.mean(found[pair]))
    row = {
        "task": name, "held_out": name in HELD_OUT, "epsilon": epsilon, "untuned": untuned,
        "grid": found[best], "rate": best[0], "clip_norm": best[1], "usual": found[0.1, 1.0],
    }  # fmt: skip
    for way, peer in PEERS.items():  # which protect whole clients only
        if not made[0].examples and (way != "pfl" or GaussianMechanism):
            scores = [peer(made[seed], epsilon, seed) for seed in seeds]
            row.update({way: scores} if np.isfinite(scores).all() else {})
    return row


def regret(row: dict, way: str = "untuned") -> float:
    """Against the grid, over the seeds that both have."""
    seeds = min(len(row[way]), len(row["grid"]))
    return float(np.mean(row[way][:seeds]) - np.mean(row["grid"][:seeds]))


def table(rows: list[dict]) -> str:
    """Means over seeds by task, at each epsilon, and the regrets against the grid."""
    lines = [f"| task | {' | '.join(TITLES)} |", "|---" * (len(WAYS) + 1) + "|"]
    for name in [name for name in [*HELD_OUT, *LOOKED_AT] if name in {row["task"] for row in rows}]:
        those = sorted((r for r in rows if r["task"] == name), key=lambda row: -row["epsilon"])
        held = [[f"{np.mean(r[way]):.0f}" if way in r else "-" for r in those] for way in WAYS]
        cells = [" / ".join(each) if set(each) != {"-"} else "" for each in held]
        seeds = "/".join(f"{len(row['untuned'])},{len(row.get('grid', []))}" for row in those)
        lines.append(f"| {name} ({seeds}) | {' | '.join(cells)} |")
    for held, epsilon in itertools.product((True, False), (8, 2, 1)):
        those = [row for row in rows if (row["held_out"], row["epsilon"]) == (held, epsilon)]
        for way in WAYS:
            found = {r["task"]: regret(r, way) for r in those if way in r and "grid" in r}
            if found and way != "grid":
                worst = min(found, key=lambda task: found[task])
                lines.append(
                    f"{'held out' if held else 'looked at'}, epsilon {epsilon}, {way}: mean regret "
                    f"{np.mean(list(found.values())):+.1f}, worst {found[worst]:+.1f} ({worst}), "
                    f"{len(found)} tasks"
                )
    return "\n".join(lines)


def checked(folder: Path) -> list[dict]:
    """The simulation beside `rq.train`, at a rate of 0.1 and clip norm 1."""
    rows = []
    for name, epsilon in itertools.product(("digits, linear", "breast cancer"), (8.0, 1.0)):
        tasks = [KNOWN[name](folder, seed) for seed in range(3)]
        rows.append({
            "task": name, "epsilon": epsilon,
            "train": [round(score(task, epsilon, 0.1), 2) for task in tasks],
            "simulated": [
                plain(Simulator(task), epsilon, 0.1, 1.0, seed) for seed, task in enumerate(tasks)
            ],
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DATA_DIR")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tasks", nargs="*", default=list(KNOWN))
    parser.add_argument("--epsilons", nargs="*", type=float, default=[8.0, 2.0, 1.0])
    parser.add_argument("--rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--norms", nargs="*", type=float, default=NORMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, nargs="*", help="untuned runs of so many rounds only")
    parser.add_argument("--save", action="store_true", help="add to the stored results")
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.epsilons, options.seeds = QUICK, [8.0], 1
        options.rates, options.norms = (0.1, 0.5), (1.0,)
    warnings.filterwarnings("ignore", category=UserWarning)
    record = stored("defaults")
    if options.check:
        record["check"] = checked(options.folder)
        print(*record["check"], sep="\n")
    elif options.rounds:
        for name, epsilon, rounds in itertools.product(
            options.tasks, options.epsilons, options.rounds
        ):
            tasks = [KNOWN[name](options.folder, seed) for seed in range(options.seeds)]
            scores = [round(score(task, epsilon, rounds=rounds), 1) for task in tasks]
            print(f"{name}, epsilon {epsilon:g}, {rounds} rounds: {np.mean(scores):.1f}", scores)
    elif options.folder:
        rows = {(row["task"], row["epsilon"]): row for row in record["rows"] if options.save}
        for name, epsilon in itertools.product(options.tasks, options.epsilons):
            rows[name, epsilon] = measured(name, epsilon, options)
            print(rows[name, epsilon], flush=True)
            record["rows"] = list(rows.values())
            if options.save:
                write("defaults", record)
    if options.check and options.save:
        write("defaults", record)
    if not options.check and not options.rounds:
        print(table(record["rows"]))


if __name__ == "__main__":
    main()
