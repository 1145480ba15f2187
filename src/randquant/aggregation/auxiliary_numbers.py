"""Bounded numbers that a client sends with its update: one vector, one release, one sum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.aggregation.clipping import clip_to_norm

SHARE = 0.2
"""Default share of the norm for each number: one number costs the update 2 % more noise, and a
share twice as large 9 %."""

EXAMPLES = "num-examples"
"""Name of the number that says how many examples a client has."""

MIN_MEAN_WEIGHT = 0.05
"""Smallest mean weight that a mean is divided by: noise may move the released one to 0 and below.
Twice as much would bias the mean wherever weights average below a tenth of their bound."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number of each client, whose mean over the cohort is released.

    Args:
        name: what it is called, such as `accuracy`.
        low, high: a client clips its number to these bounds, which nobody may choose by the data.
        share: of the norm of what a client sends. A larger share makes the mean more exact, and
            the update noisier.

    Example:
        >>> Number("num-examples", 0, 200).mean(0.5)
        150.0
    """

    name: str
    low: float = 0.0
    high: float = 1.0
    share: float = SHARE

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.kind("name", self.name, str)
        low = validate.real("low", self.low, low=-1e30, high=1e30)
        high = validate.real("high", self.high, above=low, high=1e30)
        validate.real("high - low", high - low, low=1e-30)
        validate.real("share", self.share, above=0, below=1)
        if self.name == EXAMPLES and high <= 1:
            raise ValueError(
                f"Expected bounds with the number {EXAMPLES}, got {low:g} to {high:g}, where every "
                f"client has {high:g}: give the most that counts, {EXAMPLES}:0:200 or "
                f"Number({EXAMPLES!r}, 0, 200)."
            )

    @classmethod
    def read(cls, text: str) -> Number:
        """Read a number from NAME, NAME:HIGH, NAME:LOW:HIGH or NAME:LOW:HIGH:SHARE.

        Raises:
            ValueError: it is none of these, or what it gives is out of bounds.

        Example:
            >>> Number.read("num-examples:200")
            Number(name='num-examples', low=0.0, high=200.0, share=0.2)
        """
        name, *numbers = text.split(":")
        try:
            values = [float(each) for each in numbers]
            if len(values) > 3:
                raise ValueError
        except ValueError:
            raise ValueError(
                f"Expected a number as NAME:LOW:HIGH or NAME:LOW:HIGH:SHARE, got {text!r}: write "
                "num-examples:0:200, for example."
            ) from None
        return cls(name, 0.0, *values) if len(values) == 1 else cls(name, *values)

    @property
    def text(self) -> str:
        """Return the text that `read` parses to exactly this number.

        Example:
            >>> Number("num-examples", 0, 200).text
            'num-examples:0.0:200.0:0.2'
        """
        return ":".join([self.name, *(repr(float(x)) for x in (self.low, self.high, self.share))])

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    def scaled(self, value: float) -> float:
        """Clip a client's number to its bounds and map them to [-1, 1]."""
        inside = min(max(value, self.low), self.high)
        return min(max((inside - self.low) / self.half - 1, -1.0), 1.0)

    def mean(self, scaled: float) -> float:
        # The inverse of `scaled`, for a mean: back to the number's own units.
        return self.low + (scaled + 1) * self.half


@dataclass(frozen=True, slots=True)
class AuxiliaryNumbers:
    """Bounded numbers that a client sends with its update, joined to one vector of bounded norm.

    Args:
        clip_norm: L2 threshold of the mechanism that the vector is sent through.
        numbers: those that are sent; the squares of their shares add up to less than 1.
        weight: name of the number, with low = 0, that an update is weighted by; None for none.

    Guarantees:
        A joined vector has norm clip_norm at most, whatever the update and the numbers: the
        mechanism's guarantee in `dimension + extra` coordinates holds as it stands, and covers the
        numbers (`docs/theory/alongside.md`, Proposition 1).

    Example:
        >>> scalars = AuxiliaryNumbers(clip_norm=5.0, numbers=(Number("accuracy"),))
        >>> vector = scalars.join(np.array([30.0, 40.0]), {"accuracy": 0.9})
        >>> update, numbers = scalars.separate(vector)
        >>> update.round(3), round(numbers["accuracy"], 3)
        (array([3., 4.], dtype=float32), 0.9)
    """

    clip_norm: float
    numbers: tuple[Number, ...] = ()
    weight: str | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("clip_norm", self.clip_norm, above=0)
        names = [number.name for number in self.numbers]
        if len(set(names)) < len(names):
            raise ValueError(f"Expected each number once, got {', '.join(names)}.")
        squared_shares = sum(number.share**2 for number in self.numbers)
        if squared_shares >= 1:
            raise ValueError(
                f"Expected shares whose squares add up to less than 1, got {squared_shares:g}: "
                "nothing is left for the update; lower the shares, or send fewer numbers."
            )
        if self.weight is not None:
            (by,) = [n for n in self.numbers if n.name == self.weight] or [None]
            if by is None or by.low != 0:
                raise ValueError(
                    f"Expected weighted_by to name a number from 0 up, got {self.weight!r}: add "
                    "it to the numbers, with low=0."
                )

    @property
    def extra(self) -> int:
        return len(self.numbers)

    def join(self, update: np.ndarray, values: Mapping[str, float]) -> np.ndarray:
        """Join a client's update and numbers to the vector to encode, (d + extra,) float32.

        Args:
            update: (d,) floats; clipped to norm `clip_norm` here, and weighted.
            values: of each number; clipped to its bounds here, infinite ones too.

        Raises:
            ValueError: the update is not finite, or a number is NaN (the error names it) or
                missing.
        """
        if missing := [n.name for n in self.numbers if n.name not in values]:
            measured = ", ".join(values) or "no numbers"
            raise ValueError(
                f"Expected a number {missing[0]!r} with the update, got {measured}: measure it on "
                "each client, or leave it out of the numbers."
            )
        if unknown := [n.name for n in self.numbers if math.isnan(values[n.name])]:
            raise ValueError(
                f"Expected a number {unknown[0]!r} with the update, got nan: drop or repair this "
                "client's data."
            )
        scalars = [n.share * n.scaled(float(values[n.name])) for n in self.numbers]
        # theory/alongside.md, Proposition 1. The mechanism clips again, so rounding costs nothing.
        clipped = clip_to_norm(np.asarray(update), self.clip_norm)
        scaled = clipped * np.float64(self._left * self._weight(values))
        return np.concatenate([scaled, self.clip_norm * np.array(scalars)]).astype(np.float32)

    def separate(self, mean: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """Separate a decoded mean, on the server, into the update's mean and the numbers' means.

        Args:
            mean: (d + extra,) float32, decoded.

        Returns:
            The mean of the clipped updates, (d,) float32, weighted if they are; and the mean of
            each number over the cohort, in its own units. These are estimates, which noise may move
            beyond the bounds.
        """
        end = len(mean) - self.extra
        shares = mean[end:].astype(np.float64) / self.clip_norm
        numbers = {
            n.name: n.mean(float(x) / n.share) for n, x in zip(self.numbers, shares, strict=True)
        }
        scale = 1 / self._left
        if self.weight is not None:
            # theory/alongside.md, Proposition 3: a function of what was released.
            scale /= max(self._weight(numbers), MIN_MEAN_WEIGHT)
        return (mean[:end] * np.float64(scale)).astype(np.float32), numbers

    def deviation(self, name: str, coordinate: float) -> float:
        """Return the noise of a number's mean, as a standard deviation in the number's units.

        Args:
            name: of the number.
            coordinate: standard deviation of a coordinate of the mechanism's decoded mean.
        """
        (number,) = (each for each in self.numbers if each.name == name)
        # theory/alongside.md, Proposition 2.
        return coordinate * number.half / (number.share * self.clip_norm)

    def _weight(self, values: Mapping[str, float]) -> float:
        # In [0, 1]; given means instead of one client's values, the mean weight.
        if self.weight is None:
            return 1.0
        (high,) = (number.high for number in self.numbers if number.name == self.weight)
        return min(max(values[self.weight] / high, 0.0), 1.0)

    @property
    def _left(self) -> float:
        # The part of a norm of 1 that remains for the update.
        return math.sqrt(1 - sum(number.share**2 for number in self.numbers))
