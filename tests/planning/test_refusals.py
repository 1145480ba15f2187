"""What nothing can be planned or compared for: each rule with a call against it."""

import pytest

import randquant as rq
from randquant.aggregation import ClippedSGD
from randquant.planning import compare
from randquant.privacy import Ledger

SIZES = {"dimension": 20, "population": 40, "cohort": 20, "rounds": 2, "epsilon": 8.0}
SPENT = rq.Guarantee(0.5, 1e-6, "replace_one", "local", float("inf"), 1)


def planned(trust="aggregate", mechanisms=("stochastic-rounding",), **privacy):
    return rq.plan(**SIZES, trust=trust, mechanisms=mechanisms, privacy=rq.Privacy(**privacy))


REFUSED = {
    "a cap of participations where nobody sees who takes part": (
        lambda: planned("model", max_participations=1), ValueError,
        "no max_participations under model trust, got 1"),
    "a secret draw that the server sees": (
        lambda: planned("local", sampling="poisson"), ValueError,
        "trust='model' with sampling='poisson', got 'local'"),
    "a helper's noise where each client's codes are seen": (
        lambda: planned("local", noise="helper"), ValueError, "trust='aggregate' with noise"),
    "a mechanism of the helper without its noise": (
        lambda: planned(mechanisms=["helper-noise"]), ValueError,
        "noise='helper' or noise='parties' in privacy with helper-noise"),
    "a number as what was spent": (
        lambda: rq.Privacy(spent=0.5), TypeError, "spent to be a guarantee"),
    "what was spent before a run without privacy": (
        lambda: Ledger(ClippedSGD(None, 1.0), 20, delta=1e-5, spent=SPENT), ValueError,
        "a mechanism that protects with spent"),
    "a channel in place of its release": (
        lambda: rq.account([rq.rqm(1.0, 1.0, 4, 0.4)], 1e-5), TypeError,
        "got a Channel, which says nothing about how often"),
    "no bits": (
        lambda: rq.compare(clip=1.0, bits=[], epsilon=1.0), ValueError, "one number of bits"),
    "nine bits": (
        lambda: rq.compare(clip=1.0, bits=9, epsilon=1.0), ValueError, "<= 8, got bits=9"),
    "no channel": (lambda: compare.compare_channels([]), ValueError, "at least one channel"),
    "a channel without parameters": (
        lambda: compare.compare_channels(["rqm"]), TypeError, "for each channel, got 'rqm'"),
}  # fmt: skip
"""By what is wrong: a call, the error, and what it says."""


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_nothing_can_be_planned_for_is_refused_and_not_dropped(wrong):
    call, error, said = REFUSED[wrong]
    with pytest.raises(error, match=said):
        call()
