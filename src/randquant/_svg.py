"""Charts as inline SVG, and the page and the one style sheet they share.

Colours are classes (`c1` to `c4`) whose meaning CSS variables set, so one drawing serves light,
dark and paper. A chart is drawn 380 px wide: about as wide as a phone and as half a desktop page,
so that its text keeps its size on both. Legends are HTML and wrap by themselves.
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

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfb; --ink: #1e2227; --soft: #5a626c; --rule: #e0e2e5;
  --blue: #0072b2; --orange: #d55e00; --green: #009e73; --grey: #a3a9b1;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif;
}
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --ink: #e4e6e8; --soft: #9ba3ac; --rule: #2d3339;
  --blue: #56b4e9; --orange: #e69f00; --green: #2fc39b; --grey: #6b737c;
} }
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 56px 24px 40px; max-width: 1020px; background: var(--paper);
  color: var(--ink); font: 17px/1.6 Charter, "Bitstream Charter", Cambria, Georgia, serif;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; overflow-wrap: break-word;
}
h1 { font-size: 36px; line-height: 1.2; font-weight: 600; margin: 4px 0 12px; }
h2 { font-size: 22px; line-height: 1.3; font-weight: 600; margin: 0 0 18px; }
sup { font-size: 0.75em; line-height: 0; }
section { margin-top: 56px; }
header p { margin: 0; color: var(--soft); }
.kind, .card h2 { font: 600 13px/1.5 var(--sans); margin: 0; }
.cards { display: grid; grid-template-columns: repeat(4, 1fr); margin-top: 40px; gap: 28px 32px; }
.card { border-top: 2px solid var(--ink); padding-top: 10px; min-width: 0; }
.card p, .legend, .note, footer { font: 13px/1.5 var(--sans); color: var(--soft); margin: 0; }
.card .figure { font: 600 26px/1.3 var(--sans); color: var(--ink); margin: 8px 0; }
.text p { max-width: 46em; margin: 0 0 14px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 44px 56px; align-items: start; }
.scroll { overflow-x: auto; min-width: 0; }
table { border-collapse: collapse; width: 100%; font: 13px/1.45 var(--sans); }
caption { text-align: left; font-weight: 600; font-size: 15px; padding-bottom: 8px; }
th, td { padding: 5px 0 5px 12px; border-bottom: 1px solid var(--rule); text-align: right; }
th { font-weight: 400; color: var(--soft); }
th:first-child { padding-left: 0; text-align: left; }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
.settings tbody th { white-space: nowrap; }
footer { margin-top: 64px; padding-top: 14px; border-top: 1px solid var(--rule); }
figure { margin: 0; max-width: 540px; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font: 600 15px/1.4 var(--sans); margin-bottom: 6px; }
.note { padding-top: 10px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; padding: 0 0 10px; }
.legend svg { display: inline-block; width: 20px; height: 10px; margin-right: 6px; }
svg text { font: 12px var(--sans); fill: var(--soft); font-variant-numeric: tabular-nums; }
svg text.strong { fill: var(--ink); }
svg text.middle { text-anchor: middle; }
svg text.end { text-anchor: end; }
svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke: var(--color); stroke-width: 1.8; }
svg .line { stroke-linejoin: round; stroke-linecap: round; }
svg .faint { stroke-width: 1; opacity: 0.45; }
svg .dashed { stroke-dasharray: 5 4; }
svg .bar { fill: var(--color); }
svg .overlaid { opacity: 0.5; }
.c1 { --color: var(--blue); } .c2 { --color: var(--orange); }
.c3 { --color: var(--green); } .c4 { --color: var(--grey); }
@media (max-width: 820px) {
  .cards { grid-template-columns: 1fr 1fr; } .pair { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 480px) {
  body { padding: 32px 20px; font-size: 16px; } h1 { font-size: 28px; }
  .card .figure { font-size: 22px; } .cards { gap: 28px 20px; }
  table { font-size: 12px; } th, td { padding-left: 8px; }
}
@media print {
  body { padding: 0; max-width: none; background: none; font-size: 11pt; }
  .pair { grid-template-columns: 1fr 1fr; gap: 24px 36px; } section { margin-top: 32px; }
  .cards { grid-template-columns: repeat(4, 1fr); } .card .figure { font-size: 20px; }
  table { font-size: 11px; } th, td { padding: 3px 0 3px 8px; } footer { margin-top: 20px; }
  figure, .card, tr { break-inside: avoid; } h2 { break-after: avoid; }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        label: what the legend calls it.
        points: (x, y) from left to right; the line is broken where one is not finite.
        style: CSS classes: a colour `c1` to `c4`, and `dashed` or `faint`.
    """

    label: str
    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True, slots=True)
class Part:
    """One bar, or one part of a stacked bar.

    Attributes:
        label: its name.
        amount: its length, >= 0, in any unit the bars of one chart share.
        text: the amount as it is printed.
        style: a colour class, `c1` to `c4`.
    """

    label: str
    amount: float
    text: str
    style: str


def page(title: str, body: str) -> str:
    """Wrap the HTML of a body into a whole document with the style sheet."""
    # The policy forbids every request, so that even a mistake in escaping could fetch nothing.
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def minus(number: str) -> str:
    """Print a negative number with a minus sign, as wide as a plus; no line breaks after it."""
    return number.replace("-", "−")


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    from_zero: bool = False,
    note: str = "",
) -> str:
    """Draw lines over shared axes, as an HTML figure with a legend.

    Args:
        title: says what is seen.
        lines: what to draw; points that are not finite are left out.
        x_label, y_label: quantity and unit.
        log_x: a logarithmic x axis; every x is then > 0.
        from_zero: whether the y axis has to show zero.
        note: a sentence below the chart.
    """
    points = [point for line in lines for point in line.points if _finite(point)]
    if not points:
        return _figure(title, "", [], "There is no finite value to draw.")
    y_ticks = _ticks([y for _, y in points] + [0.0] * from_zero)
    left, place_y, rows = _y_axis(y_ticks, y_label)
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
    keys = [(line.label, f'<path class="line {line.style}" d="M1 5h18"/>') for line in lines]
    return _figure(title, _svg(title, HEIGHT, [*rows, *columns, *paths]), keys, note)


def grouped_bars(
    title: str,
    labels: Sequence[str],
    groups: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
) -> str:
    """Draw one slot per label with one bar per group, as an HTML figure with a legend.

    Where a slot is too narrow for bars side by side, they overlay each other, translucent.

    Args:
        title: says what is seen.
        labels: (m,) what stands below each slot; thinned where there is no room.
        groups: by legend entry, (m,) heights >= 0.
        x_label, y_label: quantity and unit.
    """
    ticks = _ticks([0.0, *(height for row in groups.values() for height in row)])
    left, place_y, parts = _y_axis(ticks, y_label)
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


def horizontal_bars(title: str, parts: Sequence[Part]) -> str:
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


def stacked_bar(title: str, parts: Sequence[Part]) -> str:
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


def _rect(part: Part, x: float, y: float, width: float) -> str:
    return (
        f'<rect class="bar {part.style}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="18">'
        f"<title>{escape(part.label)}: {escape(part.text)}</title></rect>"
    )


def _y_axis(
    ticks: Sequence[float], label: str
) -> tuple[float, Callable[[float], float], list[str]]:
    """Left edge of the plot area in px, the y scale, and grid lines with their labels."""
    texts = _labels(ticks)
    left = max(map(len, texts)) * CHARACTER + 10
    place = _scale(ticks[0], ticks[-1], BOTTOM, TOP)
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
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return (low / 2, high * 2) if low > 0 else (low - 1.0, high + 1.0)


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
