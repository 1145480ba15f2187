"""`randquant report`: write the page of a run again, or one page for several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from randquant._internal.declared import Files
from randquant._internal.serialization import write_atomic
from randquant.cli.options import Command, Output
from randquant.training.run_store import find_runs, is_run, read_run


def run(*folders: str, output: Files[str | None] = None, uncovered: Files[bool] = False) -> Output:
    """Write a page of runs.

    Args:
        folders: of runs, or with runs in them.
        output: the page; by default the run's own report.html, runs.html for several.
        uncovered: of one run, also show what no epsilon covers: the clients' training loss, times.
    """
    if not folders:
        raise ValueError("Expected one or more folders of runs; they are missing.")
    paths = [Path(folder) for folder in folders]
    written = _page(paths, None if output is None else Path(output), uncovered)
    result = {"runs": [str(folder) for folder in paths], "report": str(written)}
    return Output(result, [f"report         {written}"])


def _page(folders: Sequence[Path], output: Path | None, uncovered: bool) -> Path:
    from randquant.reports.run import render_runs, report_run

    # One run has its own page, in its folder; several are drawn over each other on one page.
    if len(folders) == 1 and is_run(folders[0]):
        return report_run(folders[0], output, uncovered=uncovered)
    if uncovered:
        raise ValueError(f"Expected the folder of one run with --uncovered, got {len(folders)}.")
    paths = [
        path for folder in folders for path in ([folder] if is_run(folder) else find_runs([folder]))
    ]
    path = output or Path("runs.html")
    # A run that is named twice, or found within another folder too, is drawn once.
    page = render_runs([read_run(folder) for folder in dict.fromkeys(paths)])
    # A folder name may contain bytes that are not UTF-8; they become character references.
    write_atomic(path, page.encode("utf-8", "xmlcharrefreplace"))
    return path


COMMAND = Command(
    run,
    example="randquant report runs/demo runs/pbm --output both.html",
)
