"""Calls of `randquant` in the test's process: what it prints, and the one line of a refusal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from randquant import cli


def printed(capsys, line: str | Iterable[Any]) -> str:
    """What a command that succeeds prints."""
    assert cli.main(words(line)) == 0
    return capsys.readouterr().out


def as_json(capsys, line: str | Iterable[Any]) -> dict:
    """What a command prints with --json: one line."""
    text = printed(capsys, [*words(line), "--json"])
    assert text.count("\n") == 1
    return json.loads(text)


def refused(capsys, line: str | Iterable[Any]) -> str:
    """The one line with which a command refuses."""
    assert cli.main(words(line)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    return output.err


def words(line: str | Iterable[Any]) -> list[str]:
    """A command line's words."""
    return line.split() if isinstance(line, str) else [str(word) for word in line]
