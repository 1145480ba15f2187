"""The options of the commands about many runs: sweep, runs, report."""

from __future__ import annotations

from typing import Any


def add(commands: Any, command: Any) -> None:
    """Add the commands to a parser; `command` adds one with its help."""
    _add_sweep(commands, command)
    _add_runs(commands, command)
    _add_report(commands, command)


def _add_sweep(commands: Any, command: Any) -> None:
    sweep = command(
        commands, "sweep", "many training runs: a grid, or a search for the best of them",
        "randquant sweep examples/sweep.toml --folder runs/sweep --jobs 2",
    )  # fmt: skip
    sweep.add_argument("spec", metavar="SPEC.toml", nargs="?", help="what to run: docs/sweeps.md")
    sweep.add_argument("--folder", help="folder of the sweep (default: runs/ and SPEC's name)")
    sweep.add_argument("--jobs", type=int, default=2, help="how many runs at once; default 2")
    sweep.add_argument(
        "--resume", action="store_true", help="continue the sweep in the folder, if there is one"
    )
    sweep.add_argument("--quiet", action="store_true", help="no progress display")


def _add_runs(commands: Any, command: Any) -> None:
    runs = command(
        commands, "runs", "list training runs, or compare the named ones",
        "randquant runs runs/demo runs/pbm",
    )  # fmt: skip
    runs.add_argument(
        "folders", metavar="FOLDER", nargs="*", help="runs to compare, or folders to search"
    )
    runs.add_argument(
        "--csv", metavar="FILE", help="also write one line per run, settings included"
    )


def _add_report(commands: Any, command: Any) -> None:
    report = command(
        commands, "report", "rebuild a run's page, or make one page for several runs",
        "randquant report runs/demo runs/pbm --output both.html",
    )  # fmt: skip
    report.add_argument("folders", metavar="RUN", nargs="+", help="folders of runs, or of a sweep")
    report.add_argument(
        "--output", metavar="FILE",
        help="the page (default: the run's own report.html; runs.html for several)",
    )  # fmt: skip
