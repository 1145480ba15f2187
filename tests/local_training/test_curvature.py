"""Clients' steps: as long as the curvature of their own loss says, and of one length when sent."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from around import Around
from torch import nn
from torch.nn import functional

from randquant.aggregation import ClippedSGD, scale_to_norm, shorten
from randquant.channels import Key
from randquant.local_training import Learner, Work, make_problem, small_step, step_length
from randquant.rounds import UpdatePreparation
from randquant.training import RoundCollector

KEY = Key.from_seed(0)


def clients(number=3, samples=(5, 2, 1), features=(6,), classes=3):
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(samples[k], *features, generator=generator),
            torch.randint(classes, (samples[k],), generator=generator),
        )
        for k in range(number)
    ]


def by_definition(model, data, loss, steps):
    """The end minus the start after steps of |g|^2 / (g'Hg + 1e-3 |g|^2), with H by autograd."""
    features, targets = data
    model = model.double()
    names = [name for name, _ in model.named_parameters()]
    start = [weight.detach().clone() for weight in model.parameters()]
    weights = list(start)

    def output_of(*weights):
        named = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(model, named, (features.double(),))

    for _ in range(steps):
        ready = [weight.detach().requires_grad_() for weight in weights]
        value = loss(output_of(*ready), targets)
        slope = torch.autograd.grad(value, ready)
        square = sum(float((part**2).sum()) for part in slope)
        jacobian: Any = torch.autograd.functional.jvp(output_of, tuple(weights), tuple(slope))[1]
        output = output_of(*weights).detach()
        flat = output.reshape(-1)
        hessian = torch.autograd.functional.hessian(
            lambda z, shape=output.shape: loss(z.reshape(shape), targets), flat
        )
        change = jacobian.reshape(-1)
        length = square / (float(change @ hessian @ change) + 1e-3 * square)
        length = min(length, 2 * float(value.detach()) / square)
        weights = [w - length * part for w, part in zip(weights, slope, strict=True)]
    moved = [end - begun for end, begun in zip(weights, start, strict=True)]
    return torch.cat([part.reshape(-1) for part in moved]).detach()


def unit(vector):
    return vector / vector.norm()


def shortened(model, data, update, guess):
    """By the share f of a guess's loss: along the weights to 2 f of it, then all of it to 6 f."""
    loss = functional.cross_entropy(model(data[0].double()), data[1])
    share = float(loss.detach()) / guess
    here = unit(torch.cat([weight.detach().reshape(-1) for weight in model.parameters()]))
    return min(1.0, 6 * share) * (update - (1 - min(1.0, 2 * share)) * (update @ here) * here)


def encoded(learner, cohort, preparation):
    """What these clients encode in a round."""
    plain, vectors = ClippedSGD(1e30), []

    def noted(vector, key):
        vectors.append(vector.copy())
        return plain.encode(vector, key)

    with ThreadPoolExecutor(1) as pool:
        collect = RoundCollector(learner, Around(plain, noted), pool, 1, None, preparation)
        losses = collect(cohort, KEY, 0).losses
    return np.array(vectors), losses


MODELS = {
    "softmax regression": lambda: nn.Linear(6, 3),
    "flattened": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
    "many at once": lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)),
    "one by one": lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_the_definition_whatever_way_clients_are_computed(name):
    torch.manual_seed(1)
    model = MODELS[name]()
    data = clients()
    problem = make_problem(model, data, loss=functional.cross_entropy)
    learner = Learner(problem, Work(epochs=3, learning_rate="auto"))
    found, losses = encoded(learner, [0, 1, 2], UpdatePreparation(2.0))
    assert np.isfinite(losses).all()
    for row, each in zip(found, data, strict=True):
        whole = -2.0 * unit(by_definition(model, each, functional.cross_entropy, 3))
        wanted = shortened(model, each, whole, math.log(3))
        assert np.abs(row - wanted.numpy()).max() < 0.01


@pytest.mark.parametrize("loss", [functional.mse_loss, functional.smooth_l1_loss])
def test_steps_of_regressions_are_those_of_the_definition(loss):
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(4, 3, generator=generator), torch.randn(4, 1, generator=generator))]
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    learner = Learner(make_problem(model, data, loss=loss), Work(epochs=2, learning_rate="auto"))
    row = learner.updates([0], KEY)[0][0]
    wanted = -by_definition(model, data[0], loss, 2).numpy()
    assert np.abs(row - wanted).max() < 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize("loss", [functional.l1_loss, lambda a, b: Straight.apply(a, b)])
def test_a_loss_without_curvature_is_not_overshot_by_more_than_it_is_high(loss):
    data = [(torch.ones(2, 1), torch.full((2, 1), 30.0))]
    model = nn.Linear(1, 1, bias=False)
    learner = Learner(make_problem(model, data, loss=loss), Work(learning_rate="auto"))
    moved = learner.updates([0], KEY)[0][0]
    assert 0 < abs(moved[0]) <= 2 * 31


class Straight(torch.autograd.Function):
    """The mean distance, whose gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx, output, targets):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(output, targets)
        return (output - targets).abs().mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):  # pyright: ignore[reportIncompatibleMethodOverride]
        output, targets = ctx.saved_tensors
        return slope * (output - targets).sign() / output.numel(), None


@pytest.mark.parametrize("together", [True, False])
def test_dropout_has_the_same_mask_when_outputs_are_compared(together):
    """Otherwise their change would be that of the masks, and steps far too short."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    plain = nn.Sequential(model[0], nn.Identity(), model[2])
    lengths = []
    for each in (model, plain):
        problem = make_problem(each, clients(), loss=functional.cross_entropy)
        learner = Learner(problem, Work(learning_rate="auto", together=together))
        lengths.append(np.linalg.norm(learner.updates([0], KEY)[0][0]))
    assert 0.3 < lengths[0] / lengths[1] < 3


def test_a_client_without_a_gradient_sends_zeros():
    """All its outputs are right already, to the last bit."""
    data = [(torch.ones(2, 1), torch.zeros(2, 1))]
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    work = Work(learning_rate="auto")
    learner = Learner(make_problem(model, data, loss=functional.mse_loss), work)
    assert not encoded(learner, [0], UpdatePreparation(1.0))[0].any()


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 1e30])
def test_updates_of_any_size_are_sent_in_one_length(size):
    update = np.float32(size * np.random.default_rng(0).normal(size=50))
    assert np.linalg.norm(scale_to_norm(update, 0.5)) == pytest.approx(0.5, rel=1e-6)
    assert not scale_to_norm(0 * update, 0.5).any()


@pytest.mark.parametrize("noise", [0.0, 2.0, math.inf])
@pytest.mark.parametrize(
    "share", [0, 1e-30, np.float32(0.1), 0.3, 5, 10**400, math.inf, math.nan, -2, -(10**400)]
)
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-30, 1.0, 1e15])
def test_no_loss_and_no_weights_make_an_update_longer(share, size, noise):
    random = np.random.default_rng(0)
    weights = np.float32(size * random.normal(size=5))
    for update in (*random.normal(size=(8, 5)), weights, -weights):
        before = scale_to_norm(np.float32(update), 2.0)
        found = shorten(before, weights, share, noise)
        assert np.linalg.norm(found) <= 2 * (1 + 1e-6)
        if not 0 <= share < 1:
            assert np.array_equal(found, before)
    assert not shorten(np.zeros(5, np.float32), weights, share, noise).any()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1e-36, 1e-25, 1e-12, 1e12])
def test_updates_are_finite_however_short_or_long_gradients_are(name, size):
    data = [(size * features, labels) for features, labels in clients()]
    torch.manual_seed(0)
    model = MODELS[name]()
    for bias in (weight for weight in model.parameters() if weight.ndim == 1):
        bias.requires_grad_(False)
    parts = tuple(name for name, weight in model.named_parameters() if weight.requires_grad)
    problem = make_problem(model, data, loss=functional.cross_entropy, parts=parts)
    learner = Learner(problem, Work(epochs=5, learning_rate="auto"))
    found, _ = encoded(learner, [0, 1, 2], UpdatePreparation(1.0))
    assert np.isfinite(found).all()


def test_steps_are_bounded():
    one = torch.tensor(1.0)
    assert step_length(one, -one, one * 1e9) == pytest.approx(1000, rel=1e-5)
    assert step_length(one, 0 * one, one) == 2
    assert step_length(0 * one, 0 * one, one) == 0
    assert torch.isfinite(small_step(0 * one, 0 * one))
