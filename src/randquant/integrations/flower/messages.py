"""Records that `QuantizedStrategy` and `QuantizeMod` exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from randquant.aggregation.secagg.draw import LONGEST_PROOF
from randquant.aggregation.secagg.terms import (
    MOST_CLIENTS,
    MOST_NEIGHBOURS,
    ProtocolError,
    Terms,
)
from randquant.channels import wire
from randquant.channels.wire.payload import Coding, Format

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.integrations.flower.offer import Offer

ADVERTISE, SHARE, UPLOAD, CONFIRM, REVEAL = "advertise", "share", "upload", "confirm", "reveal"
STEPS = (ADVERTISE, SHARE, UPLOAD, CONFIRM, REVEAL)

HEAD, INBOX, PAYLOAD = "randquant", "randquant.inbox", "randquant.payload"
NEXT = {HEAD: "randquant.next", INBOX: "randquant.next.inbox"}
"""Names of the records of the next sum's step, beside those of a sum."""

OURS = (HEAD, INBOX, PAYLOAD, *NEXT.values())

THRESHOLD = "threshold"
"""In the head of a request to upload, if numbers travel beside updates."""

REASON = "refused"
"""In the place of a reply to the next sum's step: why this client is not in that sum."""

STYPE = "randquant.payload.v1"
"""Type of payload arrays: Flower cannot read it as numbers, so nobody averages codes."""

LONGEST_TEXT = 2**23
"""Most characters of an offer or terms: a channel of 1000 inputs and 256 levels has 5 million."""

LONGEST_SESSION = 64

REST, PER_NEIGHBOUR = 2**16, 256
"""Most bytes of a reply beside its payload: in all, and for each neighbour in a sum."""

LARGEST = 1e30
"""Largest threshold of an update's norm."""


@dataclass(frozen=True, slots=True)
class Head:
    """The header of every message.

    Attributes:
        step: step of the protocol; without secure aggregation only `upload`.
        session: unique bytes of this round of this run.
        offer: text of the server's offer, in the first request of a session.
        terms: text of the secure sum's terms, sent with the offer.
        survivors: clients in a sum, in the request to confirm them.
        commitment: the server's, to its part of the round's seed, sent with the offer.
        part: a client's part of the seed, in its answer to the offer.
        proof: of the seed, in the request to upload (`aggregation.secagg.draw`).
        threshold: what clients clip their updates to before numbers are added, in that request.
    """

    step: str
    session: bytes
    offer: str = ""
    terms: str = ""
    survivors: tuple[int, ...] = ()
    commitment: bytes = b""
    part: bytes = b""
    proof: bytes = b""
    threshold: float = 0.0

    def record(self) -> ConfigRecord:
        """The record that is sent; client numbers are text, because they are unsigned 64-bit."""
        fields = {
            "step": self.step,
            "session": self.session,
            "offer": self.offer,
            "terms": self.terms,
            "survivors": [str(client) for client in self.survivors],
            "commitment": self.commitment,
            "part": self.part,
            "proof": self.proof,
            THRESHOLD: self.threshold,
        }
        return ConfigRecord({name: value for name, value in fields.items() if value})

    @classmethod
    def read(cls, content: RecordDict) -> Head:
        """Undo `record`; ProtocolError if there is none."""
        record = content.get(HEAD)
        if not isinstance(record, ConfigRecord):
            raise ProtocolError(f"Expected a record {HEAD!r} in the message, got none.")
        step, session = record.get("step"), record.get("session")
        offer, terms = record.get("offer", ""), record.get("terms", "")
        if not (isinstance(step, str) and isinstance(session, bytes) and session):
            raise ProtocolError("Expected the step and session of a message, got none.")
        if len(session) > LONGEST_SESSION or step not in STEPS:
            raise ProtocolError("Expected a step of the protocol, and a session of 64 bytes.")
        if not (isinstance(offer, str) and isinstance(terms, str)):
            raise ProtocolError("Expected an offer and terms in text, got something else.")
        if max(len(offer), len(terms)) > LONGEST_TEXT:
            raise ProtocolError(f"Expected texts of at most {LONGEST_TEXT} characters, got more.")
        survivors = record.get("survivors", [])
        if not isinstance(survivors, list) or len(survivors) > MOST_CLIENTS:
            raise ProtocolError("Expected a list of survivors, got something else.")
        drawn = [record.get(name, b"") for name in ("commitment", "part", "proof")]
        if not all(isinstance(field, bytes) and len(field) <= LONGEST_PROOF for field in drawn):
            raise ProtocolError("Expected the parts of a seed in a few bytes, got something else.")
        threshold = record.get(THRESHOLD, 0.0)
        if not (isinstance(threshold, float) and 0 <= threshold <= LARGEST):
            raise ProtocolError("Expected a threshold of updates, got something else.")
        numbers = tuple(map(_number, survivors))
        return cls(step, session, offer, terms, numbers, *drawn, threshold=threshold)  # type: ignore[arg-type]


def inbox_record(messages: Mapping[int, bytes]) -> ConfigRecord:
    """The record of messages from or to some clients."""
    return ConfigRecord({str(client): message for client, message in messages.items()})


def read_inbox(content: RecordDict) -> dict[int, bytes]:
    """Undo `inbox_record`; ProtocolError if there is none."""
    record = content.get(INBOX)
    if isinstance(record, ConfigRecord) and len(record) > MOST_NEIGHBOURS + 1:
        raise ProtocolError(f"Expected {MOST_NEIGHBOURS + 1} messages at most, got {len(record)}.")
    if not isinstance(record, ConfigRecord) or not all(
        isinstance(m, bytes) for m in record.values()
    ):
        raise ProtocolError(f"Expected a record {INBOX!r} of bytes in the message, got none.")
    return {_number(client): bytes(message) for client, message in record.items()}  # type: ignore[arg-type]


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


def as_next(records: Mapping[str, ConfigRecord]) -> dict[str, ConfigRecord]:
    """Records of the next sum's step, as they travel with a message of a sum."""
    return {NEXT[name]: record for name, record in records.items()}


def next_of(content: RecordDict) -> RecordDict | None:
    """Undo `as_next`; None if the message has none of these records."""
    records = {name: content[other] for name, other in NEXT.items() if other in content}
    return RecordDict(records) if records else None


def next_of_reply(content: RecordDict) -> RecordDict:
    """The records of the next sum's step in a client's reply; ProtocolError if it refuses."""
    records = next_of(content)
    if records is None:
        raise ProtocolError("Expected a reply to the next sum's step too, got none.")
    head = records.get(HEAD)
    if isinstance(head, ConfigRecord) and isinstance(reason := head.get(REASON), str):
        raise ProtocolError(reason)
    return records


def payload_record(payload: bytes, size: int) -> ArrayRecord:
    """The record of a payload of `size` codes."""
    return ArrayRecord({"codes": Array("uint8", (size,), STYPE, payload)})


def read_payload(content: RecordDict) -> bytes:
    """Undo `payload_record`; ProtocolError if there is none."""
    record = content.get(PAYLOAD)
    array = record.get("codes") if isinstance(record, ArrayRecord) and len(record) == 1 else None
    if array is None or array.stype != STYPE:
        raise ProtocolError(f"Expected one array of {STYPE!r} in the message, got none.")
    return array.data


def terms_text(terms: Terms) -> str:
    """The terms as text, without the session and size of the sum."""
    return json.dumps(
        {
            "clients": terms.clients,
            "bits": terms.bits,
            "least": terms.least,
            "neighbours": terms.neighbours,
            "threshold": terms.threshold,
        }
    )


def read_terms(text: str, session: bytes, size: int) -> Terms:
    """Undo `terms_text`; ProtocolError if the text is invalid."""
    try:
        fields = json.loads(text)
        return Terms(session, tuple(fields.pop("clients")), size, **fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("Expected the terms of a secure sum, but they are none.") from error


def read_offer(text: str) -> Offer:
    """Like `Offer.from_text`; ProtocolError if the text is invalid."""
    from randquant.integrations.flower.offer import Offer

    try:
        return Offer.from_text(text)
    except (ArithmeticError, MemoryError, ValueError) as error:
        raise ProtocolError(
            "Expected an offer of this package's version, with the certificate that its channel "
            "has, got something else."
        ) from error


def coding_of(mechanism: UpdateMechanism) -> Coding:
    """What the payloads of a mechanism that sends codes say about them."""
    coding = mechanism.coding
    assert coding is not None
    return coding


def addressed(
    mechanism: UpdateMechanism, payload: bytes, session: bytes, client: int, size: int
) -> bytes:
    """A payload as it is sent without masks: codes say of which session and client they are.

    Without codes its client is known by its number (`UpdateMechanism.of_client`).
    """
    if mechanism.coding is None:
        return payload
    codes = wire.unpack(mechanism.coding, payload, size)
    return wire.pack(upload_format(mechanism, session, client), codes)


def unaddressed(
    mechanism: UpdateMechanism, payload: bytes, session: bytes, client: int, dimension: int
) -> bytes:
    """Undo `addressed`; ValueError if the payload is damaged.

    Codes of another session or client are refused too. A bare index (a mechanism without codes)
    does not say whose it is: it counts as the index of the client that sent the message.
    """
    if mechanism.coding is None:
        return mechanism.of_client(client).completed(payload, dimension)
    size = mechanism.size(dimension)
    codes = wire.unpack(upload_format(mechanism, session, client), payload, size)
    return wire.pack(mechanism.coding, codes, size - dimension)


def upload_format(mechanism: UpdateMechanism, session: bytes, client: int) -> Format:
    """Format of one client's codes in one session without masks; of a subset, which one."""
    coding = coding_of(mechanism)
    facts = ("upload", coding.fingerprint.hex(), session.hex(), str(client))
    return Format.of(coding.levels, *facts)


def _number(text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20):
        raise ProtocolError("Expected numbers of clients, got something else.")
    return int(text)
