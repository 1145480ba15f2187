"""Hospitals beside a trusted curator: a network of two layers, and one hospital ten times as large.

python benchmarks/hospital_models.py FOLDER [--epsilon 2] [--splits 10] [--noises 2] measures with
the .csv files of the heart-disease data in FOLDER; without a folder it prints the stored results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import numpy as np
import torch
from hospitals import CLIP_NORM, DELTA, FEATURES, ROUNDS, SITES, patients, split
from results import save, stored
from torch import nn

import randquant as rq
from randquant.channels import Key
from randquant.planning import gaussian_multiplier
from randquant.rounds import ParameterFreeStep, Target

Data = tuple[torch.Tensor, torch.Tensor]
LARGE = 10
"""How many times as many patients the large hospital has as each of the others."""


def linear() -> nn.Module:
    return nn.Linear(FEATURES, 2)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 2))


def tensors(x: np.ndarray, y: np.ndarray) -> Data:
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.int64)


def as_they_are(trains: list[Data]) -> list[Data]:
    return trains


def one_large(trains: list[Data]) -> list[Data]:
    """The same patients, dealt to one large and three small hospitals."""
    x, y = map(torch.cat, zip(*trains, strict=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    small = len(y) // (LARGE + len(SITES) - 1)
    parts = order.split([len(y) - small * (len(SITES) - 1), *[small] * (len(SITES) - 1)])
    return [(x[part], y[part]) for part in parts]


def learned(model: nn.Module, direction: Callable, deviation: float) -> nn.Module:
    """The model after ROUNDS steps, as the controller takes them."""
    shapes = [tuple(each.shape) for each in model.parameters()]
    rule = ParameterFreeStep(shapes, ROUNDS, CLIP_NORM, deviation / CLIP_NORM)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    state = rule.init()
    for _ in range(ROUNDS):
        weights, state = rule.step(weights, -direction(model), state)
        nn.utils.vector_to_parameters(torch.from_numpy(weights), model.parameters())
    return model


def update_of(model: nn.Module, data: Data, examples: int) -> np.ndarray:
    update = rq.example_update(model, data, clip_norm=CLIP_NORM)
    return torch.cat([part.reshape(-1) for part in update.values()]).numpy() / examples


def accuracy(model: nn.Module, data: Data) -> float:
    with torch.no_grad():
        return float((model(data[0]).argmax(1) == data[1]).float().mean())


def measured(case: str, folder: str, epsilon: float, splits: int, noises: int) -> dict:
    """Accuracies of one sum of all hospitals, and of a curator, for each split and noise."""
    build, dealt = CASES[case]
    data = {site: patients(folder, site) for site in SITES}
    size = sum(each.numel() for each in build().parameters())
    ours, curator = [], []
    for seed in range(splits):
        cut = [split(*each, seed) for each in data.values()]
        trains = dealt([tensors(*train) for train, _ in cut])
        everybody = tuple(map(torch.cat, zip(*trains, strict=True)))
        test = tuple(map(torch.cat, zip(*[tensors(*held) for _, held in cut], strict=True)))
        total = len(everybody[1])
        examples = total // len(SITES)
        sites = len(SITES)
        target = Target(epsilon, ROUNDS, sites, sites, DELTA, "aggregate", rq.Privacy(), examples)
        mechanism = target.mechanism(size, lambda level, line: print(line))
        noise = gaussian_multiplier(epsilon, DELTA, ROUNDS) * 2 * CLIP_NORM / total
        for number in range(noises):
            chance = np.random.default_rng((seed, number))

            def summed(model, trains=trains, mechanism=mechanism, examples=examples):
                payloads = [
                    mechanism.encode(update_of(model, each, examples), Key.generate())
                    for each in trains
                ]
                return mechanism.mean(payloads, size)

            def central(model, everybody=everybody, total=total, noise=noise, chance=chance):
                exact = update_of(model, everybody, total)
                return exact + chance.normal(0, noise, size).astype(np.float32)

            for scores, direction, deviation in (
                (ours, summed, mechanism.expected_error(size).deviation(len(trains), 0.0)),
                (curator, central, noise),
            ):
                torch.manual_seed(seed)
                scores.append(accuracy(learned(build(), direction, deviation), test))
    less = np.subtract(curator, ours)
    return {
        "epsilon": epsilon, "parameters": size, "runs": len(ours),
        "ours": float(np.mean(ours)), "curator": float(np.mean(curator)),
        "difference": float(less.mean()), "error": float(less.std() / np.sqrt(len(less))),
    }  # fmt: skip


CASES = {
    "linear": (linear, as_they_are),
    "two layers": (network, as_they_are),
    "linear, one hospital ten times as large": (linear, one_large),
    "two layers, one hospital ten times as large": (network, one_large),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--noises", type=int, default=2)
    given = parser.parse_args()
    if given.folder:
        rows = {}
        for case in CASES:
            rows[case] = measured(case, given.folder, given.epsilon, given.splits, given.noises)
            print(case, rows[case], flush=True)
        save("hospital_models", {"rounds": ROUNDS, "delta": DELTA, "cases": rows})
    for case, row in stored("hospital_models")["cases"].items():
        print(
            f"{case}: {100 * row['ours']:.1f} % in one sum, {100 * row['curator']:.1f} % curator; "
            f"curator minus ours {100 * row['difference']:+.1f} ± {100 * row['error']:.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
