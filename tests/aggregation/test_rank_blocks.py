"""Ranks within blocks: laws that the table covers, and answers that are linear in every update."""

import math

import numpy as np
import pytest
from tests.chance import fits

from randquant.aggregation.rank.blocks import (
    best_of_blocks,
    block_gain,
    block_sums,
    block_two_levels,
    draw_index,
    most_ranks,
    other_index,
    response,
)
from randquant.aggregation.rank.designs import gain, two_levels
from randquant.aggregation.rank.drawing import index_at
from randquant.aggregation.rank.mechanism import RankMechanism
from randquant.aggregation.rank.rotations import BlockRotation, Reflections, block_shape
from randquant.channels.keys import Key
from randquant.planning.limits import gaussian_multiplier
from randquant.privacy.accounting.accountant import account

RNG = np.random.default_rng(3)


def key(*labels):
    return Key.from_seed(11).fold_in(*labels)


def unit(*blocks):
    """(4, blocks) vector whose blocks have these norms: spikes, normal ones and flat ones."""
    columns = [np.eye(4)[0], RNG.normal(size=4), np.ones(4)]
    columns = [np.array(columns[b % 3]) * norm for b, norm in enumerate(blocks)]
    found = np.array([c / (np.linalg.norm(columns[b % 3]) or 1) for b, c in enumerate(columns)]).T
    found = found / np.linalg.norm(found, axis=0).clip(1e-300) * np.array(blocks)
    return found / np.linalg.norm(found)


UPDATES = [unit(1, 0, 0), unit(1, 1, 1), unit(0.9, 0.3, 0.1), unit(0.05, 0.8, 0.4)]


# What the table covers -------------------------------------------------------------------------


def law(turned, count, steps=400):
    """Probability of each index if one of `count` ranks is drawn, over all offsets."""
    size, blocks = turned.shape
    norms = np.linalg.norm(turned, axis=0)
    wanted = np.interp(response(blocks, size, count) * norms, block_sums(size), np.arange(size + 1))
    order = np.argsort(-np.abs(turned), axis=0, kind="stable")
    places = np.argsort(order, axis=0)
    total = np.zeros((2, size, blocks))
    for offset in (np.arange(steps) + 0.5) / steps:
        counts = np.diff(np.floor(np.cumsum(wanted) + offset), prepend=0)
        given = places < counts
        total[0][given & (turned >= 0)] += 1
        total[1][given & (turned < 0)] += 1
        left = turned.size - given.sum()
        total[:, ~given] += (count - given.sum()) / (2 * left) if left else 0
    return total.reshape(-1) / (count * steps)


@pytest.mark.parametrize("update", UPDATES, ids=range(len(UPDATES)))
@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_no_index_is_likelier_than_a_rank_of_the_table(update, count):
    """Theory/rank.md, Proposition 12: then the law is a mixture of orders of the table."""
    turned = Reflections(key("law"), 4).forward(update)
    found = law(turned, count)
    assert found.sum() == pytest.approx(1, rel=1e-12, abs=0)
    assert found.max() <= 1 / count * (1 + 1e-12)
    for offset in range(30):
        counts = best_of_blocks(turned, count, key(offset))
        assert counts.min() >= 0
        assert counts.max() <= 4
        assert counts.sum() <= count


def test_indices_have_that_law():
    """Also with the wrong law of a planted fault: all ranks by the whole update's magnitudes."""
    turned, table = Reflections(key("x"), 4).forward(UPDATES[2]), block_two_levels(3, 4, 2.0)
    count, step = table.counts[0], table.weights[0] - table.weights[1]
    share = step * count / table.total
    expected = share * law(turned, count) + (1 - share) / 24
    drawn = np.array([draw_index(turned, table, key("draw", c)) for c in range(3000)])
    assert fits(drawn, expected)
    whole = np.full(24, float(table.weights[1]))
    whole[[index_at(turned.reshape(-1), rank) for rank in range(count)]] = table.weights[0]
    assert not fits(drawn, whole / table.total)


def test_the_table_is_kept_where_its_weights_are_close():
    turned, table = Reflections(key("x"), 4).forward(UPDATES[1]), block_two_levels(3, 4, 0.5)
    count, step = table.counts[0], table.weights[0] - table.weights[1]
    share = step * count / table.total
    drawn = np.array([draw_index(turned, table, key("close", c)) for c in range(5000)])
    assert fits(drawn, share * law(turned, count) + (1 - share) / 24)
    assert not fits(drawn, np.full(24, 1 / 24))


def test_ranks_that_no_block_gives_are_indices_of_other_coordinates():
    turned = Reflections(key("other"), 4).forward(UPDATES[1])
    drawn = {other_index(turned, np.array([4, 0, 1]), key("rest", c)) for c in range(400)}
    best = int(np.abs(turned[:, 2]).argmax())
    others = [
        (place, block) for place in range(4) for block in (1, 2) if (place, block) != (best, 2)
    ]
    assert drawn == {p * 3 + b + sign for p, b in others for sign in (0, 12)}


# Linear answers --------------------------------------------------------------------------------


def answers(update, count, rotations, chosen):
    """Mean of the signed coordinates of the chosen ranks, rotated back, and its deviation."""
    found = []
    for number in range(rotations):
        rotation = Reflections(key("answers", number), 4)
        turned = rotation.forward(update)
        signed = np.zeros(2 * turned.size)
        signed[list(chosen(turned, count, key("chosen", number)))] = 1.0
        signed = (signed[: turned.size] - signed[turned.size :]).reshape(turned.shape)
        found.append(rotation.inverse(signed))
    return np.mean(found, axis=0), math.sqrt(count / 4 / rotations)


def in_blocks(turned, count, own):
    size, blocks = turned.shape
    for block, given in enumerate(best_of_blocks(turned, count, own)):
        for rank in range(given):
            index = index_at(np.ascontiguousarray(turned[:, block]), rank)
            yield (index % size) * blocks + block + turned.size * (index >= size)


def on_the_whole(turned, count, own):
    return [index_at(turned.reshape(-1), rank) for rank in range(count)]


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_answers_are_the_same_multiple_of_every_update(count):
    """Theory/rank.md, Proposition 13; each coordinate within 6 deviations."""
    for update in UPDATES:
        mean, deviation = answers(update, count, 1500, lambda t, c, own: list(in_blocks(t, c, own)))
        assert np.abs(mean - response(3, 4, count) * update).max() < 6 * deviation


def test_ranks_of_the_whole_update_are_noticed():
    """A planted fault: without blocks' own counts a long block answers more than its share."""
    found = [answers(u, 2, 500, on_the_whole) for u in UPDATES[1:3]]
    multiples = [float((mean * u).sum()) for (mean, _), u in zip(found, UPDATES[1:3], strict=True)]
    errors = [
        np.abs(mean - multiples[0] * u).max() / deviation
        for (mean, deviation), u in zip(found, UPDATES[1:3], strict=True)
    ]
    assert max(errors) > 6


@pytest.mark.parametrize(
    "update",
    [
        np.eye(65)[3],
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (np.eye(300)[0], np.full(300, 300**-0.5))
        ),
    ],
)
def test_means_of_whole_updates_are_unbiased(update):
    mechanism, clients = RankMechanism(1.0, 6.0, unbiased=True), 200
    payloads = [mechanism.encode(update, key("mean", c)) for c in range(clients)]
    error = mechanism.mean(payloads, update.size) - update
    deviation = mechanism.length(update.size) / math.sqrt(mechanism.size(update.size) * clients)
    assert np.abs(error).max() < 6.5 * deviation
    # Of all squares the mean is that of the expected error, within 6 deviations.
    expected = mechanism.expected_error(update.size).deviation(clients)
    assert abs(np.mean(error**2) / expected**2 - 1) < 6 * math.sqrt(2 / update.size)


# The design ------------------------------------------------------------------------------------


def ranks_needed(norms, answer, size):
    return float(np.interp(answer * norms, block_sums(size), np.arange(size + 1)).sum())


@pytest.mark.parametrize(("blocks", "size"), [(2, 4), (4, 16), (32, 64)])
def test_no_norms_of_blocks_need_more_ranks(blocks, size):
    """Beside a search: random norms, and all splits into equal long ones and equal short ones."""
    for answer in np.array([0.2, 0.6, 1.0]) * block_sums(size)[-1]:
        most = most_ranks(blocks, size, answer)
        found = []
        for _ in range(200):
            norms = RNG.dirichlet(np.full(blocks, 10 ** RNG.uniform(-2, 2))) ** 0.5
            found.append(ranks_needed(norms, answer, size))
        for long in range(1, blocks):
            for share in np.linspace(0, 1, 60):
                norms = np.full(blocks, ((1 - share) / (blocks - long)) ** 0.5)
                norms[:long] = (share / long) ** 0.5
                found.append(ranks_needed(norms, answer, size))
        assert 0.85 * most < max(found) <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    "exponent", [13, *(pytest.param(e, marks=pytest.mark.slow) for e in (9, 10, 17, 18, 21))]
)
def test_the_cost_of_being_unbiased(exponent):
    """At epsilon 8, delta 1e-6: some hundredths, and below 0.29 of Gaussian noise's error."""
    gaussian = 2 * gaussian_multiplier(8.0, 1e-6, 1)
    block, blocks = block_shape(2**exponent)
    found = block_gain(block_two_levels(blocks, block, 7.99), blocks)
    assert 1.0 < gain(two_levels(2**exponent, 7.99)) / found < 1.035
    assert 1 / found / 2 ** (exponent / 2) < 0.29 * gaussian


@pytest.mark.slow
def test_the_certified_epsilon_of_two_million_coordinates():
    mechanism = RankMechanism(1.0, 7.99, unbiased=True)
    guarantee = account([mechanism.release(2**21, 1)], 1e-6)
    assert 0.99 * guarantee.epsilon <= guarantee.lower <= guarantee.epsilon <= 8
    assert mechanism.form(2**21).of_index == 3


# Rotations and bad input -----------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [65, 257, 512, 3000])
def test_rotations_of_blocks_keep_inner_products_and_are_inverted(dimension):
    rotation = BlockRotation(dimension, 5, 9)
    x, y = RNG.normal(size=(2, dimension))
    turned = rotation.forward(x)
    assert turned.shape == block_shape(dimension)
    assert np.sum(turned * rotation.forward(y)) == pytest.approx(x @ y, rel=1e-10, abs=1e-10)
    assert np.abs(rotation.inverse(turned) - x).max() < 1e-12


def test_other_kinds_of_ranks_are_refused():
    with pytest.raises(ValueError, match="Expected no order where unbiased is set, got order=2"):
        RankMechanism(1.0, 1.0, 2.0, unbiased=True)
    with pytest.raises(TypeError, match="unbiased"):
        RankMechanism(1.0, 1.0, unbiased=1)
    payload = RankMechanism(1.0, 8.0, unbiased=True).encode(np.eye(70)[0], key(0))
    with pytest.raises(ValueError, match="Expected a payload of 7 bytes, got 6"):
        RankMechanism(1.0, 8.0).mean([payload], 70)
