"""Tables of ranks, and the pair of laws that no two updates ranked by one table can exceed.

A rank mechanism draws a rank from one table and sends which index has it: two updates give two
orders of the same weights. Derivation: `docs/theory/rank.md`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import Neighboring

LARGEST_TOTAL = 2**62
"""Most that weights may sum to: words of 64 bits are compared with it."""

LARGEST_SIZE = 2**29
"""Most coordinates that are ranked."""

Pair = tuple[np.ndarray, np.ndarray]
"""Two rows of Python integers with the same sum."""


@dataclass(frozen=True, slots=True)
class RankTable:
    """The weights of ranks, the first of which is the best: levels of equal weights.

    Args:
        counts: how many ranks each level has, from the best on; in all an even number, two of each
            coordinate.
        weights: the weight of each rank of a level, in units of 1/`total`; positive and falling.

    Guarantees:
        Of all pairs of orders of the weights, and all mixtures of orders, none has a larger
        hockey-stick or Rényi divergence than `reversal`, at any epsilon and any order.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> table = RankTable((1, 3), (5, 1))
        >>> table.size, table.total, [[int(w) for w in row] for row in table.reversal]
        (2, 8, [[5, 2, 1], [1, 2, 5]])
    """

    counts: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("counts", "weights"):
            numbers = validate.listed(name, getattr(self, name))
            whole = tuple(validate.whole(f"each of {name}", n, low=1) for n in numbers)
            object.__setattr__(self, name, whole)
        if len(self.counts) != len(self.weights) or not self.counts:
            raise ValueError(
                f"Expected a count and a weight of each level, got {len(self.counts)} counts and "
                f"{len(self.weights)} weights."
            )
        # theory/rank.md, Proposition 1: the worst pair is the reversal of a sorted table only.
        if any(low >= high for high, low in itertools.pairwise(self.weights)):
            raise ValueError(
                f"Expected falling weights, got {validate.shown(self.weights)}: sort the table, "
                "best rank first."
            )
        if sum(self.counts) % 2 or sum(self.counts) > 2 * LARGEST_SIZE:
            raise ValueError(
                f"Expected an even number of ranks, at most 2**30, got {sum(self.counts)}: each "
                "coordinate has two."
            )
        if self.total > LARGEST_TOTAL:
            raise ValueError(f"Expected weights that sum to 2**62 or less, got {self.total}.")

    @property
    def size(self) -> int:
        """How many coordinates are ranked, with both signs."""
        # A rank of each coordinate and of its negative.
        return sum(self.counts) // 2

    @property
    def total(self) -> int:
        """What the weights of all ranks sum to: the denominator of their probabilities."""
        return sum(count * weight for count, weight in zip(self.counts, self.weights, strict=True))

    @property
    def starts(self) -> tuple[int, ...]:
        """The first rank, from 0 on, of each level, and the number of ranks."""
        starts = [0]
        for count in self.counts:
            starts.append(starts[-1] + count)
        return tuple(starts)

    @property
    def reversal(self) -> Pair:
        """The table against its reversal, equal quotients put together."""
        ranks = 2 * self.size
        # theory/rank.md, Proposition 1: rank r of one update may be rank 2D - 1 - r of the other.
        cuts = sorted({*self.starts, *(ranks - start for start in self.starts)})
        rows = []
        for first, end in itertools.pairwise(cuts):
            weight, mirrored = self._weight(first), self._weight(ranks - end)
            rows.append(((end - first) * weight, (end - first) * mirrored))
        return _pair(rows)

    @property
    def absence(self) -> Pair:
        """The table against a uniform rank, which is what a zero update sends."""
        ranks = 2 * self.size
        # theory/rank.md, Proposition 3: both rows in units of 1 / (total · ranks).
        levels = zip(self.counts, self.weights, strict=True)
        return _pair([(count * weight * ranks, count * self.total) for count, weight in levels])

    def pairs(self, neighboring: Neighboring) -> tuple[Pair, ...]:
        """The pairs that dominate neighbours, one for each order of the two worlds."""
        if neighboring == "replace_one":
            # theory/rank.md, Proposition 1: exchanging the rows relabels them.
            return (self.reversal,)
        # theory/rank.md, Proposition 3: of these two neither exceeds the other everywhere.
        there, absent = self.absence
        return (there, absent), (absent, there)

    def _weight(self, rank: int) -> int:
        level = next(at for at, start in enumerate(self.starts[1:]) if rank < start)
        return self.weights[level]


def _pair(rows: list[tuple[int, int]]) -> Pair:
    first, second = (np.array(row, dtype=object) for row in zip(*rows, strict=True))
    return first, second
