"""What every query says of itself, and the columns that queries read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from randquant._internal import validate
from randquant.statistics.encodings import Block, Norm
from randquant.statistics.estimate import Answer, SumNoise

Columns = Mapping[str, np.ndarray]
"""Columns of records by name, (n,) each; missing values are NaN or None."""

MOST_CELLS = 4096
"""Most cells of one query."""

MISSING = ("NAType", "NaTType")
"""Kinds of pandas' own marks of a missing value."""

WORDS = {"": math.nan, **dict.fromkeys(("na", "n/a", "nan", "null", "none", "?"), math.nan),
         "true": 1.0, "false": 0.0}  # fmt: skip
"""Texts that stand for a missing number, or for a truth value, in small letters."""

LARGEST = 1e100
"""Largest bound, whose square float64 can still hold."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Noisy sums of one block over all records.

    Attributes:
        values: (size,) int64.
        records: how many records are in them, which is public.
        amplitude: of the block.
        norm: that the block is encoded for.
        noise: of each of the values.
    """

    values: np.ndarray
    records: int
    amplitude: int
    norm: Norm
    noise: SumNoise


class Query(Protocol):
    """A question about records that is answered from a noisy sum of one block."""

    def named(self, name: str, queries: Mapping[str, Query]) -> Query:
        """The query with what its name, and other queries, leave to be filled in."""
        ...

    def block(self) -> Block:
        """What records are encoded as."""
        ...

    def rows(self, columns: Columns) -> np.ndarray:
        """The rows that the block takes; KeyError if a column is missing."""
        ...

    def answer(self, totals: Totals) -> Answer:
        """Estimates and intervals."""
        ...


def numbers(values: np.ndarray, what: str) -> np.ndarray:
    """A column as (n,) float64, NaN where a value is missing.

    Raises:
        TypeError: a value is no number.
    """
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return np.array([_number(each, what) for each in values], dtype=np.float64)


def _number(value: Any, what: str) -> float:
    if is_missing(value):
        return math.nan
    try:
        # float() would leave out a part, or count nanoseconds.
        if np.iscomplexobj(value) or isinstance(value, np.datetime64 | np.timedelta64):
            raise TypeError
        if isinstance(value, str) and (word := value.strip().lower()) in WORDS:
            return WORDS[word]
        return float(value)
    except OverflowError:  # a whole number beyond all floats
        return math.inf if int(value) > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(
            f"Expected numbers in column {what!r}, got {validate.shown(value)}: convert "
            "them, dates and durations to numbers of one unit such as days, or ask for rq.Counts."
        ) from None


def is_missing(value: Any) -> bool:
    """Whether a value is a mark of a missing one: None, pandas' NA, a time that is none."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in MISSING


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map [low, high] to [-1, 1]; what lies beyond is clipped, infinities too."""
    middle, half = (low + high) / 2, (high - low) / 2
    return np.clip((np.clip(values, low, high) - middle) / half, -1.0, 1.0)


def places(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Number of the bin of each value, (n,) int64; beyond the edges the first or the last bin.

    A missing value has the number after the last.
    """
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.where(np.isnan(values), len(edges) - 1, bins).astype(np.int64)


def categories(values: np.ndarray, known: Sequence[Any], what: str) -> np.ndarray:
    """Number of each value's category, (n,) int64; that after the last for all others.

    Texts, truth values and numbers are never the same; numbers are compared exactly.

    Raises:
        TypeError: a value is a date or a duration of NumPy, which has no one way to write it.
    """
    number = {_typed(each): k for k, each in enumerate(known)}
    # A duration of NumPy would become a number of nanoseconds.
    plain = values if values.dtype.kind in "mM" else values.tolist()
    return np.array([_place(each, number, what) for each in plain], dtype=np.int64)


def _place(value: Any, number: Mapping[Any, int], what: str) -> int:
    if isinstance(value, np.datetime64 | np.timedelta64) and not np.isnat(value):
        raise TypeError(
            f"Expected categories in column {what!r}, got {validate.shown(value)}: write dates and "
            "durations as text."
        )
    try:
        return number.get(_typed(value), len(number))
    except TypeError:  # a list, which is no category
        return len(number)


def _typed(value: Any) -> tuple[bool, Any]:
    """A value that equals only what is the same: True is not 1."""
    return isinstance(value, bool | np.bool_), value


def bounds(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Two bounds as numbers; ValueError if they are no interval."""
    why = "give public bounds, chosen without looking at the data"
    low = validate.real(f"{name}'s lower bound", low, low=-LARGEST, high=LARGEST, why=why)
    high = validate.real(f"{name}'s upper bound", high, above=low, high=LARGEST, why=why)
    if high - low < 1e-9 * max(abs(low), abs(high)):
        raise ValueError(
            f"Expected {name}'s bounds to be further apart, got {low!r} and {high!r}: subtract "
            "what the values have in common."
        )
    return low, high


def checked_categories(known: Any) -> tuple[Any, ...]:
    """Categories as a tuple; ValueError if one comes twice or there are too few or many."""
    listed = tuple(
        each.item() if isinstance(each, np.generic) else each
        for each in validate.listed("categories", known)
    )
    for each in listed:
        if not isinstance(each, str | int | bool):
            raise TypeError(
                f"Expected categories of text or whole numbers, got {validate.shown(each)}: cut "
                "other numbers into bins=[...], and write dates as text."
            )
    if (different := len({_typed(each) for each in listed})) < len(listed) or not (
        1 <= len(listed) <= MOST_CELLS
    ):
        raise ValueError(
            f"Expected 1 to {MOST_CELLS} different categories, got {len(listed)} of which "
            f"{different} differ."
        )
    return listed
