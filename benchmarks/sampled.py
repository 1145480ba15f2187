"""Epsilon of hidden cohorts beside dp-accounting's: python benchmarks/sampled.py

Rows of theirs that are stored are not computed again; ours all are. `tight.py` prints what is
stored.
"""

import itertools
import sys
import time
from pathlib import Path

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from results import commit, save, stored

import randquant as rq

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lower_ends import lower_end

DELTA = 1e-5
RATES = (0.001, 0.01, 0.1, 0.5)
ROUNDS = (1, 100, 1000, 10_000)
SIGMAS = (0.5, 1.0, 4.0)
"""Noise over the norm of one update, which is what dp-accounting's multiplier means."""

POPULATION = 1000

THEIRS = {
    "poisson, zero_out": NeighboringRelation.REPLACE_SPECIAL,
    "poisson, replace_one": NeighboringRelation.REPLACE_ONE,
    "fixed, replace_one": NeighboringRelation.REPLACE_ONE,
}


def sampled(kind: str, rate: float, sigma: float, rounds: int) -> rq.Sampled:
    """Our release: its multiplier is over the distance of neighbours."""
    zeroed = rq.GaussianRelease(sigma, 10, 1, neighboring="zero_out")
    replaced = rq.GaussianRelease(sigma / 2, 10, 1)
    if kind == "poisson, zero_out":
        return rq.Sampled(zeroed, rate, rounds)
    if kind == "poisson, replace_one":
        return rq.Sampled(replaced, rate, rounds, absent=zeroed)
    return rq.Sampled.from_cohort(replaced, POPULATION, round(POPULATION * rate), rounds)


def theirs(kind: str, rate: float, sigma: float, rounds: int) -> float:
    """Of a cohort of a fixed size, a Poisson one of rate 1 that is always truncated."""
    # Their memory grows with the loss over the step.
    step = 1e-4 if rounds <= 100 or sigma == 4.0 else 1e-3
    if kind == "fixed, replace_one":
        loss = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            POPULATION,
            1.0,
            round(POPULATION * rate),
            sigma,
            step,
            neighboring_relation=THEIRS[kind],
        )
    else:
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=step,
            neighboring_relation=THEIRS[kind],
        )
    return loss.self_compose(rounds).get_epsilon_for_delta(DELTA)


def timed(call, *arguments):
    started = time.process_time()
    return call(*arguments), time.process_time() - started


def measured(row: dict, kind: str, rate: float, sigma: float, rounds: int) -> dict:
    """One row, from what is known of it."""
    if "theirs" not in row:
        epsilon, seconds = timed(theirs, kind, rate, sigma, rounds)
        row = {"theirs": epsilon, "seconds_theirs": seconds}
    run = sampled(kind, rate, sigma, rounds)
    guarantee, seconds = timed(rq.account, [run], DELTA)
    return {
        **row, "ours": guarantee.epsilon, "attack": lower_end([run], DELTA), "seconds": seconds,
        "commit": commit(),
    }  # fmt: skip


def rows(again: bool) -> None:
    """Every setting: ours, its lower end, theirs, and seconds; printed, and stored one by one."""
    known, found = stored("sampled").get("epsilon", {}), {}
    print(f"{'':21} sigma  rate rounds       ours     theirs  ratio  attack  seconds  theirs")
    for kind in THEIRS:
        found[kind] = dict(known.get(kind, {}))
        for sigma, rate, rounds in itertools.product(SIGMAS, RATES, ROUNDS):
            setting = f"{sigma} {rate} {rounds}"
            row = found[kind].get(setting, {})
            if again or "attack" not in row:
                found[kind][setting] = row = measured(row, kind, rate, sigma, rounds)
                save("sampled", {"delta": DELTA, "epsilon": {**known, **found}}, quiet=True)
            print(
                f"{kind:21} {sigma:5} {rate:5} {rounds:6} {row['ours']:10.6g} "
                f"{row['theirs']:10.6g} {row['ours'] / row['theirs']:6.4f} "
                f"{row['ours'] / max(row['attack'], 1e-9):7.4f} {row['seconds']:8.2f} "
                f"{row['seconds_theirs']:7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    rows(again=True)
