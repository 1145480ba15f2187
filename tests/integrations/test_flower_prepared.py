"""Flower: the first steps of a round's sum go with the messages of the round before."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from flower_grid import answers_of, over_the_wire
from flower_rounds import (
    STEPS,
    ask,
    exact,
    fedavg,
    grid_of,
    mean_of,
    model,
    noisy,
    one_round,
    refusals,
)
from flwr.app import ConfigRecord, Message, RecordDict

from randquant.integrations import HEAD
from randquant.integrations.flower.messages import INBOX, NEXT_HEAD, NEXT_INBOX
from randquant.rounds import MEMBERSHIP_RECORD, NEXT_RECORD, AmongClients, Offer

ALL, FEWER = range(1, 6), [1, 3, 4, 5]


def steps_to(grid, node=1):
    """The steps that a client was asked for, of this round's sum and of the next one's."""
    heads = [request.content for _, to, request, _ in grid.seen if to == node]
    return [(c[HEAD]["step"], c[NEXT_HEAD]["step"] if NEXT_HEAD in c else "") for c in heads]


FIRST = [("advertise", ""), ("share", ""), ("upload", "advertise"), ("confirm", "share"),
         ("reveal", "")]  # fmt: skip
PREPARED = FIRST[2:]
LAST = [(step, "") for step in STEPS[2:]]


def test_rounds_after_the_first_take_three_messages_and_have_the_same_sums():
    moved, grid, strategy = one_round(exact(), rounds=3)
    assert steps_to(grid) == FIRST + PREPARED + LAST
    np.testing.assert_allclose(moved, 3 * mean_of(ALL), atol=1e-5)
    assert [answers_of(context) for context in grid.contexts.values()] == [3] * 5
    assert strategy.accountant.answers(1) == 3
    # Each sum has a session and secrets of its own, which are deleted after it.
    sessions = Counter(bytes(m.content[HEAD]["session"]) for _, n, m, _ in grid.seen if n == 1)
    assert sorted(sessions.values()) == [3, 3, 5]
    for context in grid.contexts.values():
        assert not {MEMBERSHIP_RECORD, NEXT_RECORD} & set(context.state)


def losing(node, step, goes=True):
    """A grid on which a client's reply is lost, once; it may also leave for good."""
    lost = []

    def fault(name, client, reply):
        if (name, client) == (step, node) and not lost:
            lost.append(client)
            grid.offline |= {client} if goes else set()
            return []
        return [reply]

    grid = grid_of(fault=fault)
    return grid


@pytest.mark.parametrize("step", ["upload", "confirm"])
def test_a_client_that_leaves_takes_no_part_in_the_sum_that_was_prepared(step):
    grid = losing(2, step)
    moved, _, _ = one_round(exact(), grid=grid, rounds=2)
    first = mean_of(FEWER if step == "upload" else ALL)
    np.testing.assert_allclose(moved, first + mean_of(FEWER), atol=1e-5)
    assert steps_to(grid) == FIRST + LAST


@pytest.mark.parametrize("step", ["upload", "confirm"])
def test_a_client_that_was_lost_and_is_back_makes_the_next_sum_begin_afresh(step):
    """A sum that was prepared without it would leave out a client that the strategy has chosen."""
    grid = losing(2, step, goes=False)
    moved, _, _ = one_round(exact(), grid=grid, rounds=2)
    first = mean_of(FEWER if step == "upload" else ALL)
    np.testing.assert_allclose(moved, first + mean_of(ALL), atol=1e-5)
    assert steps_to(grid) == FIRST + [(name, "") for name in STEPS]


@pytest.mark.parametrize("clients", [[2], ALL])
@pytest.mark.parametrize("how", ["missing", "damaged", "of another session"])
def test_whatever_clients_answer_for_the_next_sum_this_one_is_exact(clients, how, caplog):
    def fault(step, node, reply):
        if node in clients and NEXT_HEAD in reply.content:
            if how == "missing":
                reply.content.pop(NEXT_HEAD)
            elif how == "damaged":
                reply.content[NEXT_INBOX] = ConfigRecord({"1": b"damaged"})
            else:
                reply.content[NEXT_HEAD]["session"] = b"another"
        return [reply]

    grid = grid_of(fault=fault)
    moved, _, _ = one_round(exact(), grid=grid, rounds=2)
    np.testing.assert_allclose(moved, 2 * mean_of(ALL), atol=1e-5)
    assert len(steps_to(grid)) == 10
    assert ("next round's sum could not be prepared" in caplog.text) == (clients is ALL)


@pytest.mark.parametrize(
    "fields", [{"step": "nonsense"}, {"session": b""}, {"step": "reveal"}, {"step": "upload"}]
)
def test_a_request_for_the_next_sum_that_is_refused_costs_this_round_nothing(fields):
    def change(message):
        message.content[NEXT_HEAD] = ConfigRecord({"step": "share", "session": b"s", **fields})

    grid = grid_of(change=("upload", change))
    moved, _, _ = one_round(exact(), grid=grid)
    np.testing.assert_allclose(moved, mean_of(ALL), atol=1e-5)
    assert not refusals(grid)
    assert not any(NEXT_HEAD in reply.content for *_, reply in grid.seen)


def test_no_second_offer_in_this_rounds_session_by_way_of_the_next_round():
    """Neither is there a second sum, which would end the one that runs."""

    def change(message):
        head = dict(message.content[HEAD])
        first = next(m.content[HEAD] for step, *_, m, _ in grid.seen if step == "advertise")
        other = {"step": "advertise", "session": head["session"], "offer": first["offer"] + " "}
        message.content[NEXT_HEAD] = ConfigRecord({**other, "terms": first["terms"]})

    grid = grid_of(change=("upload", change))
    moved, _, _ = one_round(exact(), grid=grid)
    np.testing.assert_allclose(moved, mean_of(ALL), atol=1e-5)
    assert not any(NEXT_HEAD in reply.content for *_, reply in grid.seen)
    assert not any(NEXT_RECORD in context.state for context in grid.contexts.values())


def prepared_client():
    """A grid after two of three rounds; client 1's requests for the third sum, which is prepared.

    What the server would have sent in round 3 is kept, and not sent.
    """
    kept, grid = [], grid_of()
    send = grid.send_and_receive

    def keeping(messages, *, timeout=None):
        sent = list(messages)
        # Round 3 begins with its upload.
        if (
            sent
            and sum(step == "upload" and node == 1 for step, node, *_ in grid.seen) == 2
            and (sent[0].content[HEAD]["step"] == "upload")
        ):
            kept.extend(over_the_wire(message) for message in sent)
            return []
        return send(sent, timeout=timeout)

    grid.send_and_receive = keeping
    one_round(exact(), grid=grid, rounds=3)
    [request] = [message for message in kept if message.metadata.dst_node_id == 1]
    return grid, request


def upload(grid, request):
    message = Message(RecordDict({**request.content}), dst_node_id=1, message_type="train")
    return grid.app(over_the_wire(message), grid.contexts[1])


def test_a_prepared_sum_is_answered_once():
    grid, request = prepared_client()
    assert answers_of(grid.contexts[1]) == 2
    assert not upload(grid, request).has_error()
    assert answers_of(grid.contexts[1]) == 3
    assert upload(grid, request).has_error()
    assert answers_of(grid.contexts[1]) == 3


@pytest.mark.parametrize("step", STEPS[2:])
def test_a_later_step_of_a_prepared_sum_does_not_go_with_another_rounds_message(step):
    """Taken there it would be taken for ever, without an update and without its cost."""
    grid, request = prepared_client()
    later = {"step": step, "session": request.content[HEAD]["session"], "survivors": ["1", "3"]}
    other = {"step": "upload", "session": b"other", "offer": Offer(exact("local"), 5).to_text()}
    content = {
        "arrays": model(),
        "config": ConfigRecord({}),
        HEAD: ConfigRecord(other),
        NEXT_HEAD: ConfigRecord(later),
    }
    content[NEXT_INBOX] = request.content[INBOX]
    message = Message(RecordDict(content), dst_node_id=1, message_type="train")
    reply = grid.app(over_the_wire(message), grid.contexts[1])
    assert not reply.has_error()
    assert NEXT_HEAD not in reply.content
    assert answers_of(grid.contexts[1]) == 3
    assert not upload(grid, request).has_error()
    assert answers_of(grid.contexts[1]) == 4


def test_a_sum_that_begins_afresh_ends_one_that_was_prepared():
    grid, request = prepared_client()
    first = next(m.content[HEAD] for step, n, m, _ in grid.seen if (step, n) == ("advertise", 1))
    terms = {name: first[name] for name in ("offer", "terms")}
    assert not ask(grid, 1, "advertise", b"fresh", **terms).has_error()
    assert NEXT_RECORD not in grid.contexts[1].state
    assert "the sum that this client is in" in str(upload(grid, request).error.reason)
    assert answers_of(grid.contexts[1]) == 2


def test_no_second_offer_in_the_session_of_a_prepared_sum():
    grid, request = prepared_client()
    other = Offer(noisy("local"), 5).to_text()
    reply = ask(grid, 1, "upload", bytes(request.content[HEAD]["session"]), offer=other)
    assert "one offer in a round, got a second" in str(reply.error.reason)
    assert answers_of(grid.contexts[1]) == 2


def test_no_sum_is_prepared_where_the_next_round_may_ask_others():
    some = fedavg(fraction_train=0.6, min_train_nodes=3)
    _, grid, _ = one_round(exact(), grid=grid_of(), inner=some, rounds=3)
    assert not any(NEXT_HEAD in request.content for _, _, request, _ in grid.seen)


def test_a_run_that_goes_on_after_its_last_round_begins_afresh():
    """Nothing is prepared in a last round: clients keep no secrets of a sum that may never come."""
    grid = grid_of()
    _, _, strategy = one_round(exact(), grid=grid)
    strategy.start(grid, model(), 1)
    assert steps_to(grid) == 2 * [(step, "") for step in STEPS]


def test_neighbours_of_a_prepared_sum_are_drawn_anew():
    """They follow from the session, which no two sums share."""
    grid = grid_of(nodes=range(1, 12), config={"randquant-all-neighbours": False})
    moved, _, _ = one_round(exact(), grid=grid, rounds=2, sums=AmongClients(neighbours=6))
    np.testing.assert_allclose(moved, 2 * mean_of(range(1, 12)), atol=1e-5)
    assert steps_to(grid) == FIRST + LAST


CLIENT = """
import sys
from randquant.flower import QuantizeMod
QuantizeMod(epsilon=8.0)
print(*(name for name in sys.modules if name.startswith("randquant.")))
"""


def test_a_clients_process_imports_nothing_of_the_servers():
    """It is started anew for each message: what it imports is paid for in each."""
    asked = [sys.executable, "-c", CLIENT]
    loaded = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert "randquant.rounds.member" in loaded
    for room in ("statistics", "planning", "local_training", "mechanisms", "privacy.certificates",
                 "rounds.run", "rounds.store", "secure_sums.helper.circuits"):  # fmt: skip
        assert not [name for name in loaded if name.startswith(f"randquant.{room}")], room
