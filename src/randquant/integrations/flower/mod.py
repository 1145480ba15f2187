"""The client's side on Flower: a mod that sends nothing of training but protected updates."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log

from randquant.aggregation.layout import Arrays
from randquant.integrations.flower import messages
from randquant.rounds.accountant import ACCOUNT_RECORD
from randquant.rounds.limits import NO_FILE, ClientLimits, Membership
from randquant.rounds.member import (
    AgreedUpload,
    Member,
    NothingToSend,
    refusal_line,
    refusal_reason,
)
from randquant.rounds.protocol import UPLOAD, RoundMessage
from randquant.secure_sums.terms import ProtocolError

LEDGER_NEEDED = (
    "Expected randquant-ledger, the whole path of a file for this client's account, in its "
    "SuperNode's --node-config, got no such setting: without the file a server that sends several "
    "messages at once gets more answers than are counted "
    f'(randquant-ledger="{NO_FILE}" allows that, to try an app out).'
)


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
    `randquant-clip-norm`; any other `randquant-` name is refused. It may also name files of
    the client: `randquant-ledger`, by its whole path, its account over all runs, and
    `randquant-identity` with `randquant-directory`: its Ed25519 key in PEM, and the public keys of
    all clients, in JSON by node number in 64 hexadecimal digits.
    Outside Flower's simulation a client without `randquant-ledger` refuses all requests. If it is
    "none", the account lasts one run, and holds only against a server that waits for each answer.
    Without keys `epsilon` assumes that the other clients exist, which this client cannot know: a
    server that invents them sees its codes. Each answer's log says what epsilon assumes.

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
            received, config = message.content, context.node_config
            request = messages.read(received)
            state = messages.ClientState(context)
            # Number, limits and files are Flower's and the operator's word, never the message's.
            limits = self.with_operator_settings(config)
            _check_ledger(config)
            member = Member(context.node_id, limits, state, config, log_once)
            if request.step != UPLOAD:
                answer = member.answer(request)
            else:
                answer = _upload(member, request, message, context, call_next)
        except Exception as error:  # any error that a malicious message causes
            # The reason goes to the server and has no data in it; the cause stays in this log.
            reason, why = refusal_reason(error)
            log_once(WARNING, refusal_line(reason, why))
            return messages.refusal(message, reason)
        following = _prepared(member, received)
        return Message(RecordDict({**messages.records(answer), **following}), reply_to=message)


@functools.lru_cache(maxsize=64)
def log_once(level: int, line: str) -> None:
    """Log a line unless this process has just done so.

    Simulated clients share a process and log the same lines; those about a client's account differ
    from answer to answer.
    """
    log(level, line)


def _check_ledger(node_config: Mapping[str, Any]) -> None:
    # The run's configuration is never asked: it is the server's.
    if "randquant-ledger" not in node_config and not _is_simulated():
        raise ProtocolError(LEDGER_NEEDED)


def _is_simulated() -> bool:
    """Return True in a process of Flower's simulation engine, which is an actor of Ray.

    Message and context do not tell: those of a deployment look the same. A SuperNode's process is
    no actor, even if its train function starts Ray: whatever is not known is a deployment.
    """
    ray = sys.modules.get("ray")  # an actor has imported it, and a deployment need not have it
    return (
        ray is not None and ray.is_initialized() and bool(ray.get_runtime_context().get_actor_id())
    )


def _prepared(member: Member, received: RecordDict) -> messages.Records:
    """Return the answer to a step of the next round's sum, if one came with this round's."""
    try:
        if messages.NEXT_HEAD in received:
            return messages.next_records(member.prepare(messages.read_next(received)))
        return {}
    except Exception as error:  # as above; the answer of this round is sent all the same
        log_once(WARNING, refusal_line(*refusal_reason(error)))
        return {}


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
