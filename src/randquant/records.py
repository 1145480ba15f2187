"""What was run and what was measured: frozen records that are converted to JSON and back.

No key and no client's update ever enters a record. A simulation's seed does, and so does the mean
training loss of a cohort: neither is covered by a run's guarantee (`docs/theory/accounting.md`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from randquant import _validate
from randquant.privacy import NEIGHBORINGS, Guarantee, Neighboring, Trust

T = TypeVar("T")

FittedOn = Literal["public", "all"]
"""Which training examples features are fitted on, see `randquant.features`."""

FITTED_ON: tuple[FittedOn, ...] = ("public", "all")


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that determines a training run (two runs with one config give equal bits).

    Attributes:
        dataset: name of a data set (`randquant.datasets.DATASETS`).
        data_dir: folder of the data files; empty for data sets that scikit-learn ships.
        model: name of a model (`randquant.models.MODELS`).
        mechanism: what protects an update: the name of a channel mechanism, or of a baseline for
            whole updates, such as `clipped-sgd` (no privacy).
        parameters: the mechanism's parameters, by name.
        population: how many clients the data is split over.
        cohort: how many clients take part in each round.
        rounds: how many rounds to train, at most.
        partition: how data is split over clients: `iid`, `shards`, `dirichlet`, or `natural` (by
            writer).
        concentration: Dirichlet concentration (used by `dirichlet` only).
        learning_rate: the server's step size.
        delta: the delta of the printed guarantee.
        seed: simulation seed: data split, initial weights, cohorts and simulated client keys.
        checkpoint_every: rounds between checkpoints.
        evaluate_every: rounds between evaluations on test data.
        threads: torch and encoder threads (part of the configuration because rounding depends on
            it).
        trust: against whom the guarantee holds; None for the mechanism's own (`local` for
            channels, which also work under `aggregate`).
        clip_norm: threshold of a whole update's norm, for channels; None to clip each coordinate
            alone. (Baselines have a parameter of their own.)
        norm: the norm that an update is clipped in, `l2` or `l1`.
        neighboring: the neighbouring relation, `replace_one` or `zero_out`.
        stop_at_epsilon: end the run before the round after which epsilon would exceed this.
        max_participations: most rounds that one client takes part in; None for no cap.
        sampling: `fixed` (cohorts of that size) or `poisson` (each client independently, `cohort`
            clients on average). No guarantee assumes it.
        batch: samples of a local step, drawn at random; None for all of a client's.
        local_epochs: passes over a client's data in a round, with local_learning_rate only.
        local_learning_rate: step size of local SGD; the update is then the model difference after
            it (DP-FedAvg). None to send one gradient at the global model.
        server_optimizer: `sgd` or `adam`.
        server_momentum: momentum of the server's SGD, 0 for none.
        features: features to train on: empty for the data as they are, `scattering`, or `pca-K`
            with K components (`randquant.features`).
        fitted_on: data that components, means and deviations are fitted on: `public` examples
            that no client holds, or `all` clients' data, which no guarantee covers.
        unit: the privacy unit: a whole `client`, or one `example` of a client (each example's
            gradient is then clipped to clip_norm, and the update is their mean).
        device: where updates are computed: `cpu`, or `cuda` (or `cuda:1`, …), which then also
            draws and sums a channel's codes.
    """

    dataset: str
    model: str
    mechanism: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    data_dir: str = ""
    population: int = 200
    cohort: int = 40
    rounds: int = 300
    partition: str = "iid"
    concentration: float = 0.3
    learning_rate: float = 1.0
    delta: float = 1e-5
    seed: int = 0
    checkpoint_every: int = 50
    evaluate_every: int = 10
    threads: int = 2
    trust: Trust | None = None
    clip_norm: float | None = None
    norm: Literal["l1", "l2"] = "l2"
    neighboring: Neighboring = "replace_one"
    stop_at_epsilon: float | None = None
    max_participations: int | None = None
    sampling: Literal["fixed", "poisson"] = "fixed"
    batch: int | None = None
    local_epochs: int = 1
    local_learning_rate: float | None = None
    server_optimizer: Literal["sgd", "adam"] = "sgd"
    server_momentum: float = 0.0
    features: str = ""
    fitted_on: FittedOn = "public"
    unit: Literal["client", "example"] = "client"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.trust == "":  # as files of version 0.1.0 say it
            object.__setattr__(self, "trust", None)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """What one round measured.

    Attributes:
        round: 1 for the first round.
        accuracy, loss: on test data, or None on rounds without evaluation; loss in nats.
        train_loss: mean loss of the cohort's local data, in nats, before the step; None if a
            Poisson cohort is empty.
        bytes_up: bytes that all clients of the round uploaded, headers included; under
            `aggregate` trust those of masked vectors (the handshake is not counted).
        seconds_gradient: forward and backward passes, in seconds.
        seconds_protect: clip, encode, pack, unpack, sum, decode, step, in seconds.
        seconds_evaluate: evaluation on test data, in seconds.
        participations: rounds so far of the client called most often, this one included.
        epsilon: proven upper bound of that client's epsilon so far; None without privacy.
        delta, neighboring: of that epsilon; they may change when a run is resumed.
    """

    round: int
    accuracy: float | None
    loss: float | None
    train_loss: float | None
    bytes_up: int
    seconds_gradient: float
    seconds_protect: float
    seconds_evaluate: float = 0.0
    participations: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighboring: Neighboring | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """What a run has sent, including the current round: on disk before the round is sent.

    Attributes:
        settings: digest of the settings that must not change during the run.
        channel: fingerprint of its channel, in hexadecimal; empty if it uses none.
        round: rounds that were started.
        participations: rounds of the client called most often, including the current one.
        epsilon: proven upper bound of that client's epsilon; None without privacy.
        delta, neighboring: of that epsilon.
    """

    settings: str
    channel: str
    round: int
    participations: int
    epsilon: float | None
    delta: float
    neighboring: Neighboring

    def __post_init__(self) -> None:
        _validate.whole("round", self.round, low=0)
        _validate.whole("participations", self.participations, low=0, high=self.round)

    @property
    def identity(self) -> str:
        """The run's identity, to which all its files are bound, in hexadecimal (SHA-256)."""
        return hashlib.sha256(f"{self.settings} {self.channel}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a finished run achieved.

    Attributes:
        accuracy, loss: of the final model on test data.
        dimension: coordinates of an update.
        bytes_per_upload: bytes one client uploads in one round it takes part in, see `bytes_up`.
        bits_per_coordinate: the same in bits, per coordinate, header included.
        participations: how many rounds the most-called client took part in.
        guarantee: of the whole run; None without privacy.
        seconds: all rounds together, with evaluation, without loading data and compiling.
        rounds: how many rounds were done.
        stopped: why these are fewer than configured; empty if they are not.
        public_examples: training examples that were declared public, are held by no client, and
            were used to fit features; 0 if nothing was fitted, or on all clients' data.
    """

    accuracy: float
    loss: float
    dimension: int
    bytes_per_upload: int
    bits_per_coordinate: float
    participations: int
    guarantee: Guarantee | None
    seconds: float
    rounds: int | None = None
    stopped: str = ""
    public_examples: int = 0

    @classmethod
    def from_json(cls, data: Any) -> RunSummary:
        """Build a summary, its guarantee too, from parsed JSON.

        Raises:
            ValueError: a field is missing or unknown.
        """
        summary = from_json(cls, data)
        stated: Any = summary.guarantee  # still as it was parsed
        guarantee = None if stated is None else from_json(Guarantee, stated)
        return dataclasses.replace(summary, guarantee=guarantee)


def check_config(config: TrainConfig) -> None:
    """Refuse a configuration with invalid numbers.

    Raises:
        ValueError, TypeError: a number is out of bounds or of the wrong kind, or the population
            cannot fill every cohort within max_participations.
    """
    _validate.whole("rounds", config.rounds, low=1)
    _validate.whole("population", config.population, low=1)
    _validate.whole("cohort", config.cohort, low=1, high=config.population)
    _validate.whole("checkpoint_every", config.checkpoint_every, low=1)
    _validate.whole("evaluate_every", config.evaluate_every, low=1)
    _validate.whole("threads", config.threads, low=1, high=256)
    _validate.whole("seed", config.seed, low=0, high=2**63 - 1)
    _validate.real("learning_rate", config.learning_rate, above=0, high=1e30)
    _validate.real("delta", config.delta, low=0, below=1)
    _validate.choice("norm", config.norm, ("l1", "l2"))
    _validate.choice("neighboring", config.neighboring, NEIGHBORINGS)
    _validate.choice("fitted_on", config.fitted_on, FITTED_ON)
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", config.device):
        raise ValueError(f"Expected device cpu, cuda or cuda:NUMBER, got {config.device!r}.")
    _check_local(config)
    _check_sampling(config)
    if config.stop_at_epsilon is not None:
        _validate.real("stop_at_epsilon", config.stop_at_epsilon, above=0)
    if config.max_participations is not None:
        most = _validate.whole("max_participations", config.max_participations, low=1, high=2**40)
        fitting = config.population * most // config.cohort
        if config.rounds > fitting:
            raise ValueError(
                f"Expected rounds <= {fitting} if each of {config.population} clients takes "
                f"part at most {most} times in cohorts of {config.cohort}, got {config.rounds}: "
                "raise max_participations, or lower rounds or cohort."
            )


def _check_local(config: TrainConfig) -> None:
    """Check the settings of the clients' and the server's steps."""
    _validate.whole("local_epochs", config.local_epochs, low=1, high=10_000)
    if config.batch is not None:
        _validate.whole("batch", config.batch, low=1)
    if config.local_learning_rate is not None:
        _validate.real("local_learning_rate", config.local_learning_rate, above=0, high=1e30)
    elif config.local_epochs != 1:
        raise ValueError(
            f"Expected local_learning_rate with local_epochs={config.local_epochs}, got none: "
            "several steps need a step size; one epoch without it sends a gradient."
        )
    _validate.choice("server_optimizer", config.server_optimizer, ("sgd", "adam"))
    _validate.real("server_momentum", config.server_momentum, low=0, below=1)
    if config.server_optimizer == "adam" and config.server_momentum:
        raise ValueError("Expected server_momentum with server_optimizer sgd, got it with adam.")
    _validate.choice("unit", config.unit, ("client", "example"))
    if config.unit == "example" and config.local_learning_rate is not None:
        raise ValueError(
            "Expected no local_learning_rate with unit example, got one: after a local step every "
            "example's gradient depends on every other example."
        )


def _check_sampling(config: TrainConfig) -> None:
    _validate.choice("sampling", config.sampling, ("fixed", "poisson"))
    if config.sampling == "fixed":
        return
    if config.trust == "aggregate":
        raise ValueError(
            "Expected sampling fixed under aggregate trust, got poisson: its guarantee needs a "
            "fixed number of clients in a sum."
        )
    if config.max_participations is not None:
        raise ValueError(
            "Expected max_participations or sampling poisson, got both: the latter has no cap."
        )


def to_json(record: Any) -> Any:
    """Convert records, dicts, tuples and numbers to plain JSON values.

    Guarantees: infinity becomes the string "inf"; NaN is refused.

    Example:
        >>> to_json({"epsilon": float("inf")})
        {'epsilon': 'inf'}
    """
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(key): to_json(value) for key, value in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(value) for value in record]
    if isinstance(record, np.generic):
        record = record.item()
    if isinstance(record, float):
        if math.isnan(record):
            raise ValueError("Expected a number in a record, got NaN.")
        if math.isinf(record):
            return "inf" if record > 0 else "-inf"
    return record


def from_json(kind: type[T], data: Any) -> T:
    """Build a record of dataclass `kind` from parsed JSON.

    Raises:
        ValueError: a field is missing or unknown.
    """
    if not isinstance(data, dict):
        raise ValueError(f"Expected a JSON object for {kind.__name__}, got {type(data).__name__}.")
    known = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - known)
    if unknown:
        raise ValueError(f"Expected only known fields of {kind.__name__}, got {unknown[0]!r}.")
    try:
        return kind(**{key: float(v) if v in ("inf", "-inf") else v for key, v in data.items()})
    except TypeError as error:
        raise ValueError(f"Expected every field of {kind.__name__}: {error}.") from None


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader sees the old file or the whole new one.

    Guarantees:
        What was written survives a loss of power. If writing fails, the old file is unchanged and
        no other file is left behind.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    temporary = path.with_name(path.name + ".partial")
    with naming(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add `path` to an OSError: those of a write do not name the file."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power, if its file system can."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)


def write_json(path: Path, record: Any) -> None:
    """Write a record as an indented JSON file, atomically."""
    text = json.dumps(to_json(record), indent=2, allow_nan=False)
    write_atomic(path, (text + "\n").encode())
