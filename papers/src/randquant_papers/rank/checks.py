"""Checks of arguments, with one sentence for an error."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal

Neighboring = Literal["replace_one", "zero_out"]
"""What an adversary tries to tell apart: another update, or zeros, in place of one client's."""


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a whole number within inclusive bounds as an int, or raise.

    Example:
        >>> whole("size", 3, low=1)
        3
    """
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise TypeError(f"Expected {name} to be a whole number, got {value!r}.")
    number = int(value)
    if number < low or (high is not None and number > high):
        bounds = f">= {low}" if high is None else f">= {low} and <= {high}"
        raise ValueError(f"Expected {name} {bounds}, got {name}={number}.")
    return number


def real(
    name: str, value: Any, low: float = -math.inf, high: float = math.inf, above: float = -math.inf
) -> float:
    """Return a finite number within bounds as a float, or raise.

    Args:
        name: of the argument.
        value: the argument.
        low, high: inclusive bounds.
        above: strict bound.

    Example:
        >>> real("order", 2, above=1)
        2.0
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise TypeError(f"Expected {name} to be a number, got {value!r}.")
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high and number > above):
        stated = (("> ", above), (">= ", low), ("<= ", high))
        bounds = " and ".join(f"{sign}{end:g}" for sign, end in stated if math.isfinite(end))
        raise ValueError(f"Expected {name} {bounds}, got {name}={number:g}.")
    return number


def relation(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a neighbouring relation."""
    if value not in ("replace_one", "zero_out"):
        raise ValueError(f"Expected {name} to be replace_one or zero_out, got {value!r}.")
