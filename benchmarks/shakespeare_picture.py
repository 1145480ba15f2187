"""The picture and the table of docs/text.md, from benchmarks/results/shakespeare.json."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import mean

from performance_page import picture
from results import stored

from randquant._internal.html.figures import Axis, line_chart

ROOT = Path(__file__).parents[1]
NAME = "shakespeare"
sys.path.insert(0, str(ROOT / "examples" / "text_app"))

from text_app import task  # noqa: E402

__all__ = ["NAME", "draw", "drawn", "page", "task"]

PAGE, PICTURE = ROOT / "docs" / "text.md", ROOT / "docs" / "images" / "shakespeare.svg"
LINES = {"gaussian": "Gaussian noise on the exact sum", "one bit": "one bit",
         "tenth of a bit": "a tenth of a bit"}  # fmt: skip
LEVELS = (("none", "no privacy, the same rounds", "c4 dashed"),
          ("pooled", "no privacy, all text in one place", "c6 dashed"))  # fmt: skip
HEADER = "| trained | clients | sent | ε | bits won | accuracy | roles better | bytes | seeds |"

Kind = tuple[str, int, str, float]


def kinds(found: dict) -> dict[Kind, list[dict]]:
    """Rows that differ in their seed only; without privacy epsilon is infinite."""
    grouped: dict[Kind, list[dict]] = {}
    for row in found["rows"]:
        epsilon = float("inf") if row["epsilon"] is None else row["epsilon"]
        kind = (row["part"], row["clients"], row["mechanism"], epsilon)
        grouped.setdefault(kind, []).append(row)
    return dict(sorted(grouped.items()))


def won(rows: list[dict]) -> float:
    """Thousandths of a bit per character less than before."""
    return 1000 * mean(row["bits_before"] - row["bits"] for row in rows)


def drawn(found: dict) -> str:
    """What adapters win, against epsilon."""
    groups = kinds(found)
    fewest = min(clients for _, clients, _, _ in groups)
    own = {k: rows for k, rows in groups.items() if (k[0], k[1]) == ("adapters", fewest)}
    lines = []
    for colour, (name, label) in zip(("c1", "c2", "c3"), LINES.items(), strict=True):
        points = [(k[3], won(rows)) for k, rows in own.items() if k[2] == name]
        lines += [(label, points, colour)] if len(points) > 1 else []
    ends = {k[3] for k in own if k[3] < float("inf")}
    for name, label, style in LEVELS:
        for level in [won(rows) for kind, rows in own.items() if kind[2] == name]:
            lines.append((label, [(x, level) for x in (min(ends), max(ends))], style))
    title = f"What 3,840 parameters of adapters win on {fewest:,} roles"
    x, y = (
        Axis("epsilon of a role, whole run", log=True),
        Axis("thousandths of a bit per character"),
    )
    return picture(line_chart(title, lines, x, y))


def table(found: dict) -> str:
    """All rows, averages over the seeds there are."""
    lines = [HEADER, "|" + "---|" * (HEADER.count("|") - 1)]
    for (part, clients, mechanism, epsilon), rows in kinds(found).items():
        shown = "∞" if epsilon == float("inf") else f"{epsilon:g}"
        upload = rows[0]["upload_bytes"]
        sent = "all text" if upload is None else f"{upload:,}"
        accuracy, better = (100 * mean(r[n] for r in rows) for n in ("accuracy", "clients_better"))
        lines.append(
            f"| {part} | {clients:,} | {mechanism} | {shown} | {won(rows):.2f} "
            f"| {accuracy:.2f} % | {better:.0f} % | {sent} | {len(rows)} |"
        )
    return "\n".join(lines)


def page(text: str, found: dict) -> str:
    """The page with the table of what is stored."""
    pattern = re.escape(HEADER) + r"\n(?:\|.*\n)+"
    written, count = re.subn(pattern, lambda _: table(found) + "\n", text)
    assert count == 1
    return written


def draw() -> None:
    """Write the picture, and the table into the page."""
    found = stored(NAME)
    PICTURE.write_text(drawn(found))
    PAGE.write_text(page(PAGE.read_text(), found))
    print("wrote docs/images/shakespeare.svg and the table of docs/text.md")


if __name__ == "__main__":
    draw()
