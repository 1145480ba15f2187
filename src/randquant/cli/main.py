"""The command line: parses options, runs one command, prints its lines or one JSON object."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NoReturn

from randquant.cli.command import all_commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a wrong option, file or value.

    An audit that contradicts the stated guarantee returns 1.
    """
    options = parser().parse_args(arguments)
    command = all_commands()[options.command]
    try:
        output = command.run(options)
        text = output.text(options.json)
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError) as error:
        sentence = " ".join(str(error).split())
        print(f"randquant {options.command}: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = "; continue with --resume and the same folder" * command.resumable
        print(f"randquant {options.command}: stopped{hint}", file=sys.stderr)
        return 130
    print(text)
    return output.code


def parser() -> argparse.ArgumentParser:
    """Build the parser of every command; the chosen one is in `options.command`."""
    top = _Parser(
        prog="randquant",
        description="Private federated learning in a few random bits per coordinate.",
    )
    top.add_argument("--version", action="version", version=f"randquant {version('randquant')}")
    subparsers = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_Parser
    )
    for name, command in all_commands().items():
        subparser = subparsers.add_parser(
            name,
            help=command.help,
            description=command.help[0].upper() + command.help[1:] + ".",
            epilog=f"example: {command.example}",
        )
        subparser.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_options(subparser)
    return top


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as one line on standard error, exit code 2."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, allow_abbrev=False)
        # By default argparse mistakes -1e-3 and -3,3 for options.
        self._negative_number_matcher = re.compile(r"^-[\d.][-+.,\de]*$", re.I)

    def error(self, message: str) -> NoReturn:
        """Print the message as one line and exit with code 2."""
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)
