"""A client's replies: what it sends, and the one sentence that it tells of an error."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common import log
from flwr.common.constant import ErrorCode

from randquant.aggregation.secagg.terms import ProtocolError
from randquant.integrations.files import DamagedFile
from randquant.integrations.flower import messages
from randquant.integrations.flower.messages import Head
from randquant.integrations.foreign import logged

FILES = "This client's files cannot be used; its log says why."
NOTHING = "This client has no update to send; its log says why."
REFUSED = "This client refuses the message; its log says why."


def reply(message: Message, head: Head, records: Mapping[str, Any], part: bytes = b"") -> Message:
    """A reply to one step, with records of ours; `part` is of the round's seed."""
    own = Head(head.step, head.session, part=part)
    return Message(RecordDict({messages.HEAD: own.record(), **records}), reply_to=message)


def told(error: Exception) -> tuple[str, BaseException | None]:
    """What the server is told of an error, and what is only in this client's log."""
    if isinstance(error, ProtocolError):
        return str(error), error.__cause__
    if isinstance(error, OSError | DamagedFile):  # the error may name files of this machine
        return FILES, error
    return REFUSED, error


def refused_next(error: Exception) -> ConfigRecord:
    """The head of a reply that refuses a step of the next sum."""
    reason, why = told(error)
    _log(reason, why)
    return ConfigRecord({messages.REASON: reason})


def refusal(message: Message, reason: str, why: BaseException | None = None) -> Message:
    """An error reply; its cause is only in this client's log."""
    _log(reason, why)
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)


def _log(reason: str, why: BaseException | None) -> None:
    told = "" if why is None else logged(f" {why!r}")
    log(WARNING, "randquant: refused: %s%s", reason, told)
