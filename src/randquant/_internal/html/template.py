"""A page: the HTML document around a body, and the one style sheet of text, tables and charts."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib import metadata

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfdfb; --ink: #1e2227; --soft: #5a626c; --rule: #e0e2e5;
  --blue: #0072b2; --orange: #d55e00; --green: #009e73; --grey: #a3a9b1;
  --purple: #7b3fa0; --pink: #cc5f9a; --brown: #8a6d1f; --black: #1e2227;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif;
}
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --ink: #e4e6e8; --soft: #9ba3ac; --rule: #2d3339;
  --blue: #56b4e9; --orange: #e69f00; --green: #2fc39b; --grey: #6b737c;
  --purple: #b18ae0; --pink: #ee8fc0; --brown: #c9b458; --black: #e4e6e8;
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
p.caption { font: 600 15px/1.4 var(--sans); margin: 0 0 8px; }
.table { min-width: 0; }
th, td { padding: 5px 0 5px 12px; border-bottom: 1px solid var(--rule); text-align: right; }
th { font-weight: 400; color: var(--soft); }
th:first-child { padding-left: 0; text-align: left; }
thead th { vertical-align: bottom; border-bottom: 1px solid var(--ink); }
td { font-variant-numeric: tabular-nums; white-space: nowrap; }
.settings td { white-space: normal; overflow-wrap: anywhere; }
.settings tbody th { white-space: nowrap; }
.claims th, .claims td { text-align: left; vertical-align: top; white-space: normal; }
.claims td.holds, .claims td.fails, .claims td.open { white-space: nowrap; }
.claims tbody th { color: var(--ink); font-weight: 600; }
.compared th:last-child, .compared td:last-child { text-align: left; white-space: normal; }
.compared td:last-child { min-width: 15em; }
.compared tbody th { white-space: nowrap; color: var(--ink); }
footer { margin-top: 64px; padding-top: 14px; border-top: 1px solid var(--rule); }
figure { margin: 0; max-width: 540px; min-width: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font: 600 15px/1.4 var(--sans); margin-bottom: 6px; }
.note { padding-top: 10px; }
.label { font: 14px/1.5 var(--sans); margin: 16px 0 0; padding: 8px 14px; }
.label { border-left: 4px solid var(--orange); }
pre { font: 13px/1.5 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; margin: 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.command { margin-top: 18px; padding: 8px 14px; border: 1px solid var(--rule); }
nav { display: flex; flex-wrap: wrap; gap: 4px 24px; font: 14px/1.5 var(--sans); }
nav { margin-bottom: 32px; }
.counts { display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; padding: 0; }
.counts { font: 13px/1.5 var(--sans); margin: 12px 0 0; }
a { color: var(--blue); text-underline-offset: 0.15em; }
.holds, .fails, .open { font-weight: 600; }
.holds::before, .fails::before, .open::before { color: var(--color); margin-right: 0.4em; }
.holds::before { --color: var(--green); content: "✓"; }
.fails::before { --color: var(--orange); content: "✗"; }
.open::before { --color: var(--soft); content: "?"; }
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
svg .thin { stroke-width: 1.2; opacity: 0.8; }
svg .dashed { stroke-dasharray: 5 4; }
svg .bar { fill: var(--color); }
svg .overlaid { opacity: 0.5; }
.c1 { --color: var(--blue); } .c2 { --color: var(--orange); }
.c3 { --color: var(--green); } .c4 { --color: var(--grey); }
.c5 { --color: var(--purple); } .c6 { --color: var(--pink); }
.c7 { --color: var(--brown); } .c8 { --color: var(--black); }
rect[class^="s"] { shape-rendering: crispEdges; }
.wide { grid-column: 1 / -1; }
@media (max-width: 820px) {
  .cards { grid-template-columns: 1fr 1fr; } .pair { grid-template-columns: minmax(0, 1fr); }
}
@media (max-width: 480px) {
  body { padding: 32px 20px; font-size: 16px; } h1 { font-size: 28px; }
  .card .figure { font-size: 22px; } .cards { gap: 28px 20px; }
  table { font-size: 12px; } th, td { padding-left: 8px; }
  .claims thead { display: none; } .claims tr { border-bottom: 1px solid var(--rule); }
  .claims tr, .claims th, .claims td { display: block; }
  .claims th, .claims td { border: 0; padding: 2px 0; } .claims tr { padding: 8px 0; }
  .paper td:nth-of-type(-n + 3), .stated td:nth-of-type(-n + 2) {
    display: inline-block; margin-right: 20px;
  }
  .paper td:nth-of-type(1)::before, .stated td:nth-of-type(1)::before { content: "paper: "; }
  .paper td:nth-of-type(2)::before { content: "ours: "; }
  .stated td:nth-of-type(2)::before { content: "certified: "; }
}
@media print {
  :root { color-scheme: light; }
  body { padding: 0; max-width: none; background: none; font-size: 11pt; }
  .pair { grid-template-columns: 1fr 1fr; gap: 24px 36px; } section { margin-top: 32px; }
  .cards { grid-template-columns: repeat(4, 1fr); } .card .figure { font-size: 20px; }
  table { font-size: 11px; } th, td { padding: 3px 0 3px 8px; } footer { margin-top: 20px; }
  figure, .card, tr { break-inside: avoid; } h2 { break-after: avoid; }
}
"""

SHADES = "".join(
    f".s{k} {{ fill: color-mix(in oklab, var(--blue) {100 * (k + 1) / 32:.0f}%, var(--paper)); }}\n"
    for k in range(32)
)
"""Fills of a heat map's cells, `s0` to `s31`."""


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """Wrap the HTML of a body into a whole document with the style sheet.

    Args:
        title: of the document.
        body: HTML.
        style: additional CSS for this page.
        script: the only script that the page may run; the page must be readable without it.
    """
    # The policy forbids every request, and every script except this one, so that even a mistake
    # in escaping cannot fetch or run anything.
    policy, run = "default-src 'none'; style-src 'unsafe-inline'", ""
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy, run = f"{policy}; script-src 'sha256-{digest}'", f"<script>{script}</script>\n"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title>
<style>{STYLE}{SHADES}{style}</style>
</head>
<body>
{body}
{run}</body>
</html>
"""


def header(kind: str, title: str, text: str) -> str:
    """The header of a page: the kind of page, its title, a sentence."""
    return (
        f'<header><p class="kind">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f"<p>{escape(text)}</p></header>"
    )


def section(title: str, parts: Sequence[str]) -> str:
    """A headed section of parts in two columns (one on a phone); empty without parts."""
    if not parts:
        return ""
    return f'<section><h2>{title}</h2><div class="pair">{"".join(parts)}</div></section>'


def footer() -> str:
    """The footer of a page: the version that made it."""
    try:
        version = f"randquant {metadata.version('randquant')}"
    except metadata.PackageNotFoundError:
        version = "randquant"
    return f"<footer>Made by {escape(version)}.</footer>"
