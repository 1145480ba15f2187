"""Lazy packages: a public name is imported when it is first used.

A client on Flower starts a process for every message, and most need little of this package. So the
`__init__.py` of a package imports nothing at run time: its imports are under `if TYPE_CHECKING:`,
where type checkers and readers find them, and `lazily` reads them from there.
"""

from __future__ import annotations

import ast
import importlib
import sys
from types import ModuleType
from typing import Any


class Face(ModuleType):
    """The module of a package, after `lazily`."""

    def __getattr__(self, name: str) -> Any:
        # Called for names that the package does not have yet: imports it from where it is defined.
        home = self.__dict__["_homes"].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, attribute = home
        value = getattr(importlib.import_module(module), attribute, None)
        if value is None:  # the name is that of a submodule
            value = importlib.import_module(f"{module}.{attribute}")
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system sets a submodule as an attribute of its package: that must not replace a
        # public function of the same name, such as `statistics`.
        if not (isinstance(value, ModuleType) and name in self.__dict__["_homes"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        # With the names that are not imported yet.
        return sorted({*self.__dict__, *self.__dict__["_homes"]})


def lazily(name: str) -> None:
    """Make a package import its public names when they are first used.

    Args:
        name: of the package; its source has the imports under `if TYPE_CHECKING:`.

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
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                module = str(statement.module)
                homes |= {a.asname or a.name: (module, a.name) for a in statement.names}
    package.__dict__["_homes"] = homes
    package.__class__ = Face
