"""Mechanisms side by side, privacy against error."""

from randquant.planning.compare.compare import (
    Comparison,
    Entry,
    Measured,
    at_equal_epsilon,
    entry_of,
    of_channels,
)
from randquant.planning.compare.curves import CURVE_EPSILONS, tradeoffs

__all__ = [
    "CURVE_EPSILONS",
    "Comparison",
    "Entry",
    "Measured",
    "at_equal_epsilon",
    "entry_of",
    "of_channels",
    "tradeoffs",
]
