"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("randquant")
except PackageNotFoundError:  # a source tree that nobody installed
    __version__ = "0+unknown"
