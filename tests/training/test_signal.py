"""What is measured on public data for the planner, against formulas."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from randquant.training import signal
from randquant.training.local import Local
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


def rank_of(hessian):
    sizes = torch.linalg.eigvalsh(hessian.double())
    return float(sizes.sum() / sizes[-1])


def test_the_rank_is_that_of_the_known_hessian(monkeypatch):
    model, clients, features, _ = regression()
    expected = rank_of(features.T @ features)
    found = public_signal(model, clients, 1.0, loss=SQUARED, examples=2000)
    assert found.effective_rank == pytest.approx(expected, rel=0.25)
    monkeypatch.setattr(signal, "PROBES", 4000)
    monkeypatch.setattr(signal, "MOST_PROBES", 4000)
    found = public_signal(model, clients, 1.0, loss=SQUARED, examples=2000)
    assert found.effective_rank == pytest.approx(expected, rel=0.03)


def test_the_trace_is_averaged_until_it_is_known():
    """Of one eigenvalue among 100: a probe errs by 140 %."""
    corner = np.full((100, 100), 0.01)
    used = []

    def product(vector):
        used.append(vector)
        return corner @ vector

    assert signal._trace(product, 100, np.random.default_rng(0)) == pytest.approx(1, rel=0.4)
    assert len(used) == signal.MOST_PROBES
    used.clear()
    signal._trace(lambda v: product(v) * 0 + v, 100, np.random.default_rng(0))
    assert len(used) == signal.PROBES


class Free(nn.Module):
    """Parameters that are its output."""

    def __init__(self, start):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start))

    def forward(self, features):
        return self.weight.expand(len(features), -1)


def test_curvature_downwards_counts_against_the_trace_but_is_not_the_largest():
    """Eigenvalues 8, 6, 6, -10: the largest is 8, not the one that is largest in size."""
    sizes = torch.tensor([4.0, 3, 3, -5])
    found = public_signal(
        Free([1.0, 0, 0, 0]), [(torch.zeros(3, 1), torch.zeros(3, 1))] * 5, 1.0,
        loss=lambda output, _: (sizes * output**2).sum(1).mean(),
    )  # fmt: skip
    assert found.effective_rank == pytest.approx(10 / 8, rel=1e-4)
    assert found.mean_norm == 1.0  # not above the threshold by rounding
    assert found.norms.tolist() == [8.0] * 5


def test_examples_are_drawn_from_all_clients_and_by_the_seed():
    model, clients, *_ = regression(noise=0.0)
    clients = {k: (x * (1 + 3 * (k >= 50)), y) for k, (x, y) in clients.items()}
    everything = public_signal(model, clients, 1.0, loss=SQUARED, examples=2000)
    few = [
        public_signal(model, clients, 1.0, loss=SQUARED, examples=200, seed=k) for k in (0, 1, 0)
    ]
    assert few[0][1:] == few[2][1:] != few[1][1:]
    for found in few:
        assert found.effective_rank == pytest.approx(everything.effective_rank, rel=0.3)


@pytest.mark.parametrize("clip_norm", [0.5, 5.0, 1e3])
def test_the_mean_of_many_is_estimated_from_few(clip_norm):
    """By products of different clients' clipped gradients, whose expectation it is."""
    model, clients, *_ = regression(200, 40, noise=12.0)
    slopes = torch.stack([-2 * (x * y).mean(0) for x, y in clients.values()]).double()
    norms = slopes.norm(dim=1)
    clipped = slopes * (clip_norm / norms).clamp(max=1)[:, None]
    products = clipped @ clipped.T
    expected = float(products.sum() - products.trace()) / (40 * 39)
    found = public_signal(model, clients, clip_norm, loss=SQUARED, examples=20)
    assert found.mean_norm**2 == pytest.approx(expected, rel=1e-4)
    assert np.allclose(found.norms, norms, rtol=1e-4, atol=0)
    assert expected < 0.9 * float(clipped.mean(0).norm()) ** 2


def test_local_steps_are_what_a_client_sends():
    model, clients, *_ = regression()
    one = public_signal(model, clients, 1e3, loss=SQUARED)
    local = Local(batch=5, epochs=3, learning_rate=1e-4)
    many = public_signal(model, clients, 1e3, loss=SQUARED, local=local)
    assert np.allclose(many.norms, 12 * 1e-4 * one.norms, rtol=0.1, atol=0)
    assert many.mean_norm == pytest.approx(12 * 1e-4 * one.mean_norm, rel=0.05)


def test_the_model_and_the_generators_stay_as_they_are():
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    _, clients, *_ = regression()
    before, state = [each.clone() for each in model.parameters()], torch.get_rng_state()
    with torch.no_grad():
        found = [public_signal(model, clients, 1e3, loss=SQUARED, seed=3) for _ in range(2)]
    assert found[0][1:] == found[1][1:]
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(each.grad is None for each in model.parameters())


def test_the_hessian_is_that_of_evaluation_and_of_trained_parameters():
    model, clients, *_ = regression()
    dropped = nn.Sequential(nn.Dropout(0.9), model)
    one, other = (
        public_signal(each, clients, 1e3, loss=SQUARED, examples=2000).effective_rank
        for each in (model, dropped)
    )
    assert one == pytest.approx(other, rel=1e-3)
    both = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 1, bias=False))
    nn.init.eye_(both[0].weight)
    read = public_signal(
        both, clients, 1e3, loss=SQUARED, local=Local(frozen=["0.*"]), examples=2000
    )
    assert read.effective_rank == pytest.approx(one, rel=1e-3)


def test_one_parameter_has_rank_one():
    _, clients, *_ = regression()
    clients = {k: (x[:, :1], y) for k, (x, y) in clients.items()}
    found = public_signal(nn.Linear(1, 1, bias=False), clients, 1.0, loss=SQUARED, examples=2000)
    assert found.effective_rank == 1


class Reads(nn.Module):
    """Words through a recurrent layer or attention, and a score of each class for every word."""

    def __init__(self, layer):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.words, self.layer, self.head = nn.Embedding(9, 8), layer(), nn.Linear(8, 9)

    def forward(self, texts):
        states = self.layer(self.words(texts))
        return self.head(states[0] if isinstance(states, tuple) else states).transpose(1, 2)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(8, 8, batch_first=True),
        lambda: nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True),
    ],
    ids=["recurrent", "attention"],
)
def test_recurrent_layers_and_attention_have_second_derivatives(layer):
    model = Reads(layer)
    text = torch.arange(6, dtype=torch.int16).repeat(40, 1)
    clients = {k: (text[k::10], text[k::10].long()) for k in range(10)}
    found = public_signal(model, clients, 1.0, examples=2)
    assert 1 <= found.effective_rank < 1000


def test_what_cannot_be_measured_is_refused_in_a_sentence():
    model, clients, features, targets = regression()

    def refused(sentence, model=model, clients=clients, clip_norm=1.0, **how):
        with pytest.raises(ValueError, match=sentence):
            public_signal(model, clients, clip_norm, **{"loss": SQUARED, **how})

    refused(r"^Expected number of public clients >= 2, got", clients={"a": clients[0]})
    refused(r"^Expected clip_norm > 0", clip_norm=0.0)
    refused(r"^Expected buffers to be one of refuse, frozen", local=Local(buffers="server"))
    refused(r"^Expected a parameter to train, got none",
            copy.deepcopy(model).requires_grad_(False))  # fmt: skip
    opposed = {"a": (features, targets), "b": (features, -targets)}
    refused(r"^Expected public clients whose updates agree, got 2", clients=opposed)
    refused(r"^Expected a loss that curves up, got a Hessian with trace -",
            loss=lambda output, y: -SQUARED(output, y))  # fmt: skip
    refused(r"^Expected a loss that curves up, got a Hessian with trace 0:",
            model=Free([1.0]), loss=lambda output, _: (output + 0 * output**2).mean())  # fmt: skip
    refused(r"^Expected a model and a loss with second derivatives, got none: torch says that ",
            loss=lambda output, y: (output * y).mean())  # fmt: skip
    far = Local(epochs=9, learning_rate=1e30)
    refused(r"^Client 0: Expected a finite update, got nan or infinities", local=far)


def test_an_eigenvalue_that_is_not_found_is_said():
    with pytest.raises(ValueError, match=r"^Expected a Hessian whose largest eigenvalue can be"):
        signal._largest(lambda vector: np.zeros(40), np.ones(40))
