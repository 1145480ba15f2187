"""The store of one party of a run, in one SQLite file: records by name, rounds in order, arrays.

After a loss of power SQLite has every transaction that was committed, and nothing of any other.
Each record has a checksum, which reveals changes from outside; where records follow each other,
each checksum covers the one before. A server's `History` is made of its rounds.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from randquant._internal import files, formatting, validate
from randquant._internal.files import (
    CHECKSUM,
    Database,
    exists,
    make_folder,
    pack_arrays,
    unpack_arrays,
)
from randquant._internal.formatting import from_json
from randquant.privacy.guarantee import Guarantee

Measured = Mapping[int, Mapping[str, Any]]
"""The server's evaluation after each round: values by name."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round on Flower: its cost, its clients, and its bytes.

    Attributes:
        round: 1 for the first.
        epsilon: proven upper bound for every client, if the run was declared to end after this
            round.
        asked, dropped: number of clients that were asked for an update, and of those among them
            that are not in the mean.
        sent_bytes, upload_bytes: bytes of all messages of the client that sent most, and of the
            largest update.
        plain_bytes: bytes of an update as plain codes, which the server would see one by one.
        failed: why the round failed; empty if it succeeded.
    """

    round: int
    epsilon: float
    asked: int
    dropped: int
    sent_bytes: int = 0
    upload_bytes: int = 0
    plain_bytes: int = 0
    failed: str = ""

    def line(self, other: str = "") -> str:
        """Return the round as a line of the run's log; `other` stands behind epsilon."""
        cost = f"round {self.round}: {formatting.bound(self.epsilon)}{other}"
        if self.failed:
            return f"{cost}; {self.asked} clients were asked, and the round failed"
        update = f"a client's update had {self.upload_bytes:,} bytes"
        if self.sent_bytes:  # 0 where the engine does not count messages
            update = (
                f"a client sent {self.sent_bytes:,} bytes, {self.upload_bytes:,} of them its update"
            )
        return (
            f"{cost}; {self.asked} clients, {self.dropped} dropped; {update} "
            f"({self.plain_bytes:,} as plain codes, which the server would see one by one)"
        )


@dataclass(frozen=True, slots=True)
class History:
    """A run on Flower, for a report.

    Attributes:
        title: of the run.
        rows: its rounds, failed ones included.
        guarantee: for every client and all rounds.
        measured: the server's evaluation by round, of which only the numbers are kept; empty if
            there was none.
        target: the epsilon that ends the training; None without one.
        assumes: the assumptions of the guarantee (`RunAccountant.assumes`).
        helped: True if updates are summed with a helper.
        hostile: a sentence on how far one client can move the last round's mean; empty if that is
            not known.
        other_relation: the guarantee under the neighbouring relation that it is not for; None where
            that is not derived.
    """

    title: str
    rows: Sequence[RoundRow]
    guarantee: Guarantee
    measured: Measured = field(default_factory=dict)
    target: float | None = None
    assumes: str = ""
    helped: bool = False
    hostile: str = ""
    other_relation: Guarantee | None = None

    def __post_init__(self) -> None:
        # Flower's records hold whole numbers, too: how many of the test's examples were right.
        numbers = {
            number: {
                name: float(value)
                for name, value in metrics.items()
                if isinstance(value, (int, float))
            }
            for number, metrics in self.measured.items()
        }
        object.__setattr__(self, "measured", numbers)

    @property
    def metric_names(self) -> list[str]:
        return sorted({name for metrics in self.measured.values() for name in metrics})


STORE_VERSION = 1
"""Version of these tables, in a run's store (`training.run_store`) and in a server's. A file of any
other, earlier or later, is refused whole (`_internal.files.Database`): a new one needs a conversion
of the files of the release before (docs/release.md). A new field of a record needs no new version:
an older `from_json` refuses a record with a field that it does not know."""
TABLES = (
    "CREATE TABLE records (name TEXT PRIMARY KEY, content TEXT) WITHOUT ROWID",
    "CREATE TABLE rounds (round INTEGER PRIMARY KEY, content TEXT)",
    "CREATE TABLE states (part INTEGER PRIMARY KEY, name TEXT, content BLOB)",
)
MAX_PART_BYTES = 2**26
"""Bytes of a state in one row. SQLite has a whole row in memory, and rows have at most 1e9 bytes.
With half of this a large model has twice as many rows, which takes no longer."""

RESTORE = (
    "Restore it from a copy, and delete the file next to it whose name ends in -journal, if there "
    "is one; or begin a new run."
)
"""Advice for a damaged file. A journal belongs to the file that it was left with: SQLite would roll
back a restored copy by it."""


@dataclass(frozen=True, slots=True)
class Store:
    """Reads and writes one party's file.

    Attributes:
        path: the file. Nothing is read or created before a method is called.
        kind: a noun with its article for the file, for messages.
        records: the names of its records, each with a noun for messages.
        states: the names of its states.

    Raises:
        ValueError: (all that reads) there is no such file, or a record was changed.
        OSError: (all methods) the file cannot be read or written, or SQLite finds it damaged.
    """

    path: Path
    kind: str
    records: Mapping[str, str]
    states: Sequence[str]

    @property
    def _database(self) -> Database:
        # Overwritten content need not be wiped: a run's key is written once and goes with its file.
        return Database(self.path, TABLES, STORE_VERSION, self.kind, keeps_deleted=True)

    def exists(self) -> bool:
        # True of a damaged file too: its run has spent epsilon, so none may begin in its place.
        return exists(self.path)

    def create(self, fill: Callable[[Contents], object]) -> None:
        """Create the file: it has all that `fill` writes, or it does not exist."""
        make_folder(self.path.parent)
        self._database.create_whole(lambda database: fill(Contents(self, database)))

    @contextlib.contextmanager
    def changing(self) -> Iterator[Contents]:
        """Read and write in one transaction; an error changes nothing."""
        # SQLite would create a missing file, which would state a smaller cost than was spent.
        if not self.exists():
            raise FileNotFoundError(
                f"Expected {self.kind} in {self.path}, got no file: it was deleted or moved while "
                "the run went on. Put it back."
            )
        with self._database.transaction() as database:
            yield Contents(self, database)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Contents]:
        # One transaction: all that is read is of one moment, while others may write to the file.
        try:
            with self._database.reading() as database:
                names = "SELECT name FROM records UNION SELECT name FROM states"
                # A damaged name would hide its row. It is not shown: damage may have made a secret
                # key a part of it.
                if {name for (name,) in database.execute(names)} - {*self.records, *self.states}:
                    raise ValueError(
                        f"Expected records of a run in {self.path}, got an unknown name. {RESTORE}"
                    )
                yield Contents(self, database)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"Expected a run in {self.path.parent}, found no {self.path.name} there."
            ) from None


@dataclass(frozen=True, slots=True)
class Contents:
    """A store's contents within one transaction.

    Attributes:
        store: the store.
        database: the connection.
    """

    store: Store
    database: sqlite3.Connection

    def has(self, name: str) -> bool:
        return self._text(name) is not None

    def record(self, name: str, before: str = "", advice: str = RESTORE) -> dict[str, Any]:
        return self.sealed(name, before, advice)[0]

    def sealed(
        self, name: str, before: str = "", advice: str = RESTORE
    ) -> tuple[dict[str, Any], str]:
        """Return a record and its checksum.

        Args:
            name: of the record.
            before: as it was passed to `write`.
            advice: what to do if the record is missing or damaged, for the error's message.
        """
        content, what, path = self._text(name), self.store.records[name], self.store.path
        if content is None:
            raise ValueError(f"Expected {what} in {path}, found none: no record {name!r}. {advice}")
        try:
            return files.unseal(content, before)
        except ValueError as error:
            raise ValueError(
                f"Expected {what} in {path} as it was written, but: {error}. {advice}"
            ) from None

    def write(self, name: str, record: Any, before: str = "") -> None:
        """Write a record; its checksum covers `before`, which is needed to read it."""
        row = [name, _sealed(record, before)[0]]
        self.database.execute("REPLACE INTO records VALUES (?, ?)", row)

    def delete(self, name: str) -> None:
        self.database.execute("DELETE FROM records WHERE name = ?", [name])

    def rounds(self, first: str) -> Iterator[tuple[dict[str, Any], str]]:
        """Read the rounds in order, each with its checksum.

        Args:
            first: checksum that the first round follows.

        Raises:
            ValueError: a round was changed, or one is missing or moved.
        """
        # A chain: a round that was taken from another place, or another run, does not fit.
        last, rows = first, "SELECT round, content FROM rounds ORDER BY round"
        for place, (number, content) in enumerate(self.database.execute(rows), 1):
            try:
                record, last = files.unseal(content, last)
                if number != place:
                    raise ValueError(f"it is round {number}")
            except (TypeError, ValueError) as error:
                raise self.wrong_round(place, error) from None
            yield record, last

    def wrong_round(self, place: int, error: Exception) -> ValueError:
        """Return the error of a round that is not as it was written."""
        reason = str(error).rstrip(".")
        return ValueError(
            f"Expected round {place} in {self.store.path} as it was written, but: {reason}. "
            f"{RESTORE}"
        )

    def last(self) -> str | None:
        """Return the checksum of the last round; None if there is no round.

        Raises:
            OSError: it is damaged, so that no round can follow it.
        """
        content = "SELECT content FROM rounds ORDER BY round DESC LIMIT 1"
        row = self.database.execute(content).fetchone()
        try:
            return None if row is None else json.loads(row[0])[CHECKSUM]
        except (KeyError, TypeError, ValueError) as error:
            raise OSError(
                f"Expected the last round in {self.store.path} as it was written, but: {error}. "
                f"{RESTORE}"
            ) from None

    def append(self, rounds: Sequence[Any], last: str) -> None:
        """Append rounds; `last` is the checksum that the first of them follows."""
        (count,) = self.database.execute("SELECT COUNT(*) FROM rounds").fetchone()
        for place, row in enumerate(rounds, count + 1):
            content, last = _sealed(row, last)
            self.database.execute("INSERT INTO rounds VALUES (?, ?)", [place, content])

    def write_rounds(self, rounds: Sequence[Any], first: str) -> None:
        """Write all rounds again; `first` is the checksum that the first of them follows."""
        (before,) = self.database.execute("SELECT COUNT(*) FROM rounds").fetchone()
        if len(rounds) < before:
            # A round whose requests were sent may have been answered: its cost is never forgotten.
            raise ValueError(f"Expected {before} rounds or more, got {len(rounds)}.")
        self.database.execute("DELETE FROM rounds")
        self.append(rounds, first)

    def state(self, name: str) -> bytes:
        """Return a state; empty if there is none of that name."""
        parts = "SELECT content FROM states WHERE name = ? ORDER BY part"
        rows = self.database.execute(parts, [name])
        # Damage can turn a part into another type: without that part the checksum does not fit.
        return b"".join(part for (part,) in rows if isinstance(part, bytes))

    def write_state(self, name: str, content: bytes) -> None:
        """Write a state, replacing the one of that name."""
        # The new parts first, into free pages: SQLite need not save free pages for a rollback,
        # which would write the state a second time. Only then the old parts are deleted.
        (last,) = self.database.execute("SELECT COALESCE(MAX(part), 0) FROM states").fetchone()
        view = memoryview(content)  # slices of it copy no part of a large model
        self.database.executemany(
            "INSERT INTO states (name, content) VALUES (?, ?)",
            (
                (name, view[start : start + MAX_PART_BYTES])
                for start in range(0, len(content), MAX_PART_BYTES)
            ),
        )
        self.database.execute("DELETE FROM states WHERE name = ? AND part <= ?", [name, last])

    def _text(self, name: str) -> str | None:
        content = "SELECT content FROM records WHERE name = ?"
        row = self.database.execute(content, [name]).fetchone()
        if row is None:
            return None
        # Damage can make it a number; an empty text is reported as a changed record.
        return row[0] if isinstance(row[0], str) else ""


def _sealed(record: Any, before: str) -> tuple[str, str]:
    data = files.seal(record, before)
    return json.dumps(data, allow_nan=False), data[CHECKSUM]


# In the order in which `ServerStore.read` takes them. The names are on users' disks.
SERVER_RECORDS = {
    "run": "the run's settings",
    "asked": "the account of the rounds that were asked for",
    "progress": "the run's progress",
}


@dataclass(frozen=True, slots=True)
class StoredRounds:
    """A server's run as read from its store.

    Attributes:
        run: digest of its offer and name of its step, as they were when it began.
        account: `RunAccountant.state_dict` of all rounds that were asked for, the last included.
        rounds_over: number of rounds before that one, failed ones included.
        progress: as passed to `ServerStore.commit` after the last successful round.
        history: all rounds, failed ones included.
        arrays: the model after the last successful round, and its optimizer's arrays.
    """

    run: dict[str, Any]
    account: dict[str, Any]
    rounds_over: int
    progress: dict[str, Any]
    history: list[RoundRow]
    arrays: dict[str, np.ndarray]


class ServerStore:
    """The store of a server on an engine: its account, its rounds, and its model.

    Args:
        path: the file.

    Raises:
        ValueError: (all that reads) the file is damaged; (all that writes) a record or an array
            could not be read again.
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._store = Store(path, "the state of a run", SERVER_RECORDS, ("model",))

    def exists(self) -> bool:
        return self._store.exists()

    def create(
        self,
        run: Mapping[str, Any],
        account: Mapping[str, Any],
        rounds_over: int,
        arrays: Mapping[str, np.ndarray],
        history: Sequence[RoundRow] = (),
    ) -> None:
        """Create the file before any client is asked: with the first round's account and the model.

        Args:
            run: digest of its offer and name of its step.
            account, rounds_over: as in `record_before_sending`.
            arrays: the initial model, and its optimizer's arrays.
            history: rounds that failed before any client was asked.
        """
        progress = {"rounds": 0}
        state = pack_arrays(progress, arrays)  # before the transaction: it takes long, and may fail

        def fill(contents: Contents) -> None:
            contents.write("run", run)
            contents.write("asked", _charged_record(account, rounds_over))
            contents.write("progress", progress)
            contents.append(history, _first(contents))
            contents.write_state("model", state)

        self._store.create(fill)

    def record_before_sending(self, account: Mapping[str, Any], rounds_over: int) -> None:
        """Write the account with a round before its first request is sent.

        Args:
            account: `RunAccountant.state_dict` with that round.
            rounds_over: number of rounds before it.
        """
        # On the disk when this returns: a server that is killed afterwards has counted what its
        # clients may answer.
        with self._store.changing() as contents:
            contents.write("asked", _charged_record(account, rounds_over))

    def commit(
        self, row: RoundRow, progress: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Write a successful round.

        Args:
            row: the round.
            progress: `rounds` up to this one, and the state of the steps.
            arrays: the model after the round, and its optimizer's arrays.
        """
        # Round, progress and model in one transaction: never a model of another round than the row.
        state = pack_arrays(progress, arrays)
        with self._store.changing() as contents:
            contents.append([row], contents.last() or _first(contents))
            contents.write("progress", progress)
            contents.write_state("model", state)

    def record_failure(self, row: RoundRow) -> None:
        # Without a state: the model stays that of the last successful round.
        with self._store.changing() as contents:
            contents.append([row], contents.last() or _first(contents))

    def read(self) -> StoredRounds:
        """Return everything that a run needs to continue."""
        with self._store.reading() as contents:
            run, charged, progress = (contents.record(name) for name in SERVER_RECORDS)
            history = [from_json(RoundRow, row) for row, _ in contents.rounds(_first(contents))]
            content = contents.state("model")
        try:
            account = charged["account"]
            rounds_over = validate.whole("rounds_over", charged["rounds_over"], low=0)
            model_progress, arrays = unpack_arrays(content)
            # The model must not be of an earlier round than the account and the rounds.
            if model_progress != progress:
                raise ValueError("its model is of another round")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"Expected the state of a run in {self.path}, but: {error}. {RESTORE}"
            ) from None
        return StoredRounds(run, account, rounds_over, progress, history, arrays)


def _charged_record(account: Mapping[str, Any], rounds_over: int) -> dict[str, Any]:
    return {"account": account, "rounds_over": rounds_over}


def _first(contents: Contents) -> str:
    # The chain of rounds begins at the run's record: rounds of another run do not fit.
    return contents.sealed("run")[1]
