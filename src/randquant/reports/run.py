"""A finished run as one self-contained HTML page, and several runs on one page.

Equal runs give equal bytes, so a page can be compared and cached like any other result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from randquant._internal import formatting
from randquant._internal.formatting import minus, to_json
from randquant._internal.imports import __version__
from randquant.aggregation.additive import parties_notes
from randquant.aggregation.mechanism import describe_influence
from randquant.channels.channel import Channel
from randquant.mechanisms.registry import notes_on
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import MODEL_TERMS, NEIGHBORINGS, SIMULATED, Guarantee
from randquant.reports import pages
from randquant.reports.channels import ACROSS, UP, codes_sent, divergences
from randquant.reports.figures import COLORS, Axis, Figure, line_chart
from randquant.reports.notebook import Facts, write_page
from randquant.reports.pages import DataTable, Notes, Paragraphs, Part, Section
from randquant.training.config import (
    NAMES,
    TrainConfig,
    describe_upload,
    differing,
    flat,
    setting_value,
)
from randquant.training.federated import Run
from randquant.training.run_store import (
    BASELINE,
    REPORT,
    RoundMetrics,
    RunRecord,
    RunStore,
    RunSummary,
    Status,
    read_finished,
)
from randquant.training.run_store import notes_on_runs as notes
from randquant.training.setup import stored_channel, stored_mechanism

TABLE_ROWS = 20

Card = tuple[str, str, list[str]]  # name, figure, lines below it

Pick = Callable[[RoundMetrics], float | None]

Drawn = tuple[str, Sequence[tuple[float, float]], str]  # label, points, style of a line

WITHOUT = "without privacy: no ε covers it"
"""Label of a run that was trained without privacy, on clients' data, for comparison."""

SPENT = "Epsilon so far, per round"
SO_FAR = (
    "A proven upper bound for a run that was declared to end with that round. A run whose end was "
    "chosen by looking at it has the guarantee of all rounds that were declared."
)


def figures(run: Run) -> list[Figure]:
    """Draw accuracy (or loss, if it was not measured) and epsilon over rounds, for a notebook."""
    first, *others = training_charts(run.record, None)
    return [first, *(chart for chart in others if chart.title == SPENT)]


def facts(run: Run) -> Facts:
    """Return a run as a short table; its epsilon is never printed below its value."""
    record, summary = run.record, run.record.summary
    guarantee = summary.guarantee
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
        ("rounds", str(record.rounds)),
        ("upload of a client and round", formatting.byte_size(summary.bytes_per_upload)),
    ]
    return _title(record.config), ("fact", "value"), [row for row in rows if row[1]]


def page(run: Run, uncovered: bool = False) -> str:
    """Write a run as the text of one HTML page, with its baseline if its folder has one."""
    return _rendered(run.record, run.folder, uncovered)


def report_run(folder: Path, path: Path | None = None, *, uncovered: bool = False) -> Path:
    """Write the page of a finished run from its folder, without training; return its path.

    Args:
        folder: of the run.
        path: of the page; by default report.html in the folder.
        uncovered: also show what no epsilon covers: the clients' training loss, and times.

    Raises:
        ValueError: there is no finished run in the folder, or its files are damaged.
    """
    record = read_finished(folder)
    return write_page(
        path or folder / REPORT, _rendered(record, folder, uncovered), _archived(record, folder)
    )


def archive(run: Run) -> dict[str, Any]:
    """Return the facts of a run for a file next to its page: see `docs/privacy-statement.md`.

    Nothing is in it that the page would not show: no training loss of clients, and no times.
    """
    return _archived(run.record, run.folder)


def _archived(record: RunRecord, folder: Path) -> dict[str, Any]:
    baseline, summary = read_baseline(folder), record.summary
    return {
        "randquant": __version__,
        **run_facts(record, baseline and baseline.summary),
        "seen_by": summary.guarantee and pages.observer(summary.guarantee),
        "covered": pages.covered_by(summary.guarantee, COVERED),
        "not_covered": _not_covered(record, baseline, uncovered=False),
    }


def run_facts(record: RunRecord, baseline: RunSummary | None) -> dict[str, Any]:
    """Return the facts that a run's page, its file of facts and the command line have in common."""
    config, summary = record.config, record.summary
    channel = stored_channel(config)
    pure = None if channel is None else certify(channel, math.inf)
    return {
        "config": config,
        **to_json(summary),
        "per_coordinate": pure and {"order": pure.order, "epsilon": pure.epsilon},
        "baseline_accuracy": baseline and baseline.accuracy,
        "bits_per_coordinate": summary.bits_per_coordinate,
        "notes": notes_on(config.mechanism, config.parameters),
    }


def read_baseline(folder: Path) -> RunRecord | None:
    # A baseline that was stopped is not compared with.
    inner = RunStore(folder / BASELINE)
    return read_finished(inner.folder) if inner.exists() and inner.has("summary") else None


def _rendered(record: RunRecord, folder: Path, uncovered: bool) -> str:
    baseline, mechanism = read_baseline(folder), stored_mechanism(record.config)
    if mechanism is None or (channel := mechanism.channel) is None:
        return render(record, baseline, uncovered=uncovered)
    # Clients' numbers, such as their loss, are further coordinates of the same update.
    dimension = record.summary.dimension + len(record.config.privacy.numbers)
    summed = summed_clients(record.summary, record.config) or 0
    sentence = describe_influence(mechanism, dimension, summed, record.config.cohort)
    return render(record, baseline, channel, sentence, uncovered)


def render(
    run: RunRecord,
    baseline: RunRecord | None = None,
    channel: Channel | None = None,
    hostile: str = "",
    uncovered: bool = False,
) -> str:
    """Write a run's record as the text of one HTML page.

    Args:
        run: the run to report.
        baseline: the same run without privacy, for comparison.
        channel: of each coordinate, if the mechanism has one.
        hostile: a sentence on how far one client can move a round's mean; empty if not known.
        uncovered: also show what no epsilon covers: the clients' training loss, and times.

    Guarantees:
        Unless `uncovered`, nothing is shown that the guarantee does not cover, but a baseline if
        there is one; both are marked. Accuracy and loss are taken to be on public test data.
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it says everything without that script.
        The printed epsilon is never below the real one.
        All text of the configuration is escaped.
        Equal input gives equal bytes.
    """
    config = run.config
    title = _title(config)
    # The meaning comes before the charts: a figure without its terms is easily misquoted.
    return pages.report(
        title,
        "Federated training report",
        title,
        _lead(run),
        [
            Section(
                "What the guarantee means",
                [_meaning(run, channel, hostile)],
                columns=False,
                text=True,
            ),
            pages.coverage(run.summary.guarantee, COVERED, _not_covered(run, baseline, uncovered)),
            Section("Training", training_charts(run, baseline)),
            Section("Not covered by the guarantee", _uncovered_charts(run) * uncovered),
            Section("One coordinate", _coordinate_charts(channel)),
            Section("Details", [_config_table(config), _round_table(run), Notes([ARCHIVED])]),
        ],
        cards=[_accuracy_card(run, baseline), _upload_card(run), _guarantee_card(run)],
    )


def _lead(run: RunRecord) -> str:
    config = run.config
    # Sorted, since equal runs give equal pages; nested tables are in the table of settings.
    pairs = sorted((k, v) for k, v in config.parameters.items() if not isinstance(v, dict))
    parameters = ", ".join(f"{name} {formatting.plain(value)}" for name, value in pairs)
    mechanism = config.mechanism + (f" ({parameters})" if parameters else "")
    text = (
        f"{formatting.count(run.rounds, 'round')}, {config.cohort:,} of "
        f"{formatting.count(config.task.population, 'client')} in each. Mechanism: {mechanism}."
    )
    if run.summary.stopped:
        text += f" Stopped {run.summary.stopped}."
    notes = [f"{note}." for note in notes_on(config.mechanism, config.parameters)]
    return " ".join([text, *notes, run.summary.advice]).strip()


COVERED = (
    "All that clients sent in the declared rounds: hence each round's released mean, its length, "
    "the numbers sent with updates, the models, and whatever is computed from these."
)

UNSHOWN = (
    "The clients' training loss and the time that rounds took are in the run's records and are not "
    "shown here; rq.report(run, path, uncovered=True) shows them."
)
ARCHIVED = (
    "The facts of this page are in a JSON file next to it too, whose name ends in .facts.json: to "
    "archive with a privacy statement."
)
SHOWN = "The clients' training loss and the time that rounds took, shown below because asked for."


def _not_covered(run: RunRecord, baseline: RunRecord | None, uncovered: bool) -> str:
    parts = [SHOWN if uncovered else UNSHOWN]
    if baseline is not None:
        parts.append("The run without privacy was trained on the clients' data with no protection.")
    if run.summary.loss is not None:
        parts.append(
            "Accuracy, AUC and loss are on test data that belong to no client and are taken to be "
            "public: if they are not, these figures are not covered. Nor is a setting that was "
            "chosen by looking at clients' data."
        )
    return " ".join(parts)


def _accuracy_card(run: RunRecord, baseline: RunRecord | None) -> Card:
    accuracy = run.summary.accuracy
    if accuracy is None:
        return "Test loss", formatting.number(run.summary.loss, 4) or "none", []
    lines = ["No run without privacy to compare with."]
    if baseline is not None and (reference := baseline.summary.accuracy) is not None:
        difference = f"Difference {minus(f'{100 * (accuracy - reference):+.2f}')} points"
        lines = [f"{100 * reference:.2f}\u00a0% {WITHOUT}", difference]
    return "Test accuracy", f"{100 * accuracy:.2f}\u00a0%", [*_imbalance_lines(run.summary), *lines]


def _imbalance_lines(summary: RunSummary) -> list[str]:
    # Where one class is frequent, naming it for all has a high accuracy and tells nothing apart.
    texts = {
        "balanced accuracy": ("Balanced accuracy", "each class counts the same"),
        "AUC": ("AUC", "0.5 is no better than chance"),
    }
    return [
        f"{texts[name][0]} {value:.4f}: {texts[name][1]}"
        for name, value in summary.figures_if_imbalanced.items()
    ]


def _upload_card(run: RunRecord) -> Card:
    summary = run.summary
    floats, upload = 4 * summary.dimension, summary.bytes_per_upload
    # Masked vectors of small models can be larger than the floats that they protect: say so.
    ratio, word = (floats / upload, "less") if upload <= floats else (upload / floats, "more")
    lines = [
        f"{ratio:.2f} times {word} than floats of 4 bytes ({formatting.byte_size(floats)})",
        f"{summary.bits_per_coordinate:.2f} bits per coordinate, header included",
    ]
    if (clients := summed_clients(summary, run.config)) is not None:
        summed = formatting.count(clients, "client")
        lines.append(f"masked for a sum of {summed}; its handshake is further traffic")
        lines.append(f"{formatting.byte_size(summary.bytes_as_codes)} as plain codes")
    return "Upload per client and round", formatting.byte_size(upload), lines


def summed_clients(summary: RunSummary, config: TrainConfig) -> int | None:
    """Return how many clients' vectors are in a secure sum; None if they are sent unmasked.

    Under model trust absent clients may send zeros: then more are summed than the mean is divided
    by.
    """
    if (stated := summary.beside or summary.guarantee) is None:
        return None
    trust, hidden = stated.trust, config.hidden_cohorts
    # The models' readers see no sum: who adds up is known by the mechanism then.
    if trust == "model" and (mechanism := stored_mechanism(config)) is not None:
        trust = mechanism.trust
    if trust != "aggregate":
        return None
    return config.cohort if hidden is None else hidden.summands(trust)


def _guarantee_card(run: RunRecord) -> Card:
    name, guarantee = "Guarantee of the whole run", run.summary.guarantee
    if guarantee is None:
        return name, "None", ["This run has no privacy mechanism."]
    scope = _scope_name(guarantee)
    if math.isinf(guarantee.epsilon):  # noise without a proof is not a guarantee
        return name, "No guarantee", ["ε is infinite", scope]
    return (
        name,
        formatting.bound(guarantee.epsilon),
        [
            f"at δ = {minus(formatting.plain(guarantee.delta))}",
            scope,
            *pages.other_figure(run.summary.other_relation),
            *([_spent(run)] if run.summary.spent else []),
            *[SIMULATED] * guarantee.simulated,
            *(_visible_guarantee(other) for other in [run.summary.beside] if other is not None),
        ],
    )


def _spent(run: RunRecord) -> str:
    # The part of the guarantee that earlier releases had spent before the first round.
    if (spent := run.summary.spent) is None:
        return ""
    delta = minus(formatting.plain(spent.delta))
    return f"before the first round {formatting.bound(spent.epsilon)} of it at δ = {delta}"


def _scope_name(guarantee: Guarantee) -> str:
    # Who is protected, and against whom.
    kind = guarantee.neighboring.replace("_", " ")
    return f"{kind} {guarantee.unit}, {guarantee.trust} trust"


def _visible_guarantee(other: Guarantee) -> str:
    # The run's other guarantee, at the same delta: against an observer who sees who takes part.
    bound = "no guarantee" if math.isinf(other.epsilon) else formatting.bound(other.epsilon)
    return f"{bound} ({_scope_name(other)}, who takes part is seen)"


def _meaning(run: RunRecord, channel: Channel | None, hostile: str) -> Paragraphs:
    summary = run.summary
    guarantee = summary.guarantee
    if guarantee is None:
        paragraphs = [
            ("Nothing is promised.", "Anyone who sees an upload sees the client's update.")
        ]
    elif math.isinf(guarantee.epsilon):
        paragraphs = [("There is no guarantee.", "No finite ε is proven for this run.")]
    else:
        paragraphs = [
            ("What is promised.", pages.promise(guarantee)),
            *pages.how_to_compare(guarantee, summary.other_relation),
            *_terms(summary),
            *_parties(run),
            ("One coordinate and the whole run.", _scope(run, guarantee, channel)),
            *pages.how_large(guarantee),
            *pages.hostile_client(hostile),
            ("Deployed and simulated.", _simulated(run)),
        ]
    return Paragraphs(paragraphs)


def _terms(summary: RunSummary) -> list[tuple[str, str]]:
    # Model trust assumes that nobody sees more than the models, which is to be true wherever the
    # figure is quoted.
    stated, other = summary.guarantee, summary.beside
    paragraphs = []
    if stated is not None and stated.trust == "model":
        terms = MODEL_TERMS[0].upper() + MODEL_TERMS[1:]
        text = (
            f"{terms}. This page and the run's other files are for those who may see more: only "
            "the models may be published."
        )
        paragraphs.append(("When it may be claimed.", text))
    if other is not None:
        text = (
            f"Of the same run, for one whole {other.unit}: {_visible_guarantee(other)}, at the "
            "same δ."
        )
        for figure in pages.other_figure(summary.beside_other_relation):
            text += f" Likewise {figure}."
        paragraphs.append(("Another guarantee.", text))
    return paragraphs


def _parties(run: RunRecord) -> list[tuple[str, str]]:
    notes = parties_notes(run.config.mechanism, run.config.parameters)
    if run.summary.spent is not None and notes:
        notes.append("What was spent before the first round counts on what it said itself.")
    return [("Who adds the noise.", " ".join(notes))] if notes else []


def _scope(run: RunRecord, guarantee: Guarantee, channel: Channel | None) -> str:
    summary, single = run.summary, ""
    # Papers state the per-coordinate figure: both are named together, so that nobody mixes them.
    if channel is not None:
        pure = formatting.bound(certify(channel).epsilon.upper)
        single = f"One code of one coordinate has {pure} at order infinity. "
    return (
        f"{single}A figure for one coordinate is never the guarantee of a run. The guarantee of "
        "the run counts everything that one client sends in all declared rounds, whatever ended "
        "the run: the client with the most rounds takes part in "
        f"{formatting.count(summary.participations, 'round')} with "
        f"{describe_upload(run.config, summary.dimension)} in each, and "
        f"{formatting.count(guarantee.releases, 'release')} were composed"
        f"{', with those before the first round' * (run.summary.spent is not None)}."
        f"{_padded(run, guarantee)}"
    )


def _padded(run: RunRecord, guarantee: Guarantee) -> str:
    # Why there are more releases than coordinates times rounds.
    # Padding is to a power of two above the update's own coordinates. Any other number of releases
    # has another cause, and the sentence would be wrong.
    own = run.summary.dimension + len(run.config.privacy.numbers)
    count, rest = divmod(guarantee.releases, max(run.summary.participations, 1))
    if rest or count <= own or count & (count - 1) or guarantee.hidden or run.summary.spent:
        return ""
    return f" They are {count:,} a round, since an update is padded to that before it is rotated."


EMPTY_VALUE_TEXTS = {
    "seed": "none: a secret key",
    "trust": "the mechanism's own",
    "clip_norm": "none but the mechanism's own",
    "stop_at_epsilon": "never",
    "max_participations": "no cap",
    "evaluate_every": "a tenth of the rounds",
}
"""Texts for empty settings that say how a run was trained; others it did not use."""


def _config_table(config: TrainConfig) -> DataTable:
    rows: list[tuple[str, str]] = []
    for setting in NAMES:
        value = setting_value(config, setting)
        if isinstance(value, Mapping):  # sorted: equal configurations give equal pages
            rows += [
                (f"{setting}: {name}", formatting.plain(value[name])) for name in sorted(value)
            ]
        elif value != ():
            shown = _shown(setting, value)
            rows += [(setting, shown)] if shown else []
    return DataTable("Configuration", ("setting", "value"), rows, "settings")


def _round_table(run: RunRecord) -> DataTable:
    evaluated = [metric for metric in run.metrics if metric.loss is not None]
    # Evenly spaced, including the first and the last; a set, because a short run repeats some.
    gap = (len(evaluated) - 1) / (TABLE_ROWS - 1)
    shown = sorted({round(i * gap) for i in range(TABLE_ROWS)}) if evaluated else []
    names = ("round", "accuracy, %", "test loss", "epsilon so far", "uploads")
    rows = [
        (
            f"{m.round:,}",
            formatting.number(m.accuracy, 2, scale=100),
            formatting.number(m.loss, 3),
            formatting.spent(m.epsilon),
            formatting.byte_size(m.bytes_up),
        )
        for m in (evaluated[index] for index in shown)
    ]
    title = f"{len(shown)} of {formatting.count(len(evaluated), 'evaluated round')}"
    return DataTable(title, names, rows, "numbers")


def _simulated(run: RunRecord) -> str:
    # One key makes all random choices of a simulation, so its holder can subtract the noise.
    source, holder = "the seed in the table below", "anyone who knows it"
    if run.config.seed is None:
        source, holder = "a secret key in the run's folder", "anyone who has that file"
    return (
        "This run simulated all clients on one machine, with every random choice drawn from "
        f"{source}: {holder} can repeat the choices and undo the protection. The guarantee is that "
        "of the mechanism as deployed, each client with a secret key of its own, and no statement "
        "about the data this simulation stored."
    )


# The pictures of one run: its training, and one coordinate.


def _title(config: TrainConfig) -> str:
    """Return the title of a run: its clients and its mechanism."""
    mechanism = "own mechanism" if config.own_mechanism else config.mechanism
    return f"{formatting.count(config.task.population, 'client')} · {mechanism}"


def training_charts(run: RunRecord, baseline: RunRecord | None) -> list[Figure]:
    """Draw accuracy, loss and epsilon over rounds; measurements that do not exist are left out."""

    def lines(pick: Pick) -> list[Drawn]:
        drawn: list[Drawn] = [(f"this run ({run.config.mechanism})", _points(run, pick), "c1")]
        if baseline is not None:
            drawn.append((WITHOUT, _points(baseline, pick), "c2 dashed"))
        return drawn

    charts = _test_charts(lines, _loss_label(run.config))
    # A regression has a loss and no accuracy.
    charts = charts if run.summary.accuracy is not None else charts[1:]
    return [*charts, *_signal_and_noise(run), *_number_charts(run), *_epsilon_chart(run)]


def _test_charts(lines: Callable[[Pick], list[Drawn]], loss_label: str) -> list[Figure]:
    accuracy = lines(lambda m: None if m.accuracy is None else 100 * m.accuracy)
    loss = lines(lambda m: m.loss)
    return [
        line_chart("Accuracy on test data, per round", accuracy, "round", "accuracy, %"),
        line_chart("Loss on test data, per round", loss, "round", loss_label),
    ]


def _uncovered_charts(run: RunRecord) -> list[Figure]:
    """Draw what no epsilon covers: the clients' training loss and the time of each round."""
    loss, seconds = (_points(run, pick) for pick in (lambda m: m.train_loss, lambda m: m.seconds))
    return [
        line_chart(f"{title}: no ε covers it", [(label, points, "c1")], "round", up)
        for title, label, points, up in (
            ("Loss on clients' training data", "mean of the cohort", loss, _loss_label(run.config)),
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


def _number_charts(run: RunRecord) -> list[Figure]:
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


def _spent_in_all(guarantee: Guarantee) -> str:
    return formatting.spent(guarantee.epsilon) + f"; {SIMULATED}" * guarantee.simulated


def _loss_label(*configs: TrainConfig | None) -> str:
    # Only a cross entropy is in nats.
    nats = all(config is not None and "cross_entropy" in config.task.loss for config in configs)
    return "loss, nats" if nats else "loss"


def _epsilon_chart(run: RunRecord) -> list[Figure]:
    # Only if the log has it and it is finite.
    points = _points(run, lambda m: m.epsilon)
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


def _points(run: RunRecord | Status, pick: Pick) -> list[tuple[float, float]]:
    picked = ((metric.round, pick(metric)) for metric in run.metrics)
    return [(place, value) for place, value in picked if value is not None]


def _coordinate_charts(channel: Channel | None) -> list[Figure]:
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


# Several runs on one self-contained page: their curves overlaid, their settings side by side.


def render_runs(runs: Sequence[Status]) -> str:
    """Write several runs as the text of one HTML page.

    Args:
        runs: finished or not; damaged ones are only listed.

    Returns:
        A whole HTML document.

    Guarantees:
        The page is self-contained, and all text of configurations is escaped.
        The printed epsilons are never below the real ones.

    Raises:
        ValueError: none of the runs can be read.
    """
    readable = [run for run in runs if run.config is not None and run.state != "damaged"]
    if not readable:
        raise ValueError(f"Expected runs to draw, got {runs[0].folder}: {runs[0].error}")
    labels = _labels(readable)
    title = f"{formatting.count(len(readable), 'run')} side by side"
    mechanisms = ", ".join(sorted({run.config.mechanism for run in readable if run.config}))
    sections = [
        Section("Training", _charts(readable, labels)),
        Section("Outcomes", _outcomes(readable, labels)),
        Section("Settings", _settings(readable, labels)),
        Section("Runs that cannot be read", _damaged(runs)),
    ]
    lead = f"Mechanisms: {mechanisms}."
    return pages.report(title, "Training runs compared", title, lead, sections)


def _labels(runs: Sequence[Status]) -> list[str]:
    # The shortest ends of their paths that differ.
    for depth in (1, 2, 3):
        labels = ["/".join(run.folder.resolve().parts[-depth:]) for run in runs]
        if len(set(labels)) == len(labels):
            return labels
    return [str(run.folder) for run in runs]


def _charts(runs: Sequence[Status], labels: Sequence[str]) -> list[Figure]:
    styles = _styles(labels)

    def lines(pick: Pick) -> list[Drawn]:
        drawn = (
            (label, _points(run, pick), style)
            for run, (label, style) in zip(runs, styles, strict=True)
        )
        return [line for line in drawn if line[1]]

    charts = _test_charts(lines, _loss_label(*(run.config for run in runs)))
    epsilon = lines(lambda m: m.epsilon)
    if any(math.isfinite(y) for _, points, _ in epsilon for _, y in points):
        # Runs may differ in δ and neighbours: the notes say so, since the curves do not.
        note = " ".join(
            [f"{SO_FAR} Each at its run's δ and neighbours.", *(f"{each}." for each in notes(runs))]
        )
        up = Axis("epsilon (log scale)", log=True, bound=True)
        charts.append(line_chart("Epsilon so far, per round", epsilon, "round", up, note=note))
    return charts


def _styles(labels: Sequence[str]) -> list[tuple[str, str]]:
    # Dashed where colours repeat.
    return [
        (label, f"c{k % COLORS + 1}" + " dashed" * (k // COLORS % 2))
        for k, label in enumerate(labels)
    ]


def _outcomes(runs: Sequence[Status], labels: Sequence[str]) -> list[Part]:
    columns = (
        "run", "accuracy, %", "ε ≤, replace one", "ε ≤, zero out", "δ", "protects one",
        "trust", "rounds", "bytes per upload", "state",
    )  # fmt: skip
    rows = []
    for run, label in zip(runs, labels, strict=True):
        assert run.config is not None
        rows.append(
            (
                label,
                formatting.number(run.accuracy, 2, scale=100),
                *(
                    "none" if run.epsilon is None else formatting.spent(run.epsilon_under(relation))
                    for relation in NEIGHBORINGS
                ),
                "" if run.delta is None else formatting.plain(run.delta),
                "" if run.guarantee is None else run.config.privacy.unit,
                "" if run.guarantee is None else run.guarantee.trust,
                f"{run.rounds:,} of {run.config.rounds:,}",
                "" if run.bytes_per_upload is None else f"{run.bytes_per_upload:,}",
                run.state,
            )
        )
    # A reader who adds runs of the same clients must not think that the largest ε covers all.
    title = "Each ε covers all declared rounds of one run: for clients in several runs they add up"
    return [
        DataTable(title, columns, rows, "numbers"),
        Notes([f"{note}." for note in notes(runs)]),
    ]


def _settings(runs: Sequence[Status], labels: Sequence[str]) -> list[Part]:
    # First the settings that differ, a row per run; then those that all runs share.
    configs = [run.config for run in runs if run.config is not None]
    differ = differing(configs)
    values = [flat(config) for config in configs]
    tables: list[Part] = []
    if differ:
        rows = [
            (label, *(_shown(name, run.get(name)) for name in differ))
            for label, run in zip(labels, values, strict=True)
        ]
        columns = ("run", *differ)
        tables.append(DataTable("Settings that differ", columns, rows, "numbers", wide=True))
    same = [(name, _shown(name, value)) for name, value in values[0].items() if name not in differ]
    tables.append(DataTable("Settings of all runs", ("setting", "value"), same, "settings"))
    return tables


def _shown(name: str, value: Any) -> str:
    return EMPTY_VALUE_TEXTS.get(name, "") if value in (None, "") else formatting.plain(value)


def _damaged(runs: Sequence[Status]) -> list[Part]:
    rows = [(str(run.folder), run.error) for run in runs if run.state == "damaged"]
    return [DataTable("Why", ("run", "reason"), rows, "claims")] if rows else []
