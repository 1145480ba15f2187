"""What a run is bound to: every number of its data and model, and no address in memory."""

import dataclasses
import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from randquant.channels import Key
from randquant.local_training import make_problem
from randquant.training import bind

SIZES = (3, 4, 2)
KEY = Key.from_seed(5)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))


def examples(size, seed):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(size, 2)).astype(np.float32), draw.integers(0, 2, size)


def parts():
    """All that a problem is made of; each call gives new arrays of the same numbers."""
    clients = {f"client {n}": examples(size, n) for n, size in enumerate(SIZES)}
    return {"model": model(), "clients": clients, "test": examples(5, 9)}


def bound(loss=functional.cross_entropy, key=KEY, **changed):
    return dataclasses.asdict(bind(make_problem(**{**parts(), **changed}, loss=loss), key))


def differing(first, second):
    return {name for name in first if first[name] != second[name]}


BEGUN = bound()


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_another_number_anywhere_is_another_binding(data):
    """One number of one array changes: a weight, or a feature or a label of any example."""
    made = parts()
    where = data.draw(st.sampled_from([*made["clients"], "test", "model"]))
    if where == "model":
        array = data.draw(st.sampled_from(list(made["model"].parameters()))).detach().numpy()
    else:
        pair = made["test"] if where == "test" else made["clients"][where]
        array = pair[data.draw(st.sampled_from([0, 1]))]
    flat = array.reshape(-1)
    place = data.draw(st.integers(0, flat.size - 1))
    if flat.dtype == np.int64:
        flat[place] = 1 - flat[place]
    else:
        flat[place] = np.nextafter(flat[place], np.float32(9))
    wanted = where if where in ("model", "test") else "clients"
    assert differing(BEGUN, bound(**made)) == {wanted}


def moved(clients):
    """The same examples in the same order; one of them belongs to the client before."""
    (x, y), (u, v), other = clients.values()
    own = (np.concatenate([x, u[:1]]), np.concatenate([y, v[:1]]))
    return dict(zip(clients, (own, (u[1:], v[1:]), other), strict=True))


CHANGES = {
    "clients swapped": lambda clients: dict(
        zip(clients, [*reversed(clients.values())], strict=True)
    ),
    "a client renamed": lambda clients: {f"{name}'": own for name, own in clients.items()},
    "a client less": lambda clients: dict(list(clients.items())[:-1]),
    "an example moved": moved,
    "an example less": lambda clients: {n: (x[1:], y[1:]) for n, (x, y) in clients.items()},
}


@pytest.mark.parametrize("change", CHANGES)
def test_whose_an_example_is_is_bound_too(change):
    found = bound(clients=CHANGES[change](parts()["clients"]))
    assert differing(BEGUN, found) == {"clients"}


def test_what_is_trained_the_loss_and_the_key_are_bound():
    assert differing(BEGUN, bound(frozen="0.bias")) == {"model"}
    assert differing(BEGUN, bound(test=None)) == {"test"}
    assert differing(BEGUN, bound(loss=functional.multi_margin_loss)) == {"loss"}
    assert differing(BEGUN, bound(key=Key.from_seed(6))) == set(BEGUN)
    assert differing(BEGUN, bound()) == set()


class Smooth:
    """A loss of one's own, whose repr has its address in memory."""

    def __call__(self, output, targets):
        return functional.cross_entropy(output, targets)


def softened(amount):
    """A loss with a setting; the function is made anew, as in another process."""

    def loss(output, targets, amount):
        return functional.cross_entropy(output, targets, label_smoothing=amount)

    return functools.partial(loss, amount=amount)


@pytest.mark.parametrize("make", [Smooth, lambda: softened(0.1), nn.CrossEntropyLoss])
def test_the_same_loss_at_another_address_is_the_same(make):
    first, second = make(), make()
    assert first is not second  # both are alive: they have two addresses
    assert bound(loss=first) == bound(loss=second)


def test_another_setting_of_a_loss_is_another_loss():
    assert differing(bound(loss=softened(0.1)), bound(loss=softened(0.2))) == {"loss"}
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert differing(bound(loss=nn.CrossEntropyLoss()), bound(loss=smooth)) == {"loss"}


def test_other_public_examples_for_running_statistics_are_another_model():
    """The server computes statistics of them at the weights of each round, and clients use them."""
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    first, again, other = (
        bound(model=normed, buffers="server", public=examples(6, seed)[0]) for seed in (20, 20, 21)
    )
    assert not differing(first, again)
    assert differing(first, other) == {"model"}
