"""Ways to compute a cohort's gradients, on the same data in one run: python benchmarks/cohort.py

40 clients of 18 images each. What is compared: one pass over all images (no per-client gradients:
the lower limit), client after client, clients on worker threads, and vmap over clients.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from results import save
from torch.func import functional_call, grad, vmap

from randquant.training import models

CLIENTS, EXAMPLES, SHAPE, CLASSES = 40, 18, (1, 28, 28), 10


def ways(model_name: str) -> dict:
    model = models.build(model_name, SHAPE, CLASSES, 0)
    features = torch.randn(CLIENTS, EXAMPLES, *SHAPE)
    labels = torch.randint(0, CLASSES, (CLIENTS, EXAMPLES))
    if model_name == "cnn":
        model = model.to(memory_format=torch.channels_last)
    parameters = list(model.parameters())
    named = {name: p.detach() for name, p in model.named_parameters()}
    loss = torch.nn.CrossEntropyLoss()

    def one(client):
        x = features[client]
        if model_name == "cnn":
            x = x.contiguous(memory_format=torch.channels_last)
        return torch.autograd.grad(loss(model(x), labels[client]), parameters)

    def loss_of(weights, x, y):
        return loss(functional_call(model, weights, (x,)), y)

    per_client = vmap(grad(loss_of), in_dims=(None, 0, 0))

    def everything():
        x, y = features.flatten(0, 1), labels.flatten()
        if model_name == "cnn":
            x = x.contiguous(memory_format=torch.channels_last)
        return torch.autograd.grad(loss(model(x), y), parameters)

    pool = ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,))
    return {
        "one pass, two torch threads": (2, everything),
        "client by client, two torch threads": (2, lambda: list(map(one, range(CLIENTS)))),
        "vmap, two torch threads": (2, lambda: per_client(named, features, labels)),
        "client by client, one torch thread": (1, lambda: list(map(one, range(CLIENTS)))),
        "two workers of one torch thread": (1, lambda: list(pool.map(one, range(CLIENTS)))),
    }


def milliseconds(threads: int, run, repeats: int = 30) -> float:
    torch.set_num_threads(threads)
    seconds = []
    for repeat in range(repeats + 3):
        started = time.perf_counter()
        run()
        if repeat >= 3:
            seconds.append(time.perf_counter() - started)
    return 1e3 * float(np.median(seconds))


if __name__ == "__main__":
    measured = {
        model: {name: milliseconds(*way) for name, way in ways(model).items()}
        for model in models.MODELS
    }
    for model, row in measured.items():
        for name, ms in row.items():
            print(f"{model:8} {name:36} {ms:7.1f} ms")
    save("cohort", {"milliseconds_per_cohort": measured, "torch": torch.__version__})
