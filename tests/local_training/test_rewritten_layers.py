"""Recurrent layers written out: the same function, and many clients at once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem
from randquant.local_training.models import WrittenOut, written_out

INPUTS, STEPS = 3, 6
KINDS = {"rnn": (nn.RNN, {}), "relu": (nn.RNN, {"nonlinearity": "relu"}), "gru": (nn.GRU, {}),
         "lstm": (nn.LSTM, {})}  # fmt: skip
OPTIONS = {
    "one": {}, "batch first": {"batch_first": True}, "two layers": {"num_layers": 2},
    "both ways": {"bidirectional": True}, "no bias": {"bias": False},
    "all": {"batch_first": True, "num_layers": 2, "bidirectional": True, "bias": False},
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["from zero", "from a state"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_states_and_gradients_are_those_of_torch(kind, options, given):
    torch.manual_seed(0)
    (layer, of_kind), chosen = KINDS[kind], OPTIONS[options]
    layer = layer(INPUTS, 5, dtype=torch.float64, **of_kind, **chosen)
    copy = written_out(layer)
    assert isinstance(copy, WrittenOut)
    assert isinstance(copy, type(layer))
    assert list(dict(copy.named_parameters())) == list(dict(layer.named_parameters()))
    x = torch.randn(4, STEPS, INPUTS, dtype=torch.float64, requires_grad=True)
    sequences = 4 if layer.batch_first else STEPS
    directions = layer.num_layers * (2 if layer.bidirectional else 1)
    start = torch.randn(directions, sequences, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for each in (layer, copy):
        state = ((start, start.cos()) if kind == "lstm" else start) if given else None
        output, ends = each(x, state)
        leaves = [output, *(ends if kind == "lstm" else [ends])]
        total = sum((leaf * leaf.detach().cos()).sum() for leaf in leaves)
        wanted = [*each.parameters(), x, *[start] * given]
        found.append([*leaves, *torch.autograd.grad(total, wanted)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


class Model(nn.Module):
    def __init__(self, layer, run=lambda layer, x: layer(x)[0][:, -1], width=5):
        super().__init__()
        self.layer, self.run, self.out = layer, run, nn.Linear(width, 2)

    def forward(self, x):
        return self.out(self.run(self.layer, x))


def time_first(layer, x):
    layer.flatten_parameters()
    return layer(x.transpose(0, 1))[1].mean(0)


MODELS = {
    "gru": lambda: Model(nn.GRU(INPUTS, 5, batch_first=True)),
    "lstm, both ways": lambda: Model(
        nn.LSTM(INPUTS, 5, num_layers=2, batch_first=True, bidirectional=True), width=10
    ),
    "rnn, time first": lambda: Model(nn.RNN(INPUTS, 5, num_layers=2), time_first),
    "a layer that is asked what it is": lambda: Model(
        nn.LSTM(INPUTS, 5, batch_first=True),
        lambda layer, x: layer(x)[0][:, -1] * (2 if isinstance(layer, nn.LSTM) else 1),
    ),
    "gru on what it gave": lambda: Model(
        nn.GRU(INPUTS, 5, batch_first=True), lambda layer, x: layer(layer(x)[0][..., :INPUTS])[1][0]
    ),
}


def problem(build, **options):
    torch.manual_seed(1)
    draw = np.random.default_rng(2)
    clients = [
        (draw.normal(size=(n, STEPS, INPUTS)).astype("f"), draw.integers(0, 2, n))
        for n in (3, 40, 1, 7)
    ]
    return make_problem(build(), clients, **options)


@pytest.mark.parametrize("work", [
    Work(epochs=3, learning_rate="auto"), Work(epochs=2, learning_rate=0.5, batch=2), Work(),
    Work(example_norm=1.0),
], ids=["without a rate", "with a rate", "gradient", "examples"])  # fmt: skip
@pytest.mark.parametrize("name", MODELS)
def test_clients_are_computed_together_with_the_same_result(name, work):
    posed = problem(MODELS[name])
    together, alone = Learner(posed, work), Learner(posed, replace(work, together=False))
    assert together.together
    key = Key.from_seed(5)
    for one, other in zip(together.updates(range(4), key), alone.updates(range(4), key),
                          strict=True):  # fmt: skip
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-5)
    kinds = [type(each) for each in together.trained_model().modules()]
    assert kinds == [type(each) for each in posed.model.modules()]


class Doubled(nn.GRU):
    def forward(self, x):
        output, state = super().forward(x)
        return 2 * output, state


def packed(layer, x):
    return layer(pack_padded_sequence(x, [STEPS] * len(x), batch_first=True))[1][0]


APART = {
    "a class of one's own": lambda: Model(Doubled(INPUTS, 5, batch_first=True)),
    "projections": lambda: Model(nn.LSTM(INPUTS, 7, batch_first=True, proj_size=5)),
    "packed": lambda: Model(nn.GRU(INPUTS, 5, batch_first=True), packed),
    "dropout": lambda: Model(nn.GRU(INPUTS, 5, num_layers=2, batch_first=True, dropout=0.5)),
    "examples as time": lambda: Model(nn.GRU(INPUTS, 5)),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_what_is_not_written_out_is_computed_one_by_one(name, monkeypatch):
    monkeypatch.setattr("randquant.local_training.dry_run._check_mean", lambda *losses: None)
    posed = problem(APART[name])
    learner = Learner(posed)
    assert not learner.together
    assert not any(isinstance(each, WrittenOut) for each in learner._copies.shared().modules())
    assert learner.updates(range(2), Key.from_seed(0))[0].any()


def test_a_layer_that_stands_in_two_places_is_one_layer_still():
    cells = nn.GRU(INPUTS, INPUTS, batch_first=True)
    model = nn.ModuleList([cells, nn.ModuleDict({"again": cells})])
    copy = written_out(model)
    assert copy[0] is copy[1]["again"]
    assert len(list(copy.parameters())) == len(list(model.parameters()))
    assert type(model[0]) is nn.GRU
    assert isinstance(written_out(dropping())[2], nn.Dropout)
    assert written_out(nn.Linear(2, 2)) is None


# --- dropout --------------------------------------------------------------------------------------


def dropping(rate=0.5):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(STEPS * INPUTS, 300), nn.Dropout(rate), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(300, 2),
    )  # fmt: skip


WORKS = [Work(), Work(epochs=3, learning_rate="auto"), Work(batch=2, epochs=2, learning_rate=0.5)]


@pytest.mark.parametrize("work", WORKS, ids=["gradient", "without a rate", "with a rate"])
def test_a_clients_dropout_depends_on_its_key_alone(work):
    """Not on who is computed with it, nor on torch's own generator, which keeps its state."""
    learner = Learner(problem(dropping), work)
    assert learner.together
    assert not learner.one_thread
    state = torch.get_rng_state()
    updates, losses = learner.updates(range(4), Key.from_seed(1))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(9)
    for client in (3, 1):
        alone, loss = learner.updates([client], Key.from_seed(1))
        gap = np.linalg.norm(alone[0] - updates[client])
        assert gap < 1e-4 * np.linalg.norm(updates[client])
        np.testing.assert_allclose(loss, losses[client : client + 1], rtol=1e-5)
    others, _ = learner.updates(range(4), Key.from_seed(2))
    assert all(np.abs(one - other).max() > 1e-3 * np.abs(one).max()
               for one, other in zip(updates, others, strict=True))  # fmt: skip


def test_clients_computed_together_drop_units_of_their_own():
    """One mask for all would be an error that no number of clients averages out."""
    data = problem(dropping).clients.example
    same = [(data.features.numpy(), data.targets.numpy())] * 5
    learner = Learner(make_problem(dropping(), same))
    assert learner.together
    updates, _ = learner.updates(range(5), Key.from_seed(1))
    dropped = (updates[:, : 300 * STEPS * INPUTS].reshape(5, 300, -1) == 0).all(-1)
    assert len({each.tobytes() for each in dropped}) == 5


def test_dropout_is_that_of_torch():
    """Each hidden unit's gradient is zero as often as its rate says, else scaled up: same mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(STEPS * INPUTS, 300), nn.Dropout(0.25),
                          nn.Linear(300, 2))  # fmt: skip
    posed = problem(lambda: model)
    one = Learner(posed)
    # Client 2 has one example: a unit that is dropped has a slope of zero.
    size = 300 * STEPS * INPUTS
    draws = [one.updates([2], Key.from_seed(k))[0][0] for k in range(40)]
    dropped = np.array([~draw[:size].reshape(300, -1).any(1) for draw in draws])
    assert abs(dropped.mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / dropped.size)
    assert len({each.tobytes() for each in dropped}) == 40
    torch_draws = [
        Learner(posed, Work(together=False)).updates([2], Key.from_seed(k))[0][0] for k in range(40)
    ]
    spread = np.std(draws, 0) + np.std(torch_draws, 0) + 1e-6
    gap = np.abs(np.mean(draws, 0) - np.mean(torch_draws, 0)) / spread
    assert gap.mean() < 0.25


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(STEPS * INPUTS, 2)

    def forward(self, x):
        return self.out(nn.functional.dropout(x.flatten(1), 0.5, self.training))


class InPlace(Functional):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        x = 1 * x.flatten(1)
        self.drop(x)  # of use for what it does to its input
        return self.out(x)


OTHERWISE = {
    "a function": (Functional, Work()), "clipped": (dropping, Work(example_norm=1.0)),
    "in place": (InPlace, Work()),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_draws_otherwise_is_computed_one_by_one(name):
    build, work = OTHERWISE[name]
    learner = Learner(problem(build), work)
    assert not learner.together
    one, other = (learner.updates([0], Key.from_seed(k))[0] for k in range(2))
    assert np.abs(one - other).max() > 1e-3 * np.abs(one).max()
