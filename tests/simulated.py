"""A run as a script: python simulated.py FOLDER, with `flower` behind it on two processes of Ray.

With `die` the first process that computes dies, once; with `wait` all of them are slow. It prints
each round's number and, at the end, the run's model and account as JSON, and who read which client.
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

import randquant as rq

FOLDER, HOW, HERE = Path(sys.argv[1]), sys.argv[2:], os.getpid()
POPULATION = 60


def client(number):
    draw = torch.Generator().manual_seed(number)
    (FOLDER / f"{number} in {'driver' if os.getpid() == HERE else os.getpid()}").touch()
    x = torch.randn(6, 5, generator=draw)
    return x, (x[:, 0] > 0).long()


class Dropping(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(torch.nn.functional.dropout(x, 0.2, self.training))


def loss(output, targets):
    if os.getpid() != HERE and HOW[1:] == ["wait"]:
        time.sleep(0.05)
    if os.getpid() != HERE and HOW[1:] == ["die"] and not (FOLDER / "died").exists():
        (FOLDER / "died").touch()
        os._exit(9)
    return torch.nn.functional.cross_entropy(output, targets)


def main():
    # A shell's job in the background ignores it, and so do the processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER.mkdir(exist_ok=True)
    torch.manual_seed(0)
    engine = contextlib.nullcontext()
    if HOW:
        from randquant.flower import engine as flower_engine

        engine = flower_engine(processes=2)
    server = rq.Server(on_round=lambda metrics: print(f"round {metrics.round}", flush=True))
    with engine:
        run = rq.train(
            Dropping(), client, population=POPULATION, test=client(0), loss=loss, epsilon=8,
            rounds=4, cohort=30, seed=3, server=server, folder=FOLDER / "run", progress=False,
        )  # fmt: skip
    weights = b"".join(each.detach().numpy().tobytes() for each in run.model.parameters())
    readers = [path.name.split(" in ") for path in FOLDER.glob("* in *")]
    print(json.dumps({
        "model": hashlib.sha256(weights).hexdigest(),
        "epsilon": run.guarantee.epsilon,
        "accuracy": run.accuracy,
        "losses": [each.train_loss for each in run.record.metrics],
        "read here": sorted(int(number) for number, reader in readers if reader == "driver"),
        "processes": len({reader for _, reader in readers} - {"driver"}),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
