"""A client's steps in a training function of one's own: those of `train`'s clients."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import randquant as rq
from randquant.local_training import Learner, Work, make_problem


def data(samples=9):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 6, generator=generator), torch.arange(samples) % 3


@pytest.mark.parametrize("hidden", [False, True])
def test_they_are_those_of_a_client_of_train(hidden):
    torch.manual_seed(0)
    model = (
        nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)) if hidden else nn.Linear(6, 3)
    )
    learner = Learner(make_problem(model, [data()]), Work(None, 5, "auto"))
    (update,), (loss,) = learner.updates([0])
    before = learner.parameters()
    assert rq.local_steps(model, [data()]).loss == pytest.approx(loss, rel=1e-6)
    after = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).numpy()
    assert np.allclose(before - after, update, rtol=1e-3, atol=1e-5)


def test_frozen_parts_the_mode_and_the_generator_stay_as_they_are():
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)).train()
    model[0].requires_grad_(False)
    frozen, trained = model[0].weight.clone(), model[2].weight.clone()
    rq.local_steps(model, [data()], epochs=2)
    assert model.training
    assert torch.equal(model[0].weight, frozen)
    assert not torch.equal(model[2].weight, trained)


def test_steps_with_dropout_lower_the_loss_as_both_outputs_have_the_same_zeros():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3))
    features, labels = data(60)
    first = rq.local_steps(model, [(features, labels)], epochs=40)
    with torch.no_grad():
        last = functional.cross_entropy(model.eval()(features), labels)
    assert float(last) < 0.75 * first.loss


def test_a_model_of_two_inputs_with_a_batch_norm_sees_each_batch_once():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.of_x, self.of_z, self.norm = nn.Linear(4, 8), nn.Linear(3, 8), nn.BatchNorm1d(8)
            self.out = nn.Linear(8, 2)

        def forward(self, x, z):
            return self.out(torch.relu(self.norm(self.of_x(x) + self.of_z(z))))

    torch.manual_seed(0)
    model, features = Two(), (torch.randn(40, 4), torch.randn(40, 3))
    labels = (features[0][:, 0] + features[1][:, 0] > 0).long()
    first = rq.local_steps(model, [(features, labels)], epochs=20)
    assert int(model.norm.num_batches_tracked) == 20
    with torch.no_grad():
        assert float(functional.cross_entropy(model.eval()(*features), labels)) < 0.3 * first.loss


@pytest.mark.parametrize(
    ("loss", "targets", "guess"),
    [
        (functional.cross_entropy, torch.tensor([0, 2]), math.log(3)),
        (nn.CrossEntropyLoss(label_smoothing=0.1), torch.tensor([0, 2]), math.log(3)),
        (functional.cross_entropy, torch.full((2, 3), 1 / 3), math.log(3)),
        (
            lambda output, targets: functional.cross_entropy(output, torch.tensor(targets)),
            [0, 2],
            None,
        ),
        (nn.BCEWithLogitsLoss(), torch.zeros(2, 3), math.log(2)),
        (functional.mse_loss, torch.zeros(2, 3), None),
    ],
)
def test_the_first_loss_is_also_a_share_of_a_guesses(loss, targets, guess):
    model = nn.Linear(6, 3)
    features = torch.ones(2, 6)
    first = rq.local_steps(model, [(features, targets)], loss)
    assert first.relative == (1.0 if guess is None else first.loss / guess)
    if guess is not None:
        assert make_problem(model, [(features, targets)], loss=loss).uniform_loss == guess


def test_batches_of_a_loader_are_used_in_every_epoch():
    seen = []

    def loss(output, targets):
        seen.append(len(targets))
        return functional.cross_entropy(output, targets)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=4)
    rq.local_steps(nn.Linear(6, 3), loader, loss, epochs=2)
    # Once for the gradient, and once for the curvature.
    assert seen == [each for size in [4, 4, 1] * 2 for each in (size, size)]


@pytest.mark.parametrize(
    ("model", "batches", "epochs", "said"),
    [
        (nn.Linear(6, 3).requires_grad_(False), [data()], 1, "parameters that require a gradient"),
        (nn.Linear(6, 3), [], 1, "batches of a client's data"),
        (nn.Linear(6, 3), [data()], 0, "epochs"),
    ],
)
def test_what_cannot_be_trained_is_refused(model, batches, epochs, said):
    with pytest.raises(ValueError, match=said):
        rq.local_steps(model, batches, epochs=epochs)
