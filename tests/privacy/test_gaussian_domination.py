"""Sums of bits are dominated by Gaussian noise: against exact hockey-stick divergences."""

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import randquant as rq
from randquant.privacy import VectorRelease, unit_squared_mu
from randquant.privacy.accounting import gaussian

CHANNELS = {
    "near": rq.stochastic_rounding(1.0, 2, 0.25),
    "far": rq.stochastic_rounding(1.0, 2, 5.0),
    "skewed": rq.Channel(
        np.array([-1.0, 1.0]), np.array([-2.0, 9.0]), np.array([[7, 1], [5, 3]]), 8
    ),
    "bent": rq.imvu(1.0, 2, 1.0),
}


def law(rows):
    total = np.ones(1)
    for row in rows:
        total = np.convolve(total, row)
    return total


def gaussian_delta(mu, epsilon):
    a = epsilon / mu - mu / 2
    return float(mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-a - mu))


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_no_pair_of_inputs_is_easier_to_tell_apart(name, clients):
    """Whatever the others' inputs: ends, and one between; any two places of the client."""
    channel = CHANNELS[name]
    root = math.sqrt(unit_squared_mu(channel, clients))
    places = [-1.0, -0.4, 0.9, 1.0]
    rows = {at: np.array([float(w) for w in channel.mix(at)[0]]) for at in places}
    rows = {at: row / row.sum() for at, row in rows.items()}
    for others in itertools.combinations_with_replacement((-1.0, -0.4, 1.0), clients - 1):
        noise = law(rows[at] for at in others)
        for here, there in itertools.permutations(places, 2):
            p, q = np.convolve(noise, rows[here]), np.convolve(noise, rows[there])
            for epsilon in np.log(p / q)[p > q]:
                exact = np.maximum(p - math.exp(epsilon - 1e-9) * q, 0).sum()
                assert exact <= gaussian_delta(root * abs(here - there), epsilon - 1e-9) + 1e-14


def test_it_is_attained():
    """The limit of two close inputs, at the worst sum and arrangement, in 40 digits."""
    with mpmath.workdps(40):
        for low, clients in (("0.25", 3), ("0.4375", 9)):
            low = mpmath.mpf(low)
            worst = mpmath.mpf(0)
            for right in range(clients):
                noise = [mpmath.mpf(1)]
                for end in [1 - low] * right + [low] * (clients - 1 - right):
                    moved = [mpmath.mpf(0), *[p * end for p in noise]]
                    noise = [
                        p * (1 - end) + q
                        for p, q in zip([*noise, mpmath.mpf(0)], moved, strict=True)
                    ]
                for j, share in itertools.product(range(clients), (low, 1 - low)):
                    tail = sum(noise[:j]) + (1 - share) * noise[j]
                    far = mpmath.findroot(lambda z, t=tail: mpmath.ncdf(z) - t, 0.1)
                    worst = max(worst, noise[j] / mpmath.npdf(far))
            margin = 2 * float(low) / (1 - 2 * float(low))
            channel = rq.stochastic_rounding(1.0, 2, margin)
            exact = float(worst * (1 - 2 * low) / 2) ** 2
            assert exact <= unit_squared_mu(channel, clients) <= exact * (1 + 1e-7)


@pytest.mark.parametrize("below", [30, 60])
def test_far_from_the_mean_the_formula_is_above_the_truth(below):
    """Where sums are likely enough to be evaluated, both are known."""
    left, right, low, high = 120, 180, 0.44, 0.56
    noise = law([[1 - low, low]] * left + [[1 - high, high]] * right)
    worst = gaussian._likely_distance(noise, low, high, 0.0, 0, below - 1)
    assert worst <= gaussian._rare_distance(left, right, low, high, below) <= 1.3 * worst


def test_more_clients_hide_more_and_grouping_costs_little(monkeypatch):
    channel = CHANNELS["far"]
    squares = [unit_squared_mu(channel, n) for n in (1, 2, 3, 20, 21, 300, 1300)]
    assert squares == sorted(squares, reverse=True)
    monkeypatch.setattr(gaussian, "MOST_CLIENTS", 300)
    assert squares[-2] == unit_squared_mu(channel, 301)
    each = gaussian._largest_distance(0.4, 0.6, 150, True)
    monkeypatch.setattr(gaussian, "ARRANGEMENTS_FRACTION", 1000)
    assert gaussian._largest_distance(0.4, 0.6, 150, False) == pytest.approx(each, rel=0.01)


def test_every_arrangement_is_one_of_those_that_are_bounded():
    for others in (1, 2, 150, 8191, 8192, 20_001, 300_000):
        bounded = list(gaussian._arrangement_groups(others, False))
        for right in {*range(min(others, 200) + 1), others // 3, others // 2, others}:
            left = others - right
            assert any(a <= left and b <= right for a, b in bounded), (others, right)


@given(st.lists(st.floats(1e-3, 0.999), min_size=1, max_size=40))
def test_tails_are_the_sums_of_products_and_no_more(falls):
    tail, exact = Fraction(0), []
    for fall in falls:
        tail = Fraction(fall) * (1 + tail)
        exact.append(tail)
    for found, truth in zip(gaussian._falling_sums(np.array(falls)).tolist(), exact, strict=True):
        assert truth * (1 - Fraction(1, 10**6)) <= found <= truth * (1 + Fraction(1, 10**12))


def test_what_is_no_bit_has_none():
    assert unit_squared_mu(rq.rqm(1.0, 1.0, 4, 0.42), 9) == math.inf
    assert unit_squared_mu(rq.stochastic_rounding(1.0, 2), 9) == math.inf
    assert VectorRelease(rq.rqm(1.0, 1.0, 4, 0.42), 1.0, 4, 1).squared_mu is None


@pytest.mark.parametrize("clients", [30, 200])
@pytest.mark.parametrize("ends", [(0.1, 0.7), (0.05, 0.4), (0.125, 0.375), (0.2, 0.3)])
def test_many_bits_are_hidden_alike_from_either_end(clients, ends):
    """Inputs, codes or both may be counted from the other end."""
    ones = np.round(np.array(ends) * 2**40).astype(np.int64)
    weights = np.stack([2**40 - ones, ones], axis=1)
    squares = [
        unit_squared_mu(
            rq.Channel(np.array([-1.0, 1.0]), np.array([-2.0, 2.0]), rows, 2**40), clients
        )
        for rows in (weights, weights[::-1], weights[:, ::-1], weights[::-1, ::-1])
    ]
    assert squares == pytest.approx([squares[0]] * 4, rel=1e-6, abs=0)
