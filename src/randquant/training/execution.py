"""Training runs in folders: a killed run resumes with the same problem and ends with the same bits.

All randomness is derived from (key, round), so a checkpoint holds the model, the state of the
server's optimiser, the round number, the participation counts, and nothing else. Rounds after the
checkpoint that were sent before a kill are sent again with the same bits, which is no new release.
A run neither ends before these rounds nor states less than they cost. `run_store` describes the
files.

A run is bound to its model, loss and data by digests, so that it continues with no others. All are
keyed with the run's key: with a plain hash, anyone who reads the store could check guesses of a
client's data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from randquant._internal import files
from randquant._internal.files import make_folder
from randquant._internal.formatting import from_json
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.data import ClientSet, Examples, converted, is_in_memory, ready_type
from randquant.local_training.models import described, tensors
from randquant.local_training.problem import Problem, without_addresses
from randquant.local_training.standardize import FeatureStatistics, ask_statistics, client_matrices
from randquant.statistics.surveys import survey_text
from randquant.training import run_store as records
from randquant.training.algorithm import ENGINE, Algorithm, RoundCollector, State, distributed_sgd
from randquant.training.config import (
    CHANGEABLE_SETTINGS,
    TrainConfig,
    changes_between,
    check_config,
    digest,
)
from randquant.training.run_store import (
    BASELINE,
    RESTORE,
    RoundCost,
    RoundMetrics,
    RunStore,
    RunSummary,
    SentRounds,
    StoredRun,
    clear_folder,
    commitment,
    is_run,
    new_key,
    run_key,
)
from randquant.training.schedule import Schedule, Step
from randquant.training.setup import (
    RunInputs,
    TrainingSetup,
    prepare,
    standardization_query,
    without_privacy,
)

OnRound = Callable[[TrainConfig, RoundMetrics], None]
"""Called after each round, for progress displays."""


def create(
    folder: Path,
    config: TrainConfig,
    inputs: RunInputs,
    *,
    overwrite: bool = False,
    key: Key | None = None,
) -> None:
    """Make the folder of a new run.

    Args:
        folder: the run's folder; it must not exist, or hold a run if `overwrite` is given.
        config: the run's configuration; `config.server.baseline` also trains the same run without
            privacy.
        inputs: its problem, and perhaps the user's own mechanism and optimiser.
        overwrite: delete an existing run.
        key: the run's, from `new_key`; by default another one.

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
    key = key or new_key(config)
    # An invalid configuration must fail before anything is written, or an old run deleted.
    setup = prepare(config, key, inputs)
    setup.learner.check()
    rounds, most = declared = setup.schedule.declared()
    sent_rounds = SentRounds(
        digest(config), setup.fingerprint, 0, *declared, setup.schedule.epsilon(rounds, most),
        config.delta, config.privacy.neighboring, commitment(config, key),
    )  # fmt: skip
    contents: dict[str, Any] = {"problem": bind(setup.problem, key)}
    if config.seed is None:
        contents["key"] = {"key": key.secret_bytes().hex()}
    # Without participations: of the first state only the weights are read again.
    first = State(0, setup.learner.parameters(), np.zeros(0, dtype=np.int64))
    initial = first.to_bytes(sent_rounds.identity)
    if folder.exists() and any(folder.iterdir()):
        clear_folder(folder, overwrite)
    make_folder(folder)
    with files.folder(folder):
        # Another process may have begun a run before the lock was taken: what its record says was
        # sent must not be replaced.
        if is_run(folder):
            raise FileExistsError(
                f"Expected a new folder for the run, got {folder}, in which another process has "
                "begun a run: choose another."
            )
        # The baseline first: if the process dies in between, there is no run yet, and the next
        # `create` clears the folder. The other way round a run would lack its baseline for good.
        if config.server.baseline:
            baseline = without_privacy(config, rounds, setup.mechanism)
            baseline_sent = SentRounds(
                digest(baseline), "", 0, *declared, None, baseline.delta,
                baseline.privacy.neighboring,
            )  # fmt: skip
            RunStore(folder / BASELINE).create({"config": baseline, "sent": baseline_sent})
        RunStore(folder).create({"config": config, "sent": sent_rounds, **contents}, initial)


def execute(
    folder: Path,
    inputs: RunInputs,
    on_round: OnRound = lambda config, metrics: None,
    changes: Mapping[str, Any] | None = None,
) -> records.RunRecord:
    """Train the run in `folder` to its end, from its last checkpoint if there is one.

    Args:
        folder: made by `create`.
        inputs: those that the run was created with; another problem is refused.
        on_round: called after each round.
        changes: settings to continue with, by name, among `CHANGEABLE_SETTINGS`; they are
            saved.

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
            are not those that it began with, or what was sent exceeds its rounds or
            stop_at_epsilon.
        BlockingIOError: another process is training this run.
    """
    folder = folder.absolute()  # a model or a callback may change the working directory
    RunStore(folder).config()  # raises where there is no run, before a lock file is made there
    with files.folder(folder), _restoring_threads():
        if changes:
            _change_settings(folder, changes, inputs)
        _ask_statistics(folder, inputs)
        # The baseline first: as soon as the run itself is finished, so is everything.
        if RunStore(folder / BASELINE).exists():
            _execute_one(folder / BASELINE, on_round, inputs)
        return _execute_one(folder, on_round, inputs)


@contextlib.contextmanager
def _restoring_threads() -> Iterator[None]:
    # `_execute_one` sets torch's number of threads, which is global to the caller's process.
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
    """Return the initial weights of a run, (d,) float32."""
    state = _state(store := RunStore(folder), "initial")
    if state is None:
        raise ValueError(
            f"Expected the weights that the run began with in {store.path}, found none. {RESTORE}"
        )
    return state.parameters


def load_statistics(folder: Path, problem: Problem) -> FeatureStatistics | None:
    """Return the statistics that the run in a folder standardises by; None if it does not.

    Raises:
        ValueError: there are none, they were changed, or were asked for on other terms.
    """
    # A baseline uses those of its run: clients are asked once.
    home = RunStore(folder.parent if folder.name == BASELINE else folder)
    if (query := standardization_query(home.config(), problem)) is None:
        return None
    if query.survey is None:
        # The bounds determine them: nobody is asked, and the key draws nothing.
        return ask_statistics(query, [], Key.from_seed(0))
    record = home.record("standardization", home.sent_rounds().identity)
    # Another version of this package may plan the query differently: its statistics would not be
    # what the stored guarantee was stated for.
    if record.pop("terms") != survey_text(query.survey):
        raise ValueError(
            f"Expected the statistics in {home.path} that this version asks for, got statistics "
            "on other terms: continue with the version that the run began with."
        )
    return FeatureStatistics(query.bounds, features=query.features, **record)


def _state(store: RunStore, name: Literal["initial", "latest"]) -> State | None:
    content, sent_rounds = store.state(name), store.sent_rounds()
    return State.from_bytes(content, sent_rounds.identity, store.path) if content else None


def _ask_statistics(folder: Path, inputs: RunInputs) -> None:
    store = RunStore(folder)
    config = store.config()
    if config.local.standardize is None or store.has("standardization"):
        return
    setup = _setup(folder, config, inputs)
    query = standardization_query(config, setup.problem)
    sent_rounds = _read_resumable(store, setup).sent_rounds
    if query is None or query.survey is None:
        return
    # They are on disk before the first round: if they are gone, so may be other records.
    if sent_rounds.round > 0:
        raise ValueError(
            f"Expected the statistics that the run standardises by in {store.path}, found none, "
            f"although {sent_rounds.round} rounds were sent with them. {RESTORE}"
        )
    # The cost first, then the question: a kill in between overstates the cost, never the reverse.
    store.write_sent(dataclasses.replace(_declare(sent_rounds, setup.schedule), asked=True))
    # More bounds than features: targets are standardised too. The run's key draws the noise: a run
    # that is killed before they are stored gets the same ones again, which is no second release.
    rows = client_matrices(setup.problem, len(query.bounds) > query.features)
    statistics = ask_statistics(query, rows, setup.schedule.key.fold_in("standardize"))
    terms = survey_text(query.survey)
    record = {"means": statistics.means, "spreads": statistics.spreads, "terms": terms}
    store.write("standardization", record, sent_rounds.identity)


def _change_settings(folder: Path, changes: Mapping[str, Any], inputs: RunInputs) -> None:
    store = RunStore(folder)
    before = store.config()
    config = before.changed(**changes)
    check_config(config)
    if digest(config) != digest(before):
        names = ", ".join(changes_between(before, config))
        raise ValueError(
            f"Expected changes of {', '.join(CHANGEABLE_SETTINGS)} (of rounds only without "
            f"max_participations), got {names}: the guarantee covers all rounds, so begin a new "
            "run."
        )
    setup = _setup(folder, config, inputs)
    schedule = setup.schedule
    schedule.check(store.sent_rounds())
    rounds = schedule.declared()[0]
    # The baseline first, as in `create`. It is not cut below the rounds that it has done.
    if (inner := RunStore(folder / BASELINE)).exists():
        done = inner.sent_rounds().round
        inner.write("config", without_privacy(config, max(rounds, done), setup.mechanism))
    store.write("config", config)


def _setup(folder: Path, config: TrainConfig, inputs: RunInputs) -> TrainingSetup:
    """Build the setup of the run in a folder.

    Raises:
        ValueError: the inputs or the key are not those that the run began with.
    """
    # A baseline has the key and the problem of its run.
    home = RunStore(folder.parent if folder.name == BASELINE else folder)
    key = run_key(config, home)
    # With another key a round that is repeated after a kill would have other noise: a second
    # release at the cost of one. Neither key may be shown.
    if home.sent_rounds().commitment != commitment(home.config(), key):
        raise ValueError(
            f"Expected the secret key that the run in {folder} began with, got a different one: "
            "rounds that were sent would be sent a second time with other noise. Restore the key "
            "or begin a new run."
        )
    if home.folder != folder:  # a baseline is sent as floats, not by the user's own mechanism
        inputs = dataclasses.replace(inputs, mechanism=None)
    setup = prepare(config, key, inputs)
    check_binding(home, bind(setup.problem, key))
    return setup


def _execute_one(folder: Path, on_round: OnRound, inputs: RunInputs) -> records.RunRecord:
    store = RunStore(folder)
    config = store.config()
    torch.set_num_threads(config.local.threads)
    setup = _setup(folder, config, inputs)
    if (statistics := load_statistics(folder, setup.problem)) is not None:
        setup = setup.standardized(statistics)
    stored = _read_resumable(store, setup)
    sent_rounds, done = _restate(store, stored, setup.schedule)
    # Without a guarantee rounds may be added, and taken away again: those that were sent are
    # repeated with the steps of the longest run.
    longest = stored.sent_rounds.declared if stored.sent_rounds.begun else 0
    setup = setup.declaring(max(sent_rounds.declared, longest))
    upload_bytes = _warm_up(setup, config)
    # One thread of torch a worker: clients run in parallel, and more would compete for the cores.
    with ThreadPoolExecutor(
        threads := config.local.threads, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool, ENGINE.get()(
        RoundCollector(setup.learner, setup.mechanism, pool, threads, None, setup.preparation)
    ) as engine:  # fmt: skip
        algorithm = distributed_sgd(
            setup.learner,
            setup.mechanism,
            population=config.task.population,
            server=setup.server,
            pool=pool,
            workers=threads if engine is None else engine.workers,
            hidden=config.hidden_cohorts,
            preparation=setup.preparation,
            # From public settings, so that clients may know it; the same after a kill, so that the
            # run goes on with the same subsets of coordinates.
            public_seed=int(store.sent_rounds().identity[:16], 16),
            engine=engine,
        )
        state, sent_rounds = _train(store, setup, algorithm, sent_rounds, done, on_round)
    summary = _summary(setup, state, done, upload_bytes, sent_rounds)
    store.write_summary(summary)
    return records.RunRecord(config, done, summary)


def _train(
    store: RunStore,
    setup: TrainingSetup,
    algorithm: Algorithm,
    sent_rounds: SentRounds,
    done: list[RoundMetrics],
    on_round: OnRound,
) -> tuple[State, SentRounds]:
    # Appends to `done`, the rounds on record, those that are still to come.
    schedule = setup.schedule
    config = schedule.config
    state = _latest_state(store, len(done)) or algorithm.init()
    key = schedule.key.fold_in("updates")
    step = schedule.step(state.round, state.participations)
    while step.cohort is not None:
        number = state.round + 1
        # On disk before clients are asked: after a kill the files may overstate what was sent by
        # one round, and never understate it. A round that is repeated is on record already.
        if number > sent_rounds.round:
            sent_rounds = dataclasses.replace(sent_rounds, round=number)
            store.write_sent(sent_rounds)
        try:
            state, cost = algorithm.apply(state, step.cohort, key)
        except ValueError as error:
            raise ValueError(f"Round {number}: {error}") from error
        metrics = _metrics(number, cost, sent_rounds, step)
        step = schedule.step(number, state.participations)
        new = number > len(done)
        if not new:
            metrics = _repeated(done[number - 1], metrics)
        else:
            # `step` is the next one by now: without a cohort this was the last round.
            if config.server.evaluates(number, config.rounds) or step.cohort is None:
                metrics = _evaluated(metrics, setup.learner, state)
            done.append(metrics)
        is_checkpoint = number % config.server.checkpoint_every == 0 or step.cohort is None
        # Metrics and checkpoint in one transaction: a checkpoint is never ahead of the metrics,
        # which `_latest_state` would take for lost rounds.
        if new or is_checkpoint:
            checkpoint = state.to_bytes(sent_rounds.identity) if is_checkpoint else b""
            store.commit(metrics if new else None, checkpoint)
        # Last: if a callback raises, the round is complete, and the run can be continued.
        on_round(config, metrics)
    if state.round < sent_rounds.round:
        raise ValueError(
            f"Expected settings that allow the {sent_rounds.round} rounds that were sent, got an "
            f"end {step.stopped}: what was sent cannot be taken back."
        )
    if done[-1].loss is None and setup.problem.test is not None:
        # `rounds` was lowered to the number sent, so the last round was not known to be the last.
        done[-1] = _evaluated(done[-1], setup.learner, state)
        store.write_sent(sent_rounds, done)
    return state, sent_rounds


def _metrics(number: int, cost: RoundCost, sent_rounds: SentRounds, step: Step) -> RoundMetrics:
    return RoundMetrics(
        **dataclasses.asdict(cost),
        round=number,
        participations=step.participations,
        epsilon=step.epsilon,
        delta=sent_rounds.delta,
        neighboring=sent_rounds.neighboring,
    )


def _repeated(before: RoundMetrics, again: RoundMetrics) -> RoundMetrics:
    """Return the metrics of a round that was repeated, after checking that its bits are the same.

    Raises:
        ValueError: they are not: the round would be a second release, which nothing accounts for.
    """
    # The training loss alone would not tell: it is of a client's first step, and another loss,
    # model or example may change the update only. The digest of the decoded mean does tell.
    names = ["train_loss", "bytes_up", "participations", "numbers", "mean"]
    differing = [name for name in names if getattr(before, name) != getattr(again, name)]
    if differing:
        # Names without values: the second release is what must not be given away.
        raise ValueError(
            f"Expected round {before.round} to give what it gave before the run was stopped, got "
            f"a different {', '.join(differing)}, which would be a second release: use the "
            "machine, libraries and data that the run started with, or begin a new run."
        )
    return before


def _evaluated(metrics: RoundMetrics, learner: Learner, state: State) -> RoundMetrics:
    started = time.perf_counter()
    learner.load(state.parameters)
    evaluation = learner.evaluate()
    return dataclasses.replace(
        metrics,
        accuracy=evaluation.accuracy,
        loss=evaluation.loss,
        balanced_accuracy=evaluation.balanced_accuracy,
        auc=evaluation.auc,
        seconds_evaluate=time.perf_counter() - started,
    )


def _summary(
    setup: TrainingSetup,
    state: State,
    metrics: list[RoundMetrics],
    upload_bytes: int,
    sent_rounds: SentRounds,
) -> RunSummary:
    schedule = setup.schedule
    most = sent_rounds.participations
    stopped = schedule.step(state.round, state.participations).stopped
    if state.round < sent_rounds.declared:
        # theory/accounting.md, Proposition 8: the end may have been chosen by looking at the model,
        # so the guarantee is that of all declared rounds.
        stopped = f"before round {state.round + 1} of {sent_rounds.declared}"
        stopped += ": the guarantee is of them all"
    last = metrics[-1]  # the last round is always evaluated
    return RunSummary(
        accuracy=last.accuracy,
        loss=last.loss,
        balanced_accuracy=last.balanced_accuracy,
        auc=last.auc,
        advice=setup.advice(state, metrics),
        dimension=setup.learner.dimension,
        bytes_per_upload=upload_bytes,
        participations=most,
        **setup.guarantees(sent_rounds.declared, most),
        rounds=state.round,
        stopped=stopped,
        bytes_as_codes=setup.mechanism.payload_bytes(setup.dimension),
        spent=schedule.ledger.spent,
        examples=schedule.ledger.examples,
    )


def _read_resumable(store: RunStore, setup: TrainingSetup) -> StoredRun:
    """Read the rounds of a run that may be continued with this setup.

    Raises:
        ValueError: the mechanism is not the one it began with, or its settings do not allow it.
    """
    # Without results: they are about to be replaced, and may be damaged.
    config, stored = setup.schedule.config, store.read(results=False)
    # The channel may be read from a file, whose name alone is in the settings' digest.
    if stored.sent_rounds.fingerprint != setup.fingerprint:
        raise ValueError(
            f"Expected the mechanism that the run in {store.folder} began with, got a different "
            f"{config.mechanism}, or a file that it reads has changed: restore that or begin a new "
            "run."
        )
    setup.schedule.check(stored.sent_rounds)
    return stored


def _latest_state(store: RunStore, rounds: int) -> State | None:
    state = _state(store, "latest")
    if state is not None and state.round > rounds:
        raise ValueError(
            f"Expected a checkpoint in {store.path} of the {rounds} rounds there, got a checkpoint "
            f"of {state.round}: rounds are missing. {RESTORE}"
        )
    return state


def _restate(
    store: RunStore, stored: StoredRun, schedule: Schedule
) -> tuple[SentRounds, list[RoundMetrics]]:
    # At the delta and for the neighbours that are configured now. They may be chosen afterwards:
    # every delta and both neighbouring relations hold of the declared rounds at once
    # (theory/accounting.md, Proposition 8).
    sent_rounds = _declare(stored.sent_rounds, schedule)
    terms = {"delta": sent_rounds.delta, "neighboring": sent_rounds.neighboring}
    metrics = [
        dataclasses.replace(m, epsilon=schedule.epsilon(m.round, m.participations or 0), **terms)
        for m in stored.metrics
    ]
    if tuple(metrics) != stored.metrics or sent_rounds != stored.sent_rounds:
        store.write_sent(sent_rounds, metrics)
    return sent_rounds, metrics


def _declare(sent_rounds: SentRounds, schedule: Schedule) -> SentRounds:
    # Once something was sent, the declared rounds stay: no guarantee covers rounds added later.
    config = schedule.config
    rounds, participations = (
        (sent_rounds.declared, sent_rounds.participations)
        if sent_rounds.binding
        else schedule.declared()
    )
    return dataclasses.replace(
        sent_rounds, declared=rounds, participations=participations,
        epsilon=schedule.epsilon(rounds, participations), delta=config.delta,
        neighboring=config.privacy.neighboring,
    )  # fmt: skip


def _warm_up(setup: TrainingSetup, config: TrainConfig) -> int:
    # Compiles the encoder before the first round is timed, and returns the bytes of an upload.
    hidden, dimension = config.hidden_cohorts, setup.dimension
    cohort = config.cohort if hidden is None else hidden.summands(setup.mechanism.trust)
    # Zeros and fresh keys: no client's data is in these payloads, and none is the copy of another,
    # which would be refused.
    zeros = np.zeros(dimension, dtype=np.float32)
    mechanism = setup.mechanism.in_round(0)
    payloads = [mechanism.encode(zeros, Key.generate()) for _ in range(cohort)]
    mechanism.mean(payloads, dimension, Key.generate())
    return mechanism.upload_bytes(dimension, cohort)


# Digests of a run's model, loss and data, so that it continues with no others.


@dataclass(frozen=True, slots=True)
class Binding:
    """Digests of a run's problem, in hexadecimal.

    Attributes:
        model: names, shapes and initial weights of the model, which of them are trained, and the
            public examples for running statistics. The initial values of trained weights are in the
            run's store, so other ones may be passed when it goes on.
        loss: the name of the loss, with the settings that its repr shows.
        clients: names, sizes and data of all clients; only names and sizes of data that is read
            from elsewhere during training.
        test: the test data.
    """

    model: str
    loss: str
    clients: str
    test: str


_FIELD_NAMES = {
    "model": "model, frozen weights and trained parts",
    "loss": "loss",
    "clients": "clients' data",
    "test": "test data",
}


def bind(problem: Problem, key: Key) -> Binding:
    """Compute the binding of a run with this key to its problem."""
    secret = key.fold_in("binding").words(4).tobytes()

    def digest(*parts: object) -> str:
        mac = hmac.new(secret, digestmod="sha256")
        for part in parts:
            whole = part if isinstance(part, _Content) else _Content.of_text(repr(part))
            # With its length, so that no two lists of parts are the same bytes.
            mac.update(whole.size.to_bytes(8, "big"))
            for piece in whole.pieces:
                mac.update(piece)
        return mac.hexdigest()

    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _weights(tensor))
    ]
    clients, loss = problem.clients, problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest(problem.parts, problem.buffers, *tensors, *_data(problem.statistics)),
        digest(getattr(loss, "__module__", ""), name),
        digest(clients.names, *_clients(clients)),
        digest(*_data(problem.test)),
    )


def check_binding(store: RunStore, binding: Binding) -> None:
    """Refuse another problem than that of the run in a store.

    Raises:
        ValueError: the run has another model, loss, or data; the error says which.
    """
    begun = from_json(Binding, store.record("problem"))
    for field in fields(Binding):
        if getattr(begun, field.name) != getattr(binding, field.name):
            # The digests are not shown: they say nothing about what differs.
            hint = " (torch.manual_seed before it is built draws the same weights)"
            raise ValueError(
                f"Expected the {_FIELD_NAMES[field.name]} that the run in {store.folder} began "
                f"with, got a different one: give the same again{hint * (field.name == 'model')}, "
                "or choose another folder for a new run."
            )


class _Content(NamedTuple):
    """Bytes of a known number, piece by piece, so that no more than a piece is copied at a time."""

    size: int
    pieces: Iterable[memoryview]

    @classmethod
    def of_text(cls, text: str) -> _Content:
        return cls(len(encoded := text.encode()), [memoryview(encoded)])


# The bytes are those of version 0.1.0, which joined the examples of all clients to one table, so
# that its runs are known again.


def _clients(clients: ClientSet) -> Iterator[object]:
    if not clients.known:  # they are known by their names alone
        return
    if clients.in_memory:
        yield from _joined(clients.sources)
    else:
        yield None
    start = 0
    for source in clients.sources:
        places = np.arange(start, start + len(source), dtype=np.int64)
        yield _Content(places.nbytes, [places.data.cast("B")])
        if clients.in_memory:
            start += len(source)
        elif is_in_memory(source):
            yield from _joined([source])


def _data(examples: Examples | None) -> Iterator[object]:
    if is_in_memory(examples):
        yield from _joined([examples])
    else:
        # Data that is read from elsewhere would have to be read in full: its size must do.
        yield None if examples is None else len(examples)


def _joined(sources: Sequence[Any]) -> Iterator[object]:
    first, count = sources[0], sum(map(len, sources))
    every = [(*tensors(each.features), each.targets) for each in sources]
    for number, tensor in enumerate(every[0]):
        size = ready_type(tensor).itemsize * count * tensor[:1].numel()
        yield _Content(size, _rows(sources, [each[number] for each in every]))
    yield described(first.features, lambda each: str((count, *each.shape[1:])))


def _rows(sources: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    # One client's at a time.
    for source, tensor in zip(sources, tensors, strict=True):
        yield _bytes(converted(source.own(tensor)))


def _weights(tensor: torch.Tensor) -> _Content:
    # Of any type, also of those that NumPy does not have.
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return _Content(len(flat), [_bytes(flat)])


def _bytes(tensor: torch.Tensor) -> memoryview:
    # By NumPy, since torch copies small strided tensors on several threads, which wait longer for
    # each other than the copies take.
    return np.ascontiguousarray(tensor.numpy()).data.cast("B")
