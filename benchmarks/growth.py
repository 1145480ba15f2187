"""What grows how: python benchmarks/growth.py [--quick | --page]

Processor seconds and the most memory of each part of a run against clients, coordinates, rounds and
bits, each point in a process of its own, which has done a small piece of the same work before, so
that nothing is compiled while it is measured. About eight minutes on a quiet machine, two with
`--quick`. It writes results/growth.json, and from it docs/growth.md and its pictures; `--page`
writes the page alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from results import save

import randquant as rq
from randquant.channels import wire
from randquant.secure_sums import (
    Client,
    Field64,
    Helper,
    HelperSum,
    HelperTerms,
    Prio3,
    SumServer,
    SumVec,
    Terms,
    chunk_length,
    masked_message,
)

COMMON = {"clients": 100, "coordinates": 100_000, "rounds": 50, "bits": 1}
"""Where all curves of a part meet; a part may have sizes of its own."""

Point = dict[str, int]
CTX, KEY = b"growth", rq.Key.from_seed(0)


class Meter:
    """Seconds of the processor, and megabytes of this process above what it had before."""

    def __init__(self) -> None:
        self.seconds, self.megabytes, self.bytes = 0.0, 0.0, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        Path("/proc/self/clear_refs").write_text("5")  # the peak is from here on
        before, started = _status("VmRSS"), time.process_time()
        yield
        self.seconds += time.process_time() - started
        self.megabytes = max(self.megabytes, _status("VmHWM") - before)


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(name + ":")]
    return int(line.split()[1]) * 1024 / 1e6


def _mechanism(at: Point) -> rq.VectorMechanism:
    clip = 4 / at["coordinates"] ** 0.5
    channel = rq.rqm(clip=clip, margin=clip, levels=2 ** at["bits"], keep=0.42)
    return rq.VectorMechanism(channel, 1.0, "aggregate", at["clients"])


def _update(at: Point) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(at["coordinates"], dtype=np.float32)


def encode(at: Point, meter: Meter) -> None:
    """A client: clip, rotate, encode and pack."""
    mechanism, update = _mechanism(at), _update(at)
    with meter():
        meter.bytes = len(mechanism.encode(update, KEY))


def add(at: Point, meter: Meter) -> None:
    """A server: check, unpack, add and decode the codes of all clients, which it sees."""
    mechanism = _mechanism(at)
    update = _update(at)
    payloads = [mechanism.encode(update, KEY.fold_in("client", c)) for c in range(at["clients"])]
    with meter():
        mechanism.mean(payloads, at["coordinates"])


def _sum_bits(at: Point) -> int:
    return wire.sum_bits(2 ** at["bits"], at["clients"])


def _with_helper(at: Point, server_meter: Meter, helper_meter: Meter) -> None:
    draw, identity = np.random.default_rng(0), Ed25519PrivateKey.generate()
    pinned = identity.public_key().public_bytes_raw()
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(Path(folder), identity, kept=True)
        size = at["clients"], 2, at["coordinates"], _sum_bits(at)
        terms = HelperTerms(os.urandom(16), helper.key, *size)
        server, wanted = HelperSum(terms), np.zeros(at["coordinates"], np.uint32)
        kind = np.uint8 if at["bits"] <= 8 else np.uint32
        for client in range(at["clients"]):
            codes = draw.integers(0, 2 ** at["bits"], at["coordinates"], dtype=kind)
            message = masked_message(terms, client, codes, pinned)
            with server_meter():
                server.add(client, message)
            wanted += codes
        server_meter.bytes = len(message)
        with server_meter():
            request = server.request()
        with helper_meter():
            answer = helper.answer(request)
        with server_meter():
            total = server.unmask(answer)
        assert np.array_equal(total, wanted), "the sum is not that of the codes"


def helper_server(at: Point, meter: Meter) -> None:
    """The server of sums with a helper: keep and add the masked vectors, and unmask."""
    _with_helper(at, meter, Meter())


def helper(at: Point, meter: Meter) -> None:
    """The helper: open all clients' seeds, and add up their masks."""
    _with_helper(at, Meter(), meter)


def _among_clients(at: Point, server_meter: Meter, client_meter: Meter) -> None:
    clients = at["clients"]
    terms = Terms(
        os.urandom(16), tuple(range(clients)), at["coordinates"], _sum_bits(at), clients - 3,
        neighbours=min(clients - 1, NEIGHBOURS),
    )  # fmt: skip
    parties, server = {c: Client(terms, c) for c in terms.clients}, SumServer(terms)
    with client_meter():
        first = parties[0].advertise()
    adverts = {0: first, **{c: parties[c].advertise() for c in terms.clients[1:]}}
    with server_meter():
        relayed = server.introduce(adverts)
    shares = {c: parties[c].share(advert) for c, advert in relayed.items()}
    with server_meter():
        sealed = server.forward(shares)
    codes = np.ones(at["coordinates"], dtype=np.uint8)
    for c in terms.clients[3:]:
        meter = client_meter if c == 3 else Meter()
        with meter():
            vector = parties[c].mask(codes, sealed[c])
        with server_meter():
            server.add(c, vector)
    survivors = server.close()
    with server_meter():
        tags = server.relay({c: parties[c].confirm(survivors) for c in survivors})
    revealed = {c: parties[c].reveal(tag) for c, tag in tags.items()}
    with server_meter():
        total = server.unmask(revealed)
    assert (total == len(survivors)).all(), "the sum is not that of the codes"
    client_meter.bytes = len(vector)


NEIGHBOURS = 40
"""Clients that each client of a sum among clients shares masks with, as SecAgg+ has it."""


def among_clients(at: Point, meter: Meter) -> None:
    """The server of sums among clients, of which three are lost, 40 neighbours each."""
    _among_clients(at, meter, Meter())


def _prio3(at: Point) -> tuple[Prio3, list]:
    length, bits = at["coordinates"], at["bits"]
    chunk = chunk_length(length * bits)
    prio3 = Prio3(SumVec(Field64, length, 2**bits - 1, chunk), 0xFFFFFFFF, 3)
    codes = np.random.default_rng(0).integers(0, 2**bits, length, dtype=np.uint8)
    return prio3, [codes, os.urandom(16), os.urandom(prio3.RAND_SIZE)]


def prove(at: Point, meter: Meter) -> None:
    """A client: prove that its codes are valid, over Field64 with three proofs."""
    prio3, (codes, nonce, rand) = _prio3(at)
    with meter():
        prio3.shard(CTX, codes, nonce, rand)


def verify(at: Point, meter: Meter) -> None:
    """The server: verify its shares of all clients' proofs."""
    prio3, (codes, nonce, rand) = _prio3(at)
    (public, shares), key = prio3.shard(CTX, codes, nonce, rand), os.urandom(32)
    with meter():
        for _ in range(at["clients"]):
            prio3.verify_init(key, CTX, 0, nonce, public, shares[0])


def plan(at: Point, meter: Meter) -> None:
    """Plan a run at epsilon 8."""
    with meter():
        rq.plan(
            at["coordinates"], population=10 * at["clients"], cohort=at["clients"],
            rounds=at["rounds"], epsilon=8, privacy=rq.Privacy(bits=at["bits"]),
        )  # fmt: skip


def account(at: Point, meter: Meter) -> None:
    """Account for a client that is in every round."""
    mechanism = _mechanism(at)
    with meter():
        rq.account([mechanism.release(at["coordinates"], at["rounds"])], 1e-5)


def train(at: Point, meter: Meter) -> None:
    """Train one layer on 8 examples a client, all of whom are in every round."""
    import torch

    features = at["coordinates"] // 10
    x, y = torch.rand(8, features), torch.arange(8) % 10
    with meter(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that few rounds teach little
        rq.train(
            torch.nn.Linear(features, 10, bias=False), lambda number: (x, y), epsilon=8,
            population=at["clients"], cohort=at["clients"], rounds=at["rounds"], progress=False,
            privacy=rq.Privacy(bits=at["bits"]), local=rq.Local(threads=1),
        )  # fmt: skip


def population(at: Point, meter: Meter) -> None:
    """The same, of 100 clients in each round: what those that wait cost."""
    import torch

    x, y = torch.rand(8, 100), torch.arange(8) % 10
    with meter(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rq.train(
            torch.nn.Linear(100, 10), lambda number: (x, y), epsilon=8, population=at["clients"],
            cohort=100, rounds=at["rounds"], progress=False, local=rq.Local(threads=1),
        )  # fmt: skip


TENS = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000]
SIZES: dict[Callable[[Point, Meter], None], dict[str, Any]] = {
    encode: {"coordinates": [*TENS, 10_000_000], "bits": [1, 2, 4, 8]},
    add: {"clients": [30, 100, 300, 1000, 3000], "coordinates": TENS[:-1], "bits": [1, 2, 4, 8]},
    helper_server: {
        "clients": [30, 100, 300, 1000], "coordinates": TENS[:-1], "bits": [1, 2, 4, 8],
    },
    helper: {"clients": [30, 100, 300, 1000], "coordinates": TENS[:-1], "bits": [1, 2, 4, 8]},
    among_clients: {
        "common": {"coordinates": 10_000},
        "clients": [50, 100, 200, 400], "coordinates": TENS[:-2], "bits": [1, 2, 4, 8],
    },
    prove: {
        "common": {"coordinates": 10_000},
        "coordinates": [1000, 3000, 10_000, 30_000, 100_000, 300_000], "bits": [1, 2, 4, 8],
    },
    verify: {
        "common": {"coordinates": 10_000},
        "clients": [30, 100, 300, 1000], "coordinates": [1000, 3000, 10_000, 30_000, 100_000],
        "bits": [1, 2, 4, 8],
    },
    plan: {
        "clients": [100, 1000, 10_000, 100_000, 1_000_000],
        "coordinates": [10_000, 100_000, 1_000_000, 10_000_000],
        "rounds": [10, 100, 1000, 10_000], "bits": [1, 2, 4, 8],
    },
    account: {
        "clients": [100, 1000, 10_000, 100_000, 1_000_000],
        "coordinates": [10_000, 100_000, 1_000_000, 10_000_000],
        "rounds": [10, 100, 1000, 10_000], "bits": [1, 2, 4, 8],
    },
    train: {
        "common": {"coordinates": 10_000, "rounds": 5},
        "clients": [30, 100, 300, 1000, 3000],
        "coordinates": [10_000, 30_000, 100_000, 300_000, 1_000_000],
        "rounds": [5, 10, 20, 40, 80], "bits": [1, 2, 4, 8],
    },
    population: {
        "common": {"coordinates": 1000, "rounds": 3},
        "clients": [1000, 10_000, 100_000, 1_000_000], "rounds": [3, 10, 30, 100],
    },
}  # fmt: skip
"""Sizes along each axis; `common` are the other axes where they are not COMMON."""

BY_NAME = {part.__name__: part for part in SIZES}
SMALL = {"clients": 100, "coordinates": 1000, "rounds": 2}
"""The work that is done before, to compile and import."""


def of_part(name: str, points: list[Point]) -> Iterator[dict]:
    """Measure each point in a process of its own, all forked from this one, which is warm."""
    part = BY_NAME[name]
    part({**points[0], **SMALL}, Meter())
    for at in points:
        read, write = os.pipe()
        if not (child := os.fork()):
            meter = Meter()
            part(at, meter)
            row = {**at, "seconds": meter.seconds, "mb": meter.megabytes, "bytes": meter.bytes}
            os.write(write, json.dumps(row).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as result:
            text = result.read()
        os.waitpid(child, 0)
        if not text:
            raise RuntimeError(f"Expected a measurement of {name} at {at}, got none.")
        yield json.loads(text)


def curves(quick: bool) -> dict[str, dict[str, list[dict]]]:
    """Measure every point of every curve; `quick` leaves out the last of each."""
    measured: dict[str, dict[str, list[dict]]] = {}
    for part, sizes in SIZES.items():
        common, name = {**COMMON, **sizes.get("common", {})}, part.__name__
        axes = {axis: places for axis, places in sizes.items() if axis != "common"}
        if quick:
            axes = {
                axis: places[: -1 if len(places) > 3 else None] for axis, places in axes.items()
            }
        points = [{**common, axis: place} for axis, places in axes.items() for place in places]
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, json.dumps(points)],
            stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        rows = iter(map(json.loads, done.stdout.splitlines()))
        measured[name] = {axis: [next(rows) for _ in places] for axis, places in axes.items()}
        for axis, found in measured[name].items():
            seconds = ", ".join(f"{row[axis]}: {row['seconds']:.3g} s" for row in found)
            print(f"{name}, {axis}: {seconds}", flush=True)
    return measured


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        for row in of_part(arguments[1], json.loads(arguments[2])):
            print(json.dumps(row), flush=True)
        return
    if arguments != ["--page"]:
        started = time.perf_counter()
        found = curves("--quick" in arguments)
        save("growth", {"quick": "--quick" in arguments, "curves": found,
                        "minutes": (time.perf_counter() - started) / 60})  # fmt: skip
    import growth_page

    growth_page.write()


if __name__ == "__main__":
    main(sys.argv[1:])
