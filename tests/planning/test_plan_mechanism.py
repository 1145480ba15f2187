"""A plan's mechanism: what it is planned for, what it sends, and from what it is planned."""

from __future__ import annotations

import numpy as np
import pytest

import randquant as rq
from randquant.planning import Candidate, built
from randquant.reports import as_json, as_text

SUMMED = ["stochastic-rounding", "skellam"]


@pytest.fixture(scope="module")
def found():
    return rq.plan(
        30,
        population=12,
        cohort=4,
        rounds=6,
        epsilon=8,
        privacy=rq.Privacy(bits=10),
        mechanisms=SUMMED,
    )


def test_the_mechanism_is_the_recommended_one_and_keeps_the_target(found):
    best = found.recommended
    assert found.mechanism == built(best, found.need)
    assert found.mechanism.trust == "aggregate"
    assert found.mechanism.cohort == 4
    release = found.mechanism.release(30, found.need.participations)
    assert rq.account([release], found.need.delta) == best.guarantee
    assert (found.need.delta, best.guarantee.epsilon <= 8) == (1e-5, True)


def test_the_bytes_are_those_of_a_secure_sum_and_of_encode(found):
    for entry in found.entries:
        mechanism = built(entry, found.need)
        assert entry.bytes_up == mechanism.upload_bytes(30, 4)
        assert entry.bytes_plain == len(mechanism.encode(np.zeros(30), rq.Key.from_seed(0)))


def test_a_model_stands_for_its_parameters(found):
    state = {"w": np.zeros((5, 5), np.float32), "b": np.zeros(5), "steps": np.array(3)}
    options = {"population": 12, "cohort": 4, "rounds": 6, "epsilon": 8, "mechanisms": []}
    assert rq.plan(state, **options).need.dimension == 30

    class Parameter:
        def __init__(self, size, trained=True):
            self.size, self.requires_grad = size, trained

        def numel(self):
            return self.size

    class Model:
        def parameters(self):
            yield from (Parameter(20), Parameter(1000, trained=False), Parameter(10))

    assert rq.plan(Model(), **options).need.dimension == 30
    with pytest.raises(TypeError, match="whole number"):
        rq.plan("model", **options)


def test_no_mechanism_says_what_it_would_take():
    empty = rq.plan(30, population=12, cohort=4, rounds=6, epsilon=8, mechanisms=[])
    with pytest.raises(ValueError, match=r"target that can be met, got epsilon=.*: No mechanism"):
        _ = empty.mechanism


def test_what_takes_longer_is_left_out_and_named(monkeypatch):
    planner = "randquant.planning.planner"
    monkeypatch.setattr(f"{planner}._entry", lambda name, need, *_: Candidate(name, {}))
    monkeypatch.setattr(f"{planner}._accounted", lambda need: 1.0)
    monkeypatch.setattr(f"{planner}._limits", lambda need: [])
    options = {"population": 12, "cohort": 4, "rounds": 6, "epsilon": 8}
    quick = rq.plan(30, **options)
    slow = ["rqm", "pbm", "erm", "qmgeo", "mvu", "imvu", "optimal"]
    assert quick.left_out == slow
    assert {e.mechanism for e in quick.entries}.isdisjoint(quick.left_out)
    assert f"not calibrated, since it takes longer: {', '.join(slow)}" in "\n".join(as_text(quick))
    assert as_json(quick)["left_out"] == slow
    for mechanisms in ("all", ["all"]):
        every = rq.plan(30, mechanisms=mechanisms, **options)
        assert not every.left_out
        assert len(every.entries) == len(quick.entries) + len(slow)
    assert not rq.plan(30, trust="local", **options).left_out
