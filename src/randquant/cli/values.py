"""Readers for values on the command line: channels, lists and files of numbers."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from randquant.mechanisms.registry import channel_mechanisms


def channel(text: str) -> tuple[str, dict[str, Any]]:
    """Read a channel's name and parameters from "NAME key=value key=value".

    Example:
        >>> channel("erm clip=1 bins=-2,0,2 gamma=0.5")
        ('erm', {'clip': 1.0, 'bins': [-2.0, 0.0, 2.0], 'gamma': 0.5})
    """
    name, *pairs = text.split() or [""]
    channels = channel_mechanisms()
    if name not in channels:
        known = ", ".join(channels)
        raise argparse.ArgumentTypeError(f"expected one of {known} and key=value pairs: {text!r}")
    accepted = channels[name].signature
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in accepted or key in given:
            wanted = ", ".join(accepted)
            raise argparse.ArgumentTypeError(f"expected {name} with {wanted} once each: {pair!r}")
        try:
            given[key] = reader(accepted[key])(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number: {pair!r}") from None
    return name, given


def whole_numbers(text: str) -> list[int]:
    """Read 1,2,3."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """Read a,b,c."""
    return [part.strip() for part in text.split(",")]


def numbers(text: str) -> list[float]:
    """Read 0.5,1,2, or @FILE with numbers in it."""
    if text.startswith("@"):
        try:
            text = ",".join(Path(text[1:]).read_text(encoding="utf-8").replace(",", " ").split())
        except (OSError, UnicodeDecodeError) as error:
            raise argparse.ArgumentTypeError(f"cannot read numbers from a file: {error}") from None
    return [float(part) for part in text.split(",")]


def reader(parameter: inspect.Parameter) -> Callable[[str], Any]:
    """Return the reader for a parameter, whose annotation may be a class or its name."""
    kinds = {
        "int | Sequence[float] | np.ndarray": number_or_numbers,
        "int": int,
        "float": float,
        "str": str,
        "_empty": number,
    }
    name = getattr(parameter.annotation, "__name__", parameter.annotation).removesuffix(" | None")
    return kinds.get(name, numbers)


def number_or_numbers(text: str) -> int | list[float]:
    """Read a count, or a list of numbers."""
    return int(text) if text.isdigit() else numbers(text)


def number(text: str) -> int | float:
    """Read a whole number as an int, any other number as a float."""
    return int(text) if text.lstrip("+-").isdigit() else float(text)
