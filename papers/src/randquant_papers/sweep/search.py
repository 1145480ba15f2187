"""A search for settings with high accuracy and low epsilon, by Optuna.

Each trial is a function of the seed, its number and the earlier trials that it depends on, and of
nothing else. A search that was killed therefore continues as if it had not been. Optuna's journal
in the sweep's folder holds the finished trials, for this search and for Optuna's own tools.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

from randquant.training import RunStatus
from randquant_papers.configuration import PaperConfig
from randquant_papers.files import write_atomic
from randquant_papers.sweep.spec import Range, Spec

LARGEST = 1e9
"""Larger epsilons are the same to the search: they protect nothing, and infinity is not allowed."""


class Search:
    """The trials of a search, including those of an earlier process.

    Args:
        spec: with `trials`.
        journal: Optuna's journal file; created if missing.
        jobs: how many trials run at once: a trial depends on the results of all earlier trials
            except the last jobs - 1.

    Guarantees:
        With the same spec and jobs, trials are the same however often the search is stopped and
        resumed.
    """

    def __init__(self, spec: Spec, journal: Path, jobs: int) -> None:
        optuna = _optuna()
        _repair(journal)
        backend = optuna.storages.journal.JournalFileBackend(str(journal))
        self._spec, self._jobs = spec, jobs
        self._study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name="sweep",
            directions=["maximize", "minimize"],  # accuracy, log10 of epsilon
            load_if_exists=True,
        )
        self._done = self._study.get_trials(deepcopy=False)
        self._asked: dict[int, Any] = {}

    @property
    def done(self) -> int:
        """How many trials are recorded."""
        return len(self._done)

    @property
    def total(self) -> int:
        """How many trials the search makes."""
        return self._spec.trials or 0

    def config(self, number: int) -> PaperConfig | None:
        """The configuration of a trial, from 0; None if there is none, or none yet."""
        known = max(0, number - self._jobs + 1)
        if number >= self.total or known > self.done:
            return None
        if number not in self._asked:
            self._asked[number] = self._ask(number, known)
        return _config(self._asked[number], self._spec)

    def recorded(self) -> list[PaperConfig]:
        """The configurations of the trials that are recorded."""
        fixed = _optuna().trial.FixedTrial
        return [_config(fixed(trial.params), self._spec) for trial in self._done]

    def record(self, number: int, status: RunStatus) -> None:
        """Add the result of trial `number`, which must be the first that is not recorded."""
        if number != self.done:
            raise ValueError(f"Expected trial {self.done} next, got {number}.")
        optuna, asked = _optuna(), self._asked.pop(number)
        measured = status.state == "finished" and status.epsilon is not None
        trial = optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE if measured else optuna.trial.TrialState.FAIL,
            values=[status.accuracy, _size(status.epsilon)] if measured else None,
            params=asked.params,
            distributions=asked.distributions,
            user_attrs={"run": status.folder.name, "epsilon": str(status.epsilon)},
        )
        self._study.add_trial(trial)
        self._done = self._study.get_trials(deepcopy=False)

    def _ask(self, number: int, known: int) -> Any:
        """A trial with its settings chosen."""
        optuna = _optuna()
        study = optuna.create_study(
            directions=["maximize", "minimize"],
            sampler=optuna.samplers.TPESampler(seed=_seed(self._spec.seed, number)),
        )
        study.add_trials(self._done[:known])
        trial = study.ask()
        _config(trial, self._spec)
        return trial


def _config(trial: Any, spec: Spec) -> PaperConfig:
    """The configuration that a trial chooses, or has chosen."""
    place, prefix = 0, ""
    if len(spec.cases) > 1:
        place = trial.suggest_categorical("case", list(range(1, len(spec.cases) + 1))) - 1
        # A setting may have different ranges in different cases, so each case has its own name.
        prefix = f"case {place + 1}: "
    case = spec.cases[place]
    ranges = case.ranges.items()
    return case.config({name: _suggest(trial, prefix + name, given) for name, given in ranges})


def _suggest(trial: Any, label: str, given: Range) -> Any:
    if given.choices:
        # By index, because a choice may be a list.
        return given.choices[trial.suggest_categorical(label, list(range(len(given.choices))))]
    if isinstance(given.low, int) and isinstance(given.high, int):
        return trial.suggest_int(label, given.low, given.high, log=given.log)
    return trial.suggest_float(label, float(given.low), float(given.high), log=given.log)


def _size(epsilon: float | None) -> float:
    assert epsilon is not None
    return math.log10(min(max(epsilon, 1 / LARGEST), LARGEST))


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4])


def _repair(journal: Path) -> None:
    """Remove what a killed process left: an incomplete line, and its lock.

    The caller holds the sweep's folder, so no other process writes.
    """
    journal.with_name(journal.name + ".lock").unlink(missing_ok=True)
    if journal.exists():
        text = journal.read_bytes()
        if not text.endswith(b"\n"):
            write_atomic(journal, text[: text.rfind(b"\n") + 1])


def _optuna() -> Any:
    import optuna  # slow, and a grid needs none

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
