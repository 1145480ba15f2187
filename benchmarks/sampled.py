"""Epsilon of hidden cohorts beside dp-accounting's: python benchmarks/sampled.py"""

import itertools
import sys
import time

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from results import save

import randquant as rq

DELTA = 1e-5
RATES = (0.001, 0.01, 0.1, 0.5)
ROUNDS = (1, 100, 1000, 10_000)
SIGMAS = (0.5, 1.0, 4.0)
"""Noise over the norm of one update, which is what dp-accounting's multiplier means."""

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
    return rq.Sampled.of_cohort(replaced, 1000, round(1000 * rate), rounds)


def theirs(kind: str, rate: float, sigma: float, rounds: int, step: float) -> float:
    """Of a cohort of a fixed size, a Poisson one of rate 1 that is always truncated."""
    if kind == "fixed, replace_one":
        loss = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            1000, 1.0, round(1000 * rate), sigma, step, neighboring_relation=THEIRS[kind]
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


def main(kinds: list[str]) -> None:
    found = {}
    print(f"{'':21} sigma  rate rounds       ours     theirs  ratio  seconds  theirs")
    for kind in kinds or THEIRS:
        for sigma, rate, rounds in itertools.product(SIGMAS, RATES, ROUNDS):
            # Their memory grows with the loss over the step.
            step = 1e-4 if rounds <= 100 or sigma == 4.0 else 1e-3
            release = sampled(kind, rate, sigma, rounds)
            guarantee, seconds = timed(rq.account, [release], DELTA)
            epsilon, their_seconds = timed(theirs, kind, rate, sigma, rounds, step)
            row = {
                "ours": guarantee.epsilon,
                "theirs": epsilon,
                "seconds": seconds,
                "seconds_theirs": their_seconds,
            }
            found.setdefault(kind, {})[f"{sigma} {rate} {rounds}"] = row
            print(
                f"{kind:21} {sigma:5} {rate:5} {rounds:6} {guarantee.epsilon:10.6g} "
                f"{epsilon:10.6g} {guarantee.epsilon / epsilon:6.4f} {seconds:8.2f} "
                f"{their_seconds:7.2f}",
                flush=True,
            )
    if not kinds:
        save("sampled", {"delta": DELTA, "epsilon": found})


if __name__ == "__main__":
    main(sys.argv[1:])
