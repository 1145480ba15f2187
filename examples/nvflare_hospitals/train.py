"""A hospital's training script: NVFlare's client API, a model of torch, a CSV file.

It sends the sum of its patients' clipped gradients; `QuantizeFilter`, which the hospital has
configured, divides it by a public number and turns it into what may be sent.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nvflare.client as flare
import pandas as pd
import torch
from nvflare.app_common.abstract.fl_model import ParamsType
from torch import Tensor, nn

import randquant as rq

USUAL = {  # a usual value of adults, and a usual deviation: constants, not fitted to any patient
    "age": (50, 10), "sex": (0.5, 0.5), "cp": (3, 1), "trestbps": (130, 20), "thalach": (140, 25),
    "exang": (0.5, 0.5), "oldpeak": (1, 1),
}  # fmt: skip


class Network(nn.Sequential):
    """Two layers; without batch norm, whose statistics are no parameters."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(len(USUAL), 8), nn.Tanh(), nn.Linear(8, 2))


def patients(path: Path) -> tuple[Tensor, Tensor]:
    """Features and diagnosis of the patients of a CSV file; what is missing counts as usual."""
    table = pd.read_csv(path, na_values="?")
    columns = [
        ((pd.to_numeric(table[name]) - usual) / deviation).fillna(0).clip(-3, 3)
        for name, (usual, deviation) in USUAL.items()
    ]
    features = torch.tensor(pd.concat(columns, axis=1).to_numpy(), dtype=torch.float32)
    return features, torch.tensor((table["target"] > 0).to_numpy(), dtype=torch.int64)


def main() -> None:
    """Answer one task after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--clip-norm", type=float, required=True)
    given = parser.parse_args()
    flare.init()
    data, model = patients(given.data / f"{flare.get_site_name()}.csv"), Network()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        update = rq.example_update(model, data, clip_norm=given.clip_norm)
        flare.send(flare.FLModel(params_type=ParamsType.DIFF, params=update))


if __name__ == "__main__":
    main()
