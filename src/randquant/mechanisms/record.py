"""What registers a mechanism: one record, written beside its constructor.

A module of `randquant.mechanisms` (or, for mechanisms of whole updates that are no channel, of
`randquant.aggregation`) that defines `RECORDS`, a tuple of records, is found by the registry. Every
command, table, plot and contract test then knows the mechanism.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from randquant.mechanisms.tuning import CoordinateFamily, UpdateFamily, UpdateSetting
from randquant.privacy.guarantee import Trust

LAST = 1000
"""Place of a mechanism that states none."""


@dataclass(frozen=True, slots=True)
class MechanismRecord:
    """One mechanism: how it is built, what its parameters mean, how it is tuned.

    Attributes:
        name: what commands and records call it: lower-case letters, digits and hyphens.
        constructor: from its parameters, by name, to a Channel, or to a mechanism for whole updates
            where `whole_update` is set; ValueError where there is none.
        help: what each parameter means, by name: one line for the command line.
        example: parameters that it can be tried with, as JSON: few codes, evenly spaced. Contract
            tests try every mechanism with them.
        coordinate: how it is tuned to one coordinate's epsilon; None where that follows from the
            signature, or where it cannot be.
        update: from the setting to how it is tuned to a whole run's guarantee; None where it
            cannot be.
        trusts: against whom it can protect; empty where it protects nothing.
        whole_update: whether it is a mechanism for whole updates and no channel.
        run_settings: settings of a run, `cohort` or `norm`, that the constructor takes as well.
        baseline: whether it samples in floating point: to compare with, not to deploy.
        tunable: False for a channel that is given as it is.
        place: where lists and tables name it: by place, then by name.

    Raises:
        ValueError: the name is malformed, a parameter cannot be given by name, or help or the
            example is about a parameter that there is not.

    Example:
        >>> def fair_coin(clip: float): ...
        >>> MechanismRecord("fair-coin", fair_coin, {"clip": CLIP}).parameters
        ('clip',)
    """

    name: str
    constructor: Callable[..., Any]
    help: Mapping[str, str] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    coordinate: CoordinateFamily | None = None
    update: Callable[[UpdateSetting], UpdateFamily] | None = None
    trusts: tuple[Trust, ...] = ("local", "aggregate")
    whole_update: bool = False
    run_settings: tuple[str, ...] = ()
    baseline: bool = False
    tunable: bool = True
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
        for about in self.help:
            if about not in self.signature:
                raise ValueError(
                    f"Expected help about parameters of {self.name}, "
                    f"{', '.join(self.signature)}; got {about!r}."
                )
        if not set(self.example) <= set(self.parameters):
            raise ValueError(
                f"Expected an example with parameters of {self.name}, "
                f"{', '.join(self.parameters)}; got {', '.join(self.example)}."
            )

    @property
    def signature(self) -> Mapping[str, inspect.Parameter]:
        """Everything that the constructor takes, by name."""
        return inspect.signature(self.constructor).parameters

    @property
    def parameters(self) -> tuple[str, ...]:
        """The mechanism's own parameters: what it takes but for settings of a run."""
        return tuple(name for name in self.signature if name not in self.run_settings)

    def meaning(self, parameter: str) -> str:
        """What a parameter means, or where to read about it."""
        return self.help.get(parameter, "see the mechanism's documentation")


CLIP = "per-coordinate clipping threshold, > 0"
CLIP_NORM = (
    "clipping threshold of a whole update's norm, > 0; train and account take it for every channel"
)
MARGIN = "how far the outermost level lies beyond clip, >= 0"
LEVELS = "how many codes, 2 to 256"
EPSILON = "pure epsilon per coordinate"
INPUTS = "vertices between which inputs are dithered"
DENSITY = "samples of the input, as A,B,... or @FILE; uniform unless given"
REACH = "largest magnitude of a searched level"
VALUES = "increasing values of the codes, as A,B,..."
NOISE_MULTIPLIER = "deviation of the noise over the distance between neighbouring sums"
