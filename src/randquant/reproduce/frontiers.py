"""Mechanisms at equal certified guarantees: the least noise for each, their frontiers, verdicts.

A figure is a grid: mechanisms, epsilons of the whole run, step sizes. Every mechanism gets the
least noise with which our accountant certifies the epsilon, so that all of them are promises of the
same kind and size. A mechanism's frontier at an epsilon is the best of its runs (mean over seeds)
that are certified for at most that epsilon; two mechanisms differ there by the gap of their
frontiers.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from randquant import _scatter, datasets, features, models
from randquant.aggregate import UpdateMechanism, all_mechanisms
from randquant.mechanisms import UpdateSetting
from randquant.records import TrainConfig
from randquant.reproduce import experiment
from randquant.reproduce.experiment import Curve, Setting, Trained
from randquant.reproduce.result import Claim, Stated, Table, Verdict
from randquant.schemes import tune_update
from randquant.sweep.pareto import frontier

NEAR = 1.0
"""Points of accuracy: two mechanisms that differ by less perform alike."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One mechanism of a figure: what the legend calls it, its name, and its bits a coordinate."""

    label: str
    mechanism: str
    bits: int = 1


@dataclass(frozen=True, slots=True)
class Grid:
    """What is trained for every mechanism: each epsilon with each step size."""

    epsilons: Sequence[float]
    rates: Sequence[float]


@dataclass(frozen=True, slots=True)
class Frontiers:
    """The finished runs of a figure.

    Attributes:
        epsilons: where frontiers are compared, rising.
        runs: of each kind.
        noise: of each kind at each epsilon: the error of one coordinate (`_error`), over that of
            Gaussian noise.
    """

    epsilons: Sequence[float]
    runs: Mapping[Kind, Sequence[Trained]]
    noise: Mapping[Kind, Sequence[float]]

    @property
    def trained(self) -> list[Trained]:
        """All of them."""
        return [each for runs in self.runs.values() for each in runs]

    def best(self, kind: Kind, epsilon: float) -> Trained:
        """The frontier's run: the best that is certified for at most this epsilon."""
        allowed = [
            each for each in self.runs[kind] if each.epsilon is not None and each.epsilon <= epsilon
        ]
        if not allowed:
            raise ValueError(f"Expected a run of {kind.label} with epsilon <= {epsilon}, got none.")
        return max(allowed, key=lambda each: each.accuracy)

    def gaps(self, first: Kind, other: Kind) -> list[float]:
        """By how many points of accuracy the first frontier lies above the other, by epsilon."""
        pairs = [(self.best(first, e), self.best(other, e)) for e in self.epsilons]
        return [100 * (ours.accuracy - theirs.accuracy) for ours, theirs in pairs]

    def error(self, first: Kind, other: Kind) -> float:
        """Points that a gap has to exceed to be told from none.

        Runs of one seed share split, weights and cohorts, so that it is the scatter of their
        differences that counts, pooled over the epsilons.
        """
        pairs = [(self.best(first, e), self.best(other, e)) for e in self.epsilons]
        differences = np.array([np.subtract(a.accuracies, b.accuracies) for a, b in pairs])
        seeds = differences.shape[1]
        variance = float(differences.var(axis=1, ddof=1).mean())
        return 100 * experiment.half_width(variance, len(pairs) * (seeds - 1), seeds)


def train(start: TrainConfig, kinds: Sequence[Kind], grid: Grid, setting: Setting) -> Frontiers:
    """Train every mechanism at every point of the grid.

    Args:
        start: what all runs share; its mechanism and step size are replaced. It needs clip_norm
            and max_participations, which the guarantees are for.
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
                    dataclasses.replace(config, learning_rate=rate),
                )
                for rate in grid.rates
            )  # fmt: skip
    trained = iter(experiment.train([curve for each in curves.values() for curve in each], setting))
    runs = {kind: [next(trained) for _ in each] for kind, each in curves.items()}
    normal = [
        _error(_calibrated(start, GAUSSIAN, e, dimension, examples)[1], dimension)
        for e in grid.epsilons
    ]
    noise = {
        kind: [a / b for a, b in zip(each, normal, strict=True)] for kind, each in errors.items()
    }
    return Frontiers(sorted(grid.epsilons), runs, noise)


GAUSSIAN = Kind("Gaussian, not compressed", "local-gaussian", 32)


def _sizes(start: TrainConfig, seeds: int) -> tuple[int, int | None]:
    """Coordinates of an update, and the fewest examples of one, where an example is the unit."""
    dataset = features.load(start.dataset, start.data_dir or None, start.features, start.fitted_on)
    model = models.build(start.model, dataset.train_features.shape[1:], dataset.classes, 0)
    dimension = sum(parameter.numel() for parameter in model.parameters())
    if start.unit == "client":
        return dimension, None
    splits = [
        datasets.split(dataset, start.population, start.partition, seed=start.seed + seed)
        for seed in range(seeds)
    ]
    return dimension, min(len(client) for clients in splits for client in clients)


def _calibrated(
    start: TrainConfig, kind: Kind, epsilon: float, dimension: int, examples: int | None
) -> tuple[TrainConfig, UpdateMechanism]:
    """The run whose noise is the least that certifies epsilon for all that one client sends."""
    assert start.clip_norm is not None
    assert start.max_participations is not None
    setting = UpdateSetting(
        dimension, start.cohort, min(kind.bits, 24), "local", start.clip_norm, start.neighboring
    )
    tuned = tune_update(
        kind.mechanism,
        setting,
        epsilon,
        start.delta,
        start.max_participations,
        deviation=setting.distance / epsilon / (examples or 1),
        examples=examples,
    )
    own = all_mechanisms()[kind.mechanism].whole_update
    config = dataclasses.replace(
        start,
        mechanism=kind.mechanism,
        parameters=tuned.parameters,
        clip_norm=None if own else start.clip_norm,
    )
    return config, tuned.calibration.mechanism


def _error(mechanism: UpdateMechanism, dimension: int) -> float:
    """Root mean squared error of a coordinate of a full-length update, in units of clip_norm.

    The coordinate is normal with a deviation of clip_norm / sqrt(size), as after a rotation. What
    is decoded is divided by its slope in the coordinate, which is only a matter of the step size.
    """
    assert mechanism.clip_norm is not None
    nodes, weights = special.roots_hermitenorm(41)
    x = nodes * mechanism.clip_norm / math.sqrt(mechanism.size(dimension))
    mean, variance = mechanism.decoded(x, dimension)
    slope = float(weights @ (mean * x) / (weights @ x**2))
    squares = weights @ (variance + (mean - slope * x) ** 2) / weights.sum()
    return math.sqrt(float(squares)) / slope / mechanism.clip_norm


def scatter(found: Frontiers) -> str:
    """Every run, mean over seeds, and each mechanism's frontier."""
    series = []
    for kind, runs in found.runs.items():
        points = [(each.accuracy, each.epsilon or math.inf) for each in runs]
        kept = frontier(points)
        marks = [
            _scatter.Mark(
                each.curve.label,
                f"{each.curve.label}: accuracy {100 * each.accuracy:.2f} %",
                epsilon,
                100 * accuracy,
                index in kept,
            )
            for index, (each, (accuracy, epsilon)) in enumerate(zip(runs, points, strict=True))
        ]
        steps = [(points[k][1], 100 * points[k][0]) for k in kept]
        series.append(_scatter.Series(kind.label, marks, steps))
    return _scatter.scatter(
        "Accuracy on test data and certified epsilon of whole runs",
        series,
        "epsilon of the whole run, upper bound (log scale)",
        "accuracy, %",
        note="Full marks are on their mechanism's frontier (dashed), hollow ones are beaten.",
    )


def tables(found: Frontiers) -> list[Table]:
    """The frontiers, the noise, and every run."""
    columns = ["mechanism", *(f"epsilon {epsilon:g}" for epsilon in found.epsilons)]
    frontiers = [
        (kind.label, *(100 * found.best(kind, epsilon).accuracy for epsilon in found.epsilons))
        for kind in found.runs
    ]
    noise = [(kind.label, *ratios) for kind, ratios in found.noise.items()]
    error = "Error of one coordinate of a client's update (root mean square) over the Gaussian's"
    return [
        Table("Frontiers: best accuracy at each epsilon, %", columns, frontiers),
        Table(error, columns, noise),
        experiment.table(found.trained),
    ]


def stated(found: Frontiers) -> list[Stated]:
    """What is certified for each mechanism at each epsilon; step sizes do not change it."""
    firsts: dict[str, Trained] = {}
    for each in found.trained:
        label = each.curve.label.partition(", rate")[0]
        firsts.setdefault(
            label,
            dataclasses.replace(each, curve=dataclasses.replace(each.curve, label=label)),
        )
    return experiment.stated(firsts.values())


def alike(text: str, ours: Kind, other: Kind, found: Frontiers, setting: Setting) -> Claim:
    """Judge a claim that a mechanism performs as well as another: nowhere NEAR points worse."""
    gaps = found.gaps(ours, other)
    error = _noise(ours, other, found, setting)
    verdict: Verdict = "cannot be told"
    if error is not None and min(gaps) - error > -NEAR:
        verdict = "holds"
    elif error is not None and min(gaps) + error < -NEAR:
        verdict = "does not hold"
    rule = f"It holds where every gap is above {-NEAR:g} points, noise allowed for."
    return Claim(text, None, _shown(gaps), verdict, f"{rule} {_why(error, setting)}")


def better(text: str, ours: Kind, other: Kind, found: Frontiers, setting: Setting) -> Claim:
    """Judge a claim that a mechanism performs better than another, at every epsilon.

    It fails where the other is better at some epsilon, or ours at none by NEAR points.
    """
    gaps = found.gaps(ours, other)
    error = _noise(ours, other, found, setting)
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


def less_noise(text: str, ours: Kind, other: Kind, found: Frontiers, why: str) -> Claim:
    """Judge by computing, not by training, whether ours has a hundredth less noise at least."""
    ratios = [a / b for a, b in zip(found.noise[ours], found.noise[other], strict=True)]
    verdict: Verdict = "holds" if max(ratios) < 0.99 else "does not hold"
    if verdict != "holds" and min(ratios) < 0.99:
        verdict = "cannot be told"
    shown = f"{min(ratios):.4f} to {max(ratios):.4f}"
    rule = "The one over the other, computed: it holds where all are below 0.99."
    return Claim(text, None, shown, verdict, f"{rule} {why}")


def _noise(ours: Kind, other: Kind, found: Frontiers, setting: Setting) -> float | None:
    """Points that a gap has to exceed to be told from none; None where that is not known."""
    if setting.quick or setting.seeds < 2:
        return None
    return found.error(ours, other)


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
