"""Bytes of a client and round: python benchmarks/wire.py [all-neighbours]

1,200,000 parameters, 1,000 clients a round, 100 rounds at epsilon 8 of 10,000 clients, 10
neighbours; 131,072 coordinates are sent, in one-bit and in sparse ternary codes. Every message of
the secure sum is made by a client and read by the server, the codes are those of the planned
mechanism, and the sum is checked against that of the codes. Only the protocol's own messages are
counted, with 8 bytes for each client's number, and the seed of the coordinates. Flower's SecAgg+ is
run by its own functions, among a client and its neighbours.

With `all-neighbours` the same for clients that share masks with all 999 others. Messages have fixed
lengths, so that every step's bytes are linear in the number of clients: whole sums of 10 and 20
give the line, one of 30 is on it, and so are the keys and shares of a client among 1,000.
"""

from __future__ import annotations

import importlib
import math
import os
import sys

import numpy as np
from results import commit, save, stored, write
from secagg import _bytes, handshake, traffic

import randquant as rq
from randquant.aggregation import wrap_probability
from randquant.channels import wire
from randquant.secure_sums import Client, Draw, Terms
from randquant.secure_sums.terms import PART_BYTES

DIMENSION, CLIENTS, POPULATION, ROUNDS, NEIGHBOURS = 1_200_000, 1_000, 10_000, 100, 10
COORDINATES = 2**17


def planned(name: str, coordinates: int | None):
    """The calibrated mechanism that sends so many coordinates."""
    return rq.plan(
        DIMENSION,
        population=POPULATION,
        cohort=CLIENTS,
        rounds=ROUNDS,
        epsilon=8.0,
        privacy=rq.Privacy(bits=2, coordinates=coordinates),
        mechanisms=[name],
    )


def seed_bytes() -> tuple[int, int, int]:
    """(seed, bytes up, bytes down) of a round's seed, of all clients' real messages."""
    draw, parts = Draw(b"benchmark"), {c: os.urandom(PART_BYTES) for c in range(CLIENTS)}
    for client, part in parts.items():
        draw.add(client, part)
    seed, proofs = draw.close()
    return seed, PART_BYTES, len(draw.commitment) + max(map(len, proofs.values()))


def measured(name: str, coordinates: int) -> dict[str, object]:
    """One whole round with real codes of one update, which all clients send: the worst case."""
    plan = planned(name, coordinates)
    seed, up, down = seed_bytes()
    mechanism, channel = plan.mechanism.in_round(seed), plan.mechanism.channel
    draw = np.random.default_rng(0).normal(size=DIMENSION)
    update = (draw / np.linalg.norm(draw)).astype(np.float32)
    sent = mechanism.projection(DIMENSION).forward(update)
    bits = mechanism.sum_bits(DIMENSION, CLIENTS)
    counted = traffic(
        CLIENTS, sent.size, bits, NEIGHBOURS,
        lambda client: rq.encode(channel, sent, rq.Key.from_seed(client)),
    )  # fmt: skip
    other = handshake(counted)
    assert counted["masked vector, up"] == mechanism.upload_bytes(DIMENSION, CLIENTS)
    deviation = mechanism.clip_norm / math.sqrt(mechanism.projection(DIMENSION).rotated)
    return {
        "epsilon": plan.entries[0].guarantee.epsilon,
        "deviation": plan.entries[0].noise.deviation,
        "coordinates": coordinates,
        "bits": bits,
        "wrap_probability_of_a_round": wrap_probability(
            channel, CLIENTS, coordinates, bits, deviation
        ),
        "masked_vector_up": counted["masked vector, up"],
        "other_steps_up": other["up"] + up,
        "other_steps_down": other["down"] + down,
        "all_up": counted["masked vector, up"] + other["up"] + up,
    }


def whole() -> dict[str, int]:
    """Masked vectors of all rotated coordinates: in any sum's modulus, and in the narrow one."""
    mechanism = planned("stochastic-rounding", None).mechanism
    size = mechanism.size(DIMENSION)
    return {
        "any_sum": wire.masked(size, wire.sum_bits(2, CLIENTS)),
        "narrow": mechanism.upload_bytes(DIMENSION, CLIENTS),
    }


def secagg_plus(dimension: int = DIMENSION) -> int:
    """Bytes up of a client of Flower's SecAgg+ with its defaults, by its own functions."""
    from flwr.app import ConfigRecord
    from flwr.common import ndarrays_to_parameters
    from flwr.common.secure_aggregation.secaggplus_constants import Key

    plus = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    ring = range(1, NEIGHBOURS + 2)  # shares go to a client itself too
    states, sent = {n: plus.SecAggPlusState(nid=n) for n in ring}, 0
    terms = {
        Key.SAMPLE_NUMBER: CLIENTS, Key.SHARE_NUMBER: len(ring), Key.THRESHOLD: 7,
        Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: 2**22, Key.MOD_RANGE: 2**32,
        Key.MAX_WEIGHT: 1000.0,
    }  # fmt: skip
    keys = {n: plus._setup(state, ConfigRecord(terms)) for n, state in states.items()}
    pairs = {str(n): [k[Key.PUBLIC_KEY_1], k[Key.PUBLIC_KEY_2]] for n, k in keys.items()}
    dealt = {n: plus._share_keys(state, ConfigRecord(pairs)) for n, state in states.items()}
    to_first = [
        (n, text)
        for n, shares in dealt.items()
        for to, text in zip(shares[Key.DESTINATION_LIST], shares[Key.CIPHERTEXT_LIST], strict=True)
        if to == 1
    ]
    inbox = {
        Key.SOURCE_LIST: [n for n, _ in to_first],
        Key.CIPHERTEXT_LIST: [t for _, t in to_first],
    }
    update = ndarrays_to_parameters([np.zeros(dimension, dtype=np.float32)])
    masked = plus._collect_masked_vectors(states[1], ConfigRecord(inbox), 1, update)
    active = {Key.ACTIVE_NODE_ID_LIST: list(ring), Key.DEAD_NODE_ID_LIST: []}
    shares = plus._unmask(states[1], ConfigRecord(active))
    for message in (keys[1], dealt[1], masked, shares):
        sent += sum(_bytes(field) for field in message.values())
    return sent


def all_neighbours() -> dict[str, object]:
    """Bytes of each step among 1,000 clients that all share masks with each other."""
    small = {n: traffic(n, 8, 8, n - 1) for n in (10, 20, 30)}

    def line(step: str, clients: int) -> int:
        slope = (small[20][step] - small[10][step]) // 10
        return small[10][step] + slope * (clients - 10)

    steps = [step for step in small[10] if step != "masked vector, up"]
    assert all(line(step, 30) == small[30][step] for step in steps)
    terms = Terms(os.urandom(16), tuple(range(CLIENTS)), 8, 8, CLIENTS, CLIENTS - 1)
    parties = {c: Client(terms, c) for c in terms.clients}
    adverts = {c: party.advertise() for c, party in parties.items()}
    others = {c: advert for c, advert in adverts.items() if c}
    assert _bytes(others) == line("advertise, down", CLIENTS)
    assert _bytes(parties[0].share(others)) == line("share, up", CLIENTS)
    counted = {step: line(step, CLIENTS) for step in steps}
    beside = handshake(counted)
    _, up, down = seed_bytes()
    each = (handshake(small[20])["up"] - handshake(small[10])["up"]) // 10
    return {
        **counted,
        "other_steps_up": beside["up"] + up,
        "other_steps_down": beside["down"] + down,
        "up_for_each_neighbour": each,
    }


def show_all_neighbours() -> None:
    """Count, print and keep them beside what was measured with ten neighbours."""
    record = stored("wire")
    found = all_neighbours()
    for name in ("one_bit", "ternary"):
        vector, ten = record[name]["masked_vector_up"], record[name]["other_steps_up"]
        fitting = NEIGHBOURS + (160_000 - vector - ten) // found["up_for_each_neighbour"]
        found[f"{name}, all up"] = vector + found["other_steps_up"]
        found[f"{name}, neighbours within 160,000 bytes"] = fitting
    for name, value in found.items():
        print(f"{name:40} {value:,}")
    write("wire", {**record, "all_neighbours": {"commit": commit(), **found}})


if __name__ == "__main__" and "all-neighbours" in sys.argv:
    show_all_neighbours()
elif __name__ == "__main__":
    figures = {
        "floats": wire.floats(DIMENSION),
        "secagg_plus": secagg_plus(),
        "all_coordinates": whole(),
        "one_bit": measured("stochastic-rounding", COORDINATES),
        "ternary": measured("sparse-ternary", COORDINATES),
    }
    for name, value in figures.items():
        print(f"{name:18} {value}")
    most = max(figures[name]["all_up"] for name in ("one_bit", "ternary"))
    print(
        f"at most 160,000 bytes a client and round: {most:,} {'yes' if most <= 160_000 else 'NO'}"
    )
    save("wire", {"dimension": DIMENSION, "clients": CLIENTS, "rounds": ROUNDS, **figures})
