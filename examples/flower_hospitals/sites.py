"""Files for a trial: real patients (scikit-learn's breast cancer data), dealt to four sites.

python examples/flower_hospitals/sites.py FOLDER    # site0.csv to site3.csv, and test.csv
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SIZES = (200, 130, 80, 45)
"""Patients of each site; the 114 others are for the test."""


def deal(folder: Path, seed: int = 0) -> None:
    """Write the files of sites and test into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    table = load_breast_cancer(as_frame=True).frame
    table["malignant"] = 1 - table.pop("target")
    order = np.random.default_rng(seed).permutation(len(table))
    *sites, test = np.split(order, np.cumsum(SIZES))
    for number, site in enumerate(sites):
        table.iloc[site].to_csv(folder / f"site{number}.csv", index=False)
    table.iloc[test].to_csv(folder / "test.csv", index=False)


if __name__ == "__main__":
    deal(Path(sys.argv[1]))
