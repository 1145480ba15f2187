"""The log of a run: a line of JSON for each finished round, chained by checksums.

Each line's checksum goes into the next one's, and that of the first line follows from the run's
identity: a line that is changed, dropped, doubled, moved or of another run is noticed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from randquant import sealed
from randquant.records import RoundMetrics, from_json, naming, write_atomic

RESTORE = "Restore it from a copy, or begin a new run."


@dataclass(frozen=True, slots=True)
class Lines:
    """What a log says.

    Attributes:
        metrics: rounds 1, 2, and so on.
        last: checksum of the last line; the run's identity where there is none.
        size: bytes of the whole lines.
        torn: bytes behind them, of a line that was not written to its end.
    """

    metrics: tuple[RoundMetrics, ...]
    last: str
    size: int
    torn: int


def read(path: Path, identity: str) -> Lines:
    """Read a log.

    Args:
        path: the log.
        identity: of the run that it has to belong to.

    Raises:
        ValueError: there is none, or a line was changed or is missing; half a line at the end, as
            a full disk or a loss of power leaves it, is no error.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"Expected the log of a run in {path}, found none. {RESTORE}") from None
    size = text.rfind(b"\n") + 1
    last, metrics = identity, []
    for number, line in enumerate(text[:size].splitlines(), 1):
        try:
            record, last = sealed.unseal(line, last)
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
    """A log that goes on.

    Args:
        path: the log, as `begin` makes it.
        identity: of the run.

    Guarantees:
        What `append` and `replace` wrote outlasts a loss of power. Where one fails the log is as
        it was before, or ends in half a line, which the next `RunLog` of it takes away.

    Raises:
        ValueError: as `read`.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self._path, self._identity = path, identity
        lines = read(path, identity)
        self.metrics, self._last = list(lines.metrics), lines.last
        if lines.torn:
            logging.getLogger(__name__).warning(
                "Took away half a line at the end of %s: round %d is computed again.",
                path, len(self.metrics) + 1,
            )  # fmt: skip
            with naming(path):
                os.truncate(path, lines.size)

    @property
    def last(self) -> str:
        """Checksum of the last line; the run's identity where there is none."""
        return self._last

    def append(self, metrics: RoundMetrics) -> None:
        """Add a round; OSError names the file."""
        line, last = _line(metrics, self._last)
        with naming(self._path):
            log = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_all(log, line)
            finally:
                os.close(log)
        self.metrics.append(metrics)
        self._last = last

    def replace(self, metrics: Sequence[RoundMetrics]) -> None:
        """Write the same rounds anew, at another delta or with an evaluation more."""
        if len(metrics) < len(self.metrics):
            raise ValueError(f"Expected {len(self.metrics)} rounds or more, got {len(metrics)}.")
        lines, last = [], self._identity
        for each in metrics:
            line, last = _line(each, last)
            lines.append(line)
        write_atomic(self._path, b"".join(lines))
        self.metrics, self._last = list(metrics), last


def begin(path: Path) -> None:
    """Make the log of a new run."""
    write_atomic(path, b"")


def _line(metrics: RoundMetrics, last: str) -> tuple[bytes, str]:
    """A line of the log and its checksum."""
    record = sealed.seal(metrics, last)
    return json.dumps(record, allow_nan=False).encode() + b"\n", record[sealed.CHECKSUM]


def _write_all(log: int, data: bytes) -> None:
    """Write every byte, to the disk, or take away what was written of them."""
    before = os.fstat(log).st_size
    try:
        while data:  # a write may be short: at a limit of the file's size, say
            data = data[os.write(log, data) :]
        os.fsync(log)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(log, before)
        raise
