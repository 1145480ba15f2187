"""A command of the command line, and how all commands are found."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from randquant._internal.serialization import to_json, write_atomic
from randquant.cli import commands


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints, and its exit code.

    Attributes:
        result: the one JSON object of `--json`.
        lines: what is printed without `--json`.
        code: 0; 1 if a check fails, such as an audit.
    """

    result: Mapping[str, Any]
    lines: Sequence[str]
    code: int = 0

    def text(self, as_json: bool) -> str:
        """Return the text to print on standard output."""
        if as_json:
            return json.dumps(to_json(dict(self.result)), allow_nan=False)
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: a file `commands/NAME.py` with `COMMAND = Command(...)` adds it.

    Attributes:
        help: what it does, as one clause.
        example: a complete command line, shown by its help.
        add_options: adds its options to a parser.
        run: from the parsed options to the output.
        resumable: whether `--resume` continues it after it was stopped.
    """

    help: str
    example: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Output]
    resumable: bool = False


def all_commands() -> dict[str, Command]:
    """Every command by its name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(commands.__path__))
    modules = {name: importlib.import_module(f"{commands.__name__}.{name}") for name in names}
    return {name: module.COMMAND for name, module in modules.items()}


def written_page(output: str | None, page: Callable[[], str]) -> list[str]:
    """Write a page to the file `output`, if given; return the lines that name it."""
    if output is None:
        return []
    write_atomic(Path(output), page().encode("utf-8"))
    return ["", f"page           {output}"]


def say(text: str) -> None:
    """Show the current task on standard error, if that is a terminal."""
    if sys.stderr.isatty():
        print(f"working on {text}", file=sys.stderr)
