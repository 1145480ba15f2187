"""The command that reproduces: from options to what is computed or trained, and what it prints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from randquant import reproduce as reproducing
from randquant.records import write_atomic
from randquant.reproduce import ENTRIES, EXPERIMENTS, Reproduction, as_json, as_page, as_text
from randquant.reproduce import gallery as site

Printed = tuple[dict[str, Any], list[str], int]


def reproduce(options: argparse.Namespace) -> Printed:
    """Reproduce one entry, or all of them: what to print, as JSON and as lines, and the code."""
    if (options.name is not None) + options.list + options.all != 1:
        raise ValueError(
            "Expected one of NAME, --list and --all: see randquant reproduce --list for names."
        )
    if options.list:
        titles = reproducing.titles()
        width = max(map(len, titles))
        return titles, [f"{name:<{width}}  {text}" for name, text in titles.items()], 0
    if options.all:
        return _all(options)
    found = _one(options.name, options)
    written = []
    if options.output is not None:
        write_atomic(Path(options.output), as_page(found).encode("utf-8"))
        written += ["", f"page           {options.output}"]
    if options.gallery is not None:
        site.save(found, Path(options.gallery))
        written += [f"gallery        {site.build(Path(options.gallery))}"]
    files = {"output": options.output, "gallery": options.gallery}
    return {**as_json(found), **files}, [*as_text(found), *written], 0


def _all(options: argparse.Namespace) -> Printed:
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
            found = _one(name, options)
        except (ValueError, OSError, ImportError) as error:
            sentence = " ".join(str(error).split())
            result[name], failed = {"error": sentence}, failed + 1
            lines.append(f"{name:<13} failed: {sentence}")
            continue
        site.save(found, folder)
        verdicts = [claim.verdict for claim in found.claims]
        counts = {word: verdicts.count(word) for word in sorted(set(verdicts))}
        result[name] = {"verdicts": counts, "scale": found.scale, "stand_in": found.stand_in}
        counted = ", ".join(f"{count} {word}" for word, count in counts.items())
        labels = "; ".join(filter(None, (found.stand_in, "quick" * (found.scale == "quick"))))
        lines.append(f"{name:<13} {counted}" + f" ({labels})" * bool(labels))
    index = str(site.build(folder))
    return {"entries": result, "gallery": index}, [*lines, "", f"gallery  {index}"], int(failed > 0)


def _one(name: str, options: argparse.Namespace) -> Reproduction:
    if name not in EXPERIMENTS:
        return reproducing.reproduce(name)
    try:
        from randquant import progress
        from randquant.reproduce.experiment import Setting
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
        return reproducing.reproduce(name, setting)
