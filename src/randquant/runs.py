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

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from randquant import datasets, features, locks, models, report, run_folder
from randquant.aggregate import (
    ChannelMechanism,
    UpdateMechanism,
    VectorMechanism,
    update_mechanism,
)
from randquant.certify import certify
from randquant.federate import Algorithm, State, distributed_sgd
from randquant.keys import Key
from randquant.learner import Learner, Local
from randquant.ledger import Ledger
from randquant.optimizer import Optimizer
from randquant.records import (
    RoundMetrics,
    RunSummary,
    TrainConfig,
    check_config,
    to_json,
    write_atomic,
    write_json,
)
from randquant.schedule import Schedule

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
        ValueError: the configuration is not valid, or one round would exceed its
            stop_at_epsilon.
        FileExistsError: something is there already that may not be overwritten.
    """
    check_config(config)
    rounds = _prepare(
        config
    ).schedule.rounds()  # what cannot be trained must fail before anything is written
    if folder.exists() and any(folder.iterdir()):
        run_folder.make_way(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    if baseline:
        (folder / BASELINE).mkdir()
        write_json(folder / BASELINE / "config.json", _without_privacy(config, rounds))
    write_json(folder / "config.json", config)  # last: a folder with it is a complete new run


def execute(folder: Path, on_round: OnRound = lambda config, metrics: None) -> report.Run:
    """Train the run in `folder` to its end, from its last checkpoint if it has one.

    Args:
        folder: made by `create`.
        on_round: called after each round.

    Returns:
        The finished run, at the end of its rounds or before the one that would exceed its
        stop_at_epsilon. Its report, with the baseline if there is one, is in the folder.

    Guarantees:
        However often the process is killed and this called again, the final parameters are the
        same, bit for bit, as without a kill (same machine and library versions).
        Epsilon of the finished run is at most its stop_at_epsilon.

    Raises:
        ValueError: the folder holds no run, or its files are damaged.
        BlockingIOError: another process is training this run.
    """
    run_folder.read_config(folder)  # no lock is made where there is no run
    with locks.folder(folder):
        twin = None
        if (folder / BASELINE).exists():
            twin = _execute_one(folder / BASELINE, on_round)
        run = _execute_one(folder, on_round)
    _write_report(folder / "report.html", run, twin)
    return run


def rebuild_report(folder: Path, output: Path | None = None) -> Path:
    """Write a finished run's page again, without training; return where it is.

    Raises:
        ValueError: the folder holds no finished run, or its files are damaged.
    """
    twin = folder / BASELINE
    path = output or folder / "report.html"
    both = run_folder.read_finished(twin) if (twin / "summary.json").exists() else None
    _write_report(path, run_folder.read_finished(folder), both)
    return path


def load_parameters(folder: Path) -> np.ndarray:
    """Return the parameters in a run's last checkpoint, (d,) float32."""
    made_with = _identity(run_folder.read_config(folder))
    state = run_folder.load_checkpoint(folder / "checkpoint.safetensors", made_with)
    if state is None:
        raise ValueError(f"Expected a checkpoint in {folder}, found none: the run has not begun.")
    return state.parameters


@dataclass(frozen=True, slots=True)
class _Prepared:
    learner: Learner
    mechanism: UpdateMechanism
    schedule: Schedule
    public: int


def _execute_one(folder: Path, on_round: OnRound) -> report.Run:
    config = run_folder.read_config(folder)
    torch.set_num_threads(config.threads)
    prepared = _prepare(config)
    upload = _warm_up(prepared, config.cohort)
    with ThreadPoolExecutor(
        config.threads, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        algorithm = distributed_sgd(
            prepared.learner,
            prepared.mechanism,
            population=config.population,
            optimizer=Optimizer(
                config.learning_rate, config.server_optimizer, config.server_momentum
            ),
            pool=pool,
            workers=config.threads,
        )
        state = _train(folder, prepared, algorithm, on_round)
    metrics = run_folder.read_metrics(folder / "metrics.jsonl", state.round)
    summary = _summary(config, prepared, state, metrics, upload)
    write_json(folder / "summary.json", summary)
    return report.Run(config, metrics, summary)


def _train(folder: Path, prepared: _Prepared, algorithm: Algorithm, on_round: OnRound) -> State:
    """The training loop, from the last checkpoint to the end."""
    checkpoint, log = folder / "checkpoint.safetensors", folder / "metrics.jsonl"
    schedule = prepared.schedule
    config, made_with = schedule.config, _identity(schedule.config)
    state = run_folder.load_checkpoint(checkpoint, made_with) or algorithm.init()
    key = Key.from_seed(config.seed).fold_in("updates")
    done = [_restated(m, schedule.ledger) for m in run_folder.read_metrics(log, state.round)]
    write_atomic(log, b"".join(run_folder.metrics_line(metrics) for metrics in done))
    step = schedule.step(state.round, state.participations)
    with open(log, "ab", buffering=0) as lines:
        while step.cohort is not None:
            number, spent = state.round + 1, (step.participations, step.epsilon)
            try:
                state, cost = algorithm.apply(state, step.cohort, key)
            except ValueError as error:
                raise ValueError(f"Round {number}: {error}") from error
            metrics = RoundMetrics(number, None, None, **dataclasses.asdict(cost))
            metrics = dataclasses.replace(metrics, participations=spent[0], epsilon=spent[1])
            step = schedule.step(number, state.participations)
            if number % config.evaluate_every == 0 or step.cohort is None:
                metrics = _evaluated(metrics, prepared.learner, state)
            lines.write(run_folder.metrics_line(metrics))
            if number % config.checkpoint_every == 0 or step.cohort is None:
                run_folder.save_checkpoint(checkpoint, state, made_with)
            on_round(config, metrics)
    return state


def _restated(metrics: RoundMetrics, ledger: Ledger) -> RoundMetrics:
    """A round of a run that goes on, perhaps at another delta or for other neighbours."""
    if metrics.participations is None:
        return metrics
    return dataclasses.replace(metrics, epsilon=ledger.epsilon(metrics.participations))


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
    dataset = features.load(
        config.dataset, config.data_dir or None, config.features, config.fitted_on
    )
    clients = datasets.split(
        dataset,
        config.population,
        config.partition,
        concentration=config.concentration,
        seed=config.seed,
    )
    model = models.build(
        config.model, dataset.train_features.shape[1:], dataset.classes, config.seed
    )
    learner = Learner(model, dataset, clients, _local(config, mechanism), config.device)
    ledger = Ledger(
        mechanism,
        learner.dimension,
        examples=learner.examples if config.unit == "example" else None,
        delta=config.delta,
        neighboring=config.neighboring,
        limit=config.stop_at_epsilon,
    )
    return _Prepared(learner, mechanism, Schedule(config, ledger), dataset.public)


def _warm_up(prepared: _Prepared, cohort: int) -> int:
    """Compile what encodes and sums, so that no round's time includes it: bytes of an upload."""
    dimension = prepared.learner.dimension
    payload = prepared.mechanism.encode(np.zeros(dimension, dtype=np.float32), Key.generate())
    prepared.mechanism.mean([payload] * cohort, dimension, Key.generate())
    return prepared.mechanism.upload_bytes(dimension, cohort)


def _summary(
    config: TrainConfig,
    prepared: _Prepared,
    state: State,
    metrics: list[RoundMetrics],
    upload: int,
) -> RunSummary:
    dimension = prepared.learner.dimension
    participations = int(state.participations.max())
    guarantee = prepared.schedule.ledger.guarantee(participations)
    last = metrics[-1]  # the last round is always evaluated
    assert last.accuracy is not None
    assert last.loss is not None
    return RunSummary(
        accuracy=last.accuracy,
        loss=last.loss,
        dimension=dimension,
        bytes_per_upload=upload,
        bits_per_coordinate=8 * upload / dimension,
        participations=participations,
        guarantee=None if guarantee is None else to_json(guarantee),
        seconds=sum(m.seconds_gradient + m.seconds_protect + m.seconds_evaluate for m in metrics),
        rounds=state.round,
        stopped=prepared.schedule.step(state.round, state.participations).stopped,
        public_examples=prepared.public,
    )


def _local(config: TrainConfig, mechanism: UpdateMechanism) -> Local:
    norm = getattr(mechanism, "clip_norm", None) if config.unit == "example" else None
    if config.unit == "example" and norm is None:
        raise ValueError(
            "Expected a clip_norm where an example is the unit, got none: it bounds what one "
            "example can change."
        )
    return Local(config.batch, config.local_epochs, config.local_learning_rate, norm)


def _mechanism(config: TrainConfig) -> UpdateMechanism:
    mechanism = update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        cohort=config.cohort,
        clip_norm=config.clip_norm,
        norm=config.norm,
    )
    if config.sampling == "poisson" and mechanism.trust == "aggregate":
        raise ValueError(
            f"Expected sampling fixed with {config.mechanism} under aggregate trust, got poisson: "
            "its guarantee counts on how many clients are summed."
        )
    return mechanism


def _without_privacy(config: TrainConfig, rounds: int) -> TrainConfig:
    """The same run with updates clipped alike and sent as floats, for as many rounds."""
    channel = _channel(config)
    clip = {k: v for k, v in config.parameters.items() if k in ("clip", "clip_norm")}
    if channel is not None:
        whole = config.clip_norm
        clip = {"clip": channel.clip} if whole is None else {"clip_norm": whole}
    return dataclasses.replace(
        config, mechanism="clipped-sgd", parameters=clip, trust="", clip_norm=None,
        stop_at_epsilon=None, rounds=rounds,
    )  # fmt: skip


def _identity(config: TrainConfig) -> np.ndarray:
    channel = _channel(config)
    return run_folder.identity(config, b"" if channel is None else channel.fingerprint)


def _channel(config: TrainConfig):
    mechanism = _mechanism(config)
    used = (ChannelMechanism, VectorMechanism)
    return mechanism.channel if isinstance(mechanism, used) else None


def _write_report(path: Path, run: report.Run, twin: report.Run | None) -> None:
    channel = _channel(run.config)
    curve, output = (None, None) if channel is None else (_curve(channel), _output(channel))
    report.write(path, run, twin, curve, output)


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
