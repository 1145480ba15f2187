"""Updates of any model, loss and data are those of torch's own straightforward training."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from randquant.aggregation import clip_to_norm
from randquant.channels import Key
from randquant.local_training import Evaluation, Learner, Work, make_problem
from randquant.local_training import client as learner_module

KEY = Key.from_seed(5)
SIZES = (6, 3, 9, 1)


class Words(nn.Module):
    """Integer features: the mean of embeddings, tied to the output's matrix."""

    def __init__(self):
        super().__init__()
        self.embedding, self.between = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.output = nn.Linear(4, 7, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(self.between(self.embedding(x).mean(dim=1)).tanh())


class Residual(nn.Module):
    """A forward pass of its own; one layer that it never uses."""

    def __init__(self):
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(16, 5)
        self.unused, self.scale = nn.Linear(2, 2), nn.Parameter(torch.tensor(0.5))
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x):
        x = self.flatten(x)
        return self.linear(x + self.scale * x.tanh()) * self.factor


class Branching(nn.Module):
    """What it computes depends on the numbers, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x):
        x = x.flatten(1)
        return torch.stack([self.left(r) if r.sum() > 0 else self.right(r) for r in x])


class Two(nn.Module):
    """Two inputs, a batch norm that stays as it is, and attention, which draws no numbers."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.norm = nn.Linear(3, 4), nn.Linear(2, 4), nn.BatchNorm1d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.output = nn.Linear(4, 5)

    def forward(self, x, y):
        both = torch.stack([self.norm(self.left(x)), self.right(y)], dim=1)
        return self.output(self.attention(both, both, both)[0].mean(1))


class Viewing(nn.Module):
    """It takes what its convolution gives to lie row by row in memory."""

    def __init__(self):
        super().__init__()
        self.convolution, self.output = nn.Conv2d(1, 3, 3), nn.Linear(12, 5)

    def forward(self, x):
        return self.output(self.convolution(x).view(len(x), -1))


class Centred(nn.Module):
    """Its examples have an influence on each other, which those between 0 and 1 do not show."""

    def __init__(self):
        super().__init__()
        self.flatten, self.linear = nn.Flatten(), nn.Linear(16, 5)

    def forward(self, x):
        x = self.flatten(x)
        return self.linear(x - x.mean(0).clamp(max=0))


class Keeping(nn.Flatten):
    """It keeps a tensor of a call."""

    def forward(self, x):
        self.kept = super().forward(x)
        return self.kept


def images():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 5),
    )  # fmt: skip


def per_pixel():
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.SiLU(), nn.Conv2d(6, 3, 1))


def normalised():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Linear(6, 5))


def plain(outputs=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, outputs))


def pictures(rng, count):
    return rng.normal(size=(count, 1, 4, 4)).astype(np.float32)


def pairs(rng, count):
    return tuple(rng.normal(size=(count, many)).astype(np.float32) for many in (3, 2))


def integers(classes, *shape):
    return lambda rng, count: rng.integers(0, classes, (count, *shape))


def numbers(*shape):
    return lambda rng, count: rng.normal(size=(count, *shape)).astype(np.float32)


def ignored(rng, count):
    return np.where(np.arange(count) % 3 == 1, -100, rng.integers(0, 5, count))


def bits(many):
    return lambda rng, count: rng.integers(0, 2, (count, many)).astype(np.float32)


CROSS, BINARY = functional.cross_entropy, functional.binary_cross_entropy_with_logits
TASKS = {
    "softmax": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 5)),
        pictures,
        integers(5),
        CROSS,
        {},
    ),
    "words": (Words, integers(7, 3), integers(7), CROSS, {}),
    "residual": (Residual, pictures, integers(5), CROSS, {}),
    "branching": (Branching, pictures, integers(5), CROSS, {}),
    "images": (images, pictures, integers(5), CROSS, {}),
    "per pixel": (per_pixel, pictures, integers(3, 4, 4), CROSS, {}),
    "regression": (lambda: plain(2), pictures, numbers(2), functional.mse_loss, {}),
    "many labels": (plain, pictures, bits(5), BINARY, {}),
    "one label": (lambda: plain(1), pictures, bits(1), BINARY, {}),
    "smoothed": (plain, pictures, integers(5), nn.CrossEntropyLoss(label_smoothing=0.2), {}),
    "weighted": (plain, pictures, integers(5), nn.CrossEntropyLoss(torch.arange(1.0, 6)), {}),
    "head": (plain, pictures, integers(5), CROSS, {"parts": ("3.*",)}),
    "body frozen": (images, pictures, integers(5), CROSS, {"frozen": ("0.*", "1.*")}),
    "frozen": (normalised, pictures, integers(5), CROSS, {"buffers": "frozen"}),
}
MORE = {
    "two inputs": (Two, pairs, integers(5), CROSS, {"buffers": "frozen"}),
    "viewing": (Viewing, pictures, integers(5), CROSS, {}),
    "centred": (Centred, pictures, integers(5), CROSS, {}),
    "keeping": (
        lambda: nn.Sequential(Keeping(), nn.Linear(16, 5)),
        pictures,
        integers(5),
        CROSS,
        {},
    ),
    "ignored": (plain, pictures, ignored, nn.CrossEntropyLoss(label_smoothing=0.1), {}),
    "viewed": (
        per_pixel,
        pictures,
        numbers(3, 4, 4),
        lambda o, t: (o - t).view(-1).abs().mean(),
        {},
    ),
}
ALONE = ("branching", "centred", "keeping", "smoothed", "weighted", "ignored", "viewed")
"""Whose clients cannot be computed together."""


def task(name):
    """A problem, and each client's tensors."""
    build, features, targets, loss, options = (TASKS | MORE)[name]
    rng = np.random.default_rng(3)
    torch.manual_seed(1)
    model = build()
    clients = [(features(rng, size), targets(rng, size)) for size in SIZES]
    return make_problem(model, clients, loss=loss, test=clients[2], **options), clients


def oracle(problem, pair, rate, epochs):
    """Work SGD by torch.optim, on all of a client's examples; the update as one vector."""
    model = copy.deepcopy(problem.model).train()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.eval()
    weights = dict(model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.SGD([weights[name] for name in problem.parts], lr=rate)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = problem.loss(model(torch.from_numpy(pair[0])), torch.from_numpy(pair[1]))
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    parts = [(before[name] - weights[name].detach()).reshape(-1) for name in problem.parts]
    left = set(weights) - set(problem.parts)
    assert all(torch.equal(before[name], weights[name]) for name in left)
    return torch.cat(parts).numpy(), losses[0]


@pytest.mark.parametrize("name", TASKS)
def test_gradients_and_local_epochs_are_those_of_torch(name):
    problem, clients = task(name)
    for local, rate, epochs in ((Work(), 1.0, 1), (Work(epochs=3, learning_rate=0.1), 0.1, 3)):
        learner = Learner(problem, local)
        updates, losses = learner.updates([2, 0, 3])
        assert updates.shape == (3, problem.dimension)
        for client, update, loss in zip([2, 0, 3], updates, losses, strict=True):
            expected, first = oracle(problem, clients[client], rate, epochs)
            assert np.abs(update - expected).max() < 2e-6
            assert loss == pytest.approx(first, rel=1e-5)
            assert np.abs(update).max() > 1e-4
    state = dict(learner._copies.shared().state_dict())
    assert all(torch.equal(t, state[n]) for n, t in problem.model.state_dict().items())


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("name", [*TASKS, *MORE])
def test_updates_are_the_same_where_clients_are_computed_together(name, monkeypatch):
    problem, _ = task(name)
    auto = Work(epochs=2, learning_rate="auto", batch=4)
    for local in (Work(), Work(epochs=2, learning_rate=0.1, batch=4), auto):
        together = Learner(problem, local)
        assert (together._vectorized is None) == (name in ALONE)
        monkeypatch.setattr(learner_module, "LIGHT_PASS_NUMBERS", 0)
        alone = Learner(problem, local)
        monkeypatch.setattr(learner_module, "_is_gpu", lambda device: True)  # done on the CPU
        gpu = Learner(problem, local)
        monkeypatch.undo()
        assert alone._vectorized is None or name == "softmax"
        assert gpu.on_gpu
        assert name in ALONE or gpu.groups(list(range(30)), 1) == [list(range(30))]
        weights, found = together.parameters(), []
        for each in (alone, together, gpu):
            for changed in (np.float32(0.9) * weights, weights):
                each.load(changed)
                assert np.array_equal(each.parameters(), changed)
            found.append(each.updates([0, 1, 2, 3], KEY)[0])
        for other in found[1:]:
            assert np.abs(found[0] - other).max() < (1e-4 if local is auto else 1e-6)


@pytest.mark.parametrize("name", TASKS)
def test_examples_are_clipped_one_by_one(name):
    problem, clients = task(name)
    lengths, norm = [], 0.3
    for by_vmap in (True, False):
        learner = Learner(problem, Work(example_norm=norm))
        assert learner._sequential._by_vmap == (name != "branching")
        learner._sequential._by_vmap &= by_vmap
        for client in (0, 3):
            update, loss = (each[0] for each in learner.updates([client]))
            pairs = [(x[None], y[None]) for x, y in zip(*clients[client], strict=True)]
            rows, losses = zip(*(oracle(problem, pair, 1.0, 1) for pair in pairs), strict=True)
            expected = np.mean([clip_to_norm(row, norm) for row in rows], axis=0)
            assert np.abs(update - expected).max() < 2e-6
            assert loss == pytest.approx(np.mean(losses), rel=1e-4)
            lengths += [np.linalg.norm(row) for row in rows]
    assert max(lengths) > norm


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("name", TASKS)
def test_evaluation_is_that_of_torch(name):
    problem, clients = task(name)
    features, targets = (torch.from_numpy(part) for part in clients[2])
    model = problem.model.eval()
    with torch.no_grad():
        output = model(features)
    found = Learner(problem).evaluate()
    assert found.loss == pytest.approx(float(problem.loss(output, targets)), rel=1e-5)
    if name == "regression":
        assert found.accuracy is None
    elif problem.loss is BINARY:  # each of them is right or wrong
        assert found.accuracy == pytest.approx(
            float(((output > 0) == (targets > 0.5)).float().mean())
        )
    else:
        assert found.accuracy == float((output.argmax(1) == targets).double().mean())
    nothing = make_problem(problem.model, clients, loss=problem.loss, buffers=problem.buffers)
    assert Learner(nothing).evaluate() == Evaluation(None, None)


def test_a_forward_pass_of_ones_own_is_not_taken_for_softmax_regression():
    class Scaled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    rng = np.random.default_rng(0)
    data = [(pictures(rng, 4), rng.integers(0, 5, 4)) for _ in range(3)]
    layers = nn.Flatten(), nn.Linear(16, 5)
    hooked = nn.Sequential(*copy.deepcopy(layers))
    hooked.register_forward_hook(lambda module, inputs, output: 2 * output)
    for model in (Scaled(*layers), hooked, nn.Sequential(nn.Flatten(2), nn.Flatten(), layers[1])):
        problem = make_problem(model, data)
        update = Learner(problem).updates([1])[0][0]
        assert np.abs(update - oracle(problem, data[1], 1.0, 1)[0]).max() < 1e-6


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("rate", ["auto", None, 0.5])
def test_small_regressions_are_computed_together_wherever_they_start(rate):
    """Where a client has nearly arrived, lengths by curvature differ in ever more digits."""
    rng = np.random.default_rng(0)
    data = [(numbers(2)(rng, size), numbers(1)(rng, size)) for size in SIZES]
    for seed in range(20):
        torch.manual_seed(seed)
        problem = make_problem(nn.Linear(2, 1), data, loss=functional.mse_loss)
        assert Learner(problem, Work(epochs=5, learning_rate=rate))._vectorized is not None
