"""The front door with models, losses and data of every kind, from the call to the trained model."""

import numpy as np
import pytest
import torch
from by_name import train
from torch import nn
from torch.nn import functional

from randquant.aggregation.baselines import ClippedSGD

RNG = np.random.default_rng(4)
WAYS = RNG.normal(size=(3, 4))


def examples(count):
    x = RNG.normal(size=(count, 4)).astype(np.float32)
    return x, (x @ WAYS.T).argmax(1)


CLIENTS = {f"phone {number}": examples(8 + number % 5) for number in range(40)}
TEST, PUBLIC = examples(200), examples(64)[0]


class Rows:
    """A partition as flwr-datasets gives it."""

    column_names = ("image", "label")

    def __init__(self, pair):
        self.pair = pair

    def __len__(self):
        return len(self.pair[1])

    def __getitem__(self, place):
        return {"image": self.pair[0][place].tolist(), "label": int(self.pair[1][place])}


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def dropping():
    return nn.Sequential(plain(), nn.Dropout(0.1))


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def hinge(output, targets):
    return functional.multi_margin_loss(output, targets)


EXACT = {"mechanism": ClippedSGD(clip_norm=1.0), "rounds": 12, "local_learning_rate": 1.0,
         "local_epochs": 3, "seed": 1, "progress": False, "evaluate_every": 12}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "clients", "options", "least"),
    [
        (plain, CLIENTS, {"loss": hinge}, 0.75),
        (plain, {name: Rows(pair) for name, pair in CLIENTS.items()}, {"rounds": 8}, 0.75),
        (plain, CLIENTS, {"parts": ("2.*",)}, 0.6),
        (dropping, list(CLIENTS.values()), {"rounds": 8}, 0.7),
        (normalised, CLIENTS, {"buffers": "server", "public": PUBLIC}, 0.75),
        (normalised, CLIENTS, {"buffers": "frozen"}, 0.75),
    ],
)
@pytest.mark.slow
def test_what_can_be_trained_learns(model, clients, options, least):
    before = model()
    run = train(before, clients, test=TEST, **{**EXACT, **options})
    with torch.no_grad():
        right = (run.model(torch.from_numpy(TEST[0])).argmax(1).numpy() == TEST[1]).mean()
    assert right == pytest.approx(run.history[-1].accuracy)
    assert right > least
    trained, start = dict(run.model.named_parameters()), dict(model().named_parameters())
    moved = {name for name in start if not torch.equal(start[name], trained[name])}
    assert moved == ({"2.weight", "2.bias"} if "parts" in options else set(start))
