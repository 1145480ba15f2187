"""The best channel for an objective under a constraint."""

from randquant.mechanisms.design.constraints import (
    Constraint,
    Fisher,
    Metric,
    Pure,
    Renyi,
    constraint_of,
)
from randquant.mechanisms.design.solver import Design, least_epsilon, optimal

__all__ = [
    "Constraint",
    "Design",
    "Fisher",
    "Metric",
    "Pure",
    "Renyi",
    "constraint_of",
    "least_epsilon",
    "optimal",
]
