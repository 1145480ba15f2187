"""A hospital: its patients in features of public constants, and its part in a training task."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.np.constants import NPConstants

from randquant.aggregation import clip_to_norm

SITES = ("cleveland", "hungarian", "switzerland", "va")
FEATURES = 16
CENTRES = {
    "age": (50, 10), "trestbps": (130, 20), "chol": (220, 50), "thalach": (140, 25),
    "oldpeak": (1, 1), "ca": (1, 1),
}  # fmt: skip
"""A usual value of adults and a usual deviation, chosen without these data: what is missing counts
as usual, and nothing is fitted, so that preparing the data reveals nothing."""


def features(row: dict[str, str]) -> list[float]:
    """The features of one patient, which depend on nobody else's; '?' is missing."""

    def value(name: str, missing: float) -> float:
        return missing if row[name] in ("?", "") else float(row[name])

    def scaled(name: str) -> float:
        centre, deviation = CENTRES[name]
        return float(np.clip((value(name, centre) - centre) / deviation, -3, 3))

    unknown = value("chol", 0) == 0  # Switzerland writes 0
    pain, slope, thal = value("cp", 0), value("slope", 0), value("thal", 0)
    return [
        1.0, scaled("age"), value("sex", 0.5) - 0.5, pain == 4, pain == 2, scaled("trestbps"),
        0.0 if unknown else scaled("chol"), unknown, value("fbs", 0), value("restecg", 0) > 0,
        scaled("thalach"), value("exang", 0), scaled("oldpeak"), slope >= 2, scaled("ca"),
        thal >= 6,
    ]  # fmt: skip


def patients(folder: str | Path, site: str) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 16) and whether a disease was found (n,), float64, of one hospital."""
    with open(Path(folder) / f"{site}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    x = np.array([features(row) for row in rows], float)
    return x, np.array([float(row["target"]) > 0 for row in rows], float)


def split(x: np.ndarray, y: np.ndarray, seed: int) -> tuple[tuple, tuple]:
    """Four fifths of the patients to train with, one to test."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [len(y) // 5])
    return (x[train], y[train]), (x[test], y[test])


def step(weights: np.ndarray, x: np.ndarray, y: np.ndarray, clip_norm: float) -> np.ndarray:
    """Minus the sum of the patients' clipped gradients, (16,) float32.

    The gradients are the logistic loss's. Summed in float64: one patient moves the sum by at most
    2 · clip_norm, in whichever hospital. `randquant.example_update` computes the same for a model
    of torch; `QuantizeFilter(examples=...)` divides it.
    """
    wrong = 1 / (1 + np.exp(-x @ weights)) - y
    total = np.zeros(len(weights))
    for each, patient in zip(wrong, x, strict=True):
        total -= clip_to_norm(each * patient, clip_norm)
    return total.astype(np.float32)


def accuracy(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Share of patients for whom the model is right."""
    return float(np.mean((x @ weights > 0) == y))


class HospitalExecutor(Executor):
    """Answers a training task with the sum of its patients' clipped gradients, as WEIGHT_DIFF."""

    def __init__(self, data: str, clip_norm: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.data, self.clip_norm, self.seed = data, clip_norm, seed

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        """One step on all patients."""
        if task_name != "train":
            return make_reply(ReturnCode.TASK_UNKNOWN)
        weights = np.asarray(from_shareable(shareable).data[NPConstants.NUMPY_KEY], float)
        train, _ = split(*patients(self.data, fl_ctx.get_identity_name()), self.seed)
        update = step(weights, *train, self.clip_norm)
        return DXO(DataKind.WEIGHT_DIFF, {NPConstants.NUMPY_KEY: update}).to_shareable()
