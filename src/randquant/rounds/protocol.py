"""Messages between server and client in a round, on any engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from randquant.channels import wire
from randquant.channels.wire import Format
from randquant.secure_sums.terms import (
    MAX_CLIENTS,
    MAX_NEIGHBOURS,
    MAX_PROOF_BYTES,
    ProtocolError,
    Terms,
)

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism

# Steps of a secure sum among clients, in this order. A round without secure aggregation has
# `UPLOAD` alone, after `ADVERTISE` if a seed is drawn; a round with a helper has `UPLOAD` alone.
ADVERTISE = "advertise"  # clients send fresh public keys, and their parts of a seed
SHARE = "share"  # each seals shares of its secrets for its neighbours
UPLOAD = "upload"  # each trains, and sends its codes, masked in a secure sum
CONFIRM = "confirm"  # survivors confirm to each other whose codes are in the sum
REVEAL = "reveal"  # they reveal the shares that remove the masks
STEPS = (ADVERTISE, SHARE, UPLOAD, CONFIRM, REVEAL)
PREPARED_STEPS = (ADVERTISE, SHARE)  # of the next round's sum: may go with this round's messages

SESSION_BYTES = 16
"""Bytes of a session that a server draws: enough that no two rounds share one. With half of them
two of some 2^32 rounds would; twice as many gain nothing."""
MAX_SESSION_BYTES = 64
"""Most bytes of a session that clients accept. It leaves room for other servers; half or twice of
it would do as well."""

MAX_TEXT_CHARACTERS = 2**23
"""Most characters of an offer or terms: a channel of 1000 inputs and 256 levels has 5 million. With
half, that one is refused; with twice, a stranger's text takes twice the memory."""

MAX_LOGGED_CHARACTERS = 500
"""Most characters of untrusted text in a log or a record. With twice as many a stranger fills logs
twice as fast; with half, the longest refusals that clients send would be cut."""

UNREADABLE = "Expected a reply of this protocol, got bytes that are not."
"""Logged in place of another library's error, whose text may quote a stranger's bytes."""


def logged(text: object) -> str:
    """Return untrusted text for one log line, so that it cannot imitate a line of its own.

    Example:
        >>> logged("refused\\nrandquant: epsilon 0.1")
        'refused?randquant: epsilon 0.1'
    """
    # Cut first: the text may have megabytes. Line ends and terminal codes are not printable:
    # neither can a stranger begin a line of the log, nor change what a terminal shows of it.
    return "".join(c if c.isprintable() else "?" for c in str(text)[:MAX_LOGGED_CHARACTERS])


class NoAnswer(ProtocolError):
    """A transport's report, instead of a client's answer, that none came."""


@dataclass(frozen=True, slots=True)
class RoundMessage:
    """A server's request in one step of a round, or a client's reply.

    Attributes:
        step: step of the protocol; without secure aggregation only `upload`, or `advertise` before
            it, if a seed is drawn.
        session: unique bytes of this round of this run.
        offer: text of the server's offer, in the first request of a session.
        terms: text of the secure sum's terms, sent with the offer.
        survivors: clients in a sum, in the request to confirm them.
        commitment: of the server, to its part of the round's seed, sent with the offer.
        part: a client's part of the seed, in its answer to the offer.
        proof: of the seed, in the request to upload (`Draw`, or `JointSeed`).
        inbox: in a request messages of other clients by sender, in a reply those to them.
        payload: a client's update, in its reply to upload.
    """

    step: str
    session: bytes
    offer: str = ""
    terms: str = ""
    survivors: tuple[int, ...] = ()
    commitment: bytes = b""
    part: bytes = b""
    proof: bytes = b""
    inbox: Mapping[int, bytes] | None = None
    payload: bytes | None = None

    def head(self) -> dict[str, Any]:
        """Return the fields other than `inbox` and `payload`, without empty ones.

        Client numbers are text: they are unsigned and of 64 bits, which engines' integers are not.
        """
        head = {name: getattr(self, name) for name in HEAD_FIELDS}
        head["survivors"] = [str(client) for client in self.survivors]
        return {name: value for name, value in head.items() if value}

    @classmethod
    def read(cls, head: Mapping[str, Any], **others: Any) -> RoundMessage:
        """Undo `head`; ProtocolError if the fields, which may be a stranger's, are invalid."""
        # Every refusal below shows types and lengths only: the content is a stranger's.
        known = {name: head[name] for name in HEAD_FIELDS if name in head}
        step, session = known.get("step"), known.get("session")
        if not (isinstance(step, str) and isinstance(session, bytes) and session):
            raise ProtocolError(
                f"Expected a step in text and a session in bytes, got {_kinds(step, session)}."
            )
        if step not in STEPS:
            raise ProtocolError(
                f"Expected one of the steps {', '.join(STEPS)}, got a name of {len(step)} "
                "characters that is not among them."
            )
        if len(session) > MAX_SESSION_BYTES:
            raise ProtocolError(
                f"Expected a session of {MAX_SESSION_BYTES} bytes at most, got {len(session)}."
            )
        # Before anything is parsed or kept: a stranger's text must not fill the memory.
        texts = [known.get(name, "") for name in ("offer", "terms")]
        if not all(isinstance(text, str) for text in texts):
            raise ProtocolError(f"Expected an offer and terms in text, got {_kinds(*texts)}.")
        if max(map(len, texts)) > MAX_TEXT_CHARACTERS:
            raise ProtocolError(
                f"Expected texts of at most {MAX_TEXT_CHARACTERS} characters, got "
                f"{max(map(len, texts))}."
            )
        survivors = known.get("survivors", [])
        if not isinstance(survivors, list) or len(survivors) > MAX_CLIENTS:
            raise ProtocolError(
                f"Expected a list of at most {MAX_CLIENTS} survivors, got {_kinds(survivors)}."
            )
        seed_parts = [known.get(name, b"") for name in ("commitment", "part", "proof")]
        if not all(isinstance(b, bytes) and len(b) <= MAX_PROOF_BYTES for b in seed_parts):
            raise ProtocolError(
                f"Expected the parts of a seed in at most {MAX_PROOF_BYTES} bytes, got "
                f"{_kinds(*seed_parts)}."
            )
        known["survivors"] = tuple(map(client_number, survivors))
        return cls(**known, **others)

    @property
    def peer_messages(self) -> Mapping[int, bytes]:
        """The inbox; ProtocolError if the message has none."""
        if self.inbox is None:
            raise ProtocolError(
                "Expected a record of messages of other clients, got a message without one."
            )
        return self.inbox

    @property
    def update(self) -> bytes:
        """The payload; ProtocolError if the message has none."""
        if self.payload is None:
            raise ProtocolError("Expected a payload with an update, got a message without one.")
        return self.payload


def _kinds(*values: object) -> str:
    # Types and lengths, as in "str of 5, int", and never the content, which a stranger wrote.
    sized = (str, bytes, list)
    return ", ".join(
        type(value).__name__ + (f" of {len(value)}" if isinstance(value, sized) else "")
        for value in values
    )


# All fields but `inbox` and `payload`, which engines carry in records of their own.
HEAD_FIELDS = tuple(field.name for field in fields(RoundMessage))[:8]


def read_inbox(messages: Mapping[str, Any]) -> dict[int, bytes]:
    """Return messages by client number; ProtocolError if a number or a message is invalid."""
    # The count first: nothing is converted of a flood of messages.
    if len(messages) > MAX_NEIGHBOURS + 1:
        most = MAX_NEIGHBOURS + 1
        raise ProtocolError(f"Expected {most} messages at most, got {len(messages)}.")
    if not all(isinstance(message, bytes) for message in messages.values()):
        kinds = sorted({type(message).__name__ for message in messages.values()})
        raise ProtocolError(f"Expected messages of other clients in bytes, got {', '.join(kinds)}.")
    return {client_number(client): bytes(message) for client, message in messages.items()}


def client_number(text: object) -> int:
    """Return a client's number from its text; ProtocolError if the text is not one."""
    # 20 digits hold 64 bits. ASCII only, since `int` reads digits of every script.
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 20):
        raise ProtocolError(f"Expected numbers of clients, got {_kinds(text)}.")
    return int(text)


def terms_text(terms: Terms) -> str:
    """Return the terms as JSON, without session, size and offer, which the message has."""
    names = ("clients", "bits", "least", "neighbours", "threshold")
    return json.dumps({name: getattr(terms, name) for name in names})


def read_terms(text: str, session: bytes, size: int, offer: str) -> Terms:
    """Invert `terms_text`; ProtocolError if the text, which may be a stranger's, is not of terms.

    Args:
        text: of the terms.
        session: of the message.
        size: codes of an update.
        offer: text of the offer that this client answers. Its digest is computed here, and never
            read, so that clients with different offers have different terms.
    """
    try:
        record, digest = json.loads(text), hashlib.sha256(offer.encode()).digest()
        return Terms(session, tuple(record.pop("clients")), size, offer=digest, **record)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # The cause, which may quote the text, is shown in this client's log only.
        raise ProtocolError(
            f"Expected the terms of a secure sum, got {len(text)} characters that are not."
        ) from error


def addressed(
    mechanism: UpdateMechanism, payload: bytes, session: bytes, client: int, size: int
) -> bytes:
    """Return a payload with session and client in its format, as it is sent without masks."""
    # So that a copy of it is refused in another round, and as another client's.
    assert mechanism.coding is not None  # Offer accepts only mechanisms that send codes
    codes = wire.unpack(mechanism.coding, payload, size)
    return wire.pack(upload_format(mechanism, session, client), codes)


def unaddressed(
    mechanism: UpdateMechanism, payload: bytes, session: bytes, client: int, dimension: int
) -> bytes:
    """Undo `addressed`; ValueError if the payload is damaged, or of another session or client."""
    assert mechanism.coding is not None  # as in `addressed`
    size = mechanism.size(dimension)
    codes = wire.unpack(upload_format(mechanism, session, client), payload, size)
    return wire.pack(mechanism.coding, codes, size - dimension)


def upload_format(mechanism: UpdateMechanism, session: bytes, client: int) -> Format:
    """Return the format of one client's codes in one session, sent without masks."""
    coding = mechanism.coding
    assert coding is not None  # as in `addressed`
    facts = ("upload", coding.fingerprint.hex(), session.hex(), str(client))
    return Format.from_facts(coding.levels, *facts)


def public_seed(session: bytes) -> int:
    """Return a round's seed from its session, where server and clients draw none.

    Seeds have 64 bits. No guarantee rests on them: the server chooses the session.
    """
    return int.from_bytes(hashlib.sha256(session).digest()[:8], "little")
