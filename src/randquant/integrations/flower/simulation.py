"""Clients of `randquant.train` in processes of Flower's simulation engine, which runs on Ray.

The run stays in the process that called it: its account, its folder, the sums and the server's
step. Model, clients' data and mechanism are in Ray's object store, from which each process takes
them once. In a round, a message to a process has the weights, the round's key and groups of
clients; its reply has what these clients send.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import ModuleType
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from randquant._internal import extras, validate
from randquant.channels.keys import Key
from randquant.training.cohort import CohortClients, Round, Upload, computing_on

POLL_SECONDS = 0.01
"""Time between two looks for replies; Flower hands messages on every 0.1 s."""

MESSAGES = 2
"""Messages to each process in a round. With one, all wait for the slowest process; with four, the
weights are sent twice as often."""


@contextlib.contextmanager
def engine(
    processes: int | None = None, *, gpus: float = 0.0, modules: Sequence[ModuleType] = ()
) -> Iterator[None]:
    """Compute the clients of each `randquant.train` within on Flower's simulation engine (Ray).

    Arguments and results of `train` are the same, and a run may begin without the engine and go on
    with it, or the other way round. Clients that are a function are read in the process that
    computes them; those of a list or a mapping, and the model, are copied to every process.

    Args:
        processes: how many on this machine. By default as many as Ray counts processors: on this
            machine, or on all machines of the cluster that the variable RAY_ADDRESS names.
        gpus: share of a GPU for each process, with `Local(device="cuda")`.
        modules: modules that the processes cannot import; they get them as they are here.

    Guarantees:
        On machines and libraries like this one, model, account and metrics are the same, bit for
        bit, as without the engine.
        The account, and what is on disk before a round, do not depend on the engine.

    Raises:
        ImportError: Ray is not installed.
        RuntimeError: (by `train`) a process has died. What was sent is on record: the same call
            goes on.

    Example:
        >>> with engine(processes=4):
        ...     run = randquant.train(model, clients, epsilon=8)  # doctest: +SKIP
    """
    if processes is not None:
        validate.whole("processes", processes, low=1, high=2**16)
    validate.real("gpus", gpus, low=0)
    # Ray's own defaults of the future, and no report of its use to its makers.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    pickler: Any = extras.load("ray.cloudpickle", "Flower's simulation engine", "simulation")
    for module in modules:
        pickler.register_pickle_by_value(module)
    try:
        with computing_on(functools.partial(_simulation, processes, gpus)):
            yield
    finally:
        for module in modules:
            pickler.unregister_pickle_by_value(module)


class GridEngine:
    """Has groups of clients computed by the nodes of a grid, as an `Engine` of training.

    Args:
        grid: its nodes run `client_app`.
        workers: how many of them compute at the same time; there are MESSAGES times as many.
        check: called while replies are awaited; it raises if none will come.
    """

    def __init__(self, grid: Grid, workers: int, check: Callable[[], None]) -> None:
        self.workers, self._grid, self._check = workers, grid, check

    def uploads(self, groups: Sequence[Sequence[int]], round: Round, threads: int) -> list[Upload]:
        weights, key, seed = round
        nodes = self._nodes()[: len(groups)]
        count, uploads = len(nodes), [Upload([], weights[:0], 0.0)] * len(groups)
        messages = []
        for start, node in enumerate(nodes):
            work = groups[start::count], weights, key.secret_bytes(), seed, threads
            messages.append(Message(_record(pickle.dumps(work)), node, "train"))
        answers = dict(self._answers(messages))
        for start, node in enumerate(nodes):
            uploads[start::count] = answers[node]
        return uploads

    def _nodes(self) -> list[int]:
        # The engine registers them while the first round begins.
        while len(nodes := sorted(self._grid.get_node_ids())) < MESSAGES * self.workers:
            self._check()
            time.sleep(POLL_SECONDS)
        return nodes

    def _answers(self, messages: Sequence[Message]) -> Iterator[tuple[int, list[Upload]]]:
        waiting = set(self._grid.push_messages(messages))
        while waiting:
            self._check()
            for reply in self._grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    raise _broken(reply.error.reason)
                answer = pickle.loads(reply.content["work"]["pickle"])
                if isinstance(answer, Exception):
                    raise answer
                yield reply.metadata.src_node_id, answer
            time.sleep(POLL_SECONDS if waiting else 0)


def client_app(load: Callable[[], CohortClients]) -> ClientApp:
    """Return the app that computes groups of the clients that `load` returns."""
    app = ClientApp()

    @app.train()
    def compute(message: Message, context: Context) -> Message:
        groups, weights, key, seed, threads = pickle.loads(message.content["work"]["pickle"])
        try:
            uploads = load().uploads(groups, Round(weights, Key(key), seed), threads)
            content = pickle.dumps(uploads)
        except Exception as error:  # of the user's model or data
            content = _pickled(error)
        return Message(_record(content), reply_to=message)

    return app


def _pickled(error: Exception) -> bytes:
    try:
        pickle.loads(content := pickle.dumps(error))
    except Exception:  # of a class that other processes cannot import, or build
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return content


def _record(content: bytes) -> RecordDict:
    return RecordDict({"work": ConfigRecord({"pickle": content})})


def _broken(reason: object) -> RuntimeError:
    return RuntimeError(
        "Expected every process of Flower's simulation engine to answer, got "
        f"{validate.shown(reason)}: free memory on its machine, or take fewer processes."
    )


@functools.lru_cache(maxsize=1)
def _from_store(reference: Any, paths: Sequence[str]) -> CohortClients:
    # Once in a process, which computes one run. It imports what the run's process can import.
    import ray

    sys.path += [path for path in paths if path not in sys.path]
    return ray.get(reference)


@contextlib.contextmanager
def _simulation(processes: int | None, gpus: float, clients: CohortClients) -> Iterator[GridEngine]:
    import ray
    from flwr.simulation import run_simulation

    if not ray.is_initialized():
        ray.init(
            num_cpus=processes, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    load = functools.partial(_from_store, ray.put(clients), tuple(map(os.path.abspath, sys.path)))
    resources = ray.cluster_resources()
    workers = int(min(resources["CPU"], resources.get("GPU", 0) / gpus if gpus else math.inf))
    grids: queue.SimpleQueue[Grid] = queue.SimpleQueue()
    server, over = ServerApp(), threading.Event()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        # The run has the main thread, which gets Ctrl-C; this one only lends its grid.
        grids.put(grid)
        over.wait()

    with _silent(logging.getLogger("flwr")), ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            run_simulation, server, client_app(load), MESSAGES * workers,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": gpus}},
        )  # fmt: skip
        check = functools.partial(_check, running)
        try:
            while grids.empty():
                check()
                time.sleep(POLL_SECONDS)
            yield GridEngine(grids.get(), workers, check)
        except BaseException:
            ray.shutdown()  # nobody waits for what the processes still compute
            raise
        finally:
            over.set()


def _check(running: Future[None]) -> None:
    if running.done():
        raise _broken(running.exception()) from running.exception()


@contextlib.contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    # Flower's engine logs tracebacks of what is raised here in one sentence.
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
