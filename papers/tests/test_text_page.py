"""The page on text says what was measured, and its notebook was run."""

import ast
import importlib
import json
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "papers" / "docs"


def test_the_page_on_text_has_what_was_measured():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        shakespeare = importlib.import_module("shakespeare_picture")
    finally:
        sys.path.pop(0)
    found = json.loads((ROOT / "benchmarks" / "results" / "shakespeare.json").read_text())
    text = (DOCS / "text.md").read_text()
    assert shakespeare.page(text, found) == text
    drawn = (DOCS / "images" / "shakespeare.svg").read_text()
    assert shakespeare.drawn(found) == drawn
    for row in found["rows"]:
        before = f"{row['bits_before']:.4f} bits and {100 * row['accuracy_before']:.2f} % "
        assert row["part"] == "plain adapters" or before in text
    groups = shakespeare.kinds(found)

    def won(mechanism, epsilon=math.inf, part="linear layers", clients=1014):
        return f"{shakespeare.won(groups[24, part, clients, mechanism, epsilon]):.1f}"

    assert (
        f"on all linear layers {won('none')} without privacy, {won('gaussian', 16)} at epsilon 16, "
        f"{won('gaussian', 8)} at 8, {won('gaussian', 2)} at 2, and "
        f"{won('gaussian', 2, clients=10_140)} at 2 with ten times as many clients"
    ) in text
    for told in (shakespeare.plans(found), shakespeare.speed(found)):
        assert told in text
    # What the planner said that a round keeps at most, and what came.
    beyond = []
    for about in found["planned"]:
        of = about["passes"], about["part"], 1014
        whole = shakespeare.won(groups[*of, "none", math.inf])
        for plan in about["plans"]:
            rows = groups.get((*of, "one bit", plan["epsilon"]))
            beyond += [plan["kept"] * whole / shakespeare.won(rows)] if rows else []
    assert len(beyond) == 18
    assert min(beyond) > 1
    said = f"by a factor of {min(beyond):.2f} to {max(beyond):.1f}."
    assert said in text
    assert said in (ROOT / "docs" / "theory" / "plan.md").read_text()


def test_the_stored_notebook_on_text_won_something_within_its_target():
    """Its data do not come with the package either."""
    path = DOCS / "shakespeare.ipynb"
    cells = json.loads(path.read_text())["cells"]
    ast.parse("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code"))
    said = "".join("".join(out.get("text", "")) for c in cells for out in c.get("outputs", []))
    epsilon = re.search(r"^epsilon <= ([0-9.]+) at delta = 1e-05 ", said, re.MULTILINE)
    assert float(epsilon[1]) <= 8
    before, after = re.search(
        r"([0-9.]+) bits per character before, ([0-9.]+) after", said
    ).groups()
    won, better = float(before) - float(after), re.search(r"better for (\d+) %", said)[1]
    assert won > 0
    told = " ".join((DOCS / "text.md").read_text().split())
    assert f"wins {1000 * won:.1f} thousandths, and {better} % of the roles gain" in told
