"""A helper's own limit of each client's epsilon, by the offers that servers bring."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from randquant._internal import validate
from randquant.integrations.accountant import RoundEvent, RunAccountant
from randquant.integrations.ledger import OWN
from randquant.integrations.offer import Offer
from randquant.secure_sums.helper.helper import Affords, Check
from randquant.secure_sums.helper.message import HelperTerms
from randquant.secure_sums.secagg.terms import ProtocolError

CERTIFICATE_BYTES = 256
"""By how many a certificate may differ that another machine has computed."""


def within(epsilon: float, delta: float = 1e-5, examples: int | None = None) -> Affords:
    """What a helper allows with `HelperLimits(affords=within(8.0))`.

    Args:
        epsilon: limit of a client's epsilon over all sums that this helper has answered; infinity
            only checks each offer. All sums of a journal must have been answered so.
        delta: in (0, 1).
        examples: the limit is for one of so many examples of a client, as the operator says and not
            as a server's offer does; None for all data of a client. It holds where clients clip
            each example's gradient at the offer's clip norm or less, which a helper cannot see and
            a site's `QuantizeFilter(clip_norm=)` sees to.

    Returns:
        From the terms of a sum, and how often a client is in sums of each offer with it, to whether
        it may be. An offer that needs more clients than the terms guarantee is refused, as is one
        that is not as certified, or not in the text that this package writes.

    Raises:
        TypeError, ValueError: an argument is out of bounds.
    """
    if epsilon != math.inf:
        epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, above=0, below=1)
    if examples is not None:
        examples = validate.whole("examples", examples, low=1)

    def affords(terms: HelperTerms, sums: Mapping[str, int], check: Check) -> bool:
        account = RunAccountant(delta)
        for text, count in sums.items():
            check()
            now = hashlib.sha256(text.encode()).digest() == terms.offer
            try:
                offer = Offer.from_text(text)
                if now:
                    _check_written(offer, text)
                offer = offer.for_unit(examples)
            except ValueError as error:  # also where there is no bound for one example
                if now:
                    raise ProtocolError(str(error)) from None
                return False
            if now and (offer.mechanism.cohort > terms.least or offer.size != terms.dimension):
                return False
            account.compose(RoundEvent(offer, frozenset({OWN})), count)
        check()
        return epsilon == math.inf or account.get_epsilon(delta) <= epsilon

    return affords


def _check_written(offer: Offer, text: str) -> None:
    """Raise ProtocolError unless a text is as this package writes it: the journal keeps it."""
    own, got = json.loads(offer.to_text()), json.loads(text)
    same = json.dumps(got, sort_keys=True) == text
    same = same and abs(len(text) - len(offer.to_text())) <= CERTIFICATE_BYTES
    for record in (own, got):
        record.get("channel", {}).pop("certificate", None)
    if not same or json.dumps(own, sort_keys=True) != json.dumps(got, sort_keys=True):
        raise ProtocolError(
            "Expected an offer in the text that this package writes, got another with "
            f"{len(text)} characters: send Offer.to_text()."
        )
