"""A billion rounds, a million clients, a hundred million parameters: an answer or one sentence."""

import time

import pytest
import torch
from command_line import printed, refused
from flwr.serverapp.strategy import FedAvg
from slow import slow

import randquant as rq
from randquant.flower import QuantizedStrategy

SECONDS = 30.0
"""Of the processor, whatever else the machine does: 20 times the slowest measured."""

ONE_BIT = "stochastic-rounding --clip 0.0001 --margin 0.5 --levels 2 --clip-norm 1"


@pytest.fixture(autouse=True)
def in_seconds():
    begun = time.process_time()
    yield
    assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--rounds 1000000000 --cohort 1000", "epsilon <= 8013860"),
        (f"--rounds 1{'0' * 15} --cohort 1000000", "1,000,000,000,000,000 rounds"),
    ],
)
def test_an_account_of_a_billion_rounds_is_stated(capsys, line, said):
    text = printed(capsys, f"account {ONE_BIT} --dimension 100000000 {line} --trust aggregate")
    assert said in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"account {ONE_BIT} --dimension 1000 --rounds 1{'0' * 30}", "rounds"),
        (f"account {ONE_BIT} --dimension 1{'0' * 15} --rounds 1", "dimension"),
        (f"account {ONE_BIT} --dimension 9 --rounds 1 --trust aggregate --cohort 1000000001",
         "cohort"),
        ("account pbm --clip 1 --theta 0.25 --trials 100000 --dimension 9 --rounds 1", "trials"),
        (f"plan --dimension 9 --population 10 --cohort 9 --rounds 1{'0' * 30} --epsilon 8",
         "rounds"),
        (f"plan --dimension 1{'0' * 15} --population 10 --cohort 9 --rounds 9 --epsilon 8",
         "dimension"),
        ("plan --dimension 9 --population 1000000001 --cohort 1000000001 --rounds 9 --epsilon 8",
         "cohort"),
    ],
)  # fmt: skip
def test_absurd_values_are_refused_by_name(capsys, line, said):
    assert said in refused(capsys, line)


@pytest.mark.parametrize(
    ("rounds", "model", "cohort"),
    [(10**9, 10**4, 1000), (100, 10**8, 1000), *slow((100, 10**8, 10**6))],
)
def test_a_run_on_flower_is_planned_in_seconds(rounds, model, cohort):
    strategy = QuantizedStrategy.for_target(
        FedAvg(), epsilon=8, rounds=rounds, cohort=cohort, model=model, clients=10**6
    )
    assert strategy.run.accountant.max_epsilon == 8
    assert strategy.run.mechanism.cohort == cohort


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"cohort": 10**9}, "cohort"),
        ({"model": 10**15}, "dimension"),
        ({"rounds": 10**30}, "rounds"),
    ],
)
def test_a_run_on_flower_with_absurd_values_is_refused(changed, said):
    settings = {"epsilon": 8, "rounds": 100, "cohort": 1000, "model": 1000, **changed}
    with pytest.raises(ValueError, match=f"Expected {said}"):
        QuantizedStrategy.for_target(FedAvg(), **settings)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"rounds": 10**9}, "rounds"), ({"cohort": 10**9}, "cohort"),
     ({"local": rq.Local(epochs=10**4), "rounds": 10**30}, "rounds")],
)  # fmt: skip
def test_training_with_absurd_values_is_refused_before_it_begins(changed, said):
    clients = {n: (torch.ones(2, 3), torch.zeros(2, dtype=torch.long)) for n in range(3)}
    with pytest.raises(ValueError, match=f"Expected {said} <="):
        rq.train(torch.nn.Linear(3, 2), clients, **{"epsilon": 8, "seed": 1, **changed})


@pytest.mark.parametrize(
    "query",
    [
        lambda: rq.Quantiles(0, 100, steps=10**9),
        lambda: rq.KaplanMeier("age", "age", until=100, bins=10**9),
        lambda: rq.Covariance({f"c{n}": (0, 1) for n in range(10**4)}),
    ],
)
def test_a_table_of_a_billion_bins_is_refused(query):
    with pytest.raises(ValueError, match="Expected"):
        rq.statistics({n: {"age": 20.0} for n in range(9)}, 1.0, queries={"age": query()}, seed=1)
