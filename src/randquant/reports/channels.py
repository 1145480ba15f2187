"""A channel, its certificate, and channels side by side: pictures, facts, text, JSON and pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from randquant._internal import formatting
from randquant._internal.formatting import bound, minus, round_up
from randquant.channels.channel import Channel, Moments
from randquant.channels.wire import bits_per_code
from randquant.mechanisms.registry import notes_on
from randquant.planning.compare import Comparison, Measured
from randquant.privacy.certificates.coordinate import Certificate, certify
from randquant.reports import pages
from randquant.reports.figures import (
    Axis,
    Figure,
    Mark,
    ScatterPlot,
    Series,
    StackedAreas,
    grouped_bars,
    line_chart,
)
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Notes, Section

MAX_DRAWN_VERTICES = 120
"""Largest number of vertices in a picture, evenly chosen if there are more. A picture is about 400
pixels wide: more are not visible, and the page grows with them."""


def channel_figures(channel: Channel) -> list[Figure]:
    """Draw the probabilities of all codes, stacked, over the input."""
    # Between vertices the channel mixes their rows linearly, as the areas' edges do.
    inputs, values = channel.inputs, channel.values
    drawn = min(MAX_DRAWN_VERTICES, len(inputs))
    kept = np.unique(np.linspace(0, len(inputs) - 1, drawn).round().astype(int))
    # By value, so that neighbouring areas have similar colours.
    order = np.argsort(values, kind="stable")
    areas = StackedAreas(
        title="Codes sent, by the value they decode to",
        places=tuple(inputs[kept].tolist()),
        values=tuple(values[order].tolist()),
        shares=tuple(map(tuple, channel.probabilities[np.ix_(kept, order)].tolist())),
        x=Axis("x, the clipped coordinate"),
        y=Axis("probability"),
        value="decodes to",
    )
    return [areas]


def codes_sent(title: str, channel: Channel, inputs: Mapping[str, float] | None = None) -> Figure:
    """Draw the distributions of the code at some inputs: by default the ends and the middle."""
    clip, rows = channel.clip, {}
    for name, x in (inputs or {"x = −clip": -clip, "x = 0": 0.0, "x = clip": clip}).items():
        weights, total = channel.mix(x)
        # The distribution itself is integers over their total; only the picture divides them.
        rows[name] = [float(weight / total) for weight in weights]
    labels = [minus(f"{value:.3g}") for value in channel.values]
    up = Axis("probability", zero=True)
    return grouped_bars(title, labels, rows, "value the code decodes to", up)


# Twelve orders a decade above 1: each is a certificate of its own, and takes its time.
ORDERS = [float(order) for order in 1 + np.geomspace(0.01, 1000, 61)]
UP = Axis("Rényi divergence, nats", zero=True, bound=True)
ACROSS = Axis("Rényi order (log scale)", log=True)


def divergences(channel: Channel) -> list[tuple[float, float]]:
    # Upper bounds for one coordinate, by Rényi order.
    return [(order, certify(channel, order).epsilon.upper) for order in ORDERS]


def channel_facts(channel: Channel) -> Facts:
    """Return a channel as a short table."""
    shown = [f"{value:.4g}" for value in channel.values]
    if len(shown) > 8:  # one line of a table
        shown = [*shown[:3], "…", *shown[-3:]]
    bits = channel.bits
    rows = [
        ("clip", f"{channel.clip:g}"),
        ("codes", f"{channel.levels} ({bits} bit{'s' * (bits != 1)})"),
        ("values", ", ".join(shown)),
        ("vertices", str(len(channel.inputs))),
        # Half of it tells channels apart by eye; files and JSON have the whole.
        ("fingerprint", channel.fingerprint.hex()[:16]),
    ]
    return "Channel", ("fact", "value"), rows


def channel_page(channel: Channel) -> str:
    """Write a channel as the text of one HTML page."""
    table = DataTable(*channel_facts(channel), "settings")
    lead = "The distribution of the code that is sent, for every input."
    sections = [Section("", [*channel_figures(channel), table]), pages.coverage_of_codes()]
    return pages.report("randquant channel", "A channel", "A channel", lead, sections)


def certificate_figures(certificate: Certificate) -> list[Figure]:
    """Draw the distributions of the code at both inputs of the worst pair, side by side.

    Raises:
        ValueError: the certificate has no channel.
    """
    channel = certificate.channel
    if channel is None:
        raise ValueError(
            "Expected a certificate with its channel, got channel=None: make it by certify."
        )
    inputs = {
        f"{name} = {minus(f'{x:g}')}": x
        for name, x in zip(("x", "x'"), certificate.witness, strict=True)
    }
    return [codes_sent(_certificate_title(certificate), channel, inputs)]


def _certificate_title(certificate: Certificate) -> str:
    # A figure for a chosen pair is no certificate of the channel: the title says which one it is.
    pair = "This pair" if certificate.covers == "this pair" else "Worst pair"
    title = f"{pair} of inputs at order {certificate.order:g}: {bound(certificate.epsilon.upper)}"
    return title.replace("inf:", "∞:")


def certificate_facts(certificate: Certificate) -> Facts:
    """Return a certificate as a short table; its epsilon is never printed below its value."""
    x, other = (minus(f"{end:g}") for end in certificate.witness)
    rows = [
        ("order", f"{certificate.order:g}".replace("inf", "∞")),
        ("epsilon, nats", bound(certificate.epsilon.upper)),
        ("worst pair", f"x = {x}, x' = {other}"),
        ("code of the largest ratio", str(certificate.code)),
        ("covers", certificate.covers),
        ("neighbours", certificate.neighboring.replace("_", " ")),
    ]
    return "Certificate of one coordinate and release", ("fact", "value"), rows


def certificate_page(certificate: Certificate) -> str:
    """Write a certificate as the text of one HTML page."""
    table = DataTable(*certificate_facts(certificate), "settings")
    lead = "For one coordinate and one release; for a whole run see an account."
    sections = [
        Section("", [*certificate_figures(certificate), table]),
        pages.coverage_of_codes(),
    ]
    return pages.report(
        "randquant certify", "A certificate", _certificate_title(certificate), lead, sections
    )


# A comparison as text and as JSON.


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Convert a comparison to the JSON object that the command prints."""
    mechanisms = []
    for entry in comparison.entries:
        record: dict[str, Any] = {
            "mechanism": entry.mechanism,
            "levels": entry.levels,
            "bits_per_coordinate": bits_per_code(entry.levels),
            "parameters": dict(entry.parameters),
            "remark": entry.remark,
        }
        if entry.measured is not None:
            measured = entry.measured
            record |= {
                "epsilon": measured.certificate.epsilon,
                "renyi": {"order": comparison.order, "epsilon": measured.renyi.epsilon},
                "witness": measured.certificate.witness,
                "bias_max": measured.moments.bias_max,
                "variance": measured.moments.variance,
                "mae": measured.moments.mae,
                "mse": measured.moments.mse,
                "fingerprint": measured.channel.fingerprint.hex(),
            }
        mechanisms.append(record)
    return {
        "target": comparison.target,
        "objective": comparison.objective,
        "order": comparison.order,
        "mechanisms": mechanisms,
        "left_out": list(comparison.left_out),
        "notes": _defaults(comparison),
        "tradeoff": [
            {
                "levels": levels,
                "mechanism": name,
                "points": [{"epsilon": e, "mse": m} for e, m in p],
            }
            for (levels, name), p in comparison.tradeoff.items()
        ],
    }


def table_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the cells of a comparison's table."""
    columns = ["mechanism", "bits", "epsilon", f"order {comparison.order:g}", "bias", "variance"]
    columns += ["MAE", "MSE", "parameters"]
    cells = []
    for entry in comparison.entries:
        bits = str(bits_per_code(entry.levels))
        numbers, measured = ["-"] * 6, entry.measured
        if measured is not None:
            numbers = [
                _epsilon_cell(measured.certificate.epsilon.upper),
                _epsilon_cell(measured.renyi.epsilon.upper),
                # A bound, hence rounded up; variance and errors are values, rounded to nearest.
                round_up(measured.moments.bias_max, 2),
                *(f"{getattr(measured.moments, kind):.5g}" for kind in ("variance", "mae", "mse")),
            ]
        words = [_named(entry.parameters)] if entry.parameters else []
        words += [f"({entry.remark})"] if words and entry.remark else [entry.remark]
        cells.append([entry.mechanism, bits, *numbers, " ".join(words).strip()])
    return columns, cells


def comparison_text(comparison: Comparison) -> list[str]:
    return [
        comparison_caption(comparison),
        *formatting.text(*table_rows(comparison)),
        *comparison_notes(comparison),
    ]


def comparison_caption(comparison: Comparison) -> str:
    """Describe the table in one sentence."""
    if comparison.target is None:
        return (
            "One coordinate, one release; privacy in nats, exact errors, input uniform; bits of "
            "one code, not masked for a sum"
        )
    objective = (comparison.objective or "").upper()
    return (
        f"Certified epsilon at most {formatting.exact(comparison.target)}, least {objective} "
        "found; one coordinate, one release; input uniform; bits of one code, not masked for a sum"
    )


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return the remarks below the table."""
    remarks = _defaults(comparison)
    if comparison.left_out:
        names = ", ".join(comparison.left_out)
        remarks.append(f"Not tuned, since it takes minutes: {names}; --mechanisms all adds it.")
    values = [v for entry in comparison.entries for v in entry.parameters.values()]
    if any(isinstance(value, list) and len(value) > 4 for value in values):
        remarks.append("Lists of more than four values are shortened; --json has them in full.")
    measured = [entry.measured for entry in comparison.entries if entry.measured is not None]
    # Errors of channels with different clips look comparable, and are not.
    if len({one.channel.clip for one in measured}) > 1:
        remarks.append("Clips differ: errors are in the units of each channel's input.")
    return remarks


def _defaults(comparison: Comparison) -> list[str]:
    # Notes on parameters that mechanisms chose themselves, each sentence once.
    return list(
        dict.fromkeys(
            note for e in comparison.entries for note in notes_on(e.mechanism, e.parameters)
        )
    )


def _named(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_short(value)}" for name, value in parameters.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple | np.ndarray):
        cells = [f"{float(v):.4g}" for v in value]
        return ",".join(cells if len(cells) <= 4 else [*cells[:2], "…", cells[-1]])
    return str(value)


def _epsilon_cell(epsilon: float) -> str:
    # Six digits, rounded up: never below the certified value.
    return "infinite" if math.isinf(epsilon) else round_up(epsilon, 6)


# A comparison as one self-contained HTML page: the table and the charts.

LINE_COLORS = ("c1", "c2", "c3", "c5", "c6", "c7", "c8", "c4")
"""Line colours by mechanism, grey last, since it is the faintest; more mechanisms repeat them,
dashed."""


def comparison_figures(comparison: Comparison) -> list[Figure]:
    """Draw channels by certified pure epsilon of one coordinate and by mean squared error.

    A channel without a finite epsilon is a horizontal line; the other points of a mechanism's curve
    are hollow.
    """
    marks: dict[str, list[Mark]] = {}
    for entry in comparison.entries:
        # An error of 0 has no place on the logarithmic axis.
        if entry.measured is not None and (mse := entry.measured.moments.mse) > 0:
            label, epsilon = (
                _label(entry.mechanism, entry.levels),
                entry.measured.certificate.epsilon,
            )
            table_marks = marks.setdefault(label, [])
            place = str(len(table_marks))
            table_marks.append(_mark(label, place, epsilon.upper, mse, best=True))
    curves = {_label(name, levels): sorted(p) for (levels, name), p in comparison.tradeoff.items()}
    series = []
    for label, table_marks in marks.items():
        points = curves.get(label, [])
        curve = [_mark(label, f"curve {k}", *point, best=False) for k, point in enumerate(points)]
        series.append(Series(label, (*table_marks, *curve), tuple(points)))
    chart = ScatterPlot(
        title="Error against certified epsilon of one coordinate",
        note="Full marks: the channels of the table. Dotted: no finite epsilon.",
        series=tuple(series),
        x=Axis("certified pure ε, nats (log scale)", log=True, bound=True),
        y=Axis("mean squared error (log scale)", log=True),
    )
    return [chart]


def _label(mechanism: str, levels: int) -> str:
    return f"{mechanism}, {formatting.count((levels - 1).bit_length(), 'bit')}"


def _mark(label: str, place: str, epsilon: float, mse: float, *, best: bool) -> Mark:
    text = f"{label}: MSE {mse:.4g}, {bound(epsilon)}"
    return Mark(f"{label} {place}", text, epsilon if math.isfinite(epsilon) else None, mse, best)


def comparison_facts(comparison: Comparison) -> Facts:
    return comparison_caption(comparison), *table_rows(comparison)


def comparison_page(comparison: Comparison) -> str:
    """Write a comparison as the text of one HTML page.

    Guarantees:
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it says everything without that script.
        A printed epsilon is never below the certified one.
    """
    columns, cells = table_rows(comparison)
    # The first and the last cell are names, whose hyphens stay.
    typeset = [[name, *map(minus, numbers), last] for name, *numbers, last in cells]
    table = DataTable(comparison_caption(comparison), columns, typeset, "compared")
    sections = [Section("", [table, Notes(comparison_notes(comparison))], columns=False)]
    if comparison.tradeoff:
        sections.append(Section("Privacy against error", comparison_figures(comparison)))
    for levels in _groups(comparison):
        drawn = _measured_by_name(comparison, levels)
        several = f", {(levels - 1).bit_length()} bits" if len(_groups(comparison)) > 1 else ""
        sections += [
            Section(f"Privacy and error{several}", _curves(comparison, levels, drawn)),
            Section(f"What is sent{several}", _code_charts(drawn)),
        ]
    sections.append(pages.coverage_of_codes())
    kind = "Mechanisms side by side"
    return pages.report(
        "randquant compare", kind, _comparison_title(comparison), _lead(comparison), sections
    )


def _groups(comparison: Comparison) -> list[int]:
    # Each number of levels has its own charts, since more levels always have less error. Channels
    # from the command line are compared as they are, in common charts: [0].
    if comparison.target is None:
        return [0]
    return list(dict.fromkeys(entry.levels for entry in comparison.entries))


def _comparison_title(comparison: Comparison) -> str:
    counts = sorted({(entry.levels - 1).bit_length() for entry in comparison.entries})
    bits = f"{', '.join(map(str, counts))} bit{'s' * (counts != [1])} per coordinate"
    if comparison.target is None:
        return f"Given channels, {bits}"
    return f"{bits}, ε at most {formatting.exact(comparison.target)}"


def _lead(comparison: Comparison) -> str:
    start = "Each channel as given. "
    if comparison.target is not None:
        start = (
            "For each mechanism the parameters with the least error found whose certified pure ε "
            "of one coordinate is at most the target. "
        )
    return start + (
        "ε is in nats, for one coordinate and one release, over all pairs of inputs; errors are "
        "exact, for an input uniform on [−clip, clip]. Nothing is sampled."
    )


def _measured_by_name(comparison: Comparison, levels: int) -> dict[str, Measured]:
    # Of one group; channels of the same mechanism are numbered.
    names = [entry.mechanism for entry in comparison.entries]
    drawn: dict[str, Measured] = {}
    for index, entry in enumerate(comparison.entries):
        if entry.measured is None or levels not in (0, entry.levels):
            continue
        name = entry.mechanism
        if levels == 0 and names.count(name) > 1:
            name += f" {names[: index + 1].count(name)}"
        drawn[name] = entry.measured
    return drawn


def _styles(names: list[str]) -> dict[str, str]:
    count = len(LINE_COLORS)
    return {
        name: LINE_COLORS[k % count] + " dashed" * (k // count % 2) for k, name in enumerate(names)
    }


def _curves(comparison: Comparison, levels: int, drawn: Mapping[str, Measured]) -> list[Figure]:
    # Colours go by all entries: a mechanism keeps its own in the charts of every number of levels,
    # also where another one is missing.
    names = [*drawn] if levels == 0 else [entry.mechanism for entry in comparison.entries]
    styles = _styles(list(dict.fromkeys(names)))
    if not drawn:
        return []
    charts = [_divergences(drawn, styles)]
    kinds: dict[str, Callable[[Moments], Callable[[np.ndarray], np.ndarray]]] = {
        "mean absolute error": lambda m: m.mae_at,
        "variance": lambda m: m.variance_at,
        "bias": lambda m: m.bias_at,
    }
    return charts + [_over_inputs(kind, pick, drawn, styles) for kind, pick in kinds.items()]


def _divergences(drawn: Mapping[str, Measured], styles: Mapping[str, str]) -> Figure:
    lines = [(name, divergences(each.channel), styles[name]) for name, each in drawn.items()]
    infinite = [name for name, m in drawn.items() if math.isinf(m.certificate.epsilon.upper)]
    return line_chart(
        "Rényi divergence of the worst pair, by order",
        lines,
        ACROSS,
        UP,
        note=f"Infinite and not drawn: {', '.join(infinite)}." if infinite else "",
    )


def _code_charts(drawn: Mapping[str, Measured]) -> list[Figure]:
    return [
        codes_sent(f"{name}: codes sent for three inputs", measured.channel)
        for name, measured in drawn.items()
    ]


def _over_inputs(
    kind: str,
    pick: Callable[[Moments], Callable[[np.ndarray], np.ndarray]],
    drawn: Mapping[str, Measured],
    styles: Mapping[str, str],
) -> Figure:
    lines, worst = [], max(m.moments.bias_max / m.channel.clip for m in drawn.values())
    # The limit of `planning.compare`, so that table and chart call the same channels unbiased.
    note = f"All are unbiased: at most {worst:.1e} times clip." if worst < 1e-6 else ""
    for name, measured in drawn.items():
        x = _inputs(measured)
        values = pick(measured.moments)(x)
        if kind == "bias":  # differences near float64's precision are rounding, not bias
            values = np.where(np.abs(values) < 1e-9 * measured.channel.clip, 0.0, values)
        lines.append((name, list(zip(x.tolist(), values.tolist(), strict=True)), styles[name]))
    title = f"{kind[0].upper()}{kind[1:]} over the input"
    note = note if kind == "bias" else ""
    return line_chart(title, lines, "x", Axis(kind, zero=True), note=note)


def _inputs(measured: Measured) -> np.ndarray:
    # Evenly spaced inputs, and both sides of every vertex, where moments have corners or jumps.
    inner = measured.channel.inputs[1:-1]
    clip = measured.channel.clip
    even = np.linspace(-clip, clip, 81)
    return np.unique(np.concatenate([even, inner, np.nextafter(inner, -np.inf)]))
