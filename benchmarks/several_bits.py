"""Secure sums of several bits: upper bounds over the best attack, and error at equal epsilon.

python benchmarks/several_bits.py                 both tables
python benchmarks/several_bits.py --errors        the second alone
    ... --clients 100   for so many clients;  --again   computes stored entries again
"""

import argparse
import functools
import itertools
import math
import time
from typing import NamedTuple

import numpy as np
from results import commit, save, stored

import randquant as rq
from randquant.mechanisms import Fisher, optimal
from randquant.privacy import by_distance

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


class Table(NamedTuple):
    """Where a table is stored, and what tells its entries apart."""

    file: str
    name: str
    keys: tuple[str, ...]


BOUNDS = Table("several_bits", "tightness", ("channel", "clients", "order"))
ERRORS = Table("several_bits_errors", "equal_error", ("mechanism", "clients"))

COHORTS, GOAL, STEPS = (40, 200, 1000), 0.002, 11
"""Clients of the second table; the K at order 2, per squared clip, of a sum of 40 to which every
mechanism is tuned (its share of that, where there are more); and how often the noise is halved."""

WALK, FARTHEST = (2.0**-4, 2.0**-6, 2.0**-8), 1.0
"""Steps by which the logarithm of the noise grows until the proven K is at most the goal."""

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
    known = {} if again else kept(BOUNDS)
    for order, clients, (name, channel) in itertools.product(ORDERS, cohorts, CHANNELS.items()):
        if (name, clients, order) in known:
            continue
        started = time.process_time()
        found = rq.kappa_sum(channel, clients, order)
        row = {
            "channel": name, "clients": clients, "order": order, "lower": found.lower,
            "upper": found.upper, "seconds": time.process_time() - started,
        }  # fmt: skip
        keep(BOUNDS, row)
        over = f"{found.upper / found.lower:.2f}"
        print(f"{clients:5d} clients  {name:20s} {order:4g}: {over}, {row['seconds']:.1f} s")
    return list(kept(BOUNDS).values())


def kept(table: Table) -> dict[tuple, dict]:
    """Entries that say which code they are of, by what they are for."""
    rows = stored(table.file).get(table.name, [])
    return {tuple(r[key] for key in table.keys): r for r in rows if "commit" in r}


def keep(table: Table, row: dict) -> None:
    """Store one entry at once: others may be computed at the same time."""
    entry = {tuple(row[key] for key in table.keys): {**row, "commit": commit()}}
    save(table.file, {table.name: list((kept(table) | entry).values())}, quiet=True)


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
    best, least = None, attacked(family, clients, order, goal)
    if least is None:
        return None
    for step in WALK:
        for log_noise in np.arange(least, least + FARTHEST, step):
            channel = made(family, log_noise)
            found = rq.kappa_sum(channel, clients, order)
            if found.upper <= goal:
                # Finer steps begin where there was too little noise.
                best, least = (channel, found), max(least, log_noise - step)
                break
    return best


@functools.cache
def made(family, log_noise: float) -> rq.Channel:
    return family(math.exp(log_noise))


def attacked(family, clients: int, order: float, goal: float) -> float | None:
    """The logarithm of the least noise behind which the attack's K is at most the goal."""

    def hidden(log_noise: float) -> bool:
        try:
            channel = made(family, log_noise)
        except ValueError:  # no such channel: there is too little noise
            return False
        return by_distance(channel, clients - 1, order)[0] <= goal

    low, high, best = math.log(0.05), math.log(30.0), None
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high, best = (low, middle, middle) if hidden(middle) else (middle, high, best)
    # As levels pass the ends of the inputs, K does not always fall with the noise.
    nearby = (high - back for back in np.linspace(0.24, 0.01, 24))
    return next((each for each in nearby if hidden(each)), best)


def equal_error(clients: int, again: bool, order: float = 2.0) -> None:
    """The root mean squared error of a decoded mean, all proven to have one K of the sum.

    `slack` is the upper over the lower end of K: so much of the squared error may be the bound's.
    """
    goal, known = GOAL * 40 / clients, {} if again else kept(ERRORS)
    for name, family in FAMILIES.items():
        if (name, clients) in known:
            continue
        started = time.process_time()
        best = tuned(family, clients, order, goal)
        if best is None:
            continue
        channel, found = best
        moments = rq.moments(channel)
        error = math.sqrt(moments.mse / clients + moments.bias_max**2)
        row = {
            "mechanism": name, "clients": clients, "error": error, "of_goal": found.upper / goal,
            "slack": found.upper / found.lower, "seconds": time.process_time() - started,
        }  # fmt: skip
        keep(ERRORS, row)
        print(f"{clients:5d} clients  {name:16s} {error:.5f} clips, "
              f"slack {row['slack']:.2f}, {row['seconds']:.1f} s", flush=True)  # fmt: skip


def compared() -> None:
    """Errors beside one bit's, of which docs/plan-explained.md has the differences."""
    rows = kept(ERRORS)
    print("\n| mechanism | " + " | | ".join(f"{n:,} clients" for n in COHORTS) + " | |")
    for name in FAMILIES:
        cells = [f"| {name} |"]
        for clients in COHORTS:
            row, one = rows.get((name, clients)), rows.get(("one bit", clients))
            if row is None or one is None:
                cells.append("- | - |")
                continue
            more = 100 * (row["error"] / one["error"] - 1)
            cells.append(f"{row['error']:.4f} | {more:+.1f} %, {row['slack']:.2f} |")
        print(" ".join(cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, help="for so many clients")
    parser.add_argument("--errors", action="store_true", help="the second table alone")
    parser.add_argument("--again", action="store_true", help="compute stored entries again")
    asked = parser.parse_args()
    rq.kappa_sum(CHANNELS["1 bit, A=4c"], 2, 2.0)  # compiles
    if not asked.errors:
        cohorts = (asked.clients,) if asked.clients else (10, 100, 1000)
        table = tightness(cohorts, asked.again)
        for clients in cohorts:
            printed(table, clients)
    if asked.errors or not asked.clients:
        for clients in (asked.clients,) if asked.clients else COHORTS:
            equal_error(clients, asked.again)
        compared()
