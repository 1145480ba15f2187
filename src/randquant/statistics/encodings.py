"""How one record becomes a few integers, and how far two records can be apart.

A block encodes what some queries ask as integers of a public amplitude, so that the distance of any
two records, a missing one included, is known exactly. Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from randquant.channels.keys import Key

Norm = Literal["l1", "l2"]
"""The norm that noise is calibrated in: Laplace noise in L1, the others in L2."""


class Block(Protocol):
    """Integers of one or more queries; records come as the rows of an array."""

    @property
    def size(self) -> int:
        """How many integers a record becomes."""
        ...

    def distance(self, amplitude: int, norm: Norm) -> int:
        """Bound the distance of any two records: squared in L2, plain in L1."""
        ...

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Add up the integers of all rows, (size,) int64."""
        ...


@dataclass(frozen=True, slots=True)
class Cells:
    """One of several cells, or none: that cell's integer is the amplitude, the others are zero.

    Rows are (n,) int64, the number of the cell; `count` for none.
    """

    count: int

    @property
    def size(self) -> int:
        """A number for each cell, and one for none."""
        return self.count + 1

    def distance(self, amplitude: int, norm: Norm) -> int:
        """Two cells differ in two numbers."""
        return 2 * amplitude**2 if norm == "l2" else 2 * amplitude

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Count, times the amplitude."""
        return amplitude * np.bincount(rows, minlength=self.size).astype(np.int64)

    def counts(
        self, totals: np.ndarray, records: int, amplitude: int, norm: Norm
    ) -> tuple[np.ndarray, np.ndarray]:
        """Estimate all cells' counts, and each with how much of the noise is in it.

        Returns:
            counts: (size,) float64, which add up to the number of records.
            mixing: (size, size), what the noise of the totals is multiplied by.
        """
        # theory/statistics.md, Proposition 6: projected on the known number of records.
        plain = totals / amplitude
        mixing = (np.eye(self.size) - 1 / self.size) / amplitude
        return plain + (records - plain.sum()) / self.size, mixing


@dataclass(frozen=True, slots=True)
class Tree:
    """One of several cells in order, by the halves of halves that it lies in, or none.

    At each inner node on the way to its cell the integer is the amplitude, negative on the right.
    A count of cells from one end is then known with the noise of a few nodes (Xiao, Wang and
    Gehrke 2010). Rows are as for `Cells`.
    """

    count: int

    @property
    def size(self) -> int:
        """A number for each inner node, and one for none."""
        return self.count

    def distance(self, amplitude: int, norm: Norm) -> int:
        """The cells that part at the root, each with its way below."""
        below = sum(_depths(self.count))
        return (4 + below) * amplitude**2 if norm == "l2" else (2 + below) * amplitude

    def _missing(self, amplitude: int, norm: Norm) -> int:
        """The number for none: as large as leaves the distance as it is."""
        deepest, left = 1 + max(_depths(self.count)), self.distance(amplitude, norm)
        if norm == "l2":
            return math.isqrt(left - deepest * amplitude**2)
        return left - deepest * amplitude

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Left minus right at each inner node."""
        counts = np.bincount(rows, minlength=self.count + 1).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(counts[:-1])])
        starts, middles, ends = _nodes(self.count)
        inner = 2 * before[middles] - before[starts] - before[ends]
        return np.append(amplitude * inner, self._missing(amplitude, norm) * counts[-1])

    def counts(
        self, totals: np.ndarray, records: int, amplitude: int, norm: Norm
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Cells.counts`: from the root down, each half is known by its difference."""
        each = np.append(np.full(self.size - 1, amplitude), self._missing(amplitude, norm))
        mixing = _halves(self.count) / each
        known = np.append(-records * _halves(self.count)[:-1, -1], 0.0)
        return known + mixing @ totals, mixing


@functools.lru_cache(maxsize=4)
def _halves(count: int) -> np.ndarray:
    """What cells, then none, are made of: differences at inner nodes, then the number of none."""
    parts = np.zeros((count + 1, count))
    parts[:-1, -1], parts[-1, -1] = -1.0, 1.0
    for node, (start, middle, end) in enumerate(zip(*_nodes(count), strict=True)):
        parts[start:end] /= 2
        parts[start:middle, node] += 0.5
        parts[middle:end, node] -= 0.5
    return parts


@functools.lru_cache(maxsize=64)
def _nodes(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Start, middle and end of every inner node's cells, parents first."""
    found, waiting = [], [(0, count)]
    while waiting:
        start, end = waiting.pop(0)
        if end - start > 1:
            middle = (start + end + 1) // 2
            found.append((start, middle, end))
            waiting += [(start, middle), (middle, end)]
    starts, middles, ends = np.array(found).reshape(-1, 3).T
    return starts, middles, ends


def _depths(count: int) -> tuple[int, int]:
    """How many inner nodes there are at most on a way below the root's left and right child."""
    left = (count + 1) // 2
    return (left - 1).bit_length(), (count - left - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Products:
    """Numbers within -1 and 1, their products and squares, or none of them.

    Rows are (n, columns) float64, NaN throughout for none. The integers are the numbers, then the
    products of each pair of different columns, then the squares less 1/2, then the one for none.
    """

    columns: int

    @property
    def size(self) -> int:
        """All of them."""
        return 2 * self.columns + self._pairs + 1

    @property
    def _pairs(self) -> int:
        return self.columns * (self.columns - 1) // 2

    def scales(self, amplitude: int, norm: Norm) -> np.ndarray:
        """What each integer is the multiple of, (size,) float64: see `distance`."""
        p = self.columns
        # theory/statistics.md, Proposition 5.
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
        """(1 + columns) · amplitude in L2, and what rounding may add."""
        p, rounded = self.columns, self.size - 1
        # Rounding moves each integer of either record by at most 1, and float64 by less than 0.001.
        if norm == "l2":
            return math.ceil(((1 + p) * amplitude + 2.002 * math.sqrt(rounded)) ** 2)
        apart = 2 if p == 1 else (p + 1) ** 2 // 4 * 2 + p / 2
        return math.ceil(apart * amplitude + 2.002 * rounded)

    def total(self, rows: np.ndarray, amplitude: int, norm: Norm, key: Key) -> np.ndarray:
        """Round each integer of each row at random, and add up."""
        scales = self.scales(amplitude, norm)
        missing = np.isnan(rows).any(axis=1)
        x, total = rows[~missing], np.zeros(self.size, np.int64)
        one, other = np.triu_indices(self.columns, 1)
        total[-1] = int(scales[-1]) * int(missing.sum())
        for start in range(0, len(x), CHUNK):
            part = x[start : start + CHUNK]
            exact = np.hstack([part, part[:, one] * part[:, other], part**2 - 0.5]) * scales[:-1]
            floors = np.floor(exact)
            words = key.fold_in(start).words(exact.size).reshape(exact.shape)
            up = words < (exact - floors) * 2.0**64
            total[:-1] += (floors.astype(np.int64) + up).sum(axis=0)
        return total


CHUNK = 1 << 16
"""Rows that are encoded at once."""
