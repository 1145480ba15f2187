"""Which mechanism and parameters meet a target, ranked by error."""

from randquant.planning.plan.planner import plan
from randquant.planning.plan.record import Candidate, Plan

__all__ = ["Candidate", "Plan", "plan"]
