"""Runs a sweep to its end, from the beginning or from where it was stopped.

SWEEP/sweep.toml        what is run
SWEEP/MECHANISM-…/      a run's folder, named after a digest of its configuration
SWEEP/study.journal     a search's trials, as Optuna keeps them
SWEEP/report.html       the results
SWEEP/lock              held by the process that conducts the sweep
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from filelock import FileLock, Timeout

from randquant.training import RoundMetrics, RunStatus, is_run
from randquant_papers.configuration import PaperConfig
from randquant_papers.files import write_atomic
from randquant_papers.problems import create
from randquant_papers.sweep import names, status
from randquant_papers.sweep.search import Search
from randquant_papers.sweep.spec import Spec, read
from randquant_papers.sweep.status import FAILED, REPORT
from randquant_papers.sweep.workers import Workers

SPEC, JOURNAL = "sweep.toml", "study.journal"


class Watcher(Protocol):
    """Callbacks for progress displays."""

    def sweep(self, total: int, done: int) -> None:
        """A sweep of `total` runs starts, or continues after `done` runs."""
        ...

    def round(self, folder: Path, config: PaperConfig, metrics: RoundMetrics) -> None:
        """A run has finished a round."""
        ...

    def ended(self, status: RunStatus) -> None:
        """A run is over."""
        ...


class _Plan(Protocol):
    """The runs of a sweep; in a search they depend on the results of earlier runs."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    def config(self, number: int) -> PaperConfig | None: ...
    def recorded(self) -> list[PaperConfig]: ...
    def record(self, number: int, status: RunStatus) -> None: ...


class _Grid:
    """Every combination, independent of results."""

    done = 0

    def __init__(self, spec: Spec) -> None:
        self._configs = list(spec.grid())
        self.total = len(self._configs)

    def config(self, number: int) -> PaperConfig | None:
        return self._configs[number] if number < self.total else None

    def recorded(self) -> list[PaperConfig]:
        return self._configs

    def record(self, number: int, status: RunStatus) -> None:
        pass


def conduct(
    folder: Path, text: str | None, *, jobs: int, resume: bool, watcher: Watcher
) -> list[RunStatus]:
    """Run a sweep, or the part of it that is missing.

    Args:
        folder: the sweep's folder; unless resumed, it must not exist or must be empty.
        text: the sweep as TOML; None for the one in the folder.
        jobs: how many runs to train at once, each in its own process.
        resume: continue the sweep in the folder, if there is one.
        watcher: callbacks for progress.

    Returns:
        The status of every run. A run that cannot be trained is `failed`, with the reason, and
        does not stop the others.

    Guarantees:
        However often the process is killed and the sweep resumed, every run has the same
        parameters, bit for bit, as without a kill; a search with the same number of jobs makes the
        same trials, and no more than requested.

    Raises:
        ValueError: the sweep is not valid, or none of its runs is.
        FileExistsError: the folder holds something else, or a sweep, and `resume` is false.
        BlockingIOError: another process conducts this sweep.
        ImportError: it is a search, and Optuna is not installed.
    """
    text = _text(folder, text, resume)
    spec = read(text)
    fresh = not is_sweep(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        write_atomic(folder / SPEC, text.encode())
        plan = _plan(folder, spec, jobs)
        if spec.trials is None and (error := _prepare(plan, folder)) and fresh:
            shutil.rmtree(folder)
            raise ValueError(error)
        with Workers(jobs, watcher.round) as workers:
            _run(plan, folder, workers, watcher)
        return _outcomes(folder, plan)


def outcomes(folder: Path) -> list[RunStatus]:
    """Return the status of every run of a sweep, read from its folder.

    Raises:
        ValueError: the folder holds no sweep.
    """
    return _outcomes(folder, _plan(folder, read(_stored(folder)), 1))


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (folder / SPEC).exists()


def _plan(folder: Path, spec: Spec, jobs: int) -> _Plan:
    return _Grid(spec) if spec.trials is None else Search(spec, folder / JOURNAL, jobs)


def _text(folder: Path, text: str | None, resume: bool) -> str:
    """The sweep to run in a folder, if it may be run there."""
    if text is None:
        return _stored(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return text
    if not is_sweep(folder):
        raise FileExistsError(
            f"Expected a new folder for the sweep, got {folder}, which holds other files: choose "
            "another."
        )
    if not resume:
        raise FileExistsError(
            f"Expected a new folder for the sweep, got {folder}, which holds one: choose another, "
            "or add --resume to continue it."
        )
    before, now = read(_stored(folder)), read(text)
    searches = before.trials is not None or now.trials is not None
    if searches and (before.cases, before.seed) != (now.cases, now.seed):
        raise ValueError(
            f"Expected the search that {folder} began with, got another: only `trials` may be "
            "raised. Choose another folder."
        )
    return text


def _stored(folder: Path) -> str:
    try:
        return (folder / SPEC).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"Expected a sweep in {folder}, found no {SPEC} there.") from None


def _prepare(plan: _Plan, folder: Path) -> str:
    """Create the folder of every run of a grid; return the error if every run has one."""
    errors: list[str] = []
    for config in plan.recorded():
        path = folder / names.folder(config)
        if not _trainable(path, config):
            errors.append(status.read(path, config).error)
    return errors[0] if len(errors) == plan.total else ""


def _run(plan: _Plan, folder: Path, workers: Workers, watcher: Watcher) -> None:
    recorded = number = plan.done
    watcher.sweep(plan.total, plan.done)
    ended: dict[int, RunStatus] = {}
    asked: dict[Path, list[int]] = {}  # a search may ask for one run more than once
    while True:
        while workers.free and (config := plan.config(number)) is not None:
            path = folder / names.folder(config)
            asked.setdefault(path, []).append(number)
            number += 1
            if path in workers.training:
                continue
            if _trainable(path, config):
                workers.begin(path, config)
            else:
                recorded = _note(plan, path, config, ended, asked.pop(path), recorded, watcher)
        if not workers.training:
            return
        for end in workers.wait():
            if end.error:
                status.give_up(end.folder, end.error, lasting=end.lasting)
            numbers = asked.pop(end.folder)
            config = plan.config(numbers[0])
            assert config is not None
            recorded = _note(plan, end.folder, config, ended, numbers, recorded, watcher)


def _note(
    plan: _Plan,
    path: Path,
    config: PaperConfig,
    ended: dict[int, RunStatus],
    numbers: Sequence[int],
    recorded: int,
    watcher: Watcher,
) -> int:
    """Record the result of a run; return how many are recorded, in the order of the trials."""
    now = status.read(path, config)
    for number in numbers:
        ended[number] = now
        watcher.ended(now)
    while recorded in ended:
        plan.record(recorded, ended.pop(recorded))
        recorded += 1
    return recorded


def _trainable(path: Path, config: PaperConfig) -> bool:
    """Create a run's folder if it has none; return False for a run that is over or has failed."""
    if is_run(path):
        if status.failure(path, lasting=True):
            return False
        (path / FAILED).unlink(missing_ok=True)
        state = status.read(path, config).state
        return state != "finished" or not (path / REPORT).exists()
    (path / FAILED).unlink(missing_ok=True)
    try:
        create(path, config)
    except (ValueError, TypeError, ArithmeticError, MemoryError, FileExistsError) as error:
        status.give_up(path, " ".join(str(error).split()), lasting=True)
        return False
    return True


def _outcomes(folder: Path, plan: _Plan) -> list[RunStatus]:
    configs = {names.folder(config): config for config in plan.recorded()}
    return [status.read(folder / name, config) for name, config in configs.items()]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a sweep's folder, or raise BlockingIOError."""
    lock = FileLock(folder / "lock")
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(
            f"Expected {folder} to be free, but another process conducts its sweep: wait for it."
        ) from None
    with held:
        yield
