"""The server's side on Flower: any strategy that needs only the mean of protected updates.

`QuantizedStrategy.for_target` plans the mechanism, and says beforehand what cannot be met.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from randquant._internal import files, validate
from randquant._internal.files import make_folder
from randquant.aggregation.layout import Arrays, Layout, trained_names
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import (
    EXAMPLES,
    EligibleGrid,
    FlowerRound,
    PollingGrid,
    model_arrays,
)
from randquant.local_training.local import Local
from randquant.planning.plans import CLIP_NORM, Privacy
from randquant.privacy.guarantee import DEFAULT_DELTA
from randquant.rounds.accountant import SO_FAR, RunAccountant
from randquant.rounds.offer import Offer
from randquant.rounds.parameter_free import Predicts
from randquant.rounds.protocol import UPLOAD
from randquant.rounds.run import (
    DEFAULT_PATIENCE,
    ModelAndMoments,
    RoundsFailed,
    ServerRun,
    Target,
    UntunedSteps,
    default_delta,
    scalar_encoder,
)
from randquant.rounds.store import History, RoundRow, ServerStore
from randquant.rounds.sums import AmongClients, RoundSum, WithHelper
from randquant.secure_sums.terms import ProtocolError

__all__ = ["QuantizedStrategy", "RoundsFailed"]


class ParameterFree(FedAvg):
    """Selects clients as FedAvg does; `QuantizedStrategy` then takes steps that need no rate.

    Clients scale their updates to the mechanism's `clip_norm`, and the server's steps follow from
    public facts and the released means (docs/theory/untuned.md). It is what `QuantizedStrategy`
    takes by default.

    Args:
        predicts: what the model predicts, `classes` or `numbers`.
        options: those of FedAvg; `fraction_evaluate` is 0 by default, since nothing protects what
            clients measure.

    Raises:
        ValueError: `predicts` is neither.

    Example:
        >>> ParameterFree(fraction_train=0.5).fraction_evaluate
        0.0
    """

    def __init__(self, predicts: Predicts = "classes", **options: Any) -> None:
        UntunedSteps(predicts)  # for its ValueError, before anything is wrapped
        self.predicts: Predicts = predicts
        super().__init__(**{"fraction_evaluate": 0.0, **options})


W = TypeVar("W", bound="QuantizedStrategy")


def for_target(
    cls: type[W],
    strategy: Strategy | None = None,
    *,
    epsilon: float,
    rounds: int,
    cohort: int,
    model: Any,
    clients: int | None = None,
    dropouts: int = 0,
    delta: float | None = None,
    trust: Literal["aggregate", "local"] = "aggregate",
    privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
    examples: int | None = None,
    **options: Any,
) -> W:
    """Wrap a strategy so that the whole run meets a target, before any client is asked.

    Args:
        cls: the class.
        strategy: as for the constructor; by default `ParameterFree()`. Its `min_train_nodes` and
            `min_available_nodes` are raised to the cohort where they are lower.
        epsilon: the target in nats, for one client's whole participation; training ends before a
            round that would exceed it.
        rounds: number of rounds, which `start` runs by default.
        cohort: clients that are asked in each round, at least.
        model: what is trained: an ArrayRecord, a torch module, a state dict, or the number of
            coordinates of an update.
        clients: how many clients there are, for the default of delta; the cohort by default.
        dropouts: how many of a cohort may be lost without failing the round: the noise is that of
            the others.
        delta: of the target; by default a tenth of 1 / clients (or of 1 / all examples), and at
            most 1e-5.
        trust: `aggregate`, a server that sees sums only, or `local`, one that sees each client's
            codes.
        privacy: how updates are clipped and sent, and what is sent with them, see `Privacy`. Bits
            of `auto` are one, or, where more lower the error by a fifth, integer noise. A client
            takes part in all rounds unless max_participations says otherwise; fewer need less
            noise, and end the training when too few clients are left.
        examples: protect one example (one patient) instead of a client: the public number by which
            clients divide their sums of clipped gradients, see `QuantizeMod`. Take the number of
            all clients' examples over the number of clients.
        options: further arguments of the constructor: local, sums, folder, patience.

    Returns:
        A strategy with a calibrated mechanism, `stop_at_epsilon=epsilon`, and `rounds`.

    Guarantees:
        `rounds` answers of one client (or max_participations, if fewer) cost it epsilon at most.
        Nothing depends on data.

    Raises:
        OutOfReach: no noise meets the target; the message says what would be needed.
        ValueError, TypeError: the model has running statistics, no number of neighbours withstands
        the losses in a sum of `cohort` clients, or an argument is out of bounds.
        (`start` raises TooFewNodes before round 1 if the cohort is larger than the nodes there
        are.)
        A target that leaves no useful signal is a warning in the log, with what it would take.

    Example:
        >>> from randquant.flower import QuantizedStrategy
        >>> strategy = QuantizedStrategy.for_target(
        ...     epsilon=8.0, rounds=20, cohort=200, model=650)
        >>> strategy.rounds, strategy.least, strategy.accountant.max_epsilon
        (20, 200, 8.0)
    """
    rounds = validate.whole("rounds", rounds, low=1)
    cohort = validate.whole("cohort", cohort, low=2 if trust == "aggregate" else 1)
    population = cohort if clients is None else validate.whole("clients", clients, low=cohort)
    sums: AmongClients | WithHelper = options.get("sums", AmongClients())
    target = Target(
        epsilon, rounds, population,
        # Calibrated for those that are left: their noise alone must protect each of them.
        cohort - _checked_dropouts(cohort, dropouts, trust, privacy, sums),
        default_delta(population, examples) if delta is None else delta, trust, privacy, examples,
    )  # fmt: skip
    if strategy is None:
        strategy = ParameterFree(min_train_nodes=cohort, min_available_nodes=cohort)
    mechanism = target.mechanism(_dimension(model, options.get("local", Local())), log)
    make: Any = cls
    left = replace(  # what the mechanism leaves open
        privacy, unit="client", bits="auto", clip_norm=CLIP_NORM, coordinates=None,
        noise="clients", max_participations=None,
    )  # fmt: skip
    wrapper: W = make(
        strategy, mechanism, stop_at_epsilon=epsilon, delta=target.delta, privacy=left,
        examples=examples, **options,
    )  # fmt: skip
    wrapper.rounds, wrapper.needed = rounds, cohort
    # By default Flower selects as few as two clients, fewer than the noise is calibrated for.
    for name in ("min_train_nodes", "min_available_nodes"):
        setattr(strategy, name, max(cohort, getattr(strategy, name, 0)))
    return wrapper


def _checked_dropouts(
    cohort: int, dropouts: int, trust: str, privacy: Privacy, sums: AmongClients | WithHelper
) -> int:
    dropouts = validate.whole("dropouts", dropouts, low=0, high=cohort - 1)
    # With its own noise, or the helper's, a client is protected with any number of others.
    if trust == "local" or privacy.noise != "clients":
        return 0
    most, why = sums.most_lost(cohort)
    return validate.whole("dropouts", dropouts, high=most, why=why)


def _dimension(model: Any, local: Local) -> int:
    if isinstance(number := validate.number(model), int):
        return validate.whole("model", number, low=1, why="it is a number of coordinates")
    record = model
    if not isinstance(model, ArrayRecord):
        state = model.state_dict() if callable(getattr(model, "state_dict", None)) else model
        try:
            record = ArrayRecord(state)
        except (TypeError, ValueError, AttributeError):
            raise TypeError(
                "Expected model to be an ArrayRecord, a torch module, a state dict or a number of "
                f"coordinates, got {validate.shown(model)}."
            ) from None
    arrays = model_arrays(record)
    layout = Layout.from_model(arrays, trained_names(arrays, local.parts, local.frozen))
    layout.check_running(local.buffers)
    layout.check_tied(arrays)
    return layout.dimension


# The strategy, and what it asks of the strategy that it wraps.

STORE_NAME = "server.sqlite"

UNSUPPORTED_STRATEGY_NAMES = (
    "Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum",
    "QFedAvg",
)  # fmt: skip
"""Flower's strategies that need every client's update, which a private mean hides."""

POLL_SECONDS = 1.0
"""Time between two checks of which nodes are connected. With twice of it training may start a
second later; half of it would log twice as many lines while it waits."""


class TooFewNodes(ValueError):
    """The rounds of a run cannot have the clients that its guarantee needs."""


def check_inner(strategy: Strategy) -> None:
    """Refuse a strategy that needs more than the mean of updates; log what is not protected.

    Raises:
        TypeError, ValueError: the strategy cannot be wrapped.
    """
    validate.kind("strategy", strategy, Strategy)
    # By name: versions of Flower differ in the strategies that they have.
    names = [name for name in UNSUPPORTED_STRATEGY_NAMES if hasattr(strategies, name)]
    refused = tuple(getattr(strategies, name) for name in names)
    name = type(strategy).__name__
    if isinstance(strategy, refused):
        raise ValueError(
            f"Expected a strategy that needs only the mean of updates, got {name}: it needs every "
            "update, which the server does not see."
        )
    weighted = getattr(strategy, "weighted_by_key", EXAMPLES)
    if weighted != EXAMPLES:
        raise ValueError(
            f"Expected a strategy in which clients have equal weights, got {name} weighted by "
            f"{weighted!r}: a client's weight would tell the server how much data it has, and no "
            "epsilon covers that. Leave weighted_by_key out: all clients count alike, or as "
            "QuantizedStrategy(..., privacy=Privacy(weighted_by=...)) says."
        )
    if name == "QuantizedStrategy" or name.startswith("DifferentialPrivacy"):
        raise ValueError(f"Expected a strategy without privacy of its own to wrap, got {name}.")
    _check_metrics_function(strategy, name)
    if getattr(strategy, "fraction_evaluate", 0):
        log(
            WARNING, "randquant: clients' evaluations are sent as they are, and no epsilon covers "
            "them: set fraction_evaluate=0, and release what you need by "
            "privacy=Privacy(numbers=[...]).",
        )  # fmt: skip


def _check_metrics_function(strategy: Strategy, name: str) -> None:
    # Called here with a reply as the strategy will get it. After a round it would be too late: the
    # clients' epsilon would be spent.
    metrics = RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({EXAMPLES: 1.0})})
    try:
        getattr(strategy, "train_metrics_aggr_fn", lambda *_: None)([metrics], EXAMPLES)
    except Exception as error:  # whatever the user's function raises
        raise ValueError(
            f"Expected a train_metrics_aggr_fn of {name} that needs no metrics of clients, got "
            f"{validate.shown(error)} without them: they are not sent. Release what you need by "
            "numbers=[...], and leave train_metrics_aggr_fn out."
        ) from error


def summarise(strategy: Strategy, run: ServerRun, least: int) -> None:
    """Log the privacy settings, and the strategy's own summary with the weights that apply."""
    accountant, scalars = run.accountant, run.scalars
    limit = "none" if accountant.max_epsilon is None else f"epsilon {accountant.max_epsilon}"
    log(INFO, "\t├──> Private updates: %s trust, limit: %s", run.mechanism.trust, limit)
    log(INFO, "\t│\t├── delta: %s, %s", accountant.delta, accountant.neighboring)
    log(INFO, "\t│\t└── clients in a sum, at least: %d", least)
    shown: Any = copy.copy(strategy)  # the strategy itself goes on with Flower's key
    shown.weighted_by_key = (scalars and scalars.weight) or "nothing: all clients count alike"
    shown.summary()


def check_nodes(grid: Grid, strategy: Strategy, least: int, seconds: float) -> None:
    """Wait for as many nodes as a round needs.

    Args:
        grid: where nodes connect.
        strategy: the wrapped one, which selects clients among them, and might wait for ever.
        least: fewest clients in a round.
        seconds: how long to wait.

    Raises:
        TooFewNodes: fewer are connected, or the strategy would select fewer of them.
    """
    evaluates = getattr(strategy, "fraction_evaluate", 0) > 0
    wanted = max(fewest(strategy, least), evaluates * getattr(strategy, "min_evaluate_nodes", 0))
    end = time.monotonic() + seconds
    while (nodes := len(list(grid.get_node_ids()))) < wanted and time.monotonic() < end:
        log(INFO, "randquant: %d nodes are connected, a round needs %d: waiting.", nodes, wanted)
        time.sleep(min(POLL_SECONDS, max(end - time.monotonic(), 0.0)))
    if nodes < least:
        raise TooFewNodes(
            f"Expected {least} nodes connected before round 1, which the guarantee counts on in "
            f"every sum, got {nodes} within {seconds:g} s: connect {least - nodes} more, or "
            f"plan for a cohort of {nodes} (QuantizedStrategy.for_target says what that costs)."
        )
    name, share = type(strategy).__name__, getattr(strategy, "fraction_train", None)
    # Flower's strategies wait for their minimum inside a round, without a timeout and a message.
    if nodes < wanted:
        raise TooFewNodes(
            f"Expected {wanted} nodes connected before round 1 ({name} waits for them without "
            f"end), got {nodes} within {seconds:g} s: connect {wanted - nodes} more, or set its "
            f"min_train_nodes, min_available_nodes and min_evaluate_nodes to {nodes}."
        )
    # Without the attribute a strategy selects by a rule of its own, which cannot be checked here.
    if not share:
        return
    selected = max(int(nodes * share), getattr(strategy, "min_train_nodes", 0))
    if selected < least:
        raise TooFewNodes(
            f"Expected a strategy that selects {least} clients or more a round, which the "
            f"guarantee counts on, got {name} with fraction_train={share}, which selects "
            f"{selected} of {nodes}: set min_train_nodes={least}."
        )


def fewest(strategy: Strategy, least: int) -> int:
    """Return the fewest clients with which a strategy begins a round of at least `least`."""
    names = ("min_available_nodes", "min_train_nodes")
    return max([least, *(getattr(strategy, name, 0) for name in names)])


def check_local(local: Local) -> Local:
    """Return the settings; ValueError if one of them has no effect on Flower.

    Only those of what is trained have one: the user's train function decides all others.
    """
    if local != Local(parts=local.parts, frozen=local.frozen, buffers=local.buffers):
        raise ValueError(
            "Expected local to say what is trained (parts, frozen, buffers), got other settings "
            "too: the train function decides them."
        )
    return local


class QuantizedStrategy(Strategy):
    """Wraps a strategy: clients send codes, and the strategy takes its step with the decoded mean.

    Clients need `QuantizeMod`. Of their metrics only `privacy.numbers` are sent, in the same sum.

    Args:
        strategy: selects clients, and takes the step: FedAvg, FedAvgM, FedAdam, FedProx and others
            that need only the mean. By default `ParameterFree`, whose steps need no rate.
        mechanism: with `aggregate` trust, codes are summed by secure aggregation, in sums of
            `mechanism.cohort` clients or more.
        stop_at_epsilon: clients whose epsilon would exceed this are left out; if too few are left,
            training ends.
        delta: of the guarantee.
        privacy: what the mechanism leaves open: `neighboring`, and what is sent with updates, in
            `numbers` and `weighted_by`.
        local: `parts` and `frozen`, patterns such as `head.*` of the arrays that are trained, sent
            and counted; and `buffers`, for a model with running statistics (of a batch norm):
            `refuse` it, train with `frozen` ones, which clients check, or let the `server` have its
            own: clients may compute others, which they do not send.
        sums: the kind of secure sums: `AmongClients`, or `WithHelper` in one message.
        folder: folder for the model, the strategy's moments and the account, in `server.sqlite`:
            the account is written before clients are asked, all after every round. A run started
            again with the same folder continues. When training ends `certificate.json` is written
            there (docs/certificate-file.md).
        patience: number of failed rounds in a row after which `start` raises RoundsFailed.
        examples: protect one example (one patient) of a client: the public number by which clients
            divide their sums of clipped gradients, see `QuantizeMod`. None protects a client.

    Attributes:
        accountant: counts what the run has cost each client.
        stopped: why training is over; empty while it goes on.
        history: all rounds, those that failed included.

    Guarantees:
        The reported epsilon holds for every client (or example) and its numbers, whatever fails: it
        counts all clients that were asked to upload. A round either takes its step with the exact
        mean of the valid replies, or leaves the model unchanged and logs why.

    Raises:
        TypeError, ValueError: the strategy needs more than a mean, or an argument is out of bounds.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.channel_mechanisms import VectorMechanism
        >>> from flwr.serverapp.strategy import FedAvg
        >>> channel = rq.stochastic_rounding(clip=0.05, levels=2, margin=0.5)
        >>> mechanism = VectorMechanism(channel, clip_norm=1.0, trust="aggregate", cohort=40)
        >>> strategy = QuantizedStrategy(FedAvg(), mechanism, stop_at_epsilon=8.0)
    """

    def __init__(
        self,
        strategy: Strategy | None,
        mechanism: UpdateMechanism,
        *,
        stop_at_epsilon: float | None = None,
        delta: float = DEFAULT_DELTA,
        privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
        local: Local = Local(),  # noqa: B008 - it is frozen
        sums: AmongClients | WithHelper = AmongClients(),  # noqa: B008 - it is frozen
        folder: str | Path | None = None,
        patience: int = DEFAULT_PATIENCE,
        examples: int | None = None,
    ) -> None:
        self.strategy, self.sums = ParameterFree() if strategy is None else strategy, sums
        check_inner(self.strategy)
        # Before its first step: a run that is restored must not keep moments of another run.
        self._initial_memory = memory(self.strategy)
        self.local = check_local(local)
        scalars = scalar_encoder(mechanism, privacy)
        untuned = None
        if isinstance(self.strategy, ParameterFree):
            untuned = UntunedSteps(self.strategy.predicts)
        # The model is not known yet: what fails whatever its dimension fails now, and the offer is
        # read as clients will read it. A subset may be too large for a small model, and the bits
        # of integer noise too few for a large one.
        scaled, self.examples = untuned is not None and examples is None, examples
        dimension = max(mechanism.record().get("coordinates") or 0, 2**10)
        offer = Offer(mechanism, dimension, scalars=scalars, examples=examples, scaled=scaled)
        Offer.from_text(offer.to_text())
        accountant = RunAccountant(
            delta,
            privacy.neighboring,
            stop_at_epsilon,
            stable=sums.stable_numbers,
            counts_on=sums.counts_on,
        )
        # Absolute, because code of the user's may change the working directory before it is used.
        store = None if folder is None else ServerStore(Path(folder).absolute() / STORE_NAME)
        self.run = ServerRun(mechanism, accountant, log, scalars, patience, untuned, store)
        self.least = sums.fewest(mechanism)
        self.rounds, self.needed = 3, self.least  # by default; Flower's own default is 3 rounds
        self._round: FlowerRound | None = None
        self._prepared: RoundSum | None = None  # for the next round, in the messages of the last
        self._last, self._statistics = 0, None
        self._logged: set[str] = set()

    for_target = classmethod(for_target)

    @property
    def accountant(self) -> RunAccountant:
        return self.run.accountant

    @property
    def stopped(self) -> str:
        return self.run.stopped

    @property
    def history(self) -> list[RoundRow]:
        return self.run.history

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose clients, and set up the round with them."""
        # Flower counts from 1 in every process; rounds of earlier ones are added.
        number, self._round = server_round + self.run.done, None
        model = messages.model_arrays(arrays)
        layout = self._layout(model)
        offer = self.run.offer(layout, self.local.buffers, self.examples)
        # The strategy selects among the clients that are still within their epsilon.
        view = EligibleGrid(grid, functools.partial(self.run.eligible, offer))
        if self._is_over(view, number):
            return []
        requests = list(self.strategy.configure_train(number, arrays, config, view))
        if not requests:
            return []
        chosen = {request.metadata.dst_node_id for request in requests}
        try:
            # A strategy of the user's own may choose any clients: a repeated one would answer twice
            # and be charged once.
            if len(chosen) < len(requests) or not chosen <= set(view.get_node_ids()):
                raise ProtocolError(
                    "Expected each client once in a round and within its epsilon, got a repeated "
                    "client or one above it."
                )
            begun, following = self._sums(number, offer, chosen, view)
            current = FlowerRound(
                number, arrays, requests, begun, grid, self.sums.step_timeout, following
            )
            current.run_steps(until=UPLOAD)
        except ValueError as error:
            # Nobody was asked to upload, so nobody is charged.
            self.run.failed(number, 0, error)
            return []
        initial = functools.partial(self._model_and_moments, arrays)
        # On disk before any client is asked to upload: a server that dies has charged too much at
        # worst.
        self.run.charge(number, offer, begun.pending, initial, self._step_name)
        self._round = current
        return current.uploads()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the mean and let the strategy take its step; (None, None) if the round fails."""
        current, self._round = self._round, None
        if current is None:
            return None, None
        number, round_sum, run = current.number, current.sum, self.run
        replies, requested = list(replies), len(current.requests)
        old = messages.model_arrays(current.base)
        layout = self._layout(old)
        try:
            current.take(replies)
            current.run_steps()
            self._prepared = current.next_sum
            step = run.step(round_sum, layout, old, self._last or self.rounds)
            moved = {name: Array(array) for name, array in layout.moved(old, step).items()}
        except ValueError as error:
            self.run.failed(number, requested, error)
            return None, None
        mean = ArrayRecord({**current.base, **moved})
        arrays, metrics = self.strategy.aggregate_train(
            number, [messages.only_reply(replies, mean)]
        )
        if arrays is None:
            self.run.failed(number, requested, RuntimeError("the strategy took no step"))
            return None, None
        self._settle(layout, old, arrays)
        sizes = {
            "sent_bytes": max(current.sent_bytes.values(), default=0),
            "upload_bytes": round_sum.upload_bytes,
            "plain_bytes": round_sum.offer.plain_bytes,
        }
        clients = round_sum.clients
        row = run.succeeded(number, requested, clients, sizes, self._model_and_moments(arrays))
        private = {"clients": clients, "dropped": row.dropped, "epsilon": row.epsilon, **sizes}
        private |= run.numbers_with_noise(round_sum.offer, clients)
        # Last: no metric of the strategy's takes the place of a figure of the account.
        return arrays, MetricRecord({**(metrics or {}), **private})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        # The strategy's own, and not protected: `check_inner` has logged a warning.
        if self.stopped:
            return []
        return self.strategy.configure_evaluate(server_round + self.run.done, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round + self.run.done, replies)

    def summary(self) -> None:
        summarise(self.strategy, self.run, self.least)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        statistics: Callable[[ArrayRecord], ArrayRecord] | None = None,
        connect_timeout: float = 60.0,
    ) -> Result:
        """Run the rounds that are not done yet, like Flower's `Strategy.start`.

        Without num_rounds they are those of `for_target`, or 3.

        Args:
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn:
                as in Flower's.
            statistics: with `buffers="server"`, returns a model with running statistics of the
                server's own data; called with the first model, as a test, and with the model after
                each step. None keeps those that the model began with.
            connect_timeout: seconds to wait for the nodes that a round needs.

        Raises:
            TooFewNodes: fewer nodes are connected than a round needs; no client was asked.
            RoundsFailed: `patience` rounds in a row have failed.
            ValueError: there is no helper to sum with, or the folder holds a run of another
                mechanism, model, or account.
            BlockingIOError: another process is training in the folder.
        """
        if statistics is not None and (buffers := self.local.buffers) != "server":
            raise ValueError(f"Expected buffers='server' with statistics, got {buffers=}.")
        grid = PollingGrid.over(grid)
        with contextlib.ExitStack() as stack:
            if self.run.store is not None:
                # One process at a time: two would overwrite each other's account.
                make_folder(self.run.store.path.parent)
                stack.enter_context(files.folder(self.run.store.path.parent))
            arrays = self._restore_or(initial_arrays)
            done, planned = self.run.done, self.rounds if num_rounds is None else num_rounds
            self._last, self._statistics, self._prepared = planned, statistics, None
            if planned > done:
                model = messages.model_arrays(arrays)
                # On a copy: `statistics` must fail before clients are asked, if it fails.
                self._settle(self._layout(model), model, ArrayRecord({**arrays}))
                if self.run.mechanism.trust == "aggregate":
                    self.sums.check(log)
                check_nodes(grid, self.strategy, self.needed, connect_timeout)

            def evaluate(number: int, model: ArrayRecord) -> MetricRecord | None:
                return evaluate_fn(number + done, model) if evaluate_fn else None

            result = super().start(
                grid, arrays, max(planned - done, 0), timeout, train_config, evaluate_config,
                evaluate if evaluate_fn else None,
            )  # fmt: skip
            result.arrays = result.arrays or arrays  # Flower has none if no round was left
            for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp",
                         "evaluate_metrics_serverapp"):  # fmt: skip
                setattr(result, name, {n + done: m for n, m in getattr(result, name).items()})
            account = self.accountant
            log(INFO, "randquant: %s %s; %s", account.spent_text(), account.assumes(), SO_FAR)
            self.run.write_certificate()
            return result

    def outcome(self, result: Result | None = None) -> History:
        """Return the run for `randquant.report`: epsilon, bytes and dropouts of every round.

        Args:
            result: that of `start`, with the server's measurements after each round.
        """
        title = f"{type(self.strategy).__name__} with private updates"
        rounds = {} if result is None else result.evaluate_metrics_serverapp
        measured = {number: dict(metrics) for number, metrics in rounds.items()}
        for number, metrics in ({} if result is None else result.train_metrics_clientapp).items():
            released = {f"clients' {n}": metrics[n] for n in self.run.scalar_names if n in metrics}
            measured.setdefault(number, {}).update(released)
        return self.run.outcome(title, measured)

    def _layout(self, model: Arrays) -> Layout:
        layout = Layout.from_model(model, trained_names(model, self.local.parts, self.local.frozen))
        layout.check_running(self.local.buffers)
        return layout

    def _sums(
        self, number: int, offer: Offer, chosen: set[int], view: EligibleGrid
    ) -> tuple[RoundSum, RoundSum | None]:
        """Return the sum of a round, and that of the next one if it can be prepared meanwhile."""
        prepared, self._prepared, clients = self._prepared, None, sorted(chosen)
        if prepared is not None:
            present = prepared.offer, prepared.step, sorted(prepared.pending)
            if present != (offer, UPLOAD, clients) or len(clients) < self.least:
                prepared = None
        begun = prepared or self.sums.begin(offer, clients, self._log)
        early = begun is prepared or begun.step != UPLOAD
        # Worth it where a sum has steps before the upload, and the next round asks the same
        # clients, as it does if all that are connected take part.
        if early and number < self._last and chosen == set(view.get_node_ids()):
            return begun, self.sums.begin(offer, clients, self._log)
        return begun, None

    def _log(self, level: int, line: str) -> None:
        # What a sum says of its settings is the same in each round; warnings are of one round.
        if level > INFO or line not in self._logged:
            self._logged.add(line)
            log(level, line)

    def _is_over(self, view: EligibleGrid, number: int) -> bool:
        # Only if epsilon is the reason: clients that are not connected may come back.
        least = fewest(self.strategy, self.least)
        if not self.stopped and (left := len(list(view.get_node_ids()))) < least and view.hidden:
            self.run.stopped = (
                f"before round {number}: epsilon of {view.hidden} clients would have exceeded "
                f"{self.accountant.max_epsilon}, and {left} others are too few"
            )
            log(INFO, "randquant: training ends %s.", self.stopped)
        return bool(self.stopped)

    def _settle(self, layout: Layout, old: Arrays, arrays: ArrayRecord) -> None:
        # A strategy may have averaged counters, or changed dtypes: the old values are put back.
        for name, value in layout.settled(old, messages.model_arrays(arrays)).items():
            arrays[name] = Array(value)
        if self._statistics is not None:
            # It gets a copy: the user's function may change its argument.
            returned = messages.model_arrays(self._statistics(ArrayRecord(dict(arrays.items()))))
            for name, value in layout.settled(old, messages.model_arrays(arrays), returned).items():
                arrays[name] = Array(value)

    @property
    def _step_name(self) -> str:
        # It is kept in the store, since moments of one strategy mean nothing to another.
        return type(self.strategy).__name__

    def _model_and_moments(self, arrays: ArrayRecord) -> ModelAndMoments:
        model = {name: messages.read_array(array) for name, array in arrays.items()}
        return model, arrays_in(self.strategy)

    def _restore_or(self, initial: ArrayRecord) -> ArrayRecord:
        # The folder's model, if it has one: its account goes on, whatever `initial` is.
        self.run.begin()
        model = messages.model_arrays(initial)
        layout = self._layout(model)  # refuses running statistics, if so configured
        layout.check_tied(model)
        offer = self.run.offer(layout, self.local.buffers, self.examples)
        stored = self.run.stored(offer, model, self._step_name)
        if stored is None:
            return initial
        stored_model, moments = self.run.restore(stored, offer)
        restore(self.strategy, moments, self._initial_memory)
        log(INFO, "randquant: continuing after round %d.", self.run.done)
        return ArrayRecord({name: Array(array) for name, array in stored_model.items()})


def arrays_in(strategy: Strategy) -> dict[str, np.ndarray]:
    """Return the arrays of a strategy by attribute and key, for `restore`.

    They are those of attributes that are lists or dictionaries with arrays alone.
    """
    return {
        f"{name}/{key}": array
        for name, value in vars(strategy).items()
        for key, array in _arrays_in(value).items()
    }


def memory(strategy: Strategy) -> dict[str, Any]:
    """Copy the attributes of a strategy that may hold such arrays."""
    # Flower's strategies have None there before their first step.
    kinds = list | dict | None
    kept = {name: value for name, value in vars(strategy).items() if isinstance(value, kinds)}
    return {name: None if value is None else value.copy() for name, value in kept.items()}


def restore(strategy: Strategy, arrays: Arrays, first: Mapping[str, Any]) -> None:
    """Set a strategy's arrays to those that `arrays_in` returned.

    Args:
        strategy: the strategy, which is left unchanged if the arrays are not its own.
        arrays: those of `arrays_in`.
        first: its `memory` before its first step; attributes without arrays are reset to it.

    Raises:
        ValueError: the strategy has no such attributes.
    """
    by_attribute: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        attribute, _, key = name.partition("/")
        # A method, or a number that the user has set, is not replaced by what a file says.
        if not isinstance(vars(strategy).get(attribute, ""), list | dict | None):
            raise ValueError(
                f"Expected arrays that {type(strategy).__name__} remembers, got {name!r}."
            )
        by_attribute.setdefault(attribute, {})[key] = array
    # Arrays that are not in the file are of a later state, or of another run: they go first.
    for attribute in {name.partition("/")[0] for name in arrays_in(strategy)}:
        setattr(strategy, attribute, first.get(attribute))
    for attribute, parts in by_attribute.items():
        in_order = list(parts) == [f"#{place}" for place in range(len(parts))]
        setattr(strategy, attribute, list(parts.values()) if in_order else parts)


def _arrays_in(value: Any) -> dict[str, np.ndarray]:
    if isinstance(value, list):
        value = {f"#{place}": part for place, part in enumerate(value)}
    kinds = np.ndarray | np.number  # of an array (), NumPy's arithmetic makes a number
    if isinstance(value, dict) and value and all(isinstance(v, kinds) for v in value.values()):
        return {key: np.asarray(part) for key, part in value.items()}
    return {}
