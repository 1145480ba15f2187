"""The messages of a round as Flower's records, and Flower's replies as answers."""

from __future__ import annotations

import math
import numbers
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_to_proto

from randquant.rounds.protocol import NoAnswer, RoundMessage, read_inbox
from randquant.secure_sums.secagg.terms import ProtocolError

if TYPE_CHECKING:  # a client's process needs none of the server's side
    from flwr.serverapp import Grid

    from randquant.rounds.sums import RoundSum

HEAD, INBOX, PAYLOAD = "randquant", "randquant.inbox", "randquant.payload"
OURS = (HEAD, INBOX, PAYLOAD)

STYPE = "randquant.payload.v1"
"""Type of payload arrays: Flower cannot read it as numbers, so nobody averages codes."""

EXAMPLES = "num-examples"
"""Flower's name for the weight of a client."""

NUMPY = "numpy.ndarray"
"""Flower's name for arrays in the format of `numpy.save`."""

MAGIC, LONGEST_HEADER = b"\x93NUMPY", 10_000
WIDTHS = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""Bytes of the header's length, by the file's version."""
HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \((|SIDE,|SIDE(?:, SIDE)+)\), \} *\n".replace(b"SIDE", rb"(?:0|[1-9][0-9]{0,12})")
)
DTYPES = frozenset("?bBhHiIlLqQefd")
MOST = 2**40
SIDES = 32

Records = dict[str, ConfigRecord | ArrayRecord]


def records(message: RoundMessage) -> Records:
    """The records of a message."""
    found: Records = {HEAD: ConfigRecord(message.head())}
    if message.inbox is not None:
        found[INBOX] = ConfigRecord({str(c): each for c, each in message.inbox.items()})
    if message.payload is not None:
        found[PAYLOAD] = payload_record(message.payload)
    return found


def read(content: RecordDict) -> RoundMessage:
    """Undo `records`; ProtocolError if there are none."""
    head = content.get(HEAD)
    if not isinstance(head, ConfigRecord):
        raise ProtocolError(f"Expected a record {HEAD!r} in the message, got none.")
    payload = read_payload(content) if PAYLOAD in content else None
    inbox = _inbox(content[INBOX]) if INBOX in content else None
    return RoundMessage.read(head, inbox=inbox, payload=payload)


def _inbox(record: object) -> dict[int, bytes]:
    if not isinstance(record, ConfigRecord):
        raise ProtocolError(f"Expected a record {INBOX!r} of bytes in the message, got another.")
    return read_inbox(record)


def payload_record(payload: bytes) -> ArrayRecord:
    """The record of a payload."""
    return ArrayRecord({"codes": Array("uint8", (len(payload),), STYPE, payload)})


def read_payload(content: RecordDict) -> bytes:
    """Undo `payload_record`; ProtocolError if there is none."""
    record = content.get(PAYLOAD)
    array = record.get("codes") if isinstance(record, ArrayRecord) and len(record) == 1 else None
    if array is None or array.stype != STYPE:
        raise ProtocolError(f"Expected one array of {STYPE!r} in the message, got none.")
    return array.data


def read_array(array: Array) -> np.ndarray:
    """Return the numbers of an array, read-only, in the memory of the message.

    Guarantees:
        No memory is allocated because the header asks for it. Bytes that are not exactly one array
        of booleans, integers or floats of at most 64 bits, with the dtype and shape that the
        message states, raise.

    Raises:
        ValueError: it is anything else.
    """
    if array.stype != NUMPY:
        raise ValueError(f"Expected an array of type {NUMPY!r}, got another.")
    dtype, order, shape, start = _header(array.data)
    if (str(dtype), shape) != (array.dtype, tuple(array.shape)):
        raise ValueError("Expected the dtype and shape that the message states, got others.")
    if len(array.data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("Expected as many bytes as the array's shape needs, got others.")
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape, order=order)


def _header(data: bytes) -> tuple[np.dtype, Literal["C", "F"], tuple[int, ...], int]:
    """Return (dtype, order, shape, offset of the numbers) of a `numpy.save` file."""
    width = WIDTHS.get(data[6:8], 0) if data[:6] == MAGIC else 0
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = HEADER.fullmatch(data[8 + width : start]) if start <= LONGEST_HEADER else None
    if not width or header is None:
        raise ValueError("Expected an array of numbers as numpy.save writes it, got another file.")
    shape = tuple(int(side) for side in header[3].split(b",") if side.strip())
    if len(shape) > SIDES or math.prod(max(side, 1) for side in shape) > MOST:
        raise ValueError(f"Expected at most {SIDES} sides and 2**40 numbers, got more.")
    order = "F" if header[2] == b"True" else "C"
    return _dtype(header[1].decode()), order, shape, start


def _dtype(text: str) -> np.dtype:
    try:
        dtype = np.dtype(text)
    except TypeError:  # for example floats of three bytes
        dtype = None
    if dtype is None or dtype.char not in DTYPES:
        raise ValueError("Expected truth values, integers or floats of at most 64 bits.")
    return dtype


def arrays_of(record: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """A model's arrays, every byte of which is checked."""
    return {name: read_array(array) for name, array in record.items()}


def model_in(content: RecordDict, what: str) -> dict[str, np.ndarray]:
    """The only record of arrays that is not one of ours; ProtocolError if there are others."""
    found = [record for key, record in content.array_records.items() if key not in OURS]
    if len(found) != 1:
        raise ProtocolError(f"Expected one record of arrays in {what}, got {len(found)}.")
    return arrays_of(found[0])


def without_ours(content: RecordDict) -> RecordDict:
    """The records that are not of this protocol."""
    return RecordDict({key: record for key, record in content.items() if key not in OURS})


def numbers_in(content: RecordDict) -> dict[str, float]:
    """All single numbers in a train function's metrics, by name.

    Raises:
        ValueError: two records have a number of one name.
    """
    found: dict[str, float] = {}
    for record in content.metric_records.values():
        single: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, numbers.Real)}
        if twice := found.keys() & single.keys():
            raise ValueError(f"Expected each metric in one record, got {min(twice)!r} in two.")
        found |= single
    return found


def refusal(message: Message, reason: str) -> Message:
    """An error reply to a message."""
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)


def only_reply(replies: Iterable[Message], arrays: ArrayRecord) -> Message:
    """A reply with the private mean, as if of the only client: nothing else of what clients say."""
    reply = next(reply for reply in replies if not reply.has_error())
    reply.content = RecordDict({"arrays": arrays, "metrics": MetricRecord({EXAMPLES: 1.0})})
    return reply


class ClientState(MutableMapping[str, dict[str, Any]]):
    """What a client keeps between two messages, which is never sent: the records of its context."""

    def __init__(self, context: Context) -> None:
        self._context = context  # whose state a train function may replace

    def __getitem__(self, name: str) -> dict[str, Any]:
        record = self._context.state[name]
        if not isinstance(record, ConfigRecord):
            raise KeyError(name)
        return dict(record)

    def __setitem__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._context.state[name] = ConfigRecord(dict(fields))

    def __delitem__(self, name: str) -> None:
        del self._context.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._context.state))

    def __len__(self) -> int:
        return len(self._context.state)


def answers(
    replies: Iterable[Message], most: int, sent: Counter[int]
) -> Iterator[tuple[int, RoundMessage | Exception]]:
    """Read replies of `most` bytes or fewer, and count each as Flower serialises it."""
    for reply in replies:
        client = reply.metadata.src_node_id
        try:
            if not reply.has_error():
                check_size(reply.content, most)
            sent[client] += message_to_proto(reply).ByteSize()
            if reply.has_error():
                raise NoAnswer(str(reply.error.reason))
            answer = read(reply.content)
        except Exception as error:  # any malformed reply: it is left out, by the sum
            yield client, error
            continue
        yield client, answer


def check_size(content: RecordDict, most: int) -> None:
    """Raise ProtocolError if records have more than `most` bytes, without copying any.

    What is nested is counted by its length first: each entry of a record or of a list, be it empty,
    takes a byte or more.
    """
    left = most
    for name, record in content.items():
        left -= len(name) + len(record) + 1
        for key, value in record.items() if left >= 0 else ():
            left -= len(key)
            for part in _parts(value):
                left -= len(part)
                if left >= 0 and isinstance(part, list | tuple):
                    left -= sum(len(p) if isinstance(p, str | bytes) else 8 for p in part)
            if left < 0:
                break
        if left < 0:
            raise ProtocolError(f"Expected a reply of {most} bytes at most, got more.")


def _parts(value: object) -> tuple[Any, ...]:
    """The text, bytes and lists that a value of a record is made of."""
    if isinstance(value, Array):
        return value.dtype, value.stype, value.data, value.shape
    return (value if isinstance(value, list | str | bytes) else bytes(8),)


@dataclass(frozen=True)
class FlowerRound:
    """A round that has begun: sends what its sum asks for, and gives it the replies.

    Attributes:
        number: 1 for the first of the run.
        base: the model that clients train.
        requests: the strategy's messages.
        sum: of the clients' updates.
        grid: sends the steps other than the upload.
        timeout: seconds for each of them.
        sent: bytes of each client's messages.
    """

    number: int
    base: ArrayRecord
    requests: list[Message]
    sum: RoundSum
    grid: Grid
    timeout: float
    sent: Counter[int] = field(default_factory=Counter)

    def ask(self, until: str = "") -> None:
        """Take steps until one of this name is next; by default all that are left."""
        while self.sum.step != until and (pending := self.sum.pending):
            sent = self._messages(pending)
            self.take(self.grid.send_and_receive(sent, timeout=self.timeout))

    def take(self, replies: Iterable[Message]) -> None:
        """Take the replies to what was pending."""
        self.sum.take(answers(replies, self.sum.most, self.sent))

    def uploads(self) -> list[Message]:
        """The requests to upload, with the strategy's content."""
        pending, sent = self.sum.pending, []
        for request in self.requests:
            if (client := request.metadata.dst_node_id) in pending:
                request.content = RecordDict({**request.content, **records(pending[client])})
                sent.append(request)
        return sent

    def _messages(self, requests: Mapping[int, RoundMessage]) -> list[Message]:
        kind = self.requests[0].metadata.message_type
        return [
            Message(
                RecordDict({**records(request)}), client, kind, group_id=str(self.number),
                ttl=self.timeout,
            )
            for client, request in requests.items()
        ]  # fmt: skip
