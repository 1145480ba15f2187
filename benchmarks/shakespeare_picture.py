"""The picture of docs/text.md, from benchmarks/results/shakespeare.json."""

from __future__ import annotations

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

__all__ = ["NAME", "draw", "drawn", "task"]

LINES = {"gaussian": "Gaussian noise on the exact sum", "one bit": "one bit",
         "tenth of a bit": "a tenth of a bit"}  # fmt: skip


def curve(rows: list[dict], part: str, mechanism: str) -> list[tuple[float, float]]:
    """Accuracy in percent against epsilon, over the seeds there are."""
    own = [r for r in rows if (r["part"], r["mechanism"], r["times"]) == (part, mechanism, 1)]
    epsilons = sorted({r["epsilon"] for r in own})
    return [
        (epsilon, 100 * mean(r["accuracy"] for r in own if r["epsilon"] == epsilon))
        for epsilon in epsilons
    ]


def drawn(found: dict) -> str:
    """Adapters' accuracy against epsilon, between before and without privacy."""
    rows = [r for r in found["rows"] if r["part"] == "adapters"]
    lines = [
        (label, curve(rows, "adapters", name), colour)
        for colour, (name, label) in zip(("c1", "c2", "c3"), LINES.items(), strict=True)
    ]
    lines = [each for each in lines if each[1]]
    ends = sorted({r["epsilon"] for r in rows if r["epsilon"] is not None})
    plain = [r["accuracy"] for r in rows if r["mechanism"] == "none"]
    levels = {"no privacy": mean(plain), "public roles only": rows[0]["accuracy_before"]}
    for name, level in levels.items():
        lines.append((name, [(x, 100 * level) for x in (ends[0], ends[-1])], "c4 dashed"))
    title = f"Next characters right, {rows[0]['dimension']:,} parameters of adapters"
    x, y = Axis("epsilon of a role, whole run", log=True), Axis("accuracy in %")
    return picture(line_chart(title, lines, x, y))


def draw() -> None:
    """Draw docs/images/shakespeare.svg."""
    (ROOT / "docs" / "images" / "shakespeare.svg").write_text(drawn(stored(NAME)))
    print("wrote docs/images/shakespeare.svg")
