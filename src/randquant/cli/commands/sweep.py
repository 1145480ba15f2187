"""`randquant sweep`: many training runs, as a grid or a search."""

from __future__ import annotations

import argparse
from pathlib import Path

from randquant._internal import validate
from randquant.cli.command import Command, Output


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SPEC.toml", nargs="?", help="what to run: docs/sweeps.md")
    parser.add_argument("--folder", help="folder of the sweep (default: runs/ and SPEC's name)")
    parser.add_argument("--jobs", type=int, default=2, help="how many runs at once; default 2")
    parser.add_argument(
        "--resume", action="store_true", help="go on with what the folder holds, if anything"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _run(options: argparse.Namespace) -> Output:
    try:
        from randquant.cli import progress
        from randquant.training import sweep
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
    jobs = validate.whole("jobs", options.jobs, low=1, high=256)
    with progress.SweepDisplay(quiet=options.quiet) as display:
        runs = sweep.conduct(folder, text, jobs=jobs, resume=options.resume, watcher=display)
    found = sweep.results(runs)
    sweep.write_page(folder, found)
    finished = any(run.state == "finished" for run in runs)
    return Output(
        sweep.as_json(folder, found), sweep.as_text(folder, found), code=int(not finished)
    )


COMMAND = Command(
    help="many training runs: a grid, or a search for the best of them",
    example="randquant sweep examples/sweep.toml --folder runs/sweep --jobs 2",
    add_options=_add_options,
    run=_run,
    resumable=True,
)
