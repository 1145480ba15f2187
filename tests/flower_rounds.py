"""Rounds of Flower for the tests: mechanisms, a model, clients, and servers that say otherwise."""

from __future__ import annotations

import json
import math

import numpy as np
from flower_grid import InProcessGrid, client_app, over_the_wire
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

import randquant as rq
from randquant.aggregation.coordinate import ChannelMechanism
from randquant.aggregation.vector import VectorMechanism
from randquant.integrations.flower import state
from randquant.integrations.flower.messages import HEAD
from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.strategy import QuantizedStrategy

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


def fedavg(**options):
    return FedAvg(fraction_evaluate=0.0, **options)


def steps_of(node, dimension=5):
    """Update of a client: -1, 0 or 1."""
    return np.random.default_rng(node).integers(-1, 2, dimension).astype(np.float32)


def mover(node, name, array):
    return array if array.dtype.kind != "f" else array + steps_of(node, array.size)


def run(strategy, grid, arrays=None, rounds=1, **options):
    return strategy.start(grid, arrays or model(), rounds, **options)


def one_round(mechanism, nodes=range(1, 6), fault=None, mod=ANYTHING, train=mover, **options):
    """(model after one round, grid, strategy)."""
    grid = InProcessGrid(client_app(mod, train), nodes, fault)
    strategy = QuantizedStrategy(fedavg(), mechanism, **options)
    return run(strategy, grid).arrays["w"].numpy(), grid, strategy


def mean_of(nodes, dimension=5):
    return np.mean([steps_of(n, dimension) for n in nodes], axis=0, dtype=np.float64)


def refusals(grid):
    return {node: reply.error.reason for _, node, _, reply in grid.seen if reply.has_error()}


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


def saved_state(path) -> bytes:
    """Of a strategy with moments in a dictionary, and in a list of more than ten."""
    strategy = FedAdam()
    strategy.m_t = {"w": np.arange(3.0), "empty": np.zeros((0, 2), dtype=">f4")}
    strategy.v_t = [np.full(2, float(n)) for n in range(12)]
    model = ArrayRecord({"w": Array(np.arange(6.0).reshape(2, 3)), "n": Array(np.array(3))})
    state.save(path, {"rounds": 1}, model, strategy, {})
    return path.read_bytes()


def rounds_of(grid):
    return sum(step == "advertise" and node == 1 for step, node, *_ in grid.seen)
