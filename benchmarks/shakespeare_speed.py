"""A round of adapters beside a bare torch loop on the same cohorts.

python benchmarks/shakespeare_speed.py DATA_DIR [--cache FOLDER]

Each contestant computes the same gradients of the same roles' windows, in a process of its own and
in turn with the other: bare torch without clipping, encoding or a sum, and `randquant.train`'s own
round with one bit a coordinate. On one thread, and on two. What counts is processor time, of all
threads together: other load hardly changes it.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from results import add
from shakespeare_picture import NAME, task
from torch import nn

from randquant.aggregation.registry import update_mechanism
from randquant.channels.keys import Key
from randquant.training.algorithm import distributed_sgd
from randquant.training.client import Learner
from randquant.training.local import Local
from randquant.training.optimizer import ServerStep, torch_optimizer
from randquant.training.problem import problem_of

COHORT, BATCH, WARM, TIMED, PASSES = 100, 8, 1, 4, 2
ONE_BIT = {"clip": 0.0024, "levels": 2, "margin": 0.0035}


def bare(learner: Learner, model: nn.Module, workers: int):
    """A round of forward and backward passes on the same windows, and plain SGD."""
    torch.set_num_threads(1)
    parameters = [each for each in model.parameters() if each.requires_grad]

    def one(client: int, number: int):
        features, targets = learner.problem.clients.take(client, _windows(learner, client, number))
        loss = nn.functional.cross_entropy(model(features), targets)
        return torch.autograd.grad(loss, parameters)

    def run(number: int, pool: ThreadPoolExecutor):
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for parts in pool.map(lambda client: one(client, number), range(COHORT)):
            for sum_, part in zip(total, parts, strict=True):
                sum_ += part
        with torch.no_grad():
            for parameter, sum_ in zip(parameters, total, strict=True):
                parameter -= 0.1 * sum_ / COHORT

    return run


def _windows(learner: Learner, client: int, number: int) -> np.ndarray:
    return learner._steps(client, Key.from_seed(0).fold_in(number))[0]


def ours(learner: Learner, model: nn.Module, workers: int):
    """`randquant.train`'s round: gradients, clip, rotate, encode, sum, decode, step."""
    mechanism = update_mechanism(
        "stochastic-rounding", ONE_BIT, trust="aggregate", cohort=COHORT, clip_norm=0.05
    )
    server = ServerStep(torch_optimizer("SGD", 0.1, {}), [(learner.dimension,)])
    state = None

    def run(number: int, pool: ThreadPoolExecutor):
        nonlocal state
        algorithm = distributed_sgd(
            learner, mechanism, population=COHORT, server=server, pool=pool, workers=workers
        )
        state, _ = algorithm.apply(state or algorithm.init(), range(COHORT), Key.from_seed(0))

    return run


def one(name: str, data_dir: str, cache: str, threads: int) -> None:
    """What a process of its own runs: prints seconds and memory as JSON."""
    found = task.roles(data_dir)
    model = task.adapted(task.pretrained(found.public, 0, Path(cache, "pretrained-3.pt")))
    clients = found.clients[:COHORT]
    learner = Learner(problem_of(model, clients), Local(batch=BATCH))
    torch.set_num_threads(1)
    run = {"bare": bare, "ours": ours}[name](learner, model, threads)
    spent = []
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for number in range(1, WARM + TIMED + 1):
            start = time.process_time()
            run(number, pool)
            spent.append(time.process_time() - start)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(spent[WARM:]), "megabytes": memory}))


def main(data_dir: str, cache: str) -> None:
    speed = {"cohort": COHORT, "batch": BATCH}
    for threads in (1, 2):
        seen: dict[str, list[dict]] = {"bare": [], "ours": []}
        for _ in range(PASSES):
            for name, rows in seen.items():
                command = [sys.executable, __file__, data_dir, "--cache", cache, "--one", name]
                done = subprocess.run([*command, "--threads", str(threads)], capture_output=True,
                                      text=True, check=True)  # fmt: skip
                rows.append(json.loads(done.stdout.splitlines()[-1]))
        best = {name: min(row["seconds"] for row in rows) for name, rows in seen.items()}
        speed[f"{threads} threads"] = {
            "processor_seconds": best,
            "ours_over_bare": best["ours"] / best["bare"],
            "megabytes": {n: max(row["megabytes"] for row in rows) for n, rows in seen.items()},
        }
        print(speed, flush=True)
    add(NAME, {"speed": speed})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir")
    parser.add_argument("--cache", default="runs/shakespeare")
    parser.add_argument("--one")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.one:
        one(given.one, given.data_dir, given.cache, given.threads)
    else:
        main(given.data_dir, given.cache)
