"""The messages of a round as Flower's records, replies as answers, and grids that carry them."""

from __future__ import annotations

import math
import numbers
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from logging import INFO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from randquant._internal.imports import load, needed
from randquant.rounds import protocol
from randquant.rounds.protocol import NoAnswer, RoundMessage, read_inbox
from randquant.secure_sums.terms import ProtocolError

with needed("Flower", "flower"):
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
    from flwr.common import log
    from flwr.common.constant import ErrorCode
    from flwr.common.serde import message_to_proto
    from flwr.serverapp import Grid

# What else the adapter needs: if it is missing, the error names the adapter's extra.
for _module in ("flwr.serverapp.strategy", "flwr.clientapp.mod", "nacl.bindings"):
    load(_module, "Flower", "flower")

if TYPE_CHECKING:  # a client's process needs none of the server's side
    from randquant.rounds.sums import RoundSum

HEAD = "randquant"
INBOX = "randquant.inbox"
PAYLOAD = "randquant.payload"
NEXT_HEAD = "randquant.next"
NEXT_INBOX = "randquant.next.inbox"
PROTOCOL_KEYS = (HEAD, INBOX, PAYLOAD, NEXT_HEAD, NEXT_INBOX)
"""Keys of the records of a `RoundMessage`, and of one of the next round's sum that is sent with it;
others are the strategy's and the train function's."""

UPDATE = "update"
"""Key of a train function's record of arrays that is an update, where others are a model."""

STYPE = "randquant.payload.v1"
"""Type of payload arrays. Flower cannot read it as numbers, so no strategy can average codes."""

EXAMPLES = "num-examples"
"""Flower's name for the weight of a client."""

NUMPY = "numpy.ndarray"
"""Flower's name for arrays in the format of `numpy.save`."""

MAGIC = b"\x93NUMPY"

MAX_HEADER_BYTES = 10_000
"""Length up to which a header is searched: a hostile one must not take long to parse. Headers of
model arrays have 128 bytes, so half of it would do; NumPy has the same limit."""

WIDTHS = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}
"""Bytes of the header's length, by the file's version."""

HEADER = re.compile(
    rb"\{'descr': '([<>|][biuf][0-9]{1,2})', 'fortran_order': (True|False), "
    rb"'shape': \((|SIDE,|SIDE(?:, SIDE)+)\), \} *\n".replace(b"SIDE", rb"(?:0|[1-9][0-9]{0,12})")
)
DTYPES = frozenset("?bBhHiIlLqQefd")

MAX_NUMBERS = 2**40
"""Largest number of numbers in one array: far more than a message holds, and few enough for
products in int64."""

MAX_DIMENSIONS = 32
"""Largest number of dimensions of an array, which all versions of NumPy support."""

Records = dict[str, ConfigRecord | ArrayRecord]


def records(message: RoundMessage) -> Records:
    """Return the records of a message."""
    content = next_records(message, HEAD, INBOX)
    if message.payload is not None:
        content[PAYLOAD] = payload_record(message.payload)
    return content


def next_records(message: RoundMessage, head: str = NEXT_HEAD, inbox: str = NEXT_INBOX) -> Records:
    """Return the records of a message of the next round's sum, to be sent with one of this's."""
    content: Records = {head: ConfigRecord(message.head())}
    if message.inbox is not None:
        content[inbox] = ConfigRecord({str(c): text for c, text in message.inbox.items()})
    return content


def read(content: RecordDict) -> RoundMessage:
    """Undo `records`; ProtocolError if there are none."""
    payload = read_payload(content) if PAYLOAD in content else None
    return replace(read_next(content, HEAD, INBOX), payload=payload)


def read_next(content: RecordDict, head: str = NEXT_HEAD, inbox: str = NEXT_INBOX) -> RoundMessage:
    """Undo `next_records`; ProtocolError if there are none."""
    # Refusals here and below are sent to the other side: they do not repeat what the message holds.
    if not isinstance(record := content.get(head), ConfigRecord):
        raise ProtocolError(f"Expected a record {head!r} in the message, got a message without it.")
    messages = content.get(inbox)
    if messages is not None and not isinstance(messages, ConfigRecord):
        kind = type(messages).__name__
        raise ProtocolError(
            f"Expected {inbox!r} to be a ConfigRecord, got a record of type {kind}."
        )
    return RoundMessage.read(record, inbox=None if messages is None else read_inbox(messages))


def payload_record(payload: bytes) -> ArrayRecord:
    return ArrayRecord({"codes": Array("uint8", (len(payload),), STYPE, payload)})


def read_payload(content: RecordDict) -> bytes:
    """Undo `payload_record`; ProtocolError if there is none."""
    record = content.get(PAYLOAD)
    array = record.get("codes") if isinstance(record, ArrayRecord) and len(record) == 1 else None
    if array is None or array.stype != STYPE:
        raise ProtocolError(f"Expected one array of {STYPE!r} in the message, got no such array.")
    return array.data


def read_array(array: Array) -> np.ndarray:
    """Return the numbers of an array, read-only, in the memory of the message.

    Guarantees:
        No memory is allocated on account of the header. Bytes that are not exactly one array of
        booleans, integers or floats of at most 64 bits, with the dtype and shape that the message
        states, are refused.

    Raises:
        ValueError: the bytes are not such an array.
    """
    # No refusal repeats what the array holds or states: it may be a client's, and is logged.
    if array.stype != NUMPY:
        raise ValueError(f"Expected an array of type {NUMPY!r}, got a different type.")
    dtype, order, shape, start = _header(array.data)
    if (str(dtype), shape) != (array.dtype, tuple(array.shape)):
        raise ValueError(
            "Expected the dtype and shape that the message states, got different ones."
        )
    if len(array.data) - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(
            "Expected as many bytes as the array's shape needs, got "
            f"{len(array.data) - start} bytes of numbers."
        )
    return np.frombuffer(array.data, dtype, offset=start).reshape(shape, order=order)


def _header(data: bytes) -> tuple[np.dtype, Literal["C", "F"], tuple[int, ...], int]:
    """Return (dtype, order, shape, offset of the numbers) of a `numpy.save` file.

    `numpy.load` would evaluate the header as Python, and allocate what it asks for.
    """
    width = WIDTHS.get(data[6:8], 0) if data[:6] == MAGIC else 0
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    header = HEADER.fullmatch(data[8 + width : start]) if start <= MAX_HEADER_BYTES else None
    if not width or header is None:
        raise ValueError("Expected an array as numpy.save writes it, got a different format.")
    shape = tuple(int(side) for side in header[3].split(b",") if side.strip())
    # Sides of 0 count as 1: NumPy multiplies the others all the same, and would overflow.
    if len(shape) > MAX_DIMENSIONS or math.prod(max(side, 1) for side in shape) > MAX_NUMBERS:
        raise ValueError(
            f"Expected at most {MAX_DIMENSIONS} dimensions and {MAX_NUMBERS} numbers, got a larger "
            "shape."
        )
    order = "F" if header[2] == b"True" else "C"
    return _dtype(header[1].decode()), order, shape, start


def _dtype(text: str) -> np.dtype:
    try:
        dtype = np.dtype(text)
    except TypeError:  # for example floats of three bytes
        dtype = None
    if dtype is None or dtype.char not in DTYPES:
        raise ValueError(
            "Expected truth values, integers or floats of at most 64 bits, got numbers of a "
            "different type."
        )
    return dtype


def model_arrays(record: Mapping[str, Array]) -> dict[str, np.ndarray]:
    return {name: read_array(array) for name, array in record.items()}


def model_in(content: RecordDict, what: str) -> dict[str, np.ndarray]:
    """Read the only record of arrays besides the protocol's; ProtocolError if there are several."""
    models = [rec for key, rec in content.array_records.items() if key not in PROTOCOL_KEYS]
    if len(models) != 1:
        raise ProtocolError(f"Expected one record of arrays in {what}, got {len(models)}.")
    return model_arrays(models[0])


def without_protocol_records(content: RecordDict) -> RecordDict:
    # A train function sees only what it would see without this package, and so needs no change.
    return RecordDict({key: rec for key, rec in content.items() if key not in PROTOCOL_KEYS})


def numbers_in(content: RecordDict) -> dict[str, float]:
    """Return all single numbers in a train function's metrics, by name.

    Raises:
        ValueError: two records have a number of the same name.
    """
    values: dict[str, float] = {}
    for record in content.metric_records.values():
        single: dict[str, Any] = {k: v for k, v in record.items() if isinstance(v, numbers.Real)}
        if repeated := values.keys() & single.keys():
            raise ValueError(f"Expected each metric in one record, got {min(repeated)!r} in two.")
        values |= single
    return values


def refusal(message: Message, reason: str) -> Message:
    return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=reason), reply_to=message)


def only_reply(replies: Iterable[Message], arrays: ArrayRecord) -> Message:
    """Return a reply with the private mean, as if from the only client, and nothing else."""
    # A strategy that averages then returns the mean itself. The first reply only lends its
    # metadata: all content is replaced.
    reply = next(reply for reply in replies if not reply.has_error())
    reply.content = RecordDict({"arrays": arrays, "metrics": MetricRecord({EXAMPLES: 1.0})})
    return reply


class ClientState(MutableMapping[str, dict[str, Any]]):
    """The state of a client between two messages: the records of its context, never sent."""

    def __init__(self, context: Context) -> None:
        # The context and not its state, which a train function may replace.
        self._context = context

    def __getitem__(self, name: str) -> dict[str, Any]:
        record = self._context.state[name]
        # Other records of the context are the train function's: they are none of this state.
        if not isinstance(record, ConfigRecord):
            raise KeyError(name)
        return dict(record)

    def __setitem__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._context.state[name] = ConfigRecord(dict(fields))

    def __delitem__(self, name: str) -> None:
        del self._context.state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._context.state))  # a copy: records are deleted while it is read

    def __len__(self) -> int:
        return len(self._context.state)


def answers(
    replies: Iterable[Message],
    max_bytes: int,
    sent_bytes: Counter[int] | None,
    read: Callable[[RecordDict], RoundMessage] = read,
) -> Iterator[tuple[int, RoundMessage | Exception]]:
    """Read clients' replies.

    Args:
        replies: as the grid returned them.
        max_bytes: a longer reply is refused.
        sent_bytes: by client; the length of each reply, as Flower serialises it, is added to it.
            None if they are counted already.
        read: of this round's sum, or of the next one's.

    Yields:
        The client, by Flower's word and not the message's, and its answer or the error of it.
    """
    for reply in replies:
        client = reply.metadata.src_node_id
        try:
            if not reply.has_error():
                # Before it is serialised, which copies it.
                check_size(reply.content, max_bytes)
            if sent_bytes is not None:
                sent_bytes[client] += message_to_proto(reply).ByteSize()
            if reply.has_error():
                raise NoAnswer(str(reply.error.reason))
            answer = read(reply.content)
        except Exception as error:  # whatever a malformed reply causes: the sum leaves it out
            yield client, error
            continue
        yield client, answer


def check_size(content: RecordDict, max_bytes: int) -> None:
    """Raise ProtocolError if records have more than `max_bytes`, without copying any.

    Records and lists are counted by their length first: each entry, even an empty one, takes at
    least a byte, so a long list of empty entries is refused before anything in it is looked at.
    """
    left = max_bytes
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
            # The message does not show the size, which is not known: counting stops here.
            raise ProtocolError(f"Expected a reply of at most {max_bytes} bytes, got a longer one.")


def _parts(value: object) -> tuple[Any, ...]:
    if isinstance(value, Array):
        return value.dtype, value.stype, value.data, value.shape
    # Numbers and truth values take 8 bytes at most.
    return (value if isinstance(value, list | str | bytes) else bytes(8),)


# Grids that carry the messages, and a round on a grid.

NETWORK_GRID_NAMES = ("HttpGrid", "GrpcGrid")
"""Flower's grids that poll for replies every three seconds."""

MIN_POLL_SECONDS = 0.1
MAX_POLL_SECONDS = 3.0
POLL_SHARE = 0.03
"""Time between two polls as a share of the time waited so far, within the two limits in seconds.

The last poll of a step comes late by this share of the step at most. Half as much would double the
polls, and twice as much would save few. A SuperNode that has sent its reply polls for its next
message every three seconds: a late poll here may cost it one more of these.
"""


class DelegatingGrid(Grid):
    """Passes every call on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def set_run(self, *arguments: object, **options: object) -> None:
        self._grid.set_run(*arguments, **options)  # type: ignore[arg-type]

    @property
    def run(self):
        return self._grid.run

    def create_message(self, *arguments: object, **options: object) -> Message:
        return self._grid.create_message(*arguments, **options)  # type: ignore[arg-type]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)


class EligibleGrid(DelegatingGrid):
    """Shows only the connected clients that may take part.

    Args:
        grid: the other grid.
        eligible: returns those that may take part, of the connected ones.

    Attributes:
        hidden: number of connected clients that were left out when nodes were last requested.
    """

    def __init__(self, grid: Grid, eligible: Callable[[Iterable[int]], list[int]]) -> None:
        super().__init__(grid)
        self._eligible, self.hidden = eligible, 0

    def get_node_ids(self) -> Iterable[int]:
        # Asked anew each time: clients connect and disconnect while a strategy waits for enough.
        connected = list(self._grid.get_node_ids())
        shown = self._eligible(connected)
        self.hidden = len(connected) - len(shown)
        return shown


class PollingGrid(DelegatingGrid):
    """Polls for replies soon after a request, and less often the longer they take.

    A round of secure sums has five steps, and a slow poll delays each of them.
    """

    @classmethod
    def over(cls, grid: Grid) -> Grid:
        # A grid that polls fast enough is returned as it is. By name: importing Flower's classes
        # would need extras that a simulation does without.
        return cls(grid) if type(grid).__name__ in NETWORK_GRID_NAMES else grid

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push messages and pull their replies, as `Grid.send_and_receive` does."""
        # Flower returns an empty number for a message that it could not send: nothing to wait for.
        waiting = {number for number in self._grid.push_messages(messages) if number}
        begun, replies = time.monotonic(), []
        while waiting and (timeout is None or time.monotonic() - begun < timeout):
            pulled = list(self._grid.pull_messages(waiting))
            replies += pulled
            waiting -= {reply.metadata.reply_to_message_id for reply in pulled}
            if waiting:
                waited = time.monotonic() - begun
                time.sleep(min(max(MIN_POLL_SECONDS, POLL_SHARE * waited), MAX_POLL_SECONDS))
        return replies  # after a timeout those that came: the sum leaves out the other clients


@dataclass(frozen=True)
class FlowerRound:
    """A round that has begun: sends the requests of its sum, and passes it the replies.

    From the upload on its messages also take the first steps of the next round's sum.

    Attributes:
        number: 1 for the first of the run.
        base: the model that clients train.
        requests: the strategy's messages.
        sum: the sum of the clients' updates.
        grid: sends the steps other than the upload.
        timeout: seconds for each of these steps.
        next_sum: the sum of the next round; None if it is not prepared.
        sent_bytes: bytes of each client's messages.
    """

    number: int
    base: ArrayRecord
    requests: list[Message]
    sum: RoundSum
    grid: Grid
    timeout: float
    next_sum: RoundSum | None = None
    sent_bytes: Counter[int] = field(default_factory=Counter)

    def run_steps(self, until: str = "") -> None:
        # By default all steps that are left: the mean, or a ProtocolError, ends the loop.
        while self.sum.step != until and (pending := self.sum.pending):
            requests = self._messages(pending)
            self.take(self.grid.send_and_receive(requests, timeout=self.timeout))

    def take(self, replies: Iterable[Message]) -> None:
        joined, replies = self._joined, list(replies)
        most = self.sum.most + (0 if joined is None else joined.most)
        self.sum.take(answers(replies, most, self.sent_bytes))
        # A client that answers this round's sum alone has no answer in the next one's.
        both = [r for r in replies if r.has_content() and NEXT_HEAD in r.content]
        try:
            if joined is not None:
                joined.take(answers(both, most, None, read_next))
        except ValueError as error:  # the next round begins a sum of its own
            log(INFO, "randquant: the next round's sum could not be prepared: %s", error)

    @property
    def _joined(self) -> RoundSum | None:
        # Not before the upload: whoever is lost until then is in neither sum.
        early = self.sum.step in protocol.PREPARED_STEPS
        # Nothing is pending in a sum that has failed.
        begun = self.next_sum is not None and self.next_sum.step in protocol.PREPARED_STEPS
        return self.next_sum if begun and not early else None

    def _records(self, client: int, request: RoundMessage) -> Records:
        content = records(request)
        if self._joined is not None and (following := self._joined.pending.get(client)):
            content |= next_records(following)
        return content

    def uploads(self) -> list[Message]:
        """Return the requests to upload, with the strategy's content."""
        # In the strategy's own messages, which have the configuration for the train function.
        # Clients that an earlier step of the sum has lost are not asked, and not charged.
        pending, uploads = self.sum.pending, []
        for request in self.requests:
            if (client := request.metadata.dst_node_id) in pending:
                content = self._records(client, pending[client])
                request.content = RecordDict({**request.content, **content})
                uploads.append(request)
        return uploads

    def _messages(self, requests: Mapping[int, RoundMessage]) -> list[Message]:
        kind = self.requests[0].metadata.message_type
        return [
            Message(
                RecordDict({**self._records(client, request)}), client, kind,
                group_id=str(self.number), ttl=self.timeout,
            )
            for client, request in requests.items()
        ]  # fmt: skip
