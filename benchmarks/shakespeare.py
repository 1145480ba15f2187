"""Adapters trained privately on Shakespeare's roles: python benchmarks/shakespeare.py DATA_DIR

The largest tenth of the roles is declared public: the transformer is trained on them, once, without
privacy. The other roles are clients: low-rank adapters of 3,840 parameters are trained on them, one
bit per coordinate under a secure sum, at several epsilons and without privacy. Each row is stored
when it is done, and rows that are stored already are not run again.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from results import FOLDER, save
from torch import nn

import randquant as rq
from randquant.aggregation.baselines import ClippedSGD
from randquant.training import models
from randquant.training.adapters import with_adapters
from randquant.training.data import datasets
from randquant.training.evaluation import evaluate

NAME = "shakespeare"
ADAPTED, RANK = ["*.wide", "*.narrow"], 3
CLIP_NORM = 0.5


def by_role(writers: np.ndarray, texts: np.ndarray, following: np.ndarray, order) -> list:
    """Each role's windows, in this order of the roles."""
    return [(texts[writers == role], following[writers == role]) for role in order]


def pretrained(roles: list, epochs: int, seed: int) -> nn.Module:
    """The transformer after some passes over public roles."""
    model = models.build("transformer", (80,), 80, seed)
    texts, following = (torch.from_numpy(np.concatenate(part)) for part in zip(*roles, strict=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(texts), generator=draw).split(32):
            loss = nn.functional.cross_entropy(model(texts[rows]), following[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(
            f"public roles, pass {epoch + 1}: {np.mean(losses) / math.log(2):.3f} bits", flush=True
        )
    return model


def main() -> None:
    """Run what is not stored yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--epochs", type=int, default=3, help="passes over the public roles")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="windows of a client's step")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--clients", type=int, help="at most so many clients")
    settings = parser.parse_args()
    dataset = datasets.load("shakespeare", settings.data_dir)
    order = np.argsort(-np.bincount(dataset.writers), kind="stable")  # the largest first
    train = by_role(dataset.writers, dataset.train_features, dataset.train_labels, order)
    test = by_role(dataset.test_writers, dataset.test_features, dataset.test_labels, order)
    public = len(order) // 10
    clients, tested = train[public:][: settings.clients], test[public:][: settings.clients]
    pooled = tuple(map(np.concatenate, zip(*tested, strict=True)))
    path = FOLDER / f"{NAME}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for seed in range(settings.seeds):
        wanted = [
            epsilon for epsilon in (2.0, 4.0, 8.0, 16.0, None)
            if not any((r["epsilon_asked"], r["seed"]) == (epsilon, seed) for r in rows)
        ]  # fmt: skip
        if not wanted:
            continue
        model = with_adapters(pretrained(train[:public], settings.epochs, seed), RANK, ADAPTED)
        before = evaluate(model, tested)
        print("before", before, flush=True)
        for epsilon in wanted:
            rows.append(row(model, clients, tested, pooled, epsilon, seed, settings, before))
            print(rows[-1], flush=True)
            shown = {k: v for k, v in vars(settings).items() if k not in ("data_dir", "seeds")}
            facts = {"settings": shown, "public_roles": public, "clients": len(clients)}
            save(NAME, {**facts, "rows": rows})


def row(model, clients, tested, pooled, epsilon, seed, settings, before) -> dict:
    """One private run, and the scores of its model on each client's test windows."""
    start = time.process_time()
    if epsilon is None:
        protected = {"mechanism": ClippedSGD(clip_norm=CLIP_NORM)}
    else:
        protected = {"epsilon": epsilon, "clip_norm": CLIP_NORM}
    run = rq.train(
        model, clients, test=pooled, rounds=settings.rounds, cohort=settings.cohort,
        batch=settings.batch, learning_rate=1.0, seed=seed,
        evaluate_every=settings.rounds, **protected,
    )  # fmt: skip
    after = evaluate(run.model, tested)
    return {
        "epsilon_asked": epsilon,
        "seed": seed,
        "guarantee": None if run.guarantee is None else str(run.guarantee),
        "upload_bytes": run.upload_bytes,
        "accuracy": run.summary.accuracy,
        "bits": run.summary.loss / math.log(2),
        "bits_before": float(np.average(before.bits, weights=before.examples)),
        "clients_better": float(np.mean(after.bits < before.bits)),
        "bits_by_client": np.quantile(after.bits, [0.1, 0.5, 0.9]).tolist(),
        "processor_seconds": time.process_time() - start,
    }


if __name__ == "__main__":
    main()
