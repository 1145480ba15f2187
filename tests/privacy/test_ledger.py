"""What a run has cost so far, as it is asked for round by round."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest

import randquant as rq
from randquant.aggregation import VectorMechanism, update_mechanism
from randquant.privacy import Guarantee, Ledger, run_release
from randquant.privacy.accounting import ledger as ledger_module

NOISY = update_mechanism("local-gaussian", {"clip_norm": 1.0, "noise_multiplier": 18.0})
COORDINATES = update_mechanism("rqm", {"clip": 1.5, "margin": 1.5, "levels": 4, "keep": 0.4})


def paid(mechanism, dimension, rounds, neighboring="replace_one", *, quick=False, examples=None):
    release = run_release(mechanism, dimension, rounds, neighboring, examples=examples)
    return rq.account([release], 1e-5, quick=quick)


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
def test_every_participation_is_accounted_for(neighboring):
    mechanism = NOISY
    ledger = Ledger(mechanism, 5, delta=1e-5, neighboring=neighboring)
    for rounds in (1, 7, 2, 7):  # in any order, and again
        assert ledger.epsilon(rounds) == paid(mechanism, 5, rounds, neighboring, quick=True).epsilon
        assert ledger.guarantee(rounds) == paid(mechanism, 5, rounds, neighboring)
        assert ledger.guarantee(rounds).epsilon <= ledger.epsilon(rounds)
    assert ledger.epsilon(0) == 0.0
    assert ledger.epsilon(1) < ledger.epsilon(2) < ledger.epsilon(7)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("rounds", [1, 20])
def test_what_was_spent_before_leaves_the_rest_of_delta(share, rounds):
    """Epsilons and deltas add up (Dwork et al. 2006): the run has what is left, and no more."""
    before = Guarantee(1.5, share * 1e-5, "replace_one", "local", math.inf, 1)
    ledger = Ledger(NOISY, 5, delta=1e-5, spent=before)
    release, rest = NOISY.release(5, rounds), Fraction(1e-5) - Fraction(before.delta)
    for quick, found in ((False, ledger.guarantee(rounds).epsilon), (True, ledger.epsilon(rounds))):
        low, high = (
            rq.account([release], float(rest) * factor, quick=quick).epsilon
            for factor in (1 + 1e-9, 1 - 1e-9)
        )
        assert (1.5 + low) * (1 - 1e-15) <= found <= (1.5 + high) * (1 + 1e-15)
        assert found > 1.5 + rq.account([release], 1e-5, quick=quick).epsilon
    assert ledger.guarantee(rounds).delta == 1e-5


@pytest.mark.parametrize("spent", [None, Guarantee(1.5, 1e-6, "replace_one", "local", 2.0, 1)])
def test_a_simulated_run_says_so_in_its_guarantee(spent):
    for simulated in (True, False):
        ledger = Ledger(NOISY, 5, delta=1e-5, simulated=simulated, spent=spent)
        assert ledger.guarantee(3).simulated is simulated


def test_about_the_limit_epsilon_is_as_low_as_accounting_gets(monkeypatch):
    """Up to the limit quick accounting will do; beyond it a better bound is looked for."""
    asked = []

    def account(releases, delta, *, quick=False):
        (release,) = releases
        asked.append((release.rounds, delta, quick))
        epsilon = release.rounds * (2.0 if quick else 1.5)
        return Guarantee(epsilon, delta, "replace_one", "local", math.inf, 1)

    monkeypatch.setattr(ledger_module, "account", account)
    ledger = Ledger(NOISY, 5, delta=1e-5, limit=8.0)
    assert [ledger.epsilon(rounds) for rounds in (1, 4, 5, 5)] == [2.0, 8.0, 7.5, 7.5]
    expected = [(1, True), (4, True), (5, True), (5, False)]  # each once
    assert asked == [(rounds, 1e-5, quick) for rounds, quick in expected]
    assert ledger.guarantee(2).epsilon == 3.0
    assert asked[-1] == (2, 1e-5, False)


def test_one_example_costs_less_than_a_client():
    ledger = Ledger(NOISY, 5, delta=1e-5, examples=20)
    assert ledger.epsilon(3) == paid(NOISY, 5, 3, quick=True, examples=20).epsilon
    assert ledger.guarantee(3) == replace(paid(NOISY, 5, 3, examples=20), unit="example")
    assert Ledger(NOISY, 5, delta=1e-5).guarantee(3).unit == "client"
    assert ledger.epsilon(3) < Ledger(NOISY, 5, delta=1e-5).epsilon(3) / 10


def test_without_privacy_there_is_no_figure():
    ledger = Ledger(update_mechanism("clipped-sgd", {"clip": 1.0}), 5, delta=1e-5)
    assert (ledger.release(3), ledger.guarantee(3), ledger.epsilon(3)) == (None, None, None)


def test_what_cannot_be_accounted_for_is_refused_at_once():
    with pytest.raises(ValueError, match="delta"):
        Ledger(NOISY, 5, delta=1.5)
    with pytest.raises(TypeError):
        Ledger(NOISY, 5, 1e-5)  # delta, or the limit?
    with pytest.raises(ValueError, match="dimension"):
        Ledger(NOISY, 0, delta=1e-5)
    with pytest.raises(ValueError, match="clips the norm of each example"):
        Ledger(COORDINATES, 5, delta=1e-5, examples=3)


def test_an_example_is_called_an_example_wherever_it_is_accounted():
    """The unit is the release's, also where nobody keeps a ledger; it is not mixed with clients."""
    vector = VectorMechanism(rq.stochastic_rounding(0.5, 2, margin=2.0), 1.0)
    for mechanism in (NOISY, vector):
        release = mechanism.release(16, 1)
        one = run_release(mechanism, 16, 1, examples=10)
        assert (rq.account([release], 1e-5).unit, rq.account([one], 1e-5).unit) == (
            "client",
            "example",
        )
        assert "replace_one example" in str(rq.account([one], 1e-5))
        with pytest.raises(ValueError, match="one unit"):
            rq.account([one, release], 1e-5)
    with pytest.raises(ValueError, match="absent client differs"):
        rq.Sampled(NOISY.example_release(4, 1, "replace_one", 10), 0.1, 5)
