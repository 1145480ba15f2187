"""From declarations to options of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_origin

from cyclopts import Group, Parameter, Token

from randquant._internal import declared, validate
from randquant._internal.declared import Data, Files, Mechanism, Privacy, Search
from randquant.aggregation.registry import all_mechanisms
from randquant.mechanisms.record import MechanismRecord, hint_of
from randquant.mechanisms.registry import channel_mechanisms
from randquant.training import settings

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
        hint = declared.meaning(hint_of(parameter), record.meaning(name) + needed)
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
        values[key] = declared.read(f"{key} of --channel", hint_of(record.signature[key]), value)
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
