"""A survival curve at epsilon 1 beside the exact one, under each trust.

python benchmarks/survival.py flchain.arff

The data are 7,874 residents of Olmsted County (Dispenzieri et al. 2012; flchain of R's survival),
as scikit-survival ships them in sksurv/datasets/data/flchain.arff; they are not in this repository.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import altair
import numpy as np
from results import save

import randquant as rq
from randquant.statistics import Table

ROOT = Path(__file__).parents[1]
UNTIL, BINS = 5000.0, 50


def residents(path: str) -> dict[str, np.ndarray]:
    """Days until death or until last seen, and which."""
    head, _, body = Path(path).read_text().partition("@data\n")
    names = [line.split()[1] for line in head.splitlines() if line.startswith("@attribute")]
    rows = [dict(zip(names, row, strict=True)) for row in csv.reader(body.splitlines())]
    days = np.array([float(row["futime"]) for row in rows])
    return {"days": days, "died": np.array([row["death"] == "dead" for row in rows])}


def exact(data: dict[str, np.ndarray], places: np.ndarray) -> np.ndarray:
    """Kaplan and Meier's estimate after each place, by its definition."""
    times = np.unique(data["days"][data["died"]])
    at_risk = (data["days"][None] >= times[:, None]).sum(axis=1)
    deaths = ((data["days"][None] == times[:, None]) & data["died"][None]).sum(axis=1)
    curve = np.append(1.0, np.cumprod(1 - deaths / at_risk))
    return curve[np.searchsorted(times, places, side="right")]


def asked(data: dict[str, np.ndarray], epsilon: float, trust: str) -> Table:
    """The curve, of people who each have one record."""
    records = zip(*map(np.ndarray.tolist, data.values()), strict=True)
    people = [dict(zip(data, record, strict=True)) for record in records]
    curve = {"survival": rq.KaplanMeier("days", "died", until=UNTIL, bins=BINS)}
    return rq.statistics(people, epsilon, queries=curve, trust=trust)


def measured(data: dict[str, np.ndarray], draws: int) -> list[dict]:
    """The error of each trust's curve, and how many of its intervals hold the exact curve."""
    rows = []
    for trust in ("central", "aggregate", "local"):
        errors, held, width = [], [], []
        for _ in range(draws if trust != "local" else max(draws // 10, 1)):
            table = asked(data, 1.0, trust)
            answer = table["survival"]
            truth = exact(data, np.array(answer.places))
            for each, true in zip(answer.values(), truth, strict=True):
                ends = each.among_records
                errors.append(each.estimate - true)
                held.append(ends.lower <= true <= ends.upper)
                width.append(ends.upper - ends.lower)
        row = {
            "trust": trust,
            "epsilon": table.guarantee.epsilon,
            "delta": table.guarantee.delta,
            "error": float(np.sqrt(np.mean(np.square(errors)))),
            "largest": float(np.max(np.abs(errors))),
            "width": float(np.mean(width)),
            "held": float(np.mean(held)),
            "tables": len(errors) // BINS,
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def drawn(data: dict[str, np.ndarray], epsilon: float) -> altair.LayerChart:
    """A curve with its bands, and the exact one over it."""
    table = asked(data, epsilon, "aggregate")
    places = np.linspace(0, UNTIL, 401)
    curve = exact(data, places)
    points = [{"x": x, "y": y} for x, y in zip(places.tolist(), curve.tolist(), strict=True)]
    line = altair.Chart(altair.Data(values=points)).mark_line(
        color="#d55e00", strokeDash=[4, 3], strokeWidth=1.2
    )
    title = f"{len(data['days']):,} people, epsilon {epsilon:g}; dashed: exact"
    return rq.plot(table).properties(title=title) + line.encode(x="x:Q", y="y:Q")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    data = residents(given.data)
    for epsilon, name in ((1.0, "survival"), (0.1, "survival-tenth")):
        drawn(data, epsilon).save(ROOT / "docs" / "images" / f"{name}.svg")
    save(
        "survival", {"people": len(data["days"]), "bins": BINS, "rows": measured(data, given.draws)}
    )


if __name__ == "__main__":
    main()
