"""What a notebook shows of a channel, from its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from randquant.reports.notebook import Facts

if TYPE_CHECKING:
    from randquant.reports.figures import GroupedBars, StackedAreas

MOST = 120
"""Most vertices that are drawn; of more, evenly spread ones."""


def shares(inputs: np.ndarray, values: np.ndarray, probabilities: np.ndarray) -> StackedAreas:
    """Each vertex's row as stacked probabilities over the input; cells between are linear.

    Args:
        inputs: (V,) vertices; a repeated one is a jump.
        values: (m,) what the codes decode to.
        probabilities: (V, m) rows.
    """
    from randquant.reports.figures import Axis, StackedAreas

    kept = np.unique(np.linspace(0, len(inputs) - 1, min(MOST, len(inputs))).round().astype(int))
    order = np.argsort(values, kind="stable")
    return StackedAreas(
        title="Codes sent, by the value they decode to",
        places=tuple(inputs[kept].tolist()),
        values=tuple(values[order].tolist()),
        shares=tuple(map(tuple, probabilities[np.ix_(kept, order)].tolist())),
        x=Axis("x, the clipped coordinate"),
        y=Axis("probability"),
        value="decodes to",
    )


def facts(inputs: np.ndarray, values: np.ndarray, bits: int, fingerprint: bytes) -> Facts:
    """What a channel is, in a few lines."""
    shown = [f"{value:.4g}" for value in values]
    if len(shown) > 8:
        shown = [*shown[:3], "…", *shown[-3:]]
    rows = [
        ("clip", f"{inputs[-1]:g}"),
        ("codes", f"{len(values)} ({bits} bit{'s' * (bits != 1)})"),
        ("values", ", ".join(shown)),
        ("vertices", str(len(inputs))),
        ("fingerprint", fingerprint.hex()[:16]),
    ]
    return "Channel", ("fact", "value"), rows


def pair(title: str, values: np.ndarray, rows: dict[str, np.ndarray]) -> GroupedBars:
    """Two distributions of the code side by side.

    Args:
        title: above the picture.
        values: (m,) what the codes decode to.
        rows: (m,) probabilities, by the input's name.
    """
    from randquant.reports.figures import Axis, grouped_bars
    from randquant.reports.formatting import minus

    labels = [minus(f"{value:.3g}") for value in values]
    shown = {name: row.tolist() for name, row in rows.items()}
    up = Axis("probability", zero=True)
    return grouped_bars(title, labels, shown, "value the code decodes to", up)
