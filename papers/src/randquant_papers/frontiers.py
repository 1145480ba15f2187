"""Mechanisms at equal certified guarantees: the least noise for each, their frontiers, verdicts.

A figure is a grid: mechanisms, epsilons of the whole run, step sizes. Every mechanism gets the
least noise with which our accountant certifies the epsilon, so that all guarantees are of the same
kind and size. A mechanism's frontier at an epsilon is the best of its runs (mean over seeds) that
are certified for at most that epsilon; two mechanisms differ there by the gap of their frontiers.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from randquant.aggregation import UpdateMechanism, all_mechanisms
from randquant.mechanisms import UpdateSetting
from randquant.planning import tune_update
from randquant.reports import Axis, Mark, ScatterPlot, Series
from randquant_papers import equal, experiment
from randquant_papers.configuration import PaperConfig
from randquant_papers.data.datasets import split as split_dataset
from randquant_papers.experiment import Curve, Setting, Trained
from randquant_papers.result import Claim, Stated, Table, Verdict
from randquant_papers.sweep.pareto import frontier

NEAR = 1.0
"""Two mechanisms perform alike if they differ by less than this many points of accuracy."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One mechanism of a figure: its label, its name, and its bits per coordinate."""

    label: str
    mechanism: str
    bits: int = 1


@dataclass(frozen=True, slots=True)
class Grid:
    """The runs of every mechanism: each epsilon with each step size."""

    epsilons: Sequence[float]
    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class Frontiers:
    """The finished runs of a figure.

    Attributes:
        epsilons: where frontiers are compared, increasing.
        runs: the runs of each kind.
        noise: each kind's error of one coordinate (`_error`) at each epsilon, relative to Gaussian
            noise.
    """

    epsilons: Sequence[float]
    runs: Mapping[Kind, Sequence[Trained]]
    noise: Mapping[Kind, Sequence[float]]

    @property
    def trained(self) -> list[Trained]:
        """All runs."""
        return [trained for runs in self.runs.values() for trained in runs]

    def best(self, kind: Kind, epsilon: float) -> Trained:
        """The frontier's run: the best that is certified for at most this epsilon."""
        allowed = [
            run for run in self.runs[kind] if run.epsilon is not None and run.epsilon <= epsilon
        ]
        if not allowed:
            raise ValueError(f"Expected a run of {kind.label} with epsilon <= {epsilon}, got none.")
        return max(allowed, key=lambda run: run.accuracy)

    def gaps(self, first: Kind, other: Kind) -> list[float]:
        """The first frontier minus the other, in points of accuracy, by epsilon."""
        pairs = [(self.best(first, e), self.best(other, e)) for e in self.epsilons]
        return [100 * (ours.accuracy - theirs.accuracy) for ours, theirs in pairs]

    def error(self, first: Kind, other: Kind) -> float:
        """Points that a gap must exceed to be distinguished from zero.

        Runs with one seed share split, weights and cohorts, so the variance of their differences
        counts, pooled over the epsilons.
        """
        pairs = [(self.best(first, e), self.best(other, e)) for e in self.epsilons]
        differences = np.array([np.subtract(a.accuracies, b.accuracies) for a, b in pairs])
        seeds = differences.shape[1]
        variance = float(differences.var(axis=1, ddof=1).mean())
        return 100 * experiment.half_width(variance, len(pairs) * (seeds - 1), seeds)


def train(start: PaperConfig, kinds: Sequence[Kind], grid: Grid, setting: Setting) -> Frontiers:
    """Train every mechanism at every point of the grid.

    Args:
        start: settings of all runs; mechanism and step size are replaced. It needs clip_norm and
            max_participations, which the guarantees assume.
        kinds: the mechanisms.
        grid: epsilons and step sizes.
        setting: of the experiment.
    """
    dimension, examples = _sizes(start, setting.seeds)
    curves: dict[Kind, list[Curve]] = {}
    errors: dict[Kind, list[float]] = {}
    for kind in kinds:
        for epsilon in grid.epsilons:
            config, mechanism = _calibrated(start, kind, epsilon, dimension, examples)
            errors.setdefault(kind, []).append(_error(mechanism, dimension))
            curves.setdefault(kind, []).extend(
                Curve(
                    f"{kind.label}, epsilon {epsilon:g}, rate {rate:g}", "c1",
                    config.changed(learning_rate=rate),
                )
                for rate in grid.rates
            )  # fmt: skip
    trained = iter(
        experiment.train([curve for group in curves.values() for curve in group], setting)
    )
    runs = {kind: [next(trained) for _ in group] for kind, group in curves.items()}
    normal = [
        _error(_calibrated(start, GAUSSIAN, e, dimension, examples)[1], dimension)
        for e in grid.epsilons
    ]
    noise = {
        kind: [a / b for a, b in zip(group, normal, strict=True)] for kind, group in errors.items()
    }
    return Frontiers(sorted(grid.epsilons), runs, noise)


GAUSSIAN = Kind("Gaussian, not compressed", "local-gaussian", 32)


def _sizes(start: PaperConfig, seeds: int) -> tuple[int, int | None]:
    """Coordinates of an update, and with unit example the least number of examples in one."""
    dimension = equal.dimension(start)
    if start.privacy.unit == "client":
        return dimension, None
    dataset = equal.dataset(start)
    splits = [
        split_dataset(
            dataset, start.task.population, start.data.partition, seed=(start.seed or 0) + seed
        )
        for seed in range(seeds)
    ]
    return dimension, min(len(client) for clients in splits for client in clients)


def _calibrated(
    start: PaperConfig, kind: Kind, epsilon: float, dimension: int, examples: int | None
) -> tuple[PaperConfig, UpdateMechanism]:
    """The run with the least noise that certifies epsilon for everything that one client sends."""
    assert start.privacy.clip_norm is not None
    assert start.privacy.max_participations is not None
    setting = UpdateSetting(
        dimension,
        start.cohort,
        min(kind.bits, 24),
        "local",
        start.privacy.clip_norm,
        start.privacy.neighboring,
    )
    tuned = tune_update(
        kind.mechanism,
        setting,
        epsilon,
        start.delta,
        start.privacy.max_participations,
        deviation=setting.distance / epsilon / (examples or 1),
        examples=examples,
    )
    own = all_mechanisms()[kind.mechanism].whole_update
    config = start.changed(
        mechanism=kind.mechanism,
        parameters=tuned.parameters,
        clip_norm=None if own else start.privacy.clip_norm,
    )
    return config, tuned.calibration.mechanism


def _error(mechanism: UpdateMechanism, dimension: int) -> float:
    """Root mean squared error of a coordinate of a full-length update, in units of clip_norm.

    The coordinate is normal with standard deviation clip_norm / sqrt(size), as after a rotation.
    The decoded value is divided by its slope in the coordinate, which only rescales the step size.
    """
    assert mechanism.clip_norm is not None
    nodes, weights = special.roots_hermitenorm(41)
    x = nodes * mechanism.clip_norm / math.sqrt(mechanism.size(dimension))
    mean, variance = mechanism.decoded(x, dimension)
    slope = float(weights @ (mean * x) / (weights @ x**2))
    squares = weights @ (variance + (mean - slope * x) ** 2) / weights.sum()
    return math.sqrt(float(squares)) / slope / mechanism.clip_norm


def scatter(figure: Frontiers) -> ScatterPlot:
    """A scatter plot of every run, mean over seeds, with each mechanism's frontier."""
    series = []
    for kind, runs in figure.runs.items():
        points = [(result.accuracy, result.epsilon or math.inf) for result in runs]
        kept = frontier(points)
        marks = tuple(
            Mark(
                result.curve.label,
                f"{result.curve.label}: accuracy {100 * result.accuracy:.2f} %",
                epsilon if math.isfinite(epsilon) else None,
                100 * accuracy,
                index in kept,
            )
            for index, (result, (accuracy, epsilon)) in enumerate(zip(runs, points, strict=True))
        )
        steps = tuple((points[k][1], 100 * points[k][0]) for k in kept)
        series.append(Series(kind.label, marks, steps))
    return ScatterPlot(
        title="Accuracy on test data and certified epsilon of whole runs",
        note="Full marks are on their mechanism's frontier (dashed), hollow ones are beaten.",
        series=tuple(series),
        x=Axis("epsilon of the whole run, upper bound (log scale)", log=True, bound=True),
        y=Axis("accuracy, %"),
    )


def tables(figure: Frontiers) -> list[Table]:
    """Tables of the frontiers, of the noise, and of every run."""
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in figure.epsilons)]
    frontiers = [
        (kind.label, *(100 * figure.best(kind, epsilon).accuracy for epsilon in figure.epsilons))
        for kind in figure.runs
    ]
    noise = [(kind.label, *ratios) for kind, ratios in figure.noise.items()]
    error = "Error of one coordinate of a client's update (root mean square) over the Gaussian's"
    return [
        Table("Frontiers: best accuracy at each epsilon, %", columns, frontiers),
        Table(error, columns, noise),
        experiment.table(figure.trained),
    ]


def stated(figure: Frontiers) -> list[Stated]:
    """The certified guarantee of each mechanism at each epsilon; step sizes do not change it."""
    firsts: dict[str, Trained] = {}
    for result in figure.trained:
        label = result.curve.label.partition(", rate")[0]
        firsts.setdefault(
            label,
            dataclasses.replace(result, curve=dataclasses.replace(result.curve, label=label)),
        )
    return experiment.stated(firsts.values())


def alike(text: str, ours: Kind, other: Kind, figure: Frontiers, setting: Setting) -> Claim:
    """Judge a claim that a mechanism performs as well as another: never NEAR points worse."""
    gaps = figure.gaps(ours, other)
    error = _noise(ours, other, figure, setting)
    verdict: Verdict = "cannot be told"
    if error is not None and min(gaps) - error > -NEAR:
        verdict = "holds"
    elif error is not None and min(gaps) + error < -NEAR:
        verdict = "does not hold"
    rule = f"It holds where every gap is above {-NEAR:g} points, noise allowed for."
    return Claim(text, None, _shown(gaps), verdict, f"{rule} {_why(error, setting)}")


def better(text: str, ours: Kind, other: Kind, figure: Frontiers, setting: Setting) -> Claim:
    """Judge a claim that a mechanism performs better than another, at every epsilon.

    It fails if the other is better at some epsilon, or ours is better by NEAR points at none.
    """
    gaps = figure.gaps(ours, other)
    error = _noise(ours, other, figure, setting)
    verdict: Verdict = "cannot be told"
    if error is not None and min(gaps) > error:
        verdict = "holds"
    elif error is not None and (min(gaps) < -error or max(gaps) + error < NEAR):
        verdict = "does not hold"
    rule = (
        "It holds where every gap is above the noise, and does not where one is below it, or none "
        f"reaches {NEAR:g} point."
    )
    return Claim(text, None, _shown(gaps), verdict, f"{rule} {_why(error, setting)}")


def less_noise(text: str, ours: Kind, other: Kind, figure: Frontiers, why: str) -> Claim:
    """Judge by computing, not by training, whether ours has at least one percent less noise."""
    ratios = [a / b for a, b in zip(figure.noise[ours], figure.noise[other], strict=True)]
    verdict: Verdict = "holds" if max(ratios) < 0.99 else "does not hold"
    if verdict != "holds" and min(ratios) < 0.99:
        verdict = "cannot be told"
    shown = f"{min(ratios):.4f} to {max(ratios):.4f}"
    rule = "The one over the other, computed: it holds where all are below 0.99."
    return Claim(text, None, shown, verdict, f"{rule} {why}")


def _noise(ours: Kind, other: Kind, figure: Frontiers, setting: Setting) -> float | None:
    """Points that a gap must exceed to be distinguished from zero; None if unknown."""
    if setting.quick or setting.seeds < 2:
        return None
    return figure.error(ours, other)


def _shown(gaps: Sequence[float]) -> str:
    return f"{min(gaps):+.2f} to {max(gaps):+.2f} points, {statistics.fmean(gaps):+.2f} on average"


def _why(error: float | None, setting: Setting) -> str:
    if setting.quick:
        return "A quick run: rounds and clients are too few."
    if error is None:
        return "One seed shows no noise: train several, with --seeds 3."
    return (
        f"With {setting.seeds} seeds {experiment.CONFIDENCE:.0%} of gaps between these two would "
        f"be within {error:.2f} points if they were equal."
    )
