"""Adapters along directions: nothing changes at first, and their coordinates are even."""

import pytest
import torch
from torch import nn

from randquant_papers.text.directions import Directions, public_directions, with_directions

CROSS = nn.functional.cross_entropy


def example(rows=300):
    """A model whose inputs differ a hundredfold in size, and its examples."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 4, generator=draw) * torch.tensor([0.1, 1.0, 3.0, 10.0])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, features, torch.randint(3, (rows,), generator=draw)


def test_an_adapted_model_computes_the_same_at_first_and_leaves_the_model_alone():
    model, features, targets = example()
    found = public_directions(model, ["*"], 2, features, targets)
    adapted = with_directions(model, found)
    assert torch.equal(model(features), adapted(features))
    assert all(each.requires_grad and each.grad is None for each in model.parameters())
    trained = {n: p.shape for n, p in adapted.named_parameters() if p.requires_grad}
    assert trained == {"0.along": (5, 2), "2.along": (3, 2)}


@pytest.mark.parametrize("rank", [2, None])
def test_a_layer_whose_weight_is_read_has_what_is_added_in_it(rank):
    model, features, targets = example()
    adapted = with_directions(model, public_directions(model, ["0"], rank, features, targets))
    with torch.no_grad():
        adapted[0].along.normal_(generator=torch.Generator().manual_seed(3))
        read = nn.functional.linear(features, adapted[0].weight, adapted[0].bias)
        assert torch.allclose(adapted[0](features), read, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model[0](features), read, rtol=0.1, atol=0.1)


def test_an_adapter_adds_the_product_of_three_matrices():
    draw = torch.Generator().manual_seed(2)
    read, added, along, features = (
        torch.randn(shape, generator=draw) for shape in ((2, 4), (5, 5), (5, 2), (7, 4))
    )
    model, *_ = example()
    layer = with_directions(model, {"0": Directions(read, added)})[0]
    with torch.no_grad():
        layer.along.copy_(along)
        expected = features @ (model[0].weight + added @ along @ read).T + model[0].bias
        assert torch.allclose(layer(features), expected, rtol=1e-5, atol=1e-5)


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
    ("layers", "rank", "message"),
    [(["1"], 1, "linear layers' names"), (["0"], 5, "no more than its inputs"), (["0"], 0, "rank")],
)
def test_what_cannot_be_adapted_is_refused(layers, rank, message):
    model, features, targets = example(3)
    with pytest.raises(ValueError, match=message):
        public_directions(model, layers, rank, features, targets)


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
