"""State dicts: what is sent, what is left out, and that it comes back where it belongs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import StateLayout, as_vector, update_dimension
from randquant.channels import Key
from randquant.rounds import Layout

STATE = {
    "conv.weight": np.arange(12, dtype=np.float32).reshape(2, 2, 3),
    "bn.weight": np.full(2, 0.5, np.float16),
    "bn.running_mean": np.full(2, 100.0, np.float32),
    "bn.running_var": np.full(2, 1e6, np.float32),
    "bn.num_batches_tracked": np.array(17),
    "steps": np.array([3, 4], np.int32),
    "mask": np.array([True]),
    "scale": np.array(2.5, np.float64),
}
SENT = ("conv.weight", "bn.weight", "scale")
COIN = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("trained", [np.float16, np.float32, np.float64])
def test_an_update_is_the_difference_rounded_once(kind, trained):
    """A large weight of many bits may move by less than it is rounded by in float32."""
    draw = np.random.default_rng(1)
    old = {"w": (1000 + draw.normal(0, 1, 50)).astype(kind)}
    new = {"w": (old["w"].astype(np.float64) + draw.normal(0, 1e-5, 50)).astype(trained)}
    wide = np.float64 if np.float64 in (kind, trained) else np.float32
    exact = new["w"].astype(wide) - old["w"].astype(wide)
    update = Layout.from_model(old).update(old, new)
    assert update.dtype == np.float32
    assert np.array_equal(update, exact.astype(np.float32))


def test_counters_and_running_statistics_are_left_out_by_name():
    layout = StateLayout.from_state(STATE)
    assert layout.names == SENT
    assert set(layout.left_out) == STATE.keys() - set(SENT)
    assert layout.shapes == ((2, 2, 3), (2,), ())
    assert layout.dimension == update_dimension(STATE) == 15
    assert layout.flatten(STATE).tolist() == [*range(12), 0.5, 0.5, 2.5]


def test_the_layouts_order_counts_not_the_dicts():
    layout = StateLayout.from_state(STATE)
    backwards = dict(reversed(STATE.items()))
    assert np.array_equal(layout.flatten(backwards), layout.flatten(STATE))
    assert not np.array_equal(as_vector(backwards), as_vector(STATE))


@pytest.mark.parametrize(
    ("change", "kind", "match"),
    [
        ({"new": np.zeros(2)}, ValueError, "got 'new' too"),
        ({"bn.weight": None}, ValueError, "got no 'bn.weight'"),
        ({"bn.weight": np.zeros(3)}, ValueError, r"'bn.weight' of shape \(2,\), got \(3,\)"),
        (
            {"bn.weight": np.array([0, np.nan])},
            ValueError,
            r"got nan in 'bn.weight' at index \[1\]",
        ),
        ({"scale": np.array(np.inf)}, ValueError, r"got inf in 'scale' at index \[\]"),
        ({"bn.weight": np.zeros(2, complex)}, TypeError, "In 'bn.weight': .* got complex128"),
    ],
)
def test_another_state_dict_is_refused_for_the_true_reason(change, kind, match):
    state = {**STATE, **change}
    if change.get("bn.weight", 0) is None:
        del state["bn.weight"]
    with pytest.raises(kind, match=match):
        StateLayout.from_state(STATE).flatten(state)


def test_weights_under_two_names_are_refused_wherever_a_state_dict_is_taken():
    """Each name would be noised by itself, and the two part."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20, bias=False))
    model[1].weight = model[0].weight
    refused = "got '0.weight' and '1.weight' with the same numbers: tied"
    before = {name: x.clone() for name, x in model.state_dict().items()}
    difference = {name: x + 0.01 * x**2 for name, x in before.items()}
    mechanism = rq.VectorMechanism(COIN, clip_norm=1.0)
    planned = functools.partial(rq.plan, population=9, cohort=9, rounds=1, epsilon=8)
    for use in (
        lambda: StateLayout.from_state(model.state_dict()),
        lambda: update_dimension(model.state_dict()),
        lambda: planned(model.state_dict()),
    ):
        with pytest.raises(ValueError, match=refused):
            use()
    for use in (  # copies may have been tied, or only begin alike
        lambda: StateLayout.from_state({name: x.numpy() for name, x in before.items()}),
        lambda: mechanism.encode(difference, Key.generate()),
    ):
        with pytest.warns(UserWarning, match="0.weight' and '1.weight' with the same numbers. If"):
            use()
    with torch.no_grad():
        model[0].weight.zero_()
    with pytest.raises(ValueError, match=refused):  # one memory, whatever its numbers
        StateLayout.from_state(model.state_dict())
    once = dict(model.named_parameters())  # the way out: counted once
    assert StateLayout.from_state(once).dimension == update_dimension(model) == 160


def test_arrays_that_are_constant_or_of_another_shape_are_not_tied():
    rng = np.random.default_rng(0)
    whole, weight = rng.normal(size=(2, 6)), rng.normal(size=(2, 3))
    state = {f"{n}.bias": np.zeros(3) for n in range(3)} | {f"{n}.scale": np.ones(3) for n in "ab"}
    state |= {"odd": whole[:, 1::2], "even": whole[:, ::2]}  # in one memory, at other places
    state |= {"weight": weight, "double": weight.reshape(3, 2).copy(), "half": weight.astype("f4")}
    state |= {"empty": np.zeros(0), "none": np.zeros(0), "again.running_mean": weight.copy()}
    layout = StateLayout.from_state(state)
    assert layout.left_out == ("again.running_mean",)
    assert all(
        np.array_equal(layout.unflatten(layout.flatten(state))[n], state[n]) for n in layout.names
    )


def test_what_is_no_state_dict_is_refused():
    with pytest.raises(TypeError, match=r"mapping of names to arrays, got list: .*state_dict\(\)"):
        StateLayout.from_state([np.zeros(3)])
    with pytest.raises(TypeError, match=r"mapping of names to arrays, got one with the name 0"):
        StateLayout.from_state({0: np.zeros(3)})
    with pytest.raises(TypeError, match="mapping of names to arrays, got NoneType"):
        StateLayout.from_state(STATE).flatten(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at least one array of floats .* got 1 entries"):
        StateLayout.from_state({"steps": np.array(3)})
    with pytest.raises(ValueError, match=r"vector \(15,\) to unflatten, got shape \(14,\)"):
        StateLayout.from_state(STATE).unflatten(np.zeros(14))
    for wrong in ("650", 0.5, True, None):
        with pytest.raises(TypeError, match="Expected dimension to be a whole number"):
            update_dimension(wrong)


def test_a_torch_models_difference_is_encoded_and_its_mean_loaded():
    torch = pytest.importorskip("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    model[0].weight.requires_grad_(False)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    after = {name: x + 1 for name, x in before.items()}
    layout = StateLayout.from_state(model.state_dict())
    assert set(layout.left_out) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert layout.dimension == sum(p.numel() for p in model.parameters())
    assert update_dimension(model) == layout.dimension - 12  # those that are trained
    mechanism = rq.VectorMechanism(rq.stochastic_rounding(30.0, 256, 1.0), clip_norm=100.0)
    difference = {name: after[name] - before[name] for name in before}
    payloads = [mechanism.encode(difference, Key.from_seed(n)) for n in range(3)]
    mean = layout.unflatten(mechanism.mean(payloads))
    new = {name: before[name] + torch.from_numpy(part) for name, part in mean.items()}
    model.load_state_dict(new, strict=False)
    assert float((model[3].bias.detach() - before["3.bias"] - 1).abs().max()) < 0.5
    assert torch.equal(model[1].running_mean, before["1.running_mean"])
    half = {name: x.bfloat16() for name, x in difference.items() if x.is_floating_point()}
    assert mechanism.encode(half, Key.from_seed(1)) == payloads[1]
    with pytest.raises(TypeError, match=r"In '0.weight': .* got torch.float32, torch.sparse"):
        mechanism.encode({**difference, "0.weight": torch.zeros(3).to_sparse()}, Key.from_seed(1))
    with pytest.raises(ValueError, match="model with parameters to train, got a ReLU without"):
        update_dimension(nn.ReLU())
