"""Training runs in folders: a killed run resumes and ends with the same bits.

All randomness is derived from (key, round), so a checkpoint holds the model, the state of the
server's optimiser, the round number, the participation counts, and nothing else. Rounds after the
checkpoint that were sent before a kill are sent again with the same bits, which is no new release.
A run neither ends before these rounds nor states less than they cost. `store` lists what is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from randquant._internal import files
from randquant._internal.files import make_folder
from randquant.channels.keys import Key
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import FeatureStatistics
from randquant.training import records
from randquant.training.algorithm import Algorithm, State, distributed_sgd
from randquant.training.config import TrainConfig, changes_between, check_config
from randquant.training.records import RoundMetrics, SentRounds
from randquant.training.runs import binding, checkpoint, standardization
from randquant.training.runs.outcome import evaluated, measured, same, summarized
from randquant.training.runs.setup import (
    RunInputs,
    TrainingSetup,
    prepare,
    standardization_query,
    without_privacy,
)
from randquant.training.runs.store import (
    BASELINE,
    FREE,
    RESTORE,
    RunStore,
    Secret,
    StoredRun,
    commitment,
    digest,
    is_run,
    key_of,
    make_way,
)
from randquant.training.schedule import Schedule

OnRound = Callable[[TrainConfig, RoundMetrics], None]
"""Called after each round, for progress displays."""


def create(
    folder: Path,
    config: TrainConfig,
    inputs: RunInputs,
    *,
    overwrite: bool = False,
    own_secret: Secret | None = None,
) -> None:
    """Make the folder of a new run.

    Args:
        folder: the run's folder; it must not exist, or hold a run if `overwrite` is given.
        config: the run's configuration; its server says whether the same run is also trained
            without privacy.
        inputs: its problem, and a mechanism and an optimiser of one's own.
        overwrite: delete an existing run.
        own_secret: what the run's key is made of if its configuration has no seed; fresh by
            default.

    Raises:
        ValueError: the configuration is not valid, or one round would exceed its
            stop_at_epsilon.
        FileExistsError: the folder holds something that may not be overwritten.
    """
    if config.task != inputs.task:
        raise ValueError(
            f"Expected the configuration of a run on this problem, {inputs.task}, got "
            f"{config.task}: take RunInputs(problem).task."
        )
    check_config(config)
    secret = own_secret or Secret.fresh()
    key = secret.key if config.seed is None else Key.from_seed(config.seed)
    # An invalid configuration must fail before anything is written.
    setup = prepare(config, key, inputs)
    setup.learner.check()
    rounds, most = declared = setup.schedule.declared()
    sent = SentRounds(
        digest(config), setup.fingerprint, 0, *declared, setup.schedule.epsilon(rounds, most),
        config.delta, config.privacy.neighboring, commitment(config, key),
    )  # fmt: skip
    own: dict[str, Any] = {"problem": binding.bind(setup.problem, key)}
    if config.seed is None:
        own["key"] = {"key": secret.hexadecimal()}
    first = State(0, setup.learner.parameters(), np.zeros(0, dtype=np.int64))
    initial = checkpoint.to_bytes(first, sent.identity)
    if folder.exists() and any(folder.iterdir()):
        make_way(folder, overwrite)
    make_folder(folder)
    with files.folder(folder):
        if is_run(folder):  # by another process meanwhile: its record must not be replaced
            raise FileExistsError(
                f"Expected a new folder for the run, got {folder}, in which another process has "
                "begun a run: choose another."
            )
        if config.server.baseline:  # first: a run whose store is there has all that it asked for
            baseline = without_privacy(config, rounds, setup.mechanism)
            other = SentRounds(
                digest(baseline), "", 0, *declared, None, baseline.delta,
                baseline.privacy.neighboring,
            )  # fmt: skip
            RunStore(folder / BASELINE).create({"config": baseline, "sent": other})
        RunStore(folder).create({"config": config, "sent": sent, **own}, initial)


def execute(
    folder: Path,
    inputs: RunInputs,
    on_round: OnRound = lambda config, metrics: None,
    changes: Mapping[str, Any] | None = None,
) -> records.RunRecord:
    """Train the run in `folder` to its end, from its last checkpoint if there is one.

    Args:
        folder: made by `create`.
        inputs: what the run was created with, again; another problem is refused.
        on_round: called after each round.
        changes: settings to continue with, by name, among `store.FREE`; they are saved.

    Returns:
        The finished run: all rounds are done, or the next one would exceed its stop_at_epsilon.

    Guarantees:
        However often the process is killed and the run is resumed, the final parameters are the
        same, bit for bit, as without a kill (same machine and library versions).
        The epsilon of the finished run is at most its stop_at_epsilon.
        The cost of a round is on disk before the round is sent: at no time do the files state less
        than what was sent, including the current round.

    Raises:
        ValueError: the folder holds no run, its files are damaged, the model, loss, data or key
            are others than it began with, or what was sent has exceeded its rounds or
            stop_at_epsilon.
        BlockingIOError: another process is training this run.
    """
    folder = folder.absolute()  # whoever is called may change directory
    RunStore(folder).config()  # do not create a lock where there is no run
    with files.folder(folder), _threads_kept():
        if changes:
            _change(folder, changes, inputs)
        _ask(folder, inputs)
        if RunStore(folder / BASELINE).exists():
            _execute_one(folder / BASELINE, on_round, inputs)
        return _execute_one(folder, on_round, inputs)


@contextlib.contextmanager
def _threads_kept() -> Iterator[None]:
    """Leave torch with as many threads as it had."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_parameters(folder: Path) -> np.ndarray:
    """Return the parameters in a run's last checkpoint, (d,) float32."""
    state = _state(RunStore(folder), "latest")
    if state is None:
        raise ValueError(f"Expected a checkpoint in {folder}, found none: the run has not started.")
    return state.parameters


def load_initial(folder: Path) -> np.ndarray:
    """Return the weights that a run began with, (d,) float32."""
    state = _state(store := RunStore(folder), "initial")
    if state is None:
        raise ValueError(
            f"Expected the weights that the run began with in {store.path}, found none. {RESTORE}"
        )
    return state.parameters


def load_figures(folder: Path, problem: Problem) -> FeatureStatistics | None:
    """Return what the run in a folder standardises by; None if it does not."""
    home = RunStore(folder.parent if folder.name == BASELINE else folder)
    if (asked := standardization_query(home.config(), problem)) is None:
        return None
    return standardization.read(home, asked, home.sent().identity)


def _state(store: RunStore, name: Literal["initial", "latest"]) -> State | None:
    content, sent = store.state(name), store.sent()
    return checkpoint.from_bytes(content, sent.identity, store.path) if content else None


def _ask(folder: Path, inputs: RunInputs) -> None:
    """Ask for what the run standardises by, if it has not been; the cost is on disk before."""
    store = RunStore(folder)
    config = store.config()
    if config.local.standardize is None or store.has("standardization"):
        return
    setup = _prepared(folder, config, inputs)
    asked, sent = standardization_query(config, setup.problem), _stored_before(store, setup).sent
    if asked is None or asked.terms is None:
        return
    if sent.round > 0:
        raise ValueError(
            f"Expected the figures that the rounds of the run were sent with in {store.path}, "
            f"found none. {RESTORE}"
        )
    store.write_sent(dataclasses.replace(_as_declared(sent, setup.schedule), asked=True))
    standardization.ask(store, asked, setup.problem, setup.schedule.key, sent.identity)


def _change(folder: Path, changes: Mapping[str, Any], inputs: RunInputs) -> None:
    """Change a run's settings; refuse changes that are no longer possible."""
    store = RunStore(folder)
    before = store.config()
    config = before.changed(**changes)
    check_config(config)
    if digest(config) != digest(before):
        names = ", ".join(changes_between(before, config))
        raise ValueError(
            f"Expected changes of {', '.join(FREE)} (of rounds only without "
            f"max_participations), got {names}: the guarantee covers all rounds, so begin a new "
            "run."
        )
    setup = _prepared(folder, config, inputs)
    schedule = setup.schedule
    schedule.check(store.sent())
    rounds = schedule.declared()[0]
    if (inner := RunStore(folder / BASELINE)).exists():
        done = inner.sent().round
        inner.write("config", without_privacy(config, max(rounds, done), setup.mechanism))
    store.write("config", config)


def _prepared(folder: Path, config: TrainConfig, inputs: RunInputs) -> TrainingSetup:
    """What the run in a folder is trained with; ValueError if it is not what it began with."""
    # A baseline has the key and the problem of its run.
    home = RunStore(folder.parent if folder.name == BASELINE else folder)
    key = key_of(config, home)
    if home.sent().commitment != commitment(home.config(), key):
        raise ValueError(
            f"Expected the secret key that the run in {folder} began with, got another: with it, "
            "rounds that were sent would be sent a second time. Restore it or begin a new run."
        )
    if home.folder != folder:
        inputs = dataclasses.replace(inputs, mechanism=None)
    setup = prepare(config, key, inputs)
    binding.check(home, binding.bind(setup.problem, key))
    return setup


def _execute_one(folder: Path, on_round: OnRound, inputs: RunInputs) -> records.RunRecord:
    store = RunStore(folder)
    config = store.config()
    torch.set_num_threads(config.local.threads)
    setup = _prepared(folder, config, inputs)
    if (figures := load_figures(folder, setup.problem)) is not None:
        setup = setup.standardized(figures)
    upload = _warm_up(setup, config)
    with ThreadPoolExecutor(
        config.local.threads, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        algorithm = distributed_sgd(
            setup.learner,
            setup.mechanism,
            population=config.task.population,
            server=setup.server,
            pool=pool,
            workers=config.local.threads,
            hidden=config.hidden_cohorts,
            preparation=setup.preparation,
            # Public and the run's own: it goes on with the same subsets of coordinates.
            public_seed=int(store.sent().identity[:16], 16),
        )
        state, metrics, sent = _train(store, setup, algorithm, on_round)
    summary = summarized(setup, state, metrics, upload, sent)
    store.write_summary(summary)
    return records.RunRecord(config, metrics, summary)


def _train(
    store: RunStore, setup: TrainingSetup, algorithm: Algorithm, on_round: OnRound
) -> tuple[State, list[RoundMetrics], SentRounds]:
    """The training loop, from the last checkpoint to the end."""
    schedule = setup.schedule
    config = schedule.config
    stored = _stored_before(store, setup)
    state = _checkpoint(store, len(stored.metrics)) or algorithm.init()
    sent, done = _restate(store, stored, schedule)
    key = schedule.key.fold_in("updates")
    step = schedule.step(state.round, state.participations)
    while step.cohort is not None:
        number = state.round + 1
        if number > sent.round:
            sent = dataclasses.replace(sent, round=number)
            store.write_sent(sent)
        try:
            state, cost = algorithm.apply(state, step.cohort, key)
        except ValueError as error:
            raise ValueError(f"Round {number}: {error}") from error
        metrics = measured(number, cost, sent, step)
        step = schedule.step(number, state.participations)
        new = number > len(done)
        if not new:
            metrics = same(done[number - 1], metrics)
        else:
            if config.server.evaluates(number, config.rounds) or step.cohort is None:
                metrics = evaluated(metrics, setup.learner, state)
            done.append(metrics)
        point = number % config.server.checkpoint_every == 0 or step.cohort is None
        if new or point:
            kept = checkpoint.to_bytes(state, sent.identity) if point else b""
            store.commit(metrics if new else None, kept)
        on_round(config, metrics)
    if state.round < sent.round:
        raise ValueError(
            f"Expected settings that allow the {sent.round} rounds that were sent, got an end "
            f"{step.stopped}: what was sent cannot be taken back."
        )
    if done[-1].loss is None and setup.problem.test is not None:
        # `rounds` was lowered to the number sent.
        done[-1] = evaluated(done[-1], setup.learner, state)
        store.write_sent(sent, done)
    return state, done, sent


def _stored_before(store: RunStore, setup: TrainingSetup) -> StoredRun:
    """What the run has sent and measured, if it may continue from there."""
    config, stored = setup.schedule.config, store.read(results=False)
    if stored.sent.channel != setup.fingerprint:
        raise ValueError(
            f"Expected the mechanism that the run in {store.folder} began with, got another: "
            f"{config.mechanism} or a file it reads has changed; restore that or begin a new run."
        )
    setup.schedule.check(stored.sent)
    return stored


def _checkpoint(store: RunStore, rounds: int) -> State | None:
    state = _state(store, "latest")
    if state is not None and state.round > rounds:
        raise ValueError(
            f"Expected a checkpoint in {store.path} of the {rounds} rounds there, got one of "
            f"{state.round}: rounds are missing. {RESTORE}"
        )
    return state


def _restate(
    store: RunStore, stored: StoredRun, schedule: Schedule
) -> tuple[SentRounds, list[RoundMetrics]]:
    """Restate what was declared and sent, at the delta and for the neighbours now configured."""
    now = _as_declared(stored.sent, schedule)
    of = {"delta": now.delta, "neighboring": now.neighboring}
    metrics = [
        dataclasses.replace(m, epsilon=schedule.epsilon(m.round, m.participations or 0), **of)
        for m in stored.metrics
    ]
    if tuple(metrics) != stored.metrics or now != stored.sent:
        store.write_sent(now, metrics)
    return now, metrics


def _as_declared(sent: SentRounds, schedule: Schedule) -> SentRounds:
    """What was declared and sent; until something is, all that is configured is declared."""
    config = schedule.config
    declared = (sent.declared, sent.participations) if sent.binding else schedule.declared()
    return dataclasses.replace(
        sent, declared=declared[0], participations=declared[1], epsilon=schedule.epsilon(*declared),
        delta=config.delta, neighboring=config.privacy.neighboring,
    )  # fmt: skip


def _warm_up(setup: TrainingSetup, config: TrainConfig) -> int:
    """Compile the encoder before the first round is timed; return the bytes of an upload."""
    hidden, dimension = config.hidden_cohorts, setup.dimension
    cohort = config.cohort if hidden is None else hidden.summands(setup.mechanism.trust)
    zeros = np.zeros(dimension, dtype=np.float32)  # copies of one payload would be refused
    mechanism = setup.mechanism.in_round(0)
    payloads = [mechanism.encode(zeros, Key.generate()) for _ in range(cohort)]
    mechanism.mean(payloads, dimension, Key.generate())
    return mechanism.upload_bytes(dimension, cohort)
