"""Accuracy against bytes at one epsilon: python benchmarks/subsets.py DATA [--ways 65 --seeds 0 1]

An MLP of 50,890 parameters on Fashion-MNIST (the files in DATA), 3,400 clients, 1,000 a round,
epsilon 8 at delta 1e-5 for a client's whole participation: one bit for each coordinate of the
rotated update, or for a random subset of them, drawn anew in each round; beside 32-bit floats
without privacy and with Gaussian noise on their exact sum. Five seeds.

A run takes a minute. Each one's row is written when it ends, with its commit, and only what is
missing is run. Without DATA the table of the rows is printed and drawn (docs/images/bytes.svg and a
page of the gallery), and the time to encode is measured; with --draw it is only drawn.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from performance_page import picture
from results import FOLDER, commit, save, stored
from wire import secagg_plus

import randquant as rq
from randquant.aggregation import CentralGaussian, ClippedSGD, update_mechanism
from randquant.channels import Key
from randquant.planning import gaussian_multiplier
from randquant.reports import Axis, Mark, ScatterPlot, Series
from randquant_papers import problems
from randquant_papers.data import datasets
from randquant_papers.gallery import gallery
from randquant_papers.result import Reproduction, Table

POPULATION, COHORT, EPSILON, DELTA, ROUNDS = 3400, 1000, 8.0, 1e-5, 30
DIMENSION, ROTATED, SEEDS = 50_890, 65_536, range(5)
SENT = (ROTATED // 11, ROTATED, ROTATED // 50, ROTATED // 1000, ROTATED // 200, ROTATED // 4)
"""Coordinates sent; a little less than a tenth of them first, so that headers fit too."""

WAYS = (SENT[0], "gaussian", *SENT[1:4], "no privacy", *SENT[4:])
"""How updates are sent, in the order in which they are run."""


def federated(data_dir: str) -> tuple[list, tuple]:
    """Clients' examples, split at random, and the test data."""
    dataset = datasets.load("fashion-mnist", data_dir)
    places = datasets.partition(dataset.train_labels, POPULATION, "iid", seed=0)
    clients = [(dataset.train_features[own], dataset.train_labels[own]) for own in places]
    return clients, (dataset.test_features, dataset.test_labels)


def how(way: str | int) -> dict:
    """What `train` is asked for."""
    if way == "no privacy":
        return {"mechanism": ClippedSGD(clip_norm=1.0)}
    if way == "gaussian":
        participations = -(-ROUNDS * COHORT // POPULATION)
        noise = (1 + 1e-9) * gaussian_multiplier(EPSILON, DELTA, participations)
        return {"mechanism": CentralGaussian(None, 2 * noise, clip_norm=1.0), "epsilon": EPSILON}
    privacy = rq.Privacy(coordinates=None if way == ROTATED else way)
    return {"epsilon": EPSILON, "privacy": privacy}


def trained(clients: list, test: tuple, way: str | int, seed: int) -> dict:
    """One run, in figures."""
    started = time.process_time()
    model = problems.build("mlp", (28, 28), 10, seed)
    run = rq.train(
        model, clients, test=test, delta=DELTA, rounds=ROUNDS, cohort=COHORT, seed=seed,
        local=rq.Local(threads=1, learning_rate=0.1), progress=False, **how(way),
    )  # fmt: skip
    assert len(run.history) == ROUNDS
    with torch.no_grad():
        right = run.model(torch.as_tensor(test[0])).argmax(1) == torch.as_tensor(test[1])
    return {
        "sent": way,
        "seed": seed,
        "accuracy": float(right.float().mean()),
        "upload_bytes": run.upload_bytes,
        "epsilon": None if run.guarantee is None else run.guarantee.epsilon,
        "processor_seconds": time.process_time() - started,
        "commit": commit(),
    }


def encoding_seconds() -> dict[str, float]:
    """Processor time to encode one update, median of 21."""
    bits = {"clip": 0.015625, "levels": 2, "margin": 0.1}
    update = np.random.default_rng(0).normal(size=DIMENSION).astype(np.float32)
    found = {}
    for count in sorted(SENT, reverse=True):
        mechanism = update_mechanism(
            "stochastic-rounding", bits, trust="aggregate", cohort=COHORT, clip_norm=1.0,
            coordinates=None if count == ROTATED else count,
        ).in_round(1)  # fmt: skip
        times = []
        for client in range(22):
            started = time.process_time()
            mechanism.encode(update, Key.from_seed(client))
            times.append(time.process_time() - started)
        found[str(count)] = float(np.median(times[1:]))
    return found


def show(rows: list[dict]) -> None:
    """Bytes and accuracy of every way, with mean and standard deviation over its seeds."""
    for way in WAYS:
        runs = [row for row in rows if row["sent"] == way]
        if not runs:
            continue
        each = [100 * row["accuracy"] for row in runs]
        spread = statistics.stdev(each) if len(each) > 1 else float("nan")
        sent = runs[0]["upload_bytes"]
        print(
            f"{way!s:>10} {sent:8,} bytes {8 * sent / DIMENSION:7.4f} bits a coordinate "
            f"{statistics.mean(each):.2f} % ± {spread:.2f}, {len(runs)} seeds"
        )


def figure(rows: list[dict], secagg_plus_bytes: int) -> ScatterPlot:
    """Every run as a mark: accuracy against bytes."""
    series = {
        "one bit for each coordinate sent": [w for w in WAYS if isinstance(w, int)],
        "Gaussian noise on the exact sum, in Flower's SecAgg+": ["gaussian"],
        "no privacy, 32-bit floats": ["no privacy"],
    }
    marks = [
        Series(
            label,
            tuple(
                Mark(
                    f"{row['sent']} {row['seed']}",
                    f"{row['sent']}, seed {row['seed']}: {row['accuracy']:.4f}",
                    secagg_plus_bytes if row["sent"] == "gaussian" else row["upload_bytes"],
                    round(row["accuracy"], 4),
                    best=row["sent"] not in ("gaussian", "no privacy"),
                )
                for row in rows
                if row["sent"] in ways
            ),
        )
        for label, ways in series.items()
    ]
    return ScatterPlot(
        title="Accuracy against bytes at epsilon 8: Fashion-MNIST, 50,890 parameters",
        series=tuple(marks),
        x=Axis("bytes a client and round, masked (log scale)", log=True),
        y=Axis("test accuracy"),
    )


def result(rows: list[dict], drawn: ScatterPlot, secagg_plus_bytes: int) -> Reproduction:
    """The gallery's page: what is in the rows, and nothing else."""
    table = []
    for way in WAYS:
        runs = [row for row in rows if row["sent"] == way]
        if runs:
            sent = secagg_plus_bytes if way == "gaussian" else runs[0]["upload_bytes"]
            accuracy = statistics.mean(row["accuracy"] for row in runs)
            bits = f"{8 * sent / DIMENSION:.3g}"
            table.append([str(way), f"{sent:,}", bits, round(accuracy, 4), len(runs)])
    columns = ("coordinates sent", "bytes", "bits a coordinate", "test accuracy", "seeds")
    return Reproduction(
        name="secagg-bytes",
        title="Accuracy against bytes of secure sums",
        source="The Fundamental Price of Secure Aggregation (Chen et al. 2022), our own curve",
        setting=f"Fashion-MNIST in 3,400 clients, {DIMENSION:,} parameters, {ROUNDS} rounds, "
        "epsilon 8 at delta = 1e-5: a random subset of the rotated coordinates in one noisy bit "
        "each, summed securely, beside Gaussian noise on the exact sum and 32-bit floats.",
        claims=[],
        tables=[Table("Means over the seeds", columns, table)],
        figures=[drawn],
        command="python benchmarks/subsets.py --draw",
    )


def draw(rows: list[dict], secagg_plus_bytes: int) -> None:
    """Write the picture, and its page in the gallery."""
    docs, drawn = FOLDER.parents[1] / "docs", figure(rows, secagg_plus_bytes)
    (docs / "images" / "bytes.svg").write_text(picture(drawn))
    site = FOLDER.parents[1] / "papers" / "docs" / "gallery"
    gallery.save(result(rows, drawn, secagg_plus_bytes), site)
    gallery.build(site)


def main() -> None:
    """Run what is missing, in the order of WAYS, and print a line for each run."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("data", nargs="?")
    asked.add_argument("--ways", nargs="+", default=[str(way) for way in WAYS])
    asked.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    asked.add_argument("--draw", action="store_true", help="only draw what was measured before")
    given, record = asked.parse_args(), stored("subsets")
    rows = record.get("runs", [])
    if given.draw:
        draw(rows, record["secagg_plus_bytes"])
        return
    done = {(row["sent"], row["seed"]) for row in rows}
    wanted = [(way, seed) for way in WAYS for seed in given.seeds if str(way) in given.ways]
    figures = {
        "rounds": ROUNDS,
        "secagg_plus_bytes": secagg_plus(DIMENSION),
        "encoding_seconds": record.get("encoding_seconds"),
    }
    if given.data is None:
        figures["encoding_seconds"] = encoding_seconds()
        save("subsets", {**figures, "runs": rows})
    else:
        data = federated(given.data)
        for way, seed in wanted:
            if (way, seed) in done:
                continue
            rows.append(trained(*data, way, seed))
            print(rows[-1], flush=True)
            save("subsets", {**figures, "runs": rows})
    draw(rows, figures["secagg_plus_bytes"])
    show(rows)
    print(f"SecAgg+ of Flower: {figures['secagg_plus_bytes']:,} bytes")
    print("seconds to encode an update:", figures["encoding_seconds"])


if __name__ == "__main__":
    main()
