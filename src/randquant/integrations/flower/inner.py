"""Which strategies can be wrapped: those that need only the mean of updates."""

from __future__ import annotations

from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Strategy

from randquant._internal import validate

EXAMPLES = "num-examples"
"""Flower's name for the weight of a client."""

LOOK_AT_EACH = (
    "Bulyan", "FedMedian", "FedTrimmedAvg", "FedXgbBagging", "FedXgbCyclic", "Krum", "MultiKrum",
    "QFedAvg",
)  # fmt: skip
"""Strategies that need every client's update, which a private mean hides."""


def check_inner(strategy: Strategy, wrapper: type[Strategy]) -> None:
    """Refuse a strategy that needs more than a mean, or has privacy of its own, or is a wrapper."""
    validate.kind("strategy", strategy, Strategy)
    refused = tuple(getattr(strategies, name) for name in LOOK_AT_EACH if hasattr(strategies, name))
    name = type(strategy).__name__
    if isinstance(strategy, refused):
        raise ValueError(
            f"Expected a strategy that needs only the mean of updates, got {name}: it needs every "
            "update, which the server does not see."
        )
    weighted = getattr(strategy, "weighted_by_key", EXAMPLES)
    if weighted != EXAMPLES:
        raise ValueError(
            f"Expected a strategy in which clients have equal weights, got {name} weighted by "
            f"{weighted!r}: a client's weight would tell the server how much data it has, and no "
            "epsilon covers that. Leave weighted_by_key out: all clients count alike."
        )
    if isinstance(strategy, wrapper) or name.startswith("DifferentialPrivacy"):
        raise ValueError(f"Expected a strategy without privacy of its own to wrap, got {name}.")
