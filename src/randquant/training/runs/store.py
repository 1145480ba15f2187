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

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from randquant._internal import files
from randquant._internal.database import PARTIAL
from randquant._internal.files import sync_folder
from randquant._internal.serialization import from_json, to_json
from randquant.channels.keys import Key
from randquant.rounds.store import RESTORE, Contents, Store
from randquant.training.config import NAMES, TrainConfig, check_config, value_of
from randquant.training.records import RoundMetrics, RunRecord, RunSummary, SentRounds

NAME, REPORT, BASELINE = "run.sqlite", "report.html", "baseline"

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
        self._store = Store(self.path, "a run's store", RECORDS, STATES)

    def exists(self) -> bool:
        """Return whether there is a run, which may be damaged."""
        return self._store.exists()

    def create(self, records: Mapping[str, Any], initial: bytes = b"") -> None:
        """Begin a run: afterwards its folder has all of this, or there is no run.

        Args:
            records: by their names, `config` and `sent` at least.
            initial: its first state; empty for a baseline, which begins with the run's.
        """

        def fill(contents: Contents) -> None:
            for name, record in records.items():
                contents.write(name, record)
            contents.write_state("initial", initial)

        self._store.create(fill)

    def config(self) -> TrainConfig:
        """Return the settings of the run."""
        with self._store.reading() as contents:
            return self._config(contents)

    def sent(self) -> SentRounds:
        """Return what the run has declared and sent."""
        with self._store.reading() as contents:
            return self._sent(contents, self._config(contents))

    def begun(self) -> bool | None:
        """Return whether the run has begun to ask or send; None if no record says."""
        try:
            with self._store.reading() as contents:
                return from_json(SentRounds, contents.record("sent")).begun
        except (ValueError, OSError):
            return None

    def read(self, *, results: bool = True) -> StoredRun:
        """Return all that is stated of the run; damaged results can be left out, and written again.

        Args:
            results: whether to read the summary.
        """
        with self._store.reading() as contents:
            config = self._config(contents)
            sent = self._sent(contents, config)
            metrics, last = self._rounds(contents, sent)
            summary = self._summary(contents, last, len(metrics), sent) if results else None
            return StoredRun(config, sent, metrics, summary)

    def has(self, name: str) -> bool:
        """Return whether the run has a record of that name."""
        with self._store.reading() as contents:
            return contents.has(name)

    def record(self, name: str, before: str = "") -> dict[str, Any]:
        """Return a record, which was written with that `before`."""
        with self._store.reading() as contents:
            return contents.record(name, before)

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
        with self._store.reading() as contents:
            return contents.state(name)

    def write(self, name: str, record: Any, before: str = "") -> None:
        """Write a record; `before` is what it must follow, and is needed to read it."""
        with self._store.changing() as contents:
            contents.write(name, record, before)

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
        with self._store.changing() as contents:
            if metrics is not None:
                contents.write_rounds(metrics, _identity(contents))
            contents.delete("summary")
            contents.write("sent", sent)

    def commit(self, metrics: RoundMetrics | None, state: bytes = b"") -> None:
        """Write a finished round; None if it was written before.

        Args:
            metrics: of the round.
            state: a checkpoint after it; empty for none.
        """
        with self._store.changing() as contents:
            if metrics is not None:
                contents.append([metrics], contents.last() or _identity(contents))
            if state:
                contents.write_state("latest", state)

    def write_summary(self, summary: RunSummary) -> None:
        """Write the results of a run that has ended."""
        with self._store.changing() as contents:
            contents.write("summary", summary, contents.last() or _identity(contents))

    def _config(self, contents: Contents) -> TrainConfig:
        advice = (
            f"Restore it: settings that may change ({', '.join(FREE)}) are given to the command or "
            "call that goes on with the run; for anything else begin a new run."
        )
        record = contents.record("config", advice=advice)
        try:
            config = TrainConfig.from_json(record)
            check_config(config)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Expected valid settings in {self.path}: {error}") from None
        return config

    def _sent(self, contents: Contents, config: TrainConfig) -> SentRounds:
        sent = from_json(SentRounds, contents.record("sent"))
        if sent.settings != digest(config):
            raise ValueError(
                f"Expected the configuration that the run in {self.folder} began with, got "
                "another: its rounds would not have the guarantee that is printed. Restore "
                f"{NAME} or begin a new run."
            )
        return sent

    def _rounds(self, contents: Contents, sent: SentRounds) -> tuple[tuple[RoundMetrics, ...], str]:
        """Return the metrics of all rounds, and the last checksum or the run's identity."""
        last, metrics = sent.identity, []
        for record, last in contents.rounds(last):  # noqa: B007, B020 - the last one is returned
            try:
                metrics.append(from_json(RoundMetrics, record))
                if metrics[-1].round != len(metrics):
                    raise ValueError(f"it is round {metrics[-1].round}")
            except (TypeError, ValueError) as error:
                raise contents.wrong_round(len(metrics) or 1, error) from None
        # All rounds that were sent are there, except perhaps the last, interrupted one.
        if not sent.round - 1 <= len(metrics) <= sent.round:
            raise ValueError(
                f"Expected {max(sent.round - 1, 0)} to {sent.round} rounds in {self.path}, since "
                f"{sent.round} were sent, got {len(metrics)}: rounds are missing. {RESTORE}"
            )
        return tuple(metrics), last

    def _summary(
        self, contents: Contents, last: str, rounds: int, sent: SentRounds
    ) -> RunSummary | None:
        if not contents.has("summary"):
            return None
        advice = "The command or call that began the run writes it again."
        record = contents.record("summary", last, advice)
        if rounds != sent.round:
            raise ValueError(
                f"Expected the results in {self.path} to cover all {sent.round} rounds that were "
                f"sent, got {rounds}. {advice}"
            )
        return RunSummary.from_json(record)


def _identity(contents: Contents) -> str:
    """What a run's first round follows."""
    return from_json(SentRounds, contents.record("sent")).identity


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
    left = {files.NAME, NAME + PARTIAL, f"{NAME}{PARTIAL}-journal"}
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
