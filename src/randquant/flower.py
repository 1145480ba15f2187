"""The Flower adapter under its short name: see `randquant.integrations.flower`."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily
from randquant.integrations.flower import installed  # noqa: F401 - before what needs it

if TYPE_CHECKING:
    from randquant.integrations.flower.accountant import RoundEvent, RunAccountant
    from randquant.integrations.flower.mod import QuantizeMod
    from randquant.integrations.flower.offer import Offer
    from randquant.integrations.flower.strategy import QuantizedStrategy

__all__ = ["Offer", "QuantizeMod", "QuantizedStrategy", "RoundEvent", "RunAccountant"]

lazily(__name__)
