"""How the server asks clients in the steps of a round, and which of their replies it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from randquant.aggregation.secagg.terms import ProtocolError
from randquant.integrations.flower.messages import Head
from randquant.integrations.foreign import UNREADABLE, logged

Requests = Mapping[int, Mapping[str, ConfigRecord]]
"""By client, the records of ours in a request."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Link:
    """How the steps of a round other than the upload are sent.

    Attributes:
        grid: sends them.
        timeout: seconds for each of them.
        kind: type of its messages.
        group: Flower's label of the round.
    """

    grid: Grid
    timeout: float
    kind: str
    group: str

    def ask(self, requests: Requests) -> Iterable[Message]:
        """Send each client its records; return the replies."""
        return self.grid.send_and_receive(self.messages(requests), timeout=self.timeout)

    def messages(self, requests: Requests) -> list[Message]:
        """The messages that `ask` sends."""
        return [
            Message(
                RecordDict(dict(records)),  # type: ignore[arg-type]
                dst_node_id=client,
                message_type=self.kind,
                group_id=self.group,
                ttl=self.timeout,
            )
            for client, records in requests.items()
        ]


def checked(
    replies: Iterable[Message],
    asked: Iterable[int],
    step: str,
    session: bytes,
    take: Callable[[int, RecordDict], None],
    refused: dict[int, str],
    part: Callable[[int, RecordDict], RecordDict] = lambda client, content: content,
) -> set[int]:
    """Pass valid replies to `take`, one per client; log and refuse the others.

    Args:
        replies: to requests of one step and session to the clients `asked`.
        take: called with the client and the content of its reply; a ValueError refuses it.
        refused: the clients that are refused are added here, with the reason.
        part: which records of a client's reply are the ones in question; by default all.

    Returns:
        The clients whose replies were taken.
    """
    asked, known = set(asked), set()
    for reply in replies:
        client = reply.metadata.src_node_id
        if reply.has_error() and client not in asked:  # on behalf of a client that has left
            reason = logged(reply.error.reason)
            log(WARNING, "randquant: no reply to %r: %s", step, reason)
            continue
        try:
            if reply.has_error():
                raise ProtocolError(str(reply.error.reason))
            if client not in asked:
                raise ProtocolError("Expected no message of this client, got one.")
            if client in known:
                raise ProtocolError("Expected one reply of a client, got another: it is dropped.")
            content = part(client, reply.content)
            head = Head.read(content)
            if (head.step, head.session) != (step, session):
                raise ProtocolError("Expected a reply of this step and round, got another's.")
            take(client, content)
            known.add(client)
        except Exception as error:  # any malformed reply: the round continues with the others
            text = logged(error if isinstance(error, ValueError) else UNREADABLE)
            if client not in known:
                refused[client] = text
            log(WARNING, "randquant: reply of client %s to %r dropped: %s", client, step, text)
    for client in sorted(asked - known - refused.keys()):
        refused[client] = f"Expected a reply to {step!r} in time, got none."
        log(WARNING, "randquant: client %s: no reply to %r in time.", client, step)
    return known


def named(refused: Mapping[int, str], work: Callable[..., Result], *arguments: object) -> Result:
    """Do the server's part of a step; log the clients that it refuses, even if it fails."""
    before = dict(refused)
    try:
        return work(*arguments)
    finally:
        for client, reason in refused.items():
            if before.get(client) != reason:
                log(WARNING, "randquant: client %s: %s", client, reason)
