"""Hostile clients in secure sums: python benchmarks/hostile.py [TASK [DATA]]

Softmax regression to epsilon 8 at delta 1e-5 by one-bit sums of all clients: digits (200 clients,
five seeds) and Fashion-MNIST (the files in DATA; 700 clients, two seeds), 30 rounds, steps
without a rate. A share of the clients is hostile: they work together, know the mean of all honest
updates, and attack in each round. The guarantee counts on the other nine tenths.

In the last round of the first seed all messages are real, in each way: secure aggregation among
clients, a helper, and a helper with proofs. Their sums are compared with those of the codes, from
which the other rounds are computed. A client that sends no codes adds its vector to the share that
it sends the server. Without a TASK the stored tables are printed and drawn.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from performance_page import ROOT, picture
from results import save, stored

import randquant as rq
from randquant.channels import wire
from randquant.reports import Axis, line_chart
from randquant.rounds import ParameterFreeStep
from randquant.secure_sums import (
    Client,
    Helper,
    HelperSum,
    HelperTerms,
    ProtocolError,
    SumServer,
    Terms,
    masked_message,
    proven_message,
    verify_key_commitment,
)
from randquant_papers.data import datasets

EPSILON, DELTA, ROUNDS, CLASSES = 8.0, 1e-5, 30, 10
TASKS = {"digits": (200, 5), "fashion-mnist": (700, 2)}
"""Clients and seeds."""

LABELS, MINUS, UNCLIPPED, ONES, AGAINST, ANY, REFUSED = ATTACKS = (
    "labels flipped", "minus its update", "the same, not clipped", "all ones", "against the mean",
    "any vector", "any vector, with proofs",
)  # fmt: skip
RUNS = [("none", 0.0)] + [
    (attack, share)
    for share in (0.01, 0.02, 0.05, 0.1)
    for attack in ATTACKS
    if share in (0.01, 0.1) or attack == AGAINST
]
"""All but the last two send codes, whose sum is the same with masks and with proofs."""


class Task:
    """Data of equally many examples for each client, with a feature that is always 1."""

    def __init__(self, name: str, folder: str | None, clients: int, seed: int) -> None:
        data = datasets.load(name, folder)
        each = len(data.train_labels) // clients
        mixed = np.random.default_rng(seed).permutation(len(data.train_labels))[: clients * each]
        self.x = _with_one(data.train_features[mixed]).reshape(clients, each, -1)
        self.y = data.train_labels[mixed].reshape(clients, each)
        self.test = _with_one(data.test_features), data.test_labels
        self.shape = (self.x.shape[2], CLASSES)

    def updates(self, weights: np.ndarray, flipped: int, clip_norm: float) -> np.ndarray:
        """Each client's step against its gradient, of length clip_norm, the first ones' flipped."""
        labels = self.y.copy()
        labels[:flipped] = CLASSES - 1 - labels[:flipped]
        scores = self.x @ weights.reshape(self.shape)
        shares = np.exp(scores - scores.max(2, keepdims=True))
        right = np.eye(CLASSES, dtype=np.float32)[labels] - shares / shares.sum(2, keepdims=True)
        steps = (self.x.transpose(0, 2, 1) @ right).reshape(len(self.x), -1)
        return clip_norm * steps / np.linalg.norm(steps, axis=1, keepdims=True).clip(1e-30)

    def accuracy(self, weights: np.ndarray) -> float:
        x, y = self.test
        return float(np.mean((x @ weights.reshape(self.shape)).argmax(1) == y))


def _with_one(x: np.ndarray) -> np.ndarray:
    return np.hstack([x.reshape(len(x), -1), np.ones((len(x), 1), np.float32)])


def drawn(mechanism: rq.VectorMechanism, updates: np.ndarray) -> np.ndarray:
    """The codes that honest clients send, (n, size)."""
    dimension = updates.shape[1]
    size = mechanism.size(dimension)
    payloads = mechanism.encode_many(updates, [rq.Key.generate() for _ in updates])
    codes = [wire.unpack(mechanism.coding, each, size, size - dimension) for each in payloads]
    return np.array(codes, np.uint32)


def attacked(
    attack: str, mechanism: rq.VectorMechanism, updates: np.ndarray, hostile: int, bits: int
) -> np.ndarray:
    """What all clients send, of whom the first are hostile: (n, size)."""
    codes, lies = drawn(mechanism, updates), updates[:hostile]
    forward = mechanism.projection(updates.shape[1]).forward
    away = forward(updates[hostile:].mean(0)) < 0
    if attack == MINUS:
        codes[:hostile] = drawn(mechanism, -lies)
    if attack == UNCLIPPED:  # each coordinate is, by the channel
        for client, lie in enumerate(lies):
            codes[client] = rq.encode(mechanism.channel, -1e6 * forward(lie), rq.Key.generate())
    if attack in (ONES, AGAINST):
        codes[:hostile] = away if attack == AGAINST else 1
    if attack in (ANY, REFUSED):
        # As far as no total becomes impossible, or wraps around, in six deviations.
        clients = len(codes)
        moved = min(clients, 1 << bits) // 2 - int(3 * clients**0.5)
        codes[:hostile] += np.where(away, 1, -1).astype(np.uint32) * np.uint32(moved // hostile)
        codes &= (1 << bits) - 1
    return codes


def among_clients(codes: np.ndarray, bits: int, least: int) -> np.ndarray:
    """Their sum by secure aggregation."""
    terms = Terms(os.urandom(16), tuple(range(len(codes))), codes.shape[1], bits, least)
    clients, server = {c: Client(terms, c) for c in terms.clients}, SumServer(terms)
    adverts = server.introduce({c: client.advertise() for c, client in clients.items()})
    sealed = server.forward({c: clients[c].share(each) for c, each in adverts.items()})
    for c, each in sealed.items():
        server.add(c, clients[c].mask(codes[c], each))
    survivors = server.close()
    tags = server.relay({c: clients[c].confirm(survivors) for c in survivors})
    return server.unmask({c: clients[c].reveal(each) for c, each in tags.items()}, 1)


def with_helper(codes: np.ndarray, bits: int, least: int, *, proofs: bool) -> np.ndarray:
    """Their sum with a helper, of those whom it and the server accept."""
    identity, key = Ed25519PrivateKey.generate(), os.urandom(32)
    pinned = identity.public_key().public_bytes_raw()
    with tempfile.TemporaryDirectory() as folder:
        helper = Helper(folder, identity)
        terms = HelperTerms(os.urandom(16), helper.key, len(codes), least, codes.shape[1], bits)
        if proofs:
            terms = replace(terms, largest=1, commitment=verify_key_commitment(key))
        server = HelperSum(terms, verify_key=key if proofs else b"")
        for client, each in enumerate(codes):
            try:
                if proofs and each.max() > 1:
                    server.add(client, false(terms, client, each, pinned))
                else:
                    way = proven_message if proofs else masked_message
                    server.add(client, way(terms, client, each, pinned))
            except ProtocolError:
                assert each.max() > 1, server.refused
        return server.unmask(helper.answer(server.request()), 1)


def false(terms: HelperTerms, client: int, vector: np.ndarray, pinned: bytes) -> bytes:
    """A message of zeros, to whose first share the vector is added, modulo the field's order."""
    message = proven_message(terms, client, np.zeros_like(vector), pinned)
    start = 4 + 16 + 64 + terms.key.sealed_bytes
    share = np.frombuffer(message, "<u8", vector.size, start)
    added = [(int(a) + int(b)) % (2**64 - 2**32 + 1) for a, b in zip(share, vector, strict=True)]
    return message[:start] + np.array(added, "<u8").tobytes() + message[start + share.nbytes :]


def carry(codes: np.ndarray, bits: int, least: int) -> None:
    """Sum by real messages in each way, and check that it is the sum from which others come."""
    total = codes.sum(0) % (1 << bits)
    valid = codes[codes.max(1) < 2]
    assert np.array_equal(among_clients(codes, bits, least), total)
    assert np.array_equal(with_helper(codes, bits, least, proofs=False), total)
    bits = wire.sum_bits(2, len(codes))
    assert np.array_equal(with_helper(codes, bits, least, proofs=True), valid.sum(0))


def trained(
    task: Task, mechanism: rq.VectorMechanism, attack: str, share: float, *, real: bool
) -> float:
    """Test accuracy after all rounds; `real` for messages in the last of them."""
    clients, dimension = len(task.y), task.shape[0] * CLASSES
    error, norm = mechanism.expected_error(dimension), mechanism.clip_norm
    noise = error.deviation(clients, 0.0) / norm
    rule = ParameterFreeStep([task.shape[::-1]], ROUNDS, error.gain * norm, noise)
    weights, state = np.zeros(dimension, np.float32), rule.init()
    hostile, bits = round(share * clients), mechanism.sum_bits(dimension, clients)
    for number in range(ROUNDS):
        updates = task.updates(weights, hostile if attack == LABELS else 0, norm)
        codes = attacked(attack, mechanism, updates, hostile, bits)
        if real and number == ROUNDS - 1:
            carry(codes, bits, mechanism.cohort)
        if attack == REFUSED:
            codes = codes[codes.max(1) < 2]
        total = codes.sum(0, dtype=np.int64)
        mean = mechanism.decode(total, len(codes), dimension, None if attack == ANY else 32)
        weights, state = rule.step(weights, -mean, state)
    return task.accuracy(weights)


def measured(name: str, folder: str | None) -> dict:
    """All runs of one task."""
    clients, seeds = TASKS[name]
    tasks = [Task(name, folder, clients, seed) for seed in range(seeds)]
    dimension, honest = tasks[0].shape[0] * CLASSES, 9 * clients // 10
    mechanism = rq.plan(
        dimension, population=honest, cohort=honest, rounds=ROUNDS, epsilon=EPSILON, delta=DELTA,
        mechanisms=["stochastic-rounding"],
    ).mechanism  # fmt: skip
    assert isinstance(mechanism, rq.VectorMechanism)
    rows = []
    for attack, share in RUNS:
        scores = [trained(each, mechanism, attack, share, real=not seed)
                  for seed, each in enumerate(tasks)]  # fmt: skip
        rows.append({"attack": attack, "share": share, "accuracy": statistics.mean(scores),
                     "deviation": statistics.stdev(scores)})  # fmt: skip
        print(name, rows[-1], flush=True)
    return {
        "clients": clients, "dimension": dimension, "seeds": seeds,
        "epsilon": rq.account([mechanism.release(dimension, ROUNDS)], DELTA).epsilon,
        "influence": mechanism.influence(dimension, clients),
        "honest": 2 * mechanism.clip_norm / clients, "rows": rows,
    }  # fmt: skip


def show(found: dict) -> None:
    """The tables of docs/proven-sums.md, and the picture."""
    lines = []
    for (name, task), colours in zip(found.items(), (("c1", "c3"), ("c2", "c4")), strict=False):
        known = {(row["attack"], row["share"]): row for row in task["rows"]}
        plain = known["none", 0.0]
        print(f"\n| {name} | 1 % hostile | 10 % hostile |\n|---|---|---|")
        print(f"| nobody is hostile | {_cell(plain)} | |")
        for attack in ATTACKS:
            cells = [_cell(known[attack, share]) for share in (0.01, 0.1)]
            print(f"| {attack} | {' | '.join(cells)} |")
        drawn_as = {
            AGAINST: ("worst codes", colours[0]),
            LABELS: (LABELS, colours[1]),
            ANY: ("masks, any vector", f"{colours[0]} dashed"),
        }
        for attack, (label, colour) in drawn_as.items():
            rows = [plain, *(row for row in task["rows"] if row["attack"] == attack)]
            points = [(100 * row["share"], 100 * row["accuracy"]) for row in rows]
            lines.append((f"{name}: {label}", points, colour))
    x, y = Axis("hostile clients in %"), Axis("test accuracy in %")
    drawing = picture(line_chart("Accuracy with hostile clients", lines, x, y))
    (ROOT / "docs" / "images" / "hostile.svg").write_text(drawing)


def _cell(row: dict) -> str:
    return f"{100 * row['accuracy']:.1f} ± {100 * row['deviation']:.1f}"


def main(task: str | None = None, folder: str | None = None) -> None:
    """Measure a task, or show what was measured."""
    if task is not None:
        found = measured(task, folder)
        tasks = {**stored("hostile").get("tasks", {}), task: found}
        save("hostile", {"rounds": ROUNDS, "delta": DELTA, "tasks": tasks})
    show(stored("hostile")["tasks"])


if __name__ == "__main__":
    main(*sys.argv[1:])
