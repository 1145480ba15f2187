"""A channel as pictures, facts and page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from randquant._internal.formatting import minus
from randquant.channels.channel import Channel
from randquant.privacy.certificates.coordinate import certify
from randquant.reports import guarantee_text, pages
from randquant.reports.figures import Axis, Figure, StackedAreas, grouped_bars
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Section

MAX_DRAWN_VERTICES = 120
"""Largest number of vertices in a picture, evenly chosen if there are more. A picture is about 400
pixels wide: more are not visible, and the page grows with them."""


def figures(channel: Channel) -> list[Figure]:
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


ORDERS = [float(order) for order in 1 + np.geomspace(0.01, 1000, 61)]
UP = Axis("Rényi divergence, nats", zero=True, bound=True)
ACROSS = Axis("Rényi order (log scale)", log=True)


def divergences(channel: Channel) -> list[tuple[float, float]]:
    # Upper bounds for one coordinate, by Rényi order.
    return [(order, certify(channel, order).epsilon.upper) for order in ORDERS]


def facts(channel: Channel) -> Facts:
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
        ("fingerprint", channel.fingerprint.hex()[:16]),
    ]
    return "Channel", ("fact", "value"), rows


def page(channel: Channel) -> str:
    """Write a channel as the text of one HTML page."""
    table = DataTable(*facts(channel), "settings")
    lead = "The distribution of the code that is sent, for every input."
    sections = [Section("", [*figures(channel), table]), guarantee_text.coverage_of_codes()]
    return pages.report("randquant channel", "A channel", "A channel", lead, sections)
