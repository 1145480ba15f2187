"""Processes that train runs, a few at once; they end when their parent process does."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from randquant.training import RoundMetrics, TrainConfig
from randquant_papers.configuration import PaperConfig

OnRound = Callable[[Path, PaperConfig, RoundMetrics], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over.

    Attributes:
        folder: the run's folder.
        error: why it failed; empty if it is finished.
        lasting: whether it would fail again.
    """

    folder: Path
    error: str = ""
    lasting: bool = False


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    link: Connection
    folder: Path | None = None


class Workers:
    """Up to `jobs` processes, each training one run at a time; use it in a `with` statement.

    A process is reused for the next run, because its imports take longer than a small run; one
    that dies affects only its own run.

    Args:
        jobs: how many runs at once.
        on_round: called after each round of any run.

    Guarantees:
        No process outlives this one, however it ends.
    """

    def __init__(self, jobs: int, on_round: OnRound = lambda folder, config, metrics: None) -> None:
        self._jobs, self._on_round = jobs, on_round
        self._workers: list[_Worker] = []

    @property
    def training(self) -> list[Path]:
        """The folders of the runs being trained."""
        return [worker.folder for worker in self._workers if worker.folder is not None]

    @property
    def free(self) -> bool:
        """Whether another run can start."""
        return len(self.training) < self._jobs

    def begin(self, folder: Path, config: PaperConfig) -> None:
        """Start training the run in a folder, from its last checkpoint if it has one.

        Args:
            folder: of the run.
            config: which names its data set and model.
        """
        idle = [worker for worker in self._workers if worker.folder is None]
        worker = idle[0] if idle else self._start()
        worker.folder = folder
        with contextlib.suppress(BrokenPipeError):  # the process died while idle: see `wait`
            worker.link.send((folder, config))

    def wait(self) -> list[Ended]:
        """Wait until a run is over, and return all runs that are."""
        ended: list[Ended] = []
        while not ended and self._workers:
            ready = connection.wait([worker.link for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.link in ready]:
                try:
                    message = worker.link.recv()
                except (EOFError, ConnectionResetError):
                    message = self._lost(worker)
                if isinstance(message, Ended):
                    worker.folder = None
                    ended.append(message)
                elif message is not None:
                    self._on_round(*message)
        return ended

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.process.kill()  # a killed run can be resumed from its checkpoint
        for worker in self._workers:
            worker.process.join()
            worker.link.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), daemon=True)
        with _no_interrupts():
            process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _lost(self, worker: _Worker) -> Ended | None:
        self._workers.remove(worker)
        worker.process.join()
        worker.link.close()
        if worker.folder is None:
            return None
        how = worker.process.exitcode
        return Ended(
            worker.folder, f"Expected the run to end, but its process died: exit code {how}."
        )


@contextlib.contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes started here ignore Ctrl-C, which reaches all processes of a terminal.

    On Windows they do not, because it has no signal masks: there Ctrl-C ends them with the sweep.
    """
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(link: Connection) -> None:
    """The loop of a worker process: train the runs it receives until the link is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            folder, config = link.recv()
        except EOFError:
            return
        link.send(_trained(folder, config, link))


def _trained(folder: Path, config: PaperConfig, link: Connection) -> Ended:
    try:
        from randquant.reports import report_run
        from randquant.training import train_run
        from randquant_papers.problems import inputs_of

        def tell(_: TrainConfig, metrics: RoundMetrics) -> None:
            link.send((folder, config, metrics))

        train_run(folder, inputs_of(config), tell)
        report_run(folder)
    except (ValueError, TypeError, ArithmeticError) as error:
        return Ended(folder, " ".join(str(error).split()), lasting=True)
    except Exception as error:  # no error may stop the other runs
        return Ended(folder, " ".join(str(error).split()) or type(error).__name__)
    return Ended(folder)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
