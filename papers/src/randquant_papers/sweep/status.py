"""The status of a sweep's runs: as their folders say, and those that a sweep gave up on."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from randquant.training import RunStatus, is_run
from randquant_papers import configuration
from randquant_papers.configuration import PaperConfig, named_settings
from randquant_papers.files import seal, unseal, write_atomic

REPORT, FAILED = "report.html", "failed.json"


def read(folder: Path, config: PaperConfig) -> RunStatus:
    """Return the status of a run of a sweep, with state `failed` if the sweep gave up on it.

    Args:
        folder: the run's folder, which may not exist yet.
        config: its configuration in the sweep.
    """
    status = RunStatus(folder, "unfinished", config)
    if is_run(folder):
        status = configuration.read(folder, config)
    if status.state != "unfinished":
        return status
    try:
        error, state = failure(folder), "failed"
    except ValueError as damage:
        error, state = str(damage), "damaged"
    return dataclasses.replace(status, state=state, error=error) if error else status  # pyright: ignore[reportArgumentType]


def give_up(folder: Path, error: str, *, lasting: bool) -> None:
    """Record in a run's folder that it failed, why, and whether it would fail again."""
    folder.mkdir(exist_ok=True)
    record = seal({"error": error, "lasting": lasting})
    write_atomic(folder / FAILED, json.dumps(record).encode())


def failure(folder: Path, *, lasting: bool = False) -> str:
    """Return why a run failed, with `lasting` only if it would fail again; empty if it did not.

    Raises:
        ValueError: the file that says so was changed.
    """
    try:
        record = unseal((folder / FAILED).read_bytes())
    except FileNotFoundError:
        return ""
    except ValueError as error:
        raise ValueError(
            f"Expected {folder / FAILED} as it was written, but: {error}. Remove it to try the run "
            "again."
        ) from None
    return record["error"] if record["lasting"] or not lasting else ""


def sorted_by_epsilon(runs: Iterable[RunStatus]) -> list[RunStatus]:
    """Return runs by increasing epsilon, those without one last; ties by decreasing accuracy."""

    def place(run: RunStatus) -> tuple[float, float]:
        return math.inf if run.epsilon is None else run.epsilon, -(run.accuracy or 0.0)

    return sorted(runs, key=place)


def varied(configs: Sequence[PaperConfig]) -> list[str]:
    """Return `mechanism` and the settings in which runs of one mechanism differ.

    A setting that differs only between mechanisms is not included.

    Example:
        >>> rqm = [PaperConfig.of("digits", "mlp", "rqm", {"keep": keep}) for keep in (0.3, 0.4)]
        >>> varied([*rqm, PaperConfig.of("digits", "mlp", "pbm", {"theta": 0.2})])
        ['mechanism', 'keep']
    """
    groups: dict[str, list[dict[str, object]]] = {}
    for config in configs:
        groups.setdefault(config.mechanism, []).append(named_settings(config))
    names = {"mechanism": None}
    for group in groups.values():
        known = dict.fromkeys(name for run in group for name in run)
        names |= {n: None for n in known if len({repr(run.get(n)) for run in group}) > 1}
    return list(names)
