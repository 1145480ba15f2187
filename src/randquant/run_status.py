"""How runs stand, read from their folders: nothing is trained, locked or changed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from randquant import features, locks, run_folder
from randquant.records import RoundMetrics, RunSummary, TrainConfig, from_json, write_json

State = Literal["finished", "unfinished", "being trained", "failed", "damaged"]
FAILED = "failed.json"


@dataclass(frozen=True, slots=True)
class Status:
    """How a run stands.

    Attributes:
        folder: of the run.
        state: `finished`, `unfinished` (it can go on), `being trained`, `failed` (a sweep gave it
            up) or `damaged` (its files cannot be read).
        config: what was asked for; None where that is damaged.
        metrics: the rounds that are done.
        summary: what came out; None before the end.
        error: why it failed, or what is damaged.
    """

    folder: Path
    state: State
    config: TrainConfig | None = None
    metrics: tuple[RoundMetrics, ...] = ()
    summary: RunSummary | None = None
    error: str = ""

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.metrics)

    @property
    def accuracy(self) -> float | None:
        """On test data, as last measured."""
        measured = [m.accuracy for m in self.metrics if m.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def epsilon(self) -> float | None:
        """A proven upper bound for all rounds done, perhaps infinite; None without privacy."""
        if self.summary is not None:
            guarantee = self.summary.guarantee
            return None if guarantee is None else float(guarantee["epsilon"])
        return self.metrics[-1].epsilon if self.metrics else None

    @property
    def guarantee(self) -> dict[str, Any] | None:
        """The guarantee of a finished run, as JSON; None without privacy, or before the end."""
        return None if self.summary is None else self.summary.guarantee

    @property
    def fitted(self) -> str:
        """What features were fitted on, as it stands beside epsilon; empty where on nothing."""
        return "" if self.config is None else features.statement(self.config, self.summary)

    @property
    def covered(self) -> bool:
        """Whether epsilon covers everything that looked at clients' data."""
        return self.config is None or features.covered(self.config, self.summary)

    @property
    def bytes_per_upload(self) -> int | None:
        """What one client uploads in one round; None where that is not known yet."""
        if self.summary is not None:
            return self.summary.bytes_per_upload
        if self.config is None or not self.metrics or self.config.sampling != "fixed":
            return None
        return self.metrics[-1].bytes_up // self.config.cohort

    @property
    def bytes_up(self) -> int:
        """What all clients have uploaded in all rounds."""
        return sum(metrics.bytes_up for metrics in self.metrics)


def find(roots: Iterable[Path]) -> list[Path]:
    """Return the folders of all runs in or below the given ones, in order of their names.

    Raises:
        ValueError: a folder does not exist, or there is no run in it.
    """
    found: list[Path] = []
    for root in roots:
        below = sorted(path.parent for path in root.rglob("config.json") if path.is_file())
        if not below:
            raise ValueError(f"Expected runs in {root}, found none: randquant train makes one.")
        found += below
    return list(dict.fromkeys(found))


def read(folder: Path) -> Status:
    """Return how the run in a folder stands; what cannot be read makes it `damaged`."""
    config = None
    try:
        config = run_folder.read_config(folder)
        metrics = _metrics(folder / "metrics.jsonl")
        summary = _summary(folder / "summary.json")
    except (ValueError, TypeError, KeyError, OSError) as error:
        return Status(folder, "damaged", config, error=" ".join(str(error).split()))
    if summary is not None and (summary.stopped or len(metrics) >= config.rounds):
        return Status(folder, "finished", config, metrics, summary)
    if locks.held(folder) or (locks.held(folder.parent) and folder.name == "baseline"):
        return Status(folder, "being trained", config, metrics)
    error = failure(folder)
    if error:
        return Status(folder, "failed", config, metrics, error=error)
    return Status(folder, "unfinished", config, metrics)


def give_up(folder: Path, error: str, *, lasting: bool) -> None:
    """Note in a run's folder that it failed, why, and whether it would fail again."""
    folder.mkdir(exist_ok=True)
    write_json(folder / FAILED, {"error": error, "lasting": lasting})


def failure(folder: Path, *, lasting: bool = False) -> str:
    """Why a run was given up, perhaps only if for good; empty where it was not."""
    try:
        noted = json.loads((folder / FAILED).read_bytes())
    except FileNotFoundError:
        return ""
    return noted["error"] if noted["lasting"] or not lasting else ""


def sorted_by_epsilon(statuses: Iterable[Status]) -> list[Status]:
    """Return runs from the smallest epsilon to none, the most accurate first among equals."""

    def place(status: Status) -> tuple[float, float]:
        epsilon = math.inf if status.epsilon is None else status.epsilon
        return epsilon, -(status.accuracy or 0.0)

    return sorted(statuses, key=place)


def fitted_notes(statuses: Iterable[Status]) -> list[str]:
    """What stands below a list of runs: which features were fitted, and on what."""
    named: dict[str, list[str]] = {}
    for status in statuses:
        if status.fitted and status.epsilon is not None:
            named.setdefault(status.fitted, []).append(status.folder.name)
    return [f"{', '.join(names)}: {text}" for text, names in named.items()]


def _metrics(path: Path) -> tuple[RoundMetrics, ...]:
    """The whole lines of a log; a process that is killed may leave half a line at its end."""
    text = path.read_bytes() if path.exists() else b""
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    metrics = tuple(from_json(RoundMetrics, json.loads(line)) for line in lines)
    if [m.round for m in metrics] != list(range(1, len(metrics) + 1)):
        raise ValueError(f"Expected rounds 1 to {len(metrics)} in {path}: lines are missing.")
    return metrics


def _summary(path: Path) -> RunSummary | None:
    return from_json(RunSummary, json.loads(path.read_bytes())) if os.path.exists(path) else None
