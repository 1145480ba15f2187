"""Runs that differ in nothing but their seed, as one: what chance alone does not decide."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from randquant.run_status import Status
from randquant.sweep import names
from randquant.sweep.pareto import frontier


@dataclass(frozen=True, slots=True)
class Average:
    """Finished runs of one setting with several seeds.

    Attributes:
        runs: two or more.
        accuracy: their mean.
        deviation: the sample standard deviation of their accuracies.
        epsilon: the largest of theirs; None without privacy.
        best: whether no other average beats it in accuracy and epsilon.
    """

    runs: Sequence[Status]
    accuracy: float
    deviation: float
    epsilon: float | None
    best: bool = False


def averages(runs: Sequence[Status]) -> list[Average]:
    """Average over seeds, from the smallest epsilon to none.

    Args:
        runs: of a sweep, in any state; unfinished ones and single seeds are left out.
    """
    groups: dict[str, list[Status]] = {}
    for run in runs:
        if run.state == "finished" and run.config is not None and run.accuracy is not None:
            groups.setdefault(names.folder(dataclasses.replace(run.config, seed=0)), []).append(run)
    found = sorted((_average(each) for each in groups.values() if len(each) > 1), key=_place)
    best = frontier([(each.accuracy, _bound(each)) for each in found])
    return [dataclasses.replace(each, best=k in best) for k, each in enumerate(found)]


def _average(runs: Sequence[Status]) -> Average:
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
