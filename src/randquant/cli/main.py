"""The command line: reads options, runs one command, prints its lines or one JSON object."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from randquant.cli import options
from randquant.cli.options import Invocation

USER_ERROR_TYPES = (ValueError, TypeError, OSError, ImportError, ArithmeticError, MemoryError)
"""Errors about arguments, files or the machine: printed as one line, without a traceback."""

PLAIN = "randquant.plain"
"""Name of the error handler below, for terminals whose encoding lacks some characters."""

SIGNS = {"∞": "inf", "≤": "<=", "≥": ">=", "…": "...", "–": "-", "−": "-", "·": "*", "×": "x"}


def _replace_missing_signs(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(SIGNS.get(sign, "?") for sign in missing), error.end


codecs.register_error(PLAIN, _replace_missing_signs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 2 for a wrong option, file or value.

    An audit that contradicts the stated guarantee returns 1.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the encoding of a terminal may lack our signs
            stream.reconfigure(errors=PLAIN)
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = " ".join(["randquant", *words[:1]])
    try:
        invocation = parse(words)
        if invocation is None:
            return 0
        output = invocation.run()
        text = output.text(invocation.as_json)
    except USER_ERROR_TYPES as error:
        # One line, whatever the message: scripts read standard error line by line.
        print(f"{called}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:  # that of a training run says how to go on
        print(f"{called}: {error or 'stopped'}", file=sys.stderr)
        return 130  # as shells do: 128 and the number of SIGINT
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        # Python flushes standard output once more at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return output.code


def parse(words: Sequence[str]) -> Invocation | None:
    """Read a command line; print and return None if it asks for help, version or completion.

    Raises:
        ValueError: a command, an option or a value is wrong.
    """
    top = app(words)
    try:
        options.check_commands(top, words)
        function, bound, _ = top.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise ValueError(options.sentence(error, top, words)) from error
    invocation = function(*bound.args, **bound.kwargs)
    return invocation if isinstance(invocation, Invocation) else None


def app(words: Sequence[str] = ()) -> App:
    """Return the application of all commands; only the first of `words` is imported.

    With EVERYTHING all are imported, since the shell's completion names all their options.
    """
    words = list(words)
    # The version is looked up only if it is asked for, since that reads files.
    top = App(
        "randquant",
        help="Private federated learning in a few random bits per coordinate.",
        version=lambda: f"randquant {version('randquant')}",
        help_format="plaintext",
        result_action="return_value",
    )
    top.register_install_completion_command()
    everything = words[:1] == [options.EVERYTHING]
    for name, (_, text) in options.command_texts().items():
        if everything or words[:1] == [name]:
            rest = words[:1] if everything else words[1:]
            top.command(options.import_command(name).app(name, rest))
        else:
            top.command(App(name, help=text))
    return top
