"""The server's step is the optimiser's own, and its state survives a file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from randquant.training import OptimizerStep, from_tensors, to_tensors

GUIDE = (Path(__file__).parents[2] / "docs" / "train-settings.md").read_text()


def scheduled(parameters):
    """The guide's own example of a step size that changes."""
    code = re.search(r"(def decaying.*?)\n\n\nrq", GUIDE, re.DOTALL)
    names: dict[str, Any] = {"torch": torch}
    assert code is not None
    exec(code[1], names)
    return names["decaying"](parameters)


SHAPES = [(3, 4), (5,), (2, 1, 2)]
DIMENSION = 21
MINE = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
"""Of a model that a closure holds, of which a copy is trained."""

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.3, betas=(0.8, 0.99)),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.3, weight_decay=0.1, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.3, lr_decay=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "schedule": scheduled,
    "groups": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.1}, {"params": p[1:]}], lr=0.3),
}


def by_hand(make, means, start):
    """torch's own loop: one optimiser that lives through all steps."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    tensors = [
        nn.Parameter(part.clone().reshape(shape))
        for part, shape in zip(torch.from_numpy(start).split(sizes), SHAPES, strict=True)
    ]
    optimizer = make(tensors)
    for mean in means:
        parts = torch.from_numpy(mean).split(sizes)
        for tensor, part, shape in zip(tensors, parts, SHAPES, strict=True):
            tensor.grad = part.clone().reshape(shape)
        optimizer.step()
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_torchs_own_bit_for_bit_and_survive_files(name):
    rng = np.random.default_rng(0)
    start = rng.standard_normal(DIMENSION).astype(np.float32)
    means = [rng.standard_normal(DIMENSION).astype(np.float32) for _ in range(8)]
    server = OptimizerStep(OPTIMIZERS[name], SHAPES)
    parameters, state = start.copy(), server.init()
    for mean in means:
        arrays, text = to_tensors(state)  # as in a checkpoint
        before = {key: array.copy() for key, array in arrays.items()}
        kept = parameters.copy()
        new = server.step(parameters, mean, from_tensors(arrays, text))
        also = server.step(parameters, mean, state)
        assert np.array_equal(parameters, kept)  # what was passed stays as it was
        now, same = to_tensors(state)
        assert same == text
        assert all(np.array_equal(now[key], before[key]) for key in before)
        assert np.array_equal(new[0], also[0])
        parameters, state = new
    assert parameters.tobytes() == by_hand(OPTIMIZERS[name], means, start).tobytes()
    assert not np.array_equal(parameters, start)


class Odd(torch.optim.SGD):
    """Keeps what no file can hold."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["odd"] = object()


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda p: torch.optim.LBFGS(p, lr=0.1), ValueError, "LBFGS, which evaluates the loss"),
        (lambda p: torch.optim.SparseAdam(p, lr=0.1), ValueError, "dense gradients"),
        (lambda p: torch.optim.SGD(p, lr=-1.0), ValueError, "Invalid learning rate"),
        (lambda p: torch.optim.SGD(p, lr=0.1, speed=2), ValueError, "speed"),
        (lambda p: None, TypeError, "Expected server_optimizer to return"),
        (
            lambda p: torch.optim.SGD(MINE, lr=0.1),
            ValueError,
            "of the 3 parameters .* different set of",
        ),
        (lambda p: torch.optim.SGD(p[:2], lr=0.1), ValueError, "SGD of a different set of 2:"),
        (lambda p: torch.optim.SGD([*p, *MINE], lr=0.1), ValueError, "different set of"),
        (
            lambda p: Odd(p, lr=0.1),
            TypeError,
            "state is numbers and tensors, got a object in it",
        ),
    ],
)
def test_what_cannot_step_is_refused_before_anything_is_trained(make, error, sentence):
    with pytest.raises(error, match=sentence):
        OptimizerStep(make, SHAPES)
