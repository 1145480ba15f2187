"""The protocol of queries, and the estimates of their answers.

A query reads columns, and encodes each record as integers. A block encodes the part of a record
that a query needs as integers of a public amplitude, so that the distance of any two records, a
missing one included, is known. An estimate has its errors: of the noise, of sampling, and an
interval for both. Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_down, round_up
from randquant.channels.keys import Key
from randquant.privacy.guarantee import Interval

Columns = Mapping[str, np.ndarray]
"""Columns of records by name, (n,) each; missing values are NaN or None."""

MAX_CELLS = 4096
"""Largest number of cells of one query. Each cell is an integer of at most 4 bytes in each client's
message: twice as many cells would double it to 32 kB."""

MISSING_TYPES = ("NAType", "NaTType")
"""Names of pandas' types for a missing value; pandas itself is not imported."""

DATES = (np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)
"""Types of dates and durations; those of pandas derive from Python's."""

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
    """A question about records that is answered from a noisy sum of one block.

    A new kind also needs an entry in `surveys.KINDS`, a new block one in `rounds.statement`.
    """

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
        TypeError: a value is a date or a duration, which can be written in many ways.
    """
    index = {_typed(category): k for k, category in enumerate(known)}
    # tolist() would turn a duration of NumPy into a number of nanoseconds.
    plain = values if values.dtype.kind in "mM" else values.tolist()
    return np.array([_category_index(value, index, what) for value in plain], dtype=np.int64)


def _category_index(value: Any, index: Mapping[Any, int], what: str) -> int:
    if isinstance(value, DATES) and not is_missing(value):
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


Norm = Literal["l1", "l2"]
"""The norm in which noise is calibrated: Laplace noise in L1, all other noise in L2."""


class Block(Protocol):
    """Integers of one or more queries; records come as the rows of an array."""

    @property
    def size(self) -> int:
        """Number of integers per record."""
        ...

    def distance(self, amplitude: int, norm: Norm) -> int:
        """Bound the distance of any two records: squared in L2, plain in L1."""
        ...

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Add up the integers of all rows, (size,) int64."""
        ...


@dataclass(frozen=True, slots=True)
class Cells:
    """One-hot encoding of a cell: its integer is the amplitude, all others are zero.

    Rows are (n,) int64, the index of the cell; `count` for a missing record, which has an integer
    of its own.
    """

    count: int

    @property
    def size(self) -> int:
        return self.count + 1

    def distance(self, amplitude: int, norm: Norm) -> int:
        # Two cells differ in two integers; missing is one more cell (Proposition 5).
        return 2 * amplitude**2 if norm == "l2" else 2 * amplitude

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        return amplitude * np.bincount(rows, minlength=self.size).astype(np.int64)

    def counts(
        self, totals: np.ndarray, records: int, amplitude: int, norm: Norm
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimate the counts of all cells, and how they depend on the noise.

        Returns:
            counts: (size,) float64, which add up to the number of records.
            mixing: (size, size), the matrix that maps the noise of the totals to that of counts.
        """
        # theory/statistics.md, Proposition 6: projected on the known number of records.
        plain = totals / amplitude
        mixing = (np.eye(self.size) - 1 / self.size) / amplitude
        return plain + (records - plain.sum()) / self.size, mixing


@dataclass(frozen=True, slots=True)
class Tree:
    """Haar wavelet encoding of a cell, for cells in order: the path to it in a binary tree.

    At each inner node on the path from the root to the cell the integer is the amplitude, negative
    if the path turns right. A cumulative count then has the noise of a few nodes only (Xiao, Wang
    and Gehrke 2010). Rows are as for `Cells`.
    """

    count: int

    @property
    def size(self) -> int:
        # count - 1 inner nodes, and one integer for a missing record.
        return self.count

    def distance(self, amplitude: int, norm: Norm) -> int:
        # Two cells are farthest apart if their paths part at the root: they differ by twice the
        # amplitude there, and by the amplitude at each node below (Proposition 5).
        below = sum(_depths(self.count))
        return (4 + below) * amplitude**2 if norm == "l2" else (2 + below) * amplitude

    def _missing(self, amplitude: int, norm: Norm) -> int:
        # The largest integer that leaves the distance of two records unchanged: the larger it is,
        # the smaller the relative noise of the number of missing records.
        deepest, distance = 1 + max(_depths(self.count)), self.distance(amplitude, norm)
        if norm == "l2":
            return math.isqrt(distance - deepest * amplitude**2)
        return distance - deepest * amplitude

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        counts = np.bincount(rows, minlength=self.count + 1).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(counts[:-1])])
        starts, middles, ends = _nodes(self.count)
        # Records in the left half of each node minus those in its right half.
        differences = 2 * before[middles] - before[starts] - before[ends]
        return np.append(amplitude * differences, self._missing(amplitude, norm) * counts[-1])

    def counts(
        self, totals: np.ndarray, records: int, amplitude: int, norm: Norm
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimate counts as `Cells.counts` does, from the root down by sum and difference."""
        # theory/statistics.md, Proposition 6: the root's sum is the known number of records.
        steps = np.append(np.full(self.size - 1, amplitude), self._missing(amplitude, norm))
        mixing = _cell_weights(self.count) / steps
        constant = np.append(-records * _cell_weights(self.count)[:-1, -1], 0.0)
        return constant + mixing @ totals, mixing


@functools.lru_cache(maxsize=4)
def _cell_weights(count: int) -> np.ndarray:
    """Weights of the differences at inner nodes, then of the missing records, in each cell.

    (count + 1, count) float64: a row per cell, the last one of missing records.
    """
    weights = np.zeros((count + 1, count))
    weights[:-1, -1], weights[-1, -1] = -1.0, 1.0
    for node, (start, middle, end) in enumerate(zip(*_nodes(count), strict=True)):
        # Each half is (sum ± difference) / 2 of its parent.
        weights[start:end] /= 2
        weights[start:middle, node] += 0.5
        weights[middle:end, node] -= 0.5
    return weights


@functools.lru_cache(maxsize=64)
def _nodes(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # Start, middle and end of every inner node's cells, parents before their children.
    nodes, queue = [], [(0, count)]
    while queue:
        start, end = queue.pop(0)
        if end - start > 1:
            middle = (start + end + 1) // 2
            nodes.append((start, middle, end))
            queue += [(start, middle), (middle, end)]
    starts, middles, ends = np.array(nodes).reshape(-1, 3).T
    return starts, middles, ends


def _depths(count: int) -> tuple[int, int]:
    # The most inner nodes on a path within the root's left and right subtree.
    left = (count + 1) // 2
    return (left - 1).bit_length(), (count - left - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Products:
    """Encoding of numbers in [-1, 1] with their products and squares.

    Rows are (n, columns) float64, NaN throughout for a missing record. The integers are the
    numbers, then the products of each pair of different columns, then the squares less 1/2, then
    one for a missing record.
    """

    columns: int

    @property
    def size(self) -> int:
        return 2 * self.columns + self._pairs + 1

    @property
    def _pairs(self) -> int:
        return self.columns * (self.columns - 1) // 2

    def scales(self, amplitude: int, norm: Norm) -> np.ndarray:
        """Factor from each real number to its integer, (size,) float64."""
        p = self.columns
        # theory/statistics.md, Proposition 5: the largest factors of squares and of the missing
        # record that leave the distance of two records unchanged.
        if norm == "l1":
            square, missing = 0.5, 0.75 * p
        elif p == 1:
            square, missing = 1.6, 1.5
        else:
            square, missing = math.sqrt(0.5), math.sqrt(1 + 1.375 * p + p * p / 2)
        scales = np.full(self.size, float(amplitude))
        scales[p + self._pairs : -1] = square * amplitude
        scales[-1] = max(math.floor(missing * amplitude), 1)
        return scales

    def distance(self, amplitude: int, norm: Norm) -> int:
        """Bound the distance of two rounded records: (1 + columns) · amplitude before rounding."""
        # theory/statistics.md, Proposition 5.
        p, integers = self.columns, self.size - 1
        # Rounding moves each integer of either record by at most 1, and float64 by less than 0.001.
        if norm == "l2":
            return math.ceil(((1 + p) * amplitude + 2.002 * math.sqrt(integers)) ** 2)
        multiple = 2 if p == 1 else (p + 1) ** 2 // 4 * 2 + p / 2
        return math.ceil(multiple * amplitude + 2.002 * integers)

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Round each integer of each row at random, and add up."""
        scales = self.scales(amplitude, norm)
        missing = np.isnan(rows).any(axis=1)
        x, total = rows[~missing], np.zeros(self.size, np.int64)
        first, second = np.triu_indices(self.columns, 1)
        total[-1] = int(scales[-1]) * int(missing.sum())
        for start in range(0, len(x), CHUNK_SIZE):
            part = x[start : start + CHUNK_SIZE]
            products = part[:, first] * part[:, second]
            exact = np.hstack([part, products, part**2 - 0.5]) * scales[:-1]
            floors = np.floor(exact)
            # Each record is rounded with random words of its own: given all words, exchanging one
            # record changes its own vector only (Proposition 1).
            words = key.fold_in(start).words(exact.size).reshape(exact.shape)
            up = words < (exact - floors) * 2.0**64
            total[:-1] += (floors.astype(np.int64) + up).sum(axis=0)
        return total


CHUNK_SIZE = 1 << 16
"""Rows that are encoded at once, which bounds memory; each chunk has random words of its own, so
another value draws other roundings from the same key."""


# Estimates with their errors.

NORMAL_HALF_WIDTH = 2.05
"""Half width of intervals, in standard deviations of normal noise: it holds 96 % of a normal law.
The 1 % above 95 % is a reserve for the error of the normal approximation; 1.96 leaves none."""

LAPLACE_HALF_WIDTH = 2.28
"""Half width of intervals, in standard deviations of Laplace noise, -log(0.04) / sqrt(2). Sums of
such noise are closer to normal, so that their intervals hold more than 96 %."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number, estimated from noisy sums.

    Attributes:
        estimate: the number.
        noise_error: its standard deviation because of the noise.
        sampling_error: its standard deviation because the records are a sample.
        standard_error: of both together.
        interval: contains the population's value in at least 95 of 100 tables, according to
            simulations; the whole possible range if the noise hides everything.
        among_records: the interval for the value of these very records, of the noise alone.
    """

    estimate: float
    noise_error: float
    sampling_error: float
    interval: Interval
    among_records: Interval

    @property
    def standard_error(self) -> float:
        return math.hypot(self.noise_error, self.sampling_error)

    def __str__(self) -> str:
        return f"{self.estimate:.4g} ({ends(self.interval)})"


def ends(interval: Interval) -> str:
    """Write both ends of an interval, rounded outward.

    Example:
        >>> ends(Interval(0.12346, 0.12341 + 1)), ends(Interval(-math.inf, 0.0))
        ('0.1234 to 1.124', '-∞ to 0')
    """
    lower, upper = interval.lower, interval.upper
    low = round_down(lower, 4) if math.isfinite(lower) else "-∞"
    return f"{low} to {round_up(upper, 4) if math.isfinite(upper) else '∞'}"


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Mapping[str, Estimate]):
    """The answer to one query: estimates by their labels, the most important one first.

    Attributes:
        estimates: by label.
        estimate, interval: of the first label.
        places: (k,) where a curve's estimates lie, such as times; None if it is not a curve.
        unit: of all estimates: `records`, `values` of the column, or `probability`; None if they
            have different units and cannot be compared.
    """

    estimates: dict[str, Estimate]
    places: tuple[float, ...] | None = None
    unit: Literal["records", "values", "probability"] | None = None

    @property
    def estimate(self) -> float:
        return self._first.estimate

    @property
    def interval(self) -> Interval:
        return self._first.interval

    @property
    def _first(self) -> Estimate:
        return next(iter(self.estimates.values()))

    def __getitem__(self, label: str) -> Estimate:
        return self.estimates[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)


@dataclass(frozen=True, slots=True)
class SumNoise:
    """The noise of a table's totals.

    Attributes:
        deviation: standard deviation of each total's noise, in steps.
        tail: half width of an interval in such deviations, for normal or Laplace noise.
    """

    deviation: float
    tail: float


def smooth(
    estimate: float,
    noise_error: float,
    sampling_error: float,
    noise: SumNoise,
    low: float = -math.inf,
    high: float = math.inf,
) -> Estimate:
    """Make an estimate with symmetric intervals, cut to the possible range from low to high.

    Example:
        >>> smooth(0.9, 0.1, 0.1, SumNoise(1.0, NORMAL_HALF_WIDTH), high=1.0).interval.upper
        1.0
    """
    noise_half = noise.tail * noise_error
    # Noise and sampling are independent, so that their half widths, each of its own law, add up
    # squared.
    full_half = math.hypot(noise_half, NORMAL_HALF_WIDTH * sampling_error)
    ends = [Interval(_within(estimate - half, low, high), _within(estimate + half, low, high))
            for half in (full_half, noise_half)]  # fmt: skip
    return Estimate(_within(estimate, low, high), noise_error, sampling_error, *ends)


def ratio(
    numerator: float,
    denominator: float,
    squares: tuple[float, float, float],
    low: float,
    high: float,
) -> Interval:
    """Return Fieller's interval of a ratio.

    It holds all t with (numerator - t · denominator)^2 <= a + b·t + c·t^2: also right if the noise
    is as large as the denominator, where the ratio is far from normal.

    Args:
        numerator, denominator: noisy; the latter is a number of records, unknown if below a half.
        squares: a, b, c: the largest likely square of numerator - t · denominator at t.
        low, high: the smallest and the largest possible ratio, which the result is cut to, and
            which it is if the denominator may be zero.

    Example:
        >>> ratio(1.0, 2.0, (0.25, 0.0, 0.0), -1.0, 1.0)
        Interval(lower=0.25, upper=0.75)
    """
    a, b, c = squares
    # The inequality for t is q t^2 - 2 h t + r <= 0: an interval only if q > 0.
    q, h, r = denominator**2 - c, numerator * denominator + b / 2, numerator**2 - a
    discriminant = h * h - q * r
    if q <= 0 or denominator < 0.5 or discriminant < 0:
        return Interval(low, high)
    ends = ((h - math.sqrt(discriminant)) / q, (h + math.sqrt(discriminant)) / q)
    return Interval(*(_within(end, low, high) for end in ends))


def proportion(count: float, records: float, noise_error: float, noise: SumNoise) -> Interval:
    """Return Wilson's interval of a probability, times `records`, with noise on the count."""
    # (|count - records·p| - 1/2)^2 <= z^2 records·p(1 - p) + tail^2 noise^2: the half is the usual
    # continuity correction, since counts are whole numbers.
    z, n = NORMAL_HALF_WIDTH**2, records
    squares = ((noise.tail * noise_error) ** 2, z * n, -z * n)
    shifted = (_within(count + half, 0.0, n) for half in (-0.5, 0.5))
    lower, upper = (ratio(each, n, squares, 0.0, 1.0) for each in shifted)
    return Interval(lower.lower * n, upper.upper * n)


def _within(value: float, low: float, high: float) -> float:
    return float(min(max(value, low), high))


def count_estimate(
    noisy_count: float, noise_error: float, records: int, noise: SumNoise
) -> Estimate:
    """Estimate how many of a public number of records have a property."""
    count = min(max(noisy_count, 0.0), float(records))
    share = count / records if records else 0.0
    sampling = math.sqrt(records * share * (1 - share))
    noise_only = smooth(count, noise_error, 0.0, noise, 0.0, records).among_records
    both = proportion(noisy_count, records, noise_error, noise)
    return Estimate(count, noise_error, sampling, both, noise_only)
