"""Averages over runs that differ only in their seed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from randquant.training import RunStatus
from randquant_papers.configuration import config_of
from randquant_papers.sweep import names
from randquant_papers.sweep.pareto import frontier


@dataclass(frozen=True, slots=True)
class Average:
    """Finished runs of one configuration with several seeds.

    Attributes:
        runs: two or more.
        accuracy: their mean.
        deviation: the sample standard deviation of their accuracies.
        epsilon: the largest of their epsilons; None without privacy.
        best: whether no other average beats it in accuracy and epsilon.
    """

    runs: Sequence[RunStatus]
    accuracy: float
    deviation: float
    epsilon: float | None
    best: bool = False


def averages(runs: Sequence[RunStatus]) -> list[Average]:
    """Average over seeds; return averages by increasing epsilon, those without one last.

    Args:
        runs: of a sweep, in any state; unfinished ones and single seeds are left out.
    """
    groups: dict[str, list[RunStatus]] = {}
    for run in runs:
        if run.state == "finished" and run.config is not None and run.accuracy is not None:
            groups.setdefault(names.folder(config_of(run).changed(seed=0)), []).append(run)
    averaged = sorted((_average(group) for group in groups.values() if len(group) > 1), key=_place)
    best = frontier([(average.accuracy, _bound(average)) for average in averaged])
    return [dataclasses.replace(average, best=k in best) for k, average in enumerate(averaged)]


def _average(runs: Sequence[RunStatus]) -> Average:
    accuracies = [run.accuracy or 0.0 for run in runs]
    epsilons = [run.epsilon for run in runs if run.epsilon is not None]
    return Average(
        runs,
        statistics.fmean(accuracies),
        statistics.stdev(accuracies),
        max(epsilons, default=None),
    )


def _bound(average: Average) -> float:
    return math.inf if average.epsilon is None else average.epsilon


def _place(average: Average) -> tuple[float, float]:
    return _bound(average), -average.accuracy
