"""Flower: nothing of training leaves a client but its protected update."""

from __future__ import annotations

import numpy as np
import pytest
from flower_grid import InProcessGrid, over_the_wire
from flower_rounds import (
    ANYTHING,
    STEPS,
    all_refuse,
    changed_request,
    exact,
    fedavg,
    grid_of,
    mean_of,
    model,
    mover,
    one_round,
    refusals,
)
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from randquant.integrations import HEAD, INBOX, STYPE
from randquant.integrations.flower.messages import PAYLOAD
from randquant.rounds.limits import MEMBERSHIP_RECORD


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_nothing_but_ours_leaves_a_client(trust):
    _, grid, _ = one_round(exact(trust))
    for step, _, _, reply in grid.seen:
        assert set(reply.content) <= {HEAD, PAYLOAD, INBOX}
        assert set(reply.content[HEAD]) == {"step", "session"}
        if step == "upload":
            array = reply.content[PAYLOAD]["codes"]
            assert array.stype == STYPE
            with pytest.raises(TypeError, match="Unsupported serialization"):
                array.numpy()
    assert {step for step, *_ in grid.seen} == ({"upload"} if trust == "local" else set(STEPS))


def fails(node, name, array):
    raise RuntimeError("patient 17 has a secret")


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda node, name, a: np.zeros(3, np.float32),
        lambda node, name, a: np.zeros(5, np.int64),
        fails,
    ],
    ids=["another shape", "integers", "an error of training"],
)
def test_an_update_that_cannot_be_sent_is_not_and_the_server_does_not_learn_why(wrong, trust):
    train = lambda node, *given: (wrong if node == 2 else mover)(node, *given)  # noqa: E731
    found, grid, _ = one_round(exact(trust), train=train)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)
    assert refusals(grid) == {2: "This client has no update to send; its log says why."}


@pytest.mark.parametrize("trust", ["local", "aggregate"])
@pytest.mark.parametrize("wrong", ["nan", "inf"])
def test_a_client_whose_update_is_not_finite_sends_zeros(wrong, trust):
    """The server chose the model: that some data overflow at it must not be seen."""

    def train(node, name, array):
        return array + np.float32(wrong) if node == 2 else mover(node, name, array)

    found, grid, _ = one_round(exact(trust), train=train)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]) * 4 / 5, atol=1e-6)
    assert not refusals(grid)


def test_without_our_strategy_a_client_sends_nothing():
    """The train function under the mod is not even called."""
    grid = grid_of(train=None)
    fedavg().start(grid, model(), 1)
    assert refusals(grid).keys() == grid.contexts.keys()
    assert all("'randquant'" in reason for reason in refusals(grid).values())


def test_handlers_of_other_train_messages_are_protected_too():
    app = ClientApp()

    @app.train("fine", mods=[ANYTHING])
    def _fine(message, context):
        raise AssertionError

    @app.evaluate(mods=[ANYTHING])
    def _evaluate(message, context):
        return Message(RecordDict({"arrays": model()}), reply_to=message)

    grid = InProcessGrid(app, [1])
    for kind, passes in (("train.fine", False), ("evaluate", True)):
        message = Message(RecordDict({"arrays": model()}), dst_node_id=1, message_type=kind)
        assert app(over_the_wire(message), grid.contexts[1]).has_content() == passes


@pytest.mark.parametrize("where", ["request", "reply"])
def test_two_records_of_arrays_are_refused(where):
    app = ClientApp()

    @app.train(mods=[ANYTHING])
    def _train(message, context):
        records = {"arrays": message.content["arrays"]}
        if where == "reply":
            records["more"] = model()
        return Message(RecordDict(records), reply_to=message)

    grid = InProcessGrid(app, [1, 2, 3])
    if where == "request":
        changed_request(grid, "upload", lambda m: m.content.update({"more": model()}))
    all_refuse("", exact(), grid)


@pytest.mark.parametrize("trust", ["local", "aggregate"])
def test_whoever_could_not_upload_has_left_the_sum_and_keeps_none_of_its_secrets(trust):
    """Else it would go on to reveal its share of a sum that it is not in."""
    train = lambda node, *given: (fails if node == 2 else mover)(node, *given)  # noqa: E731
    _, grid, _ = one_round(exact(trust), train=train)
    assert MEMBERSHIP_RECORD not in grid.contexts[2].state
    after = [step for step, node, *_ in grid.seen if node == 2]
    assert after[-1] == "upload"
