"""Cost of a secure sum, one core: python benchmarks/secagg.py

40 clients, 1,000,000 coordinates, 16 codes (10 bits a coordinate). Three clients leave after they
have shared. Each shares masks with 10 others, or with all. Times are of our part alone: nothing is
sent anywhere.
"""

import os
import statistics
import time

import numpy as np
from results import save

import randquant as rq
from randquant.aggregate import ChannelMechanism
from randquant.secagg import Client, Server, Terms

CLIENTS, DIMENSION, LOST = 40, 1_000_000, 3


class Clock:
    """Seconds by what they were spent on, an entry a call."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    def __call__(self, name, work, *arguments, **options):
        start = time.perf_counter()
        result = work(*arguments, **options)
        self.spent.setdefault(name, []).append(time.perf_counter() - start)
        return result


def one_round(mechanism: ChannelMechanism, update: np.ndarray, degree: int, clock: Clock) -> int:
    channel = mechanism.channel
    terms = Terms(
        os.urandom(16), tuple(range(CLIENTS)), DIMENSION,
        bits=(CLIENTS * (channel.levels - 1)).bit_length(), least=CLIENTS - LOST, neighbours=degree,
    )  # fmt: skip
    clients = {c: clock("make keys", Client, terms, c) for c in terms.clients}
    server = Server(terms)
    at = server.introduce({c: clock("advertise", k.advertise) for c, k in clients.items()})
    sealed = {c: clock("share", clients[c].share, a) for c, a in at.items()}
    messages = clock("server: check and forward", server.forward, sealed)
    size, wanted = 0, np.zeros(DIMENSION, dtype=np.uint32)
    for c in range(LOST, CLIENTS):
        key = rq.Key.generate()
        codes = clock("encode", rq.encode, channel, update, key)
        payload = clock("mask and pack", clients[c].mask, codes, messages[c])
        clock("server: unpack and add", server.add, c, payload)
        size, wanted = len(payload), wanted + codes
    survivors = server.close()
    tags = {c: clock("confirm", clients[c].confirm, survivors) for c in survivors}
    relayed = server.relay(tags)
    shares = {c: clock("reveal", clients[c].reveal, t) for c, t in relayed.items()}
    total = clock("server: unmask", server.unmask, shares, channel.levels - 1)
    assert np.array_equal(total, wanted), "the sum is not that of the codes"
    clock("server: decode", mechanism.decode, total, len(survivors), DIMENSION)
    return size


def measured(mechanism: ChannelMechanism, update: np.ndarray, degree: int) -> dict[str, object]:
    one_round(mechanism, update, degree, Clock())  # compiles
    clock, copy = Clock(), Clock()
    size = one_round(mechanism, update, degree, clock)
    for _ in range(20):
        copy("copy", update.copy)
    each = {name: statistics.median(found) for name, found in clock.spent.items()}
    client = sum(seconds for name, seconds in each.items() if not name.startswith("server"))
    round_ = ("server: check and forward", "server: unpack and add", "server: decode")
    return {
        "milliseconds": {name: 1e3 * seconds for name, seconds in each.items()},
        "client_milliseconds": 1e3 * client,
        "server_seconds_without_unmasking": sum(sum(clock.spent[name]) for name in round_),
        "unmask_seconds": each["server: unmask"],
        "client_over_memory_copies": client / statistics.median(copy.spent["copy"]),
        "bytes_up": size,
    }


if __name__ == "__main__":
    channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
    mechanism = ChannelMechanism(channel, "aggregate", CLIENTS - LOST)
    update = np.random.default_rng(0).uniform(-1, 1, DIMENSION).astype(np.float32)
    figures = {}
    for degree in (10, CLIENTS - 1):
        figures[f"{degree} neighbours"] = found = measured(mechanism, update, degree)
        print(f"{degree} neighbours")
        for name, value in found.items():
            print(f"    {name:35} {value}")
    save("secagg", {"clients": CLIENTS, "dimension": DIMENSION, "lost": LOST, **figures})
