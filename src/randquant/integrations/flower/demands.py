"""What a client demands of a secure sum, and what it can know of the others in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from randquant.aggregation.secagg.terms import ProtocolError, Terms

if TYPE_CHECKING:
    from randquant.integrations.flower.offer import Offer


def check_terms(offer: Offer, terms: Terms, colluders: int, all_neighbours: bool) -> None:
    """Raise ProtocolError unless the sum hides as many clients as the offer assumes.

    Args:
        offer: to all clients of the sum.
        terms: of the sum.
        colluders: how many of the others may tell the server all they know.
        all_neighbours: whether all others must share masks with this client.
    """
    others, counted = len(terms.clients) - 1, terms.least - colluders
    if offer.mechanism.cohort > counted:
        raise ProtocolError(
            f"Expected an offer for a cohort of at most {counted}, the clients of every sum "
            f"without those that may collude, got {offer.mechanism.cohort}."
        )
    if terms.bits < offer.bits(len(terms.clients)):
        raise ProtocolError(
            f"Expected a modulus of {offer.bits(len(terms.clients))} bits or more for a sum "
            f"over {len(terms.clients)} clients, got {terms.bits}: it would wrap around."
        )
    if all_neighbours and terms.neighbours < others:
        raise ProtocolError(
            f"Expected all {others} others as neighbours, got {terms.neighbours}: with fewer, "
            "a malicious server can learn sums of a few clients."
        )
    if 2 * terms.threshold - terms.neighbours <= colluders:
        raise ProtocolError(
            f"Expected a threshold that {colluders} colluders cannot get around, got "
            f"{terms.threshold} of {terms.neighbours} neighbours."
        )


def whether_known(terms: Terms | None, directory: bool) -> str:
    """What a client can know of the others in a sum, to follow what its epsilon assumes of them.

    Args:
        terms: of the sum; None without one.
        directory: whether the client has the public keys of all clients.
    """
    if terms is None:
        return ""
    if not directory:
        return "; without a directory this client cannot know that the other clients exist"
    if terms.neighbours < len(terms.clients) - 1:
        return "; it shares masks with some of the others only, and does not know the rest"
    return "; its directory names all others in this sum"
