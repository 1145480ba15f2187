"""A run's record of declared, sent and measured rounds: one SQLite file in its folder; its status.

    RUN/run.sqlite     everything that a resumed run needs; only its user can read it
    RUN/report.html, report.facts.json    the results as a page, and as JSON
    RUN/lock           held by the process that trains it
    RUN/baseline/      the same run without privacy, if one was asked for

Its table `records` has JSON objects by name, `rounds` the metrics of each finished round, and
`states` two models: the initial one and the latest. A round is recorded in `sent` before clients
are asked.

SQLite keeps what was committed through a loss of power, and nothing of what was not. Against
changes from outside each record has a checksum, which is part of the next one's where records
follow each other, and all are bound to the run by the digest of its settings and its channel.

A `Status` is read from the file: nothing is trained, locked or changed. Which versions of the file
are read: `rounds.store.STORE_VERSION`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from randquant._internal import files, validate
from randquant._internal.files import PARTIAL, sync_folder
from randquant._internal.formatting import from_json, stored_as
from randquant.channels.keys import Key
from randquant.privacy.guarantee import SIMULATED, Guarantee, Neighboring
from randquant.rounds.store import RESTORE, Contents, Store
from randquant.training.config import CHANGEABLE_SETTINGS, TrainConfig, check_config, digest


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The released mean of one round, and the time and traffic it took.

    Attributes:
        train_loss: mean loss of the cohort's local data, in nats, before the step; None if nobody
            took part.
        bytes_up: bytes that all clients of the round uploaded, headers included; under
            `aggregate` trust those of masked vectors (the handshake is not counted). Of a plan's
            Candidate, `bytes_up` is of one client: stored files keep both names.
        seconds_gradient: wall time that workers spent in forward and backward passes.
        seconds_protect: all the rest of the round: clip, encode, pack, unpack, sum, decode, step.
        mean: SHA-256 of the decoded mean, which is all that the server learns, in hexadecimal.
            Empty if nobody took part.
        mean_norm: L2 norm of the decoded mean, noise included; None if nobody took part.
        noise_norm: expected L2 norm of the noise in the mean; None where the mechanism does not
            say.
        numbers: means over the cohort of the numbers that clients sent with their updates, by name,
            each with the standard deviation of its noise as `NAME_deviation`. The guarantee covers
            them. They are estimates: noise may move them beyond their bounds.
    """

    train_loss: float | None
    bytes_up: int
    seconds_gradient: float
    seconds_protect: float
    mean: str = ""
    mean_norm: float | None = None
    noise_norm: float | None = None
    numbers: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMetrics(RoundCost):
    """A round of a run: its release and cost, and the state of the run after it.

    Attributes:
        round: 1 for the first round.
        accuracy, loss: on test data, or None on rounds without evaluation; loss in nats for
            cross-entropy. Accuracy is None where the task is not a classification.
        balanced_accuracy: on the same, the mean of the classes' accuracies; None unless the most
            frequent class has 1.5 times the examples of the rarest one.
        auc: on the same, the area under the ROC curve; None unless there are two classes.
        seconds_evaluate: evaluation on test data, in seconds.
        seconds: wall time of the round and its evaluation.
        participations: the most rounds that any client has taken part in, this one included.
        epsilon: proven upper bound of that client's epsilon if the run had been declared to end
            with this round; None without privacy. It is not the guarantee of a run whose end was
            chosen by looking at it: that guarantee covers all declared rounds.
        delta, neighboring: those of that epsilon; they may change when a run is resumed.
    """

    round: int
    accuracy: float | None = None
    loss: float | None = None
    seconds_evaluate: float = 0.0
    participations: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighboring: Neighboring | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None

    @property
    def seconds(self) -> float:
        return self.seconds_gradient + self.seconds_protect + self.seconds_evaluate


@dataclass(frozen=True, slots=True)
class SentRounds:
    """The rounds a run has declared and sent, including the current one.

    It is written to disk before a round is sent: after a crash the files never state fewer rounds
    than clients have answered.

    Attributes:
        settings: digest of the settings that must not change during the run.
        fingerprint: of its channel, or of its own mechanism (`mechanism_fingerprint`), in
            hexadecimal; empty if it uses none. Stored runs name it `channel`.
        round: number of rounds that were started.
        declared: number of rounds of the run when its first one was sent. The run may end earlier,
            for any reason, but never later.
        participations: the most of the declared rounds that any client takes part in.
        epsilon: proven upper bound of that client's epsilon after all declared rounds; None without
            privacy.
        delta, neighboring: those of that epsilon.
        commitment: binds the run to its secret key without revealing it; empty for a seed.
        asked: clients were asked for the statistics that standardise the data.
    """

    settings: str
    fingerprint: str = field(metadata=stored_as("channel"))
    round: int
    declared: int
    participations: int
    epsilon: float | None
    delta: float
    neighboring: Neighboring
    commitment: str = ""
    asked: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        # Read back from a file: a record that contradicts itself must not pass for a smaller cost.
        validate.whole("declared", self.declared, low=1)
        validate.whole("round", self.round, low=0, high=self.declared)
        validate.whole("participations", self.participations, low=0, high=self.declared)
        validate.real("delta", self.delta, low=0, high=1, why="it is a probability")

    @property
    def binding(self) -> bool:
        # Rounds can no longer be added once something was sent under a guarantee.
        return self.begun and self.epsilon is not None

    @property
    def begun(self) -> bool:
        return self.round > 0 or self.asked

    @property
    def identity(self) -> str:
        # All files of the run are bound to it: a record of another run would not be read.
        return hashlib.sha256(f"{self.settings} {self.fingerprint}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The results of a finished run.

    Attributes:
        accuracy, loss: of the final model on test data; None without test data, accuracy also
            where the task is not a classification.
        dimension: coordinates of an update.
        bytes_per_upload: bytes one client uploads in one round it takes part in: `upload_bytes`
            of a Run and a mechanism. Stored runs and JSON keep this name.
        bits_per_coordinate: the same in bits, for each coordinate of an update.
        participations: the most of the declared rounds that any client takes part in.
        guarantee: of all declared rounds, also if the run ended before; None without privacy.
        rounds: number of rounds that were done.
        stopped: reason why these are fewer than configured or declared; empty if they are not.
        bytes_as_codes: bytes of one client's plain codes, not masked for a sum.
        beside: a second guarantee of the same run, of a whole client, against the server and
            anyone who sees who takes part, where `guarantee` is of one example or under `model`
            trust; else None.
        advice: what to do about the released means or the loss on test data; may be empty.
        spent: the part of the guarantee that was spent before the first round: before the run
            (`Privacy.spent`), and on the statistics that it standardises by; None if nothing was.
        balanced_accuracy, auc: of the final model, as in `RoundMetrics`.
        other_relation, beside_other_relation: `guarantee` and `beside` under the neighbouring
            relation that they are not for, from the same declared releases; None where that is not
            derived.
        examples: fewest examples whose clipped gradients an update is the mean of, where one
            example is the unit; else None.
    """

    accuracy: float | None
    loss: float | None
    dimension: int
    bytes_per_upload: int
    participations: int
    guarantee: Guarantee | None
    rounds: int
    stopped: str = ""
    bytes_as_codes: int = 0
    beside: Guarantee | None = None
    advice: str = ""
    spent: Guarantee | None = None
    other_relation: Guarantee | None = None
    beside_other_relation: Guarantee | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None
    examples: int | None = None

    @property
    def bits_per_coordinate(self) -> float:
        return 8 * self.bytes_per_upload / self.dimension

    @property
    def figures_if_imbalanced(self) -> Mapping[str, float]:
        """Figures to read with the accuracy, by name; empty unless classes are imbalanced."""
        if self.balanced_accuracy is None:
            return {}
        named = {"balanced accuracy": self.balanced_accuracy, "AUC": self.auc}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> RunSummary:
        """Build a summary, its guarantee too, from parsed JSON.

        Raises:
            ValueError: a field is missing or unknown.
        """
        # Guarantees are records within the record: their fields are checked one by one as well.
        summary = from_json(cls, data)
        names = "guarantee", "beside", "spent", "other_relation", "beside_other_relation"
        parsed: dict[str, Any] = {name: getattr(summary, name) for name in names}
        return dataclasses.replace(summary, **{
            name: None if record is None else from_json(Guarantee, record)
            for name, record in parsed.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run: its configuration, the metrics of each round, and its results.

    Attributes:
        rounds: number of rounds that were done.
        seconds: wall time of all rounds and evaluations, without loading data and compiling.
    """

    config: TrainConfig
    metrics: Sequence[RoundMetrics]
    summary: RunSummary

    @property
    def rounds(self) -> int:
        return self.summary.rounds

    @property
    def seconds(self) -> float:
        return sum(metrics.seconds for metrics in self.metrics)


NAME = "run.sqlite"
REPORT = "report.html"
FACTS_FILE_NAME = "report.facts.json"
BASELINE = "baseline"

RECORDS = {
    "config": "the settings of the run",
    "sent": "the record of what was sent",
    "problem": "what the run began with",
    "key": "the run's secret key",
    "standardization": "the figures that the run standardises by",
    "summary": "the results of the run",
}
"""The names of records, each with its meaning for error messages."""

STATES = ("initial", "latest")
"""The names of states: the weights that the run began with, and those of the last checkpoint."""


@dataclass(frozen=True, slots=True)
class StoredRun:
    """The contents of a run's store at one moment.

    Attributes:
        config: its settings.
        sent_rounds: rounds that it has declared and sent.
        metrics: of rounds 1, 2, and so on; the last round that was sent may be missing.
        summary: the results; None before the end.
    """

    config: TrainConfig
    sent_rounds: SentRounds
    metrics: tuple[RoundMetrics, ...]
    summary: RunSummary | None

    @property
    def is_stated(self) -> bool:
        """True if there are results for the delta and the neighbours that are configured."""
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
        # Of any kind: a damaged run must not be taken for an empty folder and overwritten.
        return self._store.exists()

    def create(self, records: Mapping[str, Any], initial: bytes = b"") -> None:
        """Begin a run: afterwards its folder has all records, or there is no run.

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
        with self._store.reading() as contents:
            return self._config(contents)

    def sent_rounds(self) -> SentRounds:
        with self._store.reading() as contents:
            return self._sent_rounds(contents, self._config(contents))

    def begun(self) -> bool | None:
        # None if that cannot be read. Without the settings, because a run whose settings are
        # damaged may have sent rounds all the same.
        try:
            with self._store.reading() as contents:
                return from_json(SentRounds, contents.record("sent")).begun
        except (ValueError, OSError):
            return None

    def read(self, *, results: bool = True) -> StoredRun:
        """Return the contents of the store.

        Args:
            results: whether to read the summary; a damaged one can be left out and written again.
        """
        # One transaction: a process that trains meanwhile must not change half of what is read.
        with self._store.reading() as contents:
            config = self._config(contents)
            sent_rounds = self._sent_rounds(contents, config)
            metrics, last = self._rounds(contents, sent_rounds)
            summary = self._summary(contents, last, len(metrics), sent_rounds) if results else None
            return StoredRun(config, sent_rounds, metrics, summary)

    def has(self, name: str) -> bool:
        with self._store.reading() as contents:
            return contents.has(name)

    def record(self, name: str, before: str = "") -> dict[str, Any]:
        # `before` must be the text that it was written with: the checksum covers it.
        with self._store.reading() as contents:
            return contents.record(name, before)

    def key(self) -> Key:
        """Return the run's secret key."""
        record = self.record("key")
        try:
            return Key(bytes.fromhex(record["key"]))
        except (KeyError, TypeError, ValueError):
            # What the file holds may be most of the secret: no message or traceback shows it.
            raise ValueError(
                f"Expected 32 secret bytes in {self.path}, got a damaged record. {RESTORE}"
            ) from None

    def state(self, name: Literal["initial", "latest"]) -> bytes:
        with self._store.reading() as contents:
            return contents.state(name)

    def write(self, name: str, record: Any, before: str = "") -> None:
        # The checksum covers `before`, so that the record is read only after the same text.
        with self._store.changing() as contents:
            contents.write(name, record, before)

    def write_sent(
        self, sent_rounds: SentRounds, metrics: Sequence[RoundMetrics] | None = None
    ) -> None:
        """Write the declared and sent rounds, before the next round is sent.

        Args:
            sent_rounds: rounds that are declared and sent.
            metrics: all finished rounds again, at another delta or with one more evaluation; None
                to leave them.
        """
        # Neither the report nor the summary covers what follows. The report goes first, and for
        # good: a kill in between leaves no page that states less than the record.
        stale = [
            path for name in (REPORT, FACTS_FILE_NAME) if (path := self.folder / name).exists()
        ]
        for path in stale:
            path.unlink()
        if stale:
            sync_folder(self.folder)
        with self._store.changing() as contents:
            if metrics is not None:
                contents.write_rounds(metrics, _identity(contents))
            contents.delete("summary")
            contents.write("sent", sent_rounds)

    def commit(self, metrics: RoundMetrics | None, state: bytes = b"") -> None:
        """Write a finished round; None if it was written before.

        Args:
            metrics: of the round.
            state: a checkpoint after it; empty for none.
        """
        # One transaction, so that no checkpoint is ahead of the metrics.
        with self._store.changing() as contents:
            if metrics is not None:
                # Chained to the round before, the first one to the run's identity: no round can be
                # dropped, exchanged or taken from another run unseen.
                contents.append([metrics], contents.last() or _identity(contents))
            if state:
                contents.write_state("latest", state)

    def write_summary(self, summary: RunSummary) -> None:
        # Bound to the last round: results of fewer rounds cannot be put back later.
        with self._store.changing() as contents:
            contents.write("summary", summary, contents.last() or _identity(contents))

    def _config(self, contents: Contents) -> TrainConfig:
        advice = (
            f"Restore it: settings that may change ({', '.join(CHANGEABLE_SETTINGS)}) are given to "
            "the command or call that goes on with the run; for anything else begin a new run."
        )
        record = contents.record("config", advice=advice)
        try:
            config = TrainConfig.from_json(record)
            check_config(config)
        except (ValueError, TypeError) as error:
            raise ValueError(f"Expected valid settings in {self.path}: {error}") from None
        return config

    def _sent_rounds(self, contents: Contents, config: TrainConfig) -> SentRounds:
        sent_rounds = from_json(SentRounds, contents.record("sent"))
        # Two intact records that do not belong together: one of them is from another run. The
        # digests are not shown, as they do not say what differs.
        if sent_rounds.settings != digest(config):
            raise ValueError(
                f"Expected the configuration that the run in {self.folder} began with, got a "
                "different one: its rounds would not have the guarantee that is printed. Restore "
                f"{NAME} or begin a new run."
            )
        return sent_rounds

    def _rounds(
        self, contents: Contents, sent_rounds: SentRounds
    ) -> tuple[tuple[RoundMetrics, ...], str]:
        # Second, the text that the next record must follow: the last checksum, if there is one.
        last, metrics = sent_rounds.identity, []
        for record, last in contents.rounds(last):  # noqa: B007, B020 - the last one is returned
            try:
                metrics.append(from_json(RoundMetrics, record))
                if metrics[-1].round != len(metrics):
                    raise ValueError(f"it is round {metrics[-1].round}")
            except (TypeError, ValueError) as error:
                raise contents.wrong_round(len(metrics) or 1, error) from None
        # Each round is committed before the next is sent, so only the last may be missing: it was
        # interrupted.
        if not sent_rounds.round - 1 <= len(metrics) <= sent_rounds.round:
            raise ValueError(
                f"Expected {max(sent_rounds.round - 1, 0)} to {sent_rounds.round} rounds in "
                f"{self.path}, since {sent_rounds.round} were sent, got {len(metrics)}: rounds are "
                f"missing. {RESTORE}"
            )
        return tuple(metrics), last

    def _summary(
        self, contents: Contents, last: str, rounds: int, sent_rounds: SentRounds
    ) -> RunSummary | None:
        if not contents.has("summary"):
            return None
        advice = "The command or call that began the run writes it again."
        record = contents.record("summary", last, advice)
        # `write_sent` deletes the summary, so an intact one covers all that was sent.
        if rounds != sent_rounds.round:
            raise ValueError(
                f"Expected the results in {self.path} to cover all {sent_rounds.round} rounds that "
                f"were sent, got {rounds}. {advice}"
            )
        return RunSummary.from_json(record)


def _identity(contents: Contents) -> str:
    return from_json(SentRounds, contents.record("sent")).identity


def is_run(folder: Path) -> bool:
    """Return whether there is a run in a folder, finished or not."""
    return RunStore(folder).exists()


def clear_folder(folder: Path, overwrite: bool) -> None:
    """Delete the run in a folder if `overwrite` is set; refuse a folder with other files.

    The files of a creation that was interrupted are deleted: that run sent nothing.

    Raises:
        FileExistsError: the folder has a run and `overwrite` is not set, or has other files.
    """
    if not is_run(folder):
        if {path.name for path in folder.iterdir()} <= {files.LOCK_NAME}:
            return  # the lock file alone, of a process that was about to begin a run
        if not _is_interrupted_creation(folder):
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


def _is_interrupted_creation(folder: Path) -> bool:
    # The folder is deleted if so: anything that `create` does not write is a reason to keep it.
    leftovers = {files.LOCK_NAME, NAME + PARTIAL, f"{NAME}{PARTIAL}-journal"}
    baseline, baseline_folder = RunStore(folder / BASELINE), None
    if baseline.folder.is_dir() and not baseline.folder.is_symlink():
        # A baseline is trained before its run: if it has begun, a run was here, and is gone.
        if baseline.exists() and baseline.begun() is not False:
            return False
        if not all(_is_plain_file(path, leftovers | {NAME}) for path in baseline.folder.iterdir()):
            return False
        baseline_folder = baseline.folder
    rest = [path for path in folder.iterdir() if path != baseline_folder]
    return all(_is_plain_file(path, leftovers) for path in rest)


def _is_plain_file(path: Path, names: set[str]) -> bool:
    # No link: it would be another file's name, whose content nobody has looked at.
    return path.name in names and path.is_file() and not path.is_symlink()


def read_finished(folder: Path) -> RunRecord:
    """Return the finished run in a folder.

    Raises:
        ValueError: the folder holds no run, its store is damaged, or it is not finished.
    """
    run = RunStore(folder).read()
    # Results at another delta or relation than is configured now would be read as the configured
    # ones.
    if run.summary is None or not run.is_stated:
        raise ValueError(
            f"Expected a finished run in {folder}, got a run without a summary: continue it with "
            "the command or call that began it."
        )
    return RunRecord(run.config, run.metrics, run.summary)


def run_key(config: TrainConfig, store: RunStore) -> Key:
    return store.key() if config.seed is None else Key.from_seed(config.seed)


def new_key(config: TrainConfig) -> Key:
    """Return the key of a new run: that of its seed, or 32 bytes from the operating system.

    It determines the noise of every client, so that anyone who knows it can subtract it. A fresh
    one is in the run's store only. It encodes again if a round is repeated after a kill, unlike a
    key of `Key.generate`.
    """
    return Key(os.urandom(32)) if config.seed is None else Key.from_seed(config.seed)


def commitment(config: TrainConfig, key: Key) -> str:
    # Words derived under a label of their own reveal nothing about the others. Empty for a seed,
    # which is no secret.
    return key.fold_in("commitment").words(2).tobytes().hex() if config.seed is None else ""


# The status of runs, read from their stores: nothing is trained, locked or changed.

State = Literal["finished", "unfinished", "being trained", "damaged"]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a run.

    Attributes:
        folder: the run's folder.
        state: `finished`, `unfinished` (it can be resumed), `being trained` or `damaged` (its
            store cannot be read).
        config: the configuration; None if it is damaged.
        metrics, rounds: of the rounds that are done, and their number.
        summary: the results; None before the end.
        error: what is damaged.
        sent_rounds: what was declared and sent; None if that cannot be read.
    """

    folder: Path
    state: State
    config: TrainConfig | None = None
    metrics: tuple[RoundMetrics, ...] = ()
    summary: RunSummary | None = None
    error: str = ""
    sent_rounds: SentRounds | None = None

    @property
    def rounds(self) -> int:
        return len(self.metrics)

    @property
    def accuracy(self) -> float | None:
        """Accuracy on test data at the last evaluation."""
        measured = [m.accuracy for m in self.metrics if m.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def epsilon(self) -> float | None:
        """Proven upper bound of epsilon for all declared rounds; None without privacy.

        Infinite until a run is resumed if its neighbouring relation was changed from `zero_out`.
        """
        if self.summary is not None:
            guarantee = self.summary.guarantee
            return None if guarantee is None else guarantee.epsilon
        if self.sent_rounds is None or not self.sent_rounds.binding:
            return None
        # A bound for any two updates implies one for an update and zeros, but not conversely.
        known = self.config is None or self.config.privacy.neighboring in (
            self.sent_rounds.neighboring,
            "zero_out",
        )
        return self.sent_rounds.epsilon if known else math.inf

    def epsilon_under(self, relation: Neighboring) -> float | None:
        """Return `epsilon` under a neighbouring relation; None if it is not known for that one."""
        if self.config is None or relation == self.config.privacy.neighboring:
            return self.epsilon
        other = None if self.summary is None else self.summary.other_relation
        return None if other is None else other.epsilon

    @property
    def delta(self) -> float | None:
        """Delta of that epsilon; None if there is none."""
        if self.epsilon is None:
            return None
        if self.summary is not None and self.summary.guarantee is not None:
            return self.summary.guarantee.delta
        return None if self.sent_rounds is None else self.sent_rounds.delta

    @property
    def guarantee(self) -> Guarantee | None:
        return None if self.summary is None else self.summary.guarantee

    @property
    def simulated(self) -> bool:
        # There is an epsilon, but the noise can be subtracted by those who know the seed.
        return self.epsilon is not None and self.config is not None and self.config.seed is not None

    @property
    def bytes_per_upload(self) -> int | None:
        """Bytes that one client uploads in one round; None if not known yet."""
        if self.summary is not None:
            return self.summary.bytes_per_upload
        if self.config is None or not self.metrics or self.config.privacy.sampling != "fixed":
            return None
        # Only a cohort of fixed size divides the bytes of a round.
        return self.metrics[-1].bytes_up // self.config.cohort

    @property
    def bytes_up(self) -> int:
        return sum(metrics.bytes_up for metrics in self.metrics)


def find_runs(roots: Iterable[Path]) -> list[Path]:
    """Return the folders of all runs in or below the given folders, sorted by name.

    Raises:
        ValueError: a folder does not exist, or there is no run in it.
    """
    folders: list[Path] = []
    for root in roots:
        below = sorted(path.parent for path in root.rglob(NAME) if path.is_file())
        if not below:
            raise ValueError(f"Expected runs in {root}, found none: randquant train makes one.")
        folders += below
    # A folder that is below two of the roots is listed once, where it came first.
    return list(dict.fromkeys(folders))


def read_run(folder: str | Path) -> Status:
    """Return the status of the run in a folder; `damaged` if its store cannot be read."""
    folder = Path(folder)
    store, config = RunStore(folder), None
    try:
        config = store.config()
        # A baseline is trained under the lock of its run. The lock is read before the store: in the
        # other order, a run that ends in between would look unfinished.
        locked = files.is_locked(folder) or (
            files.is_locked(folder.parent) and folder.name == BASELINE
        )
        run = store.read()
    except (ValueError, TypeError, KeyError, OSError) as error:
        return Status(folder, "damaged", config, error=" ".join(str(error).split()))
    config, sent_rounds = run.config, run.sent_rounds
    metrics = tuple(_at_configured_terms(round, config) for round in run.metrics)
    if locked:
        return Status(folder, "being trained", config, metrics, sent_rounds=sent_rounds)
    ended = run.summary is not None and (
        bool(run.summary.stopped) or sent_rounds.round >= config.rounds
    )
    if ended and run.is_stated:
        return Status(folder, "finished", config, metrics, run.summary, sent_rounds=sent_rounds)
    return Status(folder, "unfinished", config, metrics, sent_rounds=sent_rounds)


def _at_configured_terms(metrics: RoundMetrics, config: TrainConfig) -> RoundMetrics:
    # An epsilon at another delta or for other neighbours must not be shown with the new ones.
    if (metrics.delta, metrics.neighboring) == (config.delta, config.privacy.neighboring):
        return metrics
    return dataclasses.replace(metrics, epsilon=None)


def notes_on_runs(statuses: Iterable[Status]) -> list[str]:
    """Return notes for below a list of runs: which of them protect nobody."""
    private = [status for status in statuses if status.epsilon is not None]
    names = [status.folder.name for status in private if status.simulated]
    every = 1 < len(private) == len(names)
    return [f"{'every run' if every else ', '.join(names)}: {SIMULATED}"] if names else []
