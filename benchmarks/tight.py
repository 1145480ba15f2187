"""Every proven bound beside the best attack, and seconds: python benchmarks/tight.py [--again]

Whole runs (one bit, Gaussian and integer noise), hidden cohorts beside dp-accounting, and sums of
several bits. Rows that are stored are printed as they are; what is missing is computed and stored,
with --again everything. Mechanisms are calibrated as `plan` does. The attack is the run's lower
end: docs/theory/composition.md, Propositions 11 to 13.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import sampled
import several_bits
from results import commit, save, stored

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant.planning import Privacy
from randquant.planning.planner import plan
from randquant.privacy import Release
from randquant.privacy.accounting import accountant

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lower_ends import lower_end

CASES = [  # dimension, population, cohort, rounds, epsilon, delta, trust, bits
    (650, 200, 200, 50, 8.0, 1e-5, "aggregate", 16),
    (650, 200, 200, 50, 2.0, 1e-5, "aggregate", 16),
    (1000, 100, 100, 20, 8.0, 1e-5, "aggregate", 16),
    (1000, 40, 40, 20, 8.0, 1e-5, "aggregate", 16),
    (1000, 1000, 1000, 20, 1.0, 1e-5, "aggregate", 16),
    (1_200_000, 10_000, 100, 500, 8.0, 1e-6, "aggregate", 16),
    (1_200_000, 10_000, 100, 500, 8.0, 1e-6, "local", 4),
]
NAMES = ("stochastic-rounding", "skellam", "discrete-gaussian", "gaussian")

Made = Callable[[], Release | None]


def demo() -> Release | None:
    """One bit of 200 clients, 650 coordinates, 50 rounds, with noise chosen by hand."""
    mechanism = update_mechanism(
        "stochastic-rounding", {"clip": 0.05, "levels": 2, "margin": 0.275}, trust="aggregate",
        cohort=200, clip_norm=0.5,
    )  # fmt: skip
    return mechanism.release(650, 50)


def planned(case: tuple, name: str) -> Made:
    """What `plan` recommends of one mechanism; None where it has none."""
    dimension, population, cohort, rounds, epsilon, delta, trust, bits = case

    def made() -> Release | None:
        names = None if name == "gaussian" else [name]
        found = plan(
            dimension,
            population,
            cohort,
            rounds,
            epsilon,
            delta,
            trust=trust,
            privacy=Privacy(bits=bits),
            mechanisms=names or ["stochastic-rounding"],
        )
        if names is None:
            noise, kind = found.need.multiplier, "central" if trust == "aggregate" else "local"
            return rq.GaussianRelease(noise, dimension, found.need.participations, kind)
        if found.entries[0].guarantee is None or found.entries[0].baseline:
            return None
        return found.mechanism.release(dimension, found.need.participations, "replace_one")

    return made


def settings() -> dict[str, tuple[Made, float]]:
    """How each row's release is made, and its delta."""
    known: dict[str, tuple[Made, float]] = {"demo": (demo, 1e-5)}
    for case in CASES:
        dimension, _, cohort, rounds, epsilon, delta, trust, _ = case
        for name in NAMES:
            key = f"{dimension:,} / {cohort} / {rounds} / {trust} / {epsilon:g}, {name}"
            known[key] = (planned(case, name), delta)
    return known


def measured(made: Made, delta: float) -> dict:
    """One row; empty where the plan has no such mechanism."""
    release = made()
    if release is None:
        return {}
    started = time.process_time()
    guarantee = accountant.account([release], delta)
    seconds = time.process_time() - started
    renyi, _ = accountant._by_renyi([release], delta)
    return {
        "bound": guarantee.epsilon, "attack": lower_end([release], delta), "renyi": renyi,
        "delta": delta, "seconds": seconds, "commit": commit(),
    }  # fmt: skip


def runs(again: bool) -> None:
    """Whole runs: bound, attack, and Rényi composition, which was the bound before."""
    rows = {} if again else stored("tight").get("rows", {})
    print(f"{'dimension / cohort / rounds / trust / target':68}    bound   attack  over   Rényi")
    for name, (made, delta) in settings().items():
        if name not in rows:
            rows[name] = measured(made, delta)
            save("tight", {"rows": rows}, quiet=True)
        row = rows[name]
        if row:
            over = row["bound"] / row["attack"] if row["attack"] else float("inf")
            print(
                f"{name:68} {row['bound']:8.4f} {row['attack']:8.4f} {over:6.4f} "
                f"{row['renyi']:7.4f} {row['seconds']:6.2f} s",
                flush=True,
            )


def several(again: bool) -> None:
    """Sums of several bits: upper bound over the best attack."""
    found = several_bits.tightness((10, 100, 1000), again)
    rows: dict[tuple, list[dict]] = {}
    for row in sorted(found, key=lambda row: row["order"]):
        rows.setdefault((row["channel"], row["clients"]), []).append(row)
    for (channel, clients), own in rows.items():
        orders = " / ".join(f"{row['order']:g}" for row in own)
        over = " / ".join(f"{row['upper'] / row['lower']:.2f}" for row in own)
        seconds = sum(row["seconds"] for row in own)
        print(f"{channel:20} {clients:5} clients, orders {orders}: {over:30} {seconds:6.1f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--again", action="store_true", help="compute stored rows too")
    asked = parser.parse_args()
    runs(asked.again)
    sampled.rows(asked.again)
    several(asked.again)
