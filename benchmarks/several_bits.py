"""Secure sums of several bits: upper bounds over the best attack, and error at equal epsilon.

python benchmarks/several_bits.py                 both tables
python benchmarks/several_bits.py --clients 100   the first of them, for so many clients
python benchmarks/several_bits.py --errors        the second
"""

import argparse
import functools
import math
import time

import numpy as np
from results import save

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
ORDERS = (2.0, 8.0, 32.0)

COHORTS, GOAL, STEPS = (40, 200, 1000), 0.002, 11
"""Clients of the second table; the K at order 2, per squared clip, of a sum of 40 to which every
mechanism is tuned (its share of that, where there are more); and how often the noise is halved."""

EXACT, TRIES = 0.98, 2
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


def tightness(clients: int) -> list[dict]:
    """Upper bound over lower end of `kappa_sum`, and seconds, channel by channel."""
    rows = []
    for name, channel in CHANNELS.items():
        for order in ORDERS:
            started = time.process_time()
            found = rq.kappa_sum(channel, clients, order)
            seconds = time.process_time() - started
            rows.append({
                "channel": name, "clients": clients, "order": order, "lower": found.lower,
                "upper": found.upper, "seconds": seconds,
            })  # fmt: skip
        last = rows[-len(ORDERS) :]
        over = " / ".join(f"{row['upper'] / row['lower']:.2f}" for row in last)
        seconds = sum(row["seconds"] for row in last)
        print(f"{clients:5d} clients  {name:20s} {over:24s} {seconds:5.1f} s", flush=True)
    return rows


def tuned(family, clients: int, order: float, goal: float):
    """The least noise, nearly, whose proven K is at most the goal: (channel, K), or None."""
    best, aim = None, goal
    for _ in range(TRIES):
        channel = attacked(family, clients, order, aim)
        if channel is None:
            return best
        found = rq.kappa_sum(channel, clients, order)
        if found.upper <= goal:
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
    low, high, best = math.log(0.05), math.log(30.0), None
    for _ in range(STEPS):
        middle = (low + high) / 2
        try:
            channel = made(family, middle)
            above = reached(channel, clients, order)[0] > goal
        except ValueError:  # no such channel: there is too little noise
            above = True
        if above:
            low = middle
        else:
            high, best = middle, channel
    return best


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
    asked = parser.parse_args()
    rq.kappa_sum(CHANNELS["1 bit, A=4c"], 2, 2.0)  # compiles
    if not asked.errors:
        cohorts = (asked.clients,) if asked.clients else (10, 100, 1000)
        table = [row for clients in cohorts for row in tightness(clients)]
        if not asked.clients:
            save("several_bits", {"tightness": table})
    if not asked.clients:
        rows = [row for clients in COHORTS for row in equal_error(clients)]
        save("several_bits_errors", {"equal_error": rows})
