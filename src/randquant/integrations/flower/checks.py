"""The server's checks on Flower: of the strategy that it wraps, and of the nodes of its rounds."""

from __future__ import annotations

import copy
import time
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from randquant._internal import validate
from randquant.integrations.flower.messages import EXAMPLES
from randquant.local_training.local import Local
from randquant.rounds.run import ServerRun

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
            "QuantizedStrategy(weighted_by=...) says."
        )
    if name == "QuantizedStrategy" or name.startswith("DifferentialPrivacy"):
        raise ValueError(f"Expected a strategy without privacy of its own to wrap, got {name}.")
    _check_metrics_function(strategy, name)
    if getattr(strategy, "fraction_evaluate", 0):
        log(
            WARNING, "randquant: clients' evaluations are sent as they are, and no epsilon covers "
            "them: set fraction_evaluate=0, and release what you need by numbers=[...].",
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
