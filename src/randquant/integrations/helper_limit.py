"""A helper's own limit of each client's epsilon, by the offers that servers bring."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

from randquant._internal import validate
from randquant.integrations.accountant import RoundEvent, RunAccountant
from randquant.integrations.ledger import OWN
from randquant.integrations.offer import Offer
from randquant.secure_sums.helper.helper import Affords, Check
from randquant.secure_sums.helper.terms import HelperTerms


def within(epsilon: float, delta: float = 1e-5, examples: int | None = None) -> Affords:
    """What a helper allows with `HelperLimits(affords=within(8.0))`.

    Args:
        epsilon: limit of a client's epsilon over all sums that this helper has answered; infinity
            only checks each offer. All sums of a journal must have been answered so.
        delta: in (0, 1).
        examples: the limit is for one of so many examples of a client, as the operator says and not
            as a server's offer does; None for all data of a client.

    Returns:
        From the terms of a sum, and how often a client is in sums of each offer with it, to whether
        it may be. An offer that needs more clients than the terms guarantee is refused, as is one
        that is not as certified.

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
            try:
                offer = Offer.from_text(text).for_unit(examples)
            except ValueError:  # also where there is no bound for one example
                return False
            now = hashlib.sha256(text.encode()).digest() == terms.offer
            if now and (offer.mechanism.cohort > terms.least or offer.size != terms.dimension):
                return False
            account.compose(RoundEvent(offer, frozenset({OWN})), count)
        check()
        return epsilon == math.inf or account.get_epsilon(delta) <= epsilon

    return affords
