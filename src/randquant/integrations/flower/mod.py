"""The client's side on Flower: a mod that sends nothing of training but protected updates."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import log

from randquant.integrations.flower import messages
from randquant.integrations.ledger import SPENT
from randquant.integrations.limits import ClientLimits
from randquant.integrations.member import Agreed, Member, NothingToSend, refusal_line, told
from randquant.integrations.membership import JOURNAL, Membership
from randquant.integrations.protocol import UPLOAD, RoundMessage
from randquant.integrations.trained import Arrays


@dataclass(frozen=True)
class QuantizeMod(ClientLimits):
    """Clips, encodes and masks what a train function returns, as the server's offer says.

    The train function returns the whole model, as on Flower without this mod. Only the codes of
    the update are sent, drawn with a key from the operating system. Of its metrics only numbers
    that the offer names are sent, within the offer's bounds and in the same codes, which the
    guarantee covers; no other metric is.

    Its arguments are those of `ClientLimits`. A SuperNode's `--node-config` takes precedence over
    them: `randquant-epsilon`, `randquant-epsilon-alone`, `randquant-delta`,
    `randquant-all-neighbours`, `randquant-threshold`, `randquant-helper`. It may also name files of
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
        """Answer one message; a refusal is an error reply with the reason and without data.

        Other message types are passed through: evaluation is not covered by any guarantee.
        """
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        try:
            # A helper trains nothing, whatever it is asked for.
            if messages.HELPER in message.content or JOURNAL in context.node_config:
                return _as_helper(message, context)
            request, config = messages.read(message.content), context.node_config
            state = messages.ClientState(context)
            member = Member(context.node_id, self.of_node(config), state, config, log_once)
            if request.step != UPLOAD:
                answer = member.answer(request)
            else:
                answer = _upload(member, request, message, context, call_next)
        except Exception as error:  # any error that a malicious message causes
            reason, why = told(error)
            log(WARNING, refusal_line(reason, why))
            return messages.refusal(message, reason)
        return Message(RecordDict({**messages.records(answer)}), reply_to=message)


@functools.lru_cache(maxsize=64)
def log_once(level: int, line: str) -> None:
    """Log a line unless this process has just done so: simulated clients share one, and say alike.

    What a client logs of its account differs from answer to answer.
    """
    log(level, line)


def _as_helper(message: Message, context: Context) -> Message:
    from randquant.integrations.flower import helper_node  # clients need none of it

    return helper_node.answer(message, context)


def _upload(
    member: Member,
    request: RoundMessage,
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
) -> RoundMessage:
    """Charge this client, let it train, and answer with what training has made of the model."""
    old = messages.model_in(message.content, "the request")
    agreed = member.agree(request, old)
    member.charge(agreed.own, request.step)
    account = context.state.get(SPENT)
    message.content = messages.without_ours(message.content)
    try:  # an error here may reveal data, so its text must not reach the server
        payload = _trained(member, agreed, old, call_next(message, context))
    except Exception as error:
        raise NothingToSend from error
    finally:  # whatever the train function did to the content
        Membership.forget(member.state)  # after a failed upload the client has left the sum
        if account is not None:
            context.state[SPENT] = account
    return member.upload(agreed, payload)


def _trained(member: Member, agreed: Agreed, old: Arrays, answer: Message) -> bytes:
    """The encoded update of a train function's reply."""
    if answer.has_error():
        raise RuntimeError(answer.error.reason)
    new = messages.model_in(answer.content, "the train function's reply")
    return member.encode(agreed, old, new, messages.numbers_in(answer.content))
