"""Handshakes that travel with the round before: three messages a round, and what a server gains."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from flower_grid import InProcessGrid, answers_of, client_app, over_the_wire
from flower_rounds import (
    ANYTHING,
    exact,
    fedavg,
    mean_of,
    model,
    mover,
    noisy,
    run,
)
from flwr.app import ConfigRecord, Message, RecordDict

from randquant.aggregation.secagg.terms import Terms
from randquant.integrations.among_clients import AmongClients
from randquant.integrations.flower.messages import HEAD, INBOX, NEXT
from randquant.integrations.flower.mod import QuantizeMod
from randquant.integrations.flower.strategy import QuantizedStrategy, RoundsFailed
from randquant.integrations.ledger import SPENT
from randquant.integrations.membership import SUM
from randquant.integrations.offer import Offer
from randquant.integrations.protocol import terms_text
from randquant.privacy.accounting.accountant import account

NODES = range(1, 6)
NEXT_HEAD, NEXT_INBOX = NEXT[HEAD], NEXT[INBOX]


def a_grid(nodes=NODES, fault=None, mod=ANYTHING, train=mover):
    """A grid that notes every batch of messages that was sent, and what clients keep."""
    grid = InProcessGrid(client_app(mod, train), nodes, fault)
    grid.batches, grid.kept = [], Counter()
    send = grid.send_and_receive

    def noted(messages, *, timeout=None):
        sent = list(messages)
        if sent:
            heads = [m.content[HEAD] for m in sent]
            grid.batches.append(Counter(f"{h['step']}" for h in heads))
        replies = send(sent, timeout=timeout)
        for node, context in grid.contexts.items():
            kept = sum(name.startswith(SUM) for name in context.state)
            grid.kept[node] = max(grid.kept[node], kept)
        return replies

    grid.send_and_receive = noted
    return grid


def strategy_of(mechanism=None, inner=None, patience=1, folder=None, **sums):
    sums = AmongClients(**{"handshake": "ahead", **sums})
    return QuantizedStrategy(
        inner or fedavg(), mechanism or exact(), patience=patience, folder=folder, sums=sums
    )


def test_a_round_takes_three_messages_after_the_first_and_every_mean_is_exact():
    grid, means = a_grid(), []
    run(
        strategy_of(), grid, rounds=4,
        evaluate_fn=lambda number, arrays: means.append(arrays["w"].numpy()),
    )  # fmt: skip
    sent = [dict(batch) for batch in grid.batches]
    assert sent == [
        {step: 5} for step in ("advertise", "share", *("upload", "confirm", "reveal") * 4)
    ]
    for number, found in enumerate(means):
        np.testing.assert_allclose(found, number * mean_of(NODES), atol=1e-5)
    assert max(grid.kept.values()) == 2
    for context in grid.contexts.values():
        assert set(context.state) == {SPENT}
    with pytest.raises(ValueError, match="handshake"):
        strategy_of(handshake="later")
    with pytest.raises(ValueError, match=r"handshake.*under local trust"):
        strategy_of(exact("local"))


# Clients that come and go


def test_clients_lost_between_two_rounds_are_survived_and_come_back():
    """Client 2 is away from the end of round 1 to the end of round 2: three messages all along."""
    grid, means = a_grid(range(1, 8)), []

    def evaluate(number, arrays):
        means.append(arrays["w"].numpy())
        grid.offline = {2} if number == 1 else set()

    result = run(strategy_of(), grid, rounds=4, evaluate_fn=evaluate)
    taken = np.diff(means, axis=0)
    others = [n for n in range(1, 8) if n != 2]
    # In round 3 it has no handshake yet: it was not there when the clients were invited.
    for found, clients in zip(taken, (range(1, 8), others, others, range(1, 8)), strict=True):
        np.testing.assert_allclose(found, mean_of(clients), atol=1e-5)
    assert len(grid.batches) == 2 + 3 * 4
    assert [m["clients"] for m in result.train_metrics_clientapp.values()] == [7, 6, 6, 7]


@pytest.mark.parametrize("step", ["upload", "confirm", "reveal"])
def test_a_client_lost_at_a_step_of_a_round_is_lost_to_the_next_at_most(step):
    means = []

    def fault(at, node, reply):
        return [] if (at, node, len(means)) == (step, 4, 1) else [reply]

    def evaluate(number, arrays):
        means.append(arrays["w"].numpy())

    grid = a_grid(range(1, 8), fault)

    run(strategy_of(), grid, rounds=3, evaluate_fn=evaluate)
    taken, everyone = np.diff(means, axis=0), range(1, 8)
    without = [n for n in everyone if n != 4]
    first = without if step == "upload" else everyone  # later its vector is in the sum
    second = everyone if step == "reveal" else without
    for found, clients in zip(taken, (first, second, everyone), strict=True):
        np.testing.assert_allclose(found, mean_of(clients), atol=1e-5)


def test_too_few_left_between_two_rounds_begin_again_with_five_messages():
    grid, means = a_grid(range(1, 8)), []

    def evaluate(number, arrays):
        means.append(arrays["w"].numpy())
        grid.offline = {1, 2, 3} if number >= 1 else set()

    run(strategy_of(exact(cohort=3)), grid, rounds=3, evaluate_fn=evaluate)
    np.testing.assert_allclose(np.diff(means, axis=0)[1], mean_of([4, 5, 6, 7]), atol=1e-5)
    assert len(grid.batches) == 5 + 5 + 3


def test_a_server_that_is_started_again_begins_with_its_own_handshake(tmp_path):
    grid = a_grid()
    run(strategy_of(folder=tmp_path), grid, rounds=2)
    result = run(strategy_of(folder=tmp_path), grid, rounds=4)
    np.testing.assert_allclose(result.arrays["w"].numpy(), 4 * mean_of(NODES), atol=1e-5)
    assert len(grid.batches) == 2 * (2 + 3 * 2)


# A server that lies


def changing(grid, step, change, following=None):
    """Let the server's messages of a step, from round 2 on, be changed before they are sent."""
    send = grid.send_and_receive

    def lying(messages, *, timeout=None):
        sent = list(messages)
        for message in sent:
            carries = NEXT_HEAD in message.content
            if message.content[HEAD]["step"] == step and following in (None, carries):
                change(message)
        return send(sent, timeout=timeout)

    grid.send_and_receive = lying
    return grid


def refusals_of_next(grid):
    """What clients that stay in a round say of the next one."""
    heads = [reply.content.get(NEXT_HEAD) for *_, reply in grid.seen if reply.has_content()]
    return [head["refused"] for head in heads if head is not None and "refused" in head]


def next_head(message, **changes):
    message.content[NEXT_HEAD].update(changes)


def next_terms(message, **changes):
    record = json.loads(message.content[NEXT_HEAD]["terms"])
    next_head(message, terms=json.dumps({**record, **changes}))


def next_offer(message, **changes):
    record = json.loads(message.content[NEXT_HEAD]["offer"])
    next_head(message, offer=json.dumps({**record, **changes}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: next_terms(m, least=2), "a cohort of at most 2"),
        (lambda m: next_terms(m, bits=1), "it would wrap around"),
        (lambda m: next_terms(m, neighbours=2, threshold=2), "all 4 others as neighbours"),
        (lambda m: next_terms(m, threshold=2), "terms of a secure sum"),
        (lambda m: next_terms(m, clients=[11, 12, 13], neighbours=2), "terms of a secure sum"),
        (lambda m: next_offer(m, cohort=4), "a cohort of at most 3"),
        (lambda m: next_offer(m, format="2"), "Expected an offer of this package"),
        (lambda m: next_head(m, terms=""), "secure sum"),
        (lambda m: next_head(m, session=m.content[HEAD]["session"]), "of the next sum"),
        (lambda m: next_head(m, step="share"), "of the next sum"),
        (lambda m: next_head(m, step="reveal"), "of the next sum"),
        (lambda m: next_head(m, session=b""), "Expected the step and session"),
    ],
)  # fmt: skip
def test_terms_of_the_next_sum_are_refused_as_those_of_any(change, reason):
    """And the sum that runs is exact all the same."""
    grid, means = a_grid(), []
    changing(grid, "upload", lambda m: NEXT_HEAD in m.content and change(m))
    run(
        strategy_of(exact(cohort=3)), grid, rounds=2,
        evaluate_fn=lambda number, arrays: means.append(arrays["w"].numpy()),
    )  # fmt: skip
    assert len(found := refusals_of_next(grid)) == 5
    assert all(reason in text for text in found), found
    for number, mean in enumerate(means):  # round 2 begins anew
        np.testing.assert_allclose(mean, number * mean_of(NODES), atol=1e-5)
    assert len(grid.batches) == 5 + 5


@pytest.mark.parametrize("step", ["upload", "confirm"])
def test_a_step_of_two_sums_is_answered_once_whatever_old_state_comes_back(step, tmp_path):
    """Neither a second vector under the same masks, nor a second dealing of the same secrets."""
    again, grid = [], a_grid()
    for node, context in grid.contexts.items():
        context.node_config["randquant-ledger"] = str(tmp_path / f"account{node}")

    def twice(message):
        context = grid.contexts[message.metadata.dst_node_id]
        before = RecordDict(dict(context.state))
        message.metadata.__dict__["_message_id"] = "first"
        grid.app(over_the_wire(message), context)
        context.state = RecordDict({**before, SPENT: context.state[SPENT]})
        again.append(grid.app(over_the_wire(message), context))
        if step == "confirm":  # and the next sum's step alone, with other keys
            alone = over_the_wire(message)
            records = {HEAD: alone.content[NEXT_HEAD], INBOX: alone.content[NEXT_INBOX]}
            alone.content = RecordDict(records)
            context.state = RecordDict({**before, SPENT: context.state[SPENT]})
            again.append(grid.app(alone, context))

    changing(grid, step, lambda m: m.metadata.dst_node_id == 2 and twice(m), following=True)
    run(strategy_of(exact(cohort=3)), grid, rounds=2)
    assert len(again) == (2 if step == "confirm" else 1)
    assert all("of a round once" in reply.error.reason for reply in again)


def test_survivors_that_a_client_does_not_accept_end_both_sums_for_it():
    grid, late = a_grid(), []

    def lie(message):
        if message.metadata.dst_node_id == 3:
            following = over_the_wire(message)
            message.content[HEAD]["survivors"] = ["1", "2"]
            late.append(following)

    changing(grid, "confirm", lie, following=True)
    run(strategy_of(exact(cohort=3)), grid, rounds=2)
    records = {HEAD: late[0].content[NEXT_HEAD], INBOX: late[0].content[NEXT_INBOX]}
    late[0].content = RecordDict(records)
    assert grid.app(late[0], grid.contexts[3]).has_error()  # its share was not dealt, nor will be


def test_the_next_sums_step_travels_with_no_other_message():
    """A share beside an upload, an advert beside a confirmation, and either beside the others."""
    for step in ("share", "reveal"):
        grid = a_grid()

        def beside(message, grid=grid):
            request = next(r for s, n, r, _ in grid.seen if s == "advertise")
            head = dict(request.content[HEAD])
            message.content[NEXT_HEAD] = type(message.content[HEAD])({**head, "session": b"new"})

        changing(grid, step, lambda m: m.metadata.dst_node_id == 2 and beside(m))
        run(strategy_of(exact(cohort=2), handshake="apart"), grid)
        reasons = [r.error.reason for _, node, _, r in grid.seen if r.has_error() and node == 2]
        assert reasons == ["Expected steps of the next sum with an upload and a confirmation only."]


def test_keys_of_the_next_sum_that_were_changed_cost_the_sum_that_runs_nothing():
    """A hostile server, or client, in the adverts: nothing of the next sum is masked with them."""
    grid, means = a_grid(), []

    def swapped(message):
        inbox = message.content[NEXT_INBOX]
        inbox[next(iter(inbox))] = bytes(96)

    changing(grid, "confirm", swapped, following=True)
    run(
        strategy_of(), grid, rounds=2,
        evaluate_fn=lambda number, arrays: means.append(arrays["w"].numpy()),
    )  # fmt: skip
    assert len(refusals_of_next(grid)) == 5
    for number, mean in enumerate(means):
        np.testing.assert_allclose(mean, number * mean_of(NODES), atol=1e-5)
    assert len(grid.batches) == 5 + 5


def test_what_a_client_keeps_is_of_two_sums_at_most():
    """A server that never asks client 2 to reveal does not make it collect secrets."""
    grid = a_grid(range(1, 8))
    send = grid.send_and_receive

    def without(messages, *, timeout=None):
        kept = [m for m in messages if (m.content[HEAD]["step"], m.metadata.dst_node_id) != late]
        return send(kept, timeout=timeout)

    late, grid.send_and_receive = ("reveal", 2), without
    result = run(strategy_of(), grid, rounds=5)
    np.testing.assert_allclose(
        result.arrays["w"].numpy(), 5 * mean_of(range(1, 8)), atol=1e-5
    )  # fmt: skip
    assert grid.kept[2] == 2
    assert sum(name.startswith(SUM) for name in grid.contexts[2].state) == 1


def test_the_limit_of_a_client_counts_the_round_that_runs():
    """A limit of exactly two answers: it is invited to no third, and two means are exact."""
    mechanism = noisy()
    two, three = (
        account([mechanism.release(5, rounds, "replace_one")], 1e-5, quick=True).epsilon
        for rounds in (2, 3)
    )
    assert two < three
    grid = a_grid(mod=QuantizeMod(epsilon=(two + three) / 2))
    with pytest.raises(RoundsFailed):
        run(strategy_of(mechanism), grid, rounds=3)
    found = refusals_of_next(grid)
    assert len(found) == 5
    assert all("within epsilon" in text for text in found)
    assert sum(step == "upload" for step, *_ in grid.seen) == 2 * 5
    assert len(grid.batches) == 5 + 3 + 1  # the last invites to a handshake of its own, in vain


@pytest.mark.parametrize(
    ("at", "name", "reason"),
    [
        ("confirm", NEXT_INBOX, None),
        ("upload", INBOX, "do not unseal"),
        ("reveal", INBOX, "neighbours to confirm the survivors, got 0"),
    ],
)
def test_messages_of_one_sum_are_worth_nothing_in_the_other(at, name, reason):
    """Keys, sealed shares, confirmations of sum t in the place of those of sum t + 1."""
    kept, grid = {}, a_grid()

    def swapped(message):
        inbox = message.content[name]
        inbox.update(kept.setdefault(message.metadata.dst_node_id, dict(inbox)))

    changing(grid, at, swapped, following=True if reason is None else None)
    if reason is None:  # the server sees that clients saw other keys, and begins anew
        found = run(strategy_of(exact(cohort=3)), grid, rounds=3).arrays["w"].numpy()
        np.testing.assert_allclose(found, 3 * mean_of(NODES), atol=1e-5)
        assert len(grid.batches) == 5 + 3 + 5
        return
    with pytest.raises(RoundsFailed):
        run(strategy_of(exact(cohort=3)), grid, rounds=3)
    reasons = [reply.error.reason for *_, reply in grid.seen if reply.has_error()]
    assert len(reasons) == 5
    assert all(reason in text for text in reasons)


def test_a_server_that_never_ends_a_sum_gains_nothing():
    """It may go on to the next sum; a client that was charged for both reveals the second only."""
    grid = a_grid(range(1, 8))
    send, dropped = grid.send_and_receive, []

    def skipping(messages, *, timeout=None):
        sent = list(messages)
        if sent and sent[0].content[HEAD]["step"] == "reveal" and not dropped:
            dropped.extend(over_the_wire(message) for message in sent)
            return []
        return send(sent, timeout=timeout)

    grid.send_and_receive = skipping
    strategy = strategy_of(patience=2)
    found = run(strategy, grid, rounds=2).arrays["w"].numpy()
    np.testing.assert_allclose(found, mean_of(range(1, 8)), atol=1e-5)
    for message in dropped:  # too late: the upload of the next sum has ended this one
        message.metadata.__dict__["_message_id"] = "late"
        reply = grid.app(message, grid.contexts[message.metadata.dst_node_id])
        assert "the sum that this client is in" in reply.error.reason
    assert all(spent == 2 for spent in map(answers_of, grid.contexts.values()))


def test_invitations_beside_updates_of_local_trust_do_not_add_up():
    """An offer of one message has no sum to end: what it invites to replaces what was there."""
    grid, offers = (
        a_grid(),
        {trust: Offer(exact(trust), 5).to_text() for trust in ("local", "aggregate")},
    )
    terms = terms_text(Terms(b"any", tuple(NODES), 5, 4, 2, 4))
    for number in range(4):
        sessions = [bytes([number, which]) for which in (1, 2)]
        invitation = {"step": "advertise", "session": sessions[1], "offer": offers["aggregate"],
                      "terms": terms}  # fmt: skip
        both = RecordDict({
            "arrays": model(), "config": ConfigRecord({}),
            HEAD: ConfigRecord({"step": "upload", "session": sessions[0],
                                "offer": offers["local"]}),
            NEXT_HEAD: ConfigRecord(invitation),
        })  # fmt: skip
        message = Message(both, dst_node_id=2, message_type="train")
        reply = grid.app(over_the_wire(message), grid.contexts[2])
        assert "refused" not in reply.content[NEXT_HEAD]
    assert sum(name.startswith(SUM) for name in grid.contexts[2].state) == 1
