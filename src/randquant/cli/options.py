"""Options of commands, from functions and their docstrings, and what is said of wrong ones."""

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
from typing import Annotated, Any, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownOptionError,
)
from cyclopts.exceptions import RepeatArgumentError, UnusedCliTokensError

from randquant._internal import declared, validate
from randquant._internal.declared import Data, Files, Mechanism, Privacy, Search
from randquant._internal.progress import WaitingBar, reporting
from randquant._internal.serialization import to_json, write_atomic
from randquant._internal.validate import nearest
from randquant.aggregation.registry import all_mechanisms
from randquant.cli import commands
from randquant.mechanisms.record import MechanismRecord, parameter_hint
from randquant.mechanisms.registry import channel_mechanisms
from randquant.training import settings

# From declarations to options of the command line.

GROUPS = ("options", "mechanism", "data", "clients", "server", "privacy", "search", "files")
"""Groups of options in the order in which help shows them."""

EMPTY = inspect.Parameter.empty
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True)
class Common:
    """Options that several commands have.

    Attributes:
        clip: per-coordinate clipping threshold, > 0.
        bits: bits of a code.
        levels: number of codes.
        dimension: coordinates of an update.
        epsilon: the target, in nats.
        order: Renyi order in (1, inf].
        mechanisms: names A,B,... or all; by default those that are tuned within seconds.
        objective: what is least.
        output: also write a page with the figures to this file.
        quiet: no progress display.
        json: print one JSON object.
    """

    clip: Mechanism[float]
    bits: Mechanism[int]
    levels: Mechanism[int]
    dimension: Data[int]
    epsilon: Privacy[float]
    order: Privacy[float]
    mechanisms: Search[list[str] | None] = None
    objective: Search[str] = ""
    output: Files[str | None] = None
    quiet: Files[bool] = False
    json: Files[bool] = False


COMMON = {**settings.FIELDS, **declared.hints(Common)}
"""What an option of a command means, and its group, unless the command itself says so."""


@dataclass(frozen=True, slots=True)
class NamedMechanism:
    """A mechanism that is named on the command line, with its own parameters that were given."""

    name: str
    parameters: Mapping[str, Any]

    def split(self) -> tuple[dict[str, Any], Any]:
        """Return the mechanism's own parameters, and a channel's clip_norm or None.

        For a channel that has the parameter clip_norm itself (imvu) it is both: its coordinates
        then lie within the norm to which updates are clipped.
        """
        parameters = dict(self.parameters)
        clip_norm = parameters.get("clip_norm") if self.name in channel_mechanisms() else None
        if clip_norm is not None and not takes(self.name, "clip_norm"):
            del parameters["clip_norm"]
        return parameters, clip_norm


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command, or one of its values without a name.

    Attributes:
        name: of the parameter or field that it sets; the option is `--name-with-hyphens`.
        hint: its declaration, see `randquant._internal.declared`.
        default: what help says about its default; EMPTY if it must be given.
        kind: of the parameter; KEYWORD_ONLY for options.
        group: the heading that help shows it under, if not the declaration's.
    """

    name: str
    hint: Any
    default: Any = None
    kind: Any = KEYWORD_ONLY
    group: str = ""

    def parameter(self) -> inspect.Parameter:
        """Return it as a parameter of a function that cyclopts calls."""
        is_flag, form = self.default is False, declared.form(self.hint)
        untold = self.default is EMPTY or str(self.default) in ("None", "False", "", "{}")
        read = Parameter(
            help=declared.text(self.hint),
            group=_group(self.group or declared.group(self.hint) or "options"),
            show_default=False if untold else lambda _: str(self.default),
            negative=(),
            allow_leading_hyphen=not is_flag,
            converter=None if is_flag or self.repeats else lambda _, tokens: self._read(tokens),
            n_tokens=1 if form else None,
            accepts_keys=False,
            metavar=form or None,
        )
        default = EMPTY if self.default is EMPTY else None
        spelt_out = bool in declared.leaves(self.hint) and not is_flag
        annotation = Annotated[str if spelt_out else self.hint, read]
        return inspect.Parameter(self.name, self.kind, default=default, annotation=annotation)

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times, each time with one value."""
        sequence = any(get_origin(leaf) is Sequence for leaf in declared.leaves(self.hint))
        return sequence or self.kind is inspect.Parameter.VAR_POSITIONAL

    def _read(self, tokens: Sequence[Token]) -> Any:
        called = self.name if self.kind is not KEYWORD_ONLY else flag(self.name)
        for token in tokens:
            if token.value.startswith("--"):
                raise ValueError(f"Expected a value for {called}, got the option {token.value}.")
        return declared.read(called, self.hint, *(token.value for token in tokens))


def of_function(function: Callable[..., Any]) -> list[Option]:
    """Return the options that a function, or a dataclass, declares by its parameters."""
    hints, options = declared.hints(function), []
    for each in inspect.signature(function).parameters.values():
        common, own = COMMON.get(each.name), hints[each.name]
        hint = declared.meaning(own, declared.text(own) or declared.text(common))
        kind = KEYWORD_ONLY if each.kind is each.POSITIONAL_OR_KEYWORD else each.kind
        group = declared.group(own) or declared.group(common)
        options.append(Option(each.name, hint, each.default, kind, group))
    return options


def of_mechanism(record: MechanismRecord, *, whole_update: bool = False) -> list[Option]:
    """Return the options of a mechanism's own parameters.

    Args:
        record: of the mechanism.
        whole_update: whether a channel also takes clip_norm, the threshold of a whole update.
    """
    group, options = f"parameters of {record.name}", []
    for name in record.parameters:
        parameter = record.signature[name]
        needed = " [required]" * (parameter.default is EMPTY)
        hint = declared.meaning(parameter_hint(parameter), record.meaning(name) + needed)
        default = "" if needed else str(parameter.default)
        options.append(Option(name, hint, default, group=group))
    if whole_update and not record.whole_update and "clip_norm" not in record.parameters:
        text = "clipping threshold of a whole update's norm; without it each coordinate is clipped"
        options.append(Option("clip_norm", declared.meaning(float, text), group=group))
    return options


def given_channel(text: str) -> tuple[str, dict[str, Any]]:
    """Read a channel's name and parameters from "NAME key=value key=value".

    Example:
        >>> given_channel("erm clip=1 bins=-2,0,2 gamma=0.5")
        ('erm', {'clip': 1.0, 'bins': [-2.0, 0.0, 2.0], 'gamma': 0.5})
    """
    name, *pairs = text.split() or [""]
    channels = channel_mechanisms()
    record = channels[validate.choice("--channel", name, channels)]
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in record.signature or key in values:
            wanted = ", ".join(record.signature)
            raise ValueError(f"Expected --channel {name} with {wanted} once each, got {pair!r}.")
        values[key] = declared.read(
            f"{key} of --channel", parameter_hint(record.signature[key]), value
        )
    return name, values


def takes(mechanism: str, parameter: str) -> bool:
    """Return whether a mechanism has a parameter; False for an unknown mechanism."""
    record = all_mechanisms().get(mechanism)
    return record is not None and parameter in record.signature


def flag(name: str) -> str:
    """Return the option of a parameter or field: `--clip-norm` for `clip_norm`."""
    return "--" + name.replace("_", "-")


def _group(name: str) -> Group:
    place = GROUPS.index(name) if name in GROUPS else -1
    return Group(name[:1].upper() + name[1:], sort_key=1 + place)


# What is wrong with a command line, in one sentence.


def check_commands(top: App, words: Sequence[str]) -> None:
    """Refuse a command line that names no command, or none that there is.

    Raises:
        ValueError: a COMMAND or a MECHANISM is missing or unknown.
    """
    app, path = top, "randquant"
    for kind, word in zip(("COMMAND", "MECHANISM"), [*words[:2], "", ""], strict=False):
        known = [name for name in app if not name.startswith("-")]
        if not known or (word.startswith("-") and word in app):
            return
        if word not in known:
            got = f"got {word!r}{nearest(word, known)}" if word else "got none."
            raise ValueError(f"Expected a {kind}, one of {', '.join(known)}; {got}{_see(path)}")
        app, path = app[word], f"{path} {word}"


def sentence(error: CycloptsError, top: App, words: Sequence[str]) -> str:
    """Return what is wrong with a command line that cyclopts refused."""
    path = " ".join(["randquant", *(error.command_chain or ())])
    return f"{_problem(error, path)}{_see(path)}"


def _problem(error: CycloptsError, path: str) -> str:
    argument = error.argument
    token = getattr(error, "token", None)
    name = argument.name if argument is not None else token.keyword if token else "a value"
    match error:
        case CoercionError() if error.__cause__ is not None:
            return str(error.__cause__)
        case CoercionError() if argument is not None and argument.parameter.choices:
            known = [str(each) for each in argument.get_choices() or ()]
            got = error.token.value if error.token is not None else ""
            return (
                f"Expected {name} to be one of {', '.join(known)}; got {got!r}{nearest(got, known)}"
            )
        case UnknownOptionError():
            known = [each for one in error.argument_collection or () for each in one.names]
            got = error.token.keyword or error.token.value
            return f"Expected an option of {path}, got {got}{nearest(got, known)}"
        case MissingArgumentError():
            return f"Expected {name}, got none."
        case RepeatArgumentError():
            return f"Expected {name} once, got it several times."
        case UnusedCliTokensError():
            return f"Expected no other values, got {' '.join(error.unused_tokens or ())}."
    return " ".join(str(error).split())


def _see(path: str) -> str:
    return f" (see {path} --help)"


# A command of the command line, and how all commands are found.

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
