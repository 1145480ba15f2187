"""`randquant sweep`: many training runs, as a grid or a search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from randquant._internal import extras
from randquant._internal.declared import Files, Search
from randquant.cli.command import Command, Output


def run(
    spec: str | None = None,
    /,
    *,
    folder: Files[str | None] = None,
    jobs: Search[Annotated[int, Meta(ge=1, le=256)]] = 2,
    resume: Files[bool] = False,
    quiet: bool = False,
) -> Output:
    """Conduct a sweep.

    Args:
        spec: what to run, a TOML file: docs/sweeps.md.
        folder: folder of the sweep; by default runs/ and SPEC's name.
        jobs: how many runs at once.
        resume: go on with what the folder holds, if anything.
    """
    with extras.needed("training", "train", "sweep"):
        from randquant.cli import progress
        from randquant.training import sweep
    if spec is None and not (resume and folder):
        raise ValueError("Expected a SPEC.toml, or --resume with --folder, got neither.")
    text = None if spec is None else _text(Path(spec))
    place = Path(folder) if folder else Path("runs") / Path(spec or "").stem
    with progress.RunBars(quiet) as bars:
        runs = sweep.conduct(place, text, jobs=jobs, resume=resume, watcher=bars)
    found = sweep.results(runs)
    sweep.write_page(place, found)
    finished = any(run.state == "finished" for run in runs)
    return Output(sweep.as_json(place, found), sweep.as_text(place, found), code=int(not finished))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OSError(
            f"Expected a sweep in {path}, cannot read it ({reason}): see docs/sweeps.md."
        ) from None


COMMAND = Command(
    run,
    example="randquant sweep examples/sweep.toml --folder runs/sweep --jobs 2",
    resumable=True,
    bar=False,
)
