"""Clipping to a norm: whole updates, sums of vectors, and updates joined with bounded numbers.

The bound also holds after rounding to float32. Scaling and shortening come before it, so that no
guarantee relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate

ALONG_WEIGHTS_LOSS_SCALE, WHOLE_UPDATE_LOSS_SCALE = 2.0, 6.0
"""An update is shortened where a client's loss, as a share of that of a guess, is below 1/2 (along
the weights) and below 1/6 (as a whole, where no noise hides it). Twice as large a factor halves
these shares, so that fewer updates are shortened."""


def clip_to_norm(update: np.ndarray, clip_norm: float) -> np.ndarray:
    """Scale an update down to an L2 norm of at most clip_norm.

    Args:
        update: (d,) floats.
        clip_norm: threshold, within [1e-30, 1e30].

    Returns:
        (d,) float32 of norm at most clip_norm. To leave room for rounding, an update is scaled to
        (1 - 2**-22) · clip_norm - d · 2**-150 if its norm exceeds that.

    Raises:
        ValueError: the update holds a NaN or an infinity, or has more than 2**30 coordinates.

    Example:
        >>> clip_to_norm(np.array([3.0, 4.0]), 1.0).round(3)
        array([0.6, 0.8], dtype=float32)
    """
    limit = _room(clip_norm, update.size)
    exact = finite(update).astype(np.float64)
    largest = float(np.abs(exact).max(initial=0.0))
    if largest == 0:
        return exact.astype(np.float32)
    exact /= largest  # so that no square overflows or underflows
    length = math.sqrt(float(exact @ exact))
    return (exact * min(largest, limit / length)).astype(np.float32)


def scale_to_norm(update: np.ndarray, length: float) -> np.ndarray:
    """Scale an update, long or short, to an L2 norm, up to rounding; zeros stay zeros.

    Args:
        update: (d,) floats.
        length: of the result.

    Raises:
        ValueError: the update holds a NaN or an infinity.

    Example:
        >>> scale_to_norm(np.float32([3e-40, 4e-40]), 1.0).round(3)
        array([0.6, 0.8], dtype=float32)
    """
    exact = finite(update).astype(np.float64)  # no square of a float32 underflows in it
    norm = math.sqrt(float(exact @ exact))
    return (exact * (length / norm) if norm else exact).astype(np.float32)


def shorten(update: np.ndarray, weights: np.ndarray, share: float, noise: float) -> np.ndarray:
    """Shorten the update of a classifier that is right already, above all along the weights.

    With f the share and x the weights, an update u becomes

        (1 - (1 - min(1, 6 f)) / (1 + noise)) (u - (1 - min(1, 2 f)) <u, x> x / |x|^2)

    so that clients whose classes are wrong can hold up the growth of the weights.

    Args:
        update: (d,) float32.
        weights: (d,), which the update was computed at.
        share: the client's loss at these weights, as a share of the loss of a model that gives all
            classes the same probability; NaN or a negative number, which no cross entropy is,
            shortens nothing.
        noise: squared length of the noise in the mean update, for updates of length 1.

    Guarantees:
        No update becomes longer, up to rounding.

    References:
        `docs/theory/untuned.md`, Proposition 2.

    Example:
        >>> update, weights = np.float32([0.6, 0.8]), np.float32([1, 0])
        >>> shorten(update, weights, 0.25, 0.0), shorten(update, weights, 0.1, 0.0).round(3)
        (array([0.3, 0.8], dtype=float32), array([0.072, 0.48 ], dtype=float32))
    """
    share = float(min(1.0, share)) if share >= 0 else 1.0  # after min: an int may have no float
    along_weights = 1 - min(1.0, ALONG_WEIGHTS_LOSS_SCALE * share)
    whole_update = 1 - min(1.0, WHOLE_UPDATE_LOSS_SCALE * share)
    exact, model = update.astype(np.float64), weights.astype(np.float64)
    square = float(model @ model)
    projection = float(exact @ model) / square if square else 0.0
    shortened = exact - along_weights * projection * model
    return ((1 - whole_update / (1 + noise)) * shortened).astype(np.float32)


class ClippedSum:
    """The sum of many vectors, each scaled down to an L2 norm of at most clip_norm.

    Args:
        size: coordinates d of each vector, at most 2**30.
        clip_norm: threshold, within [1e-30, 1e30].

    Guarantees:
        For n <= 2**25 vectors the error of the sum has an L2 norm of at most 2**-22 · clip_norm
        (`docs/theory/vector.md`, Proposition 16).

    Example:
        >>> total = ClippedSum(2, clip_norm=1.0)
        >>> total.add(np.float32([3, 4]))
        >>> total.add(np.float32([0, 0.5]))
        >>> total.value().round(3)
        array([0.6, 1.3])
    """

    BLOCK = 32
    """Vectors that are added one after the other before their sum is added with its error. With
    twice as many the error doubles; half as many cost a fifth more time."""

    def __init__(self, size: int, clip_norm: float) -> None:
        self._limit = _room(clip_norm, size)
        # The whole sum is total + lost + block.
        self._total, self._lost, self._block = np.zeros(size), np.zeros(size), np.zeros(size)
        self._waiting = 0

    def add(self, row: np.ndarray) -> None:
        """Add a vector (d,) float32; ValueError if it holds a NaN or an infinity."""
        exact = row.astype(np.float64)  # so that no square overflows or underflows
        length = math.sqrt(float(exact @ exact))
        if not math.isfinite(length):
            finite(row)  # says which coordinate
        exact *= self._limit / max(self._limit, length)
        self._block += exact
        self._waiting += 1
        if self._waiting == self.BLOCK:
            self._close_block()

    def value(self) -> np.ndarray:
        """Return the sum, (d,) float64."""
        self._close_block()
        return self._total + self._lost

    def _close_block(self) -> None:
        # Knuth's exact sum: what rounding takes from total + block is kept in `lost`.
        total = self._total + self._block
        added = total - self._total
        self._lost += (self._total - (total - added)) + (self._block - added)
        self._total, self._waiting = total, 0
        self._block[:] = 0


def _room(clip_norm: float, size: int) -> float:
    """Return the largest norm from which rounding `size` coordinates to float32 keeps to clip_norm.

    Summing d <= 2**30 positive terms in float64 has a relative error of at most
    d · 2**-53 <= 2**-23. Rounding to float32 changes a coordinate by a factor of at most
    1 + 2**-24, or by 2**-150 if it is a denormal: by d · 2**-150 <= 2**-120 in all. Everything else
    (division, scale, products) is within 16 units of 2**-53. The product
    (1 - 2**-22)(1 + 2**-23)(1 + 2**-24) and those units stay below 1 - 2**-25. What is left covers
    a rotation of the whole update in float64, which is not clipped again: 30 steps of sums at most,
    a root and a division, each within 2**-53, make it longer by less than 2**-47 of its norm.
    """
    if size > 2**30:
        raise ValueError(
            f"Expected at most 2**30 coordinates, got {size}: beyond, rounding may exceed the norm."
        )
    return clip_norm * (1 - 2.0**-22) - size * 2.0**-150


def finite(update: np.ndarray) -> np.ndarray:
    """Return the update, or raise a ValueError that names its first NaN or infinity."""
    bad = np.flatnonzero(~np.isfinite(update))
    if bad.size:
        raise ValueError(
            f"Expected finite values to send, got {update[bad[0]]} at index [{bad[0]}]: "
            "drop or repair this update."
        )
    return update


# Bounded numbers that a client sends with its update: one vector, one release, one sum.

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
