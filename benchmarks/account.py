"""Epsilon of 1 to 10^9 releases from both sides, with time: python benchmarks/account.py"""

import resource
import sys
import time
from pathlib import Path

from certify import table
from results import save

import randquant as rq
from randquant.privacy import ORDERS, ChannelRelease, account
from randquant.privacy.accounting.accountant import _composed, _to_epsilon

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lower_ends import channel_below

DELTA = 1e-5
COUNTS = (1, 10, 650, 10**4, 10**5, 10**6, 10**8, 10**9)


def seconds_of(channel: rq.Channel, releases: int) -> float:
    started = time.perf_counter()
    account([ChannelRelease(channel, releases, 1)], DELTA)
    return time.perf_counter() - started


def measured(channel: rq.Channel, releases: int) -> dict[str, float]:
    release = [ChannelRelease(channel, releases, 1)]
    started = time.perf_counter()
    guarantee = account(release, DELTA)
    seconds = time.perf_counter() - started
    renyi = min(_to_epsilon(_composed(release, order), order, DELTA) for order in ORDERS)
    return {
        "lower": channel_below(channel, releases, DELTA),
        "upper": guarantee.epsilon,
        "renyi": renyi,
        "seconds": seconds,
    }


if __name__ == "__main__":
    channels = {
        "rqm 16": rq.rqm(1.5, 1.5, 16, 0.42),
        "pbm 15 trials": rq.pbm(1.5, 0.25, 15),
        "64 levels, 128 vertices": table(128, 64),
    }
    found, first = {}, {}
    for name, channel in channels.items():
        first[name] = seconds_of(channel, 650)  # later calls find the certificates kept
        print(name, f"first call {first[name]:.2f} s")
        found[name] = {str(count): measured(channel, count) for count in COUNTS}
        for count, row in found[name].items():
            print(
                name, count, "[{lower:.9g}, {upper:.9g}], Rényi {renyi:.9g}".format(**row), end=" "
            )
            print(f"{row['seconds']:.2f} s")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    save(
        "account",
        {
            "delta": DELTA,
            "releases": found,
            "seconds_first_call": first,
            "peak_memory_bytes": peak,
        },
    )
