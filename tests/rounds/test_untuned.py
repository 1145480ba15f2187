"""Rounds without a rate on Flower and NVFlare: scaled updates, steps from released means alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from flower_grid import InProcessGrid, client_app
from flower_rounds import ANYTHING, exact, fedavg, grid_of, noisy, run
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare_job import MODEL, UPDATE, Server

import randquant as rq
from randquant.aggregation import VectorMechanism, shorten
from randquant.flower import Offer, ParameterFree, QuantizedStrategy
from randquant.integrations import HEAD
from randquant.rounds import (
    CLASSES_REACH_LENGTHS,
    RELATIVE_LOSS,
    Membership,
    ParameterFreeStep,
    RoundsFailed,
)

DIMENSION = 5
WAY = np.array([2.0, -1.0, 0.5, 0.0, 1.0], np.float32)
# Nearly without noise: what is decoded is nearly what was sent.
CLEAR = VectorMechanism(rq.stochastic_rounding(clip=1.0, levels=64, margin=0.0), 1.0, "local")


def strategy(inner=None, mechanism=CLEAR, **options):
    return QuantizedStrategy(inner, mechanism, **options)


def grid_moved_by(length=1.0):
    """Clients whose training moves the model along one way, by so much."""
    train = lambda node, name, array: array + np.float32(length) * WAY  # noqa: E731
    return grid_of(nodes=range(1, 5), train=train)


def trained(length=1.0, rounds=3, made=None):
    grid, made = grid_moved_by(length), made or strategy()
    return run(made, grid, rounds=rounds).arrays["w"].numpy(), grid, made


def rule_of(rounds):
    """The rule that takes the steps of so many rounds, with nearly no noise."""
    error = CLEAR.expected_error(DIMENSION)
    return ParameterFreeStep(
        [(DIMENSION,)], rounds, error.gain, error.deviation(4, 0.0), CLASSES_REACH_LENGTHS
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("length", [1e-6, 1.0, 1e6])
def test_long_and_short_updates_count_alike_and_steps_are_the_rules(length):
    weights, _, _ = trained(length)
    rule = rule_of(3)
    expected, state = np.zeros(DIMENSION, np.float32), rule.init()
    for _ in range(3):
        expected, state = rule.step(expected, -WAY / np.linalg.norm(WAY), state)
    assert np.allclose(weights, expected, atol=0.05 * np.abs(expected).max())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 1.0, math.nan, 10**400])
def test_classifiers_that_are_right_already_shorten_their_updates_as_in_train(share):
    start = np.float32([1, 0, 0, 2, 0])
    app = client_app(ANYTHING, lambda n, name, a: a + WAY, **{RELATIVE_LOSS: share})
    grid = InProcessGrid(app, range(1, 5))
    found = run(strategy(), grid, ArrayRecord({"w": Array(start)})).arrays["w"].numpy() - start
    rule, noise = rule_of(1), DIMENSION * CLEAR.expected_error(DIMENSION).deviation(1, 0.0) ** 2
    sent = shorten(WAY / np.linalg.norm(WAY), start, share, noise)
    whole, _ = rule.step(start, -WAY / np.linalg.norm(WAY), rule.init())
    wanted, _ = rule.step(start, -sent, rule.init())
    assert np.linalg.norm(found - (wanted - start)) < 0.05 * np.linalg.norm(whole - start)
    assert not any(RELATIVE_LOSS in str(reply.content) for _, _, _, reply in grid.seen)


def test_every_offer_says_that_updates_are_scaled_and_only_then():
    for inner, scaled in ((None, True), (ParameterFree(), True), (fedavg(), False)):
        _, grid, made = trained(made=strategy(inner), rounds=1)
        texts = [m.content[HEAD]["offer"] for step, _, m, _ in grid.seen if step == "upload"]
        assert {json.loads(text)["scaled"] for text in texts} == {scaled}
        assert isinstance(made.strategy, FedAvg)


def test_a_run_that_was_stopped_goes_on_with_the_same_steps(tmp_path):
    weights, _, whole = trained(rounds=4, made=strategy(folder=tmp_path / "whole"))

    def evaluate(number, arrays):
        if number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(strategy(folder=tmp_path / "ended"), grid_moved_by(), rounds=4, evaluate_fn=evaluate)
    ended, _, again = trained(rounds=4, made=strategy(folder=tmp_path / "ended"))
    assert again.run.done + 2 == 4
    assert np.allclose(ended, weights, atol=0.05 * np.abs(weights).max())
    one, other = whole.run.untuned.record(), again.run.untuned.record()
    assert (one["round"], other["round"]) == (4, 4)
    assert one["size"] == pytest.approx(other["size"], rel=0.03)
    assert np.array_equal(again.run.untuned.arrays()["start of the run"], np.zeros(DIMENSION))


def no_training(node, name, array):
    raise RuntimeError


def test_a_round_that_fails_leaves_the_steps_as_they_were():
    made = strategy(patience=1)
    with pytest.raises(RoundsFailed):
        run(made, InProcessGrid(client_app(ANYTHING, no_training), range(1, 5)), rounds=2)
    assert made.run.untuned.record() == {}


def test_without_noise_that_is_known_or_with_other_thresholds_it_is_refused():
    with pytest.raises(ValueError, match=r"clip_norm.*FedAvg"):
        QuantizedStrategy(None, exact())
    with pytest.raises(ValueError, match="predicts"):
        ParameterFree("words")


def test_a_client_that_counts_examples_never_scales_a_mean_of_their_gradients():
    """A mean of n clipped gradients is short by nature; scaled up, one example would count more."""
    offer = Offer(noisy("local"), DIMENSION, scaled=True)
    own = Membership(b"s" * 16, offer.to_text(), examples=100)
    assert (own.offer.examples, own.offer.scaled) == (100, False)
    with pytest.raises(ValueError, match="scaled"):
        replace(own.offer, scaled=True)


def test_nvflare_steps_by_the_rule_unless_a_rate_is_given(tmp_path):
    server = Server(tmp_path / "auto", rounds=2)
    server.run()
    [first, second] = server.sums
    error = first.offer.mechanism.expected_error(14)
    rule = ParameterFreeStep([(3, 4), (2,)], 2, error.gain, error.deviation(3, 0.0))
    here, state = np.zeros(14, np.float32), rule.init()
    for number, now in enumerate((first, second)):
        assert now.offer.scaled
        here, state = rule.step(here, -now.mean(), state)
        saved = np.concatenate([server.saved[number][n].ravel() for n in ("weight", "bias")])
        assert np.allclose(saved, here, atol=1e-6)
    plain = Server(tmp_path / "plain", rounds=1, learning_rate=1.0)
    plain.run()
    assert not plain.sums[0].offer.scaled
    assert np.array_equal(plain.saved[0]["weight"].ravel(), plain.sums[0].mean()[:12])


@pytest.mark.parametrize("kind", [ParamsType.DIFF, ParamsType.FULL])
def test_nvflare_shortens_by_the_metric_that_a_script_sends_beside_its_model(kind, tmp_path):
    model = MODEL if kind == ParamsType.FULL else dict.fromkeys(MODEL, 0)
    params = {name: model[name] + UPDATE.get(name, 0) for name in MODEL}
    lengths = []
    for share in (None, 1, 10**400, 0.05):
        metrics = share and {RELATIVE_LOSS: share, "text": "none", "beyond all floats": 10**400}
        script = FLModelUtils.to_shareable(FLModel(kind, params, metrics=metrics))
        folder = tmp_path / str(len(lengths))
        train = lambda *_, reply=script: reply  # noqa: E731
        server = Server(folder, train, math.inf, rounds=1, mechanism=CLEAR)
        server.run()
        lengths.append(np.linalg.norm(server.sums[0].mean()))
    assert lengths == pytest.approx([1.0, 1.0, 1.0, 0.3], abs=0.05)


def test_nvflare_goes_on_with_the_same_steps(tmp_path):
    Server(tmp_path, rounds=2).run()
    server = Server(tmp_path, rounds=4)
    server.run()
    state = server.controller._run.untuned.record()
    assert state["round"] == 4
    kept = server.controller._run.untuned.arrays()["start of the run"]
    assert np.array_equal(kept, np.zeros(14))
    assert set(server.saved[-1]) == set(MODEL)


def test_arrays_that_are_not_trained_are_left_out_of_the_step():
    both = ArrayRecord({
        "w": Array(np.zeros(DIMENSION, np.float32)), "head": Array(np.ones(2, np.float32))
    })  # fmt: skip
    train = lambda node, name, array: array + WAY if array.size == DIMENSION else array  # noqa: E731
    grid = grid_of(nodes=range(1, 5), train=train)
    result = run(strategy(local=rq.Local(parts=("w",))), grid, both).arrays
    assert np.array_equal(result["head"].numpy(), np.ones(2))
    assert np.abs(result["w"].numpy()).max() > 0
