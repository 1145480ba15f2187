"""`randquant-papers`: reproduce the papers, their gallery, sweeps, and what a claim is worth."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from randquant_papers import registry
from randquant_papers.claims import PrivacyClaim, check
from randquant_papers.files import to_json, write_atomic
from randquant_papers.gallery import gallery
from randquant_papers.page import as_page
from randquant_papers.registry import ENTRIES, EXPERIMENTS
from randquant_papers.result import Reproduction, as_text
from randquant_papers.saved import as_json


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints, and its exit code.

    Attributes:
        result: the one JSON object of `--json`.
        lines: what is printed without `--json`.
        code: 0; 1 if something could not be reproduced or trained.
    """

    result: Mapping[str, Any]
    lines: Sequence[str]
    code: int = 0


class Parser(argparse.ArgumentParser):
    """A parser whose errors are exceptions."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing how the command is used."""
        raise ValueError(f"Expected words as {self.prog} --help describes them: {message}.")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line, and return its exit code.

    A wrong value is one sentence on standard error, and exit code 2.
    """
    try:
        given = parser().parse_args(words)
        output: Output = given.run(given)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    text = json.dumps(to_json(output.result), allow_nan=False) if given.json else None
    try:
        print(text or "\n".join(output.lines), flush=True)
    except BrokenPipeError:  # as in `| head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return output.code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    whole = Parser("randquant-papers", description="Reproduce the papers; sweep training runs.")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    _reproduce_options(commands)
    site = commands.add_parser("gallery", help="build the pages of a gallery from its results")
    site.add_argument("folder", nargs="?", default="gallery", help="by default gallery")
    site.set_defaults(run=_gallery)
    _sweep_options(commands)
    _check_options(commands)
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_argument("--quiet", action="store_true", help="no progress display")
    return whole


def _reproduce_options(commands: Any) -> None:
    one = commands.add_parser("reproduce", help="a table or figure of a paper, beside its numbers")
    one.add_argument("name", nargs="?", metavar="NAME", help="what to reproduce")
    one.add_argument("--list", action="store_true", help="list all names")
    one.add_argument("--all", action="store_true", help="everything, into the gallery")
    one.add_argument("--output", metavar="PAGE", help="write a page of it to this file")
    one.add_argument("--gallery", metavar="FOLDER", help="add it to this site of reproductions")
    one.add_argument("--data-dir", default="", metavar="FOLDER", help="folder of the data files")
    one.add_argument("--stand-in", default="", metavar="NAME", help="data in place of missing ones")
    one.add_argument("--quick", action="store_true", help="train for minutes, not as the papers do")
    one.add_argument("--seeds", type=int, default=1, metavar="N", help="trainings of each curve")
    one.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at once, by default 2")
    one.add_argument("--runs", default="runs/reproduce", metavar="FOLDER", help="of all runs")
    one.set_defaults(run=_reproduce)


def _sweep_options(commands: Any) -> None:
    many = commands.add_parser("sweep", help="many training runs, as a grid or a search")
    many.add_argument("spec", nargs="?", metavar="SPEC.toml", help="what to run: docs/sweeps.md")
    many.add_argument("--folder", help="of the sweep, by default runs/ and the name of SPEC")
    many.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at once, by default 2")
    many.add_argument("--resume", action="store_true", help="go on with what the folder holds")
    many.set_defaults(run=_sweep)


def _check_options(commands: Any) -> None:
    plain = argparse.RawDescriptionHelpFormatter
    one = commands.add_parser(
        "check", help="what a stated epsilon is worth", formatter_class=plain,
        epilog=PrivacyClaim.__doc__,
    )  # fmt: skip
    one.add_argument("configuration", nargs="?", metavar="FILE", help="settings: docs/check.md")
    for name in PrivacyClaim.__struct_fields__:
        one.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE")
    one.set_defaults(run=_check)


def _check(given: argparse.Namespace) -> Output:
    stated = {name: getattr(given, name) for name in PrivacyClaim.__struct_fields__}
    found = check(given.configuration, **stated)
    result = {
        "claim": msgspec.structs.asdict(found.claim), "readings": found.readings,
        "verdicts": found.verdicts, "saving": found.saving, "notes": found.notes,
    }  # fmt: skip
    return Output(result, found.lines())


def _reproduce(given: argparse.Namespace) -> Output:
    if (given.name is not None) + given.list + given.all != 1:
        raise ValueError(
            "Expected one of NAME, --list and --all: see randquant-papers reproduce --list for "
            "names."
        )
    if given.list:
        titles = registry.titles()
        width = max(map(len, titles))
        return Output(titles, [f"{name:<{width}}  {text}" for name, text in titles.items()])
    if given.all:
        if given.output is not None:
            raise ValueError("Expected --gallery FOLDER with --all, got --output: it is one page.")
        return _all(Path(given.gallery or "gallery"), given)
    result = _one(given.name, given)
    lines = as_text(result)
    if given.output is not None:
        write_atomic(Path(given.output), as_page(result).encode())
        lines += ["", f"page           {given.output}"]
    if given.gallery is not None:
        gallery.save(result, Path(given.gallery))
        lines += [f"gallery        {gallery.build(Path(given.gallery))}"]
    return Output({**as_json(result), "output": given.output, "gallery": given.gallery}, lines)


def _all(folder: Path, given: argparse.Namespace) -> Output:
    """Every entry into the gallery; one that cannot be reproduced does not stop the others."""
    result: dict[str, Any] = {}
    lines, failed = [], 0
    for name in (*ENTRIES, *EXPERIMENTS):
        if not given.quiet:
            print(f"reproducing {name}", file=sys.stderr)
        try:
            reproduction = _one(name, given)
        except (ValueError, OSError, ImportError) as error:
            sentence = " ".join(str(error).split())
            result[name], failed = {"error": sentence}, failed + 1
            lines.append(f"{name:<13} failed: {sentence}")
            continue
        gallery.save(reproduction, folder)
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
    index = str(gallery.build(folder))
    result = {"entries": result, "gallery": index}
    return Output(result, [*lines, "", f"gallery  {index}"], code=int(failed > 0))


def _one(name: str, given: argparse.Namespace) -> Reproduction:
    if name not in EXPERIMENTS:
        return registry.reproduce(name)
    from randquant_papers.experiment import Setting  # with torch
    from randquant_papers.progress import RunBars

    with RunBars(given.quiet) as bars:
        setting = Setting(
            data_dir=given.data_dir,
            stand_in=given.stand_in,
            quick=given.quick,
            seeds=given.seeds,
            jobs=given.jobs,
            folder=Path(given.runs),
            on_round=bars.round,
            on_begin=bars.sweep,
            on_end=bars.ended,
        )
        return registry.reproduce(name, setting)


def _gallery(given: argparse.Namespace) -> Output:
    index = str(gallery.build(Path(given.folder)))
    return Output({"gallery": index}, [f"gallery  {index}"])


def _sweep(given: argparse.Namespace) -> Output:
    from randquant_papers import sweep
    from randquant_papers.progress import RunBars

    if given.spec is None and not (given.resume and given.folder):
        raise ValueError("Expected a SPEC.toml, or --resume with --folder, got neither.")
    text = None if given.spec is None else _text(Path(given.spec))
    place = Path(given.folder or Path("runs") / Path(given.spec or "").stem)
    with RunBars(given.quiet) as bars:
        runs = sweep.conduct(place, text, jobs=given.jobs, resume=given.resume, watcher=bars)
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
