"""From declarations to options of the command line, and back to values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from randquant._internal import declared, validate
from randquant._internal.declared import about
from randquant.aggregation.registry import all_mechanisms
from randquant.mechanisms.record import MechanismRecord, hint_of
from randquant.mechanisms.registry import channel_mechanisms
from randquant.privacy.guarantee import Neighboring, Trust
from randquant.training.config import Delta, NormName, TrainConfig

GROUPS = (
    "arguments",
    "options",
    "mechanism",
    "data",
    "clients",
    "server",
    "privacy",
    "search",
    "files",
)
"""Groups of options in the order in which help shows them."""

Dimension = Annotated[int, about("coordinates of an update", "data")]
DeltaOption = Annotated[Delta, declared.meta(TrainConfig, "delta")]
TrustOption = Annotated[Trust | None, declared.meta(TrainConfig, "trust")]
NormOption = Annotated[NormName, declared.meta(TrainConfig, "norm")]
NeighboringOption = Annotated[Neighboring, declared.meta(TrainConfig, "neighboring")]
Names = Annotated[list[str] | None, about("names A,B,...; by default all", "search")]
Page = Annotated[str | None, about("also write a page with the figures to this file", "files")]
Quiet = Annotated[bool, about("no progress display", "files")]


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
    """One option of a command.

    Attributes:
        name: of the parameter or field that it sets; the option is `--name-with-hyphens`.
        hint: its declaration, see `randquant._internal.declared`.
        default: what is passed if it is not given; `inspect.Parameter.empty` if it must be.
        group: the heading that help shows it under, if not the declaration's.
        shown: what help says about its default.
        kind: KEYWORD_ONLY for options; others are values without a name.
        words: the words that it may be, if the declaration does not say.
    """

    name: str
    hint: Any
    default: Any = None
    group: str = ""
    shown: str = ""
    kind: Any = inspect.Parameter.KEYWORD_ONLY
    words: tuple[str, ...] = ()

    def parameter(self) -> inspect.Parameter:
        """Return it as a parameter of a function that is called from the command line."""
        about, is_flag = declared.meaning(self.hint), self.default is False
        many = self.kind is inspect.Parameter.VAR_POSITIONAL
        plain = many or is_flag or self.repeats
        of = Parameter(
            help=about.text,
            group=_group(self.group or about.group or self._place()),
            show_default=self._shown() or False,
            choices=self.words or declared.choices(self.hint) or None,
            allow_leading_hyphen=not is_flag,
            negative=(),
            converter=None if plain else lambda _, tokens: self._convert(tokens),
            n_tokens=None if plain else declared.items(self.hint),
            metavar=None if is_flag else about.form,
        )
        default = inspect.Parameter.empty if many else self.default
        kind = bool if is_flag else str if many else list[str] if self.repeats else Any
        return inspect.Parameter(
            self.name, self.kind, default=default, annotation=Annotated[kind, of]
        )

    def _place(self) -> str:
        return "options" if self.kind is inspect.Parameter.KEYWORD_ONLY else "values"

    def _shown(self) -> str:
        if self.shown or self.default in (None, False, inspect.Parameter.empty):
            return self.shown
        return str(self.default)

    @property
    def repeats(self) -> bool:
        """Whether it may be given several times, each time with one value."""
        return declared.meaning(self.hint).form.startswith("'")

    def _convert(self, tokens: Sequence[Token]) -> Any:
        called = self.name if self.kind is not inspect.Parameter.KEYWORD_ONLY else flag(self.name)
        texts = [token.value for token in tokens]
        for text in texts:
            if text.startswith("--"):
                raise ValueError(f"Expected a value for {called}, got the option {text}.")
        value = declared.read(called, self.hint, *texts)
        declared.check(self.name, self.hint, value)
        return value


def of_function(function: Callable[..., Any]) -> list[Option]:
    """Return the options that a function, or a dataclass, declares by its parameters."""
    hints = declared.hints(function)
    return [
        Option(each.name, hints.get(each.name, Any), each.default, kind=each.kind)
        for each in inspect.signature(function).parameters.values()
    ]


def of_mechanism(record: MechanismRecord, *, whole_update: bool = False) -> list[Option]:
    """Return the options of a mechanism's own parameters.

    Args:
        record: of the mechanism.
        whole_update: whether a channel also takes clip_norm, the threshold of a whole update.
    """
    names = list(record.parameters)
    options = [
        Option(name, _of_constructor(record, name), shown=_default(record, name), group=record.name)
        for name in names
    ]
    if whole_update and not record.whole_update and "clip_norm" not in names:
        text = "clipping threshold of a whole update's norm; without it each coordinate is clipped"
        options.append(Option("clip_norm", Annotated[float, about(text)], group=record.name))
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
        values[key] = declared.read(f"{key} of --channel", hint_of(record.signature[key]), value)
    return name, values


def takes(mechanism: str, parameter: str) -> bool:
    """Return whether a mechanism has a parameter; False for an unknown mechanism."""
    record = all_mechanisms().get(mechanism)
    return record is not None and parameter in record.signature


def flag(name: str) -> str:
    """Return the option of a parameter or field: `--clip-norm` for `clip_norm`."""
    return "--" + name.replace("_", "-")


def given(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named values that were given, which are not None."""
    return {name: values[name] for name in names if values.get(name) is not None}


def _of_constructor(record: MechanismRecord, name: str) -> Any:
    parameter = record.signature[name]
    needed = " [required]" * (parameter.default is parameter.empty)
    return Annotated[hint_of(parameter), about(record.meaning(name) + needed)]


def _default(record: MechanismRecord, name: str) -> str:
    default = record.signature[name].default
    return "" if default in (None, inspect.Parameter.empty) else str(default)


def _group(name: str) -> Group:
    if name in GROUPS:
        return Group(name.capitalize(), sort_key=1 + GROUPS.index(name))
    return Group(f"Parameters of {name}", sort_key=0)
