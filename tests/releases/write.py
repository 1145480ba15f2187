"""One small file of each format, as a release writes it: python tests/releases/write.py VERSION

`tests/test_releases.py` reads them with the code of every later day. Files of a release are never
written again: a test that fails on them says what its users would see.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import randquant as rq
from randquant.aggregation import AdditiveMechanism, ChannelMechanism, VectorMechanism
from randquant.rounds import Offer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

CHANNEL = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
LOCAL = VectorMechanism(CHANNEL, 1.0, "local", 1)
AGGREGATE = VectorMechanism(CHANNEL, 1.0, "aggregate", 3)
PAYLOADS = {
    "payload-2": (ChannelMechanism(CHANNEL, "local", 1), 16),
    "payload-3": (LOCAL, 10),  # padded to 16 coordinates
    "payload-4": (VectorMechanism(CHANNEL, 1.0, "local", 1, coordinates=5).in_round(7), 10),
}
"""A payload of each version of the format, by what sends it, and of how many coordinates."""


def update(dimension: int) -> np.ndarray:
    return np.linspace(-0.3, 0.3, dimension, dtype=np.float32)


def epsilon(mechanism: Any) -> float:
    """Of a survey, or of four rounds of 10 coordinates."""
    if isinstance(mechanism, rq.SurveyMechanism):
        return mechanism.terms.guarantee.epsilon
    return rq.account([mechanism.release(10, rounds=4)], delta=1e-5).epsilon


def training() -> tuple[torch.nn.Module, dict[str, Any]]:
    """The model and the clients of the stored run."""
    draw = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(4, 2)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(6, 5, 4, generator=draw)
    return model, {f"phone {k}": (x[k], (x[k, :, 0] > 0).long()) for k in range(6)}


def trained(folder: Path) -> rq.Run:
    """Train the stored run, or go on with it: a simulation, whose key is no secret."""
    model, clients = training()
    return rq.train(
        model, clients, epsilon=40, rounds=3, mechanism=AGGREGATE, folder=folder, seed=1,
        progress=False,
    )  # fmt: skip


def write_run(folder: Path) -> dict[str, Any]:
    run = trained(folder / "run")
    shutil.move(folder / "run" / "run.sqlite", folder / "run.sqlite")
    shutil.rmtree(folder / "run")
    return {"epsilon": run.guarantee.epsilon, "loss": [row.train_loss for row in run.history]}


def write_engine(folder: Path) -> dict[str, Any]:
    """Two rounds on Flower: the server's store, and the account of client 1."""
    import flower_grid
    import flower_rounds

    grid = flower_rounds.grid_of(nodes=range(1, 4))
    account = folder / "account.sqlite"
    grid.contexts[1].node_config["randquant-ledger"] = str(account)
    weights, _, strategy = flower_rounds.one_round(
        AGGREGATE, grid=grid, folder=folder, rounds=2, delta=1e-5
    )
    answers, epsilon = flower_grid.spent(account)
    server = strategy.accountant.get_privacy_spent()
    return {
        "weights": weights.tolist(), "server": server.epsilon,
        "answers": answers, "client": epsilon,
    }  # fmt: skip


def write_helper(folder: Path) -> dict[str, Any]:
    """A sum of clients 3, 5 and 8 with a helper: its journal and the terms."""
    import helper_sums

    helper = helper_sums.helper_in(folder)
    terms, codes, messages = helper_sums.begun(helper, (3, 5, 8))
    server = helper_sums.collected(terms, messages)
    assert helper_sums.exact(server, helper.answer(server.request()), codes)
    (folder / "helper-terms.json").write_text(terms.to_text())
    return {"sums": {str(client): count for client, count in helper.sums.items()}}


def write_values(folder: Path) -> dict[str, Any]:
    """Mechanisms, a channel with its certificate, a survey, an offer, payloads."""
    skellam = AdditiveMechanism("skellam", clip_norm=0.5, noise_multiplier=12.0, cohort=40)
    mechanisms = {"mechanism": AGGREGATE, "skellam": skellam}
    queries = {"sex": rq.Counts(["f", "m"]), "age": rq.Mean(0, 100)}
    terms = rq.survey(queries, 1.0, 1e-6, "aggregate", clients=50, records=50)
    mechanisms["survey"] = rq.SurveyMechanism(terms)
    for name, mechanism in mechanisms.items():
        rq.save(mechanism, folder / f"{name}.json")
    figures = {name: epsilon(mechanism) for name, mechanism in mechanisms.items()}
    channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
    rq.save_channel(folder / "channel.json", channel)
    figures["channel"] = rq.certify(channel).epsilon.upper
    (folder / "offer.json").write_text(Offer(AGGREGATE, 10, scaled=True).to_text())
    for name, (mechanism, dimension) in PAYLOADS.items():
        payload = mechanism.encode(update(dimension), rq.Key.from_seed(3))
        (folder / f"{name}.bin").write_bytes(payload)
        figures[name] = mechanism.mean([payload], dimension).tolist()
    return figures


WRITERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "run": write_run, "engine": write_engine, "helper": write_helper, "values": write_values,
}  # fmt: skip


def main(version: str) -> None:
    """Write the files of a version, and the figures that were read from them."""
    place = HERE / version
    if place.exists():
        raise SystemExit(f"Expected a version without files, but {place} is there.")
    with tempfile.TemporaryDirectory() as folder:
        figures = {name: write(Path(folder)) for name, write in WRITERS.items()}
        place.mkdir()
        for path in sorted(Path(folder).iterdir()):
            if path.stat().st_size:  # locks have nothing in them
                shutil.copyfile(path, place / path.name)
    (place / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
