"""Runs that last: a training run is a folder, and a killed run resumes to the same bits.

    RUN/config.json             what determines the run
    RUN/metrics.jsonl           one line per finished round
    RUN/checkpoint.safetensors  the model and who took part, every few rounds, atomically
    RUN/summary.json            what came out, when the run is finished
    RUN/report.html             the same for people
    RUN/lock                    held by the process that trains it
    RUN/baseline/               the same run without privacy, if one was asked for

All randomness is derived from (seed, round), so a checkpoint is the model, the round number and
the participation counts, and nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch

from randquant import _validate, datasets, models, report
from randquant.account import account
from randquant.aggregate import ChannelMechanism, UpdateMechanism, update_mechanism
from randquant.certify import certify
from randquant.federate import Algorithm, State, distributed_sgd, sample_cohort
from randquant.keys import Key
from randquant.learner import Learner
from randquant.records import (
    RoundMetrics,
    RunSummary,
    TrainConfig,
    from_json,
    to_json,
    write_atomic,
    write_json,
)

OnRound = Callable[[TrainConfig, RoundMetrics], None]
"""Called after each round, for progress displays."""

BASELINE = "baseline"


def create(folder: Path, config: TrainConfig, *, baseline: bool, overwrite: bool) -> None:
    """Make the folder of a new run.

    Args:
        folder: where; must not exist, or hold a run when `overwrite` is given.
        config: what to train.
        baseline: also train the same without privacy.
        overwrite: delete a run that is there already.

    Raises:
        ValueError: the configuration is not valid.
        FileExistsError: something is there already that may not be overwritten.
    """
    _check(config)
    _prepare(config)  # what cannot be trained must fail before anything is written
    if folder.exists() and any(folder.iterdir()):
        _make_way(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    if baseline:
        channel = _channel(config)
        clip = {k: v for k, v in config.parameters.items() if k in ("clip", "clip_norm")}
        clip = clip if channel is None else {"clip": channel.clip}
        twin = dataclasses.replace(config, mechanism="clipped-sgd", parameters=clip, trust="")
        (folder / BASELINE).mkdir()
        write_json(folder / BASELINE / "config.json", twin)
    write_json(folder / "config.json", config)  # last: a folder with it is a complete new run


def execute(folder: Path, on_round: OnRound = lambda config, metrics: None) -> report.Run:
    """Train the run in `folder` to its end, from its last checkpoint if it has one.

    Args:
        folder: made by `create`.
        on_round: called after each round.

    Returns:
        The finished run. Its report, with the baseline if there is one, is in the folder.

    Guarantees:
        However often the process is killed and this called again, the final parameters are the
        same, bit for bit, as without a kill (same machine and library versions).

    Raises:
        ValueError: the folder holds no run, or its files are damaged.
        BlockingIOError: another process is training this run.
    """
    config = _read_config(folder)
    with _locked(folder):
        twin = None
        if (folder / BASELINE).exists():
            twin = _execute_one(folder / BASELINE, on_round)
        run = _execute_one(folder, on_round)
    channel = _channel(config)
    report.write(
        folder / "report.html",
        run,
        twin,
        None if channel is None else _curve(channel),
        None if channel is None else _output(channel),
    )
    return run


def _make_way(folder: Path, overwrite: bool) -> None:
    """Delete the run in a folder that is not empty, if that was asked for and is a run."""
    if not (folder / "config.json").exists():
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds other files: "
            "choose another."
        )
    if not overwrite:
        raise FileExistsError(
            f"Expected a new folder for the run, got {folder}, which holds a run: choose "
            "another, add --overwrite to replace it, or --resume to go on with it."
        )
    with _locked(folder):
        shutil.rmtree(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a run for this process alone; the system lets go of it however the process ends."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                f"Expected {folder} to be free, but another process is training it: wait for it "
                "or choose another folder."
            ) from None
        yield


def load_parameters(folder: Path) -> np.ndarray:
    """Return the parameters in a run's last checkpoint, (d,) float32."""
    state = _load(folder / "checkpoint.safetensors", _identity(_read_config(folder)))
    if state is None:
        raise ValueError(f"Expected a checkpoint in {folder}, found none: the run has not begun.")
    return state.parameters


@dataclass(frozen=True, slots=True)
class _Prepared:
    learner: Learner
    mechanism: UpdateMechanism


def _execute_one(folder: Path, on_round: OnRound) -> report.Run:
    config = _read_config(folder)
    torch.set_num_threads(config.threads)
    prepared = _prepare(config)
    _warm_up(prepared, config.cohort)
    with ThreadPoolExecutor(
        config.threads, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        algorithm = distributed_sgd(
            prepared.learner,
            prepared.mechanism,
            population=config.population,
            learning_rate=config.learning_rate,
            pool=pool,
            workers=config.threads,
        )
        state = _train(folder, config, algorithm, prepared.learner, on_round)
    metrics = _read_metrics(folder / "metrics.jsonl", config.rounds)
    summary = _summary(config, prepared, state, metrics)
    write_json(folder / "summary.json", summary)
    return report.Run(config, metrics, summary)


def _train(
    folder: Path, config: TrainConfig, algorithm: Algorithm, learner: Learner, on_round: OnRound
) -> State:
    """The training loop, from the last checkpoint to the end."""
    checkpoint, log = folder / "checkpoint.safetensors", folder / "metrics.jsonl"
    identity = _identity(config)
    state = _load(checkpoint, identity) or algorithm.init()
    key = Key.from_seed(config.seed).fold_in("updates")
    done = _read_metrics(log, state.round)
    write_atomic(log, b"".join(_line(metrics) for metrics in done))
    with open(log, "ab", buffering=0) as lines:
        while state.round < config.rounds:
            number = state.round + 1
            cohort = sample_cohort(config.population, config.cohort, number, config.seed)
            try:
                state, cost = algorithm.apply(state, cohort, key)
            except ValueError as error:
                raise ValueError(f"Round {number}: {error}") from error
            metrics = RoundMetrics(number, None, None, **dataclasses.asdict(cost))
            if number % config.evaluate_every == 0 or number == config.rounds:
                metrics = _evaluated(metrics, learner, state)
            lines.write(_line(metrics))
            if number % config.checkpoint_every == 0 or number == config.rounds:
                _save(checkpoint, state, identity)
            on_round(config, metrics)
    return state


def _evaluated(metrics: RoundMetrics, learner: Learner, state: State) -> RoundMetrics:
    started = time.perf_counter()
    learner.load(state.parameters)
    evaluation = learner.evaluate()
    return dataclasses.replace(
        metrics,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        seconds_evaluate=time.perf_counter() - started,
    )


def _prepare(config: TrainConfig) -> _Prepared:
    mechanism = _mechanism(config)
    dataset = datasets.load(config.dataset, config.data_dir or None)
    clients = datasets.partition(
        dataset.train_labels,
        config.population,
        config.partition,
        concentration=config.concentration,
        seed=config.seed,
    )
    model = models.build(
        config.model, dataset.train_features.shape[1:], dataset.classes, config.seed
    )
    learner = Learner(model, dataset, clients)
    mechanism.release(learner.dimension, 1)  # some parameters do not suit some dimensions
    return _Prepared(learner, mechanism)


def _warm_up(prepared: _Prepared, cohort: int) -> None:
    """Compile what encodes and sums, so that no round's time includes it."""
    key, dimension = Key.generate(), prepared.learner.dimension
    payload = prepared.mechanism.encode(np.zeros(dimension, dtype=np.float32), key)
    prepared.mechanism.mean([payload] * cohort, dimension, key)


def _check(config: TrainConfig) -> None:
    """Refuse a configuration whose numbers make no sense."""
    _validate.whole("rounds", config.rounds, low=1)
    _validate.whole("population", config.population, low=1)
    _validate.whole("cohort", config.cohort, low=1, high=config.population)
    _validate.whole("checkpoint_every", config.checkpoint_every, low=1)
    _validate.whole("evaluate_every", config.evaluate_every, low=1)
    _validate.whole("threads", config.threads, low=1, high=256)
    _validate.whole("seed", config.seed, low=0, high=2**63 - 1)
    _validate.real("learning_rate", config.learning_rate, above=0, high=1e30)
    _validate.real("delta", config.delta, low=0, below=1)


def _summary(
    config: TrainConfig,
    prepared: _Prepared,
    state: State,
    metrics: list[RoundMetrics],
) -> RunSummary:
    dimension = prepared.learner.dimension
    participations = int(state.participations.max())
    release = prepared.mechanism.release(dimension, participations)
    last = metrics[-1]  # the last round is always evaluated
    assert last.accuracy is not None
    assert last.loss is not None
    upload = last.bytes_up // config.cohort
    return RunSummary(
        accuracy=last.accuracy,
        loss=last.loss,
        dimension=dimension,
        bytes_per_upload=upload,
        bits_per_coordinate=8 * upload / dimension,
        participations=participations,
        guarantee=None if release is None else to_json(account([release], config.delta)),
        seconds=sum(m.seconds_gradient + m.seconds_protect + m.seconds_evaluate for m in metrics),
    )


def _mechanism(config: TrainConfig) -> UpdateMechanism:
    return update_mechanism(
        config.mechanism, config.parameters, trust=config.trust, cohort=config.cohort
    )


def _channel(config: TrainConfig):
    mechanism = _mechanism(config)
    return mechanism.channel if isinstance(mechanism, ChannelMechanism) else None


def _curve(channel) -> report.Curve:
    orders = [float(1 + step) for step in np.geomspace(0.01, 1000, 61)]
    epsilon = [certify(channel, order).epsilon.upper for order in orders]
    return report.Curve(orders, epsilon, certify(channel).epsilon.upper)


def _output(channel) -> report.Output:
    inputs = {"x = -clip": -channel.clip, "x = 0": 0.0, "x = clip": channel.clip}
    rows = {}
    for label, x in inputs.items():
        weights, total = channel.mix(x)
        rows[label] = [float(weight / total) for weight in weights]
    return report.Output([float(value) for value in channel.values], rows)


def _read_config(folder: Path) -> TrainConfig:
    try:
        text = (folder / "config.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"Expected a run in {folder}, found no config.json there.") from None
    try:
        config = from_json(TrainConfig, json.loads(text))
        _check(config)
        return config
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"Expected a valid {folder / 'config.json'}: {error}") from None


def _line(metrics: RoundMetrics) -> bytes:
    return json.dumps(to_json(metrics), allow_nan=False).encode() + b"\n"


def _read_metrics(path: Path, rounds: int) -> list[RoundMetrics]:
    """The metrics of rounds 1 to `rounds`; what a killed run wrote beyond them is dropped."""
    if rounds == 0:
        return []
    lines = path.read_bytes().splitlines()[:rounds] if path.exists() else []
    try:
        metrics = [from_json(RoundMetrics, json.loads(line)) for line in lines]
    except ValueError as error:
        raise ValueError(f"Expected one JSON record per line of {path}: {error}") from None
    if [m.round for m in metrics] != list(range(1, rounds + 1)):
        raise ValueError(f"Expected rounds 1 to {rounds} in {path}: lines are missing or doubled.")
    return metrics


def _identity(config: TrainConfig) -> np.ndarray:
    """What a checkpoint was made with, (32,) uint8: equal exactly when a run may go on from it.

    The guarantee speaks of every round, so they must all have used one configuration and one
    channel; only how long to train and what to print may change.
    """
    fields = to_json(config)
    for name in ("rounds", "delta", "checkpoint_every", "evaluate_every"):
        del fields[name]
    if not config.trust:  # checkpoints are older than this field
        del fields["trust"]
    channel = _channel(config)
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    digest.update(b"" if channel is None else channel.fingerprint)
    return np.frombuffer(digest.digest(), dtype=np.uint8)


def _save(path: Path, state: State, identity: np.ndarray) -> None:
    tensors = {
        "parameters": state.parameters,
        "participations": state.participations,
        "round": np.array([state.round], dtype=np.int64),
        "identity": identity,
    }
    tensors["checksum"] = _checksum(tensors)
    write_atomic(path, safetensors.numpy.save(tensors))


def _load(path: Path, identity: np.ndarray) -> State | None:
    if not path.exists():
        return None
    try:
        tensors = safetensors.numpy.load(path.read_bytes())
        checksum = tensors.pop("checksum")
    except (safetensors.SafetensorError, KeyError) as error:
        raise ValueError(f"Expected a checkpoint in {path}, got a damaged file: {error}") from None
    if not np.array_equal(checksum, _checksum(tensors)):
        raise ValueError(f"Expected a checkpoint in {path} whose checksum fits: it is damaged.")
    if not np.array_equal(tensors["identity"], identity):
        raise ValueError(
            f"Expected the configuration that {path} was made with, got another: its rounds "
            "would not have the guarantee that is printed. Restore config.json or begin a new run."
        )
    return State(int(tensors["round"][0]), tensors["parameters"], tensors["participations"])


def _checksum(tensors: dict[str, np.ndarray]) -> np.ndarray:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return np.frombuffer(digest.digest(), dtype=np.uint8)
