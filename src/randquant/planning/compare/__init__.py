"""Mechanisms side by side, privacy against error."""

from randquant.planning.compare.compare import (
    Comparison,
    Entry,
    Measured,
    as_json,
    as_text,
    at_equal_epsilon,
    caption,
    entry_of,
    notes,
    of_channels,
    rows,
)
from randquant.planning.compare.curves import CURVE_EPSILONS, tradeoffs

__all__ = [
    "CURVE_EPSILONS",
    "Comparison",
    "Entry",
    "Measured",
    "as_json",
    "as_text",
    "at_equal_epsilon",
    "caption",
    "entry_of",
    "notes",
    "of_channels",
    "rows",
    "tradeoffs",
]
