"""What is measured on public data for the planner, against formulas."""

import numpy as np
import pytest
import torch
from torch import nn

from randquant.training import signal
from randquant.training.models import build
from randquant.training.signal import public_signal

SQUARED = nn.functional.mse_loss


def regression(rows=2000, clients=100, noise=0.1):
    """A line, whose Hessian is known, and its examples in clients' portions."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(rows, 6, generator=draw) * torch.tensor([3.0, 1, 1, 0.5, 0.1, 0.1])
    targets = features @ torch.randn(6, 1, generator=draw)
    targets = targets + noise * torch.randn(rows, 1, generator=draw)
    model = nn.Linear(6, 1, bias=False)
    nn.init.zeros_(model.weight)
    portions = {k: (features[k::clients], targets[k::clients]) for k in range(clients)}
    return model, portions, features, targets


def test_the_curvature_is_that_of_the_known_hessian(monkeypatch):
    model, clients, features, _ = regression()
    sizes = torch.linalg.eigvalsh(2 * features.double().T @ features.double() / len(features))
    monkeypatch.setattr(signal, "PROBES", 4000)
    found = public_signal(model, clients, 1.0, loss=SQUARED, examples=2000)
    assert found.curvature == pytest.approx(float(sizes[-1]), rel=0.01)
    assert found.effective_rank == pytest.approx(float(sizes.sum() / sizes[-1]), rel=0.02)


def test_few_examples_give_nearly_the_same():
    model, clients, *_ = regression()
    found = [public_signal(model, clients, 1.0, loss=SQUARED, examples=n) for n in (300, 2000)]
    assert found[0].curvature == pytest.approx(found[1].curvature, rel=0.2)
    again = public_signal(model, clients, 1.0, loss=SQUARED, examples=300)
    assert again[1:] == found[0][1:]


@pytest.mark.parametrize("clip_norm", [0.5, 5.0, 1e3])
def test_the_mean_of_many_is_estimated_from_few(clip_norm):
    """Clipped gradients by formula; without the correction, chance adds a sixth and more."""
    model, clients, *_ = regression(20_000, 4000, noise=5.0)
    slopes = torch.stack([-2 * (x * y).mean(0) for x, y in clients.values()]).double()
    norms = slopes.norm(dim=1)
    clipped = slopes * (clip_norm / norms).clamp(max=1)[:, None]
    expected = float(clipped.mean(0).norm())
    squares = []
    for start in range(0, 4000, 40):
        few = {k: clients[k] for k in range(start, start + 40)}
        found = public_signal(model, few, clip_norm, loss=SQUARED, examples=20)
        assert np.allclose(found.norms, norms[start : start + 40], rtol=1e-4)
        squares.append(found.mean_norm**2)
    error = np.std(squares) / len(squares) ** 0.5
    assert np.mean(squares) == pytest.approx(expected**2, abs=4 * error + 2e-3 * expected**2)


def test_the_model_stays_as_it_is_and_frozen_parameters_do_not_count():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    model.train()
    _, clients, *_ = regression()
    before = [each.clone() for each in model.parameters()]
    found = public_signal(model, clients, 1.0, loss=SQUARED)
    assert found.effective_rank <= 5
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(each.grad is None for each in model.parameters())


def test_one_parameter_has_rank_one():
    _, clients, features, _ = regression()
    clients = {k: (x[:, :1], y) for k, (x, y) in clients.items()}
    found = public_signal(nn.Linear(1, 1, bias=False), clients, 1.0, loss=SQUARED, examples=2000)
    assert found.effective_rank == 1
    assert found.curvature == pytest.approx(2 * float((features[:, 0] ** 2).mean()), rel=1e-4)


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_recurrent_layers_and_attention_have_second_derivatives(name):
    torch.manual_seed(0)
    model = build(name, (20,), 90, seed=0)
    text = torch.randint(90, (40, 20), dtype=torch.int16)
    clients = {k: (text[k::10], text[k::10].long()) for k in range(10)}
    found = public_signal(model, clients, 1.0, examples=8)
    assert 1 <= found.effective_rank < 1000


def test_what_cannot_be_measured_is_refused_in_a_sentence():
    model, clients, features, targets = regression()
    with pytest.raises(ValueError, match=r"^Expected number of public clients >= 2, got"):
        public_signal(model, {"a": clients[0]}, 1.0, loss=SQUARED)
    with pytest.raises(ValueError, match=r"^Expected clip_norm > 0"):
        public_signal(model, clients, 0.0, loss=SQUARED)
    opposed = {"a": (features, targets), "b": (features, -targets)}
    with pytest.raises(ValueError, match=r"^Expected public clients whose gradients agree, got 2"):
        public_signal(model, opposed, 1.0, loss=SQUARED)
    with pytest.raises(ValueError, match=r"^Expected a loss that curves up, got a Hessian with"):
        public_signal(model, clients, 1.0, loss=lambda output, y: -SQUARED(output, y))
    with pytest.raises(ValueError, match=r"^Expected a model and a loss with second derivatives"):
        public_signal(model, clients, 1.0, loss=lambda output, y: (output * y).mean())
