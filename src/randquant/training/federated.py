"""`randquant.train`: from a model and its clients' data to a trained model with a guarantee."""

from __future__ import annotations

import contextlib
import contextvars
import math
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch.nn.functional as F
from torch import nn

from randquant._internal import validate
from randquant._internal.formatting import count, round_up
from randquant._internal.progress import Bars, waiting
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.local import Local, Work
from randquant.local_training.problem import Loss, Problem, make_problem
from randquant.local_training.standardize import Standardized, standardized
from randquant.planning.planner import choose
from randquant.planning.plans import CLIP_NORM, Need, Privacy
from randquant.privacy.accounting.accountant import by_relation
from randquant.privacy.guarantee import DEFAULT_DELTA, Guarantee, Neighboring
from randquant.rounds.statement import ReleaseTerms, Statement, stated
from randquant.statistics.surveys import Survey
from randquant.training import execution
from randquant.training.config import (
    AUTO,
    OWN,
    Callback,
    Server,
    TrainConfig,
    changes_between,
    check_config,
    configured_mechanism,
    digest,
    mechanism_record,
)
from randquant.training.run_store import (
    RoundMetrics,
    RunRecord,
    RunStore,
    RunSummary,
    new_key,
    run_key,
)
from randquant.training.schedule import most_participations
from randquant.training.setup import RunInputs, optimizer_step, spent_before, standardization_query

LARGEST_COHORT = 1000
"""Clients a round by default, if there are as many.

Larger cohorts give better models at the same epsilon, but a round with twice as many clients takes
about twice as long in this simulation, and one with half as many, half as long.
"""

ELSEWHERE = {
    **{
        each.name: f"{place}=randquant.{kind.__name__}({each.name}=…)"
        for place, kind in (("privacy", Privacy), ("server", Server), ("local", Local))
        for each in fields(kind)
    },
    "learning_rate": "local=randquant.Local(learning_rate=…) for clients' steps, or "
    "server=randquant.Server('SGD', learning_rate=…)",
    "eps": "epsilon=…",
    "cohort_size": "cohort=…",
    "num_rounds": "rounds=…",
    "proximal_mu": "local=randquant.Local(epochs=1), which keeps clients near the global weights: "
    "there is no penalty on the way to them",
}
"""The replacement for each argument that `train` does not have, for error messages."""


class Advice(UserWarning):
    """Advice on a run that has ended, from its released means and its loss on test data."""


_OVERWRITES = contextvars.ContextVar("overwrites", default=False)


@contextlib.contextmanager
def overwriting() -> Iterator[None]:
    """Let calls of `train` replace the run in their folder, for the command line.

    It is deleted when the new one has been checked and is about to begin, and not before.
    """
    token = _OVERWRITES.set(True)
    try:
        yield
    finally:
        _OVERWRITES.reset(token)


@validate.hinting(ELSEWHERE)
def train(
    model: nn.Module,
    clients: Any,
    *,
    loss: Loss = F.cross_entropy,
    test: Any = None,
    epsilon: float | None = None,
    delta: float = DEFAULT_DELTA,
    rounds: int = 50,
    cohort: int | None = None,
    trust: Literal["aggregate", "local", "model"] = "aggregate",
    mechanism: UpdateMechanism | None = None,
    local: Local = Local(),  # noqa: B008 - it is frozen
    server: Server = Server(),  # noqa: B008 - it is frozen
    privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
    population: int | Sequence[Any] | None = None,
    folder: str | Path | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Run:
    """Train a model on the data of many clients, with a proven guarantee for each of them.

    By default each client computes a few steps of local SGD and sends the model difference: clipped
    as a whole, rotated, and rounded at random to one bit per coordinate. The server learns the sum
    of a cohort's bits only (`trust="aggregate"`; this simulation adds them up itself) and moves the
    model by the decoded mean. The random rounding is calibrated so that the whole run meets
    (epsilon, delta) for one client's whole participation, before any data is looked at.

    Args:
        model: any module from a batch of features to one tensor, or to an object with `logits`, a
            copy of which is trained.
        clients: a mapping from names, or a sequence, of each one's (features, targets): arrays,
            tensors, torch Datasets of pairs, or columns by name; a tuple or dict of features is for
            model(*features) or model(**features). Tensors and arrays are not copied: leave them as
            they are while the run goes on. Or a function that returns a client's data, which is
            called when its turn comes.
        loss: from (output, targets) of a batch to its mean loss.
        test: data to measure accuracy and loss on, in the same forms; None to measure nothing. They
            must not be a client's: the guarantee does not cover what is measured on such data.
        epsilon: the target, in nats. With `mechanism` it is a limit: the run ends before the round
            that would exceed it. None for no limit.
        delta: of the target and of the guarantee.
        rounds: how many are declared. A run may end earlier; its guarantee covers them all.
        cohort: clients a round; by default all, but at most LARGEST_COHORT. Larger cohorts give
            better models at the same epsilon.
        trust: against whom the guarantee holds: `aggregate`, a server that sees only sums (secure
            aggregation), or `local`, a server that sees what each client sends. `model`: those who
            see the published models and nothing else, not even who takes part; `docs/sampling.md`
            says when that may be claimed.
        mechanism: a mechanism of your own, from `randquant.plan` or any `UpdateMechanism`, instead
            of one that is calibrated to the target; bits, trust and clip_norm are then its own.
        local: what a client computes, of which parts of the model, and where.
        server: the server's optimiser, and what is done from round to round.
        privacy: what is protected, how updates are clipped and sent, who takes part how often, and
            what is sent with updates. Unless `max_participations` is given, all clients take part
            equally often.
        population: for a function of clients: how many there are, which it is called with the
            numbers of, from 0; or their names.
        folder: where the run's files are kept. The same call with the same folder continues from
            the last checkpoint, to the same bits, with the initial weights that it began with; a
            folder of another run is refused. None for a temporary folder, which is deleted with
            the returned object; if the run is stopped, it stays, and the error says where.
        seed: a simulation seed. Everything can be repeated with it, and anyone who knows it can
            subtract the noise. None to draw a secret key, which is kept in the folder only.
        progress: show a bar on a terminal or in a notebook.

    Returns:
        A Run: the trained model, its guarantee, the history, and a report.

    Guarantees:
        The guarantee is proven for everything a client sends in the whole run, and its epsilon is
        at most `epsilon`. It covers the most declared rounds that any client takes part in,
        however the run ends; who takes part depends on no data.
        However often the run is interrupted and called again, the model is the same, bit for bit.
        The model that is passed in, and torch's global random state, stay as they are.

    Raises:
        TypeError, ValueError: an argument cannot be trained with; a client is named where it is
            one's data. A target that is out of reach is an `OutOfReach`, which says what would be
            needed.
        UserWarning: (a warning) whether anything is learnt depends on the task, or epsilon is left,
            or a run continues with the initial weights it began with and not with the model's.
        FileExistsError: the folder holds other files.
        KeyboardInterrupt: the run was stopped; the message says how to go on.

    References:
        McMahan et al. 2017 (federated averaging); Reddi et al. 2021 (the server's optimiser).

    Example:
        >>> import randquant as rq, torch
        >>> x = torch.randn(100, 20, 40, generator=torch.Generator().manual_seed(0))
        >>> clients = {f"phone {k}": (part, (part[:, 0] > 0).long()) for k, part in enumerate(x)}
        >>> run = rq.train(torch.nn.Linear(40, 2), clients, epsilon=8, rounds=20)
        >>> run.guarantee.epsilon <= 8, run.upload_bytes, run.model
        (True, 152, Linear(in_features=40, out_features=2, bias=True))
    """
    for name, value, kind in (
        ("local", local, Local), ("server", server, Server), ("privacy", privacy, Privacy),
    ):  # fmt: skip
        validate.kind(name, value, kind)
    # Data, model and loss are checked before anything is drawn, calibrated or written.
    problem = make_problem(
        model, clients, loss=loss, test=test, parts=local.parts, frozen=local.frozen,
        buffers=local.buffers, columns=local.columns, public=local.public, population=population,
    )  # fmt: skip
    count = len(problem.clients)
    make = server.optimizer
    inputs = RunInputs(problem, mechanism, None if isinstance(make, str) else make)
    # Only what a file can hold: `problem` has taken the public examples and the columns, and
    # callbacks are called here. The mechanism has no name until it is calibrated.
    config = TrainConfig(
        inputs.task, "", rounds=rounds, delta=delta, trust=trust,
        stop_at_epsilon=_limit(epsilon), seed=seed,
        cohort=min(count, LARGEST_COHORT) if cohort is None else cohort,
        local=replace(local, public=None, columns=None), server=replace(server, on_round=()),
        privacy=privacy,
    )  # fmt: skip
    return _train(config, inputs, folder, server.on_round, progress)


def _train(
    config: TrainConfig,
    inputs: RunInputs,
    folder: str | Path | None,
    callbacks: Sequence[Callback],
    progress: bool,
) -> Run:
    if folder is not None:
        # Absolute, because a model or a callback may change the working directory.
        home = validate.path("folder", folder).absolute()
        return _train_in(home, config, inputs, callbacks, progress)
    home = Path(tempfile.mkdtemp(prefix="randquant-"))
    try:
        return _train_in(home, config, inputs, callbacks, progress, temporary=True)
    except BaseException:
        store = RunStore(home)
        # Once something was sent, the folder holds the only record of what it cost: it stays.
        if not store.exists() or store.begun() is False:
            shutil.rmtree(home, ignore_errors=True)
        raise


def _train_in(
    home: Path,
    config: TrainConfig,
    inputs: RunInputs,
    callbacks: Sequence[Callback],
    progress: bool,
    *,
    temporary: bool = False,
) -> Run:
    changes: dict[str, Any] = {}
    overwrite = _OVERWRITES.get()
    if RunStore(home).exists() and not overwrite:
        config, inputs = _with_initial_weights(home, config, inputs)
        changes = _changes(home, config, inputs)
    else:
        # The mechanism is calibrated to the cohorts, which the key draws: it comes first.
        key = new_key(config)
        with waiting(progress):
            config = complete(config, inputs, key)
        execution.create(home, config, inputs, overwrite=overwrite, key=key)
    bars = Bars(None if progress else False)
    measured: dict[str, str] = {}
    with _saying_how_to_go_on(home, temporary), bars:

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            name = "round" if config.protects else "round without privacy"
            # Not every round is evaluated: the last measurement stays visible.
            measured[name] = _measurement_text(metrics) or measured.get(name, "")
            text = f"{measured[name]} {_epsilon_text(metrics)}"
            bars.show(name, metrics.round, config.rounds, text)
            # The baseline's rounds are not the caller's: they have no guarantee.
            for callback in callbacks if config.protects else ():
                callback(metrics)

        record = execution.execute(home, inputs, on_round, changes)
    problem, statistics = inputs.problem, execution.load_statistics(home, inputs.problem)
    learner = Learner(problem if statistics is None else standardized(problem, statistics))
    # From the folder: where the run had finished before, `execute` trains nothing and holds no
    # model.
    learner.load(execution.load_parameters(home))
    if record.summary.advice:
        warnings.warn(record.summary.advice, Advice, stacklevel=validate.callers())
    trained = learner.trained_model()
    if statistics is not None:
        trained = Standardized(trained, statistics).eval()
    # A certificate states the rounds that were declared when the first one was sent: the setting
    # may have been lowered since.
    query, declared = standardization_query(record.config, problem), RunStore(home).sent_rounds()
    return Run(
        trained, record, home, declared=declared.declared,
        table=None if query is None else query.survey, temporary=temporary,
    )  # fmt: skip


def _with_initial_weights(
    home: Path, config: TrainConfig, inputs: RunInputs
) -> tuple[TrainConfig, RunInputs]:
    """Return both with the initial weights of the run in a folder, if all else is the same.

    A model that is built anew has other random weights, which is no reason to refuse to go on.
    """
    begun, problem = RunStore(home).config(), inputs.problem
    if problem.digest == begun.task.problem:
        return config, inputs
    weights = execution.load_initial(home)
    restored = problem.starting_at(weights) if len(weights) == problem.dimension else problem
    if restored.digest != begun.task.problem:
        return config, inputs  # more than the weights differs: `_changes` refuses it
    warnings.warn(
        f"The run in {home} goes on from the initial weights that it began with. Those of the "
        "model that was given are others, and are not used: choose another folder to train it.",
        UserWarning,
        stacklevel=validate.callers(),
    )
    return config.changed(problem=restored.digest), replace(inputs, problem=restored)


def _changes(home: Path, config: TrainConfig, inputs: RunInputs) -> dict[str, Any]:
    """Return the settings to continue the run in a folder with.

    Raises:
        ValueError: they are those of another run.
    """
    store = RunStore(home)
    begun = store.config()
    if begun.seed != config.seed:
        raise _another_run(home, ["seed"])
    # With the key of the run, so that calibration sees the same cohorts, and gives the same noise.
    key = run_key(begun, store)
    wanted = complete(config, inputs, key)
    differing = changes_between(begun, wanted)
    if digest(wanted) != digest(begun):
        if "problem" in differing:  # raises the error that says which part of the problem differs
            execution.check_binding(store, execution.bind(inputs.problem, key))
        raise _another_run(home, list(differing))
    return differing


def _another_run(home: Path, names: Sequence[str]) -> ValueError:
    arguments = {
        "parameters": "mechanism", "problem": "model or names of clients",
        "stop_at_epsilon": "epsilon",
    }  # fmt: skip
    # Names without values: one of them may be the seed, with which the noise can be undone.
    shown = ", ".join(dict.fromkeys(arguments.get(name, name) for name in names))
    return ValueError(
        f"Expected the run in {home} to be continued as it began, got a different {shown}: choose "
        "another folder for a new run."
    )


@contextlib.contextmanager
def _saying_how_to_go_on(home: Path, temporary: bool) -> Iterator[None]:
    again = f"the same call with folder={str(home)!r}" if temporary else "the same call"
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_go_on(home, again)) from None
    except BlockingIOError:
        raise  # another process trains it, and nothing was stopped
    except Exception as error:
        error.add_note(how_to_go_on(home, again))
        raise


def how_to_go_on(home: Path, again: str) -> str:
    """Say whether a run that was stopped has sent anything, and how to go on with it.

    Args:
        home: the run's folder.
        again: what goes on with it, such as "the same call".
    """
    begun = RunStore(home).begun()
    if begun is None:  # a record that cannot be read may hide any cost: the worst is assumed
        return (
            f"The run was stopped, and no record of what it sent can be read in {home}: take "
            "all rounds that were declared as spent."
        )
    if not begun:
        return "The run was stopped before its first round."
    return (
        f"The run was stopped; what was sent is on record in {home}: {again} goes on from the "
        "last checkpoint. Its guarantee is that of all rounds that were declared."
    )


def _limit(epsilon: float | None) -> float | None:
    if epsilon is None or epsilon == math.inf:
        return None
    return validate.real("epsilon", epsilon, above=0)


def _measurement_text(metrics: RoundMetrics) -> str:
    if metrics.accuracy is not None:
        return f"accuracy {metrics.accuracy:.3f}"
    return "" if metrics.loss is None else f"loss {metrics.loss:.4g}"


def _epsilon_text(metrics: RoundMetrics) -> str:
    # The bound of a run that was declared to end here, see `RoundMetrics.epsilon`.
    if metrics.epsilon is None:
        return ""
    bound = round_up(metrics.epsilon, 4) if math.isfinite(metrics.epsilon) else "infinity"
    return f"epsilon so far <= {bound}"


def complete(config: TrainConfig, inputs: RunInputs, key: Key) -> TrainConfig:
    """Return the configuration with its mechanism and optimiser.

    Args:
        config: all settings but the mechanism; its optimiser may be a function.
        inputs: the problem, and the user's own mechanism unless one is to be calibrated.
        key: the run's; it determines the cohorts.
    """
    # First, because the cap decides how often a client takes part at most, which the noise is
    # calibrated to.
    config = _with_cap(config)
    if inputs.mechanism is not None:
        _check_mechanism(config, inputs.mechanism)
        config = _with_mechanism(config, inputs.mechanism)
    check_config(config)
    config = _with_optimizer(config, inputs.problem)
    if inputs.mechanism is not None:
        return config
    # After the checks: calibration takes longest.
    need, examples = _need(config, inputs.problem, key)
    chosen = choose(need, examples=examples)
    if chosen.warning:
        warnings.warn(chosen.warning, UserWarning, stacklevel=validate.callers())
    return config.changed(
        mechanism=chosen.mechanism, parameters=chosen.parameters, clip_norm=chosen.clip_norm
    )


def _with_cap(config: TrainConfig) -> TrainConfig:
    # By default all clients take part equally often: the guarantee is that of the most
    # participations, and uneven ones would raise it. Other ways of sampling allow no cap.
    uncapped = config.privacy.sampling != "fixed" or config.trust == "model"
    if uncapped or config.privacy.max_participations is not None:
        return config
    balanced = -(-config.rounds * config.cohort // config.task.population)
    return config.changed(max_participations=balanced)


def _need(config: TrainConfig, problem: Problem, key: Key) -> tuple[Need, int | None]:
    # Second, the smallest number of examples of a client, if examples are protected.
    privacy = config.privacy
    if config.stop_at_epsilon is None or privacy.clip_norm is None:
        missing = "epsilon"
        advice = (
            "give epsilon=8 (--epsilon 8), or for a run without privacy mechanism="
            "randquant.aggregation.ClippedSGD(clip_norm=1.0) (--mechanism clipped-sgd)"
        )
        if privacy.clip_norm is None:
            missing = "clip_norm"
            advice = (
                "an epsilon is met by clipping whole updates, so give clip_norm=1.0 "
                "(--clip-norm 1.0)"
            )
        raise ValueError(
            f"Expected {missing}, or a mechanism of your own, got None for both: {advice}."
        )
    trust: Any = validate.choice("trust", config.trust, ("aggregate", "local", "model"))
    hidden = config.hidden_cohorts
    most = most_participations(config, key) if hidden is None else hidden.participations
    examples = None
    if privacy.unit == "example":
        examples = Learner(problem, Work(config.local.batch)).examples
    # Calibrated to what is left of the target, so that the total meets it.
    target = config.stop_at_epsilon, config.delta
    spent = spent_before(config, problem)
    left = target if spent is None else spent.remaining(*target)
    need = Need(
        problem.dimension + len(privacy.numbers), config.task.population, config.cohort,
        config.rounds, *left, trust, privacy, most, hidden,
    )  # fmt: skip
    return need, examples


def _with_mechanism(config: TrainConfig, mechanism: UpdateMechanism) -> TrainConfig:
    return config.changed(
        mechanism=OWN, parameters=mechanism_record(mechanism),
        trust="model" if config.trust == "model" else mechanism.trust,
        clip_norm=mechanism.clip_norm,
    )  # fmt: skip


def _check_mechanism(config: TrainConfig, mechanism: UpdateMechanism) -> None:
    wanted = "a mechanism for whole updates, such as randquant.plan(...).mechanism"
    asked = ("encode", "mean", "release", "record", "trust", "cohort", "clip_norm", "channel")
    validate.answers("mechanism", mechanism, wanted, *asked)
    privacy = config.privacy
    if config.trust == "local" and mechanism.trust not in ("local", None):
        raise ValueError(
            f"Expected a mechanism of local trust with trust='local', got a mechanism of "
            f"{mechanism.trust} trust: leave trust out, or plan with trust='local'."
        )
    if privacy.coordinates is not None:
        raise ValueError(
            f"Expected no coordinates with a mechanism of your own, got {privacy.coordinates}: "
            "give them to the mechanism, as VectorMechanism(..., coordinates=...)."
        )
    if privacy.noise != "clients":
        raise ValueError(
            f"Expected no noise with a mechanism of your own, got {privacy.noise!r}: give "
            "randquant.aggregation.HelperNoise(...), whose sums have a helper's noise."
        )
    # The default cannot be told from no clip_norm at all, so it is no contradiction.
    if privacy.clip_norm not in (CLIP_NORM, mechanism.clip_norm):
        raise ValueError(
            f"Expected the clip_norm of the mechanism, {mechanism.clip_norm}, got "
            f"{privacy.clip_norm}: leave it out; a mechanism clips as it was made."
        )


def _with_optimizer(config: TrainConfig, problem: Problem) -> TrainConfig:
    if config.server.optimizer == AUTO:  # torch's take a second to import, and are not needed
        return config
    # Built also if it has a name: settings that it refuses must fail before the run is created.
    step = optimizer_step(config, problem)
    if isinstance(config.server.optimizer, str):
        return config
    name, options = step.described()
    rate = options.pop("lr", 1.0)
    # For the record only: a run that goes on is given the function again.
    recorded = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.items()
        if value is None or isinstance(value, bool | int | float | str | tuple)
    }
    return config.changed(server_optimizer=name, server_options=recorded, learning_rate=float(rate))


# The result: the model, its guarantee, and the metrics of each round.


class Run:
    """A finished run.

    Attributes:
        model: the trained model, in evaluation mode on the CPU. With standardize it is within a
            `Standardized`, which takes raw features and predicts raw targets.
        guarantee: proven, for one client's whole participation, or for one example of a client if
            that is the run's unit; None without privacy.
        beside: a second guarantee, of a whole client whose participation is seen, where `guarantee`
            is of one example or under `model` trust; else None.
        guarantees: `guarantee` under each neighbouring relation that it is proven for, by the
            relation's name: `zero_out` is to be compared with what others state for adding or
            removing a client (docs/guarantees.md). Empty without privacy.
        history: the metrics of each round, the first round first.
        accuracy: on test data, in [0, 1]; None without test data or without classes.
        loss: mean loss on test data; None without test data.
        summary: all results of the run.
        config: all settings of the run, without its key.
        record: configuration, history and summary together.
        folder: the run's files; a temporary folder is deleted with this object.

    Guarantees:
        The guarantee holds for everything that clients sent in all rounds, so also for the model
        and the history, except `train_loss` (`docs/theory/accounting.md`), and except accuracy and
        loss if test data are a client's. Under `model` trust it holds for the model of each round
        and nothing else: not for the folder's other files or the history.
    """

    def __init__(
        self,
        model: nn.Module,
        record: RunRecord,
        folder: Path,
        *,
        declared: int,
        table: Survey | None = None,
        temporary: bool = False,
    ) -> None:
        self.model = model
        self.folder = folder
        # What a certificate states besides: the declared rounds, and the table asked before them.
        self._declared, self._table = declared, table
        self.history: Sequence[RoundMetrics] = tuple(record.metrics)
        self.summary: RunSummary = record.summary
        self.config: TrainConfig = record.config
        if temporary:
            # Also when the interpreter exits, unlike a __del__, which may not be called.
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def guarantee(self) -> Guarantee | None:
        return self.summary.guarantee

    @property
    def guarantees(self) -> Mapping[Neighboring, Guarantee]:
        """The guarantee by neighbouring relation, see the attributes."""
        return by_relation(self.summary.guarantee, self.summary.other_relation)

    @property
    def beside(self) -> Guarantee | None:
        return self.summary.beside

    @property
    def accuracy(self) -> float | None:
        return self.summary.accuracy

    @property
    def loss(self) -> float | None:
        return self.summary.loss

    @property
    def upload_bytes(self) -> int:
        """Bytes that a client sends in one round it takes part in, under the trust in force.

        Headers are included. Under `aggregate` trust this is a vector masked for a secure sum;
        the other messages of that protocol are not included.
        """
        return self.summary.bytes_per_upload

    @property
    def record(self) -> RunRecord:
        return RunRecord(self.config, self.history, self.summary)

    def __repr__(self) -> str:
        summary, guarantee = self.summary, self.guarantee
        parts = [count(self.record.rounds, "round")]
        if summary.accuracy is not None:
            parts.insert(0, f"accuracy {summary.accuracy:.4f}")
        elif summary.loss is not None:
            parts.insert(0, f"loss {summary.loss:.4g}")
        parts.append("no privacy" if guarantee is None else f"one {guarantee.unit}: {guarantee}")
        parts += _beside(summary.other_relation)
        if (spent := summary.spent) is not None:
            parts.append(f"of it before round 1 {spent}")
        if (second := self.beside) is not None:
            parts.append(f"one {second.unit}: {second}")
        parts += _beside(summary.beside_other_relation)
        parts.append(f"{self.upload_bytes:,} bytes a client and round")
        return f"Run({', '.join(parts)})"


@stated.register
def _run_statement(run: Run) -> Statement:
    config, summary = run.config, run.summary
    if summary.guarantee is None:
        raise ValueError(f"Expected a run with a guarantee to certify, got {run}: it has none.")
    guarantees = (
        summary.guarantee, summary.other_relation, summary.beside, summary.beside_other_relation,
    )  # fmt: skip
    # Under `model` trust the second guarantee is against others, who see more.
    trust = summary.guarantee.trust
    claims = [each for each in guarantees if each is not None and each.trust == trust]
    coordinates = summary.dimension + len(config.privacy.numbers)
    hidden = config.hidden_cohorts
    rounds = summary.participations if hidden is None else run._declared
    terms: list[ReleaseTerms | Guarantee] = [
        ReleaseTerms(configured_mechanism(config), coordinates, rounds, summary.examples, hidden)
    ]
    if run._table is not None:
        terms.append(ReleaseTerms(run._table, 0, 1))
    if config.privacy.spent is not None:
        terms.append(config.privacy.spent)
    return Statement([terms], claims)


def _beside(other: Guarantee | None) -> list[str]:
    # In short: the guarantee under the relation that the one before it is not for.
    return [] if other is None else [f"<= {round_up(other.epsilon)} under {other.neighboring}"]
