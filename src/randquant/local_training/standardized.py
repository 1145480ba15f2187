"""A model that is trained on standardised features and targets, and used on raw ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from randquant.local_training.examples import Examples, StoredExamples
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import FeatureStatistics, Standardize


class Standardized(nn.Module):
    """A model within the maps of its features and predictions.

    Its state dict has the model's under `model.`, and in buffers, one number for each feature,
    `lower`, `upper`, `mean` and `spread`; of a regression's targets the same after `target_`.

    Args:
        model: from features of mean 0 and deviation 1 to predictions of such targets.
        figures: that they are mapped by.
    """

    def __init__(self, model: nn.Module, figures: FeatureStatistics) -> None:
        super().__init__()
        self.model = model
        own = (*zip(*figures.bounds, strict=True), figures.means, figures.spreads)
        for name, values in zip(("lower", "upper", "mean", "spread"), own, strict=True):
            tensor = torch.tensor(values, dtype=torch.float32)
            self.register_buffer(name, tensor[: figures.features])
            self.register_buffer(f"target_{name}", tensor[figures.features :])

    def forward(self, features: Tensor) -> Any:
        """Predict in units of raw targets, from raw features."""
        return self.raw(self.model(self.mapped(features, "")))

    def mapped(self, values: Tensor, of: str = "target_") -> Tensor:
        """Targets, or features (`of=""`), clipped to their bounds and standardised."""
        lower, upper, mean, spread = (
            getattr(self, of + name).to(values.device)
            for name in ("lower", "upper", "mean", "spread")
        )
        if not len(mean):
            return values
        scaled = (values.clamp(lower, upper) - mean) / spread
        return scaled.to(values.dtype) if values.is_floating_point() else scaled

    def raw(self, output: Any) -> Any:
        """Predictions of standardised targets in the units of raw ones."""
        if not len(self.target_mean):  # type: ignore[arg-type]
            return output
        output = getattr(output, "logits", output)
        return output * self.target_spread.to(output) + self.target_mean.to(output)  # type: ignore[operator]


def column_counts(problem: Problem, wanted: Standardize) -> tuple[int, int]:
    """How many features there are, and how many numbers an example's target is.

    Raises:
        ValueError: examples are no rows of numbers in memory, there are bounds of labels, or the
            model is standardised already or has other outputs than targets.
    """
    table = problem.clients.table
    features = None if table is None else table.features
    lazy = any(e is not None and not isinstance(e, StoredExamples)
               for e in (problem.test, problem.statistics))  # fmt: skip
    if not isinstance(features, Tensor) or lazy or features.dim() != 2 or table is None:
        raise ValueError(
            "Expected features in memory as one table (n, features) with standardize, got another "
            "form: give tensors or arrays of rows, or leave standardize out."
        )
    if not features.is_floating_point():
        raise ValueError(
            f"Expected features as floats with standardize, got {features.dtype}: convert them."
        )
    numeric = table.targets.is_floating_point() and problem.dry_run.classes is None
    if wanted.target is not None and (not numeric or table.targets.dim() > 2):
        raise ValueError(
            "Expected a regression, whose targets are floats, for the target of standardize, got "
            "another task: leave target out."
        )
    if isinstance(problem.model, Standardized):
        raise ValueError(
            "Expected a model of standardised features with standardize, got one that takes raw "
            "ones: give the model within it, run.model.model."
        )
    targets = int(table.targets[0].numel()) if wanted.target is not None else 0
    if targets and targets != problem.dry_run.outputs:
        raise ValueError(
            "Expected one output for each number of a target, with the target of standardize, got "
            f"{problem.dry_run.outputs} for {targets}: leave target out."
        )
    return features.shape[1], targets


def client_matrices(problem: Problem, asked_of_targets: bool) -> list[np.ndarray]:
    """Each client's features and targets, (n, columns) float64."""
    table = problem.clients.table
    assert table is not None
    assert isinstance(table.features, Tensor)
    parts = [table.features, table.targets.reshape(len(table), -1)][: 1 + asked_of_targets]
    everything = torch.cat(parts, 1).double().numpy()
    return [everything[places] for places in problem.clients.places]


def standardized(problem: Problem, figures: FeatureStatistics) -> Problem:
    """The problem as it is learnt; its test targets stay as they are, and predictions meet them."""
    maps = Standardized(nn.Identity(), figures)

    def mapped(examples: Examples | None, *, targets: bool = True) -> Any:
        if not isinstance(examples, StoredExamples):
            return None
        assert isinstance(examples.features, Tensor)
        own = maps.mapped(examples.targets) if targets else examples.targets
        return StoredExamples(maps.mapped(examples.features, ""), own)

    clients = replace(problem.clients, table=mapped(problem.clients.table))
    return replace(
        problem, clients=clients, test=mapped(problem.test, targets=False), raw=maps.raw,
        statistics=mapped(problem.statistics, targets=False),
    )  # fmt: skip
