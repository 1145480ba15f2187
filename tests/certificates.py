"""The certificates in `docs/certificates`; `python tests/certificates.py` writes them.

Each is a kind of release, or a way to compose them, that the format states.
"""

import math
from pathlib import Path
from typing import Any

import randquant as rq
from randquant.aggregation import AdditiveMechanism, HelperNoise, gaussian
from randquant.privacy import NEIGHBORINGS, Guarantee, HiddenCohorts
from randquant.rounds import Offer, ReleaseTerms, RoundEvent, RunAccountant, Statement

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


def party_noise(server_noise=True):
    return HelperNoise(1.0, 4.0, clients=40, server_noise=server_noise, bits=12)


def hidden(mechanism, dimension, cohorts):
    """The text of a run in which nobody sees who takes part."""
    claims = [
        rq.account([cohorts.release(mechanism, dimension, cohorts.rounds, relation)], 1e-5)
        for relation in NEIGHBORINGS
    ]
    terms = ReleaseTerms(mechanism, dimension, cohorts.rounds, cohorts=cohorts)
    return Statement([[terms]], claims).text()


def after(before, *, table=None, mechanism=None, delta=1e-5):
    """The text of rounds after a guarantee, a table or both: epsilons add, and deltas."""
    mechanism = mechanism or one_bit()
    first = [each for each in (before, table and table.guarantee) if each is not None]
    left = delta - sum(each.delta for each in first)
    claim = rq.account([mechanism.release(50, 10, "replace_one")], left)
    for each in first:
        claim += each
    terms: list[Any] = [ReleaseTerms(mechanism, 50, 10)]
    terms += [] if table is None else [ReleaseTerms(table, 0, 1)]
    terms += [] if before is None else [before]
    return Statement([terms], [claim]).text()


SPENT = Guarantee(0.5, 1e-6, "replace_one", "aggregate", math.inf, 1)


def survey(queries, *how, **more):
    return rq.survey({name: QUERIES[name] for name in queries}, *how, **more)


def made():
    """The text of each certificate, by its name."""
    skellam = AdditiveMechanism("skellam", 1.0, 4.0, cohort=4, bits=12)
    rounded = AdditiveMechanism("discrete-gaussian", 1.0, 6.0, cohort=10, coordinates=64)
    values: dict[str, tuple[Any, dict[str, Any]]] = {
        "gaussian-central": (gaussian(8.0, clip_norm=1.0), {"dimension": 100, "rounds": 16}),
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
        "party-table": (
            survey(["sex", "height"], 1.0, 1e-6, "aggregate", 40, 40, noise="parties"),
            {},
        ),
        "party-noise": (party_noise(), {"dimension": 50, "rounds": 5, "examples": 50}),
        "party-noise-one-party": (party_noise(False), {"dimension": 50, "rounds": 5}),
    }
    texts = {name: rq.certificate_file(value, **how) for name, (value, how) in values.items()}
    sums = AdditiveMechanism("skellam", 1.0, 4.0, cohort=10, bits=12)
    return texts | {
        "hidden-gaussian": hidden(
            gaussian(2.0, clip_norm=1.0), 5, HiddenCohorts("poisson", 10, 1, 100, models=False)
        ),
        "hidden-one-bit": hidden(one_bit(), 50, HiddenCohorts("poisson", 40, 4, 50)),
        "hidden-skellam": hidden(sums, 50, HiddenCohorts("fixed", 100, 10, 50)),
        "spent": after(SPENT),
        "standardized": after(None, table=survey(["age"], 0.5, 1e-6, "aggregate", 40, 40)),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in made().items():
        (FOLDER / f"{name}.json").write_text(text)
