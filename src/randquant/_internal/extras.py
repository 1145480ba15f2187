"""Packages that not every installation has: the one sentence that says how to get them."""

from __future__ import annotations

import importlib
from types import ModuleType, TracebackType

DISTRIBUTIONS = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "nacl": "PyNaCl",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
}
"""What pip calls a package, where this is not the name by which it is imported."""


def needed(what: str, *extras: str) -> Needed:
    """Return a context in which a package that is missing is named, with the way to install it.

    Args:
        what: what the packages are for, as in "training".
        extras: the extras of this package that bring them, as in "train".

    Raises:
        ImportError: within the context a package is imported that is not installed, or that does
            not load. A module of this package that is missing is passed on: it is an error of ours.

    Example:
        >>> with needed("pictures of mice", "mice"):
        ...     import mouse_pictures
        Traceback (most recent call last):
        ...
        ImportError: Expected the package mouse_pictures for pictures of mice, got none: run pip install 'randquant[mice]'.
    """  # noqa: E501
    return Needed(what, extras)


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


class Needed:
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
        if not isinstance(error, ImportError) or str(error).startswith("Expected "):
            return
        package = (error.name or "").partition(".")[0]
        if package in ("", __name__.partition(".")[0]):
            return
        name = DISTRIBUTIONS.get(package, package)
        way = f"pip install 'randquant[{','.join(self._extras)}]'"
        if isinstance(error, ModuleNotFoundError):
            raise ImportError(
                f"Expected the package {name} for {self._what}, got none: run {way}.",
                name=error.name,
            ) from error
        reason = " ".join(str(error).split()).rstrip(".")
        raise ImportError(
            f"Expected the package {name} to load for {self._what}, but: {reason}. Install it "
            f"again: {way}.",
            name=error.name,
        ) from error
