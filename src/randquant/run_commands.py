"""The commands about many runs: a sweep, a list, a comparison, a page."""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from randquant import _table, _text, run_status, settings, sweep_command
from randquant.privacy import round_up
from randquant.records import to_json, write_atomic
from randquant.run_status import Status


def command(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Run `sweep`, `runs` or `report`; return JSON, lines of text, and the exit code."""
    if options.command == "sweep":
        return sweep_command.sweep(options)
    return (*(runs if options.command == "runs" else report)(options), 0)


def runs(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """List runs, or compare the named ones; return JSON and lines of text."""
    folders = [Path(folder) for folder in options.folders]
    named = len(folders) > 1 and all((folder / "config.json").exists() for folder in folders)
    paths = folders if named else run_status.find(folders or [Path("runs")])
    statuses = [run_status.read(folder) for folder in paths]
    configs = [status.config for status in statuses if status.config is not None]
    differ = settings.differing(configs) if configs else []
    result = {
        "runs": [_as_json(status) for status in statuses],
        "differing": differ,
        "csv": options.csv,
    }
    lines = _compared(statuses, differ) if named else _listed(statuses)
    lines += run_status.fitted_notes(statuses)
    lines += [f"damaged  {s.folder}: {s.error}" for s in statuses if s.state == "damaged"]
    lines += [f"failed   {s.folder}: {s.error}" for s in statuses if s.state == "failed"]
    if options.csv is not None:
        write_atomic(Path(options.csv), _as_csv(statuses).encode())
        lines += ["", f"written  {options.csv}"]
    return result, lines


def report(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Build the page of a run, of a sweep, or of several runs; return JSON and lines of text."""
    folders = [Path(folder) for folder in options.folders]
    output = None if options.output is None else Path(options.output)
    written = _page(folders, output)
    return {"runs": [str(folder) for folder in folders], "report": str(written)}, [
        f"report         {written}"
    ]


def _page(folders: Sequence[Path], output: Path | None) -> Path:
    from randquant import run_page, runs_page, sweep

    if len(folders) == 1 and (folders[0] / "config.json").exists():
        return run_page.rebuild(folders[0], output)
    if len(folders) == 1 and sweep.is_sweep(folders[0]):
        return sweep.write_page(folders[0], sweep.results(sweep.outcomes(folders[0])), output)
    paths = [
        path
        for folder in folders
        for path in ([folder] if (folder / "config.json").exists() else run_status.find([folder]))
    ]
    path = output or Path("runs.html")
    page = runs_page.render([run_status.read(folder) for folder in dict.fromkeys(paths)])
    write_atomic(path, page.encode("utf-8", "xmlcharrefreplace"))
    return path


COLUMNS = (
    "run", "data set", "model", "mechanism", "rounds", "accuracy", "epsilon <=", "delta",
    "bytes", "state",
)  # fmt: skip


def _listed(statuses: Sequence[Status]) -> list[str]:
    return _table.text(COLUMNS, [_row(status) for status in statuses])


def _row(status: Status) -> list[str]:
    config = status.config
    if config is None:
        return [str(status.folder), *[""] * (len(COLUMNS) - 2), status.state]
    return [
        str(status.folder),
        config.dataset,
        config.model,
        config.mechanism,
        f"{status.rounds}/{config.rounds}",
        "" if status.accuracy is None else f"{status.accuracy:.4f}",
        _epsilon(status),
        "" if status.delta is None else _text.plain(status.delta),
        "" if status.bytes_per_upload is None else str(status.bytes_per_upload),
        status.state,
    ]


def _compared(statuses: Sequence[Status], differ: Sequence[str]) -> list[str]:
    """The settings in which runs differ, and their results, one column per run."""
    known = [status for status in statuses if status.config is not None]
    flat = [settings.flat(status.config) for status in known if status.config is not None]
    rows = [[name, *(_text.plain(run.get(name, "")) or "-" for run in flat)] for name in differ]
    rows += [
        ["state", *(status.state for status in known)],
        ["rounds done", *(str(status.rounds) for status in known)],
        ["accuracy", *(_text.number(status.accuracy, 4) or "-" for status in known)],
        ["epsilon <=", *(_epsilon(status) or "-" for status in known)],
        ["bytes per upload", *(str(status.bytes_per_upload or "-") for status in known)],
    ]
    return _table.text(["", *(str(status.folder) for status in known)], rows)


def _epsilon(status: Status) -> str:
    if status.epsilon is None:
        return ""
    if math.isinf(status.epsilon):
        return "infinite"
    return round_up(status.epsilon) + _text.MARK * (not status.covered)


def _as_json(status: Status) -> dict[str, Any]:
    return {
        "run": str(status.folder),
        "state": status.state,
        "config": status.config,
        "rounds": status.rounds,
        "accuracy": status.accuracy,
        "epsilon": status.epsilon,
        "delta": status.delta,
        "guarantee": status.guarantee,
        "fitted": status.fitted,
        "bytes_per_upload": status.bytes_per_upload,
        "bytes_up": status.bytes_up,
        "error": status.error,
    }


def _as_csv(statuses: Sequence[Status]) -> str:
    """One line per run: its results, then all settings."""
    rows = []
    for status in statuses:
        outcome = {k: v for k, v in _as_json(status).items() if k not in ("config", "guarantee")}
        config = {} if status.config is None else settings.flat(status.config)
        # `rounds` as configured and `rounds` done would otherwise have the same name.
        rows.append({**outcome, **{f"config.{name}": value for name, value in config.items()}})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(to_json(row) for row in rows)
    return text.getvalue()
