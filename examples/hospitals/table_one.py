"""Four hospitals' table 1, with one guarantee for each patient, beside the exact one.

python examples/hospitals/table_one.py --data FOLDER [--epsilon 1] [--draw FILE.svg]

Each hospital adds up what its patients become, with its share of the noise; in a deployment a
secure sum adds up the hospitals. FOLDER has the four .csv files of the heart-disease data.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import randquant as rq

SITES = ("cleveland", "hungarian", "switzerland", "va")

QUERIES = {
    "age, years": rq.Mean(18, 100, column="age"),
    "men": rq.Counts([1, 0], column="sex"),
    "blood pressure, mmHg": rq.Mean(80, 220, column="trestbps"),
    "cholesterol, mg/dl": rq.Mean(100, 500, column="chol"),
    "highest heart rate": rq.Mean(60, 220, column="thalach"),
    "with the disease": rq.Counts([1, 0], column="target"),
}
"""Bounds of adults, chosen without these data."""


def patients(folder: str | Path, site: str) -> dict[str, list[float | None]]:
    """Columns of one hospital's patients; None where a value is missing."""
    with open(Path(folder) / f"{site}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    columns: dict[str, list[float | None]] = {}
    for query in QUERIES.values():
        # Switzerland writes a cholesterol of 0 where none was measured.
        absent = ("?", "", "0", "0.0") if query.column == "chol" else ("?", "")
        cells = [row[query.column] for row in rows]
        columns[query.column] = [None if cell in absent else float(cell) for cell in cells]
    columns["target"] = [None if each is None else float(each > 0) for each in columns["target"]]
    return columns


def exact(hospitals: dict[str, dict[str, list[float | None]]], name: str) -> float:
    """The first number of an answer, of all patients, without noise."""
    query = QUERIES[name]
    every = [each for columns in hospitals.values() for each in columns[query.column]]
    known = np.array([each for each in every if each is not None])
    return float(known.mean() if isinstance(query, rq.Mean) else (known == 1).sum())


def main() -> None:
    """Print the table, and draw it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the four .csv files")
    parser.add_argument("--epsilon", type=float, default=1.0, help="of a patient")
    parser.add_argument("--draw", type=Path, help="file of a picture")
    given = parser.parse_args()
    hospitals = {site: patients(given.data, site) for site in SITES}
    table = rq.statistics(hospitals, given.epsilon, queries=QUERIES, unit="example")
    print(table)
    print("exact:", ", ".join(f"{name} {exact(hospitals, name):.4g}" for name in QUERIES))
    if given.draw:
        given.draw.write_text(drawn(table, {name: exact(hospitals, name) for name in QUERIES}))


def drawn(table: Any, without_noise: dict[str, float]) -> str:
    """The first number of each answer with its intervals, and the exact one in words."""
    from randquant.reports import Intervals, answers, charts

    # An answer with several units has a figure for each of its numbers, the first one first.
    first = {each.title.partition(":")[0]: each for each in reversed(answers.figures(table))}
    rows = []
    for name in table:
        label = f"{name} (exactly {without_noise[name]:.4g})"
        rows.append(msgspec.structs.replace(first[name].rows[0], label=label))
    epsilon, _, _ = str(table.guarantee).partition(" (")
    title = f"{table.records:,} patients of four hospitals, {epsilon}"
    return charts.svg(Intervals(title=title, rows=tuple(rows)), standalone=True, width=520)


if __name__ == "__main__":
    main()
