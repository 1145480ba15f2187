"""Cost of a secure sum, one core: python benchmarks/secagg.py [traffic | load [CLIENTS ...]]

40 clients, 1,000,000 coordinates, 16 codes (10 bits per coordinate). Three clients drop out after
sharing. Each shares masks with 10 others, or with all. Times are of computation only: nothing is
sent. With `traffic` it counts the bytes of messages instead, in a sum of 40 clients without
dropouts and 1,000 coordinates of one bit each (6 bits per coordinate of the sum).

With `load` it sums 100,000 coordinates of 100, 300 and 1,000 clients that all share masks with each
other, and of 3,000 with as many neighbours as `Losses` chooses (6 or 48). Codes are of 1 or 4 bits,
and every client is lost in each of the five steps with probability 0, 1 or 5 %: seconds of one
core, as the processor counts them, and the largest memory of a process that plays the server and
all clients. Sums are compared with those of the codes. Flower's own SecAgg+ is measured beside it
(`secagg_plus.py`). Cases are kept one by one: started again, it goes on with those that were not
measured at this commit. `load CLIENTS ...` takes all six cases of these sizes; one case of 1,000
clients takes five minutes. `load 1000:1:0.05 100:plus:0` takes these cases: clients, bits (or
Flower's), loss.
"""

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
from results import commit, save, stored

import randquant as rq
from randquant.aggregation import ChannelMechanism
from randquant.channels import wire
from randquant.secure_sums import Client, Losses, SumServer, Terms

CLIENTS, DIMENSION, LOST = 40, 1_000_000, 3
COORDINATES, CODE_BITS, LOSSES = 100_000, (1, 4), (0.0, 0.01, 0.05)
PLUS = "plus"
"""In the place of a code's bits: Flower's SecAgg+."""

QUICK = [
    *itertools.product((100,), CODE_BITS, LOSSES),
    *[(3000, bits, loss) for loss in (0.0, 0.01) for bits in CODE_BITS],
    (300, 1, 0.0), (300, 1, 0.05), (300, 4, 0.05), (1000, 1, 0.05),
    (100, PLUS, 0.0), (100, PLUS, 0.01), (100, PLUS, 0.05),
]  # fmt: skip
"""Cases (clients, bits of a code, loss of a step) that are measured by default."""


class Clock:
    """Seconds by step, one entry per call."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.spent: dict[str, list[float]] = {}
        self.now = now

    def __call__(self, name, work, *arguments, **options):
        start = self.now()
        result = work(*arguments, **options)
        self.spent.setdefault(name, []).append(self.now() - start)
        return result


def one_round(mechanism: ChannelMechanism, update: np.ndarray, degree: int, clock: Clock) -> int:
    channel = mechanism.channel
    terms = Terms(
        os.urandom(16), tuple(range(CLIENTS)), DIMENSION,
        bits=wire.sum_bits(channel.levels, CLIENTS), least=CLIENTS - LOST, neighbours=degree,
    )  # fmt: skip
    clients = {c: clock("make keys", Client, terms, c) for c in terms.clients}
    server = SumServer(terms)
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


def traffic(
    clients: int,
    size: int,
    bits: int,
    degree: int,
    codes: Callable[[int], np.ndarray] | None = None,
) -> dict[str, int]:
    """Bytes that one client sends and receives in each step of a sum without dropouts.

    Only the protocol's own messages are counted, with 8 bytes for each client's number; the
    transport's overhead is not. The result is the largest over all clients.

    Args:
        clients: how many there are.
        size, bits: of the vector that is summed.
        degree: neighbours of a client.
        codes: a client's vector, (size,) unsigned; None for zeros.
    """
    codes = codes or (lambda client: np.zeros(size, dtype=np.uint32))
    terms = Terms(os.urandom(16), tuple(range(clients)), size, bits, clients, degree)
    parties = {c: Client(terms, c) for c in terms.clients}
    server, counted = SumServer(terms), {}

    def count(name: str, messages: Mapping[int, object]) -> Mapping:
        counted[name] = max(map(_bytes, messages.values()))
        return messages

    adverts = count("advertise, up", {c: each.advertise() for c, each in parties.items()})
    adverts = count("advertise, down", server.introduce(adverts))
    shares = count("share, up", {c: parties[c].share(a) for c, a in adverts.items()})
    sealed = count("share, down", server.forward(shares))
    vectors, wanted = {}, np.zeros(size, dtype=np.uint64)
    for c, inbox in sealed.items():
        vectors[c] = parties[c].mask(own := codes(c), inbox)
        server.add(c, vectors[c])
        wanted += own
    count("masked vector, up", vectors)
    survivors = server.close()
    count("survivors, down", dict.fromkeys(survivors, survivors))
    tags = count("confirm, up", {c: parties[c].confirm(survivors) for c in survivors})
    relayed = count("confirm, down", server.relay(tags))
    revealed = count("reveal, up", {c: parties[c].reveal(t) for c, t in relayed.items()})
    total = server.unmask(revealed)
    assert np.array_equal(total, wanted % 2**bits), "the sum is not that of the codes"
    return counted


def handshake(counted: Mapping[str, int]) -> dict[str, int]:
    """Bytes that one client sends and receives besides its masked vector, from `traffic`."""
    both = {"up": 0, "down": 0}
    for name, size in counted.items():
        step, way = name.rsplit(", ", 1)
        both[way] += 0 if step == "masked vector" else size
    return both


def _bytes(message: object) -> int:
    """Bytes of a message: a client's number takes 8."""
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, int):
        return 8
    if isinstance(message, Mapping):
        return sum(map(_bytes, message.keys())) + sum(map(_bytes, message.values()))
    return sum(map(_bytes, message))  # type: ignore[arg-type]


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


def measured_traffic(degree: int) -> dict[str, int]:
    """Of each step, and of all but the masked vector."""
    counted = traffic(CLIENTS, 1000, wire.sum_bits(2, CLIENTS), degree)
    return {**counted, **{f"handshake, {way}": n for way, n in handshake(counted).items()}}


def loaded(clients: int, code_bits: int, loss: float, dimension: int = COORDINATES) -> dict:
    """One sum where clients are lost at random: seconds of each side, and whether it is exact."""
    draw, clock = np.random.default_rng(clients), Clock(time.process_time)
    bits = wire.sum_bits(2**code_bits, clients)
    chosen = clients > 1000
    degree = Losses(step=loss).graph(clients).neighbours if chosen else clients - 1
    terms = Terms(os.urandom(16), tuple(range(clients)), dimension, bits, clients // 2, degree)

    def stay(messages: Mapping[int, object]) -> dict:
        return {c: message for c, message in messages.items() if draw.random() >= loss}

    def each(step: str, inboxes: Mapping[int, object]) -> dict:
        return {c: clock(step, getattr(parties[c], step), m) for c, m in stay(inboxes).items()}

    parties = {c: clock("make keys", Client, terms, c) for c in terms.clients}
    server = SumServer(terms)
    adverts = {c: clock("advertise", parties[c].advertise) for c in stay(parties)}
    inboxes = clock("server: introduce", server.introduce, adverts)
    inboxes = clock("server: check and forward", server.forward, each("share", inboxes))
    wanted = np.zeros(dimension, dtype=np.uint32)
    for c, inbox in stay(inboxes).items():
        codes = draw.integers(0, 2**code_bits, dimension, dtype=np.uint8)
        clock("server: add", server.add, c, clock("mask", parties[c].mask, codes, inbox))
        wanted += codes
    survivors = clock("server: add", server.close)
    tags = each("confirm", dict.fromkeys(survivors, survivors))
    shown = each("reveal", clock("server: relay", server.relay, tags))
    total = clock("server: unmask", server.unmask, shown, 2**code_bits - 1)
    steps = {name: sum(spent) for name, spent in clock.spent.items()}
    ours = {name: statistics.median(s) for name, s in clock.spent.items() if "server" not in name}
    return {
        "clients": clients, "neighbours": degree, "code_bits": code_bits, "loss": loss,
        "exact": bool((total == wanted).all()),
        "shared": len(inboxes), "in_sum": len(survivors), "answered": len(shown),
        "client_seconds": sum(ours.values()),
        "server_seconds": sum(s for name, s in steps.items() if name.startswith("server")),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "client_steps": ours,
        "server_steps": {name: s for name, s in steps.items() if name.startswith("server")},
    }  # fmt: skip


def load(named: list[str]) -> None:
    """Measure every case in a process of its own, unless it was measured at this commit."""
    cases = stored("secagg_load").get("cases", {})
    wanted = [case for name in named for case in _cases(*name.split(":"))] or QUICK
    for clients, code_bits, loss in wanted:
        how = "Flower's SecAgg+" if code_bits == PLUS else f"{code_bits} bits"
        name, now = f"{clients} clients, {how}, loss {loss}", commit()
        if cases.get(name, {}).get("commit") == now:
            continue
        case = [sys.executable, __file__, "case", str(clients), str(code_bits), str(loss)]
        row = json.loads(subprocess.run(case, check=True, capture_output=True).stdout)
        cases[name] = {"commit": now, **row}
        print({key: value for key, value in row.items() if "steps" not in key}, flush=True)
        save("secagg_load", {"dimension": COORDINATES, "cases": cases})


def _cases(clients: str, bits: str = "", loss: str = "0") -> list[tuple[int, int | str, float]]:
    """All cases of a number of clients, or the one that CLIENTS:BITS:LOSS names."""
    if not bits:
        return [*itertools.product((int(clients),), CODE_BITS, LOSSES)]
    return [(int(clients), bits if bits == PLUS else int(bits), float(loss))]


if __name__ == "__main__" and sys.argv[1:2] == ["case"] and PLUS in sys.argv:
    from secagg_plus import loaded_plus

    print(json.dumps(loaded_plus(int(sys.argv[2]), COORDINATES, float(sys.argv[4]))))
elif __name__ == "__main__" and "case" in sys.argv:
    print(json.dumps(loaded(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
elif __name__ == "__main__" and "load" in sys.argv:
    load(sys.argv[2:])
elif __name__ == "__main__" and "traffic" in sys.argv:
    found = {f"{degree} neighbours": measured_traffic(degree) for degree in (10, CLIENTS - 1)}
    for name, counted in found.items():
        print(name, *(f"{step}: {size:,}" for step, size in counted.items()), sep="\n    ")
    save("secagg_traffic", {"clients": CLIENTS, "dimension": 1000, **found})
elif __name__ == "__main__":
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
