"""The protocol of queries, and the reading of columns: numbers, bins and categories."""

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

MAX_CELLS = 4096
"""Largest number of cells of one query. Each cell is an integer of at most 4 bytes in each client's
message: twice as many cells would double it to 32 kB."""

MISSING_TYPES = ("NAType", "NaTType")
"""Names of pandas' types for a missing value; pandas itself is not imported."""

WORDS = {"": math.nan, **dict.fromkeys(("na", "n/a", "nan", "null", "none", "?"), math.nan),
         "true": 1.0, "false": 0.0}  # fmt: skip
"""Numbers by their words, in lower case: words for a missing number, and truth values."""

MAX_BOUND = 1e100
"""Largest bound of a column; products of two columns' widths stay within float64."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Noisy sums of one block over all records.

    Attributes:
        values: (size,) int64.
        records: number of records in them, which is public.
        amplitude: of the block.
        norm: the norm that the noise is calibrated in.
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
        """Return the query with the fields filled in that follow from its name or from others."""
        ...

    def block(self) -> Block:
        """Return the encoding of its records."""
        ...

    def rows(self, columns: Columns) -> np.ndarray:
        """Return the rows that the block encodes; KeyError if a column is missing."""
        ...

    def answer(self, totals: Totals) -> Answer:
        """Compute estimates and intervals from the noisy sums of the block."""
        ...


def numbers(values: np.ndarray, what: str) -> np.ndarray:
    """Convert a column to (n,) float64, NaN where a value is missing.

    Raises:
        TypeError: a value is not a number.
    """
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    # Value by value: no person's value changes how another person's is read.
    return np.array([_number(value, what) for value in values], dtype=np.float64)


def _number(value: Any, what: str) -> float:
    if is_missing(value):
        return math.nan
    try:
        # float() would drop the imaginary part, or count nanoseconds.
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
    """Return whether a value marks a missing one: None, pandas' NA, NumPy's not-a-time."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return value is None or type(value).__name__ in MISSING_TYPES


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Map [low, high] to [-1, 1]; values beyond it are clipped, infinities too."""
    middle, half = (low + high) / 2, (high - low) / 2
    # Clipped again: the distance of two records is proven for [-1, 1], whatever rounding does.
    return np.clip((np.clip(values, low, high) - middle) / half, -1.0, 1.0)


def places(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the index of each value's bin, (n,) int64; beyond the edges the first or last bin.

    A missing value has the index after the last.
    """
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    return np.where(np.isnan(values), len(edges) - 1, bins).astype(np.int64)


def categories(values: np.ndarray, known: Sequence[Any], what: str) -> np.ndarray:
    """Return the index of each value's category, (n,) int64; the one after the last for others.

    A text never equals a number, nor True the number 1; numbers are compared exactly.

    Raises:
        TypeError: a value is a date or a duration of NumPy, which can be written in many ways.
    """
    index = {_typed(category): k for k, category in enumerate(known)}
    # tolist() would turn a duration of NumPy into a number of nanoseconds.
    plain = values if values.dtype.kind in "mM" else values.tolist()
    return np.array([_category_index(value, index, what) for value in plain], dtype=np.int64)


def _category_index(value: Any, index: Mapping[Any, int], what: str) -> int:
    if isinstance(value, np.datetime64 | np.timedelta64) and not np.isnat(value):
        raise TypeError(
            f"Expected categories in column {what!r}, got {validate.shown(value)}: write dates and "
            "durations as text."
        )
    try:
        return index.get(_typed(value), len(index))
    except TypeError:  # not hashable, such as a list: in no category
        return len(index)


def _typed(value: Any) -> tuple[bool, Any]:
    # In Python True == 1, so truth values get a key of their own.
    return isinstance(value, bool | np.bool_), value


def bounds(name: str, low: Any, high: Any) -> tuple[float, float]:
    """Convert two bounds to numbers; ValueError if they do not span an interval."""
    why = "give public bounds, chosen without looking at the data"
    low = validate.real(f"{name}'s lower bound", low, low=-MAX_BOUND, high=MAX_BOUND, why=why)
    high = validate.real(f"{name}'s upper bound", high, above=low, high=MAX_BOUND, why=why)
    # Closer bounds leave too few digits of float64 for values between them.
    if high - low < 1e-9 * max(abs(low), abs(high)):
        raise ValueError(
            f"Expected {name}'s bounds to be further apart, got {low!r} and {high!r}: subtract "
            "what the values have in common."
        )
    return low, high


def checked_categories(known: Any) -> tuple[Any, ...]:
    """Return categories as a tuple; ValueError if one is repeated or there are too many or none."""
    listed = tuple(
        category.item() if isinstance(category, np.generic) else category
        for category in validate.listed("categories", known)
    )
    for category in listed:
        if not isinstance(category, str | int | bool):
            raise TypeError(
                f"Expected categories of text or whole numbers, got {validate.shown(category)}: "
                "cut other numbers into bins=[...], and write dates as text."
            )
    if (different := len({_typed(category) for category in listed})) < len(listed) or not (
        1 <= len(listed) <= MAX_CELLS
    ):
        raise ValueError(
            f"Expected 1 to {MAX_CELLS} different categories, got {len(listed)} of which "
            f"{different} differ."
        )
    return listed
