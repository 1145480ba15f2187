"""What clipping coordinates after the rotation costs: python benchmarks/rotation_clipping.py

Updates of norm 1 are rotated and each coordinate is clipped at a multiple of 1 / sqrt(size), its
deviation. The loss is |clipped - rotated|^2, the squared error, relative to the update's squared
norm. It is a bias, which averaging over clients does not reduce. Only the updates are random.
"""

from __future__ import annotations

import math

import numpy as np
from results import save

from randquant.aggregation import Rotation

MULTIPLES = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
DIMENSIONS = (650, 50_226, 1_000_000)
SEEDS = range(20)


def updates(rotation: Rotation, noise: np.random.Generator) -> dict[str, np.ndarray]:
    dimension = rotation.dimension
    one, sent = np.zeros(dimension), np.zeros(rotation.size)
    one[noise.integers(dimension)] = 1.0
    few = noise.standard_normal(dimension) * (noise.random(dimension) < 0.01)
    sent[0] = 1.0
    return {
        "gaussian": noise.standard_normal(dimension),
        "one coordinate in 100": few + 1e-3 * one,
        "one coordinate": one,
        "Student t, 2 degrees": noise.standard_t(2.0, dimension),
        "all the same": np.ones(dimension),
        "chosen for the seed": rotation.inverse(sent),
    }


def losses(update: np.ndarray, rotation: Rotation) -> list[float]:
    spread = rotation.forward(update / np.linalg.norm(update)) * np.sqrt(rotation.size)
    return [float(np.mean((spread - np.clip(spread, -t, t)) ** 2)) for t in MULTIPLES]


def coordinate_clipping(threshold: float) -> float:
    """Mean squared error of clipping a standard normal variable to [-threshold, threshold]."""
    beyond = 0.5 * math.erfc(threshold / math.sqrt(2))
    density = math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    return 2 * ((1 + threshold**2) * beyond - threshold * density)


def main() -> None:
    rows = [{"update": "normal", "mean": [coordinate_clipping(t) for t in MULTIPLES]}]
    for dimension in DIMENSIONS:
        table: dict[str, list] = {}
        for seed in SEEDS if dimension < 10**6 else SEEDS[:3]:
            rotation = Rotation(dimension, seed)
            for name, update in updates(rotation, np.random.default_rng(seed)).items():
                table.setdefault(name, []).append(losses(update, rotation))
        for name, lost in table.items():
            mean, worst = np.mean(lost, axis=0).tolist(), np.max(lost, axis=0).tolist()
            pairs = zip(mean, worst, strict=True)
            print(f"{dimension:>9,} {name:<24}", *(f"{m:.1e}/{w:.1e}" for m, w in pairs))
            rows.append({"update": f"{name}, {dimension}", "mean": mean, "worst": worst})
    print("normal", *(f"{value:.1e}" for value in rows[0]["mean"]))
    save("rotation_clipping", {"multiples": MULTIPLES, "rows": rows})


if __name__ == "__main__":
    main()
