"""One client's odd data leave what all others compute as it was, bit for bit."""

import pickle

import numpy as np
import pytest
import torch
from data_forms import Pairs
from torch import nn
from torch.nn import functional

from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem
from randquant.local_training import client as learner_module

KEY, CLIENTS = Key.from_seed(1), 23


def pictures(count, seed):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 2, 5, 5)).astype(np.float32), draw.integers(0, 3, count)


DATA = [pictures(3 + k % 4, k) for k in range(CLIENTS)]
ODD = {
    "many": lambda x, y: (np.tile(x, (30, 1, 1, 1)), np.tile(y, 30)),
    "one": lambda x, y: (x[:1], y[:1]),
    "large": lambda x, y: (x * np.float32(1e30), y),
    "of other precision": lambda x, y: (x.astype(">f8"), y.astype(np.uint8)),
    "columns first": lambda x, y: (np.asfortranarray(x), y[::-1]),
    "channels last": lambda x, y: (torch.tensor(x).to(memory_format=torch.channels_last), y),
}


def softmax():
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 3))


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutions():
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def updates_of(model, clients, work, **options):
    torch.manual_seed(0)
    learner = Learner(make_problem(model(), clients), work, **options)
    groups = learner.groups(range(len(clients)), 2)
    return np.concatenate([learner.updates(group, KEY)[0] for group in groups]), learner


WORKS = [
    Work(),
    Work(epochs=2, learning_rate="auto"),
    Work(batch=2, learning_rate=0.1),
    Work(example_norm=0.1),
]


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("work", WORKS, ids=["gradient", "auto", "batches", "examples"])
@pytest.mark.parametrize("model", [softmax, network, convolutions])
def test_odd_data_of_a_client_change_no_bit_of_others(model, work, monkeypatch):
    if model is convolutions:
        monkeypatch.setattr(learner_module, "LIGHT_PASS_NUMBERS", 0)
    expected, learner = updates_of(model, DATA, work)
    assert (learner._vectorized is None) == (model is convolutions or work.example_norm is not None)
    places = np.array([0, 3, 7, 11, 19, 22])
    others = np.setdiff1d(np.arange(CLIENTS), places)
    for turn in (0, 4):  # many examples, and another layout, in the first client
        clients = list(DATA)
        for place, change in zip(places, np.roll(list(ODD.values()), -turn), strict=True):
            clients[place] = change(*DATA[place])
        updates, _ = updates_of(model, clients, work)
        assert updates[others].tobytes() == expected[others].tobytes()


@pytest.mark.parametrize("model", [network, convolutions])
def test_also_where_examples_are_read_when_they_are_needed(model, monkeypatch):
    """A client whose examples are drawn, large or laid out otherwise, and the very first one."""
    monkeypatch.setattr(learner_module, "LIGHT_PASS_NUMBERS", 0)

    def laid_out(x):
        return x.permute(1, 2, 0).contiguous().permute(2, 0, 1) * 1e20

    def drawn(x):
        return x + torch.randn(x.shape) * np.random.normal()  # noqa: NPY002

    few = DATA[:4]
    for usual in (lambda x: x, drawn):
        plain = [Pairs(*pair, form=usual) for pair in few]
        expected, _ = updates_of(model, plain, WORKS[1])
        for form in (laid_out, drawn):
            clients = [Pairs(*few[0], form=form), *plain[1:]]
            updates, _ = updates_of(model, clients, WORKS[1])
            assert updates[1:].tobytes() == expected[1:].tobytes()


def test_an_example_that_draws_more_changes_no_other_of_its_client():
    x, y = pictures(5, 0)

    def drawn(odd):
        def form(each):
            extra = torch.randn(3) if odd and torch.equal(each, torch.tensor(x[1])) else 0
            return each + torch.randn(each.shape) + 0 * torch.as_tensor(extra).sum()

        return form

    rows = []
    for odd in (False, True):
        torch.manual_seed(0)
        problem = make_problem(softmax(), [Pairs(x, y, drawn(odd))])
        alone = Learner(problem, Work(example_norm=1.0))._sequential
        rows.append([row for row, _ in alone._each_example(0, np.arange(5), KEY)])
    same = [np.array_equal(*pair) for pair in zip(*rows, strict=True)]
    assert same == [True, False, True, True, True]


def test_where_cohorts_are_hidden_nobody_shows_in_the_bits_of_others():
    learner = updates_of(network, DATA, WORKS[1], apart=True)[1]
    together, _ = learner.updates(range(CLIENTS), KEY)
    for cohort in ([4], [0, 4], [1, 2, 4, 9]):
        updates, _ = learner.updates(cohort, KEY)
        assert updates.tobytes() == together[cohort].tobytes()


def test_a_learner_in_another_process_hides_its_cohorts_too():
    """It is pickled on the way, as by Flower's simulation."""
    learner = updates_of(network, DATA, WORKS[1], apart=True)[1]
    moved = pickle.loads(pickle.dumps(learner))
    assert moved.obstacle == learner.obstacle
    assert "cohorts that nobody sees" in moved.obstacle.reason
    expected, _ = learner.updates(range(CLIENTS), KEY)
    for cohort in ([4], [1, 2, 4, 9], range(CLIENTS)):
        updates, _ = moved.updates(cohort, KEY)
        assert updates.tobytes() == expected[cohort].tobytes()


def test_a_pass_of_several_has_the_updates_of_torch_however_many_examples():
    """More examples than a pass is wide, in clients beside others that have few."""
    clients = [pictures(count, count) for count in (1, 32, 33, 100)]
    updates, learner = updates_of(network, clients, Work())
    assert learner._vectorized is not None
    for (x, y), update in zip(clients, updates, strict=True):
        model = learner.problem.model
        loss = functional.cross_entropy(model(torch.tensor(x)), torch.tensor(y))
        parts = torch.autograd.grad(loss, list(model.parameters()))
        assert np.abs(update - torch.cat([p.reshape(-1) for p in parts]).numpy()).max() < 1e-6
