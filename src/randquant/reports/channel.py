"""A channel's picture, facts and page."""

from __future__ import annotations

import numpy as np

from randquant.channels.channel import Channel
from randquant.reports import pages
from randquant.reports.figures import Axis, Figure, StackedAreas
from randquant.reports.notebook import Facts
from randquant.reports.pages import DataTable, Section

MOST = 120
"""Most vertices that are drawn; of more, evenly spread ones."""


def figures(channel: Channel) -> list[Figure]:
    """Each vertex's row as stacked probabilities over the input; cells between are linear."""
    inputs, values = channel.inputs, channel.values
    kept = np.unique(np.linspace(0, len(inputs) - 1, min(MOST, len(inputs))).round().astype(int))
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


def facts(channel: Channel) -> Facts:
    """What a channel is, in a few lines."""
    shown = [f"{value:.4g}" for value in channel.values]
    if len(shown) > 8:
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
    """A channel as the text of one HTML page."""
    table = DataTable(*facts(channel), "settings")
    lead = "The distribution of the code that is sent, for every input."
    sections = [Section("", [*figures(channel), table])]
    return pages.report("randquant channel", "A channel", "A channel", lead, sections)
