"""Bits of a masked sum against exact laws of sums: every sign of a rotation, every code."""

import itertools
import math

import numpy as np
import pytest

import randquant as rq
from randquant.aggregation import (
    AdditiveMechanism,
    ChannelMechanism,
    HelperNoise,
    Rotation,
    VectorMechanism,
    lifted,
    sum_bits,
    wrap_probability,
)
from randquant.channels import Channel, wire
from randquant.mechanisms import NOISES

COIN = rq.stochastic_rounding(clip=0.02, levels=2, margin=1.0)
SKEWED = Channel(
    np.array([-1.0, 0.0, 0.0, 1.0]), np.arange(3.0),
    np.array([[6, 1, 1], [5, 1, 2], [4, 2, 2], [4, 1, 3]]), 8
)  # fmt: skip
"""With a jump, and a middle that is not the mean."""
CHANNELS = [
    rq.stochastic_rounding(clip=0.5, levels=2, margin=1.5),
    rq.stochastic_rounding(clip=1.0, levels=4, margin=0.0),
    rq.rqm(1.5, 1.5, 5, 0.42),
    rq.pbm(1.0, 0.25, 7),
    SKEWED,
]


def row(channel, x):
    """Distribution of the code at an input, (m,): the two nearest vertices mixed."""
    at = np.clip(np.searchsorted(channel.inputs, x, side="right"), 1, len(channel.inputs) - 1)
    left, right = channel.inputs[at - 1], channel.inputs[at]
    share = (x - left) / (right - left)
    return (1 - share) * channel.probabilities[at - 1] + share * channel.probabilities[at]


def law(channel, inputs):
    """Distribution of the sum of codes; sums of positive terms keep their relative precision."""
    total = np.ones(1)
    for x in inputs:
        total = np.convolve(total, row(channel, x))
    return total


def wrapped(channel, inputs, bits):
    """Probability that the sum is not lifted back to itself."""
    sums = np.arange(len(inputs) * (channel.levels - 1) + 1)
    wrong = lifted(sums & (2**bits - 1), bits, channel.levels, len(inputs)) != sums
    return float(law(channel, inputs)[wrong].sum())


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_no_inputs_wrap_more_often_than_the_bound(channel):
    clients, draw = 24, np.random.default_rng(0)
    exact = wire.sum_bits(channel.levels, clients)
    for bits in range(channel.bits, exact):
        bound = wrap_probability(channel, clients, 1, bits)
        for inputs in (
            np.full(clients, channel.clip), np.full(clients, -channel.clip), np.zeros(clients),
            draw.uniform(-channel.clip, channel.clip, clients),
        ):  # fmt: skip
            assert wrapped(channel, inputs, bits) <= bound


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_no_rotated_updates_wrap_more_often_than_the_bound(channel):
    """All 16 signs of a rotation of four coordinates, exactly."""
    clients, size, norm = 20, 4, 2 * channel.clip
    draw = np.random.default_rng(1)
    same = draw.normal(size=size)
    cases = [np.tile(same, (clients, 1)), draw.normal(size=(clients, size)), np.eye(size)[[0] * 20]]
    hadamard = Rotation(size, 0).forward(np.eye(size))
    hadamard *= np.sign(hadamard[:, :1])  # of the rotation whose signs are all 1
    for bits in range(channel.bits, wire.sum_bits(channel.levels, clients)):
        bound = wrap_probability(channel, clients, size, bits, norm / math.sqrt(size))
        for updates in cases:
            u = updates * (norm / np.linalg.norm(updates, axis=1, keepdims=True))
            chance = 0.0
            for signs in itertools.product((-1, 1), repeat=size):
                x = np.clip((u * signs) @ hadamard, -channel.clip, channel.clip)
                chance += sum(wrapped(channel, x[:, j], bits) for j in range(size)) / 2**size
            assert min(chance, 1.0) <= bound


def test_the_bound_is_near_the_chance():
    """Of 1,000 coins: within a factor of 40, and not below."""
    for clients, bits in ((200, 6), (1000, 7), (1000, 8), (4000, 9)):
        exact = wrapped(COIN, np.zeros(clients), bits)
        assert exact <= wrap_probability(COIN, clients, 1, bits, 0.0) <= 40 * exact


@pytest.mark.parametrize("channel", [COIN, *CHANNELS], ids=repr)
def test_fewer_clients_never_need_more_bits(channel):
    for deviation in (0.0, channel.clip / 4, math.inf):
        bits = [sum_bits(channel, clients, 1000, deviation) for clients in range(1, 300, 3)]
        assert bits == sorted(bits)
        assert all(
            b <= wire.sum_bits(channel.levels, n)
            for n, b in zip(range(1, 300, 3), bits, strict=True)
        )
        assert min(bits) >= channel.bits


def test_a_sum_is_lifted_to_the_nearest_of_the_middle():
    for levels, clients in ((2, 9), (2, 10), (3, 7), (16, 5)):
        sums = np.arange(clients * (levels - 1) + 1)
        exact = wire.sum_bits(levels, clients)
        for bits in range(1, exact + 1):
            found = lifted(sums % 2**bits, bits, levels, clients)
            assert np.array_equal(found % 2**bits, sums % 2**bits)
            assert np.all(np.abs(found - clients * (levels - 1) / 2) <= 2 ** (bits - 1))
            assert np.array_equal(lifted(found, bits + 1, levels, clients), found)  # once only
        assert np.array_equal(found, sums)


@pytest.mark.parametrize(
    "mechanism",
    [VectorMechanism(COIN, 0.1, "aggregate", 500), ChannelMechanism(COIN, "aggregate", 500)],
    ids=("vector", "channel"),
)
def test_a_mean_is_decoded_from_remainders(mechanism):
    """And what wraps is decoded as what it wraps to: a simulation sees what a deployment sees."""
    clients, dimension = 1000, 1024
    bits = mechanism.sum_bits(dimension, clients)
    assert bits < 10
    half = 2 ** (bits - 1)
    totals = np.random.default_rng(0).integers(500 - half, 500 + half, dimension)
    wanted = mechanism.decode(totals, clients, dimension)
    assert np.array_equal(mechanism.decode(totals & (2**bits - 1), clients, dimension), wanted)
    assert np.array_equal(mechanism.decode(totals & 1023, clients, dimension), wanted)
    step = COIN.values[1] - COIN.values[0]
    plain = COIN.values[0] + step / clients * totals
    assert math.isclose(np.linalg.norm(wanted), np.linalg.norm(plain), rel_tol=1e-5)


def test_a_sum_that_came_in_more_bits_is_decoded_as_it_is():
    """Of codes that are proven all sums are possible, also those that no honest clients have."""
    mechanism, clients, dimension = VectorMechanism(COIN, 0.1, "aggregate", 500), 1000, 1024
    exact = wire.sum_bits(2, clients)
    assert exact > mechanism.sum_bits(dimension, clients)
    for total in (0, clients):
        found = mechanism.decode(np.full(dimension, total), clients, dimension, exact)
        plain = math.sqrt(dimension) * COIN.values[1]
        assert math.isclose(np.linalg.norm(found), plain, rel_tol=1e-5)


INTEGER_NOISE = {
    **{kind: AdditiveMechanism(kind, 1.0, 0.1, 20, bits=12) for kind in NOISES},
    "helper-noise": HelperNoise(1.0, 0.1, 20, bits=12),
}


@pytest.fixture(params=INTEGER_NOISE.values(), ids=INTEGER_NOISE)
def summed(request):
    """(mechanism, sums of remainders of twenty equal updates modulo 2**12, that update)."""
    mechanism, keys = request.param, rq.Key.from_seed(1)
    update = np.where(np.arange(64) % 2, 0.1, -0.1).astype(np.float32)
    payloads = [mechanism.encode(update, keys.fold_in(client)) for client in range(20)]
    totals = sum(wire.unpack(mechanism.coding, each, 64).astype(np.int64) for each in payloads)
    return mechanism, totals, update


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_remainders_are_decoded_alike_in_every_type_of_integers(summed, dtype):
    """Secure sums come as unsigned integers, in which a difference below zero is huge."""
    mechanism, totals, update = summed
    mean = mechanism.decode((totals % 2**12).astype(dtype), 20, 64)
    assert np.array_equal(mean, mechanism.decode(totals % 2**12, 20, 64))
    assert np.array_equal(np.sign(mean), np.sign(update))


def test_integer_noise_is_decoded_from_remainders_of_its_own_modulus_only(summed):
    """A wider sum would reveal more than is counted: theory/additive.md, Proposition 10."""
    mechanism, totals, _ = summed
    assert totals.max() >= 2**12
    said = r"^Expected sums modulo 2\*\*12, from 0 to 4095, got "
    for wrong in (totals, totals - 2**20, np.where(np.arange(64) == 7, -1, 0)):
        with pytest.raises(ValueError, match=said):
            mechanism.decode(wrong, 20, 64)
    with pytest.raises(TypeError, match="Expected sums of codes, which are integers, got float64"):
        mechanism.decode(np.zeros(64), 20, 64)
    for edge in (0, 2**12 - 1):
        assert np.isfinite(mechanism.decode(np.full(64, edge), 20, 64)).all()
