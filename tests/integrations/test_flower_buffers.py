"""What is not trained is neither clipped nor noised nor sent; both sides agree on what that is."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flower_grid import InProcessGrid
from flower_rounds import (
    EXACT,
    all_refuse,
    changed_offer,
    exact,
    fedavg,
    grid_of,
    mean_of,
    noisy,
    one_round,
    refusals,
    run,
)
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvgM

from randquant.aggregation import is_running
from randquant.channels import wire
from randquant.integrations import QuantizedStrategy, QuantizeMod, read_payload
from randquant.integrations import model_arrays as read
from randquant.local_training import Local
from randquant.rounds import Layout, Offer, RoundsFailed

torch = pytest.importorskip("torch")


def normalised(norm=None):
    """A model with a batch norm, as its state dict travels."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4) if norm is None else norm
    return torch.nn.Sequential(torch.nn.Linear(3, 4), norm, torch.nn.Linear(4, 2))


def record(model):
    return ArrayRecord(model.state_dict())


def arrays(**values):
    return ArrayRecord({name: Array(np.full(3, v, np.float32)) for name, v in values.items()})


def moving(node, name, array):
    """Every number moves, running statistics by far more than the clip."""
    by = 100.0 if is_running(name) else 1.0
    return array + array.dtype.type(by) if array.dtype.kind == "f" else array + 1


def trained(model, inner=None, mechanism=None, statistics=None, folder=None, **local):
    """(arrays after two rounds, grid) of clients that train what `local` says."""
    grid = grid_of(nodes=range(1, 5), train=local.pop("train", moving))
    strategy = QuantizedStrategy(
        inner or fedavg(), mechanism or noisy(), local=Local(**local), folder=folder, patience=1
    )
    return run(strategy, grid, model, 2, statistics=statistics).arrays, grid


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "inner",
    [fedavg, lambda: FedAdam(fraction_evaluate=0.0, eta=0.1), lambda: FedAvgM(fraction_evaluate=0)],
)
def test_running_statistics_are_left_as_they_were(inner, trust):
    """Clipped and noised, a variance is below zero half of the time, and the model's output NaN."""
    model = normalised()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, _ = trained(record(model), inner(), noisy(trust), buffers="server")
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert np.array_equal(found[name].numpy(), before[name].numpy())
    # One bit moves a coordinate by nothing 3 times in 8 at most: all 34 of them by 1e-14.
    parameters = ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    moved = [found[name].numpy() != before[name].numpy() for name in parameters]
    assert sum(part.size for part in moved) == 34
    assert any(part.any() for part in moved)
    model.load_state_dict({name: torch.tensor(a.numpy()) for name, a in found.items()})
    assert model.eval()(torch.ones(5, 3)).isfinite().all()


# Running statistics


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_a_model_with_a_batch_norm_is_refused_with_the_way_out(trust):
    grid = grid_of()
    with pytest.raises(ValueError, match=r"1.running_mean and 1 more") as caught:
        one_round(noisy(trust), grid=grid, arrays=record(normalised()))
    for way in ("GroupNorm", "buffers='frozen'", "buffers='server'"):
        assert way in str(caught.value)
    assert grid.seen == []  # nobody was asked for anything


def test_frozen_statistics_are_what_clients_check(caplog):
    """A train function whose batch norm is not in eval mode sends nothing, and its log says why."""
    start = record(normalised())
    frozen = lambda node, name, a: a if is_running(name) else moving(node, name, a)  # noqa: E731
    found, grid = trained(start, buffers="frozen", train=frozen)
    assert not refusals(grid)
    assert np.array_equal(found["1.running_var"].numpy(), start["1.running_var"].numpy())
    with pytest.raises(RoundsFailed):
        trained(start, buffers="frozen")
    assert "leaves running statistics as they are, got a changed 1.running_mean" in caplog.text
    assert "eval mode" in caplog.text
    whole = read(start)
    lacking = {n: a for n, a in whole.items() if n != "1.running_var"}
    with pytest.raises(ValueError, match=r"as they are, got no 1\.running_var"):
        Layout.from_model(whole).check_frozen(whole, lacking)


def test_the_server_has_statistics_of_its_own():
    """They are neither sent nor noised: what clients compute is not looked at."""
    given = []

    def statistics(model):
        given.append(model)
        return arrays_of(model, lambda name, a: a + 1 if is_running(name) else a + 99)

    start = record(normalised())
    found, grid = trained(start, buffers="server", statistics=statistics, mechanism=exact())
    assert len(given) == 1 + 2  # once on trial, before anybody is asked
    for name in ("1.running_mean", "1.running_var"):
        assert np.array_equal(found[name].numpy(), start[name].numpy() + 2)
    # Only statistics are taken from it; exact codes of +1 are the clients' own.
    assert np.allclose(found["0.bias"].numpy(), start["0.bias"].numpy() + 2, atol=1e-6)
    assert found["1.num_batches_tracked"].numpy() == 0
    asked = [m for step, _, m, _ in grid.seen if step == "upload"][-1]  # clients get them
    assert np.array_equal(asked.content["arrays"]["1.running_mean"].numpy(), np.ones(4))


def arrays_of(model, change):
    return ArrayRecord({n: Array(np.asarray(change(n, a.numpy()))) for n, a in model.items()})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda name, a: a * np.nan if name.endswith("running_var") else a,
        lambda name, a: np.zeros(5) if name.endswith("running_mean") else a,
    ],
)
def test_statistics_that_are_none_are_refused_before_anybody_is_asked(wrong, monkeypatch):
    start = record(normalised())
    monkeypatch.setattr(InProcessGrid, "send_and_receive", None)
    with pytest.raises(ValueError, match="Expected finite statistics"):
        trained(start, buffers="server", statistics=lambda model: arrays_of(model, wrong))
    with pytest.raises(ValueError, match="Expected finite statistics"):
        trained(start, buffers="server", statistics=lambda model: arrays(w=1.0))


def test_an_unknown_policy_is_refused():
    for call in (
        lambda: Local(buffers="keep"),  # type: ignore[arg-type]
        lambda: QuantizeMod(math.inf, buffers="keep"),  # type: ignore[arg-type]
        lambda: Offer(exact(), 5, (), "keep"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match="Expected buffers to be"):
            call()
    with pytest.raises(ValueError, match="Expected buffers='server' with statistics"):
        trained(arrays(w=0.0), statistics=lambda model: model)


# Parts


HEADED = {"stem.w": 5.0, "stem.b": 6.0, "head.w": 0.0, "head.b": 1.0}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "options",
    [{"parts": "head.*"}, {"parts": ["head.w", "*.b"], "frozen": "stem.?"}, {"frozen": ["stem*"]},
     {"parts": ("head.b", "head.w")}],
)  # fmt: skip
def test_only_the_parts_that_were_chosen_are_trained_encoded_and_counted(options, trust):
    start = arrays(**HEADED)
    found, grid = trained(start, mechanism=exact(trust), train=moving, **options)
    assert not refusals(grid)
    for name in ("stem.w", "stem.b"):
        assert np.array_equal(found[name].numpy(), start[name].numpy())
    for name in ("head.w", "head.b"):
        assert np.allclose(found[name].numpy(), start[name].numpy() + 2, atol=1e-6)
    first = "upload" if trust == "local" else "advertise"
    [text] = {m.content["randquant"]["offer"] for s, _, m, _ in grid.seen if s == first}
    assert json.loads(text)["parts"] == ["head.w", "head.b"]  # in the model's order
    assert Offer.from_text(text).dimension == 6
    payloads = [read_payload(r.content) for step, _, _, r in grid.seen if step == "upload"]
    if trust == "local":
        assert {len(payload) for payload in payloads} == {wire.coded(EXACT, 6)}


@pytest.mark.parametrize(
    ("own", "offered", "refuses"),
    [
        ({}, {}, False), ({}, {"parts": "head.*"}, False), ({"parts": "head.*"}, {}, True),
        ({"parts": "head.*"}, {"frozen": "stem.*"}, False), ({"frozen": "stem.w"}, {}, True),
        ({"frozen": "stem.w"}, {"parts": "head.*"}, True), ({"parts": "*"}, {}, False),
        ({"parts": "nothing.*"}, {}, True), ({"buffers": "server"}, {}, True),
        ({"buffers": "refuse"}, {}, False),
        ({"buffers": "server"}, {"buffers": "server"}, False),
    ],
)  # fmt: skip
def test_a_client_refuses_to_train_other_parts_than_its_own(own, offered, refuses, caplog):
    grid = grid_of(QuantizeMod(math.inf, **own), range(1, 4), train=moving)
    strategy = QuantizedStrategy(fedavg(), exact("local"), patience=5, local=Local(**offered))
    run(strategy, grid, arrays(**HEADED))
    assert len(refusals(grid)) == 3 * refuses
    sent = [reply for step, _, _, reply in grid.seen if step == "upload" and reply.has_content()]
    assert len(sent) == 3 * (not refuses)
    if own.get("parts") == "nothing.*":
        assert "'nothing.*', which matches none of stem.w, stem.b" in caplog.text
    elif refuses:
        wanted = "with buffers='server'" if "buffers" in own else "arrays that this client trains"
        assert all(wanted in text for text in refusals(grid).values())


NO_ARRAY = "Expected an offer to train arrays of floating-point numbers that the model has, other"
NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias", "1.running_mean"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parts": NAMES, "dimension": 34}, NO_ARRAY),
        ({"parts": NAMES, "dimension": 38}, NO_ARRAY),
        ({"parts": [], "dimension": 42}, "Expected 42 coordinates as offered, got 34"),
        ({"buffers": "refuse"}, "a model without running statistics, as the offer says"),
    ],
)
def test_a_server_that_would_train_running_statistics_is_refused(fields, reason):
    """The client names them itself, whatever the names and the dimension that are offered."""
    change = lambda message: changed_offer(message, lambda r: r.update(fields))  # noqa: E731
    grid = grid_of(train=moving, change=("upload", change))
    model, local = record(normalised()), Local(buffers="server")
    all_refuse(reason, noisy("local"), grid, arrays=model, local=local)


def test_a_pattern_that_matches_nothing_is_refused_at_the_start():
    grid = grid_of()
    for options, reason in (
        ({"parts": "more"}, r"got 'more.*', which matches none of w"),
        ({"frozen": ["w", "more.*"]}, r"got 'more.*', which matches none of w"),
        ({"frozen": "*"}, "Expected an array of floating-point numbers to train"),
        ({"epochs": 2}, "the train function decides them"),
        ({"together": False}, "the train function decides them"),
    ):
        with pytest.raises(ValueError, match=reason):
            one_round(exact(), grid=grid, local=Local(**options))
    assert grid.seen == []
    with pytest.raises(TypeError, match="Expected parts"):
        Local(parts=[3])  # type: ignore[arg-type]
    counted, running = {"w": np.zeros(2), "n": np.array(3)}, {"running_mean": np.zeros(3)}
    for values, parts, reason in (
        (counted, ("n",), "got 'n'"), (counted, ("m",), "got 'm'"),
        ({**running, "a": np.ones(3)}, ("running_mean", "a"), "running_mean"),
        (running, (), "Expected an array of floating-point numbers to train"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            Layout.from_model(values, parts)


# Offers


def test_an_offer_names_each_part_once():
    with pytest.raises(ValueError, match="each part once"):
        Offer(noisy(), 5, ("a", "a"))
    with pytest.raises(TypeError, match="parts"):
        Offer(noisy(), 5, ["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by their names"):
        Offer(noisy(), 5, (5,))  # type: ignore[arg-type]


# Weights


def test_the_numbers_of_examples_that_clients_state_change_nothing():
    """Flower weights by `num-examples`: nobody's reaches the strategy, whatever a client sends."""

    def stated(step, node, reply):
        reply.content["metrics"] = MetricRecord({"num-examples": 1e9, "loss": 7.0})
        return [reply]

    ours = {"clients", "dropped", "epsilon", "sent_bytes", "upload_bytes", "plain_bytes"}
    for fault in (None, stated):
        result = run(QuantizedStrategy(fedavg(), exact("local")), grid_of(fault=fault))
        assert np.allclose(result.arrays["w"].numpy(), mean_of(range(1, 6)), atol=1e-6)
        assert set(result.train_metrics_clientapp[1]) == ours


def test_a_strategy_with_weights_is_refused_with_the_reason():
    with pytest.raises(ValueError, match=r"weighted by 'rows': a client's weight would tell"):
        QuantizedStrategy(fedavg(weighted_by_key="rows"), exact())
