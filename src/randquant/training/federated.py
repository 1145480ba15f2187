"""The front door: from a model and its clients' data to a trained model with a guarantee."""

from __future__ import annotations

import contextlib
import contextvars
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import torch.nn.functional as F
from torch import nn

from randquant._internal import validate
from randquant._internal.progress import Bars, waiting
from randquant._internal.rounding import round_up
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.local import Local
from randquant.local_training.problem import Loss, problem_of
from randquant.local_training.raw_units import Standardized, standardized
from randquant.planning.privacy import Privacy
from randquant.training.config import TrainConfig, changes_between
from randquant.training.records import RoundMetrics, RunSummary
from randquant.training.request import complete
from randquant.training.runs import binding, execution
from randquant.training.runs.setup import RunInputs
from randquant.training.runs.store import RunStore, Secret, digest, key_of
from randquant.training.server import Callback, Server
from randquant.training.trained import Run

LARGEST_COHORT = 1000
"""Clients a round by default, if there are as many."""

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
"""What to write instead of arguments that `train` does not have."""


class Advice(UserWarning):
    """What the released means say about a run that has ended."""


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
    delta: float = 1e-5,
    rounds: int = 50,
    cohort: int | None = None,
    trust: Literal["aggregate", "local", "model"] = "aggregate",
    mechanism: UpdateMechanism | None = None,
    local: Local = Local(),  # noqa: B008 - it is frozen
    server: Server = Server(),  # noqa: B008 - it is frozen
    privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
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
            model(*features) or model(**features).
        loss: from (output, targets) of a batch to its mean loss.
        test: data to measure accuracy and loss on, in the same forms; None to measure nothing. No
            client's: what is measured on a client's own data is not covered by the guarantee.
        epsilon: the target, in nats. With `mechanism` it is a limit: the run ends before the round
            that would exceed it. None for no limit.
        delta: of the target and of the guarantee.
        rounds: how many are declared. A run may end earlier; its guarantee covers them all.
        cohort: clients a round; by default all, but at most LARGEST_COHORT. Larger cohorts give
            better models at one epsilon.
        trust: against whom the guarantee holds: `aggregate`, a server that sees only sums (secure
            aggregation), or `local`, a server that sees what each client sends. `model`: those who
            see the published models and nothing else, not even who takes part; `docs/sampling.md`
            says when that may be claimed.
        mechanism: a mechanism of your own, from `randquant.plan` or any `UpdateMechanism`, instead
            of one that is calibrated to the target; bits, trust and clip_norm are then its own.
        local: what a client computes, of which parts of the model, and where.
        server: the server's optimiser, and what is done from round to round.
        privacy: what is protected, how updates are clipped and sent, who takes part how often, and
            what travels beside updates. Unless `max_participations` is given, all clients take part
            equally often.
        folder: where the run's files are kept. The same call with the same folder goes on from the
            last checkpoint, to the same bits, from the initial weights that it began with; a folder
            of another run is refused. None for a temporary folder, which disappears with the
            returned object; of a run that is stopped it stays, and the error says where.
        seed: a simulation seed, with which everything can be repeated, and the noise undone by
            whoever knows it. None to draw a secret key, which is kept in the folder only.
        progress: show a bar on a terminal or in a notebook.

    Returns:
        A Run: the trained model, its guarantee, the history, and a report.

    Guarantees:
        The guarantee is proven for everything a client sends in the whole run, and its epsilon is
        at most `epsilon`. It is the accountant's for all declared rounds of the client called most
        often, whoever ends the run and why; who takes part depends on no data.
        However often the run is interrupted and called again, the model is the same, bit for bit.
        The model that is passed in, and torch's global random state, stay as they are.

    Raises:
        TypeError, ValueError: an argument cannot be trained with; a client is named where it is
            one's data. A target that is out of reach is an `OutOfReach`, which says what would be
            needed.
        UserWarning: (a warning) whether anything is learnt depends on the task, or epsilon is left,
            or a run goes on from other initial weights than those that were given.
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
    problem = problem_of(
        model, clients, loss=loss, test=test, parts=local.parts, frozen=local.frozen,
        buffers=local.buffers, columns=local.columns, public=local.public,
    )  # fmt: skip
    population = len(problem.clients)
    make = server.optimizer
    inputs = RunInputs(problem, mechanism, None if isinstance(make, str) else make)
    config = TrainConfig(
        inputs.task, "", rounds=rounds, delta=delta, trust=trust,
        stop_at_epsilon=_limit(epsilon), seed=seed,
        cohort=min(population, LARGEST_COHORT) if cohort is None else cohort,
        local=replace(local, public=None, columns=None), server=replace(server, on_round=()),
        privacy=privacy,
    )  # fmt: skip
    return _trained(config, inputs, folder, server.on_round, progress)


def _trained(
    config: TrainConfig,
    inputs: RunInputs,
    folder: str | Path | None,
    callbacks: Sequence[Callback],
    progress: bool,
) -> Run:
    if folder is not None:
        home = validate.path("folder", folder).absolute()  # whoever is called may change directory
        return _in_folder(config, inputs, home, callbacks, progress)
    home = Path(tempfile.mkdtemp(prefix="randquant-"))
    try:
        return _in_folder(config, inputs, home, callbacks, progress, temporary=True)
    except BaseException:
        store = RunStore(home)
        if not store.exists() or store.begun() is False:  # else it is all that is left of the run
            shutil.rmtree(home, ignore_errors=True)
        raise


def _in_folder(
    config: TrainConfig,
    inputs: RunInputs,
    home: Path,
    callbacks: Sequence[Callback],
    progress: bool,
    *,
    temporary: bool = False,
) -> Run:
    changes: dict[str, Any] = {}
    overwrite = _OVERWRITES.get()
    if RunStore(home).exists() and not overwrite:
        config, inputs = _as_begun(home, config, inputs)
        changes = _changes(home, config, inputs)
    else:
        own = Secret.fresh()
        key = own.key if config.seed is None else Key.from_seed(config.seed)
        with waiting(progress):
            config = complete(config, inputs, key)
        execution.create(home, config, inputs, overwrite=overwrite, own_secret=own)
    bars = Bars(None if progress else False)
    measured: dict[str, str] = {}
    with _advised(home, temporary), bars:

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            name = "round" if config.protects else "round without privacy"
            # Not every round is evaluated: the last measurement stays visible.
            measured[name] = _evaluated(metrics) or measured.get(name, "")
            text = f"{measured[name]} {_spent(metrics)}"
            bars.show(name, metrics.round, config.rounds, text)
            for each in callbacks if config.protects else ():
                each(metrics)

        record = execution.execute(home, inputs, on_round, changes)
    problem, figures = inputs.problem, execution.load_figures(home, inputs.problem)
    learner = Learner(problem if figures is None else standardized(problem, figures))
    learner.load(execution.load_parameters(home))
    _advise(record.summary)
    trained = learner.trained_model()
    if figures is not None:
        trained = Standardized(trained, figures).eval()
    return Run(trained, record, home, temporary=temporary)


def _as_begun(home: Path, config: TrainConfig, inputs: RunInputs) -> tuple[TrainConfig, RunInputs]:
    """The same from the initial weights of the run in a folder, if all else is as it began."""
    begun, problem = RunStore(home).config(), inputs.problem
    if problem.digest == begun.task.problem:
        return config, inputs
    weights = execution.load_initial(home)
    own = problem.starting_at(weights) if len(weights) == problem.dimension else problem
    if own.digest != begun.task.problem:
        return config, inputs  # it is refused
    warnings.warn(
        f"The run in {home} goes on from the initial weights that it began with. Those of the "
        "model that was given are others, and are not used: choose another folder to train it.",
        UserWarning,
        stacklevel=validate.callers(),
    )
    return config.changed(problem=own.digest), replace(inputs, problem=own)


def _changes(home: Path, config: TrainConfig, inputs: RunInputs) -> dict[str, Any]:
    """The settings that the run in a folder goes on with; ValueError if it is another run."""
    store = RunStore(home)
    begun = store.config()
    if begun.seed != config.seed:
        raise _other(home, ["seed"])
    key = key_of(begun, store)
    asked = complete(config, inputs, key)
    differing = changes_between(begun, asked)
    if digest(asked) != digest(begun):
        if "problem" in differing:  # it says of what
            binding.check(store, binding.bind(inputs.problem, key))
        raise _other(home, list(differing))
    return differing


def _other(home: Path, names: Sequence[str]) -> ValueError:
    words = {
        "parameters": "mechanism", "problem": "model or names of clients",
        "stop_at_epsilon": "epsilon",
    }  # fmt: skip
    what = ", ".join(dict.fromkeys(words.get(name, name) for name in names))
    return ValueError(
        f"Expected the run in {home} to be continued as it began, got another {what}: choose "
        "another folder for a new run."
    )


@contextlib.contextmanager
def _advised(home: Path, temporary: bool) -> Iterator[None]:
    """Say how to go on when a run is stopped."""
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
    """Return what was sent in a run that was stopped, and how to go on with it.

    Args:
        home: the run's folder.
        again: what goes on with it, such as "the same call".
    """
    sent = RunStore(home).begun()
    if sent is None:
        return (
            f"The run was stopped, and no record of what it sent can be read in {home}: take "
            "all rounds that were declared as spent."
        )
    if not sent:
        return "The run was stopped before its first round."
    return (
        f"The run was stopped; what was sent is on record in {home}: {again} goes on from the "
        "last checkpoint. Its guarantee is that of all rounds that were declared."
    )


def _limit(epsilon: float | None) -> float | None:
    """The target, under its name here."""
    if epsilon is None or epsilon == math.inf:
        return None
    return validate.real("epsilon", epsilon, above=0)


def _evaluated(metrics: RoundMetrics) -> str:
    """What a round measured on test data; empty if nothing."""
    if metrics.accuracy is not None:
        return f"accuracy {metrics.accuracy:.3f}"
    return "" if metrics.loss is None else f"loss {metrics.loss:.4g}"


def _spent(metrics: RoundMetrics) -> str:
    """The bound of epsilon if the run were to end here as declared; empty without privacy."""
    if metrics.epsilon is None:
        return ""
    bound = round_up(metrics.epsilon, 4) if math.isfinite(metrics.epsilon) else "infinity"
    return f"epsilon so far <= {bound}"


def _advise(summary: RunSummary) -> None:
    """Warn the caller of `train` of what the released means say about the run, if anything."""
    if summary.advice:
        warnings.warn(summary.advice, Advice, stacklevel=5)
