"""Flower: which sums a client takes part in, and what ends one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flower_grid import answers_of, over_the_wire
from flower_rounds import (
    all_refuse,
    ask,
    changed_offer,
    changed_terms,
    exact,
    grid_of,
    identify,
    mean_of,
    one_round,
    refusals,
)
from flwr.app import ConfigRecord

from randquant.integrations import HEAD, INBOX, QuantizeMod
from randquant.rounds import (
    ACCOUNT_RECORD,
    MEMBERSHIP_RECORD,
    NEXT_RECORD,
    AmongClients,
    Offer,
    RoundsFailed,
)
from randquant.secure_sums import Client


@pytest.mark.parametrize(("own", "refuses"), [(True, True), ("yes", True), (False, False)])
def test_a_node_asks_for_all_neighbours(own, refuses):
    mod = QuantizeMod(math.inf, all_neighbours=not refuses)
    grid = grid_of(mod, config={"randquant-all-neighbours": own})
    one_round(exact(), grid=grid, sums=AmongClients(neighbours=2))
    assert len(refusals(grid)) == 5 * refuses


def test_no_server_lowers_the_threshold_below_a_clients_own_word():
    lower = changed_terms("advertise", threshold=5)  # of 9; two thirds are 6
    grid = grid_of(nodes=range(1, 11), change=lower)
    all_refuse("threshold of 6 of 9 neighbours or more, got 5", exact(), grid)


def hostile_codes(monkeypatch, number, code):
    """One client masks `code` in place of every code of its update."""
    honest = Client.mask

    def mask(self, vector, sealed):
        return honest(self, vector * 0 + code if self.number == number else vector, sealed)

    monkeypatch.setattr(Client, "mask", mask)


def test_a_mean_that_no_codes_have_is_refused(monkeypatch):
    """One client of five sends 4 where codes are 0 to 2: the mean would be beyond all updates."""
    hostile_codes(monkeypatch, 2, np.uint8(4))
    with pytest.raises(RoundsFailed, match="totals of 10 at most, got 12"):
        one_round(exact(), train=lambda node, name, a: a + 1, patience=1)


def test_the_most_that_one_client_can_do_to_a_mean_is_to_make_it_the_largest(monkeypatch):
    """From the lowest of all honest means to the highest, and no further; docs say so."""
    hostile_codes(monkeypatch, 2, np.uint8(10))
    found, _, _ = one_round(exact(), train=lambda node, name, a: a - 1)
    assert found.tolist() == [1.0] * 5


def test_secrets_of_a_sum_are_forgotten_when_a_step_of_it_fails():
    again = []

    def wrong(message):
        node = message.metadata.dst_node_id
        if node != 3:
            return
        right = over_the_wire(message)
        message.content[HEAD]["survivors"] = ["1", "2"]
        message.metadata.__dict__["_message_id"] = "wrong"
        first = grid.app(over_the_wire(message), grid.contexts[node])
        assert "this client among" in first.error.reason
        assert set(grid.contexts[node].state) == {ACCOUNT_RECORD}
        again.append(grid.app(right, grid.contexts[node]).error.reason)

    grid = grid_of(change=("confirm", wrong))
    found, _, _ = one_round(exact(), grid=grid)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)
    reason = "Expected a message of the sum that this client is in, got a message of a different"
    assert again == [f"{reason} session."]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: changed_offer(m, lambda r: r["channel"]["weights"][0].reverse()), "offer"),
        (
            lambda m: changed_offer(
                m, lambda r: r["channel"]["certificate"].update(epsilon={"lower": 0, "upper": 1})
            ),
            "certified at epsilon 1 as it says",
        ),
        (lambda m: changed_offer(m, lambda r: r.update(cohort=4)), "a cohort of at most 3"),
        (lambda m: m.content[HEAD].update(terms="[]"), "terms of a secure sum"),
        (changed_terms("", least=2)[1], "a cohort of at most 2"),
        (changed_terms("", bits=1)[1], "it would wrap around"),
        (changed_terms("", clients=[1, 2, 3, 9])[1], "one of the sum's clients"),
    ],
)
def test_a_changed_offer_is_refused(change, reason, caplog):
    grid = grid_of(change=("advertise", change))
    with pytest.raises(RoundsFailed):
        one_round(exact(cohort=3), grid=grid, patience=1)
    assert refusals(grid)
    logged = [r.getMessage() for r in caplog.records if "refused" in r.getMessage()]
    assert 1 <= len(logged) <= len(refusals(grid))
    assert all(reason in text for text in logged)


def test_a_cohort_that_refuses_or_is_silent_for_one_reason_is_one_line_of_the_log(caplog):
    wary = QuantizeMod(math.inf, trust="local")
    all_refuse("offer of local trust", exact(), grid_of(wary, nodes=range(1, 13)))
    first = "12 clients (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)"
    said = [r.getMessage() for r in caplog.records if "local trust" in r.getMessage()]
    # Simulated clients share a process, in which all of them say the same.
    assert [line.split(": Expected")[0] for line in said if "failed" not in line] == [
        "randquant: refused", f"randquant: reply of {first} to 'advertise' dropped"
    ]  # fmt: skip
    caplog.clear()
    with pytest.raises(RoundsFailed):
        one_round(exact(), range(1, 13), fault=lambda *_: [], patience=1)
    said = [r.getMessage() for r in caplog.records if "no reply" in r.getMessage()]
    assert said == [f"randquant: {first}: no reply to 'advertise' in time."]


def test_without_secure_aggregation_an_offer_that_counts_on_it_is_refused():
    def bare(message):
        head = {"step": "upload", "session": b"x", "offer": Offer(exact(), 5).to_text()}
        message.content[HEAD] = ConfigRecord(head)
        del message.content[INBOX]

    reason = (
        "Expected the terms of a secure sum, which an offer of aggregate trust needs, got an offer "
        "without terms."
    )
    all_refuse(reason, exact(), grid_of(change=("upload", bare)))


def test_a_step_is_taken_once_and_not_again_after_an_error():
    """A server that asks twice gets one answer: two masked vectors would differ by codes only."""
    _, grid, _ = one_round(exact())
    for step, node, request, _ in list(grid.seen):
        if step != "advertise":
            reply = grid.app(request, grid.contexts[node])
            assert "the sum that this client is in" in reply.error.reason

    repeated = []

    def twice(message):
        context = grid.contexts[message.metadata.dst_node_id]
        repeated.append(grid.app(over_the_wire(message), context))

    grid = grid_of(change=("upload", twice))
    all_refuse("each step of a round once", exact(), grid)
    assert [reply.has_content() for reply in repeated] == [True] * 5


def test_signed_keys_keep_a_server_from_standing_between(tmp_path):
    def signed(**options):
        grid = grid_of(**options)
        return grid, identify(grid, grid.contexts, tmp_path)

    found, _, _ = one_round(exact(), grid=signed()[0])
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)

    def swapped(message):
        inbox = message.content[INBOX]
        inbox[next(iter(inbox))] = bytes(96)

    all_refuse("keys signed by client", exact(), signed(change=("share", swapped))[0])

    unsigned, directory = signed()
    unsigned.contexts[2].node_config.pop("randquant-identity")
    known = {int(n): bytes.fromhex(key) for n, key in directory.items()}
    found, _, _ = one_round(exact(), grid=unsigned, sums=AmongClients(directory=known))
    np.testing.assert_allclose(found, mean_of({1, 3, 4, 5}), atol=1e-6)


def test_a_message_of_another_sum_does_not_end_the_one_that_runs():
    replies = []

    def beside(message):
        replies.append(ask(grid, message.metadata.dst_node_id, "confirm", b"another"))

    grid = grid_of(change=("upload", beside))
    found, _, _ = one_round(exact(), grid=grid)
    assert all("the sum that this client is in" in r.error.reason for r in replies)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-6)


def test_a_server_that_never_ends_a_sum_gains_nothing():
    """It may go on to the next sum; a client that was charged for both reveals the second only."""
    grid, dropped = grid_of(), []
    send = grid.send_and_receive

    def skipping(messages, *, timeout=None):
        sent = list(messages)
        if sent and sent[0].content[HEAD]["step"] == "reveal" and not dropped:
            dropped.extend(over_the_wire(message) for message in sent)
            return []
        if dropped and sent:
            kept = grid.contexts[sent[0].metadata.dst_node_id].state
            assert set(kept) - {NEXT_RECORD} == {MEMBERSHIP_RECORD, ACCOUNT_RECORD}
        return send(sent, timeout=timeout)

    grid.send_and_receive = skipping
    found, _, _ = one_round(exact(), grid=grid, patience=2, rounds=2)
    np.testing.assert_allclose(found, mean_of(range(1, 6)), atol=1e-5)
    for message in dropped:  # too late: the invitation to the next sum has ended this one
        message.metadata.__dict__["_message_id"] = "late"
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        assert "the sum that this client is in" in reply.error.reason
    assert all(answers_of(context) == 2 for context in grid.contexts.values())


@pytest.mark.parametrize(
    ("step", "reason"),
    [("upload", "do not unseal"), ("reveal", "neighbours to confirm the survivors, got 0")],
)
def test_messages_of_one_sum_are_worth_nothing_in_the_next(step, reason):
    """Sealed shares and confirmations of round 1 in the place of those of round 2."""
    kept = {}

    def swapped(message):
        inbox = message.content[INBOX]
        inbox.update(kept.setdefault(message.metadata.dst_node_id, dict(inbox)))

    all_refuse(reason, exact(), grid_of(change=(step, swapped)), rounds=2)


def test_shares_that_do_not_open_cost_their_sender_its_part_and_others_nothing(caplog):
    def fault(step, node, reply):
        if step == "share" and node == 2:
            inbox = reply.content[INBOX]
            inbox.update({n: bytes(len(m)) for n, m in inbox.items() if n != "2"})
        return [reply]

    found, grid, strategy = one_round(exact(), fault=fault)
    np.testing.assert_allclose(found, mean_of([1, 3, 4, 5]), atol=1e-6)
    assert strategy.history[0].dropped == 1
    assert not refusals(grid)
    assert [node for step, node, *_ in grid.seen if step == "confirm"] == [1, 3, 4, 5]
    warnings = [r.getMessage() for r in caplog.records if "randquant: client" in r.getMessage()]
    assert len(warnings) == 1
    assert "client 2: Expected shares that unseal" in warnings[0]


def test_shares_of_all_that_do_not_open_stop_a_client_before_it_is_charged():
    def changed(message):
        inbox = message.content[INBOX]
        if message.metadata.dst_node_id == 3:
            inbox.update({n: bytes(len(m)) for n, m in inbox.items()})

    found, grid, _ = one_round(exact(), change=("upload", changed))
    np.testing.assert_allclose(found, mean_of([1, 2, 4, 5]), atol=1e-6)
    assert set(refusals(grid)) == {3}
    assert "or the server that relays, are at fault" in refusals(grid)[3]
    assert [answers_of(grid.contexts[node]) for node in range(1, 6)] == [1, 1, 0, 1, 1]
