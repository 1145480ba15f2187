"""Long work says how far it is: honestly, however deep it is, and only to whoever waits."""

from __future__ import annotations

import numpy as np
import pytest

import randquant as rq
from randquant._internal.progress import report, reporting, step
from randquant.mechanisms.design.constraints import Pure
from randquant.mechanisms.design.solver import optimal
from randquant.planning.plan.planner import plan
from randquant.planning.privacy import Privacy
from randquant.privacy.certificates.sums.certificate import certify_sum
from randquant.privacy.certificates.sums.sum_curvature import kappa_sum


@pytest.fixture
def seen():
    """What is reported; done never passes total, where that is known."""
    reports = []

    def hear(what, done, total):
        assert done >= 0
        assert total == 0 or done <= total
        reports.append((what, done, total))

    with reporting(hear):
        yield reports


def shares(seen, word):
    """(done, total) of the reports whose text has a word: rising, of one known total."""
    found = [(done, total) for what, done, total in seen if word in what]
    assert found == sorted(found)
    assert len({total for _, total in found}) == 1
    return found


def test_reports_go_to_the_nearest_listener_and_nowhere_else(seen):
    inner = []
    with reporting(lambda *each: inner.append(each)):
        report("inside", 1, 2)
    report("outside", 2, 2)
    assert inner == [("inside", 1, 2)]
    assert seen == [("outside", 2, 2)]


def test_a_step_names_what_it_does_and_ends_with_an_error_too(seen):
    def fails():
        with step("pbm", 1, 3):
            report("noise 2", 7, 0)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    report("after", 2, 3)
    assert seen == [("pbm", 1, 3), ("pbm: noise 2", 1, 3), ("after", 2, 3)]


def test_a_plan_counts_its_mechanisms(seen):
    plan(50, 20, 20, 3, 8.0, mechanisms=["binomial", "skellam"], privacy=Privacy(bits=12))
    assert shares(seen, "")[0] == (0, 2)
    assert ("skellam", 1, 2) in seen
    assert seen[-1] == ("", 2, 2)
    assert any(what.startswith("skellam: noise ") for what, _, _ in seen)


def test_a_sum_counts_how_the_others_are_spread(seen):
    channel = rq.stochastic_rounding(0.123, 2, margin=0.7)
    kappa_sum(channel, 300, 2.5)
    assert ("how the others are spread", 16, 150) in seen
    del seen[:]
    certify_sum(rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.37), 4, 2.0)
    found = shares(seen, "spread, %")
    assert (found[0], found[-1][1]) == ((0, 100), 100)


def test_a_design_counts_its_starting_points(seen):
    optimal(1.0, levels=2, constraint=Pure(1.0), objective="mse", inputs=3)
    assert shares(seen, "stage 1 of") == [(done, 6) for done in range(6)]


def test_an_audit_counts_its_trials(seen):
    one = np.ones(1, dtype=np.float32)
    mechanism = rq.ChannelMechanism(rq.pbm(clip=1.0, theta=0.25, trials=1))
    rq.audit(mechanism, one, -one, trials=600, key=rq.Key.from_seed(0))
    assert shares(seen, "trials") == [(done, 1200) for done in (0, 256, 512, 600, 856, 1112)]
