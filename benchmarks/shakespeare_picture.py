"""The picture, the tables and the speed of papers/docs/text.md, from results/shakespeare.json."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from statistics import mean, stdev

from performance_page import picture
from results import stored

from randquant.reports import Axis, line_chart

ROOT = Path(__file__).parents[1]
NAME = "shakespeare"
sys.path.insert(0, str(ROOT / "papers" / "text_app"))

from text_app import task  # noqa: E402

__all__ = ["NAME", "draw", "drawn", "page", "task"]

DOCS = ROOT / "papers" / "docs"
PAGE, PICTURE = DOCS / "text.md", DOCS / "images" / "shakespeare.svg"
LINES = {
    (3, "adapters", "gaussian"): ("3,840 parameters, Gaussian noise", "c1"),
    (3, "adapters", "one bit"): ("3,840, one bit", "c2"),
    (3, "adapters", "tenth of a bit"): ("3,840, a tenth of a bit", "c3"),
    (3, "adapters", "none"): ("3,840, no privacy", "c4 dashed"),
    (3, "linear layers", "gaussian"): ("103,424 parameters, Gaussian noise", "c5"),
    (3, "linear layers", "none"): ("103,424, no privacy", "c6 dashed"),
    (3, "full", "gaussian"): ("whole model, 115,536, Gaussian noise", "c7"),
    (24, "linear layers", "gaussian"): ("103,424 after 24 passes, Gaussian noise", "c8"),
}  # fmt: skip
"""All with the fewest clients, after passes over public text; what has no epsilon is a level."""

HEADER = (
    "| passes | trained | clients | sent | ε | bits won | accuracy | roles better | bytes | seeds |"
)
NOT_SENT = {"pooled": "all text", "public again": "none"}
"""By clients, where Adam is given all their text, or the public text once more."""

PLANNED = "| passes | trained | one bit | ε 2 | ε 4 | ε 8 | ε 16 |"

Kind = tuple[int, str, int, str, float]


def kinds(found: dict) -> dict[Kind, list[dict]]:
    """Rows that differ in their seed only; without privacy epsilon is infinite."""
    grouped: dict[Kind, list[dict]] = {}
    for row in found["rows"]:
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        kind = (row["passes"], row["part"], row["clients"], row["mechanism"], epsilon)
        grouped.setdefault(kind, []).append(row)
    return dict(sorted(grouped.items()))


def won(rows: list[dict]) -> float:
    """Thousandths of a bit per character less than before."""
    return mean(_won(rows))


def spread(rows: list[dict]) -> str:
    """The standard deviation between seeds, where there are some."""
    return f" ± {stdev(_won(rows)):.2f}" if len(rows) > 1 else ""


def _won(rows: list[dict]) -> list[float]:
    return [1000 * (row["bits_before"] - row["bits"]) for row in rows]


def drawn(found: dict) -> str:
    """What parts of the model win, against epsilon."""
    groups = kinds(found)
    fewest = min(clients for _, _, clients, _, _ in groups)
    ends = [e for *_, e in groups if e < math.inf]
    lines = []
    for (passes, part, mechanism), (label, style) in LINES.items():
        own = (passes, part, fewest, mechanism)
        points = [(kind[4], won(rows)) for kind, rows in groups.items() if kind[:4] == own]
        if mechanism == "none":
            points = [(x, level) for _, level in points for x in (min(ends), max(ends))]
        lines += [(label, points, style)] if len(points) > 1 else []
    title = f"What four rounds on {fewest:,} roles win"
    x, y = (
        Axis("epsilon of a role, whole run", log=True),
        Axis("thousandths of a bit per character"),
    )
    return picture(line_chart(title, lines, x, y))


def table(found: dict) -> str:
    """All rows, averages over the seeds there are."""
    lines = [HEADER, "|" + "---|" * (HEADER.count("|") - 1)]
    for (passes, part, clients, mechanism, epsilon), rows in kinds(found).items():
        shown = "∞" if epsilon == math.inf else f"{epsilon:g}"
        upload = rows[0]["upload_bytes"]
        sent = NOT_SENT[mechanism] if upload is None else f"{upload:,}"
        accuracy, better = (100 * mean(r[n] for r in rows) for n in ("accuracy", "clients_better"))
        lines.append(
            f"| {passes} | {part} | {clients:,} | {mechanism} | {shown} | {won(rows):.2f}"
            f"{spread(rows)} | {accuracy:.2f} % | {better:.0f} % | {sent} | {len(rows)} |"
        )
    return "\n".join(lines)


def plans(found: dict) -> str:
    """What the planner said before anything was trained, and what came."""
    lines = [PLANNED, "|" + "---|" * (PLANNED.count("|") - 1)]
    groups = kinds(found)
    fewest = min(clients for _, _, clients, _, _ in groups)
    for about in sorted(found["planned"], key=lambda each: (each["passes"], each["part"])):
        passes, part, plans = about["passes"], about["part"], about["plans"]
        whole = won(groups[passes, part, fewest, "none", math.inf])
        rows = [groups.get((passes, part, fewest, "one bit", plan["epsilon"])) for plan in plans]
        of = f"{passes} | {part}, {about['dimension']:,}"
        for name, cells in (
            ("plan", [f"{plan['share']:.2g}, {plan['verdict']}" for plan in plans]),
            ("kept", [f"{won(row) / whole:.0%}" if row else "" for row in rows]),
        ):
            lines.append(f"| {of} | {name} | {' | '.join(cells).replace('%', ' %')} |")
            of = " | "
    return "\n".join(lines)


def speed(found: dict) -> str:
    """What a round costs beside bare torch."""
    measured = found["speed"]
    told = []
    for workers, threads in ((1, "one thread"), (2, "two")):
        own = measured[f"{workers} workers"]
        bare, ours = (own["rounds_per_minute"][name] for name in ("bare", "ours"))
        rounds = f"{ours:.0f} rounds a minute beside {bare:.0f}"
        told.append(f"{own['ours_over_bare']:.2f} times on {threads} ({rounds})")
    one = measured["1 workers"]
    return (
        f"A round of {measured['cohort']} roles takes this much of the processor time of a bare "
        f"torch loop over the same windows: {', '.join(told)}. The process peaks at "
        f"{one['megabytes']['ours']:.0f} MiB with data and torch, and at "
        f"{one['megabytes_all_roles']:.0f} in a round of all roles."
    )


def page(text: str, found: dict) -> str:
    """The page with the tables and the speed of what is stored."""
    for pattern, written in (
        (re.escape(HEADER) + r"\n(?:\|.*\n)+", table(found)),
        (re.escape(PLANNED) + r"\n(?:\|.*\n)+", plans(found)),
        (r"A round of \d+ roles takes .*\n", speed(found)),
    ):
        text, count = re.subn(pattern, lambda _, said=written: said + "\n", text)
        assert count == 1, pattern
    return text


def draw() -> None:
    """Write the picture, and the table into the page."""
    found = stored(NAME)
    PICTURE.write_text(drawn(found))
    PAGE.write_text(page(PAGE.read_text(), found))
    print("wrote papers/docs: images/shakespeare.svg, and the figures of text.md")


if __name__ == "__main__":
    draw()
