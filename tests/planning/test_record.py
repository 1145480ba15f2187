"""A need's figures where nobody sees who takes part, and in other units of length."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import update_mechanism
from randquant.planning import Candidate, Need, gaussian_multiplier, planner
from randquant.planning.plans import other_guarantee
from randquant.privacy import Guarantee, HiddenCohorts, account, run_release

NEED = Need(60, 40, 10, 8, 8.0, 1e-5, "aggregate", rq.Privacy(bits=16), participations=2)
NOISE = {"clip_norm": 1.0, "bits": 16, "noise_multiplier": 1.0}


def hidden(draw, **changes):
    cohorts = HiddenCohorts(draw, NEED.population, NEED.cohort, NEED.rounds)
    return dataclasses.replace(NEED, trust="model", cohorts=cohorts, **changes)


@pytest.mark.parametrize("draw", ["poisson", "fixed"])
def test_the_error_of_hidden_cohorts_is_that_of_the_mean_over_those_who_take_part(draw):
    """Sums of all payloads over the public number, against the mean of a cohort's updates."""
    need, rng = hidden(draw), np.random.default_rng(0)
    everybody = need.cohorts.summands("aggregate")
    mechanism = update_mechanism("skellam", NOISE, trust="aggregate", cohort=everybody)
    squares = []
    for trial in range(12):
        updates = np.zeros((everybody, 60), dtype=np.float32)
        updates[:10] = rng.normal(size=60)
        updates[:10] /= 1.01 * np.linalg.norm(updates[0])
        root = rq.Key.from_seed(trial)
        payloads = [mechanism.encode(x, root.fold_in(i)) for i, x in enumerate(updates)]
        mean = mechanism.mean(payloads, 60) * everybody / need.cohorts.cohort
        squares.append((mean - updates[0]) ** 2)
    # 720 squares: off by 5 % in one deviation, by 35 % in seven; the root by half of that.
    assert need.deviation(mechanism) == pytest.approx(np.sqrt(np.mean(squares)), rel=0.2, abs=0)


@pytest.mark.parametrize("draw", ["poisson", "fixed", None])
def test_all_rounds_take_the_bytes_of_everybody_who_sends(draw, monkeypatch):
    need = NEED if draw is None else hidden(draw)
    senders = need.setting.cohort
    assert senders == (40 if draw == "poisson" else 10)
    mechanism = update_mechanism("skellam", NOISE, trust="aggregate", cohort=senders)
    guarantee = Guarantee(1.0, 1e-5, "replace_one", "aggregate", 2.0, 1)
    found = SimpleNamespace(mechanism=mechanism, guarantee=guarantee, tight=True)
    tuned = SimpleNamespace(parameters=NOISE, calibration=found)
    monkeypatch.setattr(planner, "tune_update", lambda *given, **named: tuned)
    monkeypatch.setattr(Need, "gaussian", property(lambda need: 1.0))
    entry = planner._entry("skellam", need, 1.0)
    assert entry.bytes_up == mechanism.upload_bytes(60, senders)
    assert entry.bytes_run == entry.bytes_up * senders * 8


def test_where_everybody_takes_part_in_the_one_round_hiding_who_gains_nothing():
    cohorts = HiddenCohorts("poisson", 10, 10, 1)
    plain = gaussian_multiplier(8.0, 1e-5, 1)
    need = dataclasses.replace(
        NEED,
        trust="model",
        population=10,
        rounds=1,
        cohorts=cohorts,
        privacy=rq.Privacy(neighboring="zero_out"),
    )
    assert need.multiplier == pytest.approx(plain, rel=0.02, abs=0)


@pytest.mark.parametrize("draw", ["poisson", "fixed", None])
def test_the_figure_of_the_other_relation_counts_the_same_rounds(draw):
    """All of the run where nobody sees who takes part, and else those of one client."""
    need, noise = NEED if draw is None else hidden(draw), {**NOISE, "noise_multiplier": 8.0}
    mechanism = update_mechanism("skellam", noise, trust="aggregate", cohort=need.setting.cohort)
    rounds = 2 if draw is None else 8

    def guarantee(neighboring):
        release = run_release(mechanism, 60, rounds, neighboring, cohorts=need.cohorts)
        return account([release], 1e-5)

    entry = Candidate("skellam", noise, guarantee("replace_one"))
    assert other_guarantee(entry, need) == guarantee("zero_out")
