"""The command that sweeps: from options to a sweep's folder, and to what it prints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from randquant import _validate


def sweep(options: argparse.Namespace) -> tuple[dict[str, Any], list[str], int]:
    """Begin a sweep or go on with one: what to print, as JSON and as lines, and the exit code."""
    try:
        from randquant import progress, sweep
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the packages that training needs, {error.name} is missing: "
            "install randquant with its train extra, pip install '.[train,sweep]'."
        ) from error
    if options.spec is None and not (options.resume and options.folder):
        raise ValueError("Expected a SPEC.toml, or --resume with --folder, got neither.")
    spec = None if options.spec is None else Path(options.spec)
    text = None if spec is None else spec.read_text(encoding="utf-8")
    folder = Path(options.folder) if spec is None or options.folder else Path("runs") / spec.stem
    jobs = _validate.whole("jobs", options.jobs, low=1, high=256)
    with progress.SweepDisplay(quiet=options.quiet) as display:
        runs = sweep.conduct(folder, text, jobs=jobs, resume=options.resume, watcher=display)
    found = sweep.results(runs)
    sweep.write_page(folder, found)
    finished = any(run.state == "finished" for run in runs)
    return sweep.as_json(folder, found), sweep.as_text(folder, found), 0 if finished else 1
