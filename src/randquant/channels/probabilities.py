"""From probabilities to integer weights: how a mechanism's table becomes a channel."""

from __future__ import annotations

import numpy as np

from randquant.channels.channel import MAX_DENOMINATOR, Channel

EVEN = 2.0**-20
"""Share of all codes that `with_even` draws evenly, if nothing else is asked for."""


def with_even(probabilities: np.ndarray, share: float = EVEN) -> np.ndarray:
    """Rows of which a share is spread evenly over all codes.

    With EVEN every weight over 2**62 is close to its probability, relatively, however rare the code
    was.

    Args:
        probabilities: (V, m), each row sums to 1.

    Example:
        >>> rows = with_even(np.array([[1.0, 0.0]]))
        >>> float(rows[0, 1]) == EVEN / 2
        True
    """
    return (1 - share) * probabilities + share / probabilities.shape[-1]


def from_probabilities(
    inputs: np.ndarray, values: np.ndarray, probabilities: np.ndarray
) -> Channel:
    """Compile a table of probabilities into a channel over 2**62.

    Args:
        inputs: (V,) float64, see Channel.
        values: (m,) float64.
        probabilities: (V, m) float64 >= 0; each row sums to 1 within 1e-12.

    Guarantees:
        A probability above zero keeps a weight of at least one unit: rounding never makes a
        code impossible. Each weight is within one unit (2**-62) of its probability, except that of
        the most likely code of a row, which absorbs the row's rounding.

    Raises:
        ValueError: a probability is negative or not finite, or a row does not sum to 1.
    """
    table = np.asarray(probabilities, dtype=np.float64)
    if not (np.isfinite(table).all() and (table >= 0).all()):
        raise ValueError("Expected probabilities >= 0, got a negative or non-finite one.")
    worst = float(np.abs(table.sum(axis=-1) - 1).max())
    if worst > 1e-12:
        raise ValueError(f"Expected every row of probabilities to sum to 1, one is off by {worst}.")
    # theory/channel.md, Proposition 2: this rounding defines the mechanism; nothing is lost by it.
    weights = (table * float(MAX_DENOMINATOR)).astype(np.int64)
    weights = np.maximum(weights, table > 0)
    for row in weights:
        row[row.argmax()] += MAX_DENOMINATOR - int(row.astype(object).sum())
    return Channel(inputs, values, weights, MAX_DENOMINATOR)
