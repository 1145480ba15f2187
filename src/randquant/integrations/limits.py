"""What a client demands of a server's offer, whatever engine brings it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.integrations import trained
from randquant.integrations.accountant import RoundEvent, RunAccountant
from randquant.integrations.ledger import OWN
from randquant.integrations.trained import Arrays, Buffers, Layout, Patterns
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust
from randquant.secure_sums.identities import check_identity
from randquant.secure_sums.secagg.terms import TWO_THIRDS, ProtocolError, Terms

HELPER = re.compile("[0-9a-fA-F]{64}")

if TYPE_CHECKING:
    from randquant.integrations.offer import Offer
    from randquant.secure_sums.helper.message import HelperTerms


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
    threshold: float = TWO_THIRDS
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
        if terms is not None and mechanism.in_round(0).coding is None:
            raise ProtocolError("Expected no secure sum of an offer that sends no codes, got one.")
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
