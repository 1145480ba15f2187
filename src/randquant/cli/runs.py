"""Commands on training runs in folders.

`randquant runs`: list training runs, or compare those that are named.

`randquant report`: write the page of a run again, or one page for several runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from randquant._internal import formatting
from randquant._internal.declared import Files
from randquant._internal.files import write_atomic
from randquant._internal.formatting import round_up, to_json
from randquant.cli.options import Command, Output, selected_fields
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring
from randquant.training.config import differing, flat
from randquant.training.run_store import Status, find_runs, is_run, notes_on_runs, read_run


def list_runs(*folders: str) -> Output:
    """List runs, or compare those that are named.

    Args:
        folders: runs to compare, or folders to look through.
    """
    arguments = [Path(folder) for folder in folders]
    # Two or more runs are compared; a folder that is not a run is searched for runs.
    compared = len(arguments) > 1 and all(map(is_run, arguments))
    paths = arguments if compared else find_runs(arguments or [Path("runs")])
    statuses = [read_run(folder) for folder in paths]
    configs = [status.config for status in statuses if status.config is not None]
    differ = differing(configs) if configs else []
    shown = [_as_json(status) for status in statuses]
    result = {"runs": shown, "differing": differ}
    lines = _comparison(statuses, differ) if compared else _listed(statuses)
    lines += notes_on_runs(statuses)
    lines += [f"damaged  {s.folder}: {s.error}" for s in statuses if s.state == "damaged"]
    return Output(result, lines)


COLUMN_NAMES = (
    "run", "mechanism", "clients", "rounds", "accuracy",
    *(f"epsilon, {relation} <=" for relation in NEIGHBORINGS), "delta", "bytes", "state",
)  # fmt: skip


def _listed(statuses: Sequence[Status]) -> list[str]:
    return formatting.text(COLUMN_NAMES, [_row(status) for status in statuses])


def _row(status: Status) -> list[str]:
    config = status.config
    if config is None:
        return [str(status.folder), *[""] * (len(COLUMN_NAMES) - 2), status.state]
    return [
        str(status.folder),
        config.mechanism,
        f"{config.task.population:,}",
        f"{status.rounds}/{config.rounds}",
        "" if status.accuracy is None else f"{status.accuracy:.4f}",
        *(_epsilon(status, relation) for relation in NEIGHBORINGS),
        "" if status.delta is None else formatting.plain(status.delta),
        "" if status.bytes_per_upload is None else str(status.bytes_per_upload),
        status.state,
    ]


def _comparison(statuses: Sequence[Status], differ: Sequence[str]) -> list[str]:
    # The settings that differ, then the results: one column per run.
    # Damaged runs have no configuration; they are listed below the table.
    known = [status for status in statuses if status.config is not None]
    settings = [flat(status.config) for status in known if status.config is not None]
    rows = [
        [name, *(formatting.plain(run.get(name, "")) or "-" for run in settings)] for name in differ
    ]
    rows += [
        ["state", *(status.state for status in known)],
        ["rounds done", *(str(status.rounds) for status in known)],
        ["accuracy", *(formatting.number(status.accuracy, 4) or "-" for status in known)],
        *(
            [f"epsilon, {relation} <=", *(_epsilon(status, relation) or "-" for status in known)]
            for relation in NEIGHBORINGS
        ),
        ["bytes per upload", *(str(status.bytes_per_upload or "-") for status in known)],
    ]
    return formatting.text(["", *(str(status.folder) for status in known)], rows)


def _epsilon(status: Status, relation: Neighboring) -> str:
    epsilon = status.epsilon_under(relation)
    # Upward: the table must not show less than the guarantee.
    return "" if epsilon is None else "infinite" if math.isinf(epsilon) else round_up(epsilon)


def _as_json(status: Status) -> dict[str, Any]:
    names = (
        "state", "config", "rounds", "accuracy", "epsilon", "delta", "guarantee", "simulated",
        "bytes_per_upload", "bytes_up", "error",
    )  # fmt: skip
    other = None if status.summary is None else status.summary.other_relation
    return {
        "run": str(status.folder),
        **selected_fields(status, *names),
        "other_relation": to_json(other),
    }


def write_report(
    *folders: str, output: Files[str | None] = None, uncovered: Files[bool] = False
) -> Output:
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


COMMANDS = {
    "runs": Command(
        list_runs,
        example="randquant runs runs/demo runs/pbm",
    ),
    "report": Command(
        write_report,
        example="randquant report runs/demo runs/pbm --output both.html",
    ),
}
