"""Rounds of Flower for the tests: mechanisms, a model, clients, and servers that say otherwise."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flower_grid import InProcessGrid, client_app, over_the_wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from tls import keep

import randquant as rq
from randquant.aggregation import ChannelMechanism, VectorMechanism
from randquant.integrations import HEAD, QuantizedStrategy, QuantizeMod
from randquant.planning import Calibrated
from randquant.rounds import RoundsFailed
from randquant.rounds import run as run_module

# Values -1, 0, 1 are encoded as they are: sums can be checked bit for bit.
EXACT = rq.stochastic_rounding(clip=1.0, levels=3, margin=0.0)
NOISY = rq.stochastic_rounding(clip=0.3, levels=2, margin=0.7)
STEPS = ("advertise", "share", "upload", "confirm", "reveal")
ANYTHING = QuantizeMod(epsilon=math.inf)


def exact(trust="aggregate", cohort=2):
    return ChannelMechanism(EXACT, trust, cohort if trust == "aggregate" else 1)


def noisy(trust="aggregate", cohort=3):
    return VectorMechanism(NOISY, 1.0, trust, cohort if trust == "aggregate" else 1)


def model(dimension=5):
    return ArrayRecord({"w": Array(np.zeros(dimension, dtype=np.float32))})


ONE_BIT = Calibrated("stochastic-rounding", {"clip": 0.3, "levels": 2, "margin": 0.7}, 1.0)


def planned_as_one_bit(monkeypatch):
    """Give every target the bits of NOISY, without a search.

    Returns the list of (need, examples) that were planned for.
    """
    needs = []
    monkeypatch.setattr(
        run_module, "choose", lambda need, examples: needs.append((need, examples)) or ONE_BIT
    )
    return needs


def fedavg(**options):
    return FedAvg(fraction_evaluate=0.0, **options)


def steps_of(node, dimension=5):
    """Update of a client: -1, 0 or 1."""
    return np.random.default_rng(node).integers(-1, 2, dimension).astype(np.float32)


def mover(node, name, array):
    return array if array.dtype.kind != "f" else array + steps_of(node, array.size)


def run(strategy, grid, arrays=None, rounds=1, **options):
    return strategy.start(grid, arrays or model(), rounds, **options)


def grid_of(mod=ANYTHING, nodes=range(1, 6), fault=None, train=mover, change=None, config=None):
    """Clients; `change` is a step of the server's, and what changes its requests."""
    grid = InProcessGrid(client_app(mod, train), nodes, fault)
    for context in grid.contexts.values():
        context.node_config |= config or {}
    return changed_request(grid, *change) if change else grid


def one_round(mechanism, nodes=range(1, 6), grid=None, inner=None, arrays=None, **options):
    """(model after one round, grid, strategy); options of the grid, the run or the strategy."""
    rounds = options.pop("rounds", 1)
    of_grid = {name: options.pop(name) for name in OF_GRID & options.keys()}
    grid = grid or grid_of(nodes=nodes, **of_grid)
    strategy = QuantizedStrategy(inner or fedavg(), mechanism, **options)
    return run(strategy, grid, arrays, rounds).arrays["w"].numpy(), grid, strategy


OF_GRID = {"mod", "fault", "train", "change", "config"}


def all_refuse(reason, mechanism, grid, **options):
    """A round fails, because every client refuses for this reason."""
    with pytest.raises(RoundsFailed):
        one_round(mechanism, grid=grid, patience=1, **options)
    assert refusals(grid).keys() == grid.contexts.keys()
    assert all(reason in text for text in refusals(grid).values()), refusals(grid)


def mean_of(nodes, dimension=5):
    return np.mean([steps_of(n, dimension) for n in nodes], axis=0, dtype=np.float64)


def refusals(grid):
    return {node: reply.error.reason for _, node, _, reply in grid.seen if reply.has_error()}


def identify(grid, nodes, folder):
    """Give each node of the grid its key, and all of them a directory, of these numbers."""
    keys = {n: Ed25519PrivateKey.generate() for n in nodes}
    directory = {str(n): key.public_key().public_bytes_raw().hex() for n, key in keys.items()}
    (folder / "directory.json").write_text(json.dumps(directory))
    for n, context in grid.contexts.items():
        context.node_config["randquant-identity"] = keep(folder / f"{n}.pem", keys[n])
        context.node_config["randquant-directory"] = str(folder / "directory.json")
        if context.node_config["randquant-ledger"] == "none":
            context.node_config["randquant-ledger"] = str((folder / f"{n}.account").absolute())
    return directory


def changed_request(grid, step, change):
    """Let the server's messages of one step say something else."""
    send = grid.send_and_receive

    def lying(messages, *, timeout=None):
        found = list(messages)
        for message in found:
            record = message.content.get(HEAD)
            if record is not None and record["step"] == step:
                change(message)
        return send(found, timeout=timeout)

    grid.send_and_receive = lying
    return grid


def changed_terms(step, **fields):
    """A change of the server's messages of a step: their terms say something else."""

    def change(message):
        record = json.loads(message.content[HEAD]["terms"])
        message.content[HEAD]["terms"] = json.dumps({**record, **fields})

    return step, change


def changed_offer(message, change):
    record = json.loads(message.content[HEAD]["offer"])
    change(record)
    message.content[HEAD]["offer"] = json.dumps(record)


def ask(grid, node, step, session=b"s", **fields):
    """One request of ours, beside those of a strategy."""
    content = RecordDict({HEAD: ConfigRecord({"step": step, "session": session, **fields})})
    if step == "upload":
        content["arrays"], content["config"] = model(), ConfigRecord({})
    message = Message(content, dst_node_id=node, message_type="train")
    return grid.app(over_the_wire(message), grid.contexts[node])


def rounds_of(grid):
    # By their sessions: the first steps of a sum may go with the messages of the round before.
    return len({bytes(m.content[HEAD]["session"]) for _, node, m, _ in grid.seen if node == 1})
