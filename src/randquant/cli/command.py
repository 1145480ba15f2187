"""A command of the command line, and how all commands are found."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cyclopts import App

from randquant._internal.bars import WaitingBar
from randquant._internal.progress import reporting
from randquant._internal.serialization import to_json, write_atomic
from randquant.cli import commands
from randquant.cli.options import COMMON, NamedMechanism, Option, of_function, of_mechanism
from randquant.mechanisms.record import MechanismRecord

EVERYTHING = "--install-completion"
"""Begins a command line that needs the options of all commands and mechanisms."""


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

    The first line of the file's docstring says what it does: "`randquant NAME`: what it does."

    Attributes:
        run: its action. The parameters, declared as `randquant._internal.declared` says, are the
            options. With `mechanisms` the first parameter is the NamedMechanism instead; with
            `settings` it is a mapping of the given settings by name.
        example: a complete command line, shown by its help.
        mechanisms: the mechanisms that it takes, each as a command of its own; by name.
        whole_update: whether channels take clip_norm, the threshold of a whole update, too.
        settings: from the words of the command line to options beside those of `run`.
        resumable: whether `--resume` continues it after it was stopped.
        bar: whether long work is shown as a bar; a command may have a display of its own.
    """

    run: Callable[..., Output]
    example: str
    mechanisms: Callable[[], Mapping[str, MechanismRecord]] | None = None
    whole_update: bool = False
    settings: Callable[[Sequence[str]], list[Option]] | None = None
    resumable: bool = False
    bar: bool = True

    def app(self, name: str, words: Sequence[str] = ()) -> App:
        """Return the command as an application of cyclopts.

        Args:
            name: of the command.
            words: what follows it on the command line: only the options of the mechanism that
                they begin with are declared, or all with EVERYTHING.
        """
        end = f"example: {self.example}"
        app = App(name, help=purpose(name), help_epilogue=end, help_format="plaintext")
        if self.mechanisms is None:
            app.default(self._call(self.settings(words) if self.settings else [], dict))
            return app
        for each, record in self.mechanisms().items():
            made = record.constructor  # a partial's own documentation is that of functools
            made = made.func if isinstance(made, functools.partial) else made
            summary = (inspect.getdoc(made) or each).partition("\n")[0]
            if words[:1] in ([each], [EVERYTHING]):
                theirs = of_mechanism(record, whole_update=self.whole_update)
                call = self._call(theirs, functools.partial(NamedMechanism, each))
                app.command(call, name=each, help=summary, help_epilogue=end)
            else:
                app.command(App(each, help=summary))
        return app

    def _call(self, others: list[Option], first: Callable[[dict[str, Any]], Any]) -> Any:
        """A function with a parameter for every option, which cyclopts calls.

        What is given for `others` is the first argument of the action.
        """
        own = of_function(self.run)
        if self.mechanisms or self.settings:
            del own[0]
        taken = {option.name for option in own}
        others = [option for option in others if option.name not in taken]
        json = Option("json", COMMON["json"], False)
        parameters = [option.parameter() for option in (*own, *others, json)]

        def call(*values: Any, json: bool = False, **options: Any) -> Invocation:
            given = {each.name: options.pop(each.name) for each in others if each.name in options}
            if self.mechanisms or self.settings:
                values = (first(given), *values)
            return Invocation(self, values, options, json)

        signature = inspect.Signature(sorted(parameters, key=lambda each: each.kind))
        call.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        call.__annotations__ = {}  # of the inner function, whose names may be options' too
        return call


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that was read from a command line and can be run.

    Attributes:
        command: what to run.
        values, options: the arguments of its action.
        as_json: whether `--json` was given.
    """

    command: Command
    values: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    as_json: bool = False

    def run(self) -> Output:
        """Run the command; show how far it is."""
        with WaitingBar(None if self.command.bar else False) as bar, reporting(bar):
            return self.command.run(*self.values, **self.options)


def names() -> list[str]:
    """Every command's name, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def named(name: str) -> Command:
    """Import the command of that name."""
    return importlib.import_module(f"{commands.__name__}.{name}").COMMAND


def all_commands() -> dict[str, Command]:
    """Every command by its name, in alphabetical order."""
    return {name: named(name) for name in names()}


def purpose(name: str) -> str:
    """Return what a command does, from its file's first line; the command is not imported."""
    spec = importlib.util.find_spec(f"{commands.__name__}.{name}")
    source = spec.loader.get_source(spec.name)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    line = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]
    text = " ".join(line.partition(": ")[2].split())
    return text[:1].upper() + text[1:]


def figures(record: Any, *names: str) -> dict[str, Any]:
    """Return fields of a result by name, for `--json`."""
    return {name: getattr(record, name) for name in names}


def written_page(output: str | None, page: Callable[[], str]) -> list[str]:
    """Write a page to the file `output`, if given; return the lines that name it."""
    if output is None:
        return []
    write_atomic(Path(output), page().encode("utf-8"))
    return ["", f"page           {output}"]
