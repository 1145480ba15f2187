"""Experiments of the papers that train: curves of many runs, on the paper's data or a stand-in."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from randquant import Interval
from randquant.reports import Figure, formatting, line_chart
from randquant.training import RoundMetrics, RunStatus, is_run
from randquant_papers.configuration import PaperConfig, read
from randquant_papers.data import fitted, sets
from randquant_papers.data.datasets import Dataset
from randquant_papers.problems import create
from randquant_papers.result import Claim, Scale, Stated, Table, Verdict
from randquant_papers.sweep import names
from randquant_papers.sweep.workers import Workers

CONFIDENCE = 0.99
"""Confidence level: a difference of accuracies counts if it is outside of this interval."""

LATE = 0.9
"""Fraction of the rounds after which accuracies count as a run's final ones."""

CLOSE = 1.0
"""Two curves are called equal if they differ by at most this many points of accuracy."""

TITLES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "emnist": "EMNIST",
    "femnist": "FEMNIST",
    "cifar-10": "CIFAR-10",
    "cifar-100": "CIFAR-100",
    "digits": "digits",
    "breast-cancer": "breast cancer",
    fitted.BREAST_CANCER: "breast cancer",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How experiments are run.

    Attributes:
        data_dir: folder of the data files, `--data-dir` on the command line.
        stand_in: data set to use if the paper's is missing; empty for none.
        quick: a small version that takes about a minute, instead of the paper's size.
        seeds: how many seeds each curve is trained with.
        jobs: runs at once, each in its own process.
        folder: folder of the runs; finished runs in it are not trained again.
        on_begin: called with the number of runs and of finished runs.
        on_round: called after each round.
        on_end: called with the result of each run.
    """

    data_dir: str = ""
    stand_in: str = ""
    quick: bool = False
    seeds: int = 1
    jobs: int = 2
    folder: Path = Path("runs/reproduce")
    on_begin: Callable[[int, int], None] = lambda *_: None
    on_round: Callable[[Path, PaperConfig, RoundMetrics], None] = lambda *_: None
    on_end: Callable[[RunStatus], None] = lambda *_: None

    @property
    def scale(self) -> Scale:
        """The scale, as a Reproduction states it."""
        return "quick" if self.quick else "full"

    def source(self, wanted: str) -> dict[str, str]:
        """Return the data set as settings of a run: the paper's, or else the stand-in.

        Args:
            wanted: the paper's data set.

        Raises:
            FileNotFoundError: both are missing; the error names the missing files.
            ValueError: files are damaged, or the stand-in is unknown.
        """
        return {"dataset": self.loaded(wanted).name, "data_dir": self.data_dir}

    def stands_in(self, wanted: str) -> str:
        """The note on the data in a Reproduction; empty if they are the paper's."""
        dataset = self.loaded(wanted)
        if dataset.name != wanted:
            return f"{TITLES[dataset.name]} in place of {TITLES[wanted]}"
        size = len(dataset.train_labels)
        if wanted == "mnist" and size < 60_000:
            return f"{size:,} training images of MNIST in place of 60,000"
        return ""

    def loaded(self, wanted: str) -> Dataset:
        """Load the paper's data set, or else the stand-in; raises as `source` does."""
        try:
            return sets.load(wanted, self.data_dir or None)
        except FileNotFoundError as error:
            if not self.stand_in:
                advice = f"Or train on other data in place of {TITLES[wanted]}: --stand-in NAME."
                raise FileNotFoundError(f"{error} {advice}") from None
        return sets.load(self.stand_in, self.data_dir or None)

    def command(self, name: str) -> str:
        """The command that runs the experiment again."""
        words = [f"randquant-papers reproduce {name}"]
        words += ["--data-dir DIR"] * bool(self.data_dir)
        words += [f"--stand-in {self.stand_in}"] * bool(self.stand_in)
        words += ["--quick"] * self.quick
        words += [f"--seeds {self.seeds}"] * (self.seeds != 1)
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a figure.

    Attributes:
        label: in the legend.
        style: style of the line, as in `figures.Line`.
        config: the run with the first seed.
        paper: the guarantee that the paper states for it, as printed, or None.
        why: what that guarantee covers, if there is one.
    """

    label: str
    style: str
    config: PaperConfig
    paper: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trained:
    """A curve and its finished runs, one per seed."""

    curve: Curve
    runs: tuple[RunStatus, ...]

    @property
    def accuracies(self) -> list[float]:
        """Each run's mean accuracy over the evaluations in the last tenth of its rounds."""
        return self.averages(LATE)

    def averages(self, since: float) -> list[float]:
        """Each run's mean accuracy over the evaluations after a share `since` of its rounds."""
        return [_average(run, since) for run in self.runs]

    @property
    def accuracy(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.accuracies)

    @property
    def epsilon(self) -> float | None:
        """Certified epsilon of the whole run, largest over seeds; None without privacy."""
        epsilons = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(epsilons, default=None)

    def line(self, name: str, factor: float = 1.0) -> tuple[str, list[tuple[float, float]], str]:
        """`accuracy` or `loss` on test data over rounds, the mean over seeds."""
        rounds = zip(*(run.metrics for run in self.runs), strict=True)
        points = [
            (evaluated[0].round, factor * statistics.fmean(getattr(m, name) for m in evaluated))
            for evaluated in rounds
            if getattr(evaluated[0], name) is not None
        ]
        return self.curve.label, points, self.curve.style


def train(curves: Sequence[Curve], setting: Setting) -> list[Trained]:
    """Train the missing runs of some curves.

    Args:
        curves: what to train; equal runs are trained once.
        setting: seeds, folder and number of jobs.

    Returns:
        The finished runs of every curve, in order.

    Raises:
        ValueError: a run cannot be trained; the error names it. Finished runs are kept.
        BlockingIOError: another process is training one of these runs.
    """
    if not 1 <= setting.seeds <= 1000:
        raise ValueError(f"Expected seeds from 1 to 1000, got seeds={setting.seeds}.")
    seeds = range(setting.seeds)
    configs = [
        [curve.config.changed(seed=(curve.config.seed or 0) + seed) for seed in seeds]
        for curve in curves
    ]
    wanted = {setting.folder / names.folder(config): config for row in configs for config in row}
    _train_all(wanted, setting)
    return [
        Trained(curve, tuple(read(setting.folder / names.folder(c), c) for c in row))
        for curve, row in zip(curves, configs, strict=True)
    ]


def _train_all(wanted: Mapping[Path, PaperConfig], setting: Setting) -> None:
    open_runs = [folder for folder in wanted if not _finished(folder, wanted[folder])]
    setting.on_begin(len(wanted), len(wanted) - len(open_runs))

    def wait() -> None:
        for ended in workers.wait():
            if ended.error:
                name = wanted[ended.folder].mechanism
                raise ValueError(f"{name} in {ended.folder}: {ended.error}")
            setting.on_end(read(ended.folder, wanted[ended.folder]))

    with Workers(setting.jobs, setting.on_round) as workers:
        for folder in open_runs:
            if not is_run(folder):
                create(folder, wanted[folder])
            while not workers.free:
                wait()
            workers.begin(folder, wanted[folder])
        while workers.training:
            wait()


def _finished(folder: Path, config: PaperConfig) -> bool:
    return is_run(folder) and read(folder, config).state == "finished"


def charts(trained: Sequence[Trained], of: str = "") -> list[Figure]:
    """Accuracy and loss on test data over rounds; `of` is a subtitle, if there are several."""
    accuracy = [result.line("accuracy", 100.0) for result in trained]
    loss = [result.line("loss") for result in trained]
    return [
        line_chart(f"Accuracy on test data{of and f', {of}'}", accuracy, "round", "accuracy, %"),
        line_chart(f"Loss on test data{of and f', {of}'}", loss, "round", "loss, nats"),
    ]


def table(trained: Sequence[Trained], of: str = "") -> Table:
    """The results of each curve; `of` is a subtitle, if there are several tables."""
    rows = []
    for result in trained:
        first = result.runs[0].summary
        assert first is not None
        spread = statistics.stdev(result.accuracies) if len(result.runs) > 1 else None
        rows.append(
            (
                result.curve.label,
                100 * result.accuracy,
                None if spread is None else 100 * spread,
                statistics.fmean(
                    run.summary.loss
                    for run in result.runs
                    if run.summary is not None and run.summary.loss is not None
                ),
                first.bits_per_coordinate,
                first.participations,
                None if result.epsilon is None else Interval(0.0, result.epsilon),  # rounded up
            )
        )
    columns = ("curve", "accuracy, %", "deviation", "loss", "bits", "participations", "epsilon")
    seeds = f"{len(trained[0].runs)} seed" + "s" * (len(trained[0].runs) > 1)
    models = f"Final models, {of}" if of else "Final models"
    title = f"{models}, {seeds}; epsilon certified for the whole run of one client"
    if beside := fitted.statement(trained[0].runs[0]):
        title += f"; {beside}"
    return Table(title, columns, rows)


def stated(trained: Iterable[Trained]) -> list[Stated]:
    """The papers' guarantees beside those of the whole runs."""
    guarantees = []
    for result in trained:
        config, summary = result.runs[0].config, result.runs[0].summary
        if config is None or summary is None or summary.guarantee is None:
            continue
        promised = (
            f"One {config.privacy.unit}'s whole run: {summary.dimension:,} coordinates, "
            f"{formatting.count(summary.participations, 'round')} at most, delta {config.delta}, "
            f"{config.privacy.neighboring.replace('_', ' ')}, {summary.guarantee.trust} trust."
        )
        beside = fitted.statement(result.runs[0])
        promised += f" {beside[0].upper()}{beside[1:]}." if beside else ""
        why = f"{result.curve.why} {promised}".strip()
        guarantees.append(Stated(result.curve.label, result.curve.paper, result.epsilon, why))
    return guarantees


def better(
    text: str,
    first: Trained,
    other: Trained,
    among: Sequence[Trained],
    setting: Setting,
    paper: str | None = None,
    since: float = LATE,
) -> Claim:
    """Judge a claim that one curve ends at a higher accuracy than another.

    Args:
        text: the claim.
        first, other: the curve that is claimed to be better, and the other curve.
        among: all curves of the experiment, two or more: the noise is estimated from their
            residuals after the effects of curves and of seeds.
        setting: of the experiment; a quick one never gives a verdict.
        paper: the paper's numbers, if it prints any.
        since: fraction of the rounds after which accuracies count: 0 asks which curve is higher
            on average, that is which one rises faster.
    """
    gap, error, ours, why = _compared(first, other, among, setting, since)
    verdict: Verdict = "cannot be told"
    if abs(gap) > error:
        verdict = "holds" if gap > 0 else "does not hold"
    return Claim(text, paper, ours, verdict, why)


def equal(
    text: str,
    first: Trained,
    other: Trained,
    among: Sequence[Trained],
    setting: Setting,
    paper: str | None = None,
) -> Claim:
    """Judge a claim that two curves end at the same accuracy: at most CLOSE points apart.

    Args:
        text, first, other, among, setting, paper: as in `better`.
    """
    gap, error, ours, why = _compared(first, other, among, setting, LATE)
    verdict: Verdict = "cannot be told"
    if abs(gap) + error <= CLOSE:
        verdict = "holds"
    elif abs(gap) - error > CLOSE:
        verdict = "does not hold"
    return Claim(text, paper, ours, verdict, f"{why} Equal means within {CLOSE:g} point.")


def _compared(
    first: Trained, other: Trained, among: Sequence[Trained], setting: Setting, since: float
) -> tuple[float, float, str, str]:
    """The difference in points and the width of its noise, as numbers and as text."""
    means = [100 * statistics.fmean(curve.averages(since)) for curve in (first, other)]
    gap, ours = means[0] - means[1], f"{means[0]:.2f} against {means[1]:.2f} %"
    if setting.quick:
        return gap, math.inf, ours, "A quick run: rounds and clients are too few."
    if len(first.runs) < 2:
        return gap, math.inf, ours, "One seed shows no noise: train several, with --seeds 3."
    error = 100 * error_of(among, len(first.runs), since)
    why = (
        f"The difference is {gap:+.2f} points; with {len(first.runs)} seeds {CONFIDENCE:.0%} "
        f"of differences between equal curves are within {error:.2f}."
    )
    return gap, error, ours, why


def error_of(among: Sequence[Trained], seeds: int, since: float = LATE) -> float:
    """Half the width of the interval around a difference of two means of `seeds` accuracies.

    Runs with one seed share data split, initial weights and cohorts, so the effect that a seed has
    on every curve is not noise of their differences. What remains are the residuals.
    """
    table = np.array([curve.averages(since) for curve in among])
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    degrees = (len(among) - 1) * (seeds - 1)
    return half_width(2 * float((rest**2).sum()) / degrees, degrees, seeds)


def half_width(variance: float, degrees: int, seeds: int) -> float:
    """Half the width of the interval around a mean over seeds, with an estimated variance."""
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(variance / seeds)


def _average(run: RunStatus, since: float) -> float:
    late = [m.accuracy for m in run.metrics if m.round > since * run.rounds]
    return statistics.fmean(accuracy for accuracy in late if accuracy is not None)
