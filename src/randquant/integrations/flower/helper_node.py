"""A SuperNode as the helper of secure sums: the server's requests to it, and its answers."""

from __future__ import annotations

from collections.abc import Iterable
from logging import INFO

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from randquant._internal import validate
from randquant.integrations.flower.grids import EligibleGrid
from randquant.integrations.flower.messages import HELPER
from randquant.integrations.foreign import logged
from randquant.integrations.helper_member import answered
from randquant.integrations.protocol import Ask
from randquant.secure_sums.secagg.terms import ProtocolError

REQUEST, ANSWER = "request", "answer"
"""The only field of a message's record."""


def asking(grid: Grid, timeout: float) -> Ask:
    """How a server reaches a SuperNode, within so many seconds."""

    def ask(node: int | str, request: bytes) -> bytes:
        record = RecordDict({HELPER: ConfigRecord({REQUEST: request})})
        message = Message(record, number(node), MessageType.TRAIN, group_id="helper", ttl=timeout)
        for reply in grid.send_and_receive([message], timeout=timeout):
            if not reply.has_error():
                return _field(reply.content, ANSWER)
            if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
                raise ProtocolError(f"The helper: {logged(reply.error.reason)}")
        raise OSError(f"SuperNode {node} does not answer")

    return ask


def answer(message: Message, context: Context) -> Message:
    """This SuperNode's answer as a helper; ProtocolError if it is none, or refuses."""
    request = _field(message.content, REQUEST)
    given = answered(context.node_config, request)
    log(INFO, "randquant: this helper has answered a request of %d bytes.", len(request))
    return Message(RecordDict({HELPER: ConfigRecord({ANSWER: given})}), reply_to=message)


def clients_of(grid: Grid, apart: frozenset[int | str]) -> Grid:
    """The grid without nodes that are no clients."""
    hidden = frozenset(map(number, apart))

    def eligible(nodes: Iterable[int]) -> list[int]:
        return [node for node in nodes if node not in hidden]

    return EligibleGrid(grid, eligible) if apart else grid


def number(node: int | str) -> int:
    """A SuperNode's number, which may be in text; ValueError if it is none."""
    text = str(node)
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(
            "Expected the number of a SuperNode, as flwr supernode list prints it, got "
            f"{validate.shown(node)}."
        )
    return int(text)


def _field(content: RecordDict, name: str) -> bytes:
    record = content.get(HELPER)
    value = record.get(name) if isinstance(record, ConfigRecord) else None
    if not isinstance(value, bytes):
        raise ProtocolError("Expected a helper's request or answer in bytes, got something else.")
    return value
