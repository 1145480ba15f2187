"""What is protected, and how a client's update is clipped and sent: one value for all who plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from randquant._internal import declared, validate
from randquant._internal.serialization import from_json
from randquant.aggregation.auxiliary_numbers import Number
from randquant.privacy.accounting.sampling import Draw
from randquant.privacy.guarantee import Guarantee, Neighboring

MostCount = Annotated[int, Meta(ge=1, le=2**40)]
Bits = Annotated[int, Meta(ge=1, le=24)]
Coordinates = Annotated[int, Meta(ge=1, le=2**30)]

NoiseSource = Literal["clients", "helper", "parties"]
"""Who adds the noise of a secure sum: see `Privacy`."""

CLIP_NORM = 1.0
"""`clip_norm` where it is left out."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """The protected unit, the clipping of updates, and the numbers sent with them.

    Attributes:
        unit: what the guarantee hides: a whole client, or one example of a client's, whose gradient
            is then clipped to clip_norm.
        neighboring: neighbours: replace_one (another update) or zero_out (the zero update).
        bits: most bits of one code; auto for one, or more if that lowers the error by a fifth.
        clip_norm: L2 threshold of a whole update, for every channel; none clips each coordinate
            alone.
        coordinates: how many coordinates of a rotated update are sent, a public random subset that
            is drawn anew in each round; by default all.
        noise: who adds the noise of a secure sum: clients, each its share; helper, who adds up the
            masks, against a server alone; or parties, helper and server each as much, against both.
            Noise of the last two kinds protects a client without counting on any other client.
        sampling: cohorts: fixed in size, or each client in each round by itself (poisson).
        max_participations: most rounds that one client takes part in: `train` draws cohorts so. An
            engine takes its noise from it; there each client enforces its `ClientLimits.epsilon`.
        numbers: what clients send with their updates, in the same noisy sum and the same account:
            accuracy, loss, num-examples, each as NAME:LOW:HIGH with public bounds (NAME alone for 0
            to 1); by default nothing.
        weighted_by: weight updates by this one of the numbers, up to its bound; by default all
            count alike.
        spent: the guarantee of what the same people's data have been asked before: of a table of
            `randquant.statistics`, of an earlier run, or a sum of both. It counts in the target
            and in the run's guarantee, so that training has what is left; by default nothing.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Privacy(numbers=[Number("accuracy")]).read_numbers
        (Number(name='accuracy', low=0.0, high=1.0, share=0.2),)
    """

    unit: declared.Privacy[Literal["client", "example"]] = "client"
    neighboring: declared.Privacy[Neighboring] = "replace_one"
    bits: Bits | Literal["auto"] = "auto"
    clip_norm: declared.Mechanism[float | None] = CLIP_NORM
    coordinates: declared.Mechanism[Coordinates | None] = None
    noise: declared.Privacy[NoiseSource] = "clients"
    sampling: declared.Clients[Draw] = "fixed"
    max_participations: declared.Privacy[MostCount | None] = None
    numbers: declared.Clients[Sequence[str | Number]] = ()
    weighted_by: declared.Clients[str | None] = None
    spent: Guarantee | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", _texts(self.numbers))
        if isinstance(self.spent, dict):  # from a record
            object.__setattr__(self, "spent", from_json(Guarantee, self.spent))
        elif not isinstance(self.spent, Guarantee | None):
            raise TypeError(
                "Expected spent to be a guarantee, such as table.guarantee or run.guarantee, got "
                f"{validate.shown(self.spent)}."
            )
        declared.checked(self)

    @property
    def read_numbers(self) -> tuple[Number, ...]:
        """The numbers as values."""
        return tuple(map(Number.read, map(str, self.numbers)))


def refuse_spent(privacy: Privacy, epsilon: float | None, delta: float) -> None:
    """Refuse what was spent before, where nobody would count it.

    Raises:
        ValueError: something was spent; the message says what is left of the target.
    """
    if privacy.spent is not None:
        left = privacy.spent.remaining(math.inf if epsilon is None else epsilon, delta)
        raise ValueError(
            f"Expected no spent but in randquant.train, got {privacy.spent}: give what is left, "
            f"epsilon={left[0]} and delta={left[1]}, and add the two guarantees."
        )


def _texts(numbers: Any) -> tuple[str, ...]:
    """Numbers as a record has them, `Number.text` or as they were written; TypeError for others."""
    entries = validate.listed("numbers", () if numbers is None else numbers)
    return tuple(each if isinstance(each, str) else _text(each) for each in entries)


def _text(number: Any) -> str:
    validate.kind("numbers", number, Number)
    return number.text
