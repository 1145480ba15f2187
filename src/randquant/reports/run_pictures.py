"""Pictures of a run: its training and one coordinate; and its facts for a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from randquant._internal import formatting
from randquant._internal.formatting import minus
from randquant.channels.channel import Channel
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import SIMULATED, Guarantee
from randquant.reports.channel import ACROSS, UP, codes_sent, divergences
from randquant.reports.figures import (
    Axis,
    Figure,
    line_chart,
)
from randquant.reports.notebook import Facts
from randquant.training.config import TrainConfig
from randquant.training.records import RoundMetrics, RunRecord

Pick = Callable[[RoundMetrics], float | None]
WITHOUT = "without privacy: no ε covers it"
"""Label of a run that was trained without privacy, on clients' data, for comparison."""

Drawn = tuple[str, Sequence[tuple[float, float]], str]  # label, points, style of a line


def titled(config: TrainConfig) -> str:
    """Return the title of a run: its clients and its mechanism."""
    mechanism = "own mechanism" if config.own_mechanism else config.mechanism
    return f"{formatting.count(config.task.population, 'client')} · {mechanism}"


def training(run: RunRecord, baseline: RunRecord | None) -> list[Figure]:
    """Draw accuracy, loss and epsilon over rounds; measurements that do not exist are left out."""

    def lines(pick: Pick) -> list[Drawn]:
        drawn: list[Drawn] = [(f"this run ({run.config.mechanism})", _points(run, pick), "c1")]
        if baseline is not None:
            drawn.append((WITHOUT, _points(baseline, pick), "c2 dashed"))
        return drawn

    accuracy = lines(lambda m: None if m.accuracy is None else 100 * m.accuracy)
    loss = lines(lambda m: m.loss)
    charts: list[Figure] = [
        line_chart("Accuracy on test data, per round", accuracy, "round", "accuracy, %"),
        line_chart("Loss on test data, per round", loss, "round", _loss(run)),
    ]
    # A regression has a loss and no accuracy.
    charts = charts if run.summary.accuracy is not None else charts[1:]
    return [*charts, *_signal_and_noise(run), *_numbers(run), *_epsilon(run)]


def uncovered(run: RunRecord) -> list[Figure]:
    """Draw what no epsilon covers: the clients' training loss and the time of each round."""
    loss, seconds = (_points(run, pick) for pick in (lambda m: m.train_loss, lambda m: m.seconds))
    return [
        line_chart(f"{title}: no ε covers it", [(label, points, "c1")], "round", up)
        for title, label, points, up in (
            ("Loss on clients' training data", "mean of the cohort", loss, _loss(run)),
            ("Time of each round", "all clients on one machine", seconds, "seconds"),
        )
    ]


def _signal_and_noise(run: RunRecord) -> list[Figure]:
    # Only if the mechanism states the expected noise of a mean.
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
    # Numbers that clients sent with their updates, with a band of two deviations of their noise.
    charts: list[Figure] = []
    for name in (number.name for number in run.config.privacy.read_numbers):
        middle, low, high = (_points(run, _number(name, shift)) for shift in (0, -2, 2))
        lines: list[Drawn] = [
            ("mean of the cohort, as released", middle, "c1"),
            ("two standard deviations of its noise", low, "c1 faint"),
            ("", high, "c1 faint"),
        ]
        note = "Sent with the updates, in the same sum; the guarantee above covers it."
        title = f"Clients' {name}, per round"
        charts.append(line_chart(title, lines, "round", name, note=note))
    return charts


def _number(name: str, deviations: float) -> Pick:
    # The released mean, shifted by a multiple of the standard deviation of its noise.

    def pick(metrics: RoundMetrics) -> float | None:
        numbers = metrics.numbers
        return (
            None if numbers is None else numbers[name] + deviations * numbers[f"{name}_deviation"]
        )

    return pick


def overview(run: RunRecord) -> list[Figure]:
    """Draw accuracy (or loss, if it was not measured) and epsilon over rounds, for a notebook."""
    first, *others = training(run, None)
    return [first, *(chart for chart in others if chart.title == SPENT)]


def facts(run: RunRecord) -> Facts:
    """Return a run as a short table; its epsilon is never printed below its value."""
    summary, guarantee = run.summary, run.summary.guarantee
    rows = [
        ("accuracy, %", formatting.number(summary.accuracy, 2, scale=100)),
        *(
            (name, formatting.number(value, 4))
            for name, value in summary.figures_if_imbalanced.items()
        ),
        ("test loss", formatting.number(summary.loss, 4)),
        ("ε ≤", "no privacy" if guarantee is None else _spent_in_all(guarantee)),
        ("δ", "" if guarantee is None else minus(formatting.plain(guarantee.delta))),
        ("trust", "" if guarantee is None else guarantee.trust),
        ("rounds", str(run.rounds)),
        ("upload of a client and round", formatting.byte_size(summary.bytes_per_upload)),
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


def _epsilon(run: RunRecord) -> list[Figure]:
    # Only if the log has it and it is finite.
    points = [(at, epsilon) for at, epsilon in _points(run, lambda m: m.epsilon)]
    if not any(math.isfinite(epsilon) for _, epsilon in points):
        return []
    lines: list[Drawn] = [("the client with the most rounds", points, "c1")]
    limit = run.config.stop_at_epsilon
    if limit is not None:  # the run stops before this line
        ends = [(1.0, limit), (points[-1][0], limit)]
        lines.append(("not to be exceeded", ends, "c2 dashed"))
    note = f"{SO_FAR} At the δ stated above."
    up = Axis("epsilon", zero=True, bound=True)
    return [line_chart(SPENT, lines, "round", up, note=note)]


def _points(run: RunRecord, pick: Pick) -> list[tuple[float, float]]:
    picked = ((metric.round, pick(metric)) for metric in run.metrics)
    return [(place, value) for place, value in picked if value is not None]


def coordinate(channel: Channel | None) -> list[Figure]:
    """Draw the Rényi divergence bound of one coordinate, and its codes for a few inputs."""
    if channel is None:
        return []
    pure, curve = certify(channel).epsilon.upper, divergences(channel)
    lines: list[Drawn] = [
        ("upper bound", curve, "c1"),
        (
            f"order infinity: {formatting.bound(pure)}",
            [(order, pure) for order, _ in (curve[0], curve[-1])],
            "c2 dashed",
        ),
    ]
    title = "How well one coordinate is protected, by Rényi order"
    note = "For one coordinate in one round; the guarantee of the run is stated above."
    return [
        line_chart(title, lines, ACROSS, UP, note=note),
        codes_sent("What one coordinate sends, for a few inputs x", channel),
    ]
