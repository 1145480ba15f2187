"""Prio3: vectors whose validity several parties check on shares, while none of them sees them.

After draft-irtf-cfrg-vdaf-20, whose names and order this package keeps. What is proven, and what is
not: `docs/theory/vdaf.md`.
"""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.secure_sums.vdaf.circuits import (
        Count,
        Histogram,
        MultihotCountVec,
        Sum,
        SumVec,
    )
    from randquant.secure_sums.vdaf.prio3 import Prio3

__all__ = ["Count", "Histogram", "MultihotCountVec", "Prio3", "Sum", "SumVec"]

lazily(__name__)
