"""Scores by client: against each client alone, whatever the batch."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from randquant.training.data.datasets import Dataset
from randquant.training.evaluation import clients_tested, evaluate


@pytest.fixture
def clients():
    draw = torch.Generator().manual_seed(1)
    return {
        name: (
            torch.randint(0, 5, (size, 6), generator=draw),
            torch.randint(0, 5, (size, 6), generator=draw),
        )
        for name, size in {"a": 7, "b": 1, "c": 20}.items()
    }


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Embedding(5, 5)

    def forward(self, texts):
        return self.layer(texts).transpose(1, 2)


@pytest.mark.parametrize("batch", [1, 3, 256])
def test_each_client_has_the_scores_of_its_own_predictions(clients, batch):
    model = Scores().train()
    found = evaluate(model, clients, batch=batch)
    assert model.training
    assert found.names == ("a", "b", "c")
    assert found.examples.tolist() == [42, 6, 120]
    with torch.no_grad():
        for number, (texts, following) in enumerate(clients.values()):
            output = model(texts)
            expected = float(nn.functional.cross_entropy(output, following))
            assert math.isclose(found.bits[number] * math.log(2), expected, rel_tol=1e-5)
            right = (output.argmax(1) == following).double().mean()
            assert found.accuracy[number] == pytest.approx(float(right), rel=1e-12, abs=0)
    assert "3 clients, accuracy" in repr(found)


def test_a_regression_has_no_accuracy():
    data = [(torch.ones(4, 2), torch.zeros(4, 1))]
    found = evaluate(nn.Linear(2, 1), data, loss=nn.functional.mse_loss)
    assert found.accuracy is None
    assert "accuracy" not in repr(found)


def test_test_data_are_grouped_by_their_writers():
    features, labels = np.arange(8.0, dtype=np.float32).reshape(4, 2), np.arange(4)
    data = Dataset("x", features, labels, features, labels, 4, test_writers=np.array([1, 0, 1, 1]))
    groups = clients_tested(data)
    assert {name: rows[1].tolist() for name, rows in groups.items()} == {"0": [1], "1": [0, 2, 3]}
    assert list(clients_tested(Dataset("x", features, labels, features, labels, 4))) == ["all"]
