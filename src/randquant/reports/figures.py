"""The content of charts as plain frozen data, which is checked, compared, hashed and stored.

`charts` turns a figure into a picture. A colour is one of `c1` to `c8`, for which pages have a
light and a dark shade; a number that is not finite becomes None, and the line is broken there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from randquant._internal.formatting import round_up

Style = Annotated[str, msgspec.Meta(pattern=r"^c[1-8]( (dashed|faint)){0,2}$")]
"""A colour, and how a line is drawn."""

# Far enough below the largest float that the width of an axis is finite too.
Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A finite number."""

COLORS = 8


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One axis of a chart.

    Attributes:
        label: quantity and unit.
        log: whether it is logarithmic.
        zero: whether it must include zero.
        bound: whether its numbers are upper bounds, which are rounded up.
        ends: least and greatest number, if charts share the axis; None for those of this chart.
    """

    label: str
    log: bool = False
    zero: bool = False
    bound: bool = False
    ends: tuple[Number, Number] | None = None


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a chart.

    Attributes:
        label: in the legend; empty for no entry.
        points: (x, y) from left to right; the line is broken where y is None.
        style: a colour, and `dashed` or `faint`.
    """

    label: str
    points: tuple[tuple[Number, Number | None], ...]
    style: Style


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One point of a scatter plot, such as a run.

    Attributes:
        name: unique name.
        text: its description in the tooltip.
        x, y: its position; with x None it is a level: a horizontal line across the plot.
        best: whether the mark is filled.
    """

    name: str
    text: str
    x: Number | None
    y: Number
    best: bool


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Marks of one colour and shape.

    Attributes:
        label: in the legend.
        marks: the marks.
        frontier: (x, y) of the marks that no other mark of the series beats, from left to right.
    """

    label: str
    marks: tuple[Mark, ...]
    frontier: tuple[tuple[Number, Number], ...] = ()


class _Figure(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    title: str
    note: str = ""


class LineChart(_Figure, frozen=True, tag="lines", kw_only=True):
    """Lines over shared axes."""

    lines: tuple[Line, ...]
    x: Axis
    y: Axis


class GroupedBars(_Figure, frozen=True, tag="bars", kw_only=True):
    """One slot per label with one bar per group.

    Attributes:
        labels: (m,) labels of the slots.
        groups: (label, (m,) heights >= 0) of each group.
    """

    labels: tuple[str, ...]
    groups: tuple[tuple[str, tuple[Number, ...]], ...]
    x: Axis
    y: Axis

    def __post_init__(self) -> None:
        for name, heights in self.groups:
            if len(heights) != len(self.labels):
                raise ValueError(
                    f"Expected one height for each label, got {len(heights)} of {name!r} for "
                    f"{len(self.labels)} labels."
                )


class ScatterPlot(_Figure, frozen=True, tag="marks", kw_only=True):
    """Marks in series over a logarithmic x axis.

    The frontier of a series is drawn as dashed steps: the best y with at most that x.

    Attributes:
        levels: (label, y) of reference lines across the plot.
    """

    series: tuple[Series, ...]
    x: Axis
    y: Axis
    levels: tuple[tuple[str, Number], ...] = ()


class StackedAreas(_Figure, frozen=True, tag="areas", kw_only=True):
    """Shares that add up to one, over x.

    Attributes:
        places: (n,) x, not decreasing; a repeated x is a jump.
        values: (m,) the value of each share, in order, which decides its colour.
        shares: (n, m) shares in [0, 1].
    """

    places: tuple[Number, ...]
    values: tuple[Number, ...]
    shares: tuple[tuple[Number, ...], ...]
    x: Axis
    y: Axis
    value: str


class Ranged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate with two intervals; None for unknown numbers.

    Attributes:
        label: its name.
        estimate: the number.
        whole: the ends of the wider interval.
        inner: the ends of the narrower one.
        text: the numbers as printed.
    """

    label: str
    estimate: Number | None
    whole: tuple[Number | None, Number | None]
    inner: tuple[Number | None, Number | None]
    text: str


class Intervals(_Figure, frozen=True, tag="intervals", kw_only=True):
    """Estimates with two intervals each, below each other.

    Attributes:
        rows: the estimates.
        x: the axis of the estimates.
    """

    rows: tuple[Ranged, ...]
    x: Axis


class BandedCurve(_Figure, frozen=True, tag="curve", kw_only=True):
    """Estimates with two intervals each, over x.

    Attributes:
        places: (n,) x, increasing.
        rows: (n,) estimates.
    """

    places: tuple[Number, ...]
    rows: tuple[Ranged, ...]
    x: Axis
    y: Axis

    def __post_init__(self) -> None:
        if len(self.places) != len(self.rows):
            raise ValueError(
                f"Expected one estimate for each place, got {len(self.rows)} for "
                f"{len(self.places)} places."
            )


Figure = LineChart | GroupedBars | ScatterPlot | StackedAreas | Intervals | BandedCurve
"""Any of the charts."""


def line_chart(
    title: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]], str]],
    x: Axis | str,
    y: Axis | str,
    *,
    note: str = "",
) -> LineChart:
    """Make a chart of lines over shared axes.

    Args:
        title: describes the chart.
        lines: label, points and style of each; see `Line`. Points that are not finite, and points
            that are not above zero on a logarithmic axis, are gaps.
        x, y: the axes, or their labels.
        note: a sentence below the chart.
    """
    across, up = _axis(x), _axis(y)

    # A point without an x has no place and is dropped. One without a y breaks the line, which would
    # otherwise lead straight across a round that was not measured, or an infinite bound.
    def place(point: tuple[float, float]) -> tuple[float, float | None]:
        fits = math.isfinite(point[1]) and (point[1] > 0 or not up.log)
        return digits(point[0], across), digits(point[1], up) if fits else None

    drawn = tuple(
        Line(
            label,
            tuple(place(p) for p in points if math.isfinite(p[0]) and (p[0] > 0 or not across.log)),
            style,
        )
        for label, points, style in lines
    )
    return LineChart(title=title, lines=drawn, x=across, y=up, note=note)


def grouped_bars(
    title: str,
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    x: Axis | str,
    y: Axis | str,
    *,
    note: str = "",
) -> GroupedBars:
    """Make a bar chart with one slot per label and one bar per group; see `GroupedBars`."""
    rows = tuple((name, tuple(map(float, heights))) for name, heights in groups.items())
    return GroupedBars(
        title=title, labels=tuple(labels), groups=rows, x=_axis(x), y=_axis(y), note=note
    )


def checked(data: Any) -> Figure:
    """Rebuild a figure from the plain values of `plain`.

    Raises:
        ValueError: they are not those of a figure.

    Example:
        >>> checked({"kind": "script"})
        Traceback (most recent call last):
        ...
        ValueError: Expected a figure that is a chart, got: Invalid value 'script' - at `$.kind`.
    """
    try:
        return msgspec.convert(data, Figure)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(f"Expected a figure that is a chart, got: {error}.") from None


def plain(figure: Figure) -> Any:
    """Convert a figure to plain values of JSON."""
    return msgspec.to_builtins(figure)


def digits(value: float, axis: Axis) -> float:
    """Round a number to six digits, as it is drawn and shown; a bound is rounded up.

    Example:
        >>> digits(0.1, Axis("")), digits(0.1, Axis("", bound=True))
        (0.1, 0.100001)
    """
    return float(round_up(value)) if axis.bound else float(f"{value:.6g}")


def _axis(axis: Axis | str) -> Axis:
    return Axis(axis) if isinstance(axis, str) else axis
