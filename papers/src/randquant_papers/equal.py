"""Channels at an equal guarantee: they cost a run at most as much as a reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from randquant import Channel, account, certify
from randquant.aggregation import update_mechanism
from randquant.mechanisms import build
from randquant.privacy import round_up
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import sets
from randquant_papers.data.datasets import Dataset
from randquant_papers.problems import build as build_model

LARGEST = 24.0
"""Most nats per coordinate that are tried: beyond, a designed channel gains nothing, and its
programme has coefficients that the solver refuses."""


def optimum(
    reference: PaperConfig, values: Sequence[float] | None = None, inputs: int = 17
) -> PaperConfig:
    """The run whose channel has the least mean squared error at the reference's guarantee.

    Args:
        reference: the run to compare with; it uses a channel.
        values: what the codes decode to, in the units of clip; by default the reference's.
        inputs: vertices of the channel.

    Returns:
        The same run with mechanism `optimal`, whose pure epsilon is the largest of ten bisections
        up to one and a half times the reference's (LARGEST at most) with which the whole run's
        certified epsilon is not above the reference's.

    Raises:
        ValueError: the reference has no finite guarantee, or no unbiased channel on these values
            costs as little.
    """
    compared, limit = channel(reference), epsilon(reference)
    pure = certify(compared).epsilon.upper
    if math.isinf(pure):
        raise ValueError(
            f"Expected a reference with a finite guarantee, got {reference.mechanism} with "
            f"{dict(reference.parameters)}: every channel has at most an infinite epsilon."
        )
    levels = [float(value) for value in (compared.values if values is None else values)]
    low, high, equal_run = 0.0, min(1.5 * pure, LARGEST), None
    for _ in range(10):
        parameters = {
            "clip": float(compared.clip), "epsilon": (low + high) / 2, "values": levels,
            "objective": "mse", "inputs": inputs,
        }  # fmt: skip
        tried = with_mechanism(reference, "optimal", parameters)
        cost = _cost(tried)
        if cost <= limit:
            equal_run = tried
        if cost <= limit or math.isnan(cost):
            low = parameters["epsilon"]
        else:
            high = parameters["epsilon"]
    if equal_run is None:
        raise ValueError(
            f"Expected values with an unbiased channel that costs a run {round_up(limit)} nats or "
            "less, got others: move the outermost values outward."
        )
    return equal_run


def epsilon(config: PaperConfig) -> float:
    """Certified epsilon for the participations that one client may have, at the run's delta.

    Without a cap these are twice the average number: few clients have more.
    """
    mechanism = update_mechanism(config.mechanism, config.parameters)
    most = config.privacy.max_participations
    if most is None:
        most = math.ceil(2 * config.rounds * config.cohort / config.task.population)
    release = mechanism.release(dimension(config), most)
    assert release is not None  # the mechanism protects
    return account([release], config.delta, quick=True).epsilon


def dimension(config: PaperConfig) -> int:
    """Coordinates of an update of a run."""
    data = dataset(config)
    model = build_model(config.data.model, data.train_features.shape[1:], data.classes, 0)
    return sum(parameter.numel() for parameter in model.parameters())


def dataset(config: PaperConfig) -> Dataset:
    """The data set of a run."""
    return sets.load(config.data.dataset, config.data.data_dir or None)


def channel(config: PaperConfig) -> Channel:
    """The channel that every coordinate of a run is sent through."""
    return build(config.mechanism, config.parameters)


def with_mechanism(config: PaperConfig, mechanism: str, parameters: dict[str, Any]) -> PaperConfig:
    """The same run with another mechanism."""
    return config.changed(mechanism=mechanism, parameters=parameters)


def _cost(config: PaperConfig) -> float:
    """Like `epsilon`; NaN if no unbiased channel has so small a pure epsilon."""
    try:
        channel(config)
    except ValueError:
        return math.nan
    return epsilon(config)
