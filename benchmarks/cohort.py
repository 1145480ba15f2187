"""Milliseconds for a client's update, five steps without a rate, computed together or one by one.

Run `python benchmarks/cohort.py`: 40 clients of 7 to 9 examples each, on one and on two threads,
all in one run.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from results import save
from torch import nn
from torch.nn import functional

from randquant.local_training import KNOWN_ATTENTION, Learner, Work, make_problem

CLIENTS, CLASSES, WORK = 40, 10, Work(epochs=5, learning_rate="auto")


class Perceptron(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(inputs, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, x):
        return self.output(torch.relu(self.hidden(x)))


class TwoInputs(nn.Module):
    """With a batch norm whose statistics stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(3, 8)
        self.norm, self.output = nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x, y):
        return self.output(torch.relu(self.norm(self.left(x) + self.right(y))))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(500, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.output(self.embedding(x).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 32, dropout=0.0, batch_first=True)
        self.output = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.output(self.layer(x).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.output = nn.GRU(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.output(self.recurrent(x)[0][:, -1])


class Convolution(nn.Module):
    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.output = nn.Linear(16 * (pixels // 4) ** 2, CLASSES)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.one(x)), 2)
        return self.output(functional.max_pool2d(functional.relu(self.two(x)), 2).flatten(1))


MODELS = {
    "two inputs": (TwoInputs, [(4,), (3,)]),
    "perceptron": (lambda: Perceptron(64, 32), [(64,)]),
    "wide perceptron": (lambda: Perceptron(784, 1000), [(784,)]),
    "words": (Words, [(30,)]),
    "attention": (Attention, [(8, 8)]),
    "recurrent": (Recurrent, [(8, 8)]),
    "convolution, 8 x 8": (lambda: Convolution(8), [(1, 8, 8)]),
    "convolution, 28 x 28": (lambda: Convolution(28), [(1, 28, 28)]),
}


def clients(shapes: list, *, words: bool) -> list:
    draw = np.random.default_rng(0)

    def features(count: int):
        if words:
            return draw.integers(0, 500, (count, *shapes[0]))
        parts = [draw.normal(size=(count, *shape)).astype(np.float32) for shape in shapes]
        return tuple(parts) if len(parts) > 1 else parts[0]

    sizes = [7 + number % 3 for number in range(CLIENTS)]
    return [(features(size), draw.integers(0, CLASSES, size)) for size in sizes]


def ways(name: str, pool: ThreadPoolExecutor) -> dict[str, float]:
    """Milliseconds for a client's update in each way."""
    build, shapes = MODELS[name]
    torch.manual_seed(0)
    problem = make_problem(build(), clients(shapes, words=name == "words"), buffers="frozen")
    found = {}
    for way in ("together", "one by one"):
        learner = Learner(problem, replace(WORK, together=way == "together"))
        for threads in (1, 2):
            found[f"{way}, {threads} threads"] = milliseconds(learner, pool, threads)
    return found


def milliseconds(learner: Learner, pool: ThreadPoolExecutor, threads: int) -> float:
    groups, seconds = learner.groups(range(CLIENTS), threads), []
    for _ in range(8):
        started = time.perf_counter()
        for _ in (map if threads == 1 else pool.map)(learner.updates, groups):
            pass
        seconds.append(time.perf_counter() - started)
    return 1e3 * float(np.median(seconds[2:])) / CLIENTS


if __name__ == "__main__":
    torch.set_num_threads(1)
    with (
        ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as threads,
        KNOWN_ATTENTION(),
    ):
        measured = {name: ways(name, threads) for name in MODELS}
    for name, row in measured.items():
        print(f"{name:22}", {way: round(ms, 2) for way, ms in row.items()})
    save("cohort", {"milliseconds_per_client": measured, "torch": torch.__version__})
