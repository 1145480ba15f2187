"""Which mechanism and parameters meet a target, ranked by error."""

from randquant.planning.plan.plan import ALIKE, plan

__all__ = [
    "ALIKE",
    "plan",
]
