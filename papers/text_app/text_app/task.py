"""The roles, the model that public roles give, and the adapter that private roles train.

`benchmarks/shakespeare.py` and the notebook use the same functions: one definition of the task.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from randquant.local_training import Learner, Work, make_problem
from randquant_papers.data import shakespeare
from randquant_papers.text.directions import Directions, public_directions, with_directions
from randquant_papers.text.evaluation import evaluate
from randquant_papers.text.models import transformer

PUBLIC = 10
"""One role in PUBLIC, the largest ones, is declared public."""

RANK, ADAPTED = 15, ("blocks.1.wide",)
"""An adapter of 3,840 parameters beside the first linear layer of the last block."""

SHOWN = 800
"""Public windows that give the adapter's directions."""

RATE, AT_ONCE = 4e-3, 32
"""Largest step size of the training on public roles, which ends at zero; windows of a step."""

Windows = list[tuple[np.ndarray, np.ndarray]]
"""Each role's windows and the characters that follow: (n, 80) int64 both."""


class Roles(NamedTuple):
    """Roles from the largest to the smallest: the first tenth is public, the others are clients."""

    public: Windows
    public_test: Windows
    clients: Windows
    clients_test: Windows


def roles(data_dir: str | Path) -> Roles:
    """The roles of the file in a folder, by the number of their training windows."""
    train, test = shakespeare.load(data_dir)
    order = np.argsort(-np.bincount(train.roles), kind="stable")
    train, test = ([each.by_role()[role] for role in order] for each in (train, test))
    public = len(order) // PUBLIC
    return Roles(train[:public], test[:public], train[public:], test[public:])


def pooled(windows: Windows) -> tuple[np.ndarray, np.ndarray]:
    """All roles' windows as one pair of arrays."""
    texts, following = zip(*windows, strict=True)
    return np.concatenate(texts), np.concatenate(following)


def pretrained(
    public: Windows, epochs: int, kept: Path | None = None, rate: float = RATE
) -> nn.Module:
    """The transformer after some passes over public roles.

    Args:
        public: their windows.
        epochs: how many passes; none leave it as it was drawn.
        kept: a file in which it is kept, and read from if it is there.
        rate: the largest step size, from which it falls to zero.
    """
    model = transformer()
    if kept is not None and kept.exists():
        model.load_state_dict(torch.load(kept, weights_only=True))
        return model
    texts, following = map(torch.from_numpy, pooled(public))
    steps = epochs * -(-len(texts) // AT_ONCE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=max(1, steps))
    draw = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        losses = []
        for rows in torch.randperm(len(texts), generator=draw).split(AT_ONCE):
            loss = nn.functional.cross_entropy(model(texts[rows]), following[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            slower.step()
            losses.append(loss.item())
        bits = np.mean(losses) / math.log(2)
        print(f"public roles, pass {epoch + 1}: {bits:.3f} bits per character", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
            torch.save(model.state_dict(), file)
        Path(file.name).replace(kept)
    return model


def adapted(model: nn.Module, public: Windows) -> nn.Module:
    """A copy with an adapter along directions of public windows, and nothing else to train."""
    return with_directions(model, public_directions(model, ADAPTED, RANK, *shown(public)))


def shown(public: Windows) -> tuple[Tensor, Tensor]:
    """The public windows that give directions, and what follows."""
    texts, following = pooled(public)
    rows = np.random.default_rng(0).permutation(len(texts))[:SHOWN]
    return torch.from_numpy(texts[rows]), torch.from_numpy(following[rows])


def read(kept: Path) -> nn.Module:
    """The model with its adapter, from the file that `python -m text_app.task` makes."""
    model = transformer()
    weights = torch.load(kept, weights_only=True)
    directions = {
        name: Directions(weights[f"{name}.inputs"], weights[f"{name}.outputs"]) for name in ADAPTED
    }
    model = with_directions(model, directions)
    model.load_state_dict(weights)
    return model


class Top(nn.Module):
    """What follows the last attention of an adapted model: all that its adapter depends on.

    What comes before has no adapter and stays as it is, so it is computed once for each window
    (`below`) and not in each round. The module shares its layers with the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.block, self.norm, self.head = model.blocks[-1], model.norm, model.head

    def forward(self, states: Tensor) -> Tensor:
        """Scores (n, characters, length) from what `below` gives."""
        return self.head(self.norm(self.block.widen(states))).transpose(1, 2)


def below(model: nn.Module, windows: Windows) -> list[tuple[Tensor, Tensor]]:
    """Each role's states (n, 80, 64) float32 after the last attention, and what follows."""
    with torch.no_grad():
        return [(_states(model, torch.from_numpy(t)), torch.from_numpy(f)) for t, f in windows]


def _states(model: nn.Module, texts: Tensor) -> Tensor:
    states = model.embedding(texts) + model.positions[: texts.shape[1]]
    return model.blocks[-1].attend(model.blocks[:-1](states))


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name: all that travels between server and clients."""
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def learner(model: nn.Module, windows: tuple[np.ndarray, np.ndarray], batch: int) -> Learner:
    """What computes a client's update, as `randquant.train` does: a gradient on some windows."""
    return Learner(make_problem(model, [windows]), Work(batch=batch))


def model(config: Mapping[str, Any], data_dir: str) -> nn.Module:
    """The model with a new adapter that a run's configuration names; the same for all who ask."""
    if not config["pretrained"]:
        public = roles(data_dir).public
        return adapted(pretrained(public, config["epochs"]), public)
    kept = Path(config["pretrained"])
    if not kept.exists():
        raise FileNotFoundError(
            f"Expected a trained model in {kept}, found none: python -m text_app.task makes it."
        )
    return read(kept)


def scores(model: nn.Module, tested: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Accuracy and bits per character on a pair of windows and what follows."""
    found = evaluate(model, [tested])
    return float(found.accuracy[0]), float(found.bits[0])


if __name__ == "__main__":
    public = roles(sys.argv[1]).public
    torch.save(adapted(pretrained(public, 3), public).state_dict(), sys.argv[2])
