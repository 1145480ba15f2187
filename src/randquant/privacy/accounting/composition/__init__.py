"""What many releases of one channel reveal together."""

from randquant.privacy.accounting.composition.envelope import dominating_pair
from randquant.privacy.accounting.composition.rule import Composition, compose

__all__ = [
    "Composition",
    "compose",
    "dominating_pair",
]
