"""Ranks are drawn as their table says, indices have one rank each, and means are unbiased."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from chance import fits

import randquant as rq
from randquant.audit import worst_inputs
from randquant.channels import Key
from randquant.privacy import account
from randquant_papers.rank import (
    RankMechanism,
    RankTable,
    draw_below,
    gain,
    graded_rank,
    index_at,
    ranks_of,
)

RNG = np.random.default_rng(7)
VECTORS = [
    RNG.normal(size=5), np.ones(4), -np.ones(3), np.array([-2.0]),
    np.array([3.0, -3.0, 3.0, 1.0, -1.0]),
]  # fmt: skip


def key(*labels):
    return Key.from_seed(3).fold_in(*labels)


# The sampler -----------------------------------------------------------------------------------


def test_every_unit_belongs_to_the_rank_that_it_weighs():
    """All units, one by one: no rank is off by one, and none is missing."""
    for table in (
        RankTable((1, 3), (5, 1)),
        RankTable((2, 1, 3), (7, 3, 2)),
        RankTable((2,), (9,)),
    ):
        ranks = ranks_of(table, np.arange(table.total))
        expected = np.repeat(table.weights, table.counts)
        assert np.array_equal(np.bincount(ranks), expected)
        assert (np.diff(ranks) >= 0).all()


def test_units_at_the_ends_of_a_table_of_62_bits():
    table = RankMechanism(1.0, 8.0).table(2**20)
    cut, top = table.counts[0], table.weights[0]
    units = np.array([0, top - 1, top, cut * top - 1, cut * top, table.total - 1], dtype=np.uint64)
    assert ranks_of(table, units).tolist() == [0, 0, 1, cut - 1, cut, 2**21 - 1]


@pytest.mark.parametrize("limit", [2, 7, 1000, 2**62, 2**61 + 12345])
def test_words_below_a_limit_are_uniform(limit):
    drawn = draw_below(limit, key("uniform", limit), 20_001)
    assert drawn.shape == (20_001,)
    assert drawn.max() < limit
    parts = min(limit, 10)
    ends = [-(-limit * part // parts) for part in range(parts + 1)]
    places = np.searchsorted(np.array(ends[1:], dtype=np.uint64), drawn, side="right")
    assert fits(places, np.array([(end - start) / limit for start, end in pairwise(ends)]))


def test_words_beyond_the_largest_multiple_are_drawn_again(monkeypatch):
    """A planted word of all ones would be a remainder that is too likely."""
    real = Key.words

    def planted(self, count, start=0):
        words = real(self, count, start).copy()
        if start == 0:
            words[0] = 2**64 - 1
        return words

    expected = draw_below(2**61 + 12345, key(1), 2)
    monkeypatch.setattr(Key, "words", planted)
    assert draw_below(2**61 + 12345, key(1), 1)[0] == expected[1]


# From rank to index ----------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_negative_has_the_reversed_ranks(vector):
    ranks = range(2 * vector.size)
    there = [index_at(vector, rank) for rank in ranks]
    assert [index_at(-vector, rank) for rank in ranks] == there[::-1]


# Encoding and decoding -------------------------------------------------------------------------


def ranks_sent(mechanism, update, clients):
    """The rank of the index that each client sent, by sorting."""
    form, found = mechanism.form(update.size), []
    for client in range(clients):
        group, index = form.read(mechanism.encode(update, key("client", client)))
        rotated = mechanism.rotation(update.size, group).forward(update)
        order = np.argsort(-np.concatenate([rotated, -rotated]), kind="stable")
        found.append(int(np.flatnonzero(order == index)[0]))
    return np.array(found)


@pytest.mark.parametrize("length", [0.0, 0.3, 1.0])
def test_a_short_update_sends_a_uniform_index_as_often_as_it_is_short(length):
    mechanism, update = RankMechanism(1.0, 1.5), length * np.array([0.6, -0.8])
    ranks = ranks_sent(mechanism, update, 2500)
    table = mechanism.table(2)
    row = np.repeat(table.weights, table.counts) / table.total
    assert fits(ranks, length * row + (1 - length) / 4)
    assert fits(ranks, row) == (length == 1)


def mean_error(mechanism, update, clients):
    """z-scores of the coordinates of a mean of equal updates."""
    payloads = [mechanism.encode(update, key("error", c)) for c in range(clients)]
    error = mechanism.mean(payloads, update.size) - update
    deviation = mechanism.length(update.size) / math.sqrt(mechanism.size(update.size) * clients)
    return error / deviation


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("update", "clients"),
    [
        (np.array([0.8]), 900), (np.array([1.0, 0.0]), 900), (np.array([0.3, -0.5, 0.1]), 900),
        (np.full(20, 20**-0.5), 600), (np.eye(65)[3], 300), (np.full(100, 0.05), 300),
    ],
)  # fmt: skip
def test_means_are_unbiased(update, clients):
    """Each coordinate within 6 deviations: 2e-9 a coordinate in the normal limit."""
    assert np.abs(mean_error(RankMechanism(1.0, 3.0), update, clients)).max() < 6
    assert np.abs(mean_error(graded_rank(1.0, 2.0), update, clients)).max() < 6


def test_the_error_is_the_expected_one():
    update = RNG.normal(size=100)
    update /= np.linalg.norm(update)
    z = mean_error(RankMechanism(1.0, 4.0), update, 400)
    # The mean square of 100 nearly normal scores: within 6 deviations of 1.
    assert abs(np.mean(z**2) - 1) < 6 * math.sqrt(2 / 100)
    mechanism = RankMechanism(2.0, 4.0)
    expected = mechanism.expected_error(100).deviation(400)
    length = 2.0 / gain(mechanism.table(100))
    assert expected == pytest.approx(length / math.sqrt(8192 * 400), rel=1e-3)


def test_groups_are_drawn_whatever_the_update_is():
    mechanism = RankMechanism(1.0, 2.0, groups=4)
    form = mechanism.form(2)
    for update in (np.array([1.0, 0.0]), np.array([0.0, -1.0])):
        groups = [form.read(mechanism.encode(update, key(c)))[0] for c in range(800)]
        assert fits(np.array(groups), np.full(4, 0.25))
        again = [form.read(mechanism.encode(-update, key(c)))[0] for c in range(800)]
        assert groups == again


def test_a_client_with_a_number_has_one_group_in_a_round():
    """Whatever its update and key; uniformly over clients, and another one in the next round."""
    mechanism = RankMechanism(1.0, 2.0, groups=4)
    form, update = mechanism.form(2), np.array([1.0, 0.0])
    clients = [mechanism.of_client(client) for client in range(2500)]
    groups = [(own.group(key(0)), own.in_round(1).group(key(0))) for own in clients]
    assert fits(np.array(groups) @ [4, 1], np.full(16, 1 / 16))
    for own, (group, _) in list(zip(clients, groups, strict=True))[:20]:
        payloads = [own.encode(sign * update, key(int(sign))) for sign in (1.0, 0.0)]
        assert [len(payload) for payload in payloads] == [1, 1]
        rotated_back = mechanism.rotation(2, group).inverse(np.eye(2)[payloads[0][0] % 2])
        sign = 1.0 if payloads[0][0] < 2 else -1.0
        mean = mechanism.mean({own.client: payloads[0]}, 2)
        assert np.allclose(mean, sign * mechanism.length(2) * rotated_back, rtol=1e-6)
        # What it says of its group is not read.
        with pytest.raises(ValueError, match="Expected an index of 1 bytes, got 4"):
            mechanism.mean({7: form.payload(group, payloads[0][0])}, 2)


def test_a_client_decodes_its_own_payload_or_all_by_their_numbers():
    mechanism, update = RankMechanism(1.0, 3.0), np.array([0.6, 0.0, -0.8])
    sent = {c: mechanism.of_client(c).encode(update, key("own", c)) for c in range(4)}
    own = mechanism.of_client(2)
    assert np.array_equal(own.mean(sent, 3), mechanism.mean(sent, 3))
    with pytest.raises(ValueError, match=r"one payload, of client 2, got 4: .* by number"):
        own.mean(list(sent.values()), 3)
    with pytest.raises(ValueError, match=r"got 1: an index alone is decoded by .* number"):
        mechanism.mean(list(sent.values()), 3)
    alone = mechanism.encode(update, key("alone"))
    with pytest.raises(ValueError, match=r"payload of client 7: .* stand alone in a list"):
        mechanism.mean({7: alone}, 3)
    with pytest.raises(TypeError, match="Expected the dimension"):
        mechanism.mean(sent)
    with pytest.raises(ValueError, match="Expected client >= 0"):
        mechanism.mean({-1: sent[0]}, 3)


def test_clipping_norms_and_magnitudes_at_the_ends_of_floats():
    for scale in (1e-30, 1e30):
        mechanism = RankMechanism(scale, 3.0)
        update = np.array([scale, -scale, 0.0])
        mean = mechanism.mean([mechanism.encode(update, key(c)) for c in range(200)], 3)
        assert np.isfinite(mean).all()
        assert mean[0] > 0 > mean[1]
    tiny = np.full(3, 5e-324)
    assert RankMechanism(1.0, 3.0).encode(tiny, key(0))


# Bytes and bad input ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 64, 128, 2**13, 2**15, 2**21, 2**29])
def test_every_index_is_written_and_read(size):
    form = RankMechanism(1.0, 8.0).form(size)
    for index in (0, form.size - 1, form.size, 2 * form.size - 1):
        assert form.read_index(form.index(index)) == index
        assert form.read(form.payload(3, index)) == (3, index)
    last = 256**form.of_index - 1
    if last >= 2 * form.size:
        with pytest.raises(ValueError, match=f"Expected index below {2 * form.size}, got {last}"):
            form.read_index(b"\xff" * form.of_index)
    with pytest.raises(ValueError, match=f"Expected an index of {form.of_index} bytes, got 0"):
        form.read_index(b"")


def test_no_changed_byte_of_a_payload_is_read():
    form = RankMechanism(1.0, 2.0, groups=200).form(3)
    for group, index in ((0, 0), (199, 5), (17, 3)):
        good = form.payload(group, index)
        assert form.read(good) == (group, index)
        for place in range(len(good)):
            for other in {*range(256)} - {good[place]}:
                with pytest.raises(ValueError, match="or a damaged one"):
                    form.read(good[:place] + bytes([other]) + good[place + 1 :])


def test_a_payload_is_checked():
    mechanism = RankMechanism(1.0, 2.0, groups=200)
    payload = mechanism.encode(np.ones(3), key(0))
    form = mechanism.form(3)
    assert len(payload) == 4
    for bad, sentence in (
        (payload + b"0", "payload 0: Expected a payload of 4 bytes, got 5"),
        (form.payload(255, 0), "payload 0: Expected group below 200, got 255"),
        (form.payload(0, 6), "payload 0: Expected index below 6, got 6"),
        (b"zz" + payload[2:], "payload 0: Expected a payload of this table"),
        (RankMechanism(1.0, 2.1, groups=200).encode(np.ones(3), key(0)), "of this table"),
        (mechanism.encode(np.ones(4), key(0)), "of this table, dimension and rotation"),
    ):
        with pytest.raises(ValueError, match=sentence):
            mechanism.mean([bad], 3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0.0, 1.0), "clip_norm"), ((1.0, 0.0), "epsilon"), ((1.0, 31.0), "epsilon"),
        ((1.0, 1.0, 1.0), "order > 1"), ((1.0, 1.0, None, "both"), "tuned_to"),
        ((1.0, 1.0, None, "zero_out", 0), "groups"),
        ((1.0, 1.0, None, "zero_out", 1, -1), "rotation_seed"),
        ((1.0, 1.0, None, "zero_out", 1, 0, 2**64), "client"),
    ],
)  # fmt: skip
def test_parameters_out_of_bounds_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        RankMechanism(*arguments)


def test_updates_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="nan at index"):
        RankMechanism(1.0, 1.0).encode(np.array([1.0, math.nan]), key(0))


# Shared rotations, and the users of the protocol ------------------------------------------------


def test_what_a_group_has_in_common_is_in_the_expected_error():
    """Many clients of few rotations, beside the error that does not average out."""
    update = np.full(20, 20**-0.5)
    mechanism = RankMechanism(1.0, 6.0, groups=40)
    expected = mechanism.expected_error(20).deviation(4000)
    alone = RankMechanism(1.0, 6.0).expected_error(20).deviation(4000)
    assert expected > 5 * alone
    errors = []
    for seed in range(6):
        now = mechanism.in_round(seed)
        payloads = [now.encode(update, key("common", seed, c)) for c in range(400)]
        errors.append(now.mean(payloads, 20) - update)
    found = float(np.mean(np.square(errors)))
    wanted = mechanism.expected_error(20).deviation(400) ** 2
    # 120 squares, in groups that are nearly independent: their mean is within a half of its own.
    assert 0.5 * wanted < found < 1.5 * wanted


def test_a_payload_of_another_rounds_rotation_is_refused():
    """Its index would count for another coordinate. Of so many, none has the same check."""
    mechanism = RankMechanism(1.0, 2.0)
    for seed in range(8):
        payload = mechanism.in_round(seed).encode(np.ones(3), key("round", seed))
        assert mechanism.in_round(seed).mean([payload], 3).shape == (3,)
        with pytest.raises(ValueError, match="of this table, dimension and rotation"):
            mechanism.in_round(seed + 1).mean([payload], 3)


def test_an_account_and_a_calibration_are_those_of_its_release():
    wanted = account([RankMechanism(1.0, 2.0).release(100, 3)], 1e-6)
    assert 5.9 < wanted.epsilon <= 6.0001
    found = rq.calibrate(lambda t: RankMechanism(1.0, 1 / t), 8.0, 1e-6, 100, 1, reach=(0.034, 1e5))
    assert 7.9 < found.guarantee.epsilon <= 8
    assert found.guarantee == account([found.mechanism.release(100, 1)], 1e-6)


def test_it_is_neither_saved_nor_offered(tmp_path):
    with pytest.raises(TypeError, match="Expected a mechanism of this package, got a RankMech"):
        rq.save(RankMechanism(1.0, 2.0), tmp_path / "rank.json")


@pytest.mark.slow
def test_a_run_of_turns_costs_one_participation():
    """Each client in one of three rounds; five bytes beside the index state its group."""
    rng, mechanism = np.random.default_rng(0), RankMechanism(clip_norm=1.0, epsilon=7.9)
    labels = rng.integers(0, 3, (12, 5))
    clients = [(rng.normal(size=(5, 6)).astype(np.float32), each) for each in labels]
    run = rq.train(
        torch.nn.Linear(6, 3), clients, mechanism=mechanism, rounds=3, cohort=4, seed=0,
        privacy=rq.Privacy(max_participations=1, clip_norm=1.0), progress=False,
    )  # fmt: skip
    once = account([mechanism.release(21, 1)], run.guarantee.delta)
    assert run.guarantee.epsilon == once.epsilon < 8
    assert run.upload_bytes == 6


@pytest.mark.slow
def test_an_attack_on_one_index_shows_much_of_what_is_stated_and_no_more():
    mechanism = RankMechanism(clip_norm=1.0, epsilon=2.0)
    update, other = worst_inputs(mechanism, 16)
    found = rq.audit(mechanism, update, other, trials=2000, key=Key.from_seed(2026))
    assert found.epsilon_stated == account([mechanism.release(16, 1)], 0.0).epsilon < 2.001
    assert 0.6 * found.epsilon_stated < found.epsilon_lower <= found.epsilon_stated
