"""The update of a site that protects each of its examples, beside a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scripted import check_follows
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.aggregation import clip_to_norm

GENERATOR = torch.Generator().manual_seed(0)


class Named(nn.Module):
    """Two inputs by name, and a Hugging Face style result."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(5, 4)

    def forward(self, a, b):
        return self.left(a) * torch.tanh(self.right(b))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


def normal(*shape):
    return torch.randn(shape, generator=GENERATOR)


def classes(count, below=2):
    return torch.randint(below, (count,), generator=GENERATOR)


CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)
)
MODELS = {  # (model, features, targets, loss)
    "linear": (nn.Linear(6, 2), normal(70, 6), classes(70), functional.cross_entropy),
    "layers": (
        nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 1)),
        normal(9, 6), normal(9, 1), functional.mse_loss,
    ),
    "convolutions": (CONVOLUTIONS, normal(5, 1, 6, 6), classes(5), functional.cross_entropy),
    "embedding": (
        nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(12, 2)),
        torch.randint(11, (8, 3), generator=GENERATOR), classes(8), functional.cross_entropy,
    ),
    "two inputs": (
        Named(), {"a": normal(6, 3), "b": normal(6, 5)}, classes(6, 4), functional.cross_entropy,
    ),
    "one by one": (Recurrent(), normal(4, 6, 4), classes(4), functional.cross_entropy),
}  # fmt: skip


def slowly(model, x, y, loss, clip_norm):
    """Minus the sum of the clipped gradients, by autograd alone."""
    total = 0.0
    for place in range(len(y)):
        features = {n: each[place : place + 1] for n, each in x.items()} if isinstance(
            x, dict) else x[place : place + 1]  # fmt: skip
        output = model(**features) if isinstance(x, dict) else model(features)
        parts = torch.autograd.grad(loss(output, y[place : place + 1]), [*model.parameters()])
        gradient = torch.cat([part.reshape(-1) for part in parts]).double().numpy()
        total = total - gradient * min(1.0, clip_norm / np.linalg.norm(gradient))
    return total


def flat(update):
    return torch.cat([part.reshape(-1) for part in update.values()]).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_sum_of_clipped_gradients(name):
    model, x, y, loss = MODELS[name]
    before = {n: each.clone() for n, each in model.state_dict().items()}
    for norm in (0.05, 100.0):
        update = rq.example_update(model, (x, y), loss, clip_norm=norm)
        assert {n: each.shape for n, each in update.items()} == {
            n: each.shape for n, each in model.named_parameters()
        }
        expected = slowly(model, x, y, loss, norm)
        assert np.allclose(flat(update), expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())
    assert all(torch.equal(each, before[n]) for n, each in model.state_dict().items())


@pytest.mark.parametrize("name", ["linear", "layers", "one by one"])
@pytest.mark.parametrize("examples", [1, 3, 60])
def test_no_example_moves_what_is_sent_further_than_its_public_share(name, examples):
    """Also in a site with many times as many examples, whose sum is clipped when it is encoded."""
    model, x, y, loss = MODELS[name]
    norm, other = 0.7, torch.Generator().manual_seed(1)
    usual = flat(rq.example_update(model, (x, y), loss, clip_norm=norm)) / examples
    for scale in (1e-3, 1.0, 1e4):
        changed = x.clone()
        changed[1] = scale * torch.randn(x[1].shape, generator=other)
        found = flat(rq.example_update(model, (changed, y), loss, clip_norm=norm)) / examples
        sent = [clip_to_norm(each, norm).astype(float) for each in (usual, found)]
        moved = np.linalg.norm(sent[0] - sent[1])
        assert 0 < moved <= (2 / examples + 2**-20) * norm


def test_a_site_counts_by_its_examples_and_the_mean_is_that_over_all():
    """What a trusted curator would compute of all, but for rounding."""
    model, x, y, loss = MODELS["linear"]
    parts = ((x[:10], y[:10]), (x[10:], y[10:]))
    sums = [flat(rq.example_update(model, part, loss, clip_norm=0.1)) for part in parts]
    everybody = slowly(model, x, y, loss, 0.1) / len(y)
    assert np.allclose(np.mean(sums, axis=0) / 35, everybody, rtol=1e-4, atol=1e-8)


def test_only_what_is_trained_is_sent_and_tables_are_read():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [0.1, 0.2, 0.3], "dose": [1.0, 0.0, 2.0], "ill": [0, 1, 0]})
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    local = rq.Local(learning_rate=0, parts="1.*", columns=(["age", "dose"], "ill"))
    update = rq.example_update(model, table, clip_norm=1.0, local=local)
    assert list(update) == ["1.weight", "1.bias"]
    x, y = torch.tensor(table[["age", "dose"]].to_numpy()).float(), torch.tensor(table["ill"])
    frozen = model[0](x).detach()
    expected = slowly(model[1], frozen, y, functional.cross_entropy, 1.0)
    assert np.allclose(flat(update), expected, rtol=1e-4, atol=1e-7)


def test_dropout_draws_for_each_example_by_itself():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    data = torch.ones(50, 4), classes(50)

    def update():
        torch.manual_seed(0)  # who knows torch's seed, or a round before, knows nothing of it
        return rq.example_update(model, data, clip_norm=9.0)

    assert len(np.unique(update()["1.weight"].numpy().round(3))) > 4
    check_follows(lambda: flat(update()).tolist())


REFUSED = {
    "no clip_norm": ({"clip_norm": 0.0}, "clip_norm"),
    "local steps": ({"local": rq.Local(epochs=2, learning_rate=0.1)}, "one gradient of each"),
    "epochs": ({"local": rq.Local(epochs=2)}, "one gradient of each"),
    "a batch": ({"local": rq.Local(learning_rate=0, batch=2)}, "one gradient of each"),
    "running statistics": ({"model": nn.BatchNorm1d(6)}, "BatchNorm1d"),
    "a number that is missing": ({"data": (torch.full((2, 6), np.nan), classes(2))}, "NaN"),
    "no data": ({"data": (torch.zeros(0, 6), classes(0))}, "Client 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_bound_is_refused(name):
    model, x, y, _ = MODELS["linear"]
    changes, reason = REFUSED[name]
    given = {"model": model, "data": (x, y), "clip_norm": 1.0, **changes}
    with pytest.raises(ValueError, match=reason):
        rq.example_update(given.pop("model"), given.pop("data"), **given)


@pytest.mark.parametrize("place", [0, 1, 29])
def test_a_record_that_overflows_counts_as_none_wherever_it_stands(place):
    """It decides neither whether the site answers nor what others count for."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(30, 3, generator=draw), torch.randn(30, 1, generator=draw)
    model = nn.Linear(3, 1)
    wide = x.clone()
    wide[place] = 1e30
    update = rq.example_update(model, (wide, y), functional.mse_loss, clip_norm=1.0)
    rest = [n for n in range(30) if n != place]
    expected = slowly(model, x[rest], y[rest], functional.mse_loss, 1.0)
    assert np.allclose(flat(update), expected, rtol=1e-4, atol=1e-7)


class Lengths(nn.Module):
    """A model that made-up numbers make fail: no sequence may have length 0."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.cell(packed)[1][0])


def test_a_model_that_needs_real_numbers_is_tried_on_the_clients():
    x, lengths = normal(5, 4, 2), torch.tensor([4, 2, 3, 1, 4])
    update = rq.example_update(Lengths(), ((x, lengths), classes(5)), clip_norm=1.0)
    assert 0 < np.linalg.norm(flat(update)) <= 5


def test_more_examples_than_their_sums_rounding_allows_are_refused(monkeypatch):
    monkeypatch.setattr("randquant.local_training.client.MAX_EXAMPLES", 3)
    rows = torch.zeros(4, 1)
    with pytest.raises(ValueError, match="at most 3 examples of one client, got 4: rounding"):
        rq.example_update(nn.Linear(1, 1), (rows, rows), functional.mse_loss, clip_norm=1.0)
