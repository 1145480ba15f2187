"""Tasks of many kinds, to measure how well a run learns where nothing was tuned to them.

Each task is a function of (data folder, seed) that returns a model, clients, test data and settings
of `rq.train`. LOOKED_AT are those that the constants of the untuned steps were chosen on or checked
with; HELD_OUT were run for the first time when the constants stood.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional


class Task(NamedTuple):
    """What is learnt, by whom."""

    model: nn.Module
    clients: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    settings: dict[str, Any]


def scaled(x: np.ndarray) -> Tensor:
    """Features or targets of mean 0 and deviation 1; figures of the whole set, as if public."""
    return torch.tensor((x - x.mean(0)) / np.maximum(x.std(0), 1e-6)).float()


def shared(
    x: Tensor, y: Tensor, clients: int, test: int, seed: int, labels: int = 0
) -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]:
    """A random split; with `labels`, each client has so many shards of examples sorted by label."""
    random = np.random.default_rng(seed)
    order = torch.from_numpy(random.permutation(len(y)))
    x, y = x[order], y[order]
    left_x, left_y = x[test:], y[test:]
    parts = [np.arange(k, len(left_y), clients) for k in range(clients)]
    if labels:
        shards = np.array_split(np.argsort(left_y.numpy(), kind="stable"), clients * labels)
        drawn = random.permutation(len(shards)).reshape(clients, labels)
        parts = [np.concatenate([shards[k] for k in row]) for row in drawn]
    return [(left_x[part], left_y[part]) for part in parts], (x[:test], y[:test])


def images(folder: Path, name: str, count: int) -> tuple[Tensor, Tensor]:
    """Images (count, 784) in [0, 1] of a folder in the format of MNIST, and their labels."""

    def read(kind: str, skipped: int) -> np.ndarray:
        (path,) = (folder / name).glob(f"train-{kind}-*.gz")
        return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=skipped)

    x, y = read("images", 16).reshape(-1, 784)[:count], read("labels", 8)[:count]
    return torch.tensor(x / 255).float(), torch.tensor(y.astype(np.int64))


def digits() -> tuple[Tensor, Tensor]:
    x, y = datasets.load_digits(return_X_y=True)
    return torch.tensor(x / 16).float(), torch.tensor(y)


class Recurrent(nn.Module):
    """A GRU over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rows(x.reshape(-1, 8, 8))[0].mean(1))


class Attention(nn.Module):
    """One layer of a transformer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.places = nn.Linear(8, 16), nn.Parameter(0.1 * torch.randn(8, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.rows(x.reshape(-1, 8, 8)) + self.places).mean(1))


class Words(nn.Module):
    """The mean of the words' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(2000, 16), nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x))


def convolution(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)), nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(2, 8),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * (side // 2) ** 2, 10),
    )  # fmt: skip


def _of_digits(model: Callable[[], nn.Module], clients: int, labels: int = 0):
    def task(folder: Path, seed: int) -> Task:
        torch.manual_seed(seed)
        return Task(model(), *shared(*digits(), clients, 297, seed, labels), {})

    return task


def _of_images(name: str, model: Callable[[], nn.Module], labels: int = 0):
    def task(folder: Path, seed: int) -> Task:
        torch.manual_seed(seed)
        data = images(folder, name, 9000)
        return Task(model(), *shared(*data, 700, 2000, seed, labels), {})

    return task


def _of_table(load: Callable[..., Any], outputs: int, clients: int, hidden: int = 0):
    def task(folder: Path, seed: int) -> Task:
        torch.manual_seed(seed)
        x, y = load(return_X_y=True)
        settings: dict[str, Any] = {}
        labels = torch.tensor(y)
        if outputs == 1:
            settings, labels = {"loss": functional.mse_loss}, scaled(y[:, None])
        layers: list[nn.Module] = [nn.Linear(x.shape[1], hidden or outputs)]
        if hidden:
            layers += [nn.Tanh(), nn.Linear(hidden, outputs)]
        split = shared(scaled(x), labels, clients, len(y) // 3, seed)
        return Task(nn.Sequential(*layers), *split, settings)

    return task


def words(folder: Path, seed: int) -> Task:
    """20 topics, each with words of its own frequencies; 500 clients with 7 texts of 40 words."""
    random = np.random.default_rng(seed)
    topics = random.dirichlet(np.full(2000, 0.05), size=20)
    labels = random.integers(0, 20, 3900)
    texts = np.stack([random.choice(2000, 40, p=topics[label]) for label in labels])
    torch.manual_seed(seed)
    data = torch.tensor(texts), torch.tensor(labels)
    return Task(Words(), *shared(*data, 500, 400, seed), {})


def patients(folder: Path, seed: int) -> Task:
    """Four hospitals' tables of heart disease; each patient is protected."""
    clients, rest = [], []
    random = np.random.default_rng(seed)
    for path in sorted((folder / "heart-disease").glob("*.csv")):
        rows = np.genfromtxt(path, delimiter=",", skip_header=1)
        rows = np.nan_to_num(rows[random.permutation(len(rows))])
        x, y = scaled(rows[:, :-1]), torch.tensor(rows[:, -1] > 0).long()
        third = len(rows) // 3
        clients.append((x[third:], y[third:]))
        rest.append((x[:third], y[:third]))
    torch.manual_seed(seed)
    test = torch.cat([x for x, _ in rest]), torch.cat([y for _, y in rest])
    return Task(nn.Linear(clients[0][0].shape[1], 2), clients, test, {"unit": "example"})


def backbone(folder: Path, seed: int) -> Task:
    """Fashion-MNIST on features that were learnt from MNIST; they stay as they are."""
    torch.manual_seed(0)
    head = nn.Linear(64, 10)
    model = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), head)
    x, y = images(folder, "mnist-10k", 9000)
    adam = torch.optim.Adam(model.parameters(), 0.003)
    for _ in range(200):
        adam.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        adam.step()
    torch.manual_seed(seed)
    head.reset_parameters()
    data = images(folder, "fashion-mnist", 9000)
    return Task(model, *shared(*data, 700, 2000, seed), {"parts": ("2.*",)})


def linear(inputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(inputs, 10)


def perceptron(inputs: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 10))


LOOKED_AT: dict[str, Callable[[Path, int], Task]] = {
    "digits, linear": _of_digits(linear(64), 150),
    "digits, perceptron": _of_digits(perceptron(64), 200),
    "digits, two classes a client": _of_digits(linear(64), 150, labels=2),
    "digits, convolution": _of_digits(lambda: convolution(8), 200),
    "digits, attention": _of_digits(Attention, 200),
    "words, embedding": words,
    "breast cancer": _of_table(datasets.load_breast_cancer, 2, 100),
    "wine": _of_table(datasets.load_wine, 3, 60),
    "diabetes": _of_table(datasets.load_diabetes, 1, 100),
}
HELD_OUT: dict[str, Callable[[Path, int], Task]] = {
    "Fashion-MNIST, linear": _of_images("fashion-mnist", linear(784)),
    "Fashion-MNIST, two classes a client": _of_images("fashion-mnist", linear(784), labels=2),
    "Fashion-MNIST, convolution": _of_images("fashion-mnist", lambda: convolution(28)),
    "Fashion-MNIST, frozen backbone": backbone,
    "MNIST, perceptron": _of_images("mnist-10k", perceptron(784)),
    "digits, recurrent": _of_digits(Recurrent, 150),
    "breast cancer, hidden layer": _of_table(datasets.load_breast_cancer, 2, 100, hidden=8),
    "diabetes, hidden layer": _of_table(datasets.load_diabetes, 1, 100, hidden=8),
    "heart disease, four hospitals": patients,
}
