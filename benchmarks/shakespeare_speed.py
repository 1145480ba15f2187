"""A round of an adapter beside a bare torch loop on the same cohorts.

python benchmarks/shakespeare_speed.py DATA_DIR [--cache FOLDER]

Both compute the same gradients of the same roles' windows: bare torch without clipping, encoding or
a sum, and `randquant.train`'s own round with one bit a coordinate; on one thread, and on two. Each
has a process of its own and they take turns, a round each: other load disturbs both alike. What
counts is the fastest round, in processor time of all threads and by the clock. Then ours runs a
round of all roles: memory must not grow with the cohort.
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from results import add
from shakespeare_picture import NAME, draw, task
from torch import nn

from randquant.aggregation import update_mechanism
from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem
from randquant.training import OptimizerStep, distributed_sgd, sample_cohort, torch_optimizer

COHORT, BATCH, ROUNDS, RATE = 100, 8, 12, 0.1
ONE_BIT = {"clip": 0.067, "levels": 2, "margin": 0.06}
KEY = Key.from_seed(0)

Round = Callable[[int, Sequence[int]], None]


def bare(learner: Learner, pool: ThreadPoolExecutor, workers: int) -> Round:
    """Forward and backward passes on the same windows, and plain SGD."""
    del workers
    problem = learner.problem
    parameters = [each for each in problem.model.parameters() if each.requires_grad]

    def gradient(client: int, number: int):
        windows = learner._steps(client, KEY.fold_in(number))[0]
        features, targets = problem.clients.take(client, windows)
        loss = nn.functional.cross_entropy(problem.model(features), targets)
        return torch.autograd.grad(loss, parameters)

    def run(number: int, cohort: Sequence[int]) -> None:
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for parts in pool.map(lambda client: gradient(client, number), cohort):
            for sum_, part in zip(total, parts, strict=True):
                sum_ += part
        with torch.no_grad():
            for parameter, sum_ in zip(parameters, total, strict=True):
                parameter -= RATE * sum_ / len(cohort)

    return run


def ours(learner: Learner, pool: ThreadPoolExecutor, workers: int) -> Round:
    """`randquant.train`'s round: gradients, clip, rotate, encode, sum, decode, step."""
    mechanism = update_mechanism(
        "stochastic-rounding", ONE_BIT, trust="aggregate", cohort=COHORT, clip_norm=1.4
    )
    algorithm = distributed_sgd(
        learner, mechanism, population=len(learner.problem.clients), pool=pool, workers=workers,
        server=OptimizerStep(torch_optimizer("SGD", RATE, {}), [(learner.dimension,)]),
    )  # fmt: skip
    state = algorithm.init()

    def run(number: int, cohort: Sequence[int]) -> None:
        nonlocal state
        assert number == state.round + 1
        state, _ = algorithm.apply(state, cohort, KEY)

    return run


CONTESTANTS = {each.__name__: each for each in (bare, ours)}


def serve(asked: Connection, name: str, workers: int, data_dir: str, cache: str) -> None:
    """A contestant's process: a round for each (number, cohort) that is asked for."""
    torch.set_num_threads(1)
    found = task.roles(data_dir)
    model = task.adapted(task.pretrained(found.public, 3, Path(cache)), found.public)
    learner = Learner(make_problem(model, found.clients), Work(batch=BATCH))
    del found
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        run = CONTESTANTS[name](learner, pool, workers)
        for number, cohort in iter(asked.recv, None):
            started = time.process_time(), time.perf_counter()
            run(number, cohort)
            spent = time.process_time() - started[0], time.perf_counter() - started[1]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            asked.send((*spent, peak))


def main(data_dir: str, cache: str) -> None:
    """Rounds in turn on one thread, then on two."""
    kept = Path(cache, "pretrained-3.pt")
    roles = task.roles(data_dir)
    task.pretrained(roles.public, 3, kept)
    population = len(roles.clients)
    speed: dict = {"cohort": COHORT, "batch": BATCH}
    start = multiprocessing.get_context("spawn")
    for workers in (1, 2):
        pipes, processes, took = {}, [], {name: [] for name in CONTESTANTS}
        for name in CONTESTANTS:
            pipes[name], given = start.Pipe()
            own = (given, name, workers, data_dir, str(kept))
            processes.append(start.Process(target=serve, args=own, daemon=True))
            processes[-1].start()
            given.close()  # if the process dies, its pipe ends instead of waiting for ever
        for number in range(1, ROUNDS + 1):
            cohort = sample_cohort(population, COHORT, number, KEY)
            for name, pipe in pipes.items():
                pipe.send((number, cohort))
                took[name].append(pipe.recv())
        pipes["ours"].send((ROUNDS + 1, list(range(population))))
        of_all = pipes["ours"].recv()
        for pipe, process in zip(pipes.values(), processes, strict=True):
            pipe.send(None)
            process.join()
        processor, clock = ({n: min(each[k] for each in took[n]) for n in took} for k in (0, 1))
        speed[f"{workers} workers"] = {
            "processor_seconds": processor,
            "ours_over_bare": processor["ours"] / processor["bare"],
            "rounds_per_minute": {name: 60 / seconds for name, seconds in clock.items()},
            "megabytes": {name: rounds[-1][2] for name, rounds in took.items()},
            "megabytes_all_roles": of_all[2],
        }
        print(speed, flush=True)
    add(NAME, {"speed": speed})
    draw()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir")
    parser.add_argument("--cache", default="runs/shakespeare")
    given = parser.parse_args()
    torch.set_num_threads(1)
    main(given.data_dir, given.cache)
