"""Tolerances that assert nothing: pytest.approx and numpy add an absolute one that nobody wrote.

`approx(5e-14, rel=1e-4)` accepts everything within 1e-12, 0 included. `watched` refuses that while
tests run; `careless` finds calls of numpy and torch in a source.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator

import numpy as np

RELATIVE, ABSOLUTE = 1e-6, 1e-12
"""What pytest.approx takes where nothing is given."""


def swallows(expected: float, rel: float | None) -> bool:
    """Whether the default absolute tolerance is the wider one for a number that is not 0."""
    relative = (RELATIVE if rel is None else rel) * abs(expected)
    return expected != 0 and math.isfinite(expected) and relative < ABSOLUTE


def watched(approx):
    """pytest.approx, but that it refuses to apply its default absolute tolerance to a number."""

    @functools.wraps(approx)
    def checked(expected, rel=None, abs=None, nan_ok=False):
        if abs is None and any(swallows(value, rel) for value in _numbers(expected)):
            raise AssertionError(
                f"Expected abs= beside approx({expected!r}, rel={rel}), got none: the default of "
                "1e-12 would be wider than the relative tolerance."
            )
        return approx(expected, rel=rel, abs=abs, nan_ok=nan_ok)

    return checked


def _numbers(expected) -> list[float]:
    values = list(expected.values()) if isinstance(expected, dict) else expected
    array = np.asarray(values).ravel()
    return [float(value) for value in array.tolist() if isinstance(value, int | float)]


def careless(source: str) -> Iterator[tuple[int, str]]:
    """(line, code) of calls of numpy or torch whose absolute tolerance nobody wrote."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            whose = ast.unparse(node.func.value) in ("np", "torch")
            given = {keyword.arg for keyword in node.keywords}
            if whose and node.func.attr in ("isclose", "allclose") and "atol" not in given:
                yield node.lineno, ast.unparse(node)
