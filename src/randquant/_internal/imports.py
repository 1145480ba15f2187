"""What is imported when: public names when they are used first, and optional packages.

A client on Flower starts a process for every message, and most need little of this package. So the
`__init__.py` of a package imports nothing at run time: its imports are under `if TYPE_CHECKING:`,
where type checkers and readers find them, and `lazily` reads them from there. An optional package
that is missing is an error that says how to install it (`needed`).
"""

from __future__ import annotations

import ast
import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType, TracebackType
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
        ('Face', 'randquant.mechanisms.random_rounding')
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


def _installed() -> str:
    try:
        return version("randquant")
    except PackageNotFoundError:  # a source tree without installation
        return "0+unknown"


__version__ = _installed()
"""The installed version, as `pip` knows it."""


DISTRIBUTIONS = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "nacl": "PyNaCl",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}
"""Names of packages for pip, where they differ from the name that is imported."""


def needed(what: str, *extras: str) -> OptionalImports:
    """Return a context in which a failed import says which package to install, and how.

    Args:
        what: the purpose of the packages, as in "training".
        extras: the extras of this package that install them, as in "train".

    Raises:
        ImportError: within the context a package is imported that is not installed, or that does
            not load. Errors about modules of this package are passed on: they are our own mistakes.

    Example:
        >>> with needed("pictures of mice", "mice"):
        ...     import mouse_pictures
        Traceback (most recent call last):
        ...
        ImportError: Expected the package mouse_pictures for pictures of mice; it is not installed: run pip install '.[mice]' in the folder of randquant's source.
    """  # noqa: E501
    return OptionalImports(what, extras)


def load(module: str, what: str, *extras: str) -> ModuleType:
    """Import a module within `needed`, and return it.

    Raises:
        ImportError: it is not installed, or does not load.

    Example:
        >>> load("math", "arithmetic").floor(2.5)
        2
    """
    with needed(what, *extras):
        return importlib.import_module(module)


class OptionalImports:
    """The context that `needed` returns; it never suppresses an error."""

    def __init__(self, what: str, extras: tuple[str, ...]) -> None:
        self._what, self._extras = what, extras

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An inner `needed` has rewritten this error already.
        if not isinstance(error, ImportError) or str(error).startswith("Expected "):
            return
        package = (error.name or "").partition(".")[0]
        if package in ("", __name__.partition(".")[0]):
            return
        name = DISTRIBUTIONS.get(package, package)
        # By the name alone, pip would fetch whatever somebody has published under it.
        command = f"pip install '.[{','.join(self._extras)}]' in the folder of randquant's source"
        if isinstance(error, ModuleNotFoundError):
            raise ImportError(
                f"Expected the package {name} for {self._what}; it is not installed: run "
                f"{command}.",
                name=error.name,
            ) from error
        # Installed but broken, such as a missing shared library: its own reason helps most.
        reason = " ".join(str(error).split()).rstrip(".")
        raise ImportError(
            f"Expected the package {name} to load for {self._what}, but: {reason}. Install it "
            f"again: {command}.",
            name=error.name,
        ) from error
