"""Yours to replace: the model, and a hospital's patients."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from flwr.app import Context
from torch import Tensor, nn

USUAL = {  # a usual value of adults, and a usual deviation: constants, not fitted to any patient
    "age": (50, 10), "sex": (0.5, 0.5), "cp": (3, 1), "trestbps": (130, 20), "thalach": (140, 25),
    "exang": (0.5, 0.5), "oldpeak": (1, 1),
}  # fmt: skip


def build_model() -> nn.Module:
    """Two layers; without batch norm, whose statistics are no parameters."""
    return nn.Sequential(nn.Linear(len(USUAL), 8), nn.Tanh(), nn.Linear(8, 2))


SIMULATED = ("cleveland", "hungarian", "switzerland", "va")


def file_of(context: Context) -> str | Path:
    """The CSV file that a SuperNode's `--node-config` names; in a simulation one of four."""
    if "data" in context.node_config:
        return str(context.node_config["data"])
    name = SIMULATED[int(context.node_config["partition-id"])]
    return Path(str(context.run_config["data"])) / f"{name}.csv"


def patients(path: str | Path) -> tuple[Tensor, Tensor]:
    """Features and diagnosis of the patients of a CSV file; what is missing counts as usual."""
    table = pd.read_csv(path, na_values="?")
    columns = [
        ((pd.to_numeric(table[name]) - usual) / deviation).fillna(0).clip(-3, 3)
        for name, (usual, deviation) in USUAL.items()
    ]
    features = torch.tensor(pd.concat(columns, axis=1).to_numpy(), dtype=torch.float32)
    return features, torch.tensor((table["target"] > 0).to_numpy(), dtype=torch.int64)
