"""Epsilons of stored runs, as stated and as proven now: python benchmarks/epsilons.py

Nothing is trained: a run's noise is in its record. A run that is repeated is calibrated with
today's account.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import private_training as training
from planned import COHORT, DELTA, DIMENSION
from results import save, stored
from tight import demo

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant.privacy import Release, account

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from lower_ends import lower_end

Row = tuple[str, float, Release, float]
"""A name, the epsilon that was stated, the release, and delta."""


def trained() -> Iterator[Row]:
    """Runs of private_training.py that protect."""
    for row in stored("private_training")["runs"]:
        if row["epsilon"] is None:
            continue
        digits = row["dataset"] == "digits"
        config = training.DIGITS if digits else training.FASHION
        plain = row["mechanism"] == "gaussian"
        mechanism = update_mechanism(
            row["mechanism"], row["parameters"], trust=None if plain else "aggregate",
            cohort=None if plain else config.cohort,
            clip_norm=None if plain else config.privacy.clip_norm,
        )  # fmt: skip
        release = mechanism.release(650 if digits else 50_890, row["rounds"], row["neighboring"])
        assert release is not None
        name = f"private_training: {row['dataset']}, {row['neighboring']}, {row['mechanism']}"
        yield name, row["epsilon"], release, training.DELTA


def others() -> Iterator[Row]:
    """The demo, on Flower too; the planned run; the notebook's."""
    release = demo()
    assert release is not None
    yield "flower_simulation: make demo", stored("flower_simulation")["epsilon"], release, 1e-5
    row = stored("planned")
    mechanism = update_mechanism(
        row["mechanism"], row["parameters"], trust="aggregate", cohort=COHORT, clip_norm=1.0
    )
    release = mechanism.release(DIMENSION, row["participations"])
    assert release is not None
    yield "planned", row["planned_epsilon"], release, DELTA
    row = stored("fashion_mnist")
    channel = rq.ChannelRelease(
        rq.rqm(**row["parameters"]), row["dimension"], row["participations"]
    )
    yield "fashion_mnist", row["guarantee"]["epsilon"], channel, row["guarantee"]["delta"]


if __name__ == "__main__":
    found = {}
    print(f"{'run':66} {'stated':>12} {'now':>12} {'attack':>12}")
    for name, stated, release, delta in (*others(), *trained()):
        guarantee, lower = account([release], delta), lower_end([release], delta)
        found[name] = {"stated": stated, "now": guarantee.epsilon, "attack": lower}
        print(f"{name:66} {stated:12.6g} {guarantee.epsilon:12.6g} {lower:12.6g}")
    save("epsilons", {"runs": found})
