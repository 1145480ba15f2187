"""A plan's picture: error against bytes, with the limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from randquant.reports.formatting import size_of

if TYPE_CHECKING:
    from randquant.reports.figures import ScatterPlot


class Placed(NamedTuple):
    """A mechanism's label with its bytes a client and round, and its error of one coordinate."""

    mechanism: str
    bytes_up: int
    deviation: float


def error_against_bytes(
    found: Sequence[Placed], limits: Sequence[tuple[str, float]], missing: Sequence[str]
) -> ScatterPlot:
    """Mechanisms by what a client sends and how large the error is; what is out of reach is named.

    A mark is filled if no other mechanism has neither a larger error nor more bytes.
    """
    from randquant.reports.figures import Axis, Mark, ScatterPlot, Series

    series = []
    for one in found:
        beaten = any(
            other.bytes_up <= one.bytes_up and other.deviation <= one.deviation
            for other in found
            if (other.bytes_up, other.deviation) != (one.bytes_up, one.deviation)
        )
        text = f"{one.mechanism}: error {one.deviation:.4g}, {size_of(one.bytes_up)} in a round"
        mark = Mark(one.mechanism, text, one.bytes_up, one.deviation, not beaten)
        series.append(Series(one.mechanism, (mark,)))
    notes = ["Full marks: no other has a smaller error for as few bytes. Dashed: limits."]
    if missing:
        notes.append(f"Out of reach: {', '.join(missing)}.")
    return ScatterPlot(
        title="Error of a round's decoded mean against bytes sent",
        note=" ".join(notes),
        series=tuple(series),
        x=Axis("bytes a client sends in a round (log scale)", log=True),
        y=Axis("error of a coordinate (log scale)", log=True),
        levels=tuple(limits),
    )
