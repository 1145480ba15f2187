"""What `train` cannot work with is refused in one sentence, under the name the caller gave it."""

import numpy as np
import pytest
import torch
from by_name import train
from torch import nn
from torch.nn import functional as F

import randquant as rq
from randquant.aggregation import ClippedSGD, MechanismDefaults, update_mechanism
from randquant.mechanisms import stochastic_rounding

FEATURES, COHORT = 4, 6


def pairs(client):
    x = torch.randn(5, FEATURES, generator=torch.Generator().manual_seed(client))
    return x, (x[:, 0] > 0).long()


CLIENTS = [pairs(client) for client in range(COHORT)]
SUMS = update_mechanism(
    "stochastic-rounding", {"clip": 0.5, "levels": 2, "margin": 2.0},
    trust="aggregate", cohort=COHORT, clip_norm=1.0,
)  # fmt: skip


class Unfinished(MechanismDefaults):
    """A mechanism of one's own that does not say whether it has a channel."""

    trust, cohort, clip_norm = "local", 1, 1.0

    def __repr__(self):
        return "Unfinished"

    def encode_vector(self, vector, key):
        return vector.tobytes()

    def mean_vector(self, payloads, dimension, key):
        return np.zeros(dimension, np.float32)

    def release(self, dimension, rounds, neighboring="replace_one"):
        return None


def normalised():
    return nn.Sequential(nn.Linear(FEATURES, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


def decaying(parameters):
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(parameters, lr=1.0), 2)


REFUSED = {
    "rounds": ({"rounds": "3"}, TypeError, "Expected rounds to be a whole number, got '3'"),
    "epsilon 0": ({"epsilon": 0}, ValueError, "Expected epsilon > 0, got epsilon=0"),
    "epsilon text": ({"epsilon": "8"}, TypeError, "Expected epsilon to be a number, got '8'"),
    "no epsilon": ({"epsilon": None}, ValueError, "Expected epsilon, or a mechanism of your own"),
    "no clip_norm": ({"clip_norm": None}, ValueError, "Expected clip_norm, or a mechanism of your"),
    "trust": ({"trust": "central"}, ValueError, "Expected trust to be one of aggregate, local, m"),
    "folder": ({"folder": 3}, TypeError, "Expected folder to be the path"),
    "on_round": ({"on_round": 3}, TypeError, "Expected on_round to be a function"),
    "one on_round": ({"on_round": [print, 3]}, TypeError, "Expected on_round to be a function"),
    "mechanism's name": ({"mechanism": "rqm"}, TypeError, "Expected mechanism to be a mechanism"),
    "a channel": (
        {"mechanism": stochastic_rounding(clip=1.0, levels=2, margin=1.0)},
        TypeError, "Expected mechanism to be a mechanism for whole updates, such as",
    ),
    "a mechanism of one's own without all that a mechanism has": (
        {"mechanism": Unfinished()},
        TypeError, "Expected mechanism to be a mechanism .*, got Unfinished without channel",
    ),
    "another trust": (
        {"mechanism": SUMS, "trust": "local"},
        ValueError, "Expected a mechanism of local trust with trust='local'",
    ),
    "another clip_norm": (
        {"mechanism": SUMS, "clip_norm": 77.0},
        ValueError, "Expected the clip_norm of the mechanism, 1.0, got 77.0",
    ),
    "coordinates of a mechanism": (
        {"mechanism": SUMS, "epsilon": None, "coordinates": 4},
        ValueError, "Expected no coordinates with a mechanism of your own, got 4",
    ),
    "noise of a mechanism": (
        {"mechanism": SUMS, "epsilon": None, "noise": "helper"},
        ValueError, "Expected no noise with a mechanism of your own, got 'helper'",
    ),
    "a table's noise beside the helper's": (
        {"noise": "helper", "standardize": rq.Standardize(-3, 3)},
        ValueError, "Expected no standardize with noise='helper'",
    ),
    "a limit where nothing is protected": (
        {"mechanism": ClippedSGD(1.0), "epsilon": 8.0}, ValueError, "Expected a mechanism that pro",
    ),
    "meta": (
        {"model": nn.Linear(FEATURES, 2, device="meta")},
        ValueError, "Expected parameters with numbers, got weight on the meta device",
    ),
    "sparse": (
        {"clients": [(torch.eye(FEATURES).to_sparse(), torch.zeros(FEATURES).long())]},
        TypeError, "Client 0: Expected dense features, got torch.sparse_coo",
    ),
    "loss class": (
        {"loss": nn.CrossEntropyLoss}, TypeError, r"Expected loss to be a function, got the class",
    ),
    "scheduler": (
        {"server_optimizer": decaying}, TypeError, "Expected server_optimizer to return a torch op",
    ),
    "optimizer": (
        {"server_optimizer": torch.optim.SGD([torch.zeros(1)])},
        TypeError, "Expected server_optimizer to be the name of a class in torch.optim, or a func",
    ),
    "a client's examples as public": (
        {"model": normalised(), "buffers": "server", "public": pairs(2)},
        ValueError, "Public examples: Expected public examples that no client holds, got example 0 "
        "of client 2's",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "kind", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_trained_with_is_refused(given, kind, sentence):
    usual = {"model": nn.Linear(FEATURES, 2), "clients": CLIENTS, "epsilon": 8, "rounds": 2}
    with pytest.raises(kind, match=f"^{sentence}"):
        train(**{**usual, "progress": False, **given})


def test_an_optimizer_of_ones_own_has_its_own_rate():
    with pytest.raises(ValueError, match="Expected the learning rate in server_optimizer's own lr"):
        rq.Server(lambda parameters: torch.optim.SGD(parameters, lr=1.0), learning_rate=0.5)


def test_an_error_while_reading_names_the_client():
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, place):
            if place == 15:
                raise OSError("the disk is gone")
            return np.ones(FEATURES, np.float32), 0

    clients = {"phone": pairs(1), "tablet": Broken()}
    with pytest.raises(OSError, match="the disk is gone") as caught:
        train(
            nn.Linear(FEATURES, 2), clients, mechanism=ClippedSGD(1.0), loss=F.cross_entropy,
            rounds=1, progress=False,
        )  # fmt: skip
    assert "Client tablet." in caught.value.__notes__
