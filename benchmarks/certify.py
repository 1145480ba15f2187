"""Time of a certificate, 64 levels over 128 vertices: python benchmarks/certify.py"""

import math
import time

import numpy as np
from results import save

import randquant as rq
from randquant.channels import from_probabilities


def table(vertices: int, levels: int) -> rq.Channel:
    random = np.random.default_rng(0).random((vertices, levels)) ** 8 + 1e-15
    random /= random.sum(axis=1, keepdims=True)
    return from_probabilities(np.linspace(-1, 1, vertices), np.arange(float(levels)), random)


def milliseconds(channel: rq.Channel, order: float, repeats: int = 10) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        rq.certify(channel, order)
        seconds.append(time.perf_counter() - started)
    return 1e3 * float(np.median(seconds))


if __name__ == "__main__":
    channels = {
        "64 levels, 128 vertices": table(128, 64),
        "rqm 16": rq.rqm(1.5, 1.5, 16, 0.42),
        "rqm 64": rq.rqm(1.5, 1.5, 64, 0.42),
        "pbm 15 trials": rq.pbm(1.5, 0.25, 15),
    }
    measured = {
        name: {f"{order:g}": milliseconds(channel, order) for order in (1.0005, 8, 1000, math.inf)}
        for name, channel in channels.items()
    }
    for name, row in measured.items():
        print(name, {order: f"{ms:.1f} ms" for order, ms in row.items()})
    save("certify", {"milliseconds_by_order": measured})
