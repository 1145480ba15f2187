"""Flower with private updates: `QuantizeMod` on the client, `QuantizedStrategy` on the server.

What is sent, and who can learn what: `docs/flower.md`.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily
from randquant.integrations.flower import messages

if TYPE_CHECKING:
    from randquant.integrations.flower.dp_accountant import GaussianAccountant
    from randquant.integrations.flower.mod import QuantizeMod
    from randquant.integrations.flower.simulation import engine
    from randquant.integrations.flower.strategy import ParameterFree, QuantizedStrategy
    from randquant.rounds.accountant import RoundEvent, RunAccountant
    from randquant.rounds.helper_service import TLS, RemoteHelper
    from randquant.rounds.limits import ClientLimits
    from randquant.rounds.offer import Offer
    from randquant.rounds.sums import AmongClients, WithHelper

__all__ = [
    "TLS",
    "AmongClients",
    "ClientLimits",
    "GaussianAccountant",
    "Offer",
    "ParameterFree",
    "QuantizeMod",
    "QuantizedStrategy",
    "RemoteHelper",
    "RoundEvent",
    "RunAccountant",
    "WithHelper",
    "engine",
]

lazily(__name__)
