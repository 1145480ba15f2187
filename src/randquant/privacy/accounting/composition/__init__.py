"""What many releases of one channel reveal together."""

from randquant.privacy.accounting.composition.compose import Composition, compose
from randquant.privacy.accounting.composition.envelope import dominating_pair

__all__ = [
    "Composition",
    "compose",
    "dominating_pair",
]
