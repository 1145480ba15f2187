"""The client's side on Flower: a mod that sends nothing of training but protected updates."""

from __future__ import annotations

import copy
import functools
import time
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from randquant._internal import validate
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import EXAMPLES
from randquant.local_training.local import Local
from randquant.rounds.ledger import ACCOUNT_RECORD
from randquant.rounds.limits import ClientLimits, Membership
from randquant.rounds.member import (
    AgreedUpload,
    Member,
    NothingToSend,
    refusal_line,
    refusal_reason,
)
from randquant.rounds.parameter_layout import Arrays
from randquant.rounds.protocol import UPLOAD, RoundMessage
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


@dataclass(frozen=True)
class QuantizeMod(ClientLimits):
    """Clips, encodes and masks what a train function returns, as the server's offer says.

    The train function returns the whole model, as on Flower without this mod. Only the codes of
    the update are sent, drawn with a key from the operating system. Of its metrics only numbers
    that the offer names are sent, within the offer's bounds and in the same codes, which the
    guarantee covers; no other metric is. With `examples` it returns, instead of the model, an
    ArrayRecord named `update` of what is to be added to it, which `randquant.example_update`
    computes; the guarantee and the limit are then for one example.

    Its arguments are those of `ClientLimits`. A SuperNode's `--node-config` takes precedence over
    them: `randquant-epsilon`, `randquant-epsilon-alone`, `randquant-delta`,
    `randquant-all-neighbours`, `randquant-threshold`, `randquant-helper`, `randquant-examples`,
    `randquant-clip-norm`. It may also name files of
    the client: `randquant-ledger`, its account over all runs (without it, it lasts one run), and
    `randquant-identity` with `randquant-directory`: its Ed25519 key in PEM, and the public keys of
    all clients, in JSON by node number in 64 hexadecimal digits.
    Without these keys `epsilon` assumes that the other clients exist, which this client cannot
    know: a server that invents them sees its codes. Each answer's log says what epsilon assumes.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> @app.train(mods=[QuantizeMod(epsilon=8.0, delta=1e-5)])
        ... def train(message, context): ...
    """

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer one message; a refusal is an error reply with the reason and without data."""
        # Other types of messages are passed through: no guarantee covers a client's evaluation.
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            request, config = messages.read(message.content), context.node_config
            state = messages.ClientState(context)
            # Number, limits and files are Flower's and the operator's word, never the message's.
            member = Member(
                context.node_id, self.with_operator_settings(config), state, config, log_once
            )
            if request.step != UPLOAD:
                answer = member.answer(request)
            else:
                answer = _upload(member, request, message, context, call_next)
        except Exception as error:  # any error that a malicious message causes
            # The reason goes to the server and has no data in it; the cause stays in this log.
            reason, why = refusal_reason(error)
            log(WARNING, refusal_line(reason, why))
            return messages.refusal(message, reason)
        return Message(RecordDict({**messages.records(answer)}), reply_to=message)


@functools.lru_cache(maxsize=64)
def log_once(level: int, line: str) -> None:
    """Log a line unless this process has just done so.

    Simulated clients share a process and log the same lines; those about a client's account differ
    from answer to answer.
    """
    log(level, line)


def _upload(
    member: Member,
    request: RoundMessage,
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
) -> RoundMessage:
    old = messages.model_in(message.content, "the request")
    agreed = member.agree(request, old)
    # Charged before it trains: if the process dies, the account may overstate what was sent, and
    # never understate it.
    member.charge(agreed.membership, request.step)
    account = member.state.get(ACCOUNT_RECORD)  # a copy
    # After all checks: the train function gets the strategy's message alone.
    message.content = messages.without_protocol_records(message.content)
    try:  # an error from here on may reveal data, so its text must not reach the server
        payload = _encode(member, agreed, old, call_next(message, context))
    except Exception as error:
        raise NothingToSend from error
    finally:
        Membership.forget(member.state)  # after a failed upload the client has left the sum
        # The train function may have replaced or changed the context's records.
        if account is not None:
            member.state[ACCOUNT_RECORD] = account
    return member.upload(agreed, payload)


def _encode(member: Member, agreed: AgreedUpload, old: Arrays, answer: Message) -> bytes:
    if answer.has_error():
        # The train function's own words, for this client's log alone (`NothingToSend`).
        raise RuntimeError(answer.error.reason)
    new = messages.model_in(answer.content, "the train function's reply")
    whole = messages.UPDATE not in answer.content.array_records
    return member.encode(agreed, old, new, messages.numbers_in(answer.content), whole)
