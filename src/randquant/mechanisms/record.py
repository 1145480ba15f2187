"""The record that registers a mechanism, written beside its constructor.

The registry finds every module of `randquant.mechanisms` (or, for whole-update mechanisms without a
channel, of `randquant.aggregation`) that defines `RECORDS`, a tuple of records. Every command,
table, plot and contract test then includes the mechanism.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from randquant.mechanisms.tuning import Tuning
from randquant.privacy.guarantee import Trust

LAST = 1000
"""Default place of a mechanism."""


@dataclass(frozen=True, slots=True)
class MechanismRecord:
    """One mechanism: how it is built, what its parameters mean, how it is tuned.

    Attributes:
        name: its name in commands and records: lower-case letters, digits and hyphens.
        constructor: takes the parameters by name and returns a Channel, or a mechanism for whole
            updates if `whole_update` is set; raises ValueError for invalid parameters.
        help: one line on each parameter, by name, for the command line.
        example: parameters of an example, as JSON: few codes, evenly spaced. Contract tests build
            every mechanism with them.
        tuning: how it is tuned to a target.
        trusts: the kinds of trust that it supports; empty if it protects nothing.
        whole_update: whether it is a mechanism for whole updates without a channel.
        run_settings: settings of a run, such as `cohort`, that the constructor takes as well.
        baseline: whether it samples in floating point: for comparison, not for deployment.
        implied: from the parameters to those that the constructor then chooses by itself, and that
            decide a figure: commands print them, and say how to turn them off.
        place: its position in lists and tables, which are ordered by place, then by name.

    Raises:
        ValueError: the name is malformed, a parameter cannot be given by name, or help or the
            example names an unknown parameter.

    Example:
        >>> def fair_coin(clip: float): ...
        >>> MechanismRecord("fair-coin", fair_coin, {"clip": CLIP}).parameters
        ('clip',)
    """

    name: str
    constructor: Callable[..., Any]
    help: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    trusts: tuple[Trust, ...] = ("local", "aggregate")
    whole_update: bool = False
    run_settings: tuple[str, ...] = ()
    baseline: bool = False
    implied: Callable[..., Mapping[str, float]] | None = None
    place: int = LAST

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", self.name):
            raise ValueError(
                f"Expected a name of lower-case letters, digits and hyphens, got {self.name!r}."
            )
        parameters = self.signature.values()
        if not all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
            raise ValueError(
                f"Expected the constructor of {self.name} to take its parameters by name."
            )
        for parameter in self.help:
            if parameter not in self.signature:
                raise ValueError(
                    f"Expected help about parameters of {self.name}, "
                    f"{', '.join(self.signature)}; got {parameter!r}."
                )
        if not set(self.example) <= set(self.parameters):
            raise ValueError(
                f"Expected an example with parameters of {self.name}, "
                f"{', '.join(self.parameters)}; got {', '.join(self.example)}."
            )

    @property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        """All parameters of the constructor, by name."""
        return inspect.signature(self.constructor).parameters

    @property
    def parameters(self) -> tuple[str, ...]:
        """The mechanism's own parameters: those of the constructor without settings of a run."""
        return tuple(name for name in self.signature if name not in self.run_settings)

    def meaning(self, parameter: str) -> str:
        """What a parameter means, or where to read about it."""
        return self.help.get(parameter, "see the mechanism's documentation")

    def chosen_by_default(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        """The parameters that were not given and that the constructor does not leave at zero."""
        needed = {name for name, one in self.signature.items() if one.default is one.empty}
        complete = needed <= set(parameters) <= set(self.signature)
        return dict(self.implied(**parameters)) if self.implied and complete else {}

    def notes(self, parameters: Mapping[str, Any]) -> list[str]:
        """A sentence on each parameter that is chosen by default, and how to turn it off.

        Example:
            >>> from randquant.mechanisms.registry import channel_mechanisms
            >>> channel_mechanisms()["pbm"].notes({"clip": 1.0, "theta": 0.35, "trials": 15})[0]
            'pbm has mixing=2^-20 by default (share of codes drawn evenly; 0 is PBM as published): \
set mixing=0 (--mixing 0) to turn it off'
        """
        return [
            f"{self.name} has {name}={_as_power(value)} by default ({self.meaning(name)}): "
            f"set {name}=0 (--{name.replace('_', '-')} 0) to turn it off"
            for name, value in self.chosen_by_default(parameters).items()
        ]


def _as_power(value: float) -> str:
    """A number as a power of two, if it is one."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{value:g}"


def hint_of(parameter: inspect.Parameter) -> Any:
    """Return the kind of a constructor's parameter, whose annotation may be a class or its name.

    Returns:
        int, float, str or bool; int | float without an annotation; otherwise a list of numbers, or
        a count and a list.

    Example:
        >>> def constructor(clip: float, bins: int | Sequence[float]): ...
        >>> [hint_of(each) for each in inspect.signature(constructor).parameters.values()]
        [<class 'float'>, int | list[float]]
    """
    annotation = parameter.annotation
    name = getattr(annotation, "__name__", str(annotation)).removesuffix(" | None")
    known = {"int": int, "float": float, "str": str, "bool": bool, "_empty": int | float}
    if name in known:
        return known[name]
    return int | list[float] if name.startswith("int |") else list[float]


CLIP = "per-coordinate clipping threshold, > 0"
CLIP_NORM = (
    "clipping threshold of a whole update's norm, > 0; train and account take it for every channel"
)
MARGIN = "how far the outermost level lies beyond clip, >= 0"
LEVELS = "number of codes, 2 to 256"
EPSILON = "pure epsilon per coordinate"
INPUTS = "vertices between which inputs are dithered"
DENSITY = "samples of the input, as A,B,... or @FILE; uniform unless given"
REACH = "largest magnitude of a searched level"
VALUES = "increasing values of the codes, as A,B,..."
NOISE_MULTIPLIER = "standard deviation of the noise over the distance between neighbouring sums"
