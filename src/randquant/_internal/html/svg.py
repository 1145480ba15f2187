"""Charts as inline SVG.

Colours are classes (`c1` to `c8`) that the style sheet of `template` defines, so one drawing serves
light mode, dark mode and print. A chart is 380 px wide: about the width of a phone and of half a
desktop page, so its text has the same size on both. Legends are HTML and wrap by themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 380, 250
TOP, RIGHT, BOTTOM = 30, WIDTH - 20, HEIGHT - 46
CHARACTER = 6.7  # px, a generous width for a digit or letter at 12 px
SHADES = 32


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        label: in the legend; empty for no entry.
        points: (x, y) from left to right; the line is broken where one is not finite.
        style: CSS classes: a colour `c1` to `c8`, and `dashed` or `faint`.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, or one part of a stacked bar.

    Attributes:
        label: its name.
        amount: its length, >= 0, in the common unit of the chart's bars.
        text: the amount as printed.
        style: a colour class, `c1` to `c8`.
    """

    label: str
    amount: float
    text: str
    style: str


def minus(number: str) -> str:
    """Replace a hyphen by a minus sign, as wide as a plus and without a line break after it."""
    return number.replace("-", "−")


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    note: str = "",
) -> str:
    """Draw lines over shared axes, as an HTML figure with a legend.

    Args:
        title: describes the chart.
        lines: what to draw; points that are not finite are left out.
        x_label, y_label: quantity and unit.
        log_x, log_y: logarithmic axes, which leave out points that are not above zero.
        from_zero: whether the y axis must include zero.
        note: a sentence below the chart.
    """
    if log_x or log_y:
        lines = [_positive(line, log_x, log_y) for line in lines]
    points = [point for line in lines for point in line.points if _finite(point)]
    if not points:
        return _figure(title, "", [], "There is no finite value to draw.")
    left, place_y, rows = _y_axis([y for _, y in points] + [0.0] * from_zero, y_label, log=log_y)
    low, high = _span([x for x, _ in points])
    place_x = _scale(low, high, left, RIGHT, log=log_x)
    x_ticks = _log_ticks(low, high) if log_x else _ticks([low, high])
    inside = [tick for tick in x_ticks if low <= tick <= high]
    columns = _x_axis(
        zip(map(place_x, inside), _labels(inside), strict=True), left, x_label, marks=True
    )
    paths = [
        f'<path class="line {line.style}" d="{_path(line.points, place_x, place_y)}"/>'
        for line in reversed(lines)  # the first line lies on top
    ]
    keys = [
        (line.label, f'<path class="line {line.style}" d="M1 5h18"/>')
        for line in lines
        if line.label
    ]
    return _figure(title, _svg(title, HEIGHT, [*rows, *columns, *paths]), keys, note)


def grouped_bars(
    title: str,
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
) -> str:
    """Draw one slot per label with one bar per group, as an HTML figure with a legend.

    If a slot is too narrow for bars side by side, they overlay each other, translucent.

    Args:
        title: describes the chart.
        labels: (m,) labels of the slots, thinned if there is no room.
        groups: (m,) heights >= 0, by legend entry.
        x_label, y_label: quantity and unit.
    """
    heights = [0.0, *(height for row in groups.values() for height in row)]
    left, place_y, parts = _y_axis(heights, y_label)
    slot = (RIGHT - left) / len(labels)
    overlaid = slot < 3 * len(groups)
    width = 0.84 * slot / (1 if overlaid else len(groups))
    for index, (name, row) in enumerate(groups.items()):
        style = f"bar c{index % 4 + 1}" + " overlaid" * overlaid
        start = left + 0.08 * slot + width * index * (not overlaid)
        for code, height in enumerate(row):
            y = place_y(height)
            parts.append(
                f'<rect class="{style}" x="{start + code * slot:.2f}" y="{y:.2f}" '
                f'width="{width:.2f}" height="{BOTTOM - y:.2f}">'
                f"<title>{escape(name)}: {height:.3g} at {escape(labels[code])}</title></rect>"
            )
    stride = math.ceil((max(map(len, labels)) * CHARACTER + 8) / slot)
    places = [(left + (i + 0.5) * slot, labels[i]) for i in range(0, len(labels), stride)]
    parts += _x_axis(places, left, x_label, marks=False)
    swatch = '<rect class="bar c{}" x="5" y="0" width="10" height="10"/>'
    keys = [(name, swatch.format(index % 4 + 1)) for index, name in enumerate(groups)]
    return _figure(title, _svg(title, HEIGHT, parts), keys, "")


def heat_map(
    title: str,
    places: Sequence[float],
    rows: Sequence[Sequence[float]],
    x_label: str,
    y_label: str,
    unit: str,
    *,
    note: str = "",
) -> str:
    """Draw a square of cells, darker for larger values, as an HTML figure with a colour scale.

    The shades are classes `s0` to `s31`, from the page's colour to full blue.

    Args:
        title: describes the chart.
        places: (n,) evenly spaced centres of the cells, the same on both axes.
        rows: (n, n) values >= 0, `rows[j][i]` at x = places[i], y = places[j].
        x_label, y_label: quantity and unit of the axes.
        unit: quantity and unit of the values.
        note: a sentence below the chart.
    """
    largest = max(map(max, rows)) or 1.0
    left, top, side = 46.0, 72, 318.0
    cell, bottom = side / len(places), top + side
    step = side / SHADES
    parts = [_shade(left + step * k, 20, step, 12, k / (SHADES - 1)) for k in range(SHADES)]
    for text, x, kind in (("0", left, ""), (f"{largest:.4g} {unit}", left + side, "end")):
        parts.append(f'<text class="{kind}" x="{x}" y="12">{escape(text)}</text>')
    for j, row in enumerate(rows):
        y = bottom - (j + 1) * cell
        parts += [
            _shade(left + i * cell, y, cell, cell, value / largest) for i, value in enumerate(row)
        ]
    low, high = places[0] - (places[1] - places[0]) / 2, places[-1] + (places[1] - places[0]) / 2
    along, up = _scale(low, high, left, left + side), _scale(low, high, bottom, top)
    ticks = [tick for tick in _ticks([places[0], places[-1]]) if low <= tick <= high]
    parts.append(f'<text x="0" y="{top - 12}">{escape(y_label)}</text>')
    for tick, text in zip(ticks, _labels(ticks), strict=True):
        parts.append(f'<path class="axis" d="M{along(tick):.1f} {bottom}v4"/>')
        parts.append(f'<text class="middle" x="{along(tick):.1f}" y="{bottom + 18}">{text}</text>')
        parts.append(f'<path class="axis" d="M{left} {up(tick):.1f}h-4"/>')
        parts.append(f'<text class="end" x="{left - 7}" y="{up(tick) + 4:.1f}">{text}</text>')
    middle = left + side / 2
    parts.append(f'<text class="middle" x="{middle}" y="{bottom + 40}">{escape(x_label)}</text>')
    return _figure(title, _svg(title, bottom + 46, parts), [], note)


def _shade(x: float, y: float, width: float, height: float, part: float) -> str:
    # Slightly larger than the cell, so that no seam shows; the next cell covers the excess.
    return (
        f'<rect class="s{round(part * (SHADES - 1))}" x="{x:.2f}" y="{y - 0.4:.2f}" '
        f'width="{width + 0.4:.2f}" height="{height + 0.4:.2f}"/>'
    )


def horizontal_bars(title: str, parts: Sequence[Bar]) -> str:
    """Draw one bar below the other from a common zero, each with its name and amount above it."""
    longest = max(part.amount for part in parts) or 1.0
    drawn: list[str] = []
    for index, part in enumerate(parts):
        top = 4 + 54 * index
        drawn += [
            f'<text class="strong" x="0" y="{top + 12}">{escape(part.label)}</text>',
            f'<text class="strong end" x="{WIDTH}" y="{top + 12}">{escape(part.text)}</text>',
            _rect(part, 0, top + 20, WIDTH * part.amount / longest),
        ]
    return _figure(title, _svg(title, 54 * len(parts), drawn), [], "")


def stacked_bar(title: str, parts: Sequence[Bar]) -> str:
    """Draw one bar made of parts that fill the whole width, and list them below it."""
    total = sum(part.amount for part in parts) or 1.0
    start, drawn = 0.0, []
    for index, part in enumerate(parts):
        row = 54 + 22 * index
        width = WIDTH * part.amount / total
        drawn += [
            _rect(part, start, 8, width),
            f'<rect class="bar {part.style}" x="0" y="{row - 10}" width="10" height="10"/>',
            f'<text class="strong" x="18" y="{row}">{escape(part.label)}</text>',
            f'<text class="strong end" x="{WIDTH - 70}" y="{row}">{escape(part.text)}</text>',
            f'<text class="end" x="{WIDTH}" y="{row}">{100 * part.amount / total:.1f} %</text>',
        ]
        start += width
    return _figure(title, _svg(title, 44 + 22 * len(parts), drawn), [], "")


def _figure(title: str, svg: str, keys: Iterable[tuple[str, str]], note: str) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 20 10" aria-hidden="true">{mark}</svg>{escape(label)}</li>'
        for label, mark in keys
    )
    legend = f'<ul class="legend">{items}</ul>' if items else ""
    caption = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<figure><figcaption>{escape(title)}</figcaption>{legend}{svg}{caption}</figure>\n"


def _svg(title: str, height: float, parts: Iterable[str]) -> str:
    opening = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return f"\n{opening}\n" + "\n".join(parts) + "\n</svg>\n"


def _rect(part: Bar, x: float, y: float, width: float) -> str:
    return (
        f'<rect class="bar {part.style}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="18">'
        f"<title>{escape(part.label)}: {escape(part.text)}</title></rect>"
    )


def _y_axis(
    values: Sequence[float], label: str, *, log: bool = False
) -> tuple[float, Callable[[float], float], list[str]]:
    """Left edge of the plot area in px, the y scale, and grid lines with their labels."""
    if log:
        low, high = _span(values)
        ticks = [tick for tick in _log_ticks(low, high) if low <= tick <= high]
    else:
        ticks = _ticks(values)
        low, high = ticks[0], ticks[-1]
    texts = _labels(ticks)
    left = max(map(len, texts)) * CHARACTER + 10
    place = _scale(low, high, BOTTOM, TOP, log=log)
    parts = [f'<text x="0" y="12">{escape(label)}</text>']
    for tick, text in zip(ticks, texts, strict=True):
        y = place(tick)
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{RIGHT}"/>')
        parts.append(f'<text class="end" x="{left - 7:.1f}" y="{y + 4:.1f}">{text}</text>')
    return left, place, parts


def _x_axis(
    places: Iterable[tuple[float, str]], left: float, label: str, *, marks: bool
) -> list[str]:
    """The base line with a label at each place in px, and tick marks where asked for."""
    parts = [f'<path class="axis" d="M{left:.1f} {BOTTOM}H{RIGHT}"/>']
    for x, text in places:
        if marks:
            parts.append(f'<path class="axis" d="M{x:.1f} {BOTTOM}v4"/>')
        parts.append(f'<text class="middle" x="{x:.1f}" y="{BOTTOM + 18}">{escape(text)}</text>')
    middle = (left + RIGHT) / 2
    parts.append(f'<text class="middle" x="{middle:.1f}" y="{HEIGHT - 6}">{escape(label)}</text>')
    return parts


def _positive(line: Line, log_x: bool, log_y: bool) -> Line:
    """The line with a gap where a logarithmic axis has no place for a point."""
    kept = [
        (x, y) if (x > 0 or not log_x) and (y > 0 or not log_y) else (math.nan, math.nan)
        for x, y in line.points
    ]
    return Line(line.label, kept, line.style)


def _finite(point: tuple[float, float]) -> bool:
    return math.isfinite(point[0]) and math.isfinite(point[1])


def _path(
    points: Iterable[tuple[float, float]],
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
) -> str:
    commands: list[str] = []
    pen = "M"
    for point in points:
        if not _finite(point):
            pen = "M"
            continue
        # h0 makes a lone point a dot; elsewhere it draws nothing.
        end = "h0" if pen == "M" else ""
        commands.append(f"{pen}{place_x(point[0]):.1f} {place_y(point[1]):.1f}{end}")
        pen = "L"
    return "".join(commands)


def _scale(
    low: float, high: float, start: float, end: float, *, log: bool = False
) -> Callable[[float], float]:
    """A function from [low, high] to px between start and end."""
    if log:
        inner = _scale(math.log(low), math.log(high), start, end)
        return lambda value: inner(math.log(value))
    return lambda value: start + (end - start) * ((value - low) / (high - low))


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Least and greatest value, pushed apart where they (nearly) coincide."""
    low, high = min(values), max(values)
    if high - low > 1e-9 * max(abs(low), abs(high), 1e-9):
        return low, high
    return (low / 2, high * 2) if low > 1e-9 else (low - 1.0, high + 1.0)


def _ticks(values: Sequence[float]) -> list[float]:
    """Between 2 and 7 round numbers that enclose all values.

    Example:
        >>> _ticks([0.0, 87.0])
        [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    low, high = _span(values)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [i * step for i in range(math.floor(low / step), math.ceil(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """At most about 7 round numbers in [low, high], for a logarithmic axis.

    Example:
        >>> _log_ticks(1.5, 60.0)
        [2.0, 5.0, 10.0, 20.0, 50.0]
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    fine = [factor * 10.0**e for e in range(first, last + 1) for factor in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    if len(fine) < 3:  # less than a decade: round numbers of a linear axis read better
        return _ticks([low, high])
    if len(fine) <= 7:
        return fine
    stride = math.ceil((last - first) / 7)
    return [10.0**exponent for exponent in range(first, last + 1, stride)]


def _labels(ticks: Sequence[float]) -> list[str]:
    """Ticks as text, with as many decimals as tell neighbours apart."""
    if not ticks:
        return []
    gap = min((b - a for a, b in pairwise(ticks)), default=abs(ticks[0]) or 1.0)
    if gap < 1e-4 or max(map(abs, ticks)) >= 1e6:
        return [minus(f"{tick:.3g}") for tick in ticks]
    decimals = max(0, -math.floor(math.log10(gap) + 1e-9))
    return [minus(f"{tick:,.{decimals}f}") for tick in ticks]
