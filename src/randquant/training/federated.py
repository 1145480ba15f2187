"""The front door: from a model and its clients' data to a trained model with a guarantee."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch.nn.functional as F
from torch import nn

from randquant._internal import validate
from randquant._internal.bars import Bars, waiting
from randquant.aggregation.alongside import Number
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels.keys import Key
from randquant.privacy.accounting.hidden import Draw
from randquant.privacy.guarantee import Neighboring
from randquant.training import display
from randquant.training.client import Learner
from randquant.training.config import TrainConfig
from randquant.training.configured import OWN
from randquant.training.local import Local
from randquant.training.optimizer import MakeOptimizer
from randquant.training.problem import Buffers, Columns, Loss, problem_of
from randquant.training.records import RoundMetrics
from randquant.training.request import DEFAULT_CLIP_NORM, TrainingRequest
from randquant.training.runs import execution, secret
from randquant.training.runs import folder as run_folder
from randquant.training.runs.secret import Secret
from randquant.training.trained import Run

OnRound = Callable[[RoundMetrics], None]
"""Called after each round with what it measured."""

LARGEST_COHORT = 1000
"""Clients a round by default, if there are as many."""

LOCAL_RATE, LOCAL_EPOCHS = 0.1, 5
"""Default step size of local SGD, and passes over a client's data: at epsilon 8 these learn digits
with linear models and MLPs, and Fashion-MNIST with a small convolutional network."""


def train(
    model: nn.Module | str,
    clients: Any,
    *,
    loss: Loss = F.cross_entropy,
    test: Any = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    bits: int | Literal["auto"] = "auto",
    trust: Literal["aggregate", "local", "model"] = "aggregate",
    mechanism: UpdateMechanism | None = None,
    neighboring: Neighboring = "replace_one",
    unit: Literal["client", "example"] = "client",
    rounds: int = 50,
    cohort: int | None = None,
    sampling: Draw = "fixed",
    max_participations: int | None = None,
    clip_norm: float = DEFAULT_CLIP_NORM,
    clip_quantile: float | None = None,
    numbers: Sequence[Number] = (),
    weighted_by: str | None = None,
    coordinates: int | Literal["auto"] | None = None,
    local_epochs: int | None = None,
    batch: int | None = None,
    local_learning_rate: float | None = None,
    learning_rate: float | None = None,
    server_optimizer: str | MakeOptimizer = "SGD",
    parts: Sequence[str] | None = None,
    frozen: Sequence[str] | None = None,
    buffers: Buffers = "refuse",
    public: Any = None,
    columns: Columns | None = None,
    most_examples: int | None = None,
    folder: str | Path | None = None,
    seed: int | None = None,
    baseline: bool = False,
    device: str = "cpu",
    threads: int = 2,
    evaluate_every: int | None = None,
    checkpoint_every: int = 5,
    on_round: OnRound | Sequence[OnRound] | None = (),
    progress: bool = True,
) -> Run:
    """Train a model on the data of many clients, with a proven guarantee for each of them.

    By default each client computes a few steps of local SGD and sends the model difference: clipped
    to `clip_norm` as a whole, rotated, and rounded at random to one bit per coordinate. The server
    learns the sum of a cohort's bits only (`trust="aggregate"`; this simulation adds them up
    itself) and moves the model by the decoded mean. The random rounding is calibrated so that the
    whole run meets (epsilon, delta) for one client's whole participation, before any data is
    looked at.

    Args:
        model: any module from a batch of features to one tensor, or to an object with `logits`, a
            copy of which is trained; or the name of one of `training.models`, with a data set.
        clients: a mapping from names, or a sequence, of each one's (features, targets): arrays,
            tensors, torch Datasets of pairs, or columns by name; a tuple or dict of features is for
            model(*features) or model(**features). Or a data set of `training.data.datasets`.
        loss: from (output, targets) of a batch to its mean loss.
        test: data to measure accuracy and loss on, in the same forms; None to measure nothing. No
            client's: what is measured on a client's own data is not covered by the guarantee.
        epsilon: the target, in nats. With `mechanism` it is a limit: the run ends before the round
            that would exceed it. None for no limit.
        delta: of the target and of the guarantee.
        bits: most bits of one code. `auto`: one, or more if that lowers the error by a fifth.
        trust: against whom the guarantee holds: `aggregate`, a server that sees only sums (secure
            aggregation), or `local`, a server that sees what each client sends. `model`: those who
            see the published models and nothing else, not even who takes part; `docs/sampling.md`
            says when that may be claimed.
        mechanism: a mechanism of your own, from `randquant.plan` or any `UpdateMechanism`, instead
            of one that is calibrated to the target; bits, trust and clip_norm are then its own.
        neighboring: the neighbouring relation, `replace_one` or `zero_out`.
        unit: what is protected: a whole `client`, or one `example` of a client; each example's
            gradient is then clipped to clip_norm.
        rounds: how many are declared. A run may end earlier; its guarantee covers them all.
        cohort: clients a round; by default all, but at most LARGEST_COHORT. Larger cohorts give
            better models at one epsilon.
        sampling: `fixed` cohorts; `poisson`: each client in each round independently; or `drawn`:
            each client in as many rounds, which it draws (not under aggregate trust).
        max_participations: most rounds that a client takes part in; by default as few as there can
            be, so that all take part equally often. As many as `rounds` for no cap. None under
            model trust.
        clip_norm: L2 threshold of a client's update, or of an example's gradient.
        clip_quantile: let the threshold follow this quantile of the clients' norms, from clip_norm
            on: 0.5 clips about half of the updates. Each client sends beside its update whether it
            was clipped, in the same noisy sum and the same account; that costs the update 2 % more
            noise (`docs/theory/alongside.md`). None for clip_norm throughout.
        numbers: what each client sends beside its update, in the same noisy sum and the same
            account: `accuracy` and `loss` of the model that it is given, on all of its data, and
            `num-examples`, each a `Number` with public bounds. The cohort's means are in the
            history and the report. Each costs the update 2 % more noise.
        weighted_by: weight updates by this one of the numbers, up to its bound, and divide by the
            released mean weight (`docs/theory/alongside.md`, Proposition 4). None to count all
            alike.
        coordinates: how many coordinates of a rotated update are sent, a public random subset that
            is drawn anew in each round; None for all. A tenth of them costs a tenth of the bytes at
            the same epsilon, and little accuracy where noise rules (`docs/theory/subsets.md`).
            `auto`: in each round as few as the means released so far allow (`AdaptiveMechanism`);
            every round counts as the costliest choice.
        local_epochs, batch: passes over a client's data in a round, LOCAL_EPOCHS by default, and
            samples of a step (None for all of the client's).
        local_learning_rate: step size of local SGD; LOCAL_RATE by default. 0 to send one gradient
            instead of a model difference, which is the default for `unit="example"`.
        learning_rate: the server's step size; 1 by default.
        server_optimizer: the name of a class in torch.optim, or what makes an optimiser of
            parameters: `lambda p: torch.optim.Adam(p, lr=0.01)`.
        parts, frozen: patterns of names of parameters that are trained, or are not.
        buffers: what to do about running statistics, such as BatchNorm's: `refuse` the model; keep
            them `frozen`; or compute them on `public` examples, which the `server` does.
        columns: names of the features' column, or several columns, and of the targets'.
        public: for buffers="server", examples that no client holds.
        most_examples: weight clients by min(examples, most_examples) / most_examples; choose it
            without looking at the data (`docs/theory/weights.md`). None to count all alike.
        folder: where the run's files are kept. The same call with the same folder goes on from the
            last checkpoint, to the same bits; a folder of another run is refused. None for a
            temporary folder, which disappears with the returned object; of a run that is stopped it
            stays, and the error says where.
        seed: a simulation seed, with which everything can be repeated, and the noise undone by
            whoever knows it. None to draw a secret key, which is kept in the folder only.
        baseline: also train the same run without privacy, for the report.
        device: where updates are computed, `cpu` or `cuda`.
        threads: threads that clients are simulated on; the last bits of the result depend on it.
        evaluate_every: rounds between evaluations; by default a tenth of the rounds.
        checkpoint_every: rounds between checkpoints.
        on_round: called after each round with its RoundMetrics, one function or several:
            `lambda m: print(m.loss)`. What it raises stops the run, which can be continued; the
            guarantee is that of all `rounds` in any case.
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
        UserWarning: (a warning) whether anything is learnt depends on the task, or epsilon is left.
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
    problem = problem_of(model, clients, loss=loss, test=test, parts=parts, frozen=frozen,
                         buffers=buffers, columns=columns, public=public)  # fmt: skip
    config = TrainConfig(
        dataset=OWN, model=OWN, mechanism="", population=len(problem.clients), rounds=rounds,
        cohort=_or(cohort, min(len(problem.clients), LARGEST_COHORT)), delta=delta, trust=trust,
        partition="natural", clip_norm=clip_norm, numbers=_texts(numbers), weighted_by=weighted_by,
        evaluate_every=_or(evaluate_every, _tenth(rounds)), checkpoint_every=checkpoint_every,
        learning_rate=_rate(learning_rate, server_optimizer), seed=seed, device=device, unit=unit,
        local_learning_rate=_local(unit, local_learning_rate), loss=_named(loss), buffers=buffers,
        local_epochs=_epochs(local_epochs, unit, local_learning_rate), neighboring=neighboring,
        parts=_tuple(parts), frozen=_tuple(frozen), sampling=sampling, threads=threads, batch=batch,
        max_participations=max_participations, most_examples=most_examples, problem=problem.digest,
        stop_at_epsilon=_limit(epsilon), coordinates=coordinates, clip_quantile=clip_quantile,
    )  # fmt: skip
    request = TrainingRequest(problem, config, mechanism, bits, server_optimizer)
    return _trained(request, folder, on_round, baseline, progress)


def _trained(
    request: TrainingRequest,
    folder: str | Path | None,
    on_round: OnRound | Sequence[OnRound] | None,
    baseline: bool,
    progress: bool,
) -> Run:
    callbacks = _callbacks(on_round)
    if folder is not None:
        home = validate.path("folder", folder)
        return _in_folder(request, home, callbacks, baseline, progress)
    home = Path(tempfile.mkdtemp(prefix="randquant-"))
    try:
        return _in_folder(request, home, callbacks, baseline, progress, temporary=True)
    except BaseException:
        if not run_folder.has_sent(home):  # else it is all that is left of the run
            shutil.rmtree(home, ignore_errors=True)
        raise


def _in_folder(
    request: TrainingRequest,
    home: Path,
    callbacks: Sequence[OnRound],
    baseline: bool,
    progress: bool,
    *,
    temporary: bool = False,
) -> Run:
    changes: dict[str, Any] = {}
    if (home / run_folder.CONFIG).exists():
        changes = _changes(home, request)
    else:
        own = Secret.fresh()
        key = own.key if request.config.seed is None else Key.from_seed(request.config.seed)
        with waiting(progress):
            config = request.complete(key)
        execution.create(
            home, config, baseline=baseline, overwrite=False, given=request.given, own_secret=own
        )
    bars = Bars(None if progress else False)
    measured = ""
    with _advised(home, temporary), bars:

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            if config.mechanism == "clipped-sgd":
                return  # the baseline's
            nonlocal measured
            measured = display.evaluated(metrics) or measured
            text = f"{measured} {display.spent(metrics)}"
            bars.show("round", metrics.round, config.rounds, text)
            for each in callbacks:
                each(metrics)

        record = execution.execute(home, on_round, changes, request.given)
    local = Local(record.config.batch, record.config.local_epochs)
    learner = Learner(request.problem, local)
    learner.load(execution.load_parameters(home))
    display.advise(record.summary)
    return Run(learner.trained_model(), record, home, temporary=temporary)


def _changes(home: Path, request: TrainingRequest) -> dict[str, Any]:
    """The settings that the run in a folder goes on with; ValueError if it is another run."""
    begun = run_folder.read_config(home)
    if begun.seed != request.config.seed:
        raise _other(home, ["seed"])
    asked = request.complete(secret.key_of(begun, home))
    differing = [
        field.name
        for field in dataclasses.fields(TrainConfig)
        if getattr(asked, field.name) != getattr(begun, field.name)
    ]
    if run_folder.settings(asked) != run_folder.settings(begun):
        raise _other(home, differing)
    return {name: getattr(asked, name) for name in differing}


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

    def how() -> str:
        if not run_folder.has_sent(home):
            return "The run was stopped before its first round."
        call = f"the same call with folder={str(home)!r}" if temporary else "the same call"
        return (
            f"The run was stopped; what was sent is on record in {home}: {call} goes on from the "
            "last checkpoint. Its guarantee is that of all rounds that were declared."
        )

    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how()) from None
    except Exception as error:
        error.add_note(how())
        raise


def _callbacks(on_round: OnRound | Sequence[OnRound] | None) -> tuple[OnRound, ...]:
    """Functions to call after each round; TypeError before anything is trained if one is none."""
    several = isinstance(on_round, Sequence)
    found = tuple(on_round) if several else () if on_round is None else (on_round,)
    for each in found:
        if not callable(each):
            raise TypeError(
                f"Expected on_round to be a function of a round's metrics, or several, got "
                f"{validate.shown(each)}."
            )
    return found


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _tenth(rounds: int) -> int:
    return max(1, validate.whole("rounds", rounds, low=1) // 10)


def _limit(epsilon: float | None) -> float | None:
    """The target, under its name here."""
    if epsilon is None or epsilon == math.inf:
        return None
    return validate.real("epsilon", epsilon, above=0)


def _rate(given: float | None, server_optimizer: str | MakeOptimizer) -> float:
    if given is not None and not isinstance(server_optimizer, str):
        raise ValueError(
            f"Expected the learning rate in server_optimizer's own lr, got learning_rate={given} "
            "too: leave it out."
        )
    return 1.0 if given is None else given


def _local(unit: str, rate: float | None) -> float | None:
    if rate is None:
        return LOCAL_RATE if unit == "client" else None
    return rate or None


def _epochs(given: int | None, unit: str, rate: float | None) -> int:
    return _or(given, 1 if _local(unit, rate) is None else LOCAL_EPOCHS)


def _named(loss: Loss) -> str:
    name = getattr(loss, "__name__", type(loss).__name__)
    return name if getattr(F, name, None) is loss else f"{loss.__module__}:{name}"


def _texts(numbers: Sequence[Number]) -> tuple[str, ...] | None:
    """Numbers as a configuration has them; TypeError for others."""
    given = validate.listed("numbers", numbers)
    for each in given:
        validate.kind("numbers", each, Number)
    return tuple(each.text for each in given) or None


def _tuple(patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    if patterns is None:
        return None
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)
