"""Bits a coordinate with and without entropy coding: python benchmarks/compress.py

Inputs are normal numbers, or the gradient of one client of 20 images for a fresh network; a
deviation of either is a third of the clipping threshold.
"""

import time

import numpy as np
from results import save

import randquant as rq
from randquant.channels import wire
from randquant.channels.wire.compression import compress, decompress
from randquant.training import models
from randquant.training.client import Learner
from randquant.training.data import datasets
from randquant.training.named import of_dataset

CLIP, CLIENT = 1.5, np.arange(20)
CHANNELS = {
    "stochastic rounding": lambda m: rq.stochastic_rounding(clip=CLIP, levels=m, margin=0.5),
    "RQM": lambda m: rq.rqm(clip=CLIP, margin=CLIP, levels=m, keep=0.42),
    "QMGeo": lambda m: rq.qmgeo(clip=CLIP, levels=m, p=0.5, mixing=0.1),
}
LEVELS = (2, 3, 16, 64, 256)


def inputs() -> dict[str, np.ndarray]:
    data = datasets.load("digits")
    model = models.build("wide", data.train_features.shape[1:], data.classes, 0)
    learner = Learner(of_dataset(model, data, [CLIENT]))
    found = {
        "normal": np.random.default_rng(0).standard_normal(1_000_000, dtype=np.float32),
        "gradient": learner.updates([0])[0][0],
    }
    return {name: CLIP / 3 / np.float32(x.std()) * x for name, x in found.items()}


def measured(channel: rq.Channel, x: np.ndarray) -> dict[str, float]:
    """Bits a coordinate, headers included, and million coordinates a second."""
    codes = rq.encode(channel, x, rq.Key.from_seed(0))
    payload = wire.pack(channel, codes)
    parts = np.bincount(codes) / codes.size
    best = {"compress": np.inf, "decompress": np.inf}
    for _ in range(3):
        times = [time.perf_counter()]
        small = compress(channel, payload)
        times.append(time.perf_counter())
        assert decompress(channel, small, x.size) == payload
        times.append(time.perf_counter())
        best = {
            name: min(so_far, took)
            for (name, so_far), took in zip(best.items(), np.diff(times), strict=True)
        }
    return {
        "payload": 8 * len(payload) / x.size,
        "compressed": 8 * len(small) / x.size,
        "entropy": -float(sum(p * np.log2(p) for p in parts if p)),
        **{f"{name}_speed": x.size / took / 1e6 for name, took in best.items()},
    }


if __name__ == "__main__":
    every = inputs()
    found = {
        f"{name}, {levels}": {kind: measured(make(levels), x) for kind, x in every.items()}
        for name, make in CHANNELS.items()
        for levels in LEVELS
    }
    for name, row in found.items():
        print(name, {kind: {k: round(v, 3) for k, v in each.items()} for kind, each in row.items()})
    coordinates = {name: x.size for name, x in every.items()}
    save("compress", {"coordinates": coordinates, "bits": found})
