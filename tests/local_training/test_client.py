"""What a client computes depends on its own data and key, and on no other client or example."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from randquant.aggregation import ClippedSGD
from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem
from randquant.training import RoundCollector

KEY = Key.from_seed(1)


def plain_of(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))


def made(rng, count, outputs):
    if outputs is None:
        return rng.integers(0, 2, count)
    return rng.normal(size=(count, outputs)).astype(np.float32)


@pytest.mark.parametrize("model", [nn.Linear, plain_of])
def test_batches_cover_each_epoch_once_and_follow_from_the_key(model):
    rng, own = np.random.default_rng(0), list(range(17))
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, None)) for n in (5, 17, 8)]
    learner = Learner(make_problem(model(3, 2), data), Work(batch=4, epochs=2, learning_rate=1e-3))
    steps = learner._sequential.steps(1, KEY)
    assert [len(step) for step in steps] == [4, 4, 4, 4, 1] * 2
    first, second = np.concatenate(steps[:5]), np.concatenate(steps[5:])
    assert sorted(first) == sorted(second) == own
    assert not np.array_equal(first, second)
    updates, again = (learner.updates([1, 2], KEY)[0] for _ in range(2))
    assert np.array_equal(updates, again)
    assert not np.array_equal(updates, learner.updates([1, 2], KEY.fold_in(2))[0])
    # A client's update does not depend on who else is in its group.
    assert np.abs(learner.updates([2], KEY)[0][0] - updates[1]).max() < 1e-7


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("model", [nn.Linear, plain_of])
def test_no_client_is_padded_with_what_overflows_for_another(model, outputs):
    """Infinity times a weight of zero is no number: a client's records are nobody else's."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, outputs)) for n in (4, 1, 3)]
    torch.manual_seed(0)
    loss = functional.cross_entropy if outputs is None else functional.mse_loss
    own = model(3, 2)
    first = own if isinstance(own, nn.Linear) else own[0]
    nn.init.zeros_(first.weight)  # the dry run sees nothing wrong
    wild = [(np.full_like(data[0][0], 3e38), data[0][1]), *data[1:]]
    work = Work(epochs=2, learning_rate="auto", batch=2)
    found = [
        Learner(make_problem(own, each, loss=loss), work).updates([0, 1, 2], KEY)[0]
        for each in (data, wild)
    ]
    assert np.array_equal(found[0][1:], found[1][1:])


@pytest.mark.parametrize("batch", [None, 3, 8])
def test_one_example_moves_an_update_by_what_the_number_of_examples_says(batch):
    """Gradients of opposite targets, both clipped: a diameter apart, over those of a batch."""
    rng, moved = np.random.default_rng(0), []
    features = rng.normal(size=(5, 3)).astype(np.float32)
    model = nn.Linear(3, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)

    def updates(targets):
        data = [(features, targets), (np.ones((9, 3), np.float32), np.ones((9, 1), np.float32))]
        learner = Learner(
            make_problem(model, data, loss=functional.mse_loss), Work(batch=batch, example_norm=1.0)
        )
        return learner.examples, learner.updates([0], KEY)[0][0]

    examples, first = updates(np.full((5, 1), 9.0, np.float32))
    for example in range(5):
        targets = np.full((5, 1), 9.0, np.float32)
        targets[example] = -9.0
        moved.append(np.linalg.norm(updates(targets)[1] - first))
    assert max(moved) == pytest.approx(2 / examples, rel=1e-5)


class Growing(nn.Linear):
    def forward(self, x):
        return super().forward(x).exp()


def test_a_client_without_samples_left_is_not_moved_by_what_overflows():
    rng, work = np.random.default_rng(0), Work(batch=2, learning_rate=1.0)
    data = [(rng.normal(size=(n, 3)).astype(np.float32), made(rng, n, 1)) for n in (5, 1)]
    model, far = Growing(3, 1), (data[1][0] * 0 + 1, data[1][1] * 0 + 1e9)
    learner = Learner(make_problem(model, [data[0], far], loss=functional.mse_loss), work)
    assert learner._vectorized is not None
    assert np.isfinite(learner.updates([0, 1], KEY)[0]).all()


def features(rng, count):
    return rng.normal(size=(count, 16)).astype(np.float32)


class Dropping(nn.Module):
    """Dropout as a function, in the middle of a network."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 12), nn.Linear(12, 5)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(functional.dropout(x, 0.5, training=self.training))


def dropping():
    rng = np.random.default_rng(3)
    torch.manual_seed(1)
    clients = [(features(rng, size), rng.integers(0, 5, size)) for size in (6, 3, 9)]
    return make_problem(Dropping(), clients, test=clients[2])


@pytest.mark.parametrize(
    "local", [Work(), Work(epochs=2, learning_rate=0.1, batch=2), Work(example_norm=0.2)]
)
def test_random_numbers_of_a_client_come_from_its_key(local):
    problem = dropping()
    assert problem.dry_run.draws
    learner = Learner(problem, local)
    assert learner.one_thread
    state = torch.get_rng_state()
    first = learner.updates([0, 1, 2], KEY)[0]
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(77)
    again = np.stack([learner.updates([client], KEY)[0][0] for client in (2, 1, 0)])[::-1]
    assert np.array_equal(first, again)
    assert not np.allclose(first, learner.updates([0, 1, 2], KEY.fold_in(2))[0], atol=1e-8)
    assert learner.evaluate() == learner.evaluate()


def test_clients_with_equal_data_draw_different_numbers():
    pair = dropping().clients.take(0, np.arange(6))
    problem = make_problem(Dropping(), [pair, pair])
    one, other = Learner(problem).updates([0, 1], KEY)[0]
    assert not np.allclose(one, other, atol=1e-8)


def test_examples_of_a_client_draw_different_numbers():
    x, y = dropping().clients.take(0, np.arange(1))
    torch.manual_seed(1)
    model, local = Dropping(), Work(example_norm=1e3)
    once = Learner(make_problem(model, [(x, y)]), local).updates([0], KEY)[0]
    twice = make_problem(model, [(torch.cat([x, x]), torch.cat([y, y]))])
    assert not np.allclose(once, Learner(twice, local).updates([0], KEY)[0], atol=1e-8)


def test_one_example_changes_nothing_that_another_draws():
    """At example level: what stays the same must give the same, up to the clipped gradient."""
    rng = np.random.default_rng(3)
    x, y = features(rng, 6), rng.integers(0, 5, 6)
    torch.manual_seed(1)
    model, changed = Dropping(), x.copy()
    changed[2] *= -30
    updates = [
        Learner(make_problem(model, [(each, y)]), Work(example_norm=0.01)).updates([0], KEY)[0][0]
        for each in (x, changed)
    ]
    apart = np.linalg.norm(updates[0].astype(float) - updates[1])
    assert 0 < apart <= 2 * 0.01 * (1 / 6 + 2.0**-20)


def test_a_round_of_a_model_that_draws_does_not_depend_on_the_workers():
    found = []
    for workers in (1, 3):
        learner = Learner(dropping())
        with ThreadPoolExecutor(workers) as pool:
            collect = RoundCollector(learner, ClippedSGD(1e30), pool, workers)
            found.append(collect([2, 0, 1], KEY, 0).mean)
    assert np.array_equal(*found)


def in_batches(size):
    """Batch norm that keeps nothing, and normalises a batch by itself: one example it cannot."""
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    model = nn.Sequential(nn.Linear(16, 3), norm, nn.Linear(3, 2))
    rng = np.random.default_rng(0)
    return make_problem(
        model, {name: (features(rng, n), made(rng, n, None)) for name, n in (("a", 8), ("b", size))}
    )


@pytest.mark.parametrize(
    ("size", "work", "refused"),
    [
        (2, Work(), None), (1, Work(), 1), (5, Work(batch=1), 1), (5, Work(batch=4), None),
        (5, Work(4, 1, 0.1), 1), (6, Work(4, 1, "auto"), None), (9, Work(2, 1, 0.1), 1),
        (5, Work(example_norm=1.0), 1), (3, Work(9, 2, 0.1), None),
    ],
)  # fmt: skip
def test_the_smallest_step_is_tried_before_anybody_is_asked(size, work, refused):
    learner = Learner(in_batches(size), work)
    if refused is None:
        learner.check()
        learner.updates([0, 1], Key.from_seed(0))
        return
    with pytest.raises(ValueError, match=f"learns from {refused} of client [ab]'s examples at on"):
        learner.check()
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        learner.updates([0, 1], Key.from_seed(0))
