"""A model that is trained on standardised values, and takes and predicts raw ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant.local_training.examples import Examples, StoredExamples
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
    table = problem.clients.table
    features = None if table is None else table.features
    lazy = any(e is not None and not isinstance(e, StoredExamples)
               for e in (problem.test, problem.statistics))  # fmt: skip
    if not isinstance(features, Tensor) or lazy or features.dim() != 2 or table is None:
        kind = "examples of a Dataset"
        if table is not None and not lazy:
            kind = described(table.features, lambda tensor: f"shape {tuple(tensor.shape)}")
        raise ValueError(
            "Expected features in memory as one table (n, features) with standardize, got "
            f"{kind}: give tensors or arrays of rows, or leave standardize out."
        )
    if not features.is_floating_point():
        raise ValueError(
            f"Expected features as floats with standardize, got {features.dtype}: convert them."
        )
    numeric = table.targets.is_floating_point() and problem.dry_run.classes is None
    if settings.target is not None and (not numeric or table.targets.dim() > 2):
        raise ValueError(
            "Expected a regression, whose targets are floats, for the target of standardize, got "
            f"targets {tuple(table.targets.shape)} in {table.targets.dtype}: leave target out."
        )
    if isinstance(problem.model, Standardized):
        raise ValueError(
            "Expected a model of standardised features with standardize, got a Standardized, which "
            "takes raw ones: give the model within it, run.model.model."
        )
    targets = int(table.targets[0].numel()) if settings.target is not None else 0
    if targets and targets != problem.dry_run.outputs:
        raise ValueError(
            "Expected one output for each number of a target, with the target of standardize, got "
            f"{problem.dry_run.outputs} for {targets}: leave target out."
        )
    return features.shape[1], targets


def client_matrices(problem: Problem, with_targets: bool) -> list[np.ndarray]:
    """Return each client's features, and targets if wanted, (n, columns) float64."""
    table = problem.clients.table
    assert table is not None
    assert isinstance(table.features, Tensor)
    # In float64, in which the table of statistics is computed.
    parts = [table.features, table.targets.reshape(len(table), -1)][: 1 + with_targets]
    everything = torch.cat(parts, 1).double().numpy()
    return [everything[places] for places in problem.clients.places]


def standardized(problem: Problem, statistics: FeatureStatistics) -> Problem:
    """Return the problem with standardised features and targets.

    Test targets stay raw: predictions are converted to their units, so that a loss on test data is
    in raw units.
    """
    maps = Standardized(nn.Identity(), statistics)

    # Clients, test data and public examples all through the same maps.
    def mapped(examples: Examples | None, *, targets: bool = True) -> Any:
        if not isinstance(examples, StoredExamples):
            return None
        assert isinstance(examples.features, Tensor)
        mapped_targets = maps.mapped(examples.targets) if targets else examples.targets
        return StoredExamples(maps.mapped(examples.features, ""), mapped_targets)

    clients = replace(problem.clients, table=mapped(problem.clients.table))
    return replace(
        problem, clients=clients, test=mapped(problem.test, targets=False), raw=maps.raw,
        statistics=mapped(problem.statistics, targets=False),
    )  # fmt: skip
