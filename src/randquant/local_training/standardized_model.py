"""A model that is trained on standardised values, and takes and predicts raw ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant.local_training.clients import is_in_memory
from randquant.local_training.examples import Examples, StoredExamples, converted
from randquant.local_training.models import described
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import FeatureStatistics, Standardize


class Standardized(nn.Module):
    """A model that takes raw features and predicts raw targets.

    Its state dict has the model's entries under `model.`, and buffers `lower`, `upper`, `mean` and
    `spread`, with one number for each feature; for a regression's targets also `target_lower` and
    so on.

    Args:
        model: from standardised features to predictions of standardised targets.
        statistics: that standardise them.
    """

    def __init__(self, model: nn.Module, statistics: FeatureStatistics) -> None:
        super().__init__()
        self.model = model
        columns = (*zip(*statistics.bounds, strict=True), statistics.means, statistics.spreads)
        for name, values in zip(("lower", "upper", "mean", "spread"), columns, strict=True):
            tensor = torch.tensor(values, dtype=torch.float32)
            # Buffers, so that the model is saved and moved to a device with them.
            self.register_buffer(name, tensor[: statistics.features])
            self.register_buffer(f"target_{name}", tensor[statistics.features :])

    def forward(self, features: Tensor) -> Any:
        return self.raw(self.model(self.mapped(features, "")))

    def mapped(self, values: Tensor, prefix: str = "target_") -> Tensor:
        """Clip targets, or features with `prefix=""`, to their bounds and standardise them."""
        lower, upper, mean, spread = (
            getattr(self, prefix + name).to(values.device)
            for name in ("lower", "upper", "mean", "spread")
        )
        if not len(mean):  # targets that stay as they are
            return values
        # Clipped as in the query, whose mean counts a value beyond the bounds as the bound.
        scaled = (values.clamp(lower, upper) - mean) / spread
        return scaled.to(values.dtype) if values.is_floating_point() else scaled

    def raw(self, output: Any) -> Any:
        """Convert predictions of standardised targets to units of raw ones."""
        if not len(self.target_mean):  # type: ignore[arg-type]
            return output
        output = getattr(output, "logits", output)
        return output * self.target_spread.to(output) + self.target_mean.to(output)  # type: ignore[operator]


def column_counts(problem: Problem, settings: Standardize) -> tuple[int, int]:
    """Return the numbers of features and of standardised values of an example's target.

    Raises:
        ValueError: examples are not rows of numbers in memory, there are bounds for labels, or the
            model is standardised already or has another number of outputs than of targets.
    """
    example = problem.clients.example
    features = example.features
    lazy = not problem.clients.in_memory or any(
        each is not None and not is_in_memory(each) for each in (problem.test, problem.statistics)
    )
    if not isinstance(features, Tensor) or lazy or features.dim() != 2:
        shape = described(features, lambda each: f"an example of shape {tuple(each.shape[1:])}")
        kind = "examples that are read when they are needed" if lazy else shape
        raise ValueError(
            "Expected features in memory as one table (n, features) with standardize, got "
            f"{kind}: give tensors or arrays of rows, or leave standardize out."
        )
    if not features.is_floating_point():
        raise ValueError(
            f"Expected features as floats with standardize, got {features.dtype}: convert them."
        )
    numeric = example.targets.is_floating_point() and problem.dry_run.classes is None
    if settings.target is not None and (not numeric or example.targets.dim() > 2):
        raise ValueError(
            "Expected a regression, whose targets are floats, for the target of standardize, got "
            f"{example.targets.dtype} of shape {tuple(example.targets.shape[1:])}: leave it out."
        )
    if isinstance(problem.model, Standardized):
        raise ValueError(
            "Expected a model of standardised features with standardize, got a Standardized, which "
            "takes raw ones: give the model within it, run.model.model."
        )
    targets = example.targets[0].numel() if settings.target is not None else 0
    if targets and targets != problem.dry_run.outputs:
        raise ValueError(
            "Expected one output for each number of a target, with the target of standardize, got "
            f"{problem.dry_run.outputs} for {targets}: leave target out."
        )
    return features.shape[1], targets


def client_matrices(problem: Problem, with_targets: bool) -> Iterator[np.ndarray]:
    """Yield each client's features, and targets if wanted, (n, columns) float64."""
    for source in problem.clients.sources:
        features, targets = source.take(np.arange(len(source)))
        assert isinstance(features, Tensor)
        # In float64, in which the table of statistics is computed.
        parts = [features, targets.reshape(len(targets), -1)][: 1 + with_targets]
        yield torch.cat(parts, 1).double().numpy()


def standardized(problem: Problem, statistics: FeatureStatistics) -> Problem:
    """Return the problem with standardised features and targets.

    Test targets stay raw: predictions are converted to their units, so that a loss on test data is
    in raw units.
    """
    maps = Standardized(nn.Identity(), statistics)

    # Clients, test data and public examples all through the same maps.
    def mapped(examples: Examples | None, *, targets: bool = True) -> Any:
        if not is_in_memory(examples):
            return None
        assert isinstance(examples.features, Tensor)
        features = maps.mapped(converted(examples.own(examples.features)), "")
        own_targets = converted(examples.own(examples.targets))
        return StoredExamples(features, maps.mapped(own_targets) if targets else own_targets)

    clients = replace(problem.clients, sources=tuple(map(mapped, problem.clients.sources)))
    return replace(
        problem, clients=clients, test=mapped(problem.test, targets=False), raw=maps.raw,
        statistics=mapped(problem.statistics, targets=False),
    )  # fmt: skip
