"""A client's part in a round, kept between two messages, which may reach different processes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from randquant.integrations.foreign import DamagedFile
from randquant.integrations.ledger import State
from randquant.integrations.protocol import read_terms, terms_text
from randquant.secure_sums.identities import check_directory
from randquant.secure_sums.secagg import graphs
from randquant.secure_sums.secagg.client import Client
from randquant.secure_sums.secagg.terms import ProtocolError, Terms

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.integrations.offer import Offer
    from randquant.secure_sums.helper.message import HelperTerms

JOURNAL = "randquant-helper-journal"
"""The setting that makes a member a helper: the folder of its journal."""

SUM = "randquant.sum"
"""Its record in a client's own state, which is never sent."""


@dataclass(frozen=True)
class Membership:
    """What a client has agreed to in a round.

    Attributes:
        session: of the round.
        text: of the server's offer, which is read, and certified again, where it is needed.
        client: its side of the secure sum; None without secure aggregation.
        commitment: the server's, to its part of the round's seed; empty if there is none.
        part: this client's part of the seed.
        examples: what this client counts for, whatever the offer says; None for all its data.
        helped: terms of a sum with a helper, which takes one message; None for another way.
    """

    session: bytes
    text: str
    client: Client | None = None
    commitment: bytes = b""
    part: bytes = b""
    examples: int | None = None
    helped: HelperTerms | None = None

    @property
    def terms(self) -> Terms | HelperTerms | None:
        """Terms of the secure sum; None without one."""
        return self.helped if self.client is None else self.client.terms

    @cached_property
    def offer(self) -> Offer:
        """The server's offer; ProtocolError if it is none."""
        try:
            offer = _offer(self.text)
        except ValueError as error:
            raise ProtocolError(
                "Expected an offer of this package's version, with the certificate that its "
                "channel has, got something else."
            ) from error
        try:
            return offer.for_unit(self.examples)
        except ValueError as error:
            raise ProtocolError(
                "Expected an offer that can be counted for one example, as this client counts, got "
                "one of numbers beside an update, of a survey of clients, or of another mechanism "
                "for which no distance of one example is derived."
            ) from error

    def mechanism(self, number: int, proof: bytes) -> UpdateMechanism:
        """The offered mechanism with the round's seed; ProtocolError unless the proof is valid.

        Args:
            number: this client's.
            proof: what the server revealed, if the mechanism needs a seed.
        """
        if not self.offer.drawn:
            return self.offer.mechanism
        if not self.commitment:
            raise ProtocolError(
                "Expected a seed of the coordinates or rotations that the server and this client "
                "have drawn together, got none."
            )
        seed = graphs.proved(self.session, self.commitment, number, self.part, proof)
        return self.offer.mechanism.in_round(seed)

    def remember(self, state: State) -> None:
        """Store it for the round's next message, in the place of any other round."""
        fields: dict[str, Any] = {"session": self.session, "offer": self.text}
        if self.client is not None:
            terms = self.client.terms
            fields |= {"terms": terms_text(terms), "dimension": terms.dimension}
            fields["client"] = self.client.to_bytes()
        if self.commitment:
            fields |= {"commitment": self.commitment, "part": self.part}
        fields["checksum"] = _checksum(fields)
        state[SUM] = fields

    @staticmethod
    def forget(state: State) -> None:
        """Delete what is stored of a round: deleted secrets cannot be stolen."""
        state.pop(SUM, None)

    def check_same(self, state: State) -> None:
        """Raise ProtocolError if this client has agreed to another offer in the same round."""
        agreed = state.get(SUM, {})
        if agreed.get("session") == self.session and agreed["offer"] != self.text:
            raise ProtocolError("Expected one offer in a round, got another in the same.")

    @classmethod
    def recall(cls, state: State, session: bytes, files: Mapping[str, Any]) -> Membership:
        """Undo `remember`; ProtocolError if this client has no part in that round."""
        saved = dict(state.get(SUM, {}))
        checksum = saved.pop("checksum", None)
        if saved and checksum != _checksum(saved):
            raise DamagedFile("Expected this client's part in a sum as it was kept, got another.")
        if saved.get("session") != session:
            raise ProtocolError(
                "Expected a message of the sum that this client is in, got another."
            )
        client = None
        if "client" in saved:
            terms = read_terms(saved["terms"], session, saved["dimension"])
            client = Client.from_bytes(terms, saved["client"], *identity(files))
        parts = saved.get("commitment", b""), saved.get("part", b"")
        return cls(session, saved["offer"], client, *parts)


@functools.lru_cache(maxsize=8)  # an offer's text, with certificates, is made once
def _offer(text: str) -> Offer:
    from randquant.integrations.offer import Offer

    return Offer.from_text(text)


def _checksum(fields: Mapping[str, object]) -> bytes:
    return hashlib.sha256(repr(sorted(fields.items())).encode()).digest()


def identity(
    files: Mapping[str, Any],
) -> tuple[Ed25519PrivateKey | None, dict[int, bytes] | None]:
    """This client's key and all clients' public keys, from the files that its operator names."""
    key = directory = None
    try:
        if "randquant-identity" in files:
            key = load_pem_private_key(Path(str(files["randquant-identity"])).read_bytes(), None)
            if not isinstance(key, Ed25519PrivateKey):
                raise ValueError("Expected an Ed25519 key in randquant-identity, got another.")
        if "randquant-directory" in files:
            directory = _directory(Path(str(files["randquant-directory"])).read_text())
    except (AttributeError, RecursionError, TypeError, ValueError) as error:
        raise DamagedFile(
            f"Expected an own key and the directory of all clients, but: {error}"
        ) from error
    return key, directory


def _directory(text: str) -> dict[int, bytes]:
    """Clients' identities, from JSON; ValueError if a number or an identity is there twice."""
    record = json.loads(text, object_pairs_hook=_once)
    directory = {int(client): bytes.fromhex(public) for client, public in record.items()}
    if list(map(str, directory)) != list(record):
        raise ValueError("Expected whole numbers of clients, each once, got others.")
    check_directory(directory)
    return directory


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError("Expected each client once, got one twice.")
    return record
