"""A hundred million draws of every mechanism against its exact rows; false alarms: see `chance`."""

import functools

import chance
import numpy as np
import planted
import pytest

import randquant as rq
from randquant.channels.channel import Channel
from randquant.channels.encoding.codec import encode
from randquant.channels.keys import Key
from randquant.mechanisms import design

DRAWS, PIECE = 100_000_000, 4_000_000


MECHANISMS = {
    "rqm": lambda: rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42),
    "pbm": lambda: rq.pbm(clip=1.5, theta=0.25, trials=15),
    "erm": lambda: rq.erm(clip=1.0, bins=[-1.5, -0.3, 0.4, 1.5], gamma=2.0),
    "optm": lambda: rq.optm(clip=1.0, bins=[-2.0, -0.5, 0.5, 2.0], epsilon=1.5),
    "mvu": lambda: rq.mvu(clip=1.0, levels=4, epsilon=1.0),
    "imvu": lambda: rq.imvu(clip_norm=1.0, levels=4, epsilon=1.0),
    "qmgeo": lambda: rq.qmgeo(clip=1.0, levels=8, p=0.3, mixing=0.1),
    "stochastic_rounding": lambda: rq.stochastic_rounding(clip=1.0, levels=3, margin=0.5),
    "optimal": lambda: (
        design.optimal(clip=1.0, values=[-2.0, -0.5, 0.5, 2.0], constraint=design.Pure(1.5)).channel
    ),
}


@functools.cache
def made(name: str) -> Channel:
    """Some take seconds to make: nobody waits for them before the tests begin."""
    return MECHANISMS[name]()


def counts(channel: Channel, x: float, key: Key, draws: int = DRAWS) -> np.ndarray:
    """How often each code is drawn for x."""
    same, found = np.full(PIECE, x), np.zeros(channel.levels, dtype=np.int64)
    for piece in range(draws // PIECE):
        codes = encode(channel, same, key.fold_in(piece))
        found += np.bincount(codes, minlength=channel.levels)
    return found


def row(channel: Channel, x: float) -> np.ndarray:
    weights, total = channel.mix(x)
    return np.array([float(weight / total) for weight in weights])


@pytest.mark.seldom(1)
@pytest.mark.parametrize("draws", [PIECE, pytest.param(DRAWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_draws_its_certified_rows(name, draws):
    channel = made(name)
    x = 0.37 * channel.clip  # inside a cell: the dither is tested too
    found, wanted = counts(channel, x, Key.from_seed(21), draws), row(channel, x)
    assert found.sum() == draws
    assert chance.counts_fit(found, wanted)
    assert chance.counts_fit(found, wanted, g_test=True)


@pytest.mark.parametrize("g_test", [False, True])
def test_a_mass_that_is_off_by_a_fiftieth_is_caught_by_fewer_draws(g_test):
    channel, x = planted.biased_level(made("rqm"), 0.02), 0.37 * 1.5
    found = counts(channel, x, Key.from_seed(21), PIECE)
    assert not chance.counts_fit(found, row(made("rqm"), x), g_test=g_test)
    assert chance.counts_fit(found, row(channel, x), g_test=g_test)


@pytest.mark.slow
@pytest.mark.parametrize("g_test", [False, True])
def test_a_mass_that_is_off_by_a_thousandth_is_caught(g_test):
    channel = planted.biased_level(made("rqm"), 0.001)
    x = 0.37 * channel.clip
    found, wanted = counts(channel, x, Key.from_seed(21)), row(made("rqm"), x)
    assert not chance.counts_fit(found, wanted, g_test=g_test)
    assert chance.counts_fit(found, row(channel, x), g_test=g_test)


def pairs(a: np.ndarray, b: np.ndarray, levels: int) -> np.ndarray:
    """How often each pair of codes occurs together."""
    return np.bincount(a.astype(np.int64) * levels + b, minlength=levels**2)


def test_pairs_of_codes_are_independent():
    """Not only uncorrelated: every pair of codes as often as its two rows say."""
    channel, x, root = made("rqm"), 0.37 * 1.5, Key.from_seed(22)
    same, one = np.full(PIECE, x), row(made("rqm"), x)
    both, m = np.outer(one, one).reshape(-1), channel.levels
    first = encode(channel, same, root.fold_in("round", 1, "client", 1))
    for lag in (1, 2, 7, 8, 256, 1 << 14, 1 << 17):
        # Two halves that do not overlap: pairs are then independent of each other too.
        starts = np.arange(PIECE - lag) // lag % 2 == 0
        assert chance.counts_fit(pairs(first[:-lag][starts], first[lag:][starts], m), both)
    for labels in (("round", 1, "client", 2), ("round", 2, "client", 1)):
        other = encode(channel, same, root.fold_in(*labels))
        assert chance.counts_fit(pairs(first, other, m), both)
    assert not chance.counts_fit(pairs(first, first, m), both)
