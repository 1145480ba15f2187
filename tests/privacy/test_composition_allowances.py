"""What composition pays for rounding is what the theory states: no less, and not twice."""

from __future__ import annotations

import importlib
import math
from fractions import Fraction

import numpy as np
import pytest
from lower_ends import LowerLoss
from oracle import binary_log_delta

import randquant as rq
from randquant.privacy import UNIT, PrivacyLoss, Tilted, by_normal, compose, crossing
from randquant.privacy.accounting import privacy_loss

# `composition.compose` is the function; this is the module that defines it.
composition = importlib.import_module(compose.__module__)
CHANNEL = rq.stochastic_rounding(clip=0.5, levels=2, margin=0.5)
SIDES = pytest.mark.parametrize("upward", [True, False])


@SIDES
def test_masses_move_by_four_units_and_their_roundings(upward):
    """Proposition 4: one unit for the quotient, one for the product."""
    p, q = np.array([2**61 + 12345, 2**61 - 12345]), np.array([2**60 + 1, 3 * 2**60 - 1])
    found = (PrivacyLoss if upward else LowerLoss).from_rows(p, q, 2**62)
    for mass, weight in zip(found.masses, p, strict=True):
        moved = (Fraction(float(mass)) / Fraction(int(weight), 2**62) - 1) / Fraction(UNIT)
        assert 2 <= (moved if upward else -moved) <= 6


@pytest.mark.parametrize("power", [3, 500])
def test_the_transform_is_off_by_what_proposition_7_states(power):
    weights, index, size = np.array([0.25, 0.5, 0.25]), np.array([0, 1, 1]), 2**11
    _, error = privacy_loss.powered(weights, index, 0, size, power)
    transform, length = 16 * UNIT * math.log2(size), math.sqrt(0.25**2 + 0.75**2)
    largest = 1.0 + transform * math.sqrt(size) * length
    stated = 1.02 * largest**power * length
    stated *= (power + 1) * transform + power * (2 + 5) * UNIT  # two atoms at one point
    assert stated <= error <= 1.0015 * stated


def test_at_the_end_of_the_grid_the_bound_is_on_its_side(monkeypatch):
    """Where the window has one point left, or none."""
    seen = {}
    powered, on_grid = privacy_loss.powered, privacy_loss.on_grid

    def watched(weights, index, first, size, power):
        seen["last"] = first + size - 1
        return powered(weights, index, first, size, power)

    def stepped(loss, step):
        seen["step"] = step
        return on_grid(loss, step)

    monkeypatch.setattr(privacy_loss, "powered", watched)
    monkeypatch.setattr(privacy_loss, "on_grid", stepped)
    loss = PrivacyLoss.from_rows(np.array([9, 7]), np.array([7, 9]), 16)
    log_delta, _ = privacy_loss.by_fourier(loss, 40, 0.5)
    most = 40 * math.log(9 / 7)
    for beyond in (-2, -1, 0, 1, 2):
        epsilon = (seen["last"] + beyond) * seen["step"]
        exact = binary_log_delta(9, 16, 40, epsilon) if epsilon < most else -math.inf
        assert log_delta(epsilon) >= exact


def test_a_sum_over_the_grid_may_be_off_by_a_unit_for_each_of_its_points(monkeypatch):
    """Proposition 7, where nothing else is off: all mass is at the window's last point."""
    seen, log_delta = {}, Tilted.log_delta

    def at_the_end(weights, index, first, size, power):
        sums = np.zeros(size)
        sums[-1] = 1.0
        seen["size"], seen["first"] = size, first
        return sums, 0.0

    def spied(tilted, epsilon, integral):
        seen["integral"] = integral
        return log_delta(tilted, epsilon, integral)

    monkeypatch.setattr(privacy_loss, "powered", at_the_end)
    monkeypatch.setattr(privacy_loss, "_reach", lambda *_: (40.0, 0.0))
    monkeypatch.setattr(Tilted, "log_delta", spied)
    loss = PrivacyLoss.from_rows(np.array([9, 7]), np.array([7, 9]), 16)
    privacy_loss.by_fourier(loss, 400, 1e-20)[0](0.0)  # the kernel is 1 at the last point
    units = (seen["integral"] - 1) / UNIT
    assert seen["size"] <= units <= 1.1 * seen["size"] + 2000


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_a_loss_that_hardly_varies_is_left_to_others_whatever_its_size(scale):
    """Proposition 8: a variance above a millionth of the largest loss squared."""
    for variance, known in ((2e-6, True), (0.5e-6, False)):
        losses = scale * np.array([1.0, 1.0 - 2 * math.sqrt(variance)])
        loss = PrivacyLoss(losses, np.array([0.5, 0.5]), 0.0)
        assert (by_normal(loss, 600, 1e-9 / scale) is not None) == known


def test_a_crossing_is_found_in_a_few_steps_or_not_at_all():
    for falling, ends in ((lambda at: 1.0, (True, False)), (lambda at: -1.0, (False, True))):
        low, high = crossing(falling, 1.0, 1.0)
        assert (low is not None, high is not None) == ends
        assert high in (None, 0.0)
    asked = []

    def curve(at):
        asked.append(at)
        return 5.0 - math.exp(at)

    low, high = crossing(curve, 0.5, 0.25)
    assert low is not None
    assert high is not None
    assert low < math.log(5) <= high <= low + 1e-8
    assert len(asked) < 40
    for start in (0.0, 1.0, 7.0, 1e4):  # on either side of it
        low, high = crossing(lambda at: math.log(7) - math.log1p(at), start, 0.5)
        assert low <= 6.0 <= high <= low + 1e-7
    for slope in (1e-3, 1.0, 50.0):
        low, high = crossing(lambda at, slope=slope: slope * (3.0 - at), 0.1, 0.5)
        assert low < 3.0 <= high <= low + 1e-8


# What is made of the ways there are.


def test_a_curve_must_pass_delta_by_more_than_its_rounding(monkeypatch):
    """A logarithm, 8 units, and a difference: 24 units of what they are of, to the safe side."""
    loss = PrivacyLoss.from_rows(np.array([5, 3]), np.array([3, 5]), 8)
    delta, above = 1e-9, []
    monkeypatch.setattr(composition, "by_fourier", lambda *_: (lambda at: math.log(delta), 1.0))

    def watched(falling, centre, step):
        above.append(falling(1.0))
        return 1.0, 1.0

    monkeypatch.setattr(composition, "crossing", watched)
    composition._epsilon(loss, 2, delta, 1.0)
    least = 16 * UNIT * abs(math.log(delta))
    assert above[0] >= least


def test_where_impossible_codes_take_all_of_delta_nothing_is_bounded():
    """The truth is log 5 and is found where delta is larger; at 4/16 rounding decides."""
    p, q = np.array([10, 2, 4], dtype=object), np.array([2, 14, 0], dtype=object)
    assert composition._release_epsilon(p, q, 16, 0.25) >= math.log(5)
    found = composition._release_epsilon(p, q, 16, 0.25 + 1e-9)
    assert math.log(5) <= found + 1e-8
