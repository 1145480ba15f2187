"""The log of a run: a line of JSON for each finished round, chained by checksums.

Each line's checksum enters the next line's, and the first line's depends on the run's identity: a
line that was changed, dropped, doubled, moved or taken from another run is detected.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from randquant._internal import serialization
from randquant._internal.files import flush, opener, read_regular
from randquant._internal.serialization import from_json, naming, write_atomic
from randquant.training.records import RoundMetrics

RESTORE = "Restore it from a copy, or begin a new run."


@dataclass(frozen=True, slots=True)
class Lines:
    """The contents of a log.

    Attributes:
        metrics: rounds 1, 2, and so on.
        last: checksum of the last line; the run's identity if there is no line.
        size: bytes of the complete lines.
        torn: bytes after them, of a line that was not written completely.
    """

    metrics: tuple[RoundMetrics, ...]
    last: str
    size: int
    torn: int


def read(path: Path, identity: str) -> Lines:
    """Read a log.

    Args:
        path: the log.
        identity: of the run that it must belong to.

    Raises:
        ValueError: there is none, or a line was changed or is missing. An incomplete line at the
            end, as left by a full disk or a loss of power, is no error.
    """
    try:
        text = read_regular(path)
    except FileNotFoundError:
        raise ValueError(f"Expected the log of a run in {path}, found none. {RESTORE}") from None
    size = text.rfind(b"\n") + 1
    last, metrics = identity, []
    for number, line in enumerate(text[:size].splitlines(), 1):
        try:
            record, last = serialization.unseal(line, last)
            metrics.append(from_json(RoundMetrics, record))
            if metrics[-1].round != number:
                raise ValueError(f"it is round {metrics[-1].round}")
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise ValueError(
                f"Expected round {number} in line {number} of {path} as it was written, but: "
                f"{reason}. {RESTORE}"
            ) from None
    return Lines(tuple(metrics), last, size, len(text) - size)


class RunLog:
    """A log that rounds are appended to.

    Args:
        path: the log, as `begin` creates it.
        identity: of the run.

    Guarantees:
        What `append` and `replace` wrote survives a loss of power. If one of them fails, the log is
        unchanged or ends in an incomplete line, which the next `RunLog` on it removes.

    Raises:
        ValueError: as `read`.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path, self._identity = path, identity
        lines = read(path, identity)
        self.metrics, self._last = list(lines.metrics), lines.last
        if lines.torn:
            logging.getLogger(__name__).warning(
                "Removed an incomplete line at the end of %s: round %d is computed again.",
                path, len(self.metrics) + 1,
            )  # fmt: skip
            with naming(path):
                os.truncate(path, lines.size)

    @property
    def last(self) -> str:
        """Checksum of the last line; the run's identity if there is no line."""
        return self._last

    def append(self, metrics: RoundMetrics) -> None:
        """Add a round; OSError names the file."""
        line, last = _line(metrics, self._last)
        with naming(self._path):
            log = opener(self._path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))
            try:
                _write_all(log, line)
            finally:
                os.close(log)
        self.metrics.append(metrics)
        self._last = last

    def replace(self, metrics: Sequence[RoundMetrics]) -> None:
        """Rewrite the same rounds, at another delta or with one more evaluation."""
        if len(metrics) < len(self.metrics):
            raise ValueError(f"Expected {len(self.metrics)} rounds or more, got {len(metrics)}.")
        lines, last = [], self._identity
        for round in metrics:
            line, last = _line(round, last)
            lines.append(line)
        write_atomic(self._path, b"".join(lines))
        self.metrics, self._last = list(metrics), last


def begin(path: Path) -> None:
    """Create the log of a new run."""
    write_atomic(path, b"")


def _line(metrics: RoundMetrics, last: str) -> tuple[bytes, str]:
    """A line of the log and its checksum."""
    record = serialization.seal(metrics, last)
    return json.dumps(record, allow_nan=False).encode() + b"\n", record[serialization.CHECKSUM]


def _write_all(log: int, data: bytes) -> None:
    """Write every byte to the disk, or remove what was written of them."""
    before = os.fstat(log).st_size
    try:
        while data:  # a write may be short, for example at a limit on file size
            data = data[os.write(log, data) :]
        flush(log)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(log, before)
        raise
