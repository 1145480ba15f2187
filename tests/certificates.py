"""The ten certificates in `docs/certificates`; `python tests/certificates.py` writes them.

Each is a kind of release, or a way to compose them, that the format states.
"""

from pathlib import Path
from typing import Any

import randquant as rq
from randquant.aggregation import AdditiveMechanism, gaussian
from randquant.rounds import Offer, RoundEvent, RunAccountant

FOLDER = Path(__file__).parents[1] / "docs" / "certificates"
BIT = rq.stochastic_rounding(clip=0.125, levels=2, margin=0.875)
RQM = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
QUERIES = {
    "age": rq.Mean(18, 100),
    "sex": rq.Counts(["f", "m"]),
    "height": rq.Quantiles(100, 220),
    "both": rq.Covariance({"age": (18, 100), "height": (100, 220), "weight": (30, 200)}),
}


def two_offers():
    """An account of two kinds of offers, in which no client has all answers of another."""
    accountant = RunAccountant(delta=1e-5)
    few, many = (
        rq.VectorMechanism(BIT, 0.5, "aggregate", cohort, coordinates=k)
        for cohort, k in ((40, 32), (60, None))
    )
    accountant.compose(RoundEvent(Offer(few, 50), frozenset({1, 2})), 30)
    accountant.compose(RoundEvent(Offer(many, 50), frozenset({2, 3})), 20)
    accountant.compose(RoundEvent(Offer(few, 50), frozenset({1})), 10)
    return accountant


def one_bit(trust: Any = "aggregate", cohort=40, **how):
    return rq.VectorMechanism(BIT, clip_norm=0.5, trust=trust, cohort=cohort, **how)


def survey(queries, *how, **more):
    return rq.survey({name: QUERIES[name] for name in queries}, *how, **more)


def made():
    """The text of each certificate, by its name."""
    skellam = AdditiveMechanism("skellam", 1.0, 2.0, cohort=4, bits=12)
    rounded = AdditiveMechanism("discrete-gaussian", 1.0, 3.0, cohort=10, coordinates=64)
    values = {
        "gaussian-central": (gaussian(4.0, clip_norm=1.0), {"dimension": 100, "rounds": 16}),
        "one-bit-sum": (one_bit(), {"dimension": 50, "rounds": 100}),
        "one-bit-local": (one_bit("local", 1), {"dimension": 50, "rounds": 2}),
        "one-bit-few-examples": (
            one_bit(coordinates=13),
            {"dimension": 1024, "rounds": 20, "examples": 5},
        ),
        "skellam": (skellam, {"dimension": 100, "rounds": 10, "examples": 50}),
        "discrete-gaussian-subset": (
            rounded,
            {"dimension": 650, "rounds": 25, "examples": 20, "delta": 1e-6},
        ),
        "rqm-coordinates": (rq.ChannelMechanism(RQM), {"dimension": 3, "rounds": 2}),
        "two-offers": (two_offers(), {}),
        "table-laplace": (survey(["age", "sex"], 1.0, 1e-6, "central", 600, 600), {}),
        "table-skellam": (
            survey(QUERIES, 1.0, 1e-6, "aggregate", 20, 2000, unit="example", most=300),
            {},
        ),
    }
    return {name: rq.certificate_file(value, **how) for name, (value, how) in values.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in made().items():
        (FOLDER / f"{name}.json").write_text(text)
