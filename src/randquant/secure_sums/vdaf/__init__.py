"""Prio3: several parties check on shares that vectors are valid, and none of them sees a vector.

It follows draft-irtf-cfrg-vdaf-20, whose names and order this package keeps. `docs/theory/vdaf.md`
says what is proven and what is not.
"""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

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
