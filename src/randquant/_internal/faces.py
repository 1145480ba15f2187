"""Packages that import a public name when it is first used.

A client on Flower starts a process for every message, and most need little of this package. So the
faces on the way to what they need import nothing: their imports stand under `if TYPE_CHECKING:`,
where type checkers and readers find them, and are read from there.
"""

from __future__ import annotations

import ast
import importlib
import sys
from types import ModuleType
from typing import Any


class Face(ModuleType):
    """A package's own module, after `lazily`."""

    def __getattr__(self, name: str) -> Any:
        """Import a public name from where it is defined."""
        home = self.__dict__["_homes"].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, own = home
        value = getattr(importlib.import_module(module), own, None)
        if value is None:  # a module
            value = importlib.import_module(f"{module}.{own}")
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        """Keep a public name where the import system would put a subpackage of the same name."""
        if not (isinstance(value, ModuleType) and name in self.__dict__["_homes"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """With the names that are not imported yet."""
        return sorted({*self.__dict__, *self.__dict__["_homes"]})


def lazily(name: str) -> None:
    """Import a package's public names when they are first used.

    Args:
        name: of the package, whose source says after `if TYPE_CHECKING:` where its names are.

    Example:
        >>> import randquant
        >>> type(randquant).__name__, randquant.rqm.__module__
        ('Face', 'randquant.mechanisms.randomized_quantization')
    """
    package = sys.modules[name]
    assert package.__spec__ is not None
    assert package.__spec__.loader is not None
    source: str = package.__spec__.loader.get_source(name)  # type: ignore[attr-defined]
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.If):
            for each in node.body:
                assert isinstance(each, ast.ImportFrom)
                homes |= {a.asname or a.name: (str(each.module), a.name) for a in each.names}
    package.__dict__["_homes"] = homes
    package.__class__ = Face
