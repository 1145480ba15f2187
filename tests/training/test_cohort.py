"""A round: each client once; and where only models are seen, what is summed, sent and stated."""

import dataclasses
import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import chance
import interrupted
import numpy as np
import problems
import pytest
import torch
from around import Around
from by_name import train
from slow import slow
from torch import nn

import randquant as rq
from randquant.aggregation import (
    CentralGaussian,
    ChannelMechanism,
    ClippedSGD,
    LocalGaussian,
    clip_to_norm,
)
from randquant.channels import Key
from randquant.local_training import MAX_GROUP_CLIENTS_ON_CPU, Learner, make_problem
from randquant.mechanisms import UpdateSetting
from randquant.planning import tune_update
from randquant.privacy import MODEL_TERMS, HiddenCohorts, account
from randquant.reports import report_run
from randquant.training import ABSENT_BATCH_SIZE, RoundCollector, read_finished
from randquant.training import execution as runs

TWO = rq.stochastic_rounding(1.0, 2, margin=1.0)
"""A bit that is 1/4, 1/2 or 3/4 likely to be one at -1, 0 and 1."""

DRAWS = ["fixed", "poisson"]


FEATURES = 6
DRAW = np.random.default_rng(4)


def client_of(examples):
    """Later examples are longer: a part that is left out or counts too much is noticed."""
    x = DRAW.normal(1, 1, (examples, FEATURES)) * np.linspace(0.2, 2, examples)[:, None]
    return x.astype(np.float32), np.zeros((examples, 1), np.float32)


def learner_of(clients):
    """The gradient of the mean output by the weights is the mean of the examples: the oracle."""
    model = nn.Linear(clients[0][0].shape[1], 1, bias=False)
    return Learner(make_problem(model, clients, loss=lambda output, targets: output.mean()))


SIZES = [1 + client * 7 % 11 for client in range(2 * MAX_GROUP_CLIENTS_ON_CPU + 3)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_round_has_each_client_once_whatever_its_place(workers):
    clients = [client_of(size) for size in SIZES]
    learner = learner_of(clients)
    means = np.array([x.mean(axis=0) for x, _ in clients])
    order = np.random.default_rng(0).permutation(len(clients)).tolist()
    assert sorted(c for group in learner.groups(order, workers) for c in group) == sorted(order)
    assert np.abs(learner.updates(order)[0] - means[order]).max() < 1e-5
    cohort = order[: 2 * MAX_GROUP_CLIENTS_ON_CPU]
    with ThreadPoolExecutor(workers) as pool:
        collect = RoundCollector(learner, ClippedSGD(None, 1.0), pool, workers)
        found = collect(cohort, Key.from_seed(0), 0)
    expected = np.mean([clip_to_norm(means[client], 1.0) for client in cohort], axis=0)
    assert np.abs(found.mean - expected).max() < 1e-6
    assert found.bytes_up == len(cohort) * 4 * FEATURES
    assert len(found.losses) == len(cohort)


@pytest.mark.parametrize("taking", [0, 1, 5])
def test_every_absent_client_sends_zeros_of_its_own(taking):
    population, sent = 2 * ABSENT_BATCH_SIZE + 3 + taking, []
    noise = LocalGaussian(1.0, 2.0)

    def mean(payloads, dimension, key):
        sent.extend(payloads)
        return noise.mean_vector(payloads, dimension, key)

    learner = learner_of([client_of(2)] * population)
    hidden = HiddenCohorts("poisson", population, 2, 4)
    with ThreadPoolExecutor(1) as pool:
        collect = RoundCollector(learner, Around(noise, mean=mean), pool, 1, hidden)
        found = collect(list(range(3, 3 + taking)), Key.from_seed(1), 0)
    assert len(sent) == len(set(sent)) == population
    assert found.bytes_up == population * 4 * FEATURES


def collected(mechanism, cohort, draw, updates, rounds=6, size=2):
    hidden = HiddenCohorts(draw, len(updates), size, rounds) if draw else None
    with ThreadPoolExecutor(1) as pool:
        learner = learner_of([(x[None], np.zeros((1, 1), np.float32)) for x in updates])
        collect = RoundCollector(learner, mechanism, pool, 1, hidden)
        return collect(cohort, Key.from_seed(7).fold_in(1), 11)


@pytest.mark.parametrize("cohort", [[], [3], [0, 1, 2, 3, 4, 5]])
def test_a_sum_is_divided_by_a_public_number_whoever_takes_part(cohort):
    updates = np.random.default_rng(1).normal(size=(6, 50)).astype(np.float32) / 50
    found = collected(CentralGaussian(None, 2e-9, 1.0), cohort, "poisson", updates)
    np.testing.assert_allclose(found.mean, updates[cohort].sum(axis=0) / 2, atol=1e-6)
    assert found.bytes_up == len(cohort) * 200  # a trusted server adds the zeros itself


@pytest.mark.parametrize("cohort", [[], [3]])
def test_a_small_cohort_has_the_noise_of_all_clients(cohort):
    """Also an empty one: a model that stays as it is would say that nobody took part."""
    updates = np.zeros((6, 4096), dtype=np.float32)
    mechanism = ChannelMechanism(TWO, "aggregate", cohort=6)  # refuses fewer payloads
    found = collected(mechanism, cohort, "poisson", updates)
    codes = found.mean * 2 / TWO.values[1]  # sums of six signs
    assert chance.mean_is(codes**2, 6.0, 36.0)
    assert found.bytes_up == 6 * mechanism.upload_bytes(4096, 6)
    assert len({tuple(collected(mechanism, c, "poisson", updates).mean) for c in ([], [3])}) == 1


@pytest.mark.parametrize("draw", [None, *DRAWS])
def test_the_noise_of_a_mean_is_as_long_as_is_said(draw):
    """Of zeros a mean is all noise: a norm of 4096 coordinates, within 5 of its deviations."""
    found = collected(LocalGaussian(1.0, 4.0), [0, 3], draw, np.zeros((6, 4096), np.float32))
    assert np.linalg.norm(found.mean) == pytest.approx(found.noise_norm, rel=0.055)


def laws(cohorts, inputs):
    """Exact law of the sum of codes: every cohort with its probability, every client's input."""
    total = {}
    for cohort, share in cohorts:
        sums = {0: Fraction(1)}
        for client in cohort:
            one = (inputs[client] + 2) / 4  # the probability of a one
            sums = {
                s: sums.get(s, 0) * (1 - one) + sums.get(s - 1, 0) * one
                for s in range(len(sums) + 1)
            }
        for s, mass in sums.items():
            total[s] = total.get(s, 0) + share * mass
    return total


def stick(first, second, epsilon):
    ratio = Fraction(math.exp(epsilon))
    return float(sum(max(m - ratio * second.get(s, 0), 0) for s, m in first.items()))


def two_rounds(law):
    return {(a, b): p * q for a, p in law.items() for b, q in law.items()}


def neighbours(neighboring):
    for others in itertools.product([-1, 1], repeat=2):
        for x, y in [(1, -1), (-1, 1)] if neighboring == "replace_one" else [(1, 0), (0, 1)]:
            yield [Fraction(x), *map(Fraction, others)], [Fraction(y), *map(Fraction, others)]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@pytest.mark.parametrize("draw", DRAWS)
def test_no_adversary_who_sees_two_models_exceeds_what_is_stated(draw, neighboring):
    """Three clients, two or one of them a round, sums of one coordinate: every law exactly."""
    hidden = HiddenCohorts(draw, 3, 2 if draw == "fixed" else 1, 2)
    mechanism = ChannelMechanism(TWO, "aggregate", cohort=hidden.summands("aggregate"))
    release = hidden.release(mechanism, 1, 2, neighboring)
    pairs = list(itertools.combinations(range(3), 2))
    for delta in (0.01, 0.1):
        stated = account([release], delta)
        assert (stated.trust, stated.hidden) == ("model", True)
        for worlds in neighbours(neighboring):
            found = []
            for inputs in worlds:
                if draw == "fixed":
                    one = laws([(pair, Fraction(1, 3)) for pair in pairs], inputs)
                    found.append(two_rounds(one))
                    continue
                # Everybody sends; the others may be known to take part in both rounds.
                there = laws([((0, 1, 2), Fraction(1))], inputs)
                away = laws([((0, 1, 2), Fraction(1))], [Fraction(0), *inputs[1:]])
                q = Fraction(1, 3)
                found.append(two_rounds({s: q * there[s] + (1 - q) * away[s] for s in there}))
            assert stick(*found, stated.epsilon) <= delta


def test_a_sum_without_zeros_of_absent_clients_is_not_hidden():
    """The parity of a sum of signs would tell who takes part, whatever the noise."""
    hidden = HiddenCohorts("poisson", 3, 1, 2, everybody_sends=False)
    with pytest.raises(ValueError, match="absent clients would be missing"):
        hidden.release(ChannelMechanism(TWO, "aggregate", cohort=3), 1, 2, "replace_one")


CONFIG = problems.config_of(
    "digits", "softmax", "skellam", {"clip_norm": 0.5, "noise_multiplier": 4.0},
    population=12, cohort=4, rounds=3, trust="model", evaluate_every=3, threads=1,
)  # fmt: skip


@pytest.mark.parametrize("draw", ["poisson", *slow("fixed")])
def test_a_run_states_the_account_of_its_cohorts_and_names_its_terms(draw, tmp_path):
    config = CONFIG.changed(sampling=draw)
    problems.create_run(tmp_path / "run", config)
    run = problems.train_run(tmp_path / "run")
    hidden = HiddenCohorts(draw, 12, 4, 3)
    mechanism = runs._setup(tmp_path / "run", config, problems.inputs_of(config)).mechanism
    assert (mechanism.trust, mechanism.cohort) == ("aggregate", 4 if draw == "fixed" else 12)
    release = hidden.release(mechanism, 650, 3, "replace_one")
    assert run.summary.guarantee == dataclasses.replace(account([release], 1e-5), simulated=True)
    assert run.summary.guarantee.trust == "model"
    beside = account([mechanism.release(650, run.summary.participations)], 1e-5)
    assert run.summary.beside == dataclasses.replace(beside, simulated=True)
    assert all(m.epsilon >= run.summary.guarantee.epsilon for m in run.metrics[2:])
    assert read_finished(tmp_path / "run").summary == run.summary
    page = report_run(tmp_path / "run").read_text()
    assert MODEL_TERMS[1:] in page.replace("\n", " ").replace("&#x27;", "'").replace("&#39;", "'")


def test_a_round_in_which_nobody_takes_part_is_published_like_any_other(tmp_path):
    config = CONFIG.changed(sampling="poisson", cohort=1, rounds=6, seed=1)
    problems.create_run(tmp_path / "run", config)
    metrics = problems.train_run(tmp_path / "run").metrics
    empty = [m for m in metrics if m.train_loss is None]
    assert 0 < len(empty) < 6
    assert all(m.mean for m in metrics)
    assert len({m.bytes_up for m in metrics}) == 1


def test_a_limit_is_compared_with_what_all_declared_rounds_cost(tmp_path):
    """Also where rounds count and not participations: the figure at the end is that of them all."""
    folder = tmp_path / "run"
    interrupted.begin(folder, CONFIG, 1)
    schedule = runs._setup(folder, CONFIG, problems.inputs_of(CONFIG)).schedule
    costs = [schedule.epsilon(rounds, 1) for rounds in (1, 2, 3)]
    assert costs == sorted(set(costs))
    for limit in (costs[0], costs[1], 0.999 * costs[2]):
        with pytest.raises(ValueError, match="which the 3 rounds declared before the first cost"):
            problems.train_run(folder, changes={"stop_at_epsilon": limit})
    summary = problems.train_run(folder, changes={"stop_at_epsilon": costs[2]}).summary
    assert (summary.rounds, summary.guarantee.epsilon <= costs[2]) == (3, True)


def test_noise_of_too_few_clients_is_refused():
    """A mechanism that counts on more clients' noise than are in a sum of a fixed size."""
    clients = [(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))] * 6
    mechanism = ChannelMechanism(TWO, "aggregate", cohort=5)
    few = {"mechanism": mechanism, "rounds": 2, "cohort": 3, "trust": "model", "seed": 0}
    with pytest.raises(ValueError, match="cohort >= 5"):
        train(torch.nn.Linear(3, 2), clients, **few)


@pytest.mark.parametrize("draw", ["poisson", *slow("fixed")])
def test_noise_is_calibrated_to_the_amplified_epsilon(draw):
    hidden = HiddenCohorts(draw, 1000, 100, 10)
    setting = UpdateSetting(100, hidden.summands(None), 16, "aggregate")
    asked = {"deviation": 0.3, "cohorts": hidden}
    tuned = tune_update("skellam", setting, 2.0, 1e-5, 10, **asked).calibration
    assert (tuned.guarantee.trust, tuned.tight) == ("model", True)
    release = hidden.release(tuned.mechanism, 100, 10, "replace_one")
    assert account([release], 1e-5).epsilon == tuned.guarantee.epsilon <= 2
    assert account([tuned.mechanism.release(100, 1)], 1e-5).epsilon > 2


def test_local_noise_is_hidden_too():
    hidden = HiddenCohorts("fixed", 100, 5, 40)
    noise = LocalGaussian(1.0, 4.0)
    stated = account([hidden.release(noise, 10, 40, "replace_one")], 1e-5)
    assert stated.epsilon < account([noise.release(10, 2)], 1e-5).epsilon
