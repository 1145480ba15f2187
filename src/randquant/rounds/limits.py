"""What a client demands of a server's offer, whatever engine brings it."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust
from randquant.rounds import trained
from randquant.rounds.accountant import RoundEvent, RunAccountant
from randquant.rounds.foreign import DamagedFile
from randquant.rounds.ledger import OWN, State
from randquant.rounds.protocol import read_terms, terms_text
from randquant.rounds.trained import Arrays, Buffers, Layout, Patterns
from randquant.secure_sums.identities import check_directory, check_identity
from randquant.secure_sums.secagg import graphs
from randquant.secure_sums.secagg.client import Client
from randquant.secure_sums.secagg.terms import DEFAULT_THRESHOLD_SHARE, ProtocolError, Terms

if TYPE_CHECKING:
    from randquant.aggregation.mechanism import UpdateMechanism
    from randquant.rounds.offer import Offer
    from randquant.secure_sums.helper.message import HelperTerms


HELPER = re.compile("[0-9a-fA-F]{64}")


@dataclass(frozen=True)
class ClientLimits:
    """What a client allows servers.

    Args:
        epsilon: limit of this client's epsilon at `delta`, by a proven bound that it computes
            itself from the offered channel. It counts its own answers, and refuses any answer that
            would exceed the limit. Infinity sets no limit.
        delta: in (0, 1).
        neighboring: what the guarantee hides.
        trust: `local` refuses offers that need secure aggregation.
        all_neighbours: refuse sums in which this client does not share masks with all others.
            Without it a malicious server can learn sums of a few clients
            (`docs/secure-aggregation.md`); one that follows the protocol cannot.
        colluders: how many of the other clients in a sum may tell the server all they know: refuse
            offers that need the noise of more than `least` minus this number, and sums whose
            threshold this number of clients could get around.
        threshold: least fraction of a client's neighbours that must answer to remove its mask; no
            server can ask for less.
        parts, frozen: patterns of the names of arrays, as `randquant.Local` takes them: refuse
            offers to train others than these. None accepts the offer's.
        buffers: what is done about running statistics: refuse offers that say something else. None
            accepts the offer's.
        epsilon_alone: limit of what epsilon would be if all other clients were invented by the
            server, or told it all they know: of this client's codes alone. Infinity sets no limit.
        helper: public identity, 64 hexadecimal digits, of the helper that this client trusts not to
            collude with the server: refuse sums with another one. None refuses all of them.
    """

    epsilon: float
    delta: float = 1e-5
    neighboring: Neighboring = "replace_one"
    trust: Trust = "aggregate"
    all_neighbours: bool = True
    colluders: int = 0
    threshold: float = DEFAULT_THRESHOLD_SHARE
    parts: Patterns = None
    frozen: Patterns = None
    buffers: Buffers | None = None
    epsilon_alone: float = math.inf
    helper: str | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        for name in ("epsilon", "epsilon_alone"):
            if getattr(self, name) != math.inf:
                validate.real(name, getattr(self, name), above=0)
        validate.real("delta", self.delta, above=0, below=1)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)
        validate.choice("trust", self.trust, ("local", "aggregate"))
        validate.whole("colluders", self.colluders, low=0)
        validate.real("threshold", self.threshold, above=0, high=1)
        if self.helper is not None and not HELPER.fullmatch(str(self.helper)):
            raise ValueError(
                "Expected a helper's identity in 64 hexadecimal digits, as randquant helper keygen "
                f"prints it, got {validate.shown(self.helper)}."
            )
        if self.helper is not None:
            check_identity(bytes.fromhex(self.helper))
        if self.buffers is not None:
            validate.choice("buffers", self.buffers, trained.BUFFERS)

    def of_node(self, config: Mapping[str, Any]) -> ClientLimits:
        """These limits, or those that the client's operator has set in their place."""
        own: dict[str, Any] = {}
        for name in ("epsilon", "epsilon-alone", "delta", "threshold"):
            if (value := config.get(f"randquant-{name}")) is not None:
                own[name.replace("-", "_")] = float(value)
        if (value := config.get("randquant-all-neighbours")) is not None:
            own["all_neighbours"] = value not in (False, "false")
        if (value := config.get("randquant-helper")) is not None:
            own["helper"] = str(value)
        return replace(self, **own) if own else self

    @property
    def of_helper(self) -> bytes:
        """The trusted helper's identity, 32 bytes; ProtocolError if there is none."""
        if self.helper is None:
            raise ProtocolError(
                "Expected a sum without a helper, as this client trusts none, got one with a "
                "helper."
            )
        return bytes.fromhex(self.helper)

    def accountant(self) -> RunAccountant:
        """An empty account with this limit."""
        return RunAccountant(self.delta, self.neighboring, self.epsilon)

    def check_offer(
        self, offer: Offer, terms: Terms | HelperTerms | None, accountant: RunAccountant
    ) -> None:
        """Raise ProtocolError unless this client agrees to an offer, and can afford it.

        Args:
            offer: the server's.
            terms: of the secure sum, among clients or with a helper; None without one.
            accountant: this client's earlier answers. After a refusal it is of no use.
        """
        mechanism = offer.mechanism
        if terms is None and mechanism.trust != "local":
            raise ProtocolError("Expected secure aggregation, which the offer needs, got none.")
        if self.trust == "local" and mechanism.trust != "local":
            raise ProtocolError("Expected an offer of local trust, as this client demands.")
        if terms is not None:
            self._check_terms(offer, terms)
        self._check_epsilon(RoundEvent(offer, frozenset({OWN})), accountant)

    def _check_epsilon(self, event: RoundEvent, accountant: RunAccountant) -> None:
        """Raise ProtocolError if an answer would exceed a limit."""
        limits = [(accountant.max_epsilon, False, "")]
        if self.epsilon_alone != math.inf:
            limits.append((self.epsilon_alone, True, " if all other clients are invented"))
        for most, alone, when in limits:
            if accountant.would_exceed(event, most, alone=alone):
                accountant.compose(event)
                got = accountant.get_epsilon(accountant.delta, alone=alone)
                raise ProtocolError(
                    f"Expected an offer within epsilon {most}, this client's limit{when}, got "
                    f"{_shown(got)} with all earlier answers, at delta {accountant.delta}."
                )

    def _check_terms(self, offer: Offer, terms: Terms | HelperTerms) -> None:
        """Raise ProtocolError unless a sum hides as many clients as the offer assumes."""
        counted = terms.least - self.colluders
        clients = len(terms.clients) if isinstance(terms, Terms) else terms.cohort
        if offer.mechanism.cohort > counted:
            raise ProtocolError(
                f"Expected an offer for a cohort of at most {counted}, the clients of every sum "
                f"without those that may collude, got {offer.mechanism.cohort}."
            )
        if terms.bits < offer.bits(clients):
            raise ProtocolError(
                f"Expected a modulus of {offer.bits(clients)} bits or more for a sum over "
                f"{clients} clients, got {terms.bits}: it would wrap around."
            )
        if isinstance(terms, Terms):
            self._check_neighbours(terms)
        else:
            _check_largest(offer, terms)
            terms.key.check(self.of_helper)

    def _check_neighbours(self, terms: Terms) -> None:
        """Raise ProtocolError unless the other clients in a sum hide this one."""
        others = len(terms.clients) - 1
        if self.all_neighbours and terms.neighbours < others:
            raise ProtocolError(
                f"Expected all {others} others as neighbours, got {terms.neighbours}: with fewer, "
                "a malicious server can learn sums of a few clients."
            )
        if 2 * terms.threshold - terms.neighbours <= self.colluders:
            raise ProtocolError(
                f"Expected a threshold that {self.colluders} colluders cannot get around, got "
                f"{terms.threshold} of {terms.neighbours} neighbours."
            )

    def layout(self, offer: Offer, model: Arrays) -> Layout:
        """Which arrays of a model are trained; ProtocolError unless the model matches the offer."""
        try:
            layout = Layout.of(model, offer.parts or None)
        except trained.UnknownPart as error:
            raise ProtocolError(
                "Expected an offer to train arrays of floating-point numbers that the model has, "
                "other than running statistics, got another."
            ) from error
        own = layout.parts
        if self.parts is not None or self.frozen is not None:
            own = trained.parts_of(model, self.parts, self.frozen)
        if layout.parts != own:
            raise ProtocolError(
                f"Expected an offer to train the {len(own)} arrays that this client trains, got "
                f"one of {len(layout.parts)} or of others."
            )
        if layout.dimension != offer.of_model:
            raise ProtocolError(
                f"Expected {offer.of_model} coordinates as offered, got {layout.dimension}."
            )
        if offer.buffers != (self.buffers or offer.buffers):
            raise ProtocolError(
                f"Expected an offer with buffers={self.buffers!r}, as this client demands, got "
                f"{offer.buffers!r}."
            )
        if layout.running and offer.buffers == "refuse":
            raise ProtocolError(
                "Expected a model without running statistics, as the offer says, got one with "
                f"{len(layout.running)}: {trained.WAY_OUT}."
            )
        if offer.mechanism.from_zero and any(model[name].any() for name in layout.parts):
            # Differences from other numbers are rounded, and rounding may set records apart.
            raise ProtocolError("Expected arrays of zeros to answer a survey, got others.")
        if not layout.finite(model):
            raise ProtocolError("Expected finite numbers in the model, got others.")
        return layout


def _check_largest(offer: Offer, terms: HelperTerms) -> None:
    """Raise ProtocolError unless proofs, if terms ask for them, are of all codes of the offer.

    With a smaller largest code a client would fail exactly where its codes are larger, and so tell.
    """
    if terms.largest not in (0, offer.largest):
        raise ProtocolError(
            f"Expected proofs of codes up to {offer.largest}, the offer's largest, or none, got "
            f"terms with {terms.largest}."
        )


def whether_known(terms: Terms | HelperTerms | None, directory: bool) -> str:
    """What a client can know of the others in a sum, to follow what its epsilon assumes of them.

    Args:
        terms: of the sum; None without one.
        directory: whether the client has the public keys of all clients.
    """
    if terms is None:
        return ""
    if not isinstance(terms, Terms):
        return (
            "; it counts on its helper to know all clients in a sum, and not to collude with the "
            "server"
        )
    if not directory:
        return "; without a directory this client cannot know that the other clients exist"
    if terms.neighbours < len(terms.clients) - 1:
        return "; it shares masks with some of the others only, and does not know the rest"
    return "; its directory names all others in this sum"


def _shown(value: float) -> str:
    return "infinity" if math.isinf(value) else round_up(value)


# A client's part in a round, kept between two messages, which may reach different processes.

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
                "Expected a seed of the coordinates that the server and this client "
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
    from randquant.rounds.offer import Offer

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
                raise ValueError(
                    f"Expected an Ed25519 key in randquant-identity, got {type(key).__name__}."
                )
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
        raise ValueError(f"Expected whole numbers of clients, each once, got {list(record)[:5]}.")
    check_directory(directory)
    return directory


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(record := dict(pairs)) < len(pairs):
        raise ValueError(
            f"Expected each client once, got {len(pairs)} entries for {len(record)} clients."
        )
    return record
