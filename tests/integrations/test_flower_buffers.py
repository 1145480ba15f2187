"""What is no parameter is neither clipped nor noised, and both sides agree on what that is."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import (
    ANYTHING,
    changed_offer,
    changed_request,
    exact,
    fedavg,
    mover,
    noisy,
    refusals,
    run,
)
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvgM

from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.offer import Offer
from randquant.integrations.flower.strategy import QuantizedStrategy, RoundsFailed
from randquant.integrations.flower.updates import RUNNING, Layout

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
    by = 100.0 if name.endswith(RUNNING) else 1.0
    return array + array.dtype.type(by) if array.dtype.kind == "f" else array + 1


def trained(model, inner=None, mechanism=None, rounds=2, **options):
    grid = InProcessGrid(client_app(ANYTHING, moving), range(1, 5))
    strategy = QuantizedStrategy(inner or fedavg(), mechanism or noisy(), **options)
    return run(strategy, grid, model, rounds).arrays, grid


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "inner",
    [fedavg, lambda: FedAdam(fraction_evaluate=0.0, eta=0.1), lambda: FedAvgM(fraction_evaluate=0)],
)
def test_running_statistics_are_left_as_they_were(inner, trust):
    """Clipped and noised, a variance is below zero half of the time, and the model's output NaN."""
    model = normalised()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found, _ = trained(record(model), inner(), noisy(trust))
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert np.array_equal(found[name].numpy(), before[name].numpy())
    # One bit moves a coordinate by nothing 3 times in 8 at most: all 34 of them by 1e-14.
    parameters = ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    moved = [found[name].numpy() != before[name].numpy() for name in parameters]
    assert sum(part.size for part in moved) == 34
    assert any(part.any() for part in moved)
    model.load_state_dict({name: torch.tensor(a.numpy()) for name, a in found.items()})
    assert model.eval()(torch.ones(5, 3)).isfinite().all()


def test_the_dimension_is_that_of_the_parameters():
    model = normalised()
    layout = Layout.of(record(model))
    assert layout.dimension == sum(p.numel() for p in model.parameters())
    assert layout.buffers == layout.running == ("1.running_mean", "1.running_var")
    assert layout.counters == ("1.num_batches_tracked",)


def test_buffers_that_a_strategy_moves_are_put_back():
    start = arrays(w=0.0, stem=5.0)
    moved = arrays(w=1.0, stem=6.0)
    Layout.of(start, ("stem",)).settled(start, moved)
    assert moved["w"].numpy().tolist() == [1.0] * 3
    assert moved["stem"].numpy().tolist() == [5.0] * 3


def test_what_is_named_is_left_out_on_both_sides():
    start = arrays(w=0.0, stem=5.0, scale=7.0)
    found, grid = trained(start, mechanism=exact(), buffers=("scale", "stem"))
    assert found["stem"].numpy().tolist() == [5.0] * 3
    assert found["scale"].numpy().tolist() == [7.0] * 3
    assert found["w"].numpy().any()
    [text] = {m.content["randquant"]["offer"] for s, _, m, _ in grid.seen if s == "advertise"
              and m.content["randquant"]["offer"]}  # fmt: skip
    assert json.loads(text)["buffers"] == ["stem", "scale"]  # in the model's order
    assert Offer.from_text(text).dimension == 3


@pytest.mark.parametrize(
    ("own", "offered", "refuses"),
    [
        (None, (), False), (None, ("stem",), False), (("stem",), ("stem",), False),
        ((), (), False), ((), ("stem",), True), (("stem",), (), True),
        (("scale",), ("stem",), True),
        (["stem", "scale"], ("scale", "stem"), False), (("more",), (), True),
    ],
)  # fmt: skip
def test_a_client_with_buffers_of_its_own_refuses_other_offers(own, offered, refuses):
    mod = QuantizeMod(math.inf, buffers=own)
    grid = InProcessGrid(client_app(mod, mover), range(1, 4))
    start = arrays(w=0.0, stem=5.0, scale=7.0)
    strategy = QuantizedStrategy(fedavg(), exact("local"), buffers=offered, patience=5)
    run(strategy, grid, start)
    assert len(refusals(grid)) == 3 * refuses
    if refuses and own != ("more",):
        assert all("buffers that are not trained" in text for text in refusals(grid).values())


@pytest.mark.parametrize("buffers", [[], ["1.running_mean"], ["1.running_var", "1.running_mean"]])
def test_a_server_that_would_train_running_statistics_is_refused(buffers):
    """The client names them itself, whatever the dimension that is offered."""
    model = record(normalised())
    wanted = Layout.of(model).dimension + 4 * (2 - len(buffers))
    for dimension in (wanted, Layout.of(model).dimension):
        grid = InProcessGrid(client_app(ANYTHING, moving), range(1, 5))
        changed_request(
            grid,
            "upload",
            lambda m, d=dimension: changed_offer(
                m, lambda r: r.update(buffers=buffers, dimension=d)
            ),
        )
        with pytest.raises(RoundsFailed):
            run(QuantizedStrategy(fedavg(), noisy("local"), patience=1), grid, model)
        assert len(refusals(grid)) == 4


def test_a_buffer_that_the_model_does_not_have_is_refused_at_the_start():
    grid = InProcessGrid(client_app(ANYTHING, mover), range(1, 4))
    with pytest.raises(ValueError, match=r"Expected buffers among the model's arrays.*'more'"):
        run(QuantizedStrategy(fedavg(), exact(), buffers=("more",)), grid)
    with pytest.raises(ValueError, match="'n'"):
        Layout.of(ArrayRecord({"w": Array(np.zeros(2)), "n": Array(np.array(3))}), ("n",))
    with pytest.raises(ValueError, match="Expected an array of floating-point numbers to train"):
        Layout.of(arrays(running_mean=0.0, a=1.0), ("a",))


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if "running statistics" in r.getMessage()]


def test_a_model_with_a_batch_norm_gets_a_warning_with_the_way_out(caplog):
    trained(record(normalised()))
    [text] = warnings_of(caplog)
    assert "1.running_mean and 1 others" in text
    assert "GroupNorm" in text
    assert "frozen statistics" in text


@pytest.mark.parametrize(
    "norm",
    [torch.nn.GroupNorm(2, 4), torch.nn.LayerNorm(4),
     torch.nn.BatchNorm1d(4, track_running_stats=False)],
)  # fmt: skip
def test_a_model_without_running_statistics_gets_none(norm, caplog):
    model = normalised(norm)
    found, _ = trained(record(model))
    assert not warnings_of(caplog)
    assert Layout.of(found).buffers == ()


def test_offers_differ_with_their_buffers():
    one, two = Offer(noisy(), 5), Offer(noisy(), 5, ("a", "b"))
    assert one != two
    assert one.digest != two.digest
    assert Offer.from_text(two.to_text()) == two
    with pytest.raises(ValueError, match="each buffer once"):
        Offer(noisy(), 5, ("a", "a"))
    with pytest.raises(TypeError, match="buffers"):
        Offer(noisy(), 5, ["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by their names"):
        Offer(noisy(), 5, (5,))  # type: ignore[arg-type]


def test_a_folder_of_a_run_with_other_buffers_is_refused(tmp_path):
    start = arrays(w=0.0, stem=5.0)
    trained(start, mechanism=exact(), folder=tmp_path, buffers=("stem",))
    with pytest.raises(ValueError, match="to be of this mechanism, model and strategy"):
        trained(start, mechanism=exact(), folder=tmp_path, rounds=3)
    found, _ = trained(start, mechanism=exact(), folder=tmp_path, rounds=3, buffers=("stem",))
    assert found["stem"].numpy().tolist() == [5.0] * 3
