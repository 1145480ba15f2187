"""Records that travel between `QuantizedStrategy` and `QuantizeMod`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from randquant.flower.offer import Offer
from randquant.secagg import ProtocolError, Terms
from randquant.wire import Format

ADVERTISE, SHARE, UPLOAD, CONFIRM, REVEAL = "advertise", "share", "upload", "confirm", "reveal"
STEPS = (ADVERTISE, SHARE, UPLOAD, CONFIRM, REVEAL)

HEAD, INBOX, PAYLOAD = "randquant", "randquant.inbox", "randquant.payload"
OURS = (HEAD, INBOX, PAYLOAD)

STYPE = "randquant.payload.v1"
"""Of payload arrays; Flower refuses to read them as numbers, so nobody averages codes."""

LONGEST_TEXT = 2**23
"""Characters of an offer or of terms: a channel of 1000 inputs and 256 levels has 5 million."""

LONGEST_SESSION = 64

LOGGED = 500
"""Characters that are logged, or kept, of what somebody else wrote."""


@dataclass(frozen=True, slots=True)
class Head:
    """What every message says of itself.

    Attributes:
        step: of the protocol; without secure aggregation there is `upload` only.
        session: bytes of this round of this run, which no other has.
        offer: text of the server's offer, in the first request of a session.
        terms: text of the secure sum's terms, with its offer.
        survivors: clients in a sum, in the request to confirm them.
    """

    step: str
    session: bytes
    offer: str = ""
    terms: str = ""
    survivors: tuple[int, ...] = ()

    def record(self) -> ConfigRecord:
        """As it travels; client numbers as text, for Flower's have 64 bits without a sign."""
        fields = {
            "step": self.step,
            "session": self.session,
            "offer": self.offer,
            "terms": self.terms,
            "survivors": [str(client) for client in self.survivors],
        }
        return ConfigRecord({name: value for name, value in fields.items() if value})

    @classmethod
    def read(cls, content: RecordDict) -> Head:
        """Undo `record`; ProtocolError where there is none."""
        found = content.get(HEAD)
        if not isinstance(found, ConfigRecord):
            raise ProtocolError(f"Expected a record {HEAD!r} in the message, got none.")
        step, session = found.get("step"), found.get("session")
        offer, terms = found.get("offer", ""), found.get("terms", "")
        if not (isinstance(step, str) and isinstance(session, bytes) and session):
            raise ProtocolError("Expected the step and session of a message, got none.")
        if len(session) > LONGEST_SESSION or step not in STEPS:
            raise ProtocolError("Expected a step of the protocol, and a session of 64 bytes.")
        if not (isinstance(offer, str) and isinstance(terms, str)):
            raise ProtocolError("Expected an offer and terms in text, got something else.")
        if max(len(offer), len(terms)) > LONGEST_TEXT:
            raise ProtocolError(f"Expected texts of at most {LONGEST_TEXT} characters, got more.")
        survivors = found.get("survivors", [])
        if not isinstance(survivors, list):
            raise ProtocolError("Expected a list of survivors, got something else.")
        return cls(step, session, offer, terms, tuple(map(_number, survivors)))


def logged(text: object) -> str:
    """What somebody else wrote, as a part of one line: it cannot pass for lines of ours."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:LOGGED])


def inbox_record(messages: Mapping[int, bytes]) -> ConfigRecord:
    """Messages from or to each of some clients, as they travel."""
    return ConfigRecord({str(client): message for client, message in messages.items()})


def read_inbox(content: RecordDict) -> dict[int, bytes]:
    """Undo `inbox_record`; ProtocolError where there is none."""
    found = content.get(INBOX)
    if not isinstance(found, ConfigRecord) or not all(isinstance(m, bytes) for m in found.values()):
        raise ProtocolError(f"Expected a record {INBOX!r} of bytes in the message, got none.")
    return {_number(client): bytes(message) for client, message in found.items()}  # type: ignore[arg-type]


def payload_record(payload: bytes, size: int) -> ArrayRecord:
    """A payload of so many codes, as it travels."""
    return ArrayRecord({"codes": Array("uint8", (size,), STYPE, payload)})


def read_payload(content: RecordDict) -> bytes:
    """Undo `payload_record`; ProtocolError where there is none."""
    found = content.get(PAYLOAD)
    array = found.get("codes") if isinstance(found, ArrayRecord) and len(found) == 1 else None
    if array is None or array.stype != STYPE:
        raise ProtocolError(f"Expected one array of {STYPE!r} in the message, got none.")
    return array.data


def terms_text(terms: Terms) -> str:
    """What `read_terms` needs beside the session and size of a sum."""
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
    """Undo `terms_text`; ProtocolError where it is none."""
    try:
        fields = json.loads(text)
        return Terms(session, tuple(fields.pop("clients")), size, **fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ProtocolError("Expected the terms of a secure sum, but they are none.") from error


def read_offer(text: str) -> Offer:
    """As `Offer.from_text`; ProtocolError where it is none."""
    try:
        return Offer.from_text(text)
    except (ArithmeticError, MemoryError, ValueError) as error:
        raise ProtocolError(
            "Expected an offer of this package's version, with the certificate that its channel "
            "has, got something else."
        ) from error


def upload_format(offer: Offer, session: bytes, client: int) -> Format:
    """Coding of one client's codes in one session, where they are not masked."""
    channel = offer.channel
    facts = ("upload", channel.fingerprint.hex(), session.hex(), str(client))
    return Format.of(channel.levels, *facts)


def _number(text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20):
        raise ProtocolError("Expected numbers of clients, got something else.")
    return int(text)
