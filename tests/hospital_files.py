"""Files of four hospitals in the format of UCI's heart-disease data, with invented patients."""

import numpy as np

SITES = ("cleveland", "hungarian", "switzerland", "va")


def invented(folder):
    """Patients of the four hospitals in the files' format, with what is missing."""
    names = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target"
    chance = np.random.default_rng(7)
    for site in SITES:
        rows = [
            ",".join([f"{chance.integers(30, 80)}", "1", "4", "?", "0", *["?"] * 8, f"{ill}"])
            for ill in chance.integers(0, 4, 120)
        ]
        (folder / f"{site}.csv").write_text("\n".join([names, *rows]) + "\n")
