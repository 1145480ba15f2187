"""What a chart shows, as plain frozen data: it is checked, compared, hashed and kept in a file.

`charts` turns a figure into a picture. A colour is one of `c1` to `c8`, which pages show light or
dark; a number that is not finite is None, where a line is broken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from randquant._internal.rounding import round_up

Style = Annotated[str, msgspec.Meta(pattern=r"^c[1-8]( (dashed|faint)){0,2}$")]
"""A colour, and how a line is drawn."""

Number = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A finite number."""

COLORS = 8


class Axis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One axis of a chart.

    Attributes:
        label: quantity and unit.
        log: whether it is logarithmic.
        zero: whether it must include zero.
        bound: whether its numbers are upper bounds, which are only ever rounded up.
        ends: least and greatest number, where charts share the axis; None for those of this chart.
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
    """One run, or another thing with a place.

    Attributes:
        name: unique name.
        text: description for the reader.
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
        if any(len(heights) != len(self.labels) for _, heights in self.groups):
            raise ValueError("Expected one height for each label.")


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
        places: (n,) x, not decreasing; one that is given twice is a jump.
        values: (m,) what each share stands for, in order: its colour.
        shares: (n, m) shares in [0, 1].
    """

    places: tuple[Number, ...]
    values: tuple[Number, ...]
    shares: tuple[tuple[Number, ...], ...]
    x: Axis
    y: Axis
    value: str


class Ranged(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An estimate with two intervals; None where nothing is known.

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
        x: the axis of the estimates; None where each row has a scale of its own, of which only
            its text says the numbers.
    """

    rows: tuple[Ranged, ...]
    x: Axis | None = None


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
            raise ValueError("Expected one estimate for each place.")


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
    """Lines over shared axes.

    Args:
        title: describes the chart.
        lines: label, points and style of each; see `Line`. Points that are not finite, and points
            that are not above zero on a logarithmic axis, are gaps.
        x, y: the axes, or their labels.
        note: a sentence below the chart.
    """
    across, up = _axis(x), _axis(y)

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
    """One slot per label with one bar per group; see `GroupedBars`."""
    rows = tuple((name, tuple(map(float, heights))) for name, heights in groups.items())
    return GroupedBars(
        title=title, labels=tuple(labels), groups=rows, x=_axis(x), y=_axis(y), note=note
    )


def checked(data: Any) -> Figure:
    """Rebuild a figure from plain values, as `plain` made them, or raise.

    Raises:
        ValueError: it is anything else.

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
    """A figure as plain values of JSON."""
    return msgspec.to_builtins(figure)


def digits(value: float, axis: Axis) -> float:
    """A number with six digits, as it is drawn and shown; a bound is never below its value.

    Example:
        >>> digits(0.1, Axis("")), digits(0.1, Axis("", bound=True))
        (0.1, 0.100001)
    """
    return float(round_up(value)) if axis.bound else float(f"{value:.6g}")


def _axis(axis: Axis | str) -> Axis:
    return Axis(axis) if isinstance(axis, str) else axis
