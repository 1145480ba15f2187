"""Rounds in which each client sends the index of one coordinate, drawn by its rank."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from flower_rounds import model, noisy, one_round, refusals, steps_of

from randquant.aggregation import LocalGaussian, RankMechanism, SignSGD, graded_rank
from randquant.channels import Key
from randquant.integrations import (
    Offer,
    QuantizeMod,
    RoundEvent,
    RunAccountant,
    payload_record,
    read_payload,
)
from randquant.integrations.flower.messages import PAYLOAD
from randquant.privacy import account

DIMENSION = 40
RANK = RankMechanism(clip_norm=8.0, epsilon=7.99)


def rounds(**options):
    """(model afterwards, grid, strategy)"""
    return one_round(RANK, arrays=model(DIMENSION), **options)


def sending(node, payload):
    """A fault: this client's upload is another one."""

    def fault(step, sender, reply):
        if (step, sender) == ("upload", node):
            reply.content[PAYLOAD] = payload_record(payload())
        return [reply]

    return fault


def by_number(encoded):
    return {each.client: payload for each, payload in encoded}


def test_a_round_takes_the_step_of_the_indices_bit_for_bit(encoded):
    moved, grid, strategy = rounds()
    assert not refusals(grid)
    assert sorted(each.client for each, _ in encoded) == [1, 2, 3, 4, 5]
    [seed] = {each.rotation_seed for each, _ in encoded}
    now, payloads = RANK.in_round(seed), [payload for _, payload in encoded]
    np.testing.assert_array_equal(moved, now.mean(by_number(encoded), DIMENSION))
    assert np.linalg.norm(moved) > 0
    # Nothing of an update but its index travels, and no two clients share a rotation.
    sent = [reply.content for step, _, _, reply in grid.seen if step == "upload"]
    assert [read_payload(content) for content in sent] == payloads
    assert {len(payload) for payload in payloads} == {1} == {strategy.history[0].upload_bytes}
    assert len({each.group(Key.from_seed(9)) for each, _ in encoded}) == 5
    spent = strategy.accountant.get_privacy_spent()
    assert spent.epsilon == account([RANK.release(DIMENSION, 1)], 1e-5).epsilon < 8


def test_a_client_cannot_choose_its_rotation(encoded):
    """An index of another rotation is read in the client's own: it gains no direction."""
    chosen = []

    def another():
        other = encoded[0][0].of_client(77)
        chosen.append(other.encode(steps_of(2, DIMENSION), Key.from_seed(1)))
        return chosen[0]

    moved, _, _ = rounds(fault=sending(2, another))
    now, sent = RANK.in_round(encoded[0][0].rotation_seed), by_number(encoded)
    del sent[77]
    np.testing.assert_array_equal(moved, now.mean(sent | {2: chosen[0]}, DIMENSION))


@pytest.mark.parametrize("bad", [b"", b"\x50", b"00", b"00000000"])
def test_what_is_no_index_is_left_out(bad, encoded, caplog):
    """Of 40 coordinates and their negatives none is number 80."""
    moved, _, strategy = rounds(fault=sending(3, lambda: bad))
    wanted = "index below 80, got 80" if bad == b"\x50" else f"an index of 1 bytes, got {len(bad)}"
    assert f"client 3 to 'upload' dropped: Expected {wanted}" in caplog.text
    others = {c: payload for c, payload in by_number(encoded).items() if c != 3}
    now = RANK.in_round(encoded[0][0].rotation_seed)
    np.testing.assert_array_equal(moved, now.mean(others, DIMENSION))
    assert strategy.accountant.answers(3) == 1  # it was asked


def test_a_client_counts_its_one_answer_itself_and_refuses_another(encoded):
    _, grid, _ = rounds(rounds=2, mod=QuantizeMod(epsilon=8.0, trust="local"), patience=5)
    assert len(encoded) == 5
    asked_again = [r for step, _, _, r in grid.seen[5:] if step == "advertise" and r.has_error()]
    assert len(asked_again) == 5
    assert all("epsilon 8.0, this client's limit" in str(r.error.reason) for r in asked_again)


def test_two_rounds_cost_a_client_what_the_account_says(encoded):
    _, _, strategy = rounds(rounds=2)
    twice = account([RANK.release(DIMENSION, 2)], 1e-5).epsilon
    assert strategy.accountant.get_privacy_spent().epsilon == twice > 11
    # Beside a sum of codes, which an adversary sees less of, both count.
    accountant = RunAccountant(1e-5)
    accountant.compose(RoundEvent(Offer(RANK, DIMENSION), frozenset({1})))
    accountant.compose(RoundEvent(Offer(noisy(), DIMENSION), frozenset({1})))
    both = accountant.get_privacy_spent()
    parts = [RANK.release(DIMENSION, 1).under("aggregate"), noisy().release(DIMENSION, 1)]
    assert both.epsilon == account(parts, 1e-5).epsilon > strategy.accountant.get_epsilon(1e-5) / 2
    assert both.trust == "aggregate"


def test_an_offer_travels_whole_and_others_are_refused():
    for mechanism in (RANK, graded_rank(2.0, 1.0, groups=9), RankMechanism(1.0, 2.0, client=3)):
        offer = Offer(mechanism, 650, ("a",), "frozen")
        assert Offer.from_text(offer.to_text()) == offer
        assert offer.release(2, "zero_out", "local") == mechanism.release(650, 2, "zero_out")
    record = json.loads(Offer(RANK, 650).to_text())
    for change in (
        {"mechanism": "local-gaussian"}, {"mechanism": "vector"}, {"mechanism": ["rank"]},
        {"epsilon": 31.0}, {"epsilon": math.nan}, {"groups": 0}, {"client": -1}, {"more": 1},
        {"dimension": 2**30}, {"channel": {}},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="Expected an offer of this package's version"):
            Offer.from_text(json.dumps({**record, **change}))
    for mechanism in (LocalGaussian(1.0, 1.0), SignSGD(1.0, 2.0)):
        with pytest.raises(TypeError, match="baselines are for simulation"):
            Offer(mechanism, 650)
    with pytest.raises(ValueError, match="Expected dimension >= 1 and <= "):
        Offer(RANK, 2**30)
