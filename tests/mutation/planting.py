"""A fault in one file of the package."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/randquant")


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
