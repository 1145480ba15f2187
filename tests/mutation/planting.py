"""Faults made by hand, stated as expressions: layout, quotes and comments of the source may change.

A file of lists has FAULTS, {"file" or "file::function": [(before, after, what it breaks), …]}, with
files relative to src/randquant. `before` is an expression, or a statement of one line, that occurs
exactly once in the file or function; `after` stands in its place.
"""

from __future__ import annotations

import ast
import functools
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/randquant")
LISTS = ("channels", "privacy", "secure_sums", "aggregation", "statistics", "training")
"""Files of lists in this folder."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault in one file of the package.

    Attributes:
        file: relative to src/randquant.
        text: the whole file with the fault in it.
        name: one line that says which fault.
        excuse: why nobody can notice it; empty if somebody can.
    """

    file: str
    text: str
    name: str
    excuse: str = ""


@functools.cache
def source(file: str) -> str:
    """Text of a file of the package."""
    return (ROOT / SOURCE / file).read_text()


def by_hand() -> Iterator[Mutant]:
    """Every fault of every list.

    Raises:
        ValueError: an expression does not occur exactly once, or its replacement means the same.
    """
    for name in LISTS:
        faults = runpy.run_path(str(Path(__file__).with_name(f"{name}.py")))["FAULTS"]
        for place, listed in faults.items():
            for before, after, breaks in listed:
                yield Mutant(place.partition("::")[0], planted(place, before, after), breaks)


def planted(place: str, before: str, after: str) -> str:
    """Text of a file in which one expression is replaced."""
    file, _, function = place.partition("::")
    text, wanted = source(file), _node(before)
    alike = (n for n in ast.walk(_scope(text, function)) if type(n) is type(wanted))
    found = [n for n in alike if ast.dump(n) == ast.dump(wanted)]
    if len(found) != 1:
        raise ValueError(f"Expected {before!r} once in {place}, found it {len(found)} times.")
    changed = _replaced(text, found[0], f"({after})" if isinstance(wanted, ast.expr) else after)
    if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
        raise ValueError(f"Expected another meaning of {after!r} than of {before!r} in {place}.")
    return changed


def _node(code: str) -> ast.AST:
    (statement,) = ast.parse(code).body
    return statement.value if isinstance(statement, ast.Expr) else statement


def _scope(text: str, function: str) -> ast.AST:
    tree = ast.parse(text)
    if not function:
        return tree
    kinds = ast.FunctionDef | ast.ClassDef
    found = [n for n in ast.walk(tree) if isinstance(n, kinds) and n.name == function]
    if len(found) != 1:
        raise ValueError(f"Expected one {function}, found {len(found)}.")
    return found[0]


def _replaced(text: str, node: ast.AST, code: str) -> str:
    """With code in place of a node, whose columns count bytes."""
    lines = text.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = b"".join(lines)
    return (data[:start] + code.encode() + data[end:]).decode()
