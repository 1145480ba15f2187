"""`randquant reproduce`: a table or figure of a paper, beside the paper's numbers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from randquant.cli.command import Command, Output, written_page
from randquant.cli.options import DATA_DIR
from randquant.papers import registry
from randquant.papers.gallery import gallery as site
from randquant.papers.page import as_page
from randquant.papers.registry import ENTRIES, EXPERIMENTS
from randquant.papers.result import Reproduction, as_text
from randquant.papers.saved import as_json


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="what to reproduce; see --list")
    parser.add_argument("--list", action="store_true", help="list all names")
    parser.add_argument("--output", metavar="FILE", help="also write a page with the figures")
    parser.add_argument(
        "--gallery", metavar="FOLDER", help="add the result to this site of all reproductions"
    )
    parser.add_argument(
        "--all", action="store_true", help="reproduce everything, into the site (default: gallery)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="train less than the papers do: minutes in all"
    )
    parser.add_argument("--data-dir", metavar="DIR", help=DATA_DIR)
    parser.add_argument(
        "--stand-in", metavar="NAME", help="data set to train on if the paper's is not available"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="how often each curve is trained; default 1"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at once; default 2")
    parser.add_argument(
        "--runs", metavar="FOLDER", default="runs/reproduce",
        help="where runs are kept and continued; default runs/reproduce",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _run(options: argparse.Namespace) -> Output:
    if (options.name is not None) + options.list + options.all != 1:
        raise ValueError(
            "Expected one of NAME, --list and --all: see randquant reproduce --list for names."
        )
    if options.list:
        titles = registry.titles()
        width = max(map(len, titles))
        return Output(titles, [f"{name:<{width}}  {text}" for name, text in titles.items()])
    if options.all:
        return _all(options)
    reproduction = _one(options.name, options)
    written = written_page(options.output, lambda: as_page(reproduction))
    if options.gallery is not None:
        site.save(reproduction, Path(options.gallery))
        written += [f"gallery        {site.build(Path(options.gallery))}"]
    files = {"output": options.output, "gallery": options.gallery}
    return Output({**as_json(reproduction), **files}, [*as_text(reproduction), *written])


def _all(options: argparse.Namespace) -> Output:
    """Every entry into the gallery; one that cannot be reproduced does not stop the others."""
    if options.output is not None:
        raise ValueError("Expected --gallery FOLDER with --all, got --output: it is one page.")
    folder = Path(options.gallery or "gallery")
    result: dict[str, Any] = {}
    lines, failed = [], 0
    for name in (*ENTRIES, *EXPERIMENTS):
        if not options.quiet:
            print(f"reproducing {name}", file=sys.stderr)
        try:
            reproduction = _one(name, options)
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


def _one(name: str, options: argparse.Namespace) -> Reproduction:
    if name not in EXPERIMENTS:
        return registry.reproduce(name)
    try:
        from randquant.cli import progress
        from randquant.papers.experiment import Setting
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the packages that training needs, {error.name} is missing: "
            "install randquant with its train extra, pip install '.[train,experiments]'."
        ) from error
    with progress.SweepDisplay(quiet=options.quiet) as display:
        setting = Setting(
            data_dir=options.data_dir or "",
            stand_in=options.stand_in or "",
            quick=options.quick,
            seeds=options.seeds,
            jobs=options.jobs,
            folder=Path(options.runs),
            on_round=display.round,
            on_begin=display.sweep,
            on_end=display.ended,
        )
        return registry.reproduce(name, setting)


COMMAND = Command(
    help="a table or figure of a paper, beside the paper's numbers",
    example="randquant reproduce rqm-fig8 --output rqm-fig8.html",
    add_options=_add_options,
    run=_run,
)
