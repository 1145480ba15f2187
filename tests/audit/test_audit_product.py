"""Every argument of an audit changes what it is about: the claim, the bound, or the trials."""

from __future__ import annotations

import dataclasses
import inspect
import math

import figures
import numpy as np
import pytest
from scipy import stats

import randquant as rq
from randquant.aggregation import LocalGaussian
from randquant.audit import Audit

X, ZERO = np.full(2, 3.0, np.float32), np.zeros(2, np.float32)
USUAL = {
    "mechanism": LocalGaussian(1.0, 1.0), "update": X, "other": -X, "key": rq.Key.from_seed(0),
    "delta": 1e-3, "confidence": 0.95, "trials": 100, "others": None, "neighboring": "replace_one",
}  # fmt: skip
STATED = {"stated", "epsilon_stated"}
COUNTS = {"epsilon_lower", "hits", "event", "likelier"}
OTHERS = {  # another value, and what may be another then
    "mechanism": (LocalGaussian(1.0, 2.0), STATED | COUNTS),
    "update": (X / 8, COUNTS),
    "other": (ZERO, COUNTS),
    "key": (rq.Key.from_seed(1), COUNTS),
    "delta": (1e-2, STATED | COUNTS | {"delta", "ceiling"}),
    "confidence": (0.75, COUNTS | {"confidence", "ceiling"}),
    "trials": (180, COUNTS | {"trials", "counted", "ceiling"}),
    "others": (np.stack([X, X]), COUNTS),
    "neighboring": ("zero_out", STATED | COUNTS),
}


def audited(**changes):
    found = rq.audit(**{**USUAL, **changes})
    return {f.name: getattr(found, f.name) for f in dataclasses.fields(Audit)} | {
        "epsilon_stated": found.epsilon_stated
    }


def test_every_argument_is_here():
    assert [*inspect.signature(rq.audit).parameters] == list(USUAL)
    assert USUAL.keys() == OTHERS.keys()


@pytest.mark.parametrize("name", OTHERS)
def test_an_argument_changes_what_it_must_and_nothing_else(name):
    value, may = OTHERS[name]
    beside = {"other": ZERO} if name == "neighboring" else {}
    before, after = audited(**beside), audited(**{**beside, name: value})
    changed = {each for each in before if before[each] != after[each]}
    assert changed <= may
    assert (
        changed >= {each for each in may - COUNTS if each not in ("ceiling",)} or changed & COUNTS
    )
    assert changed or name == "others"


@pytest.mark.parametrize(
    ("neighboring", "delta", "confidence", "trials"),
    [
        ("replace_one", 1e-3, 0.75, 200), ("zero_out", 1e-2, 0.75, 401),
        ("replace_one", 1e-2, 0.95, 401), ("zero_out", 1e-3, 0.95, 200),
    ],
)  # fmt: skip
def test_the_claim_and_the_bound_are_those_of_the_arguments(neighboring, delta, confidence, trials):
    other = ZERO if neighboring == "zero_out" else -X
    found = rq.audit(**{**USUAL, "neighboring": neighboring, "delta": delta, "trials": trials,
                        "confidence": confidence, "other": other})  # fmt: skip
    square = (figures.radii(neighboring) / (2 * 0.5)) ** 2
    exact = figures.of_gaussian(square, delta)
    assert exact * (1 - 1e-9) <= found.epsilon_stated <= exact * (1 + 1e-9)
    assert (found.stated.delta, found.stated.neighboring) == (delta, neighboring)
    assert (found.stated.trust, found.stated.releases) == ("local", 2)
    assert (found.trials, found.counted) == (trials, trials - trials // 2)
    error = (1 - confidence) / 2
    hits, others = found.hits
    assert hits / found.counted > others / found.counted
    assert math.isclose(
        found.epsilon_lower, _bound(hits, others, found.counted, delta, error), rel_tol=1e-6
    )
    assert math.isclose(
        found.ceiling, _bound(found.counted, 0, found.counted, delta, error), rel_tol=1e-6
    )


def _bound(hits, others, trials, delta, error):
    """Clopper and Pearson's bounds by scipy's beta law."""
    low = stats.beta.ppf(error, hits, trials - hits + 1)
    high = stats.beta.isf(error, others + 1, trials - others)
    return max(0.0, math.log(max(low - delta, 1e-300) / high))


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_others_are_seen_where_the_server_sees_a_sum_only(trust):
    """Of a cohort of another size, or with other updates, the outcome is another."""
    channel = rq.stochastic_rounding(1.0, 2, 0.5)
    mechanism = rq.ChannelMechanism(channel, trust, 2 if trust == "aggregate" else 1)
    one = np.ones(1, np.float32)
    base = {**USUAL, "mechanism": mechanism, "update": one, "other": -one, "delta": 0.0}
    few = rq.audit(**{**base, "key": rq.Key.from_seed(3)})
    many = rq.audit(**{**base, "key": rq.Key.from_seed(3), "others": np.zeros((4, 1), np.float32)})
    assert (many.epsilon_lower < few.epsilon_lower) == (trust == "aggregate")
