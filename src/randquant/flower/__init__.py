"""Flower with private updates: `QuantizeMod` on the client, `QuantizedStrategy` on the server.

What is sent, and who can learn what: `docs/flower.md`.
"""

from randquant.flower.accountant import RoundEvent, RunAccountant
from randquant.flower.mod import QuantizeMod
from randquant.flower.offer import Offer
from randquant.flower.strategy import QuantizedStrategy

__all__ = ["Offer", "QuantizeMod", "QuantizedStrategy", "RoundEvent", "RunAccountant"]
