"""Standardised features and targets: a query within a run's account, and a model on its answers.

Means and deviations are answers of `randquant.statistics` by the clients of the run, and public
once released: whatever is computed with them costs no more privacy. The model is trained on
standardised values; `Standardized` takes and predicts raw ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from randquant.channels.keys import Key
from randquant.local_training.data import Examples, StoredExamples, converted, is_in_memory
from randquant.local_training.local import Standardize
from randquant.local_training.models import described
from randquant.local_training.problem import Problem
from randquant.privacy.guarantee import Trust, Unit
from randquant.statistics.moments import Mean
from randquant.statistics.surveys import Survey, survey
from randquant.statistics.table import noisy_answers, one_of_each

PRIOR_MEAN_ERROR = 1 / 3
"""Deviation of means from the middle of their bounds, in halves of the bounds' distance, that is
assumed before any answer. Twice as much trusts noisy means more; half as much draws them closer to
the middle."""


class FeatureStatistics(NamedTuple):
    """Means and spreads that standardise: (value clipped to its bounds - mean) / spread.

    Attributes:
        bounds: (n, 2), first of the features, then of the targets.
        means, spreads: (n,), spreads above 0.
        features: number of the n values that are features.
    """

    bounds: list[tuple[float, float]]
    means: list[float]
    spreads: list[float]
    features: int


class StandardizationQuery(NamedTuple):
    """The query for the means and spreads of one run's features and targets.

    Attributes:
        bounds: (n, 2), first of the features, then of the targets.
        features: number of the n values that are features.
        survey: terms of the table; None if nothing is asked.
    """

    bounds: list[tuple[float, float]]
    features: int
    survey: Survey | None


def plan_query(
    settings: Standardize,
    columns: tuple[int, int],
    sizes: np.ndarray,
    left: tuple[float, float],
    trust: Trust | None,
    unit: Unit,
) -> StandardizationQuery:
    """Plan the query of a run, without any client's data.

    Args:
        settings: the user's.
        columns: numbers of features, and of values of a target.
        sizes: (N,) each client's number of examples, which is public.
        left: epsilon and delta that the run may still spend, of which the table has its share.
        trust: the run's.
        unit: what is protected.

    Raises:
        ValueError: bounds do not fit the columns, or the share does not pay for the table.
    """
    features = settings.bounds("features", columns[0])
    targets = settings.bounds("target", columns[1])
    terms = None
    # The table is noisy in the run's trust, so that it needs no other party than the run does.
    if settings.share:
        if not np.isfinite(left[0]) or trust not in ("aggregate", "local"):
            raise ValueError(
                "Expected an epsilon, and trust aggregate or local, with standardize, got "
                f"epsilon={left[0]} and {trust}: it asks with a share of epsilon, of the run's "
                "trust; give share=0 to use the bounds alone."
            )
        # For a whole client one of its examples is drawn; otherwise all count, and the largest
        # client's number of them bounds a client's vector.
        records, most = (
            (len(sizes), 1) if unit == "client" else (int(sizes.sum()), int(sizes.max()))
        )
        epsilon, delta = (settings.share * each for each in left)
        terms = _terms(
            (*features, *targets), epsilon, delta, trust, len(sizes), records, unit, most
        )
    return StandardizationQuery([*features, *targets], len(features), terms)


# Cached, because calibrating the noise takes long and a run is prepared several times.
@functools.lru_cache(maxsize=8)
def _terms(
    pairs: tuple[tuple[float, float], ...], epsilon: float, delta: float, trust: Any, clients: int,
    records: int, unit: Unit, most: int,
) -> Survey:  # fmt: skip
    queries = {str(k): Mean(*each) for k, each in enumerate(pairs)}
    try:
        return survey(queries, epsilon, delta, trust, clients, records, None, unit, most)
    except ValueError as error:
        raise ValueError(
            f"Expected an epsilon whose share, {epsilon} at delta={delta} after what was spent "
            f"before, pays for means and deviations, but: {error} share=0 uses the bounds alone."
        ) from error


def ask_statistics(
    query: StandardizationQuery, clients: Iterable[np.ndarray], key: Key
) -> FeatureStatistics:
    """Ask the clients for noisy means and spreads.

    Args:
        query: from `plan_query`.
        clients: each client's (n, columns) float.
        key: of the noise. The same key and data give the same answers, bit for bit.

    Guarantees:
        With any noise, means are within the bounds, and spreads above 0 and at most half of the
        bounds' distance. A spread below its noise is replaced by the noise, so that features never
        become large.
    """
    # All values are in units of half the bounds' distance, where a deviation is at most 1.
    low, high = np.array(query.bounds).T
    middle, half = (low + high) / 2, (high - low) / 2
    means, spreads = middle, half
    if (terms := query.survey) is not None:
        frames = []
        for number, rows in enumerate(clients):
            frame = {str(k): column for k, column in enumerate(rows.T)}
            # By a key of its own for each client, so that draws of records are independent.
            if terms.unit == "client":
                # Copied, so that the client's other records are not kept.
                one = one_of_each(frame, key.fold_in("record", number))
                frame = {name: column.copy() for name, column in one.items()}
            frames.append(frame)
        answers = noisy_answers(terms, frames, key).values()
        mean, deviation = ([each[name] for each in answers] for name in ("mean", "deviation"))
        noise = np.array([each.noise_error for each in mean]) / half
        # The mean of two estimates, the middle and the noisy one, weighted by their precisions.
        shrunk = PRIOR_MEAN_ERROR**2 / (PRIOR_MEAN_ERROR**2 + noise**2)
        means = middle + shrunk * (np.array([each.estimate for each in mean]) - middle)
        root = np.array([each.estimate for each in deviation]) / half
        error = np.array([each.noise_error for each in deviation]) / half
        # The variance, or the error of its estimate where that is larger.
        variance = np.maximum(root**2, error * np.maximum(2 * root, error))
        spreads = half * np.sqrt(np.minimum(variance, 1.0))
    return FeatureStatistics(query.bounds, means.tolist(), spreads.tolist(), query.features)


# A model that is trained on standardised values, and takes and predicts raw ones.


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
