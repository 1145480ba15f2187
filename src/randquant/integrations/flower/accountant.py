"""What a run on Flower has cost its clients so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from randquant.integrations.accountant import Accountant, RoundEvent

if TYPE_CHECKING:
    from randquant.integrations.flower.offer import Offer

__all__ = ["RoundEvent", "RunAccountant"]


class RunAccountant(Accountant):
    """The `Accountant` of answers to Flower's offers.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.vector import VectorMechanism
        >>> from randquant.flower import Offer
        >>> channel = rq.stochastic_rounding(clip=0.05, levels=2, margin=0.5)
        >>> offer = Offer(VectorMechanism(channel, 1.0, "aggregate", 40), 650)
        >>> accountant = RunAccountant(delta=1e-5, max_epsilon=8.0)
        >>> accountant.compose(RoundEvent(offer, frozenset({1, 2})))
        >>> accountant.compose(RoundEvent(offer, frozenset({2, 3})))
        >>> print(accountant.get_privacy_spent())
        epsilon <= 3.4999 at delta = 1e-05 (replace_one, aggregate trust)
    """

    @staticmethod
    def read(text: str) -> Offer:
        """See `Accountant`."""
        from randquant.integrations.flower.offer import Offer

        return Offer.from_text(text, former=True)
