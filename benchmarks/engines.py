"""Rounds of `rq.train` in its own process and on Flower's engine: python benchmarks/engines.py DATA

3,400 clients of 100 Fashion-MNIST images each, which a function reads, and cohorts of 40: the five
untuned steps of a softmax regression, of a CNN, and of a CNN whose own dropout no two threads can
draw at once. DATA is the folder of the IDX files. Each contestant runs in a process of its own, in
turn with the others, and all must end at the same weights. About twenty minutes on two quiet
cores; `--tasks softmax --rounds 3 --passes 1` is a trial.
"""

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from results import save

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant_papers import problems
from randquant_papers.data import datasets

POPULATION, COHORT, IMAGES = 3400, 40, 100
TASKS = ("softmax", "cnn", "dropout cnn")
CONTESTANTS = {"2 threads": 0, "1 process": 1, "2 processes": 2, "4 processes": 4}


class Dropping(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(torch.nn.functional.dropout(x, 0.1, self.training))


def model_of(name):
    model = problems.build(name.removeprefix("dropout "), (1, 28, 28), 10, seed=0)
    return Dropping(model) if name.startswith("dropout") else model


class Images:
    """Reads the files where it is called: no process is sent them."""

    def __init__(self, folder):
        self.folder, self.data = folder, None

    def __getstate__(self):
        return {"folder": self.folder, "data": None}

    def __call__(self, client):
        if self.data is None:
            self.data = datasets.load("fashion-mnist", self.folder)
        rows = np.random.default_rng(client).integers(60_000, size=IMAGES)
        return self.data.train_features[rows], self.data.train_labels[rows]


def memory_of(processes):
    """Megabytes that processes hold, shared pages divided among those that share them."""
    total = 0
    for each in processes:
        with contextlib.suppress(OSError), open(f"/proc/{each}/smaps_rollup") as lines:
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def workers():
    """Ray's processes that compute clients."""
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{each}/cmdline") as line:
            if line.read().startswith("ray::ClientAppActor"):
                found.append(each)
    return found


def one(name, contestant, folder, rounds):
    """What a process of its own runs: prints one JSON object."""
    times, memory, processes = [time.perf_counter()], [], CONTESTANTS[contestant]

    def ended(metrics):
        times.append(time.perf_counter())
        memory.append(memory_of([os.getpid(), *(workers() if processes else ())]))

    engine = contextlib.nullcontext()
    if processes:
        from randquant.flower import engine as flower_engine

        engine = flower_engine(processes)
    noise = update_mechanism("local-gaussian", {"clip_norm": 1.0, "noise_multiplier": 2.0})
    with engine:
        run = rq.train(
            model_of(name), Images(folder), population=POPULATION, mechanism=noise, rounds=rounds,
            cohort=COHORT, seed=0, progress=False, server=rq.Server(on_round=ended),
        )  # fmt: skip
    weights = b"".join(each.detach().numpy().tobytes() for each in run.model.parameters())
    first, *others = np.diff(times).tolist()
    print(json.dumps({
        "until the first round has ended": first, "a round": statistics.median(others),
        "megabytes": max(memory), "weights": hashlib.sha256(weights).hexdigest(),
    }))  # fmt: skip


def run(*arguments):
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stderr[-3000:]}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def main(folder, tasks, rounds, passes):
    figures = {}
    for name in tasks:
        seen = {contestant: [] for contestant in CONTESTANTS}
        for _ in range(passes):
            for contestant in CONTESTANTS:
                seen[contestant].append(run(name, contestant, folder, rounds))
        assert len({each.pop("weights") for runs in seen.values() for each in runs}) == 1, name
        best = {c: {key: min(r[key] for r in runs) for key in runs[0]} for c, runs in seen.items()}
        for contestant, figure in best.items():
            figure["over threads"] = figure["a round"] / best["2 threads"]["a round"]
            print(f"{name:12} {contestant:12}", {k: round(v, 2) for k, v in figure.items()})
        figures[name] = best
    save("engines", {"tasks": figures, "rounds": rounds, "passes": passes,
                     "load": os.getloadavg()[0], "torch": torch.__version__})  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("data")
        parser.add_argument("--rounds", type=int, default=8)
        parser.add_argument("--passes", type=int, default=3)
        parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
        given = parser.parse_args()
        main(given.data, given.tasks, given.rounds, given.passes)
