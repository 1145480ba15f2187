"""Secure aggregation: the server learns the sum of clients' vectors modulo 2**bits, and no more.

SecAgg+ of Bell, Bonawitz, Gascón, Lepoint and Raykova 2020, with what Bonawitz et al. 2017 add
against a server that lies about who is left, and shares that can be checked against clients that
deal or reveal wrong ones. Threat model: `docs/secure-aggregation.md`.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.secure_sums.secagg.client import Client
    from randquant.secure_sums.secagg.server import SumServer
    from randquant.secure_sums.terms import Losses, ProtocolError, Terms

__all__ = ["Client", "Losses", "ProtocolError", "SumServer", "Terms"]

lazily(__name__)
