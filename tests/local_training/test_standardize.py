"""What was spent before, and figures that a run standardises by, count once and in full."""

import functools
import math
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest
import stores
import torch
from interrupted import Interrupted, dying
from slow import slow
from torch import nn
from torch.nn import functional as F

import randquant as rq
from randquant.aggregation import LocalGaussian
from randquant.local_training import (
    Learner,
    StandardizationQuery,
    Standardized,
    ask_statistics,
    make_problem,
    plan_query,
)
from randquant.local_training.standardize import FeatureStatistics, standardized
from randquant.planning import planner
from randquant.privacy import account, round_up
from randquant.reports import render_run
from randquant.statistics import SurveyMechanism, survey
from randquant.training import RunStore, Task, TrainConfig, execution, federated, read_run, setup

WEIGHTS = torch.tensor([[0.9], [-40.0]])
SCALED = rq.Standardize([0, 0.0], [400, 10.0], target=(-600, 600))


def clients_of(seed: int, count: int = 200, each: int = 4):
    """A regression whose features and targets are in the hundreds."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.rand(count, each, 2, generator=draw) * torch.tensor([400.0, 10.0])
    y = x @ WEIGHTS + 10 * torch.randn(count, each, 1, generator=draw)
    return list(zip(x, y, strict=True))


DATA = clients_of(0)
OWN = {"mechanism": LocalGaussian(1.0, 18.0), "trust": "local"}
"""Needs no calibration."""

TEST = tuple(torch.cat(part) for part in zip(*clients_of(1), strict=True))


@pytest.fixture(autouse=True)
def _integer_noise(monkeypatch):
    """Runs are calibrated with the mechanism whose noise is found at once: none is compared."""

    def choose(need, *, examples=None):
        return planner.choose(need.with_bits(20), examples=examples or 1)

    monkeypatch.setattr(federated, "choose", choose)


def trained(data=DATA, *, model=None, standardize=SCALED, **settings):
    given = {"rounds": 5, "epsilon": 8.0, "seed": 0, "test": TEST, "loss": F.mse_loss, **settings}
    model = nn.Linear(2, 1) if model is None else model
    local = rq.Local(standardize=standardize, **given.pop("clients", {}))
    return rq.train(model, data, local=local, progress=False, **given)


def test_test_data_move_nothing_that_is_learnt():
    model, tests = nn.Linear(2, 1), [tuple(far * part for part in TEST) for far in (1, 100)]
    one, other = (trained(model=model, test=test).model.state_dict() for test in tests)
    assert all(torch.equal(one[name], other[name]) for name in one)


def spent_of(epsilon=2.0, delta=1e-6, **changed):
    given = {"neighboring": "replace_one", "trust": "aggregate", **changed}
    return rq.Guarantee(epsilon, delta, order=math.inf, releases=1, **given)


def spending(spent, **settings):
    privacy = rq.Privacy(spent=spent, **settings.pop("privacy", {}))
    return trained(standardize=None, privacy=privacy, **settings)


@pytest.mark.slow
def test_what_was_spent_is_added_exactly_and_named():
    table = rq.statistics(
        [{"a": float(k)} for k in range(200)], 1.5, queries={"a": rq.Mean(0, 200)}
    )
    run, spent = spending(table.guarantee), table.guarantee
    left = spent.remaining(8.0, 1e-5)
    assert 0 <= Fraction(8) - Fraction(spent.epsilon) - Fraction(left[0]) < 1e-14
    assert Fraction(left[1]) + Fraction(spent.delta) <= Fraction(1e-5)
    alone = trained(standardize=None, epsilon=left[0], delta=left[1])
    assert run.config.parameters == alone.config.parameters
    exact = Fraction(alone.guarantee.epsilon) + Fraction(spent.epsilon)
    assert exact <= Fraction(run.guarantee.epsilon) <= exact + Fraction(1e-14)
    assert run.guarantee.epsilon <= 8
    assert run.guarantee.delta == 1e-5
    assert run.summary.spent == spent
    assert f"of it before round 1 {spent}" in repr(run)
    assert all(m.epsilon > spent.epsilon for m in run.history)
    page = render_run(run.record, None, None, None)
    assert "before the first round" in page
    assert "with those before the first round" in page


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (spent_of(8.0), "nothing is left"),
        (spent_of(delta=1e-5), "nothing is left"),
        (spent_of(math.inf), "nothing is left"),
        (spent_of(trust="central"), "one trust"),
        (spent_of(trust="local"), "one trust"),
        (spent_of(neighboring="zero_out"), "one neighboring"),
        (spent_of(unit="example"), "one unit"),
    ],
)
def test_what_cannot_be_added_is_refused(spent, said, tmp_path):
    with pytest.raises(ValueError, match=f"^Expected .*{said}"):
        spending(spent, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("spent", [2.0, MappingProxyType({"age": 1})])  # as a Table is
def test_a_table_is_no_guarantee(spent):
    with pytest.raises(TypeError, match=r"^Expected spent to be a guarantee, such as table.guar"):
        rq.Privacy(spent=spent)


def test_nearly_nothing_left_to_standardise_with_is_said():
    with pytest.raises(ValueError, match=r"^Expected an epsilon whose share, .*e-07 at .* was"):
        trained(privacy=rq.Privacy(spent=spent_of(8 - 1e-5)))


@pytest.mark.parametrize("delta", [-1e-3, 1.5, math.nan])
def test_a_delta_that_is_no_probability_is_no_guarantee(delta):
    with pytest.raises(ValueError, match=r"^Expected 0 <= delta <= 1"):
        spent_of(delta=delta)


def test_a_plan_says_what_is_left_instead_of_ignoring_what_was_spent():
    with pytest.raises(ValueError, match=r"epsilon=6\.0 and delta=9"):
        rq.plan(650, 200, 200, 50, 8.0, privacy=rq.Privacy(spent=spent_of()))


@pytest.mark.slow
def test_a_run_standardises_and_speaks_in_raw_units():
    torch.manual_seed(0)
    run = trained(rounds=30)
    x, y = TEST
    predicted = run.model(x).detach()
    assert float(F.mse_loss(predicted, y)) == pytest.approx(run.loss, rel=1e-5)
    assert run.loss < 0.1 * float(y.var())
    assert run.guarantee.epsilon <= 8
    assert 0.7 < run.summary.spent.epsilon <= 0.8
    state = run.model.state_dict()
    own = {f"{of}{name}" for of in ("", "target_") for name in ("lower", "upper", "mean", "spread")}
    assert set(state) == own | {"model.weight", "model.bias"}
    assert torch.all(state["spread"] > 0)
    assert float(state["mean"][0]) == pytest.approx(200, abs=40)
    far = torch.tensor([[1e6, -5.0]])
    assert torch.equal(run.model(far), run.model(torch.tensor([[400.0, 0.0]])))


def test_statistics_of_public_examples_are_of_standardised_features():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    public = torch.cat([x for x, _ in clients_of(2, count=5)])
    run = trained(model=model, rounds=2, clients={"buffers": "server", "public": public})
    x, y = TEST
    predicted = run.model(x).detach()
    assert float(F.mse_loss(predicted, y)) == pytest.approx(run.loss, rel=1e-4)
    (norm,) = (each for each in run.model.modules() if isinstance(each, nn.BatchNorm1d))
    seen = []
    norm.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    run.model(public)  # in raw units, as its users have them
    variance, mean = torch.var_mean(seen[0], 0)
    torch.testing.assert_close(norm.running_mean, mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(norm.running_var, variance, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("unit", "records", "most"), [("client", 3, 1), ("example", 17, 9)])
def test_what_is_asked_is_the_survey_of_all_clients_and_records(unit, records, most):
    """Of a client one record is drawn; examples are all asked, those of the largest client too."""
    wanted, sizes = rq.Standardize(0, 100, share=0.25), np.array([5, 3, 9])
    asked = plan_query(wanted, (2, 0), sizes, (8.0, 1e-5), "aggregate", unit)
    queries = {name: rq.Mean(0, 100) for name in "01"}
    same = survey(queries, 2.0, 0.25e-5, "aggregate", 3, records, unit=unit, most=most)
    assert SurveyMechanism(asked.survey) == SurveyMechanism(same)


def test_a_spread_that_noise_hides_is_as_large_as_the_noise():
    asked = plan_query(rq.Standardize(0, 100), (1, 0), np.ones(50, int), (8.0, 1e-5), "aggregate",
                     "client")  # fmt: skip
    data = [np.full((1, 1), 50.0)] * 50
    spreads = [ask_statistics(asked, data, rq.Key.from_seed(seed)).spreads[0] for seed in range(12)]
    assert min(spreads) > 5  # half of the variances are estimated as 0


def test_each_client_draws_its_record_by_itself():
    """If all drew the same one, the mean would be 0 or 100."""
    asked = plan_query(rq.Standardize(0, 100), (1, 0), np.full(400, 2), (80.0, 1e-5), "aggregate",
                     "client")  # fmt: skip
    figures = ask_statistics(asked, [np.array([[0.0], [100.0]])] * 400, rq.Key.from_seed(0))
    assert abs(figures.means[0] - 50) < 20  # 8 standard deviations


def test_bounds_alone_cost_nothing():
    run = trained(standardize=rq.Standardize(0, 400, share=0))
    assert run.summary.spent is None
    assert run.model.mean.tolist() == [200, 200]
    assert run.model.spread.tolist() == [200, 200]
    assert not RunStore(run.folder).has("standardization")


def test_a_run_that_is_stopped_while_it_asks_has_sent_something(tmp_path, monkeypatch):
    """Clients answer before its first round: its folder is kept, and says what was declared."""
    monkeypatch.setattr(execution, "ask_statistics", dying(execution.ask_statistics, [0]))
    with pytest.raises(Interrupted):
        trained(**OWN, folder=tmp_path / "run")
    assert RunStore(tmp_path / "run").begun()
    assert read_run(tmp_path / "run").epsilon > 1


@pytest.mark.parametrize("when", ["before writing", "before asking", "before round 1"])
def test_a_killed_run_never_asks_twice(when, tmp_path, monkeypatch):
    model = nn.Linear(2, 1)
    whole = trained(model=model, seed=None, folder=tmp_path / "run", **OWN)
    figures = stores.text_of(tmp_path / "run", "standardization")
    killed = functools.partial(trained, model=model, seed=3, folder=tmp_path / "killed", **OWN)

    place, name = {
        "before asking": (execution, "ask_statistics"),
        "before writing": (RunStore, "write"),
        "before round 1": (execution, "_train"),
    }[when]
    with monkeypatch.context() as patched:
        kept = getattr(place, name)
        stop = dying(kept, [0])
        if when == "before writing":
            patched.setattr(
                place, name,
                lambda self, key, *r: (stop if key == "standardization" else kept)(self, key, *r),
            )  # fmt: skip
        else:
            patched.setattr(place, name, stop)
        with pytest.raises(Interrupted):
            killed()
    assert RunStore(tmp_path / "killed").begun()
    assert read_run(tmp_path / "killed").epsilon >= whole.guarantee.epsilon  # all that is declared
    with pytest.raises(ValueError, match=r"^Expected .*(at most the 5 rounds|another)"):
        killed(rounds=6)
    resumed, again = killed(), trained(model=model, seed=3, **OWN)
    for key, value in again.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key])
    assert resumed.guarantee == again.guarantee
    # A finished run is not asked again either, nor with another key.
    kept = trained(model=model, seed=None, folder=tmp_path / "run", **OWN)
    assert stores.text_of(tmp_path / "run", "standardization") == figures
    assert torch.equal(kept.model(TEST[0]), whole.model(TEST[0]))


def test_figures_are_bound_to_their_run(tmp_path):
    model = nn.Linear(2, 1)
    one, other = (functools.partial(trained, model=model, folder=tmp_path / n, **OWN) for n in "ab")
    one(), other(rounds=6)
    stores.put(tmp_path / "a", "standardization", stores.text_of(tmp_path / "b", "standardization"))
    with pytest.raises(ValueError, match="as it was written"):
        one()
    with pytest.raises(ValueError, match="another"):
        other(rounds=6, standardize=rq.Standardize(0, 400))


@pytest.mark.slow
@pytest.mark.parametrize("constant", [3.0, *slow(0.0, 400.0, 1e9)])
def test_constants_and_outliers_give_finite_models(constant):
    data = [(torch.full_like(x, constant), y * 1e6) for x, y in DATA[:20]]
    run = trained(data, test=None)
    state = run.model.state_dict()
    assert all(torch.isfinite(value).all() for value in state.values())
    assert (state["spread"] > 0).all()
    assert (state["target_spread"] > 0).all()
    assert torch.isfinite(run.model(TEST[0])).all()


def test_one_client_moves_each_row_within_bounds_only():
    wanted = rq.Standardize(0, 1)
    asked = plan_query(wanted, (2, 0), np.array([3, 3]), (8.0, 1e-5), "aggregate", "example")
    assert asked.survey.unit == "example"
    assert asked.survey.most == 3
    wild = asked.survey.vector({"0": np.array([1e30]), "1": np.array([-1e30])}, rq.Key.from_seed(0))
    edge = asked.survey.vector({"0": np.array([1.0]), "1": np.array([0.0])}, rq.Key.from_seed(0))
    assert (wild == edge).all()


def test_public_examples_are_brought_to_the_scale_of_the_clients():
    """Running statistics of raw ones would be of other numbers than clients compute with."""
    bounds = [(0.0, 400.0), (0.0, 10.0)]
    statistics = FeatureStatistics(bounds, [150.0, 4.0], [90.0, 2.0], 2)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    raw = torch.tensor([[60.0, 4.0], [150.0, 8.0], [1e9, 0.0]])  # beyond a bound: as the bound
    problem = make_problem(model, DATA[:3], loss=F.mse_loss, buffers="server", public=raw)
    norm = Learner(standardized(problem, statistics)).trained_model()[0]
    expected = torch.tensor([[-1.0, 0.0], [0.0, 2.0], [250 / 90, -2.0]])
    torch.testing.assert_close(norm.running_mean, expected.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(norm.running_var, expected.var(0), rtol=1e-5, atol=1e-6)


def test_a_value_beyond_its_bounds_is_learnt_and_predicted_from_as_the_bound():
    """In a client's data, in test data and in the model, as in the table that was asked."""
    bounds = [(0.0, 400.0), (0.0, 10.0), (-600.0, 600.0)]
    statistics = FeatureStatistics(bounds, [150.0, 4.0, 20.0], [90.0, 2.0, 300.0], 2)
    low, high = (torch.tensor(ends) for ends in zip(*bounds, strict=True))
    wild, edge = (
        (values[:, :2], values[:, 2:])
        for values in (torch.stack([low - 1e3, high + 1e3]), torch.stack([low, high]))
    )
    made = [
        standardized(make_problem(nn.Linear(2, 1), [pair], loss=F.mse_loss, test=pair), statistics)
        for pair in (wild, edge)
    ]
    for each in ("clients", "test"):
        one, other = (
            problem.test if each == "test" else problem.clients.sources[0] for problem in made
        )
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.targets, other.targets) is (each == "clients")  # a test's are raw
    model = Standardized(nn.Linear(2, 1), statistics)
    assert torch.equal(model(wild[0]), model(edge[0]))


def test_what_was_spent_before_counts_beside_what_standardises():
    """The table has a tenth of what is left, and a run's ledger begins with both."""
    before = spent_of(2.0, 1e-6, trust="local")
    config = TrainConfig(
        Task(20, "mse_loss"), "", cohort=20, stop_at_epsilon=8.0,
        trust="local", seed=0, local=rq.Local(standardize=rq.Standardize([0, 0], [400, 10])),
        privacy=rq.Privacy(spent=before),
    )  # fmt: skip
    problem = make_problem(nn.Linear(2, 1), DATA[:20], loss=F.mse_loss)
    both = setup.spent_before(config, problem)
    asked = setup.standardization_query(config, problem).survey.guarantee
    assert both == before + replace(asked, simulated=True)
    assert 2.5 < both.epsilon <= 2.6
    assert 1.8e-6 < both.delta <= 1.9e-6


def test_each_example_of_hospitals_is_protected():
    data = clients_of(2, count=4, each=200)
    run = trained(data, privacy=rq.Privacy(unit="example"))
    assert run.guarantee.unit == run.summary.spent.unit == "example"
    assert run.beside is None  # what was spent on an example is no figure of its client
    assert run.guarantee.epsilon <= 8
    assert run.model.mean.tolist() == pytest.approx([200, 5], rel=0.1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"trust": "model"}, "trust aggregate or local"),
        ({"epsilon": None, **OWN}, "an epsilon"),
        ({"standardize": rq.Standardize([0, 0, 0], [1, 1, 1])}, "bounds of 2 features"),
        ({"data": [(x.long(), y) for x, y in DATA], "test": None, "model": nn.Sequential(
            nn.Embedding(500, 1), nn.Flatten(), nn.Linear(2, 1))}, "as floats"),
        ({"data": [(x[:, None], y[:, None]) for x, y in DATA], "test": None}, "one table"),
        ({"privacy": rq.Privacy(neighboring="zero_out")}, "one neighboring"),
        ({"model": nn.Linear(2, 2), "loss": lambda output, y: F.mse_loss(output[:, :1], y)},
         "one output for each"),
        ({"model": Standardized(nn.Linear(2, 1), ask_statistics(
            StandardizationQuery([(0, 1)] * 3, 2, None), [], rq.Key.from_seed(0)))},
         "the model within it"),
    ],
)  # fmt: skip
def test_what_cannot_be_standardised_is_refused(changed, said):
    with pytest.raises(ValueError, match=f"^Expected .*{said}"):
        trained(**changed)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((1, 0), "lower bound|upper bound"),
        ((0, [1, 2], (1, 1)), "target"),
        ((-1e35, 1e35), "1e"),
        ((0, 1, None, 1.0), "share"),
        ((0, 1, (1, 2, 3)), "as .lower, upper."),
    ],
)
def test_settings_that_are_none_are_refused(given, said):
    with pytest.raises(ValueError, match=f"^Expected .*({said})"):
        rq.Standardize(*given)


def test_both_relations_count_the_table_and_the_training():
    run = trained(rounds=2)
    spent, beside = run.summary.spent, run.guarantees["zero_out"]
    mechanism = setup.stored_mechanism(run.config)
    release = mechanism.release(run.summary.dimension, run.summary.participations, "zero_out")
    training = account([release], 1e-5 - spent.delta)
    # No record's vector is longer than two records are apart, so the table costs the same.
    exact = Fraction(training.epsilon) + Fraction(spent.epsilon)
    assert exact <= Fraction(beside.epsilon) <= exact + Fraction(1e-9)
    assert beside.epsilon < run.guarantee.epsilon
    assert (beside.delta, beside.neighboring, beside.simulated) == (1e-5, "zero_out", True)
    assert list(run.guarantees) == ["replace_one", "zero_out"]
    assert f"<= {round_up(beside.epsilon)} under zero_out" in repr(run)
    # Of a figure alone nobody knows the other relation's.
    assert list(spending(spent_of(), rounds=2).guarantees) == ["replace_one"]
