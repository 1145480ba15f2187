"""Processes that are killed or cannot write: python tests/kills.py [TRIALS [SEED]].

A training run, a server with its clients on Flower, and one with its clients and a helper are
stopped so often: by SIGKILL at any time, and by a limit on the size of files. What was reported
before must be on the disk, at most one round more may be; the run must be able to go on; and in the
end it is what it is without any of this.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import problems
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import counted
from flower_rounds import ANYTHING, exact, fedavg, grid_of, mean_of, model
from interrupted import SMALL

from randquant._internal.files import make_folder
from randquant.integrations import QuantizedStrategy, QuantizeMod
from randquant.rounds import AmongClients, RunAccountant, ServerStore, StoredRounds, WithHelper
from randquant.secure_sums import Helper, HelperJournal, HelperLimits
from randquant.training import is_run, load_parameters, read_run

Report = Callable[[int], None]


class Work(Protocol):
    """What is stopped; it cannot end where no file may have `largest` bytes."""

    largest: int

    def run(self, folder: Path, report: Report) -> None:
        """Begin, or go on; report what was sent."""

    def check(self, folder: Path, told: list[int]) -> None:
        """What the files state, after `told` was reported."""

    def finish(self, folder: Path) -> None:
        """Go on to the end, and check it."""


class Training:
    """A run in a folder."""

    largest = 40_000
    config = SMALL.changed(rounds=120, checkpoint_every=7, evaluate_every=50)

    def __init__(self, folder: Path) -> None:
        problems.create_run(folder, self.config)
        self.wanted = problems.train_run(folder).summary.guarantee
        self.parameters = load_parameters(folder).tobytes()
        self.sent = 0

    def run(self, folder: Path, report: Report) -> None:
        if not is_run(folder):
            problems.create_run(folder, self.config)
        problems.train_run(folder, lambda config, metrics: report(metrics.round))

    def check(self, folder: Path, told: list[int]) -> None:
        self.sent = max([self.sent, *told])
        if not is_run(folder):
            assert self.sent == 0, "a run is gone"
            return
        found = read_run(folder)
        assert found.state != "damaged", found.error
        assert found.sent_rounds is not None
        assert self.sent <= found.sent_rounds.round <= self.sent + 1, "another number of rounds"
        assert (found.epsilon or 0.0) >= max((m.epsilon or 0.0 for m in found.metrics), default=0.0)
        self.sent = found.sent_rounds.round

    def finish(self, folder: Path) -> None:
        self.run(folder, lambda number: None)
        assert read_run(folder).state == "finished"
        assert load_parameters(folder).tobytes() == self.parameters, "other parameters"
        assert problems.train_run(folder).summary.guarantee == self.wanted


class Rounds:
    """A server and its clients, in one process."""

    largest = 6000
    clients, rounds = range(1, 6), 40
    mod: QuantizeMod = ANYTHING
    sums: AmongClients | WithHelper = AmongClients()

    def __init__(self) -> None:
        self.counted: Counter[int] = Counter()

    def run(self, folder: Path, report: Report) -> None:
        def reply(step, node, message):
            if step == "upload" and not message.has_error():
                report(node)
            return [message]

        grid = grid_of(self.mod, self.clients, reply)
        for node, context in grid.contexts.items():
            context.node_config = self._config(folder, node)
        # A client or a helper that cannot write fails a round.
        inner, options = fedavg(min_available_nodes=5, min_train_nodes=5), {"patience": 1}
        strategy = QuantizedStrategy(
            inner, exact(cohort=5), folder=folder, sums=self.sums, **options
        )
        strategy.start(grid, model(), self.rounds)

    def check(self, folder: Path, told: list[int]) -> None:
        folder.mkdir(exist_ok=True)  # killed before anything
        self.counted += Counter(told)
        asked = RunAccountant(1e-5)
        if (folder / "server.sqlite").exists():
            asked.load_state_dict(self._saved(folder).account)
        for node in self.clients:
            found, _ = counted(folder / f"account{node}")
            assert self.counted[node] <= found <= self.counted[node] + 1, (
                "another number of answers"
            )
            assert found <= asked.answers(node), "the server has counted less than was answered"
            self.counted[node] = found

    def finish(self, folder: Path) -> None:
        self.run(folder, lambda node: None)
        assert self._saved(folder).progress["rounds"] == self.rounds

    def _saved(self, folder: Path) -> StoredRounds:
        """What the server's state says, with the model of so many rounds."""
        stored = ServerStore(folder / "server.sqlite").read()
        wanted = stored.progress["rounds"] * mean_of(self.clients)
        np.testing.assert_allclose(stored.arrays["model/w"], wanted, atol=1e-4)
        return stored

    def _config(self, folder: Path, node: int) -> dict:
        return {"randquant-ledger": str(folder / f"account{node}")}


class Helped(Rounds):
    """A server, its clients, and their helper, in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.identity = Ed25519PrivateKey.generate()
        pinned = self.identity.public_key().public_bytes_raw().hex()
        self.mod = QuantizeMod(epsilon=math.inf, helper=pinned)

    def run(self, folder: Path, report: Report) -> None:
        make_folder(folder / "helper")
        limits = HelperLimits(least=len(self.clients))
        self.sums = WithHelper(Helper(folder / "helper", self.identity, limits))
        super().run(folder, report)

    def check(self, folder: Path, told: list[int]) -> None:
        super().check(folder, told)
        if (folder / "server.sqlite").exists() and (done := self._saved(folder).progress["rounds"]):
            sums = HelperJournal(folder / "helper").sums()
            for node in self.clients:
                assert sums.get(node, 0) >= done, "the helper has counted less"
                assert sums.get(node, 0) <= self.counted[node], "a sum of nothing"


MADE: dict[str, Callable[[Path], Work]] = {
    "training": Training,
    "rounds on Flower": lambda path: Rounds(),
    "rounds with a helper": lambda path: Helped(),
}
"""What is stopped, made with a path of its own."""


def stopped(work: Work, folder: Path, seconds: float, largest: int | None = None) -> bool:
    """Run in another process for so long at most, or with a limit on files; whether it ended."""
    read, write = os.pipe()
    process = os.fork()
    if not process:
        code = 1
        with contextlib.suppress(BaseException):
            os.close(read)
            if largest is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
            work.run(folder, lambda number: os.write(write, struct.pack("<q", number)) and None)
            code = 0
        os._exit(code)
    os.close(write)
    until = time.monotonic() + seconds
    ended, code = 0, 0
    while not ended and time.monotonic() < until:
        ended, code = os.waitpid(process, os.WNOHANG)
        time.sleep(0.001)
    if not ended:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    with open(read, "rb") as pipe:
        told = list(struct.iter_unpack("<q", pipe.read()))  # 8 bytes are written whole
    work.check(folder, [number for (number,) in told])
    return bool(ended) and code == 0


def kills(work: Work, folder: Path, count: int, rng: random.Random, most: float) -> int:
    """So many kills; how many of them came before the end."""
    early = 0
    for _ in range(count):
        early += not stopped(work, folder, rng.uniform(0, most))
    work.finish(folder)
    return early


def limits(work: Work, folder: Path, count: int, rng: random.Random) -> int:
    """So many limits on the size of files; how many stopped it."""
    early = sum(not stopped(work, folder, 60, rng.randrange(work.largest)) for _ in range(count))
    work.finish(folder)
    return early


def main(count: int, seed: int, folder: Path) -> None:
    """All of it, with counts."""
    rng = random.Random(seed)
    for name, make in MADE.items():
        early = kills(make(folder / f"{name} 1"), folder / f"killed {name}", count, rng, 0.3)
        print(f"{name}: {count} kills, {early} before the end", flush=True)
        early = limits(make(folder / f"{name} 2"), folder / f"limited {name}", count, rng)
        print(f"{name}: {count} limits on the size of files, {early} met", flush=True)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    number, start = (int(sys.argv[i]) if len(sys.argv) > i else d for i, d in ((1, 30), (2, 0)))
    with tempfile.TemporaryDirectory() as scratch:
        main(number, start, Path(scratch))
