"""Scores by client: against each client alone, whatever the batch."""

import math

import pytest
import torch
from torch import nn

from randquant_papers.text.evaluation import evaluate


@pytest.fixture
def clients():
    draw = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(0, 5, (size, 6), generator=draw),
            torch.randint(0, 5, (size, 6), generator=draw),
        )
        for size in (7, 1, 20)
    ]


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
    assert found.examples.tolist() == [42, 6, 120]
    with torch.no_grad():
        for number, (texts, following) in enumerate(clients):
            output = model(texts)
            expected = float(nn.functional.cross_entropy(output, following))
            assert math.isclose(found.bits[number] * math.log(2), expected, rel_tol=1e-5)
            right = (output.argmax(1) == following).double().mean()
            assert found.accuracy[number] == pytest.approx(float(right), rel=1e-12, abs=0)
