"""A plain Flower app of four hospitals, and one that protects a patient: lines and accuracy.

python benchmarks/hospital_app.py --measure [--data FOLDER] [--epsilon 8] [--splits 10] deals real
patients to four hospitals, trains with both apps on an in-process grid, and counts the lines that
differ. Breast cancer comes with scikit-learn; FOLDER has the .csv files of the heart-disease data.
The plain app has the best of three rates, chosen by the test: the loss is not less than it says.
Without --measure it prints the stored results.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from hospital_models import network, tensors
from hospitals import SITES, patients, split
from results import save, stored
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "flower_hospitals"), str(ROOT / "tests")]

from flower_grid import InProcessGrid  # noqa: E402 - the tests' own
from hospital_app import task as example  # noqa: E402 - the example's own
from sites import deal  # noqa: E402

ROUNDS, RATES, BATCH = 20, (0.03, 0.1, 0.3), 16

PLAIN_CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.patients(context)
    task.train(model, data)
    metrics = MetricRecord({"num-examples": len(data[1])})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)
"""

PRIVATE_CLIENT = """
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
import randquant as rq
from randquant.flower import QuantizeMod

app = ClientApp()


@app.train(mods=[QuantizeMod(epsilon=EPSILON, delta=1e-5, examples=PATIENTS, clip_norm=1.0)])
def train(message, context):
    model = task.build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    data = task.patients(context)
    update = rq.example_update(model, data, clip_norm=1.0)
    return Message(RecordDict({"update": ArrayRecord(update)}), reply_to=message)
"""

PLAIN_SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid, context):
    model = task.build_model()
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    task.keep(result.arrays.to_torch_state_dict())
"""

PRIVATE_SERVER = """
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from randquant.flower import QuantizedStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    model = task.build_model()
    strategy = QuantizedStrategy.for_target(
        epsilon=EPSILON, delta=1e-5, rounds=ROUNDS, cohort=4, examples=PATIENTS, model=model
    )
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    task.keep(result.arrays.to_torch_state_dict())
"""

PLAIN, PRIVATE = (PLAIN_CLIENT, PLAIN_SERVER), (PRIVATE_CLIENT, PRIVATE_SERVER)
Data = tuple[torch.Tensor, torch.Tensor]


def lines() -> dict[str, int]:
    """How many lines only the private app has, and how many only the plain one."""
    marks = [
        line[0]
        for plain, private in zip(PLAIN, PRIVATE, strict=True)
        for line in difflib.ndiff(plain.splitlines(), private.splitlines())
    ]
    return {"new or changed": marks.count("+"), "gone or changed": marks.count("-")}


def cancer(seed: int) -> tuple[list[Data], Data]:
    """Hospitals of 200, 130, 80 and 45 patients, and 114 for the test."""
    with tempfile.TemporaryDirectory() as name:
        deal(Path(name), seed)
        trains = [example.patients(Path(name) / f"site{site}.csv") for site in range(4)]
        return trains, example.patients(Path(name) / "test.csv")


def heart(folder: Path, seed: int) -> tuple[list[Data], Data]:
    """Four hospitals of 99 to 243 patients, and a fifth of each for the test."""
    cut = [split(*patients(folder, site), seed) for site in SITES]
    x, y = map(torch.cat, zip(*[tensors(*held) for _, held in cut], strict=True))
    return [tensors(*train) for train, _ in cut], (x, y)


def trained(
    apps: tuple[str, str], build: Callable[[], nn.Module], trains: list[Data], **names: Any
) -> nn.Module:
    """The model of a run of these two files."""
    model, rate = build(), names.pop("rate", 0.0)

    def train(model: nn.Module, data: Data) -> None:
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        for batch in torch.randperm(len(data[1])).split(BATCH):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data[0][batch]), data[1][batch]).backward()
            optimiser.step()

    task = SimpleNamespace(
        build_model=build, train=train, keep=model.load_state_dict,
        patients=lambda context: trains[context.node_id - 1],
    )  # fmt: skip
    client, server = ({"task": task, "ROUNDS": ROUNDS, **names} for _ in range(2))
    exec(apps[0], client)  # the texts above, which are counted
    exec(apps[1], server)
    grid = InProcessGrid(client["app"], range(1, len(trains) + 1))
    server["app"](grid, Context(1, 0, {}, RecordDict(), {}))
    return model


def measured(
    build: Callable[[], nn.Module], dealt: Callable[[int], tuple], epsilon: float, splits: int
) -> dict[str, Any]:
    """Mean accuracies over the splits, and the loss with its standard error."""
    plain, private = [], []
    for seed in range(splits):
        trains, (x, y) = dealt(seed)
        examples = round(sum(len(train[1]) for train in trains) / len(trains))

        def accuracy(apps, trains=trains, x=x, y=y, seed=seed, **names):
            torch.manual_seed(seed)
            model = trained(apps, build, trains, **names)
            with torch.no_grad():
                return float((model(x).argmax(1) == y).float().mean())

        plain.append([accuracy(PLAIN, rate=rate) for rate in RATES])
        private.append(accuracy(PRIVATE, EPSILON=epsilon, PATIENTS=examples))
    best = np.array(plain)[:, np.mean(plain, axis=0).argmax()]
    lost = best - private
    return {
        "plain": float(best.mean()), "private": float(np.mean(private)),
        "lost": float(lost.mean()), "error": float(lost.std(ddof=1) / np.sqrt(splits)),
        "splits": splits, "epsilon": epsilon,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--data", type=Path, help="folder of the heart-disease data")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--splits", type=int, default=10)
    given = parser.parse_args()
    if given.measure:
        logging.getLogger("flwr").setLevel(logging.ERROR)
        rows = {"breast cancer": measured(example.build_model, cancer, given.epsilon, given.splits)}
        if given.data:
            rows["heart disease"] = measured(
                network, lambda seed: heart(given.data, seed), given.epsilon, given.splits
            )
        save("hospital_app", {"rounds": ROUNDS, "lines": lines(), "data": rows})
    found = stored("hospital_app")
    print(", ".join(f"{count} lines {what}" for what, count in found["lines"].items()))
    for name, row in found["data"].items():
        print(
            f"{name}, epsilon {row['epsilon']:g}: {row['plain']:.1%} plain, {row['private']:.1%} "
            f"private, {100 * row['lost']:.1f} ± {100 * row['error']:.1f} points lost"
        )


if __name__ == "__main__":
    main()
