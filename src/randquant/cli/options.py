"""Options of commands, declared by functions and their docstrings, and errors about wrong ones."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
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
from randquant._internal.files import write_atomic
from randquant._internal.formatting import to_json
from randquant._internal.progress import WaitingBar, reporting
from randquant._internal.validate import nearest
from randquant.aggregation.registry import all_mechanisms
from randquant.mechanisms.registry import MechanismRecord, channel_mechanisms, parameter_hint
from randquant.training import config

# From declarations to options of the command line.

GROUP_NAMES = ("options", "mechanism", "data", "clients", "server", "privacy", "search", "files")
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
        objective: the error that is minimised.
        output: also write a page with the figures to this file.
        certificate: also write what is released and the epsilon claimed to this file, for others
            to verify (docs/certificate-file.md).
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
    certificate: Files[str | None] = None
    quiet: Files[bool] = False
    json: Files[bool] = False


# The options of `train` have these meanings in other commands too, unless `Common` has another.
COMMON = {**config.FIELDS, **declared.hints(Common)}
"""Default help text and group of an option, by name; a command's own docstring comes first."""


@dataclass(frozen=True, slots=True)
class NamedMechanism:
    """A mechanism that is named on the command line, with the parameters that were set."""

    name: str
    parameters: Mapping[str, Any]

    def split(self) -> tuple[dict[str, Any], Any]:
        """Return the mechanism's parameters, and a channel's clip_norm or None.

        If a channel has a parameter clip_norm itself (imvu), the value is returned in both: its
        coordinates then lie within the norm to which updates are clipped.
        """
        parameters = dict(self.parameters)
        clip_norm = parameters.get("clip_norm") if self.name in channel_mechanisms() else None
        if clip_norm is not None and not takes(self.name, "clip_norm"):
            del parameters["clip_norm"]
        return parameters, clip_norm


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command, or one of its positional arguments.

    Attributes:
        name: of the parameter or field that it sets; the option is `--name-with-hyphens`.
        hint: its declaration, see `randquant._internal.declared`.
        default: the default that help shows; EMPTY if a value is required.
        kind: of the parameter; KEYWORD_ONLY for options.
        group: the heading in help, if not the declaration's.
    """

    name: str
    hint: Any
    default: Any = None
    kind: Any = KEYWORD_ONLY
    group: str = ""

    def parameter(self) -> inspect.Parameter:
        """Return it as a parameter of a function that cyclopts calls."""
        is_flag, form = self.default is False, declared.form(self.hint)
        no_default = self.default is EMPTY or str(self.default) in ("None", "False", "", "{}", "()")
        read = Parameter(
            help=declared.text(self.hint),
            group=_group(self.group or declared.group(self.hint) or "options"),
            show_default=False if no_default else lambda _: str(self.default),
            negative=(),  # no `--no-quiet`
            # A value may begin with a hyphen, such as -2,0,2.
            allow_leading_hyphen=not is_flag,
            converter=None if is_flag or self.repeats else lambda _, tokens: self._read(tokens),
            n_tokens=1 if form else None,  # a list is one word: A,B,C
            accepts_keys=False,  # no `--parameters.name`
            metavar=form or None,
        )
        default = EMPTY if self.default is EMPTY else None
        # A truth value that is not a flag is written out (`--symmetric false`): for cyclopts a str.
        with_value = bool in declared.leaves(self.hint) and not is_flag
        annotation = Annotated[str if with_value else self.hint, read]
        return inspect.Parameter(self.name, self.kind, default=default, annotation=annotation)

    @property
    def repeats(self) -> bool:
        # Each occurrence on the command line adds one value.
        sequence = any(get_origin(leaf) is Sequence for leaf in declared.leaves(self.hint))
        return sequence or self.kind is inspect.Parameter.VAR_POSITIONAL

    def _read(self, tokens: Sequence[Token]) -> Any:
        called = self.name if self.kind is not KEYWORD_ONLY else flag(self.name)
        # A forgotten value would otherwise take the next option as its value.
        for token in tokens:
            if token.value.startswith("--"):
                raise ValueError(f"Expected a value for {called}, got the option {token.value}.")
        return declared.read(called, self.hint, *(token.value for token in tokens))


def function_options(function: Callable[..., Any]) -> list[Option]:
    """Return the options that a function, or a dataclass, declares by its parameters."""
    hints, options = declared.hints(function), []
    for parameter in inspect.signature(function).parameters.values():
        common, hint = COMMON.get(parameter.name), hints[parameter.name]
        group = declared.group(hint) or declared.group(common)
        hint = declared.with_meaning(hint, declared.text(hint) or declared.text(common))
        is_option = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        kind = KEYWORD_ONLY if is_option else parameter.kind
        options.append(Option(parameter.name, hint, parameter.default, kind, group))
    return options


def mechanism_options(record: MechanismRecord, *, whole_update: bool = False) -> list[Option]:
    """Return the options of a mechanism's parameters.

    Args:
        record: of the mechanism.
        whole_update: whether a channel also takes clip_norm, the threshold of a whole update.
    """
    group, options = f"parameters of {record.name}", []
    for name in record.parameters:
        parameter = record.signature[name]
        # Not required by cyclopts: the mechanism's constructor names all missing ones at once.
        required = " [required]" * (parameter.default is EMPTY)
        hint = declared.with_meaning(parameter_hint(parameter), record.meaning(name) + required)
        default = "" if required else str(parameter.default)
        options.append(Option(name, hint, default, group=group))
    if whole_update and not record.whole_update and "clip_norm" not in record.parameters:
        text = "clipping threshold of a whole update's norm; without it each coordinate is clipped"
        options.append(Option("clip_norm", declared.with_meaning(float, text), group=group))
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
    # `--clip-norm` for `clip_norm`.
    return "--" + name.replace("_", "-")


def _group(name: str) -> Group:
    # Groups that are not listed, such as a mechanism's parameters, come first.
    place = GROUP_NAMES.index(name) if name in GROUP_NAMES else -1
    return Group(name[:1].upper() + name[1:], sort_key=1 + place)


# Errors about a command line, in one sentence each.


def check_commands(top: App, words: Sequence[str]) -> None:
    """Check that a command line names an existing command, and its mechanism if it has one.

    Raises:
        ValueError: a COMMAND or a MECHANISM is missing or unknown.
    """
    # Before cyclopts, so that the sentence lists the known commands.
    app, path = top, "randquant"
    for kind, word in zip(("COMMAND", "MECHANISM"), [*words[:2], "", ""], strict=False):
        known = [name for name in app if not name.startswith("-")]
        if not known or (word.startswith("-") and word in app):
            return
        if word not in known:
            problem = f"got {word!r}{nearest(word, known)}" if word else "it is missing."
            raise ValueError(f"Expected a {kind}, one of {', '.join(known)}; {problem}{_see(path)}")
        app, path = app[word], f"{path} {word}"


def sentence(error: CycloptsError, top: App, words: Sequence[str]) -> str:
    """Rewrite an error of cyclopts as one sentence of the form Expected …, got …."""
    path = " ".join(["randquant", *(error.command_chain or ())])
    return f"{_problem(error, path)}{_see(path)}"


def _problem(error: CycloptsError, path: str) -> str:
    argument = error.argument
    token = getattr(error, "token", None)
    name = argument.name if argument is not None else token.keyword if token else "a value"
    match error:
        # Our own converters raise whole sentences: they are the cause of cyclopts' error.
        case CoercionError() if error.__cause__ is not None:
            return str(error.__cause__)
        case CoercionError() if argument is not None and argument.parameter.choices:
            known = [str(choice) for choice in argument.get_choices() or ()]
            word = error.token.value if error.token is not None else ""
            return (
                f"Expected {name} to be one of {', '.join(known)}; got "
                f"{word!r}{nearest(word, known)}"
            )
        case UnknownOptionError():
            known = [name for option in error.argument_collection or () for name in option.names]
            word = error.token.keyword or error.token.value
            return f"Expected an option of {path}, got {word}{nearest(word, known)}"
        case MissingArgumentError():
            return f"Expected {name}; it is missing."
        case RepeatArgumentError():
            return f"Expected {name} once, got it several times."
        case UnusedCliTokensError():
            return f"Expected no other values, got {' '.join(error.unused_tokens or ())}."
    return " ".join(str(error).split())


def _see(path: str) -> str:
    return f" (see {path} --help)"


# A command of the command line, and the lookup of commands by name.

EVERYTHING = "--install-completion"
"""First word of a command line that needs the options of all commands and mechanisms."""


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a command: its lines, its JSON object and its exit code.

    Attributes:
        result: the one JSON object of `--json`.
        lines: the text without `--json`.
        code: 0; 1 if a check fails, such as an audit.
    """

    result: Mapping[str, Any]
    lines: Sequence[str]
    code: int = 0

    def text(self, as_json: bool) -> str:
        """Return the text to print on standard output."""
        # NaN and infinity are not JSON: `to_json` has made texts of infinities, and NaN is a fault.
        if as_json:
            return json.dumps(to_json(dict(self.result)), allow_nan=False)
        return "\n".join(self.lines)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: a file beside this one adds it to its `COMMANDS`, by name.

    A paragraph of the file's docstring is its help text: "`randquant NAME`: what it does."

    Attributes:
        run: its action. Its parameters, declared as in `randquant._internal.declared`, are the
            options. With `mechanisms` the first parameter is the NamedMechanism instead; with
            `settings` it is a mapping of settings by name, without those left at their defaults.
        example: a complete command line, shown by its help.
        mechanisms: the mechanisms that it takes, by name; each is a subcommand.
        whole_update: whether channels also take clip_norm, the threshold of a whole update.
        settings: returns further options, from the words of the command line.
        bar: whether long work is shown as a bar; a command may have its own display.
    """

    run: Callable[..., Output]
    example: str
    mechanisms: Callable[[], Mapping[str, MechanismRecord]] | None = None
    whole_update: bool = False
    settings: Callable[[Sequence[str]], list[Option]] | None = None
    bar: bool = True

    def app(self, name: str, words: Sequence[str] = ()) -> App:
        """Return the command as an application of cyclopts.

        Args:
            name: of the command.
            words: the command line after it: only the options of the mechanism that they begin with
                are declared, or all of them with EVERYTHING.
        """
        end = f"example: {self.example}"
        app = App(name, help=command_texts()[name][1], help_epilogue=end, help_format="plaintext")
        if self.mechanisms is None:
            app.default(self._call(self.settings(words) if self.settings else [], dict))
            return app
        for mechanism, record in self.mechanisms().items():
            constructor = record.constructor  # a partial has the documentation of functools.partial
            if isinstance(constructor, functools.partial):
                constructor = constructor.func
            summary = (inspect.getdoc(constructor) or mechanism).partition("\n")[0]
            if words[:1] in ([mechanism], [EVERYTHING]):
                parameters = mechanism_options(record, whole_update=self.whole_update)
                call = self._call(parameters, functools.partial(NamedMechanism, mechanism))
                app.command(call, name=mechanism, help=summary, help_epilogue=end)
            else:
                app.command(App(mechanism, help=summary))
        return app

    def _call(self, collected: list[Option], first: Callable[[dict[str, Any]], Any]) -> Any:
        """Return a function with a parameter for every option, which cyclopts calls.

        Args:
            collected: options whose values are collected for the first argument of the action.
            first: makes that argument from these values by name.
        """
        action_options = function_options(self.run)
        # The first parameter of such an action is the NamedMechanism, or the mapping of settings.
        if self.mechanisms or self.settings:
            del action_options[0]
        names = {option.name for option in action_options}
        collected = [option for option in collected if option.name not in names]
        json = Option("json", COMMON["json"], False)
        parameters = [option.parameter() for option in (*action_options, *collected, json)]

        def call(*values: Any, json: bool = False, **options: Any) -> Invocation:
            set_by_user = {
                option.name: options.pop(option.name)
                for option in collected
                if option.name in options
            }
            if self.mechanisms or self.settings:
                values = (first(set_by_user), *values)
            return Invocation(self, values, options, json)

        signature = inspect.Signature(sorted(parameters, key=lambda parameter: parameter.kind))
        call.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        # cyclopts would take the annotations of `call`, whose names may be those of options.
        call.__annotations__ = {}
        return call


@dataclass(frozen=True, slots=True)
class Invocation:
    """A command that was read from a command line and can be run.

    Attributes:
        command: the command.
        values, options: the arguments of its action.
        as_json: whether `--json` was on the command line.
    """

    command: Command
    values: Sequence[Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    as_json: bool = False

    def run(self) -> Output:
        # None: the bar decides by itself whether standard error is a terminal.
        with WaitingBar(None if self.command.bar else False) as bar, reporting(bar):
            return self.command.run(*self.values, **self.options)


@functools.cache
def command_texts() -> dict[str, tuple[str, str]]:
    """Return each command's module and help text, by its name, from the docstrings of all files."""
    # Files are parsed, not imported: `randquant --help` would import torch for `train`.
    package, found = __name__.rpartition(".")[0], {}
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        spec = importlib.util.find_spec(module.name)
        source = spec.loader.get_source(spec.name)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
        docstring = ast.get_docstring(ast.parse(source)) or ""
        for name, text in re.findall(r"^`randquant (\w+)`: (.+)$", docstring, re.MULTILINE):
            found[name] = module.name, text[:1].upper() + text[1:]
    return dict(sorted(found.items()))


def import_command(name: str) -> Command:
    return importlib.import_module(command_texts()[name][0]).COMMANDS[name]


def all_commands() -> dict[str, Command]:
    return {name: import_command(name) for name in command_texts()}


def selected_fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def written_page(output: str | None, page: Callable[[], str]) -> list[str]:
    """Write a page to the file `output` unless it is None; return the lines that name it."""
    if output is None:
        return []
    write_atomic(Path(output), page().encode("utf-8"))
    return ["", f"page           {output}"]


def written_certificate(certificate: str | None, text: Callable[[], str]) -> list[str]:
    """Write a certificate to the file unless that is None; return the lines that name it."""
    if certificate is None:
        return []
    write_atomic(Path(certificate), text().encode())
    return [f"certificate    {certificate}"]
