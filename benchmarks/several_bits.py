"""Secure sums of several bits: upper bounds over the best attack, and error at equal epsilon.

python benchmarks/several_bits.py                 both tables
python benchmarks/several_bits.py --clients 100   the first of them, for so many clients
python benchmarks/several_bits.py --errors        the second
"""

import argparse
import functools
import itertools
import math
import time

import numpy as np
from results import commit, save, stored

import randquant as rq
from randquant.mechanisms.design.constraints import Fisher
from randquant.mechanisms.design.solver import optimal
from randquant.privacy.certificates.sums.reachable import reached

CHANNELS = {
    "1 bit, A=4c": rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0),
    "2-bit RQM, A=4c": rq.rqm(1.0, 3.0, 4, 0.42),
    "2-bit RQM, A=2c": rq.rqm(1.0, 1.0, 4, 0.42),
    "2-bit PBM .25": rq.pbm(1.0, 0.25, 3),
    "3-bit RQM, A=4c": rq.rqm(1.0, 3.0, 8, 0.42),
    "4-bit RQM, margin=c": rq.rqm(1.0, 1.0, 16, 0.42),
    "4-bit RQM, A=4c": rq.rqm(1.0, 3.0, 16, 0.42),
    "4-bit PBM .05": rq.pbm(1.0, 0.05, 15),
    "4-bit PBM .25": rq.pbm(1.0, 0.25, 15),
}
ORDERS = (2.0, 8.0, 32.0, 1.1, 64.0)

COHORTS, GOAL, STEPS = (40, 200, 1000), 0.002, 11
"""Clients of the second table; the K at order 2, per squared clip, of a sum of 40 to which every
mechanism is tuned (its share of that, where there are more); and how often the noise is halved."""

EXACT, TRIES = 0.98, 4
"""A proven K this close to the goal will do; and how often the noise is tuned again."""

EVEN = np.array([-1.0, -1 / 3, 1 / 3, 1.0])

FAMILIES = {
    "one bit": lambda s: rq.stochastic_rounding(1.0, 2, s),
    "RQM, 2 bits": lambda s: rq.rqm(1.0, s, 4, 0.42),
    "RQM, 4 bits": lambda s: rq.rqm(1.0, s, 16, 0.42),
    "PBM, 2 bits": lambda s: rq.pbm(1.0, 0.5 / (1 + s), 3),
    "PBM, 4 bits": lambda s: rq.pbm(1.0, 0.5 / (1 + s), 15),
    "I-MVU, 1 bit": lambda s: rq.imvu(1.0, 2, 2 / s),
    "I-MVU, 2 bits": lambda s: rq.imvu(1.0, 4, 2 / s),
    "MVU, 1 bit": lambda s: rq.mvu(1.0, 2, 2 / s),
    "OPTM, 2 bits": lambda s: rq.optm(1.0, (1 + s) * EVEN, 2 / s),
    "optimum, 2 bits": lambda s: (
        optimal(
            1.0, (1 + s) * EVEN, constraint=Fisher(1 / s**2), objective="worst_variance", inputs=9
        ).channel
    ),
}
"""Mechanisms by how much noise they have, from little to much. Sums decode only where values are
evenly spaced: MVU's are not, from two bits on."""


def tightness(cohorts: tuple[int, ...], again: bool) -> list[dict]:
    """Upper bound over lower end of `kappa_sum`, and seconds, entry by entry; each kept at once.

    Args:
        cohorts: numbers of clients.
        again: whether entries that are stored already are computed again.
    """
    known = set() if again else set(kept())
    for order, clients, (name, channel) in itertools.product(ORDERS, cohorts, CHANNELS.items()):
        if (name, clients, order) in known:
            continue
        started = time.process_time()
        found = rq.kappa_sum(channel, clients, order)
        row = {
            "channel": name, "clients": clients, "order": order, "lower": found.lower,
            "upper": found.upper, "seconds": time.process_time() - started, "commit": commit(),
        }  # fmt: skip
        # Read again: others may be computed at the same time.
        rows = list(({**kept(), (name, clients, order): row}).values())
        save("several_bits", {"tightness": rows}, quiet=True)
        over = f"{found.upper / found.lower:.2f}"
        print(f"{clients:5d} clients  {name:20s} {order:4g}: {over}, {row['seconds']:.1f} s")
    return list(kept().values())


def kept() -> dict[tuple[str, int, float], dict]:
    """Entries that say which code they are of, by channel, clients and order."""
    rows = stored("several_bits").get("tightness", [])
    return {(r["channel"], r["clients"], r["order"]): r for r in rows if "commit" in r}


def printed(rows: list[dict], clients: int) -> None:
    """The table of one number of clients, as in docs/theory/vector-sums.md."""
    print(f"\n| {clients} clients | " + " / ".join(f"{order:g}" for order in sorted(ORDERS)) + " |")
    for name in CHANNELS:
        known = {r["order"]: r for r in rows if (r["channel"], r["clients"]) == (name, clients)}
        over = [
            f"{known[order]['upper'] / known[order]['lower']:.2f}" if order in known else "-"
            for order in sorted(ORDERS)
        ]
        print(f"| {name} | " + " / ".join(over) + " |")


def tuned(family, clients: int, order: float, goal: float):
    """The least noise, nearly, whose proven K is at most the goal: (channel, K), or None."""
    best, aim = None, goal
    for _ in range(TRIES):
        channel = attacked(family, clients, order, aim)
        if channel is None:
            return best
        found = rq.kappa_sum(channel, clients, order)
        if found.upper <= goal and (best is None or best[1].upper < found.upper):
            best = channel, found
        if EXACT * goal <= found.upper <= goal:
            break
        # K of the attack is quickly found, and the bound is about as far above it everywhere.
        aim *= 0.99 * goal / found.upper
    return best


@functools.cache
def made(family, log_noise: float) -> rq.Channel:
    return family(math.exp(log_noise))


def attacked(family, clients: int, order: float, goal: float) -> rq.Channel | None:
    """The channel with the least noise behind which the attack's K is at most the goal."""

    def hidden(log_noise: float) -> rq.Channel | None:
        try:
            channel = made(family, log_noise)
        except ValueError:  # no such channel: there is too little noise
            return None
        return channel if reached(channel, clients, order)[0] <= goal else None

    low, high, best = math.log(0.05), math.log(30.0), None
    for _ in range(STEPS):
        middle = (low + high) / 2
        found = hidden(middle)
        low, high, best = (middle, high, best) if found is None else (low, middle, found)
    # As levels pass the ends of the inputs, K does not always fall with the noise.
    nearby = (hidden(high - back) for back in np.linspace(0.24, 0.01, 24))
    return next((found for found in nearby if found is not None), best)


def equal_error(clients: int, order: float = 2.0) -> list[dict]:
    """The root mean squared error of a decoded mean, all proven to have one K of the sum.

    `slack` is the upper over the lower end of K: so much of the squared error may be the bound's.
    """
    goal, rows = GOAL * 40 / clients, []
    for name, family in FAMILIES.items():
        best = tuned(family, clients, order, goal)
        if best is None:
            continue
        moments = rq.moments(best[0])
        error = math.sqrt(moments.mse / clients + moments.bias_max**2)
        slack = best[1].upper / best[1].lower
        rows.append({"mechanism": name, "clients": clients, "error": error, "slack": slack})
        print(f"{clients:5d} clients  {name:16s} {error:.5f} clips, slack {slack:.2f}", flush=True)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, help="the first table, for so many clients")
    parser.add_argument("--errors", action="store_true", help="the second table alone")
    parser.add_argument("--again", action="store_true", help="compute stored entries again")
    asked = parser.parse_args()
    rq.kappa_sum(CHANNELS["1 bit, A=4c"], 2, 2.0)  # compiles
    if not asked.errors:
        cohorts = (asked.clients,) if asked.clients else (10, 100, 1000)
        table = tightness(cohorts, asked.again)
        for clients in cohorts:
            printed(table, clients)
    if not asked.clients:
        rows = [row for clients in COHORTS for row in equal_error(clients)]
        save("several_bits_errors", {"equal_error": rows})
