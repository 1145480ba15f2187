"""Whole runs in which every client sends one index, once: files, training, attack."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import randquant as rq
from randquant.aggregation import LocalGaussian, RankMechanism
from randquant.audit.pipeline import worst_inputs
from randquant.planning.limits import gaussian_multiplier
from randquant.planning.privacy import Privacy
from randquant.privacy.accounting.accountant import account
from randquant.training.federated import train

pytestmark = pytest.mark.slow

RULE = torch.tensor(np.random.default_rng(3).normal(size=(6, 3)), dtype=torch.float32)


def trained(mechanism, clients, cohort, rounds, seed=0, **options):
    torch.manual_seed(1)
    features = clients[0][0].shape[1]
    return train(
        nn.Linear(features, 10 if features > 6 else 3),
        clients,
        mechanism=mechanism,
        rounds=rounds,
        cohort=cohort,
        privacy=Privacy(max_participations=1, clip_norm=mechanism.clip_norm),
        seed=seed,
        progress=False,
        **options,
    )


@pytest.mark.filterwarnings("ignore:It depends on the task")
def test_a_run_of_turns_costs_one_participation_also_from_a_file(tmp_path):
    generator = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(12):
        features = torch.randn(4, 6, generator=generator)
        clients.append((features, (features @ RULE).argmax(1)))
    mechanism = RankMechanism(clip_norm=1.0, epsilon=7.9)
    rq.save(mechanism, tmp_path / "rank.json")
    again = rq.load(tmp_path / "rank.json")
    assert again == mechanism
    first, second = (trained(each, clients, 4, 3) for each in (mechanism, again))
    once = account([mechanism.release(21, 1)], first.guarantee.delta)
    assert first.guarantee.epsilon == once.epsilon < 8
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert first.upload_bytes == mechanism.of_client(0).upload_bytes(21) == 1


def test_an_attack_shows_much_of_what_is_stated_and_no_more():
    mechanism = RankMechanism(clip_norm=1.0, epsilon=2.0)
    update, other = worst_inputs(mechanism, 16)
    found = rq.audit(mechanism, update, other, trials=2000, key=rq.Key.from_seed(2026))
    assert found.epsilon_stated == account([mechanism.release(16, 1)], 0.0).epsilon < 2.001
    assert 0.6 * found.epsilon_stated < found.epsilon_lower <= found.epsilon_stated


def test_two_thousand_clients_train_digits_far_better_than_with_gaussian_noise():
    """At epsilon 8 and delta 1e-5, each in one of 20 rounds; by `benchmarks/rank.py training`."""
    pixels, digits = load_digits(return_X_y=True)
    pixels, digits = torch.tensor(pixels / 16).float(), torch.tensor(digits)
    generator = np.random.default_rng(0)
    held = [generator.integers(0, 1500, 8) for _ in range(2000)]
    clients = [(pixels[k], digits[k]) for k in held]
    accuracy = []
    for mechanism in (
        RankMechanism(0.5, 7.99),
        LocalGaussian(0.5, 1.001 * gaussian_multiplier(8.0, 1e-5, 1)),
    ):
        run = trained(mechanism, clients, 100, 20, test=(pixels[1500:], digits[1500:]))
        assert run.guarantee.epsilon <= 8
        accuracy.append(run.summary.accuracy)
    assert accuracy[0] > accuracy[1] + 0.15
