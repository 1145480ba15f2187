"""Mutants: one small fault each, planted in the source to see whether a test notices.

Hand-made mutants are data, one file of lists for each part of the package (`privacy.py`, …):

    MUTANTS = [(file, before, after, what it breaks, tests), …]
    EQUIVALENT = [(file, before, after, why nobody can notice), …]

`file` is relative to src/randquant, `before` occurs in it exactly once, `tests` are paths from the
root of the repository (or `path::test`); an empty tuple stands for `TESTS` of the file.
"""

from __future__ import annotations

import ast
import functools
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutation.tests_of import TESTS

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
SOURCE = Path("src/randquant")
VALUES = "tests/test_values.py::test_values_cannot_be_changed"
RUNNER = {"equivalent", "mechanical", "mutants", "record", "run", "server", "tests_of", "workspace"}
"""Files of this folder that are no lists."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        file: the file that is changed, relative to src/randquant.
        text: the whole file with the fault in it.
        name: one line that says which fault.
        tests: what is run, as arguments of pytest.
        equivalent: why it is no fault; empty if it is one.
        origin: the file of lists it stands in, `mechanical`, or `fresh`: of another seed than 0.
    """

    file: str
    text: str
    name: str
    tests: tuple[str, ...]
    equivalent: str = ""
    origin: str = "mechanical"

    @property
    def module(self) -> str:
        """Dotted, without the package: `composition.loss`."""
        return self.file.removesuffix(".py").replace("/", ".")


@functools.cache
def source(file: str) -> str:
    """Text of a file of the package."""
    return (ROOT / SOURCE / file).read_text()


def tests_of(file: str) -> tuple[str, ...]:
    """What is run for a mutant of a file that names no tests of its own: doctests included."""
    named = TESTS.get(file, ())
    if not named:
        raise KeyError(f"Expected tests for {file}: add a line to tests/mutation/tests_of.py.")
    frozen = (VALUES,) if "@dataclass" in source(file) else ()
    return (*frozen, *(f"tests/{test}" for test in named), str(SOURCE / file))


def handmade() -> Iterator[Mutant]:
    """Every mutant of every file of lists.

    Raises:
        ValueError: a text does not occur exactly once.
    """
    for path in sorted(path for path in FOLDER.glob("*.py") if path.stem not in RUNNER):
        lists = runpy.run_path(str(path))
        for file, before, after, what, tests in lists["MUTANTS"]:
            if not isinstance(tests, tuple):
                raise TypeError(f"Expected a tuple of tests in {path.name}, got {tests!r}.")
            text = replaced(file, before, after)
            yield Mutant(file, text, what, tests or tests_of(file), origin=path.stem)
        for file, before, after, why in lists["EQUIVALENT"]:
            text = replaced(file, before, after)
            yield Mutant(file, text, why, (), equivalent=why, origin=path.stem)


def replaced(file: str, before: str, after: str) -> str:
    """The text of a file with one place changed."""
    text = source(file)
    count = text.count(before)
    if count != 1:
        raise ValueError(
            f"Expected {before!r} once in {file}, found it {count} times: mend the list."
        )
    return text.replace(before, after)


def means_the_same(mutant: Mutant) -> bool:
    """Whether a mutant changes nothing that code does, as a comment: no fault."""
    return meaning(mutant.text) == _meaning_of(mutant.file)


@functools.cache
def _meaning_of(file: str) -> str:
    return meaning(source(file))


def meaning(text: str) -> str:
    """What of a source counts: no comments, docstrings or annotations of types."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            body[0] = ast.Pass()
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
