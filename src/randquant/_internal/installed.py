"""What is installed: this package's version, and optional packages or how to install them."""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType, TracebackType


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
