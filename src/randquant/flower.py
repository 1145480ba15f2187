"""The Flower adapter under its short name: see `randquant.integrations.flower`."""

from randquant.integrations.flower import (
    Offer,
    QuantizedStrategy,
    QuantizeMod,
    RoundEvent,
    RunAccountant,
)

__all__ = ["Offer", "QuantizeMod", "QuantizedStrategy", "RoundEvent", "RunAccountant"]
