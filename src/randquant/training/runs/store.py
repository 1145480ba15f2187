"""What a run has declared, sent and measured: one SQLite file in the run's folder.

    RUN/run.sqlite     all that the run goes on from; only its user can read it
    RUN/report.html    the results as a page
    RUN/lock           held by the process that trains it
    RUN/baseline/      the same run without privacy, if one was asked for

Its table `records` has JSON objects by name, `rounds` the metrics of each finished round, and
`states` two models: the initial one and the latest. A round is in `sent` before it is sent.

SQLite keeps what was committed through a loss of power, and nothing of what was not. Against
changes from outside each record has a checksum, which is part of the next one's where records
follow each other, and all are bound to the run by the digest of its settings and its channel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from randquant._internal import files, serialization
from randquant._internal.database import Database
from randquant._internal.files import make_folder, sync_folder
from randquant._internal.serialization import CHECKSUM, from_json, to_json
from randquant.channels.keys import Key
from randquant.training.config import NAMES, TrainConfig, check_config, value_of
from randquant.training.records import RoundMetrics, RunRecord, RunSummary, SentRounds

NAME, REPORT, BASELINE = "run.sqlite", "report.html", "baseline"
PARTIAL = NAME + ".partial"
VERSION = 1
TABLES = (
    "CREATE TABLE records (name TEXT PRIMARY KEY, content TEXT) WITHOUT ROWID",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE states (part INTEGER PRIMARY KEY, name TEXT, content BLOB)",
)
MAX_PART_BYTES = 2**26
"""Bytes of a state in one row. SQLite has a whole row in memory, and rows have at most 1e9 bytes.
With half of this a large model has twice as many rows, which takes no longer."""

RECORDS = {
    "config": "the settings of the run",
    "sent": "the record of what was sent",
    "problem": "what the run began with",
    "key": "the run's secret key",
    "standardization": "the figures that the run standardises by",
    "summary": "the results of the run",
}
"""The names of records, and what each is."""

STATES = ("initial", "latest")
"""The names of states: the weights that the run began with, and those of the last checkpoint."""

FREE = ("rounds", "delta", "neighboring", "stop_at_epsilon", "checkpoint_every", "evaluate_every")
"""Settings that may change when a run is resumed: how soon to end, and what to print. What that
may not be is in `Schedule.check`."""

RESTORE = "Restore it from a copy, or begin a new run."


class Secret:
    """32 secret bytes from the operating system, of which a run's key is made.

    Whoever knows them can compute the noise of every client, and subtract it. They are in the run's
    store only; no repr, report or error shows them.

    Example:
        >>> Secret.fresh()
        Secret(<32 bytes>)
    """

    __slots__ = ("_bytes",)

    def __init__(self, content: bytes) -> None:
        if len(content) != 32:
            raise ValueError(f"Expected 32 secret bytes, got {len(content)}.")
        self._bytes = content

    @classmethod
    def fresh(cls) -> Secret:
        return cls(os.urandom(32))

    @property
    def key(self) -> Key:
        """The key; a run that is resumed encodes the same rounds again with it."""
        return Key(self._bytes)

    def hexadecimal(self) -> str:
        """Return the bytes as text, for the run's store alone."""
        return self._bytes.hex()

    def __repr__(self) -> str:
        return "Secret(<32 bytes>)"

    def __reduce__(self) -> str:
        raise TypeError("Expected a secret to stay in its process: it cannot be pickled.")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as its store has it at one moment.

    Attributes:
        config: its settings.
        sent: what it has declared and sent.
        metrics: of rounds 1, 2, and so on; the last round that was sent may be missing.
        summary: the results; None before the end.
    """

    config: TrainConfig
    sent: SentRounds
    metrics: tuple[RoundMetrics, ...]
    summary: RunSummary | None

    @property
    def is_stated(self) -> bool:
        """Whether there are results for the delta and the neighbours that are configured."""
        if self.summary is None:
            return False
        stated = self.summary.guarantee
        wanted = (self.config.delta, self.config.privacy.neighboring)
        return stated is None or (stated.delta, stated.neighboring) == wanted


class RunStore:
    """The store of the run in a folder.

    Args:
        folder: the run's folder. Nothing is read or created before a method is called.

    Raises:
        ValueError: (all methods that read) there is no run, or a record was changed.
        OSError: (all methods) the file cannot be read or written, or SQLite finds it damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / NAME
        self._database = Database(self.path, TABLES, VERSION, "a run's store", keeps_deleted=True)

    def exists(self) -> bool:
        """Return whether there is a run, which may be damaged."""
        return os.path.lexists(self.path)

    def create(self, records: Mapping[str, Any], initial: bytes = b"") -> None:
        """Begin a run: afterwards its folder has all of this, or there is no run.

        Args:
            records: by their names, `config` and `sent` at least.
            initial: its first state; empty if its configuration names the model.
        """
        make_folder(self.folder)
        # Under another name until it is whole. A file of the right name was whole once, so an empty
        # one is damaged: it is not taken for a run that has sent nothing.
        new = dataclasses.replace(self._database, path=self.folder / PARTIAL)
        for left in (new.path, new.journal):
            left.unlink(missing_ok=True)
        new.create()
        with new.transaction() as database:
            for name, record in records.items():
                _write(database, name, record)
            _write_state(database, "initial", initial)
        os.replace(new.path, self.path)
        sync_folder(self.folder)

    def config(self) -> TrainConfig:
        """Return the settings of the run."""
        with self._reading() as database:
            return self._config(database)

    def sent(self) -> SentRounds:
        """Return what the run has declared and sent."""
        with self._reading() as database:
            return self._sent(database, self._config(database))

    def begun(self) -> bool | None:
        """Return whether the run has begun to ask or send; None if no record says."""
        try:
            with self._reading() as database:
                return from_json(SentRounds, self._record(database, "sent")).begun
        except (ValueError, OSError):
            return None

    def read(self, *, results: bool = True) -> StoredRun:
        """Return all that is stated of the run; damaged results can be left out, and written again.

        Args:
            results: whether to read the summary.
        """
        with self._reading() as database:
            config = self._config(database)
            sent = self._sent(database, config)
            metrics, last = self._rounds(database, sent)
            summary = self._summary(database, last, len(metrics), sent) if results else None
            return StoredRun(config, sent, metrics, summary)

    def has(self, name: str) -> bool:
        """Return whether the run has a record of that name."""
        with self._reading() as database:
            return _content(database, name) is not None

    def record(self, name: str, before: str = "") -> dict[str, Any]:
        """Return a record, which was written with that `before`."""
        with self._reading() as database:
            return self._record(database, name, before)

    def secret(self) -> Secret:
        """Return the run's secret."""
        record = self.record("key")
        try:
            return Secret(bytes.fromhex(record["key"]))
        except (KeyError, TypeError, ValueError):  # what the file holds must not enter the message
            raise ValueError(
                f"Expected 32 secret bytes in {self.path}, got others. {RESTORE}"
            ) from None

    def state(self, name: Literal["initial", "latest"]) -> bytes:
        """Return a state of the run; empty if it has none yet."""
        with self._reading() as database:
            parts = "SELECT content FROM states WHERE name = ? ORDER BY part"
            return b"".join(part for (part,) in database.execute(parts, [name]))

    def write(self, name: str, record: Any, before: str = "") -> None:
        """Write a record; `before` is what it must follow, and is needed to read it."""
        with self._database.transaction() as database:
            _write(database, name, record, before)

    def write_sent(self, sent: SentRounds, metrics: Sequence[RoundMetrics] | None = None) -> None:
        """Write what is declared and sent, before it is sent.

        Args:
            sent: what is declared and sent.
            metrics: all finished rounds again, at another delta or with one more evaluation; None
                to leave them.
        """
        report = self.folder / REPORT
        if report.exists():  # neither it nor the summary covers what follows
            report.unlink()
            sync_folder(self.folder)
        with self._database.transaction() as database:
            if metrics is not None:
                (before,) = database.execute("SELECT COUNT(*) FROM rounds").fetchone()
                if len(metrics) < before:
                    raise ValueError(f"Expected {before} rounds or more, got {len(metrics)}.")
                database.execute("DELETE FROM rounds")
                _append(database, metrics)
            database.execute("DELETE FROM records WHERE name = 'summary'")
            _write(database, "sent", sent)

    def commit(self, metrics: RoundMetrics | None, state: bytes = b"") -> None:
        """Write a finished round; None if it was written before.

        Args:
            metrics: of the round.
            state: a checkpoint after it; empty for none.
        """
        with self._database.transaction() as database:
            if metrics is not None:
                _append(database, [metrics])
            if state:
                _write_state(database, "latest", state)

    def write_summary(self, summary: RunSummary) -> None:
        """Write the results of a run that has ended."""
        with self._database.transaction() as database:
            _write(database, "summary", summary, _last(database))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._database.reading() as database:
                names = "SELECT name FROM records UNION SELECT name FROM states"
                # A damaged name would hide its row. It is not shown: damage may have made the
                # secret key a part of it.
                if {name for (name,) in database.execute(names)} - {*RECORDS, *STATES}:
                    raise ValueError(
                        f"Expected records of a run in {self.path}, got one of another name. "
                        f"{RESTORE}"
                    )
                yield database
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"Expected a run in {self.folder}, found no {NAME} there.") from None

    def _record(
        self, database: sqlite3.Connection, name: str, before: str = "", advice: str = RESTORE
    ) -> dict[str, Any]:
        content = _content(database, name)
        if content is None:
            raise ValueError(
                f"Expected {RECORDS[name]} in {self.path}, found none: no record {name!r}. {advice}"
            )
        try:
            return serialization.unseal(content, before)[0]
        except ValueError as error:
            raise ValueError(
                f"Expected {RECORDS[name]} in {self.path} as it was written, but: {error}. {advice}"
            ) from None

    def _config(self, database: sqlite3.Connection) -> TrainConfig:
        advice = (
            f"Restore it: settings that may change ({', '.join(FREE)}) are given to the command or "
            "call that goes on with the run; for anything else begin a new run."
        )
        record = self._record(database, "config", advice=advice)
        try:
            config = TrainConfig.from_json(record)
            check_config(config)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Expected valid settings in {self.path}: {error}") from None
        return config

    def _sent(self, database: sqlite3.Connection, config: TrainConfig) -> SentRounds:
        sent = from_json(SentRounds, self._record(database, "sent"))
        if sent.settings != digest(config):
            raise ValueError(
                f"Expected the configuration that the run in {self.folder} began with, got "
                "another: its rounds would not have the guarantee that is printed. Restore "
                f"{NAME} or begin a new run."
            )
        return sent

    def _rounds(
        self, database: sqlite3.Connection, sent: SentRounds
    ) -> tuple[tuple[RoundMetrics, ...], str]:
        """Return the metrics of all rounds, and the last checksum or the run's identity."""
        last, metrics = sent.identity, []
        for number, content in database.execute("SELECT round, content FROM rounds ORDER BY round"):
            try:
                record, last = serialization.unseal(content, last)
                metrics.append(from_json(RoundMetrics, record))
                if not metrics[-1].round == number == len(metrics):
                    raise ValueError(f"it is round {metrics[-1].round}")
            except (TypeError, ValueError) as error:
                reason = str(error).rstrip(".")
                raise ValueError(
                    f"Expected round {len(metrics) or 1} in {self.path} as it was written, but: "
                    f"{reason}. {RESTORE}"
                ) from None
        # All rounds that were sent are there, except perhaps the last, interrupted one.
        if not sent.round - 1 <= len(metrics) <= sent.round:
            raise ValueError(
                f"Expected {max(sent.round - 1, 0)} to {sent.round} rounds in {self.path}, since "
                f"{sent.round} were sent, got {len(metrics)}: rounds are missing. {RESTORE}"
            )
        return tuple(metrics), last

    def _summary(
        self, database: sqlite3.Connection, last: str, rounds: int, sent: SentRounds
    ) -> RunSummary | None:
        if _content(database, "summary") is None:
            return None
        advice = "The command or call that began the run writes it again."
        record = self._record(database, "summary", last, advice)
        if rounds != sent.round:
            raise ValueError(
                f"Expected the results in {self.path} to cover all {sent.round} rounds that were "
                f"sent, got {rounds}. {advice}"
            )
        return RunSummary.from_json(record)


def is_run(folder: Path) -> bool:
    """Return whether there is a run in a folder, finished or not."""
    return RunStore(folder).exists()


def make_way(folder: Path, overwrite: bool) -> None:
    """Delete the run in a folder if `overwrite` is set; refuse a folder with other files.

    What is left of a run whose creation was cut off is deleted: it sent nothing.

    Raises:
        FileExistsError: the folder has a run and `overwrite` is not set, or has other files.
    """
    if not is_run(folder):
        if {path.name for path in folder.iterdir()} <= {files.NAME}:
            return  # nothing but the file that a process locks which begins a run
        if not _is_unborn(folder):
            raise FileExistsError(
                f"Expected a new folder for the run, got {folder}, which holds other files: "
                "choose another."
            )
    elif not overwrite:
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds a run: choose "
            "another, add --overwrite to replace it, or go on with it by the same command or call."
        )
    files.remove(folder)


def _is_unborn(folder: Path) -> bool:
    """Whether a folder holds nothing but what a creation that was cut off leaves."""
    left = {files.NAME, PARTIAL, f"{PARTIAL}-journal"}
    baseline, own = RunStore(folder / BASELINE), None
    if baseline.folder.is_dir() and not baseline.folder.is_symlink():
        # A baseline is trained before its run: if it has begun, a run was here, and is gone.
        if baseline.exists() and baseline.begun() is not False:
            return False
        if not all(_is_one_of(path, left | {NAME}) for path in baseline.folder.iterdir()):
            return False
        own = baseline.folder
    others = [path for path in folder.iterdir() if path != own]
    return all(_is_one_of(path, left) for path in others)


def _is_one_of(path: Path, names: set[str]) -> bool:
    return path.name in names and path.is_file() and not path.is_symlink()


def read_finished(folder: Path) -> RunRecord:
    """Return the finished run in a folder.

    Raises:
        ValueError: the folder holds no run, its store is damaged, or it is not finished.
    """
    run = RunStore(folder).read()
    if run.summary is None or not run.is_stated:
        raise ValueError(
            f"Expected a finished run in {folder}, got one without a summary: continue it with "
            "the command or call that began it."
        )
    return RunRecord(run.config, run.metrics, run.summary)


def digest(config: TrainConfig) -> str:
    """Digest of the settings that must not change during a run, in hexadecimal (SHA-256).

    The guarantee covers every round, so all rounds must use one configuration. With a cap on
    participations cohorts depend on the number of rounds.
    """
    fields = to_json({name: value_of(config, name) for name in NAMES})
    fixed = () if config.privacy.max_participations is None else ("rounds",)
    if config.local.standardize is not None:  # it has a share of them
        fixed += ("delta", "stop_at_epsilon")
    for name in set(FREE) - set(fixed):
        del fields[name]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def key_of(config: TrainConfig, store: RunStore) -> Key:
    """The key of a run: of its simulation seed, or the secret one in its store."""
    return store.secret().key if config.seed is None else Key.from_seed(config.seed)


def commitment(config: TrainConfig, key: Key) -> str:
    """What binds a run to its secret key without revealing it; empty for a simulation seed."""
    return key.fold_in("commitment").words(2).tobytes().hex() if config.seed is None else ""


def _content(database: sqlite3.Connection, name: str) -> str | None:
    row = database.execute("SELECT content FROM records WHERE name = ?", [name]).fetchone()
    if row is None:
        return None
    return row[0] if isinstance(row[0], str) else ""  # of a damaged file it may be a number


def _write(database: sqlite3.Connection, name: str, record: Any, before: str = "") -> None:
    database.execute("REPLACE INTO records VALUES (?, ?)", [name, _sealed(record, before)[0]])


def _sealed(record: Any, before: str) -> tuple[str, str]:
    data = serialization.seal(record, before)
    return json.dumps(data, allow_nan=False), data[CHECKSUM]


def _last(database: sqlite3.Connection) -> str:
    """The checksum of the last round; the run's identity if there is no round."""
    row = database.execute("SELECT content FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
    if row is not None:
        return json.loads(row[0])[CHECKSUM]
    sent = json.loads(_content(database, "sent") or "{}")
    del sent[CHECKSUM]
    return from_json(SentRounds, sent).identity


def _append(database: sqlite3.Connection, metrics: Sequence[RoundMetrics]) -> None:
    last = _last(database) if metrics else ""
    for each in metrics:
        content, last = _sealed(each, last)
        database.execute("INSERT INTO rounds VALUES (?, ?)", [each.round, content])


def _write_state(database: sqlite3.Connection, name: str, content: bytes) -> None:
    # The new parts first, into pages that were free before: what they held need not be kept for a
    # rollback, which would write the state a second time.
    (last,) = database.execute("SELECT COALESCE(MAX(part), 0) FROM states").fetchone()
    whole = memoryview(content)
    database.executemany(
        "INSERT INTO states (name, content) VALUES (?, ?)",
        (
            (name, whole[start : start + MAX_PART_BYTES])
            for start in range(0, len(content), MAX_PART_BYTES)
        ),
    )
    database.execute("DELETE FROM states WHERE name = ? AND part <= ?", [name, last])
