"""`randquant reproduce`: a table or figure of a paper, beside the paper's numbers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randquant._internal import extras
from randquant._internal.declared import Data, Files, Search, Server
from randquant.cli.command import Command, Output, written_page
from randquant.cli.options import of_function
from randquant.papers import registry
from randquant.papers.gallery import gallery as site
from randquant.papers.page import as_page
from randquant.papers.registry import ENTRIES, EXPERIMENTS
from randquant.papers.result import Reproduction, as_text
from randquant.papers.saved import as_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How an experiment of a paper is trained.

    Attributes:
        stand_in: data set to train on if the paper's is not available.
        quick: train less than the papers do: minutes in all.
        seeds: how often each curve is trained.
        jobs: runs at once.
        runs: folder where runs are kept and continued.
    """

    data_dir: str = ""
    stand_in: Data[str] = ""
    quick: Server[bool] = False
    seeds: Server[int] = 1
    jobs: Server[int] = 2
    runs: Files[str] = "runs/reproduce"
    quiet: bool = False


def run(
    training: Mapping[str, Any],
    name: str | None = None,
    /,
    *,
    list: Search[bool] = False,
    output: str | None = None,
    gallery: Files[str | None] = None,
    all: Search[bool] = False,
) -> Output:
    """Reproduce one table or figure, or all.

    Args:
        name: what to reproduce.
        list: list all names.
        gallery: add the result to this folder, a site of all reproductions.
        all: reproduce everything, into the site, by default gallery.
    """
    how = Training(**training)
    if (name is not None) + list + all != 1:
        raise ValueError(
            "Expected one of NAME, --list and --all: see randquant reproduce --list for names."
        )
    if list:
        titles = registry.titles()
        width = max(map(len, titles))
        return Output(titles, [f"{name:<{width}}  {text}" for name, text in titles.items()])
    if all:
        if output is not None:
            raise ValueError("Expected --gallery FOLDER with --all, got --output: it is one page.")
        return _all(Path(gallery or "gallery"), how)
    reproduction = _one(str(name), how)
    written = written_page(output, lambda: as_page(reproduction))
    if gallery is not None:
        site.save(reproduction, Path(gallery))
        written += [f"gallery        {site.build(Path(gallery))}"]
    files = {"output": output, "gallery": gallery}
    return Output({**as_json(reproduction), **files}, [*as_text(reproduction), *written])


def _all(folder: Path, how: Training) -> Output:
    """Every entry into the gallery; one that cannot be reproduced does not stop the others."""
    result: dict[str, Any] = {}
    lines, failed = [], 0
    for name in (*ENTRIES, *EXPERIMENTS):
        if not how.quiet:
            print(f"reproducing {name}", file=sys.stderr)
        try:
            reproduction = _one(name, how)
        except (ValueError, OSError, ImportError) as error:
            sentence = " ".join(str(error).split())
            result[name], failed = {"error": sentence}, failed + 1
            lines.append(f"{name:<13} failed: {sentence}")
            continue
        site.save(reproduction, folder)
        verdicts = [claim.verdict for claim in reproduction.claims]
        counts = {word: verdicts.count(word) for word in sorted(set(verdicts))}
        result[name] = {
            "verdicts": counts,
            "scale": reproduction.scale,
            "stand_in": reproduction.stand_in,
        }
        counted = ", ".join(f"{count} {word}" for word, count in counts.items())
        labels = "; ".join(
            filter(None, (reproduction.stand_in, "quick" * (reproduction.scale == "quick")))
        )
        lines.append(f"{name:<13} {counted}" + f" ({labels})" * bool(labels))
    index = str(site.build(folder))
    result = {"entries": result, "gallery": index}
    return Output(result, [*lines, "", f"gallery  {index}"], code=int(failed > 0))


def _one(name: str, how: Training) -> Reproduction:
    if name not in EXPERIMENTS:
        return registry.reproduce(name)
    with extras.needed("training", "train", "experiments"):
        from randquant.cli import progress
        from randquant.papers.experiment import Setting
    with progress.RunBars(how.quiet) as bars:
        setting = Setting(
            data_dir=how.data_dir,
            stand_in=how.stand_in,
            quick=how.quick,
            seeds=how.seeds,
            jobs=how.jobs,
            folder=Path(how.runs),
            on_round=bars.round,
            on_begin=bars.sweep,
            on_end=bars.ended,
        )
        return registry.reproduce(name, setting)


COMMAND = Command(
    run,
    example="randquant reproduce rqm-fig8 --output rqm-fig8.html",
    settings=lambda words: of_function(Training),
    bar=False,
)
