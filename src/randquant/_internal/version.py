"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("randquant")
    except PackageNotFoundError:  # a source tree without installation
        return "0+unknown"


__version__ = _installed()
"""The installed version, as `pip` knows it."""
