"""Adapters: nothing changes at first, nothing else is trained, and they add what is said."""

import pytest
import torch
from torch import nn

from randquant_papers.text.adapters import with_adapters
from randquant_papers.text.directions import public_directions, with_directions

CROSS = nn.functional.cross_entropy


def example(rows=300):
    """A model whose inputs differ a hundredfold in size, and its examples."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 4, generator=draw) * torch.tensor([0.1, 1.0, 3.0, 10.0])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, features, torch.randint(3, (rows,), generator=draw)


def directed(model, rank, layers=None):
    _, features, targets = example()
    return with_directions(model, public_directions(model, layers, rank, features, targets))


def product(layer):
    """What an adapter adds to its layer's weight."""
    if hasattr(layer, "down"):
        return layer.up @ layer.down
    return layer.outputs @ layer.along @ layer.inputs


@pytest.mark.parametrize(
    ("adapt", "trained"),
    [
        (
            lambda model: with_adapters(model, 2),
            {"0.down": (2, 4), "0.up": (5, 2), "2.down": (2, 5), "2.up": (3, 2)},
        ),
        (lambda model: directed(model, 2, ["*"]), {"0.along": (5, 2), "2.along": (3, 2)}),
        (lambda model: directed(model, None, ["0"]), {"0.along": (5, 4)}),
    ],
    ids=["two matrices", "directions", "all directions"],
)
def test_an_adapter_adds_a_product_and_nothing_at_first(adapt, trained):
    model, features, _ = example()
    adapted = adapt(model)
    assert torch.equal(model(features), adapted(features))
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    found = {n: p for n, p in adapted.named_parameters() if p.requires_grad}
    assert {name: each.shape for name, each in found.items()} == trained
    with torch.no_grad():
        for each in found.values():
            each.normal_(generator=torch.Generator().manual_seed(3))
        for name in {name[0] for name in trained}:
            plain, layer = model[int(name)], adapted[int(name)]
            given = torch.randn(7, plain.in_features)
            assert torch.equal(layer.weight, plain.weight + product(layer))
            read = nn.functional.linear(given, layer.weight, plain.bias)
            assert torch.allclose(layer(given), read, rtol=1e-4, atol=1e-4)
            assert not torch.allclose(plain(given), read, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("training", [True, False])
def test_layers_whose_weights_torch_reads_without_calling_them_are_adapted_too(training):
    """Attention reads its last layer's weight, and in evaluation all layers'."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        adapted = with_adapters(model, 2).train(training)
        features = torch.randn(3, 5, 8)
        for name, each in adapted.named_parameters():
            if name.endswith(".up"):
                nn.init.normal_(each)
    merged = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    weights = dict(model.state_dict())
    for name in ("self_attn.out_proj", "linear1", "linear2"):
        weights[f"{name}.weight"] = adapted.get_submodule(name).weight
    merged.load_state_dict(weights)
    with torch.set_grad_enabled(training):
        found = adapted(features)
        assert torch.allclose(found, merged(features), rtol=1e-4, atol=1e-5)
    if training:
        found.square().sum().backward()
        assert adapted.self_attn.out_proj.up.grad.abs().max() > 0


@pytest.mark.parametrize("name", ["0", "2"])
def test_directions_turn_mean_squares_into_identities(name):
    """Against mean squares of single examples, one backward pass each."""
    model, features, targets = example()
    layer = model.get_submodule(name)
    given, slopes = [], []
    layer.register_forward_hook(lambda _, inputs, output: given.append((inputs[0], output)))
    for row, target in zip(features, targets, strict=True):
        loss = CROSS(model(row[None]), target[None])
        slopes.append(torch.autograd.grad(loss, given[-1][1])[0].double())
    read = torch.cat([inputs.detach().double() for inputs, _ in given])
    slope = torch.cat(slopes)
    squares = [each.T @ each / len(each) for each in (read, slope)]
    layer._forward_hooks.clear()
    inputs, outputs = (
        each.double()
        for each in public_directions(
            model, [name], layer.in_features, features, targets, damping=0
        )[name]
    )
    identity = torch.eye(layer.in_features, dtype=torch.float64)
    assert torch.allclose(inputs @ squares[0] @ inputs.T, identity, atol=1e-3)
    # Slopes at scores of all classes sum to zero: there is one direction of which nothing is felt.
    felt = torch.linalg.eigvalsh(outputs @ squares[1] @ outputs)
    silent = 1 if name == "2" else 0
    assert torch.allclose(felt[silent:], torch.ones(1, dtype=torch.float64), atol=1e-3)
    assert (felt[:silent].abs() < 1e-3).all()


@pytest.mark.parametrize(
    ("adapt", "model", "arguments", "message"),
    [
        (with_adapters, example()[0], (1, ["1"]), "linear layers' names"),
        (with_adapters, example()[0], (3,), "narrower"),
        (with_adapters, example()[0], (0,), "rank"),
        (with_adapters, nn.Sequential(nn.ReLU()), (1,), "without any"),
        (with_adapters, nn.Linear(3, 3), (1,), "one linear layer"),
        (directed, example()[0], (1, ["1"]), "linear layers' names"),
        (directed, example()[0], (5, ["0"]), "no more than its inputs"),
        (directed, example()[0], (0, ["0"]), "rank"),
    ],
)
def test_what_cannot_be_adapted_is_refused(adapt, model, arguments, message):
    with pytest.raises(ValueError, match=message):
        adapt(model, *arguments)


class Attending(nn.Module):
    """Attention, whose last layer's weights torch takes without calling it."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 1), nn.Linear(4, 3)

    def forward(self, features):
        return self.head(self.attention(features, features, features)[0])


def test_layers_that_are_not_called_are_refused_by_name():
    _, features, targets = example(10)
    with pytest.raises(ValueError, match=r"calls, got attention\.out_proj, of which"):
        public_directions(Attending(), None, None, features, targets)
    assert list(public_directions(Attending(), ["head"], None, features, targets)) == ["head"]
