"""The command line: one file a command, in `commands/`."""

from randquant.cli.main import main

__all__ = ["main"]
