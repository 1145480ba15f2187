"""Accuracy against bytes at one epsilon: python benchmarks/subsets.py DATA [--seeds 0 1]

An MLP of 50,890 parameters on Fashion-MNIST (the files in DATA), 3,400 clients, 1,000 a round,
epsilon 8 at delta 1e-5 for a client's whole participation: one bit for each coordinate of the
rotated update, or for a random subset of them, drawn anew in each round. Also the time to encode.
"""

import argparse
import time

import numpy as np
import torch
from results import save

import randquant as rq
from randquant.aggregation.baselines import ClippedSGD
from randquant.aggregation.registry import update_mechanism
from randquant.channels.keys import Key
from randquant.training import models
from randquant.training.data import datasets

POPULATION, COHORT, EPSILON, DELTA = 3400, 1000, 8.0, 1e-5
DIMENSION, ROTATED = 50_890, 65_536
SENT = (None, ROTATED // 4, ROTATED // 11, ROTATED // 50)
"""Coordinates sent; a little less than a tenth of them, so that headers fit too."""


def federated(data_dir: str) -> tuple[list, tuple]:
    """Clients' examples, split at random, and the test data."""
    dataset = datasets.load("fashion-mnist", data_dir)
    places = datasets.partition(dataset.train_labels, POPULATION, "iid", seed=0)
    clients = [(dataset.train_features[own], dataset.train_labels[own]) for own in places]
    return clients, (dataset.test_features, dataset.test_labels)


def trained(clients: list, test: tuple, rounds: int, seed: int, **how: object) -> dict:
    """One run, in figures."""
    started = time.process_time()
    model = models.build("mlp", (28, 28), 10, seed)
    run = rq.train(
        model, clients, test=test, delta=DELTA, rounds=rounds, cohort=COHORT, seed=seed,
        threads=1, progress=False, **how,
    )  # fmt: skip
    with torch.no_grad():
        right = run.model(torch.as_tensor(test[0])).argmax(1) == torch.as_tensor(test[1])
    return {
        "seed": seed,
        "accuracy": float(right.float().mean()),
        "upload_bytes": run.upload_bytes,
        "epsilon": None if run.guarantee is None else run.guarantee.epsilon,
        "processor_seconds": time.process_time() - started,
    }


def encoding_seconds() -> dict[str, float]:
    """Processor time to encode one update, median of 21."""
    bits = {"clip": 0.015625, "levels": 2, "margin": 0.1}
    update = np.random.default_rng(0).normal(size=DIMENSION).astype(np.float32)
    found = {}
    for count in SENT:
        mechanism = update_mechanism(
            "stochastic-rounding", bits, trust="aggregate", cohort=COHORT, clip_norm=1.0,
            coordinates=count,
        ).in_round(1)  # fmt: skip
        times = []
        for client in range(22):
            started = time.process_time()
            mechanism.encode(update, Key.from_seed(client))
            times.append(time.process_time() - started)
        found[str(count or ROTATED)] = float(np.median(times[1:]))
    return found


def main() -> None:
    """Train with every number of coordinates, and print a line for each run."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("data")
    asked.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked.add_argument("--rounds", type=int, default=30)
    given = asked.parse_args()
    encoding = encoding_seconds()
    print("seconds to encode an update:", encoding, flush=True)
    clients, test = federated(given.data)
    rows = []
    for seed in given.seeds:
        for count in SENT:
            found = trained(
                clients, test, given.rounds, seed, epsilon=EPSILON, coordinates=count
            )  # fmt: skip
            rows.append({"coordinates": count or ROTATED, **found})
            print(rows[-1], flush=True)
        plain = ClippedSGD(clip_norm=1.0)
        found = trained(clients, test, given.rounds, seed, epsilon=None, mechanism=plain)
        rows.append({"coordinates": None, **found})
        print(rows[-1], flush=True)
    save("subsets", {"rounds": given.rounds, "runs": rows, "encoding_seconds": encoding})


if __name__ == "__main__":
    main()
