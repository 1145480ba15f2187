"""A run that sends as many coordinates as the released means call for."""

import json

import pytest
import torch
from by_name import train
from torch import nn

from randquant.aggregation.adaptive import AdaptiveMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.aggregation.saved import from_record
from randquant.privacy.accounting.accountant import account

pytestmark = pytest.mark.filterwarnings("ignore:It depends on the task")

FEATURES, CLASSES, CLIENTS, COHORT, ROUNDS, TIMES = 20, 6, 40, 20, 8, 4
DIMENSION = (FEATURES + 1) * CLASSES
NOISE = {"clip_norm": 1.0, "noise_multiplier": 1.0}
ADAPTIVE = AdaptiveMechanism(
    tuple(
        update_mechanism("skellam", NOISE, cohort=COHORT, coordinates=count)
        for count in (None, 40, 10)
    )
)


def clients():
    drawn = torch.Generator().manual_seed(2)
    return [
        (torch.randn(4, FEATURES, generator=drawn), torch.arange(4) % CLASSES)
        for _ in range(CLIENTS)
    ]


def trained(**options):
    torch.manual_seed(1)
    own = {
        "rounds": ROUNDS, "cohort": COHORT, "progress": False, "checkpoint_every": 2, "seed": 5,
    }  # fmt: skip
    return train(nn.Linear(FEATURES, CLASSES), clients(), **{**own, **options})


def logged(folder, name):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return trained(mechanism=ADAPTIVE, folder=folder), folder


def test_rounds_send_what_the_means_before_them_call_for(whole):
    run, folder = whole
    sent = logged(folder, "bytes_up")
    assert sent[0] == max(sent) == COHORT * ADAPTIVE.upload_bytes(DIMENSION, COHORT)
    assert len(set(sent)) > 1
    assert run.upload_bytes == -(-sum(sent) // (ROUNDS * COHORT))


def test_the_guarantee_counts_the_costliest_choice_in_every_round(whole):
    run, _ = whole
    stated = account([ADAPTIVE.release(DIMENSION, TIMES)], 1e-5).epsilon
    assert run.guarantee.epsilon == stated
    costs = [account([one.release(DIMENSION, TIMES)], 1e-5).epsilon for one in ADAPTIVE.choices]
    assert max(costs) <= stated * (1 + 1e-12)


@pytest.mark.slow
def test_choices_are_calibrated_together(tmp_path):
    run = trained(epsilon=2.0, coordinates="auto", folder=tmp_path / "run")
    mechanism = from_record(run.config.parameters)
    assert [choice.size(DIMENSION) for choice in mechanism.choices] == [128, 42, 12, 4, 1]
    assert 1.9 < run.guarantee.epsilon <= 2.0


@pytest.mark.parametrize("options", [{"trust": "model"}, {"unit": "example"}])
def test_who_is_hidden_otherwise_is_refused(options):
    with pytest.raises(ValueError, match=r"^Expected trust='aggregate' or 'local' and unit="):
        trained(epsilon=8.0, coordinates="auto", **options)


def test_a_number_in_other_words_is_refused():
    with pytest.raises((TypeError, ValueError), match="coordinates"):
        trained(epsilon=8.0, coordinates="most")
    with pytest.raises(ValueError, match=r"^Expected no coordinates with a mechanism of your own"):
        trained(mechanism=ADAPTIVE, coordinates="auto")
