"""Argument checks whose errors name the expected value, the actual value and the remedy."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import numbers
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

T = TypeVar("T")
P = ParamSpec("P")


def number(value: Any) -> Any:
    """Convert a number of any library to Python's int or float; return other values unchanged.

    Numbers of NumPy and torch compute in their own precision: in float32 an epsilon could be
    rounded below its bound.

    Example:
        >>> number(np.float32(0.1)), number(np.array(7, np.int8)), number(Decimal("0.25"))
        (0.10000000149011612, 7, 0.25)
    """
    # By type and not isinstance: bool is a subclass of int, and NumPy's float64 one of float.
    if type(value) in (int, float):
        return value
    plain = value
    # A duration of NumPy is registered as an integer, and its item may be a count of nanoseconds.
    if getattr(value, "shape", None) == () and "time" not in str(getattr(value, "dtype", "time")):
        plain = value.item()
    # bool is a subclass of int, but True is no number of rounds.
    if isinstance(plain, bool | np.timedelta64):
        return value
    if isinstance(plain, numbers.Integral):
        return int(plain)
    return _double(plain) if isinstance(plain, numbers.Real | Decimal) else value


def convert_numbers(record: Any) -> None:
    """Convert the fields of type float or int of a frozen dataclass to Python's numbers.

    An int in a field of float becomes a float. A value that is not a number stays unchanged, for
    the checks that follow.
    """
    for name, real_numbers in _numeric_fields(type(record)):
        value = getattr(record, name)
        plain = number(value)
        plain = _double(plain) if real_numbers and type(plain) is int else plain
        if plain is not value:
            object.__setattr__(record, name, plain)


@functools.cache
def _numeric_fields(cls: type) -> list[tuple[str, bool]]:
    # Names of fields of float or int, with True for float.
    # Types are texts here, since modules postpone the evaluation of their annotations.
    kinds = [(field, str(field.type).split(" | ")) for field in dataclasses.fields(cls)]
    return [(f.name, "float" in k) for f, k in kinds if f.init and {"float", "int"} & {*k}]


def _double(value: Any) -> float:
    # An integer beyond all floats counts as infinite: checks of bounds then refuse it.
    try:
        return float(value)
    except OverflowError:
        return math.inf


def real(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    low: float | None = None,
    below: float | None = None,
    high: float | None = None,
    why: str = "",
) -> float:
    """Return `value` as a finite float within the stated bounds, or raise.

    Args:
        name: the argument's name in the caller's signature.
        value: the argument.
        above, below: strict bounds.
        low, high: inclusive bounds.
        why: one clause with the reason for the bound.

    Raises:
        TypeError: `value` is not a real number.
        ValueError: `value` is not finite or out of bounds.
    """
    plain = number(value)
    if type(plain) not in (int, float):
        raise TypeError(f"Expected {name} to be a number, got {shown(value)}.")
    double = _double(plain)
    if not math.isfinite(double):
        raise ValueError(f"Expected {name} to be a finite number, got {name}={double}.")
    bounds = [
        (above, f"> {above}", lambda b: double > b),
        (low, f">= {low}", lambda b: double >= b),
        (below, f"< {below}", lambda b: double < b),
        (high, f"<= {high}", lambda b: double <= b),
    ]
    stated = [(text, holds(bound)) for bound, text, holds in bounds if bound is not None]
    if not all(ok for _, ok in stated):
        wanted = " and ".join(text for text, _ in stated)
        raise ValueError(f"Expected {name} {wanted}, got {name}={value}{_because(why)}.")
    return double


def whole(
    name: str, value: Any, *, low: int | None = None, high: int | None = None, why: str = ""
) -> int:
    """Return `value` as an int within inclusive bounds, or raise like `real`."""
    plain = number(value)
    if type(plain) is not int:
        raise TypeError(f"Expected {name} to be a whole number, got {shown(value)}.")
    if (low is not None and plain < low) or (high is not None and plain > high):
        sides = [f">= {low}"] * (low is not None) + [f"<= {high}"] * (high is not None)
        raise ValueError(
            f"Expected {name} {' and '.join(sides)}, got {name}={plain}{_because(why)}."
        )
    return plain


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`, or raise a ValueError that lists them."""
    options = list(options)
    if not isinstance(value, str) or value not in options:
        raise ValueError(
            f"Expected {name} to be one of {', '.join(options)}; "
            f"got {shown(value)}{nearest(value, options)}"
        )
    return value


def flag(name: str, value: Any) -> bool:
    """Return `value` as a bool, or raise TypeError unless it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"Expected {name} to be True or False, got {shown(value)}.")
    return bool(value)


def array(name: str, value: Any) -> np.ndarray:
    """Return `value` as a float64 array, or raise TypeError unless it is an array of numbers."""
    try:
        converted = np.asarray(value)
    except ValueError:
        raise TypeError(
            f"Expected {name} to be one array of numbers, got rows of uneven lengths."
        ) from None
    # NumPy makes whole numbers of more than 64 bits, and decimal numbers, an array of objects.
    python_numbers = converted.dtype.kind == "O" and all(
        isinstance(number(item), int | float) for item in converted.flat
    )
    if converted.dtype.kind not in "biuf" and not python_numbers:
        raise TypeError(f"Expected {name} to be an array of numbers, got {shown(value)}.")
    try:
        return converted.astype(np.float64)
    except OverflowError:
        raise ValueError(f"Expected {name} to be numbers of 64 bits, got larger ones.") from None


def listed(name: str, value: Any) -> list[Any]:
    """Return `value` as a list, or raise TypeError unless it is a sequence other than a text."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"Expected {name} to be a list, got {shown(value)}: put it in [].")
    try:
        return list(value)
    except TypeError:  # an array without sides
        raise TypeError(f"Expected {name} to be a list, got {shown(value)}.") from None


def path(name: str, value: Any) -> Path:
    """Return `value` as a path to a file, or raise TypeError."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise TypeError(f"Expected {name} to be the path of a file, got {shown(value)}.")
    return Path(value)


def answers(name: str, value: Any, wanted: str, *attributes: str) -> None:
    """Raise TypeError unless `value` has these attributes of a protocol.

    Args:
        name: the argument's name.
        value: the argument.
        wanted: the expected kind of value, with the way to get one.
        attributes: of the protocol, enough to distinguish its values from others.
    """
    missing = [attribute for attribute in attributes if not hasattr(value, attribute)]
    if missing:
        # A value that has some of them is a user's own: what it lacks is what they have to add.
        without = f" without {', '.join(missing)}" if len(missing) < len(attributes) else ""
        raise TypeError(f"Expected {name} to be {wanted}, got {shown(value)}{without}.")


def shown(value: Any) -> str:
    """Return a wrong value as part of a sentence, or its type if the text would be long."""
    # A message is one line on a terminal: 60 characters of it at most are the value.
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"a value of type {type(value).__name__}"


def callers() -> int:
    """Return the `stacklevel` that makes a caller's warning point at the user's own code."""
    # Up the stack to the first frame that is not of this package.
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("randquant"):
        frame, level = frame.f_back, level + 1
    return level


def hinting(replacements: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that an unknown argument is an error with a replacement.

    Args:
        replacements: what to write instead of an argument, by its name.
    """

    def hinted(function: Callable[P, T]) -> Callable[P, T]:
        parameters = inspect.signature(function).parameters

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs.keys() - parameters.keys():
                hint = (
                    f": give {replacements[name]}." if name in replacements
                    else nearest(name, [*parameters, *replacements])
                )  # fmt: skip
                raise TypeError(f"Expected arguments of {function.__name__}, got {name}={hint}")
            return function(*args, **kwargs)

        return call

    return hinted


def nearest(word: Any, options: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word: the most similar option, if any.

    Example:
        >>> nearest("clp", ["clip", "keep"]), nearest("x", ["clip"])
        (': did you mean clip?', '.')
    """
    similar = difflib.get_close_matches(str(word), list(options), n=1)
    return f": did you mean {similar[0]}?" if similar else "."


def kind(name: str, value: Any, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"Expected {name} to be a {wanted.__name__}, got {shown(value)}.")


def renyi_order(value: Any) -> float:
    """Return a Rényi order in (1, inf], or raise ValueError."""
    plain = number(value)
    if type(plain) not in (int, float):
        raise TypeError(f"Expected order to be a number or infinity, got {shown(value)}.")
    order = _double(plain)
    if not order > 1.0:
        raise ValueError(
            f"Expected order in (1, inf], got order={value}: "
            "use order=inf for pure differential privacy."
        )
    return order


def call(name: str, constructor: Callable[..., T], parameters: Mapping[str, Any]) -> T:
    """Return constructor(**parameters), or raise a ValueError that names the wrong parameter."""
    check_parameters(name, parameters)
    accepted = inspect.signature(constructor).parameters
    for parameter in parameters:
        if parameter not in accepted:
            raise ValueError(
                f"Expected {name} parameters {', '.join(accepted)}; "
                f"got {parameter!r}{nearest(parameter, accepted)}"
            )
    # Checked here, since Python's TypeError would name the constructor, which users do not know.
    required = [p.name for p in accepted.values() if p.default is p.empty]
    missing = [parameter for parameter in required if parameter not in parameters]
    if missing:
        raise ValueError(f"Expected a value for {', '.join(missing)} of {name}, got none.")
    return constructor(**parameters)


def check_parameters(name: str, parameters: Any) -> None:
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"Expected the parameters of {name} as a dict by their names, got {shown(parameters)}."
        )


def _because(why: str) -> str:
    return f": {why}" if why else ""


Patterns = str | Iterable[str] | None
"""One pattern, several, or none."""


def name_patterns(
    name: str, value: Patterns, known: Collection[str], kind: str = "names"
) -> tuple[str, ...]:
    """Check that each pattern matches at least one known name; return the patterns.

    Args:
        name: the argument's name, for messages.
        value: patterns as in `fnmatch`, with case.
        known: all existing names.
        kind: a plural noun for the names, for messages.

    Raises:
        TypeError: a pattern is not a text.
        ValueError: a pattern matches no name.

    Example:
        >>> name_patterns("parts", "head.*", ["body.weight", "head.weight"])
        ('head.*',)
    """
    try:
        patterns = (value,) if isinstance(value, str) else tuple(value or ())
    except TypeError:
        raise TypeError(f"Expected {name} as patterns of names, got {value!r}.") from None
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"Expected {name} as patterns of names, got {pattern!r}.")
        if not any(matches(each, (pattern,)) for each in known):
            first = ", ".join([*known][:6]) + (", …" if len(known) > 6 else "")
            raise ValueError(
                f"Expected {name} to match {kind}, got {pattern!r}, which matches none of "
                f"{first or 'no names'}."
            )
    return patterns


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
