"""Which version this is."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("randquant")
    except PackageNotFoundError:  # a source tree that nobody installed
        return "0+unknown"


__version__ = _installed()
"""The installed version, as `pip` knows it."""
