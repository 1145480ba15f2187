"""What is wrong with a command line, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, UnknownOptionError
from cyclopts.exceptions import (
    RepeatArgumentError,
    UnusedCliTokensError,
)

from randquant._internal.validate import nearest


def check_commands(top: App, words: Sequence[str]) -> None:
    """Refuse a command line that names no command, or none that there is.

    Raises:
        ValueError: a COMMAND or a MECHANISM is missing or unknown.
    """
    app, path = top, "randquant"
    for kind, word in zip(("COMMAND", "MECHANISM"), [*words[:2], "", ""], strict=False):
        known = [name for name in app if not name.startswith("-")]
        if not known or (word.startswith("-") and word in app):
            return
        if word not in known:
            got = f"got {word!r}{nearest(word, known)}" if word else "got none."
            raise ValueError(f"Expected a {kind}, one of {', '.join(known)}; {got}{_see(path)}")
        app, path = app[word], f"{path} {word}"


def sentence(error: CycloptsError, top: App, words: Sequence[str]) -> str:
    """Return what is wrong with a command line that cyclopts refused."""
    path = " ".join(["randquant", *(error.command_chain or ())])
    return f"{_problem(error, path)}{_see(path)}"


def _problem(error: CycloptsError, path: str) -> str:
    argument = error.argument
    token = getattr(error, "token", None)
    name = argument.name if argument is not None else token.keyword if token else "a value"
    match error:
        case CoercionError() if error.__cause__ is not None:
            return str(error.__cause__)
        case CoercionError() if argument is not None and argument.parameter.choices:
            known = [str(each) for each in argument.get_choices() or ()]
            got = error.token.value if error.token is not None else ""
            return (
                f"Expected {name} to be one of {', '.join(known)}; got {got!r}{nearest(got, known)}"
            )
        case UnknownOptionError():
            known = [each for one in error.argument_collection or () for each in one.names]
            got = error.token.keyword or error.token.value
            return f"Expected an option of {path}, got {got}{nearest(got, known)}"
        case MissingArgumentError():
            return f"Expected {name}, got none."
        case RepeatArgumentError():
            return f"Expected {name} once, got it several times."
        case UnusedCliTokensError():
            return f"Expected no other values, got {' '.join(error.unused_tokens or ())}."
    return " ".join(str(error).split())


def _see(path: str) -> str:
    return f" (see {path} --help)"
