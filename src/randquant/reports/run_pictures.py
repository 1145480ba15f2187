"""The pictures of a run: training, one coordinate, cost; and its facts for a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from randquant._internal import formatting
from randquant._internal.formatting import minus
from randquant.channels.channel import Channel
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import SIMULATED, Guarantee
from randquant.reports.figures import (
    Axis,
    Bar,
    Figure,
    HorizontalBars,
    grouped_bars,
    line_chart,
)
from randquant.reports.notebook import Facts
from randquant.training.config import TrainConfig
from randquant.training.data import features
from randquant.training.records import RoundMetrics, RunRecord

Pick = Callable[[RoundMetrics], float | None]
Drawn = tuple[str, Sequence[tuple[float, float]], str]  # label, points, style of a line


@dataclass(frozen=True, slots=True)
class EpsilonCurve:
    """A certificate over Rényi orders, for one coordinate of one upload.

    Attributes:
        orders: in (1, inf), increasing.
        epsilon: (same length) upper bounds, in nats.
        pure: the upper bound at order infinity, in nats; may be infinite.
    """

    orders: Sequence[float]
    epsilon: Sequence[float]
    pure: float


@dataclass(frozen=True, slots=True)
class CodeShares:
    """What a channel sends for a few inputs.

    Attributes:
        values: (m,) what each code decodes to.
        rows: (m,) probabilities of the codes, by a label such as "x = -clip".
    """

    values: Sequence[float]
    rows: Mapping[str, Sequence[float]]


def epsilon_curve(channel: Channel) -> EpsilonCurve:
    """Certify one coordinate at orders from 1.01 to 1,001, and at infinity."""
    orders = [float(1 + step) for step in np.geomspace(0.01, 1000, 61)]
    epsilon = [certify(channel, order).epsilon.upper for order in orders]
    return EpsilonCurve(orders, epsilon, certify(channel).epsilon.upper)


def code_shares(channel: Channel) -> CodeShares:
    """The distributions of the code at the ends and in the middle."""
    inputs = {"x = −clip": -channel.clip, "x = 0": 0.0, "x = clip": channel.clip}
    rows = {}
    for label, x in inputs.items():
        weights, total = channel.mix(x)
        rows[label] = [float(weight / total) for weight in weights]
    return CodeShares([float(value) for value in channel.values], rows)


def titled(config: TrainConfig) -> str:
    """A run in a few words; what was passed as objects has no name."""
    what = (
        "own model and data"
        if config.task.by_objects
        else f"{config.task.dataset} · {config.task.model}"
    )
    return f"{what} · {'own mechanism' if config.own_mechanism else config.mechanism}"


def fitted(run: RunRecord) -> list[str]:
    """What features were fitted on, if on anything: printed beside every epsilon."""
    statement = features.statement(run.config, run.summary)
    return [f"{statement[0].upper()}{statement[1:]}."] if statement else []


def training(run: RunRecord, baseline: RunRecord | None) -> list[Figure]:
    """Accuracy, loss and epsilon over rounds; what was not measured is left out."""

    def lines(pick: Pick) -> list[Drawn]:
        drawn: list[Drawn] = [(f"this run ({run.config.mechanism})", _points(run, pick), "c1")]
        if baseline is not None:
            drawn.append(("without privacy", _points(baseline, pick), "c2 dashed"))
        return drawn

    accuracy = lines(lambda m: None if m.accuracy is None else 100 * m.accuracy)
    loss = lines(lambda m: m.loss)
    loss.append(("training data", _points(run, lambda m: m.train_loss), "c1 faint"))
    charts: list[Figure] = [
        line_chart("Accuracy on test data, per round", accuracy, "round", "accuracy, %"),
        line_chart("Loss on test data, per round", loss, "round", _loss(run)),
    ]
    charts = charts if run.summary.accuracy is not None else charts[1:]
    moving = _points(run, lambda m: m.threshold)
    if moving and run.config.privacy.clip_quantile is not None:
        title, drawn = "Clipping threshold, per round", [("clip_norm", moving, "c1")]
        charts.append(line_chart(title, drawn, "round", "L2 norm of an update"))
    return [*charts, *_means(run), *_numbers(run), *_spent(run)]


def _means(run: RunRecord) -> list[Figure]:
    """What the server learned in each round, beside the noise in it, if that is known."""
    noise = _points(run, lambda m: m.noise_norm)
    if not any(length > 0 for _, length in noise):
        return []
    lines: list[Drawn] = [
        ("mean update, as released", _points(run, lambda m: m.mean_norm), "c1"),
        ("its noise, as expected", noise, "c2 dashed"),
    ]
    note = (
        "Where both lines are one, a round shows next to nothing but noise; what is learned then "
        "comes from many rounds together."
    )
    up = Axis("L2 norm", zero=True)
    return [line_chart("Signal and noise, per round", lines, "round", up, note=note)]


def _numbers(run: RunRecord) -> list[Figure]:
    """What clients sent beside their updates, each between the lines of two deviations."""
    figures = []
    for name in (number.name for number in run.config.privacy.read_numbers):
        middle, low, high = (_points(run, _number(name, far)) for far in (0, -2, 2))
        lines: list[Drawn] = [
            ("mean of the cohort, as released", middle, "c1"),
            ("two standard deviations of its noise", low, "c1 faint"),
            ("", high, "c1 faint"),
        ]
        note = "Sent beside the updates, in the same sum; the guarantee above covers it."
        title = f"Clients' {name}, per round"
        figures.append(line_chart(title, lines, "round", name, note=note))
    return figures


def _number(name: str, deviations: float) -> Pick:
    """A released mean, so many standard deviations of its noise above it."""

    def pick(metrics: RoundMetrics) -> float | None:
        numbers = metrics.numbers
        return (
            None if numbers is None else numbers[name] + deviations * numbers[f"{name}_deviation"]
        )

    return pick


def overview(run: RunRecord) -> list[Figure]:
    """What a notebook shows of a run: accuracy (or else loss) and epsilon over rounds."""
    first, *more = training(run, None)
    return [first, *(each for each in more if each.title == SPENT)]


def facts(run: RunRecord) -> Facts:
    """A run in a few lines; its epsilon is never printed below its value."""
    summary, guarantee = run.summary, run.summary.guarantee
    rows = [
        ("accuracy, %", formatting.number(summary.accuracy, 2, scale=100)),
        ("test loss", formatting.number(summary.loss, 4)),
        ("ε ≤", "no privacy" if guarantee is None else _spent_in_all(guarantee)),
        ("δ", "" if guarantee is None else minus(formatting.plain(guarantee.delta))),
        ("trust", "" if guarantee is None else guarantee.trust),
        ("rounds", str(run.rounds)),
        ("upload of a client and round", formatting.size_of(summary.bytes_per_upload)),
        ("features", " ".join(fitted(run))),
    ]
    return titled(run.config), ("fact", "value"), [row for row in rows if row[1]]


def _spent_in_all(guarantee: Guarantee) -> str:
    return formatting.spent(guarantee.epsilon) + f"; {SIMULATED}" * guarantee.simulated


def _loss(run: RunRecord) -> str:
    return "loss, nats" if "cross_entropy" in run.config.task.loss else "loss"


SPENT = "Epsilon so far, per round"
SO_FAR = (
    "A proven upper bound for a run that was declared to end with that round. A run whose end was "
    "chosen by looking at it has the guarantee of all rounds that were declared."
)


def _spent(run: RunRecord) -> list[Figure]:
    """Epsilon of the rounds so far, if the log has it and it is finite."""
    points = [(at, epsilon) for at, epsilon in _points(run, lambda m: m.epsilon)]
    if not any(math.isfinite(epsilon) for _, epsilon in points):
        return []
    lines: list[Drawn] = [("the client called most often", points, "c1")]
    limit = run.config.stop_at_epsilon
    if limit is not None:
        ends = [(1.0, limit), (points[-1][0], limit)]
        lines.append(("not to be exceeded", ends, "c2 dashed"))
    note = " ".join([f"{SO_FAR} At the δ stated above.", *fitted(run)])
    up = Axis("epsilon", zero=True, bound=True)
    return [line_chart(SPENT, lines, "round", up, note=note)]


def _points(run: RunRecord, pick: Pick) -> list[tuple[float, float]]:
    picked = ((metric.round, pick(metric)) for metric in run.metrics)
    return [(place, value) for place, value in picked if value is not None]


def coordinate(curve: EpsilonCurve | None, output: CodeShares | None) -> list[Figure]:
    """How well one coordinate is protected, and what it sends."""
    charts = [] if curve is None else [_curve_chart(curve)]
    if output is not None:
        title = "What one coordinate sends, for a few inputs x"
        labels = [minus(f"{value:.3g}") for value in output.values]
        axes = ("value the code decodes to", Axis("probability", zero=True))
        charts.append(grouped_bars(title, labels, output.rows, *axes))
    return charts


def _curve_chart(curve: EpsilonCurve) -> Figure:
    # Without a finite bound the second line is empty, and the legend says why.
    ends = [(order, curve.pure) for order in (curve.orders[0], curve.orders[-1])]
    lines: list[Drawn] = [
        ("upper bound", list(zip(curve.orders, curve.epsilon, strict=True)), "c1"),
        (f"order infinity: {formatting.bound(curve.pure)}", ends, "c2 dashed"),
    ]
    title = "How well one coordinate is protected, by Rényi order"
    across = Axis("Rényi order (log scale)", log=True)
    up = Axis("Rényi divergence, nats", zero=True, bound=True)
    note = "For one coordinate in one round; the guarantee of the run is stated above."
    return line_chart(title, lines, across, up, note=note)


def cost(run: RunRecord) -> list[Figure]:
    """What a run cost: bytes of an upload, and time."""
    sent, floats = run.summary.bytes_per_upload, 4 * run.summary.dimension
    uploads = (
        Bar(f"this run ({run.config.mechanism})", sent, formatting.size_of(sent), "c1"),
        Bar("32-bit floats", floats, formatting.size_of(floats), "c4"),
    )
    names = ("gradient", "protect", "evaluate")
    spent = [math.fsum(getattr(m, f"seconds_{name}") for m in run.metrics) for name in names]
    # Set-up and checkpoints; the clock of a resumed run may have missed some rounds.
    spent.append(max(0.0, run.summary.seconds - math.fsum(spent)))
    parts = tuple(
        Bar(name, amount, f"{amount:,.1f} s", f"c{color}")
        for color, (name, amount) in enumerate(zip((*names, "other"), spent, strict=True), 1)
        if name != "other" or amount >= 0.05  # less is printed as zero
    )
    return [
        HorizontalBars(title="Bytes one client uploads in a round", bars=uploads),
        HorizontalBars(title="Where the time went", bars=parts, stacked=True),
    ]
