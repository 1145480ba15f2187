"""Clients of `randquant.train` in processes of Flower's simulation engine, which runs on Ray.

The run stays where it was called: its account, its folder, its sums. Each process takes model,
clients' data and mechanism from Ray's object store, once. A message has a round's weights, its key,
and groups of clients; the reply has what these clients send.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from randquant._internal import imports, validate
from randquant.training.algorithm import ENGINE, RoundCollector, RoundWork, Upload

POLL_SECONDS = 0.01
"""Time between two looks for replies; Flower hands messages on every 0.1 s."""

MESSAGES_PER_PROCESS = 2
"""Messages that a process gets in a round. With one, all wait for the slowest process; with four,
weights are sent twice as often."""


@contextlib.contextmanager
def engine(processes: int | None = None, *, modules: Sequence[ModuleType] = ()) -> Iterator[None]:
    """Compute the clients of each `randquant.train` within on Flower's simulation engine (Ray).

    Calls of `train` do not change. A run may begin with the engine and go on without, or reversely.

    Args:
        processes: how many on this machine; by default as many as Ray counts processors, on all
            machines of the cluster that the environment variable RAY_ADDRESS names.
        modules: modules that processes cannot import, which are sent to them.

    Guarantees:
        On machines and libraries like these, a run has the same bits as without the engine.

    Raises:
        RuntimeError: (by `train`) a process has died; the same call goes on.

    Example:
        >>> with engine(processes=4):
        ...     run = randquant.train(model, clients, epsilon=8)  # doctest: +SKIP
    """
    if processes is not None:
        processes = validate.whole("processes", processes, low=1, high=2**16)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # its default from now on
    pickler: Any = imports.load("ray.cloudpickle", "Flower's simulation engine", "simulation")
    for module in modules:
        pickler.register_pickle_by_value(module)
    token = ENGINE.set(functools.partial(_simulation, processes))
    try:
        yield
    finally:
        ENGINE.reset(token)


@dataclass(frozen=True)
class GridEngine:
    """Has groups of clients computed by the nodes of a grid, which run `client_app`.

    Attributes:
        grid: has MESSAGES_PER_PROCESS nodes for each process.
        workers: how many processes there are.
        check: waits a little; raises if no reply will come.
    """

    grid: Grid
    workers: int
    check: Callable[[], object]

    def uploads(self, groups: Sequence[Sequence[int]], work: RoundWork) -> list[Upload]:
        while len(nodes := sorted(self.grid.get_node_ids())) < MESSAGES_PER_PROCESS * self.workers:
            self.check()  # the engine registers them
        # No more messages than groups: an empty one would carry the weights for nothing.
        count, done = min(len(nodes), len(groups)), {}
        shares = [groups[start::count] for start in range(count)]
        messages = [_packed((s, work), node) for s, node in zip(shares, nodes, strict=False)]
        sent = list(self.grid.push_messages(messages))
        while len(done) < count:
            self.check()
            for reply in self.grid.pull_messages(set(sent) - done.keys()):
                if reply.has_error():
                    raise _broken(reply.error.reason)
                answer = _unpacked(reply)
                if isinstance(answer, Exception):
                    raise answer
                done[reply.metadata.reply_to_message_id] = answer
        # In the order of the groups and not of replies, which differs from run to run: sums then
        # have the same bits as without the engine.
        return [done[sent[place % count]][place // count] for place in range(len(groups))]


def client_app(load: Callable[[], RoundCollector]) -> ClientApp:
    """Return the app that computes groups of the clients that `load` returns."""
    app = ClientApp()

    @app.train()
    def compute(message: Message, context: Context) -> Message:
        groups, work = _unpacked(message)
        try:
            return _packed(load().uploads(groups, work), message)
        except Exception as error:  # of the user's model or data
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:  # of a class that only this process knows
                error = RuntimeError(f"{type(error).__name__}: {error}")
            return _packed(error, message)

    return app


def _packed(thing: object, to: int | Message) -> Message:
    content = RecordDict({"work": ConfigRecord({"pickle": pickle.dumps(thing)})})
    return Message(content, to, "train") if isinstance(to, int) else Message(content, reply_to=to)


def _unpacked(message: Message) -> Any:
    content: Any = message.content["work"]["pickle"]
    return pickle.loads(content)


def _broken(reason: object) -> RuntimeError:
    wanted = "Expected every process of Flower's simulation engine to answer, got"
    first_line = str(reason).partition("\n")[0]
    return RuntimeError(f"{wanted} {first_line}: free memory there, or take fewer processes.")


@functools.lru_cache(maxsize=1)  # a process computes one run
def _from_store(reference: Any, paths: Sequence[str]) -> RoundCollector:
    import ray

    sys.path += [path for path in paths if path not in sys.path]
    return ray.get(reference)


@contextlib.contextmanager
def _simulation(processes: int | None, clients: RoundCollector) -> Iterator[GridEngine]:
    import ray
    from flwr.simulation import run_simulation

    if not ray.is_initialized():
        quiet: Any = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(num_cpus=processes, include_dashboard=False, **quiet)
    load = functools.partial(_from_store, ray.put(clients), tuple(map(os.path.abspath, sys.path)))
    workers, log = int(ray.cluster_resources()["CPU"]), logging.getLogger("flwr")
    server, over, level = ServerApp(), threading.Event(), log.level
    grids: queue.SimpleQueue[Grid] = queue.SimpleQueue()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        # The run keeps the main thread, which gets Ctrl-C; this one only lends its grid.
        grids.put(grid)
        over.wait()

    with ThreadPoolExecutor(1) as thread:
        log.setLevel(logging.CRITICAL)  # it logs what is raised here in one sentence
        running = thread.submit(
            run_simulation, server, client_app(load), MESSAGES_PER_PROCESS * workers,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )  # fmt: skip

        def check() -> None:
            if running.done():
                raise _broken(running.exception()) from running.exception()
            time.sleep(POLL_SECONDS)

        try:
            while grids.empty():
                check()
            yield GridEngine(grids.get(), workers, check)
        finally:
            over.set()  # Flower ends when processes have answered the messages that they have
            log.setLevel(level)
