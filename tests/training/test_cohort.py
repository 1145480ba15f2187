"""A round whose codes are drawn and added up on a GPU, or where there is none, on Triton's
interpreter, with torch on the CPU in the GPU's place."""

import os

import chance
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs Triton, which comes with a CUDA build of torch")

import randquant as rq
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.channels.keys import Key
from randquant.training import client as learner_module
from randquant.training import models
from randquant.training.algorithm import distributed_sgd
from randquant.training.client import Learner
from randquant.training.cohort import sum_of_codes
from randquant.training.config import TrainConfig
from randquant.training.data import datasets
from randquant.training.named import of_dataset
from randquant.training.optimizer import OptimizerStep, torch_optimizer
from randquant.training.runs import execution as runs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHANNEL = rq.rqm(clip=0.05, margin=0.05, levels=16, keep=0.42)
COHORT = [1, 4, 9, 16, 25]
KEY = Key.from_seed(3)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(learner_module, "_is_gpu", lambda device: True)


def a_round(mechanism=None):
    digits = datasets.load("digits")
    clients = datasets.partition(digits.train_labels, 30, "iid", seed=3)
    problem = of_dataset(models.build("softmax", (1, 8, 8), 10, 3), digits, clients)
    learner = Learner(problem, device=DEVICE)
    run = distributed_sgd(
        learner, mechanism or ChannelMechanism(CHANNEL), population=30,
        server=OptimizerStep(torch_optimizer("SGD", 1.0, {}), [(learner.dimension,)]), pool=None,
        workers=1,
    )  # fmt: skip
    return learner, run


def test_codes_of_clients_are_drawn_from_the_rows_of_their_channel():
    """Each client at a vertex, where its codes have one row's distribution."""
    channel, many = CHANNEL, 40_000
    updates = torch.tensor([[-0.05], [0.05]], device=DEVICE).expand(2, many).contiguous()
    totals = sum_of_codes(channel, updates, [0, 1], KEY)
    assert totals.dtype == torch.int64
    low, high = channel.probabilities[0], channel.probabilities[-1]
    assert chance.fits(totals.cpu().numpy(), np.convolve(low, high))
    assert torch.equal(sum_of_codes(channel, updates, [0, 1], KEY), totals)
    assert not torch.equal(sum_of_codes(channel, updates, [0, 2], KEY), totals)


def test_a_round_is_unbiased_for_the_clipped_mean_and_repeats():
    learner, run = a_round()
    state = run.init()
    learner.load(state.parameters)
    mean = np.clip(learner.updates(COHORT)[0], -0.05, 0.05).mean(axis=0)
    steps = []
    for number in range(200):
        after, cost = run.apply(state, COHORT, KEY.fold_in(number))
        steps.append(state.parameters - after.parameters)
    again, _ = run.apply(state, COHORT, KEY.fold_in(0))
    assert np.array_equal(state.parameters - again.parameters, steps[0])
    deviation = np.std(steps, axis=0) / np.sqrt(len(steps))
    assert np.abs((np.mean(steps, axis=0) - mean) / deviation).max() < 5  # of 650 coordinates
    payload = ChannelMechanism(CHANNEL).encode(mean, Key.from_seed(0))
    assert cost.bytes_up == len(COHORT) * len(payload)


@pytest.mark.parametrize("room", [1, 2**27])
def test_every_client_of_every_group_is_in_the_sum(room, monkeypatch):
    """Whatever is sent, the code is 1: the mean is its value, if all are counted once."""
    monkeypatch.setattr(learner_module, "GATHERED_ON_DEVICE", room)
    weights = np.array([[0, 4, 0], [0, 4, 0]])
    always = rq.Channel(np.array([-0.05, 0.05]), np.array([-1.0, 0.5, 2.0]), weights, 4)
    learner, run = a_round(ChannelMechanism(always, "aggregate", len(COHORT)))
    assert len(learner.groups(COHORT, 1)) == (len(COHORT) if room == 1 else 1)
    state = run.init()
    after, cost = run.apply(state, COHORT, KEY)
    assert np.allclose(state.parameters - after.parameters, 0.5, atol=1e-6)
    payload = ChannelMechanism(always).encode(np.zeros(learner.dimension), Key.from_seed(0))
    assert cost.bytes_up == len(COHORT) * len(payload)
    learner.load(state.parameters)
    assert abs(cost.train_loss - learner.tensors(COHORT)[1].mean()) < 1e-6


def test_codes_of_uneven_values_are_not_summed():
    uneven = rq.erm(clip=0.05, bins=[-0.2, -0.01, 0.03, 0.2], gamma=1.0)
    learner, run = a_round(ChannelMechanism(uneven))
    state = run.init()
    after, _ = run.apply(state, COHORT, KEY)
    learner.load(state.parameters)
    mechanism, updates = ChannelMechanism(uneven), learner.updates(COHORT)[0]
    keys = [KEY.fold_in(1).fold_in("client", client) for client in COHORT]
    payloads = [mechanism.encode(*each) for each in zip(updates, keys, strict=True)]
    mean = mechanism.mean(payloads, learner.dimension, KEY)
    assert np.abs(state.parameters - mean - after.parameters).max() < 1e-6


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_updates_on_a_device_are_checked(bad):
    updates = torch.zeros((3, 10), device=DEVICE)
    updates[1, 4] = bad
    with pytest.raises(ValueError, match=rf"Client 8: Expected finite .* {bad} at index \[4\]"):
        sum_of_codes(CHANNEL, updates, [7, 8, 9], KEY)


def test_a_client_that_has_no_number_is_named():
    _, run = a_round()
    state = run.init()
    broken = type(state)(0, np.full_like(state.parameters, np.nan), state.participations)
    with pytest.raises(
        ValueError, match=r"Client 1: Expected finite values to send, got nan at index \[0\]"
    ):
        run.apply(broken, COHORT, KEY)


def test_training_on_a_device(tmp_path):
    config = TrainConfig.of(
        "digits", "softmax", "rqm", CHANNEL_PARAMETERS, population=30, cohort=5, rounds=4,
        learning_rate=1.0, device=DEVICE,
    )  # fmt: skip
    runs.create(tmp_path / "run", config, overwrite=False)
    run = runs.execute(tmp_path / "run")
    assert run.summary.guarantee is not None
    assert 0 < run.summary.accuracy < 1


CHANNEL_PARAMETERS = {"clip": 0.05, "margin": 0.05, "levels": 16, "keep": 0.42}
