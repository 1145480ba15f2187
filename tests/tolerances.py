"""Tolerances that assert nothing: pytest.approx and numpy add an absolute one that nobody wrote.

`approx(5e-14, rel=1e-4)` accepts everything within 1e-12, 0 included. `watched` refuses that while
tests run; `careless` finds in a source what can be seen without running it.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Iterator

import numpy as np

RELATIVE, ABSOLUTE = 1e-6, 1e-12
"""What pytest.approx takes where nothing is given."""

NUMPY = {"isclose": "atol", "allclose": "atol"}
"""Functions that have an absolute tolerance of 1e-8 unless they are told."""


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
    """(line, code) of calls whose absolute tolerance nobody wrote and that is, or may be, wider."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in NUMPY and NUMPY[name] not in given and _module(node.func) in ("np", "torch"):
            yield node.lineno, ast.unparse(node)
        elif name == "approx" and "abs" not in given and len(node.args) < 3:
            expected = _constant(node.args[0])
            rel = _constant(given.get("rel", node.args[1] if len(node.args) > 1 else None))
            if expected is not None and swallows(expected, rel):
                yield node.lineno, ast.unparse(node)


def _module(function: ast.expr) -> str:
    value = getattr(function, "value", None)
    return value.id if isinstance(value, ast.Name) else ""


def _constant(node: ast.expr | None) -> float | None:
    """Value of an expression of numbers alone."""
    allowed = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if node is None or not all(isinstance(part, allowed) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "constant", "eval"), {})
    return float(value) if isinstance(value, int | float) else None
