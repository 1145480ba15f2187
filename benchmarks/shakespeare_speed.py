"""A round of an adapter beside a bare torch loop on the same cohorts.

python benchmarks/shakespeare_speed.py DATA_DIR [--cache FOLDER]

Both compute the same gradients of the same roles' windows: bare torch without clipping, encoding or
a sum, and `randquant.train`'s own round with one bit a coordinate; on one thread, and on two. What
counts is the processor time of the fastest round, of all threads together.
"""

import argparse
import resource
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

COHORT, BATCH, ROUNDS = 100, 8, 12
ONE_BIT = {"clip": 0.067, "levels": 2, "margin": 0.06}


def bare(learner: Learner, model: nn.Module):
    """A round of forward and backward passes on the same windows, and plain SGD."""
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


def ours(learner: Learner, workers: int):
    """`randquant.train`'s round: gradients, clip, rotate, encode, sum, decode, step."""
    mechanism = update_mechanism(
        "stochastic-rounding", ONE_BIT, trust="aggregate", cohort=COHORT, clip_norm=1.4
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


def main(data_dir: str, cache: str) -> None:
    """Each contestant's fastest round, taken in turn: other load disturbs both alike."""
    found = task.roles(data_dir)
    model = task.pretrained(found.public, 0, Path(cache, "pretrained-3.pt"))
    model = task.adapted(model, found.public)
    learner = Learner(problem_of(model, found.clients[:COHORT]), Local(batch=BATCH))
    speed = {"cohort": COHORT, "batch": BATCH}
    for workers in (1, 2):
        runs = {"bare": bare(learner, model), "ours": ours(learner, workers)}
        spent: dict[str, list[float]] = {name: [] for name in runs}
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for number in range(1, ROUNDS + 1):
                for name, run in runs.items():
                    start = time.process_time()
                    run(number, pool)
                    spent[name].append(time.process_time() - start)
        best = {name: min(seconds) for name, seconds in spent.items()}
        ratio = best["ours"] / best["bare"]
        speed[f"{workers} workers"] = {"processor_seconds": best, "ours_over_bare": ratio}
        print(speed, flush=True)
    speed["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    add(NAME, {"speed": speed})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir")
    parser.add_argument("--cache", default="runs/shakespeare")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(given.data_dir, given.cache)
