"""Sums of codes that are sums of bits: against fractions, for any inputs between vertices."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from whole import over_square, partly_even, perturbed, row, summed, worst

import randquant as rq
from randquant.privacy.certificates.sums import bits
from randquant.privacy.certificates.sums.bit_moments import by_bits
from randquant.privacy.certificates.sums.bits import SCALE, Bits, _far, curvature_of_bits
from randquant.privacy.certificates.sums.ends import between_ends
from randquant.privacy.certificates.sums.sum_curvature import kappa_sum
from randquant.privacy.certificates.vector import kappa

SMALL = rq.pbm(clip=1.0, theta=0.25, trials=2, inputs=5)
MIRRORED = rq.Channel(SMALL.inputs, SMALL.values, SMALL.weights[:, ::-1], SMALL.denominator)


PLACES = [Fraction(k, 16) for k in (-16, -15, -13, -12, -8, -7, -1, 1, 8, 9, 15, 16)]


@pytest.mark.parametrize("order", [1.1, 2.0, 2.5, 8.0])
@pytest.mark.parametrize("channel", [SMALL, MIRRORED])
def test_no_inputs_exceed_the_bound_and_it_is_near(channel, order):
    found = kappa_sum(channel, 3, order)
    exact = worst(channel, 3, order, PLACES)
    assert exact <= curvature_of_bits(channel, 3, order)
    assert exact <= found.upper
    assert found.lower <= found.upper <= kappa(channel, order).upper
    # All arrangements of the others' bits, which is close: attained as if nothing were.
    assert exact <= curvature_of_bits(channel, 3, order, 0.0) <= 1.25 * exact


def test_few_clients_of_many_trials_are_bounded_closely():
    channel = rq.pbm(clip=1.0, theta=0.25, trials=15)
    bit_by_bit = curvature_of_bits(channel, 10, 8.0)
    found = kappa_sum(channel, 10, 8.0)
    assert found.lower <= found.upper <= 1.05 * found.lower < bit_by_bit / 1.15


@pytest.mark.parametrize(("trials", "clients", "most"), [(3, 40, 1.06), (3, 400, 1.02)])
@pytest.mark.parametrize("order", [1.1, 2.0, 8.0])
def test_trials_count_once_each(trials, clients, most, order):
    """A sum of clients' codes is close to the sum of all their bits, all at one end."""
    found = kappa_sum(rq.pbm(clip=1.0, theta=0.25, trials=trials), clients, order)
    normal = order / 2 * trials * (1 / 4) ** 2 / (clients * 3 / 16)
    assert normal * 0.99 <= found.lower <= found.upper <= most * found.lower


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_sixteen_levels_come_close_to_the_best_attack(order):
    found = kappa_sum(rq.pbm(clip=1.0, theta=0.25, trials=15), 100, order)
    assert 0.05 * order / 2 < found.lower <= found.upper < 1.04 * found.lower


def revealed(bits: Bits, place: Fraction, others: tuple[int, ...]) -> list[Fraction]:
    """The law of all t sums, others[i] of one other client's bits being at the far end."""
    cell = min(int(place), bits.cells - 1)
    law = [Fraction(0)] * 3 ** len(others)
    ends = [bits.first, bits.first + bits.cells * bits.step]
    for vertex, share in ((cell, 1 - (place - cell)), (cell + 1, place - cell)):
        own = Fraction(bits.first + vertex * bits.step, SCALE)
        sums = []
        for end in others:
            beside = Fraction(ends[end], SCALE)
            sums.append([
                (1 - own) * (1 - beside), own + beside - 2 * own * beside, own * beside,
            ])  # fmt: skip
        for i, parts in enumerate(itertools.product(*sums)):
            law[i] += share * math.prod(parts)
    return law


def whole(law: list[Fraction]) -> list[int]:
    common = math.lcm(*(each.denominator for each in law))
    return [int(each * common) for each in law]


@pytest.mark.parametrize("order", [1.2, 2.0, 2.5, 6.0])
def test_dithering_all_bits_at_once_is_paid_for(order):
    """All t sums of one bit each, given away: near and far pairs, each below its own factor."""
    bits = Bits.of(rq.pbm(clip=1.0, theta=0.1, trials=3, inputs=9))
    assert bits is not None
    unit = (2 / bits.cells) ** 2
    single = between_ends(bits.one(), 2, order).upper * unit
    places = [Fraction(k, 4) for k in (0, 1, 2, 3, 4, 5, 9, 11, 17, 31, 32)]
    windows = (1, 2)
    limits = {}
    for window in windows:
        cells = bits.cells + 2 * (window + 1)
        wider = between_ends(bits.one(window + 1), 2, order).upper * (2 / cells) ** 2
        limits[window] = bits.dithering(order, single, wider, window)
        assert 1 <= limits[window] < 2
    for others in itertools.combinations_with_replacement((0, 1), 3):
        laws = [whole(revealed(bits, place, others)) for place in places]
        for (x, p), (y, q) in itertools.permutations(zip(places, laws, strict=True), 2):
            ratio = over_square(p, q, order, x - y) / (3 * single)
            for window in windows:
                assert ratio <= limits[window]
                if abs(x - y) >= window:
                    assert ratio <= _far(order, 3 * single, window, bits.cells)


def test_far_inputs_have_the_variance_of_their_dithering():
    """One step and a half apart at no order: 2.5 instead of 2.25 squared steps."""
    assert _far(2.0, 1e-9, 1, 10) == pytest.approx(1 + 1 / 8, rel=2e-3)
    assert _far(2.0, 1e-9, 3, 10) == pytest.approx(1 + 1 / 48, rel=2e-3)
    assert _far(2.0, 1e-9, 10, 10) == 1


def test_rows_that_are_binomial_only_nearly_are_paid_for():
    """A bit's probability is 6e-7 of itself off at one vertex: its narrow cell is steeper."""
    channel = perturbed(rq.pbm(1.0, 0.25, 1, 200), 2e-7, 0)
    assert Bits.of(channel).error > 1e-7
    x, y = (Fraction(float(u)) for u in channel.inputs[:2])
    others = [int(w) for w in channel.weights[-1]]
    laws = [summed([row(channel, at), others]) for at in (x, y)]
    steeper = max(over_square(*pair, 2.0, x - y) for pair in (laws, laws[::-1]))
    plain = rq.pbm(1.0, 0.25, 1, 200)
    straight, bound = (kappa_sum(each, 2, 2.0).upper for each in (plain, channel))
    assert straight < steeper <= bound < 1.0025 * straight


def test_a_factor_beyond_floating_point_is_no_bound():
    channel = rq.pbm(clip=1.0, theta=0.45, trials=7, inputs=3)
    found = rq.kappa_sum(channel, 2, 1.1)
    assert found.lower <= found.upper < math.inf


def test_bits_are_read_off_the_rows(tmp_path):
    for trials in (1, 3, 15):
        channel = rq.pbm(clip=2.0, theta=0.25, trials=trials)
        bits = Bits.of(channel)
        assert (bits.trials, bits.cells) == (trials, 64)
        assert bits.first == SCALE // 4
        assert bits.first + bits.cells * bits.step == 3 * SCALE // 4
        rq.save(rq.VectorMechanism(channel, clip_norm=1.0), tmp_path / "mechanism.json")
        assert Bits.of(rq.load(tmp_path / "mechanism.json").channel) == bits


@pytest.mark.parametrize("order", [1.1, 2.0, 8.0])
def test_codes_drawn_evenly_are_paid_for(order, monkeypatch):
    """A share of an eighth: no inputs exceed the bound, bit by bit or in all arrangements."""
    channel = partly_even(monkeypatch)
    assert Bits.of(channel).even == 1 / 8
    exact = worst(channel, 3, order, PLACES)
    assert exact <= curvature_of_bits(channel, 3, order)
    assert exact <= curvature_of_bits(channel, 3, order, 0.0) <= 1.4 * exact


def test_many_trials_are_sums_of_bits():
    """Although of (1/4)^31 a whole number over 2^62 tells nothing."""
    channel = rq.pbm(clip=1.0, theta=0.25, trials=31)
    assert Bits.of(channel).error < 2**-34
    assert rq.moments(channel).bias_max < 1e-11
    found = kappa_sum(channel, 48, 2.0)
    assert found.lower <= found.upper < 1.05 * found.lower


def test_rare_groups_count_though_their_mass_underflows():
    """Half of the others draw evenly with e^-865 or less, and one client shows e^1055."""
    read, clients, order = Bits.of(rq.pbm(1.0, 0.25, 31)), 200, 32.0
    with np.errstate(over="ignore"):
        rate = (order - 1) * bits._per_step(read, 1, order)
    most = (order - 1) * read.loss
    log_mass = (clients // 2 + 1) * math.log(clients * bits.EVEN)
    needed = np.logaddexp(0.0, log_mass + most) / (most / rate)
    plain = bits._per_step(read, clients, order)
    with np.errstate(over="ignore"):
        found = bits._with_even(read, clients, order)
    assert found * (order - 1) * (1 + 1e-12) >= max(needed, plain * (order - 1) * (1 - 1e-3))
    assert found <= 1.1 * (needed / (order - 1) + plain)


@pytest.mark.parametrize("channel", [
    rq.rqm(1.0, 1.0, 4, 0.5), rq.stochastic_rounding(1.0, 3), rq.pbm(1.0, 0.5, 3),
    perturbed(rq.pbm(1.0, 0.25, 3), 1e-3, 3),
])  # fmt: skip
def test_other_channels_have_no_bits(channel):
    assert Bits.of(channel) is None
    assert curvature_of_bits(channel, 5, 2.0) == math.inf


def test_one_bit_between_many_vertices_is_one_bit_between_two():
    """Its rows lie on a line: vertices between the ends change nothing."""
    for order in (2.0, 8.0):
        many, two = (kappa_sum(rq.pbm(1.0, 0.1, 1, inputs), 50, order) for inputs in (65, 2))
        assert many.upper == pytest.approx(two.upper, rel=1e-9, abs=0)
        assert many.lower > 0.98 * two.lower


@pytest.mark.parametrize("order", [1.5, 2.0, 9.0])
def test_two_codes_are_one_bit_however_bent(order):
    """The steepest cell, wherever it is, with the others at the ends."""
    weights = np.array([[14, 2], [13, 3], [6, 10], [5, 11]])
    channel = rq.Channel(np.linspace(-1.0, 1.0, 4), np.array([-2.0, 2.0]), weights, 16)
    found = kappa_sum(channel, 3, order)
    places = [Fraction(float(u)) for u in channel.inputs] + [Fraction(k, 6) for k in (-1, 0, 1)]
    exact = worst(channel, 3, order, places)
    assert exact <= curvature_of_bits(channel, 3, order)
    many = kappa_sum(rq.imvu(1.0, 2, 1.0), 300, order)
    assert exact <= found.upper
    assert many.upper < 1.03 * many.lower


def test_of_one_coordinate_codes_drawn_evenly_are_no_sums_of_bits(monkeypatch):
    """What is proven of bits at ends does not hold with others that draw evenly."""
    assert by_bits(SMALL, 40, 2.0, "replace_one", 9.0) < 9.0
    assert by_bits(partly_even(monkeypatch), 40, 2.0, "replace_one", 9.0) == math.inf


def test_a_rare_group_may_have_no_outcomes_that_count():
    """Between orders 2 and 3, where curvature is bent by the spread of what counts."""
    found = kappa_sum(rq.pbm(1.0, 0.25, 19, 9), 4, 2.5)
    assert 0 < found.lower <= found.upper < 1.5 * found.lower
