"""Adapters: nothing changes at first, nothing else is trained, and they fit what layers can."""

import numpy as np
import pytest
import torch
from torch import nn

import randquant as rq
from randquant_papers.text.adapters import with_adapters


def small():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def test_an_adapted_model_computes_the_same_at_first_and_leaves_the_model_alone():
    model, features = small(), torch.randn(4, 6)
    adapted = with_adapters(model, 2)
    assert torch.equal(model(features), adapted(features))
    assert all(each.requires_grad for each in model.parameters())
    assert [n for n, p in adapted.named_parameters() if p.requires_grad] == [
        "0.down", "0.up", "2.down", "2.up",
    ]  # fmt: skip


def test_an_adapter_adds_the_product_of_its_matrices():
    adapted = with_adapters(nn.Sequential(nn.Linear(6, 5)), 2, "0")
    layer = adapted[0]
    with torch.no_grad():
        layer.up.copy_(torch.arange(10.0).reshape(5, 2))
        features = torch.randn(7, 6)
        full = layer.layer.weight + layer.up @ layer.down
        expected = features @ full.T + layer.layer.bias
        assert torch.allclose(adapted(features), expected, rtol=1e-5, atol=1e-5)


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


def test_only_adapters_are_trained_and_sent():
    draw = np.random.Generator(np.random.Philox(3))
    clients = [
        (draw.normal(size=(5, 6)).astype(np.float32), draw.integers(0, 3, 5)) for _ in range(12)
    ]
    model = with_adapters(small(), 1, ["2"])
    mechanism = rq.VectorMechanism(rq.rqm(1.0, 1.0, 2, 0.5), clip_norm=1.0)
    run = rq.train(
        model,
        clients,
        mechanism=mechanism,
        rounds=2,
        cohort=12,
        server=rq.Server(learning_rate=1.0),
        seed=0,
    )
    changed = {
        name for name, value in run.model.state_dict().items()
        if not torch.equal(value, model.state_dict()[name])
    }  # fmt: skip
    assert changed and changed <= {"2.down", "2.up"}  # noqa: PT018


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (small(), (1, ["1"]), "linear layers' names"),
        (small(), (3,), "narrower"),
        (small(), (0,), "rank"),
        (nn.Sequential(nn.ReLU()), (1,), "without any"),
        (nn.Linear(3, 3), (1,), "one linear layer"),
    ],
)
def test_what_cannot_be_adapted_is_refused(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        with_adapters(model, *arguments)
