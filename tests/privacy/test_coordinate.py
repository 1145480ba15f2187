import itertools
import math
from decimal import Decimal

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import channels

import randquant as rq
from randquant._internal.rounding import round_down, round_up
from randquant.channels.channel import Channel
from randquant.channels.probabilities import from_probabilities
from randquant.privacy.certificates.metric import MetricCertificate

ORDERS = [1.0005, 2.0, 8.0, 1000.0, math.inf]


@pytest.fixture(scope="module")
def paper():
    return rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)


def test_known_values(paper):
    assert rq.certify_pair(paper, 1.5, -1.5, 1000.0).epsilon.upper == pytest.approx(
        5.46838, abs=5e-6
    )
    everywhere = rq.certify(paper, 8.0).epsilon
    assert everywhere.lower == pytest.approx(5.34422859, abs=5e-9)
    assert everywhere.upper == pytest.approx(5.34422859, abs=5e-9)
    assert rq.certify_pair(paper, 1.5, -1.5, 8.0).epsilon.upper == pytest.approx(
        5.31564235, abs=5e-9
    )


@pytest.mark.parametrize(
    ("margin", "keep", "worst", "ends"),
    [(0.66, 0.33, 5.29826, 5.28754), (1.0, 0.23, 3.21931, 3.17378)],
)
def test_the_ends_are_not_always_the_worst_pair(margin, keep, worst, ends):
    channel = rq.rqm(clip=1.0, margin=margin, levels=16, keep=keep)
    assert rq.certify(channel).epsilon.upper == pytest.approx(worst, abs=1e-5)
    assert rq.certify_pair(channel, 1.0, -1.0).epsilon.upper == pytest.approx(ends, abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(channels(), st.sampled_from(ORDERS), st.randoms())
def test_no_pair_of_inputs_is_above_the_bound(channel, order, random):
    bound = rq.certify(channel, order).epsilon.upper
    points = [random.uniform(-channel.clip, channel.clip) for _ in range(6)]
    points += [float(u) for u in channel.inputs]
    rows = {}
    for x in points:
        weights, total = channel.mix(x)
        assert total == 2**32 * channel.denominator
        rows[x] = weights
    for x, other in itertools.permutations(rows, 2):
        assert oracle.renyi(rows[x], rows[other], order) <= bound


@settings(max_examples=60, deadline=None)
@given(channels(), st.sampled_from(ORDERS))
def test_the_best_pair_of_vertices_attains_the_interval(channel, order):
    interval = rq.certify(channel, order).epsilon
    exact = max(oracle.renyi(p, q, order) for p, q in itertools.product(channel.weights, repeat=2))
    assert interval.lower <= exact <= interval.upper
    assert math.isinf(interval.upper) or interval.width < 1e-10


@settings(max_examples=60, deadline=None)
@given(channels(), st.sampled_from(ORDERS))
def test_the_witness_has_a_divergence_of_at_least_the_lower_end(channel, order):
    certificate = rq.certify(channel, order)
    (p, _), (q, _) = (channel.mix(x) for x in certificate.witness)
    assert oracle.renyi(p, q, order) >= certificate.epsilon.lower
    if math.isinf(certificate.epsilon.upper):
        assert p[certificate.code] > 0
        assert q[certificate.code] == 0


def test_both_limits_of_a_jump_count():
    left, right = [0.5, 0.5], [0.9, 0.1]
    channel = from_probabilities(
        np.array([-1.0, 0, 0, 1]), np.array([-1.0, 1.0]), np.array([left, left, right, left])
    )
    assert rq.certify(channel).epsilon.upper == pytest.approx(math.log(5), rel=1e-12, abs=0)


@pytest.mark.parametrize("levels", [2, 3, 16])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_stochastic_rounding_protects_only_with_two_levels_and_a_margin(levels, margin):
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=margin)
    for order in ORDERS:
        certificate = rq.certify(channel, order)
        assert math.isinf(certificate.epsilon.upper) == (levels > 2 or margin == 0)
        if math.isinf(certificate.epsilon.upper):
            (can, _), (never, _) = (channel.mix(x) for x in certificate.witness)
            assert can[certificate.code] > 0
            assert never[certificate.code] == 0
            assert "never does" in str(certificate)


def test_stochastic_rounding_with_two_levels_and_a_margin_in_closed_form():
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=0.5)
    assert rq.certify(channel).epsilon.upper == pytest.approx(math.log(2.5 / 0.5), rel=1e-12, abs=0)


def test_nothing_overflows_with_64_levels_and_tiny_weights():
    rng = np.random.default_rng(0)
    table = rng.random((128, 64)) ** 30 + 1e-25
    table /= table.sum(axis=1, keepdims=True)
    channel = from_probabilities(np.linspace(-1, 1, 128), np.arange(64.0), table)
    for order in [*ORDERS, 1e6, 1e300]:
        interval = rq.certify(channel, order).epsilon
        assert 0 < interval.lower <= interval.upper < 62 * math.log(2)
    assert interval.width < 1e-7


def test_the_bound_grows_with_the_order(paper):
    uppers = [rq.certify(paper, order).epsilon.upper for order in ORDERS]
    assert uppers == sorted(uppers)


@pytest.mark.parametrize("order", [1.0, 0.5, -3, math.nan])
def test_orders_up_to_one_are_refused(paper, order):
    with pytest.raises(ValueError, match="order"):
        rq.certify(paper, order)


def test_a_wrong_row_would_be_caught():
    good = rq.rqm(1.0, 1.0, 8, 0.4)
    weights = good.weights.copy()
    weights[0, 0] += weights[0, -1] // 2
    weights[0, -1] -= weights[0, -1] // 2
    bad = Channel(good.inputs, good.values, weights, good.denominator)
    assert rq.certify(bad).epsilon.lower > rq.certify(good).epsilon.upper + 0.1


def against_zero(channel):
    """Every ordered pair of a vertex's row and the row that is sent for 0."""
    zero, total = channel.mix(0.0)
    rows = [row.astype(object) * (total // channel.denominator) for row in channel.weights]
    return [pair for row in rows for pair in ((row, zero), (zero, row))]


@settings(max_examples=40, deadline=None)
@given(channels(), st.sampled_from(ORDERS))
def test_zero_out_is_the_worst_of_all_vertices_in_both_directions(channel, order):
    found = rq.certify(channel, order, "zero_out")
    exact = max(oracle.renyi(p, q, order) for p, q in against_zero(channel))
    assert found.epsilon.lower <= exact <= found.epsilon.upper
    assert math.isinf(exact) or found.epsilon.width < 1e-10
    assert (found.covers, found.neighboring) == ("pairs with zero", "zero_out")
    assert 0.0 in found.witness
    (p, _), (q, _) = (channel.mix(x) for x in found.witness)
    assert oracle.renyi(p, q, order) >= found.epsilon.lower
    ratios = [int(a) / int(b) if b else math.inf for a, b in zip(p, q, strict=True) if a]
    assert p[found.code] > 0
    assert (int(p[found.code]) / int(q[found.code]) if q[found.code] else math.inf) == max(ratios)


def test_zero_out_is_worst_at_an_inner_vertex_in_either_direction():
    """The row at 0 is no vertex, both ends are close to it, and one inner vertex is far."""
    near, far, middle = [8, 8], [15, 1], [9, 7]
    weights = np.array([near, far, middle, near])
    channel = Channel(np.array([-1.0, -0.5, 0.5, 1.0]), np.array([-1.0, 1.0]), weights, 16)
    zero = [12, 4]
    for order in (1.5, 2.0, math.inf):
        sides = [oracle.renyi(far, zero, order), oracle.renyi(zero, far, order)]
        found = rq.certify(channel, order, "zero_out")
        assert found.epsilon.lower <= max(sides) <= found.epsilon.upper
        assert max(sides) > 1.5 * min(sides)
        assert found.witness == ((-0.5, 0.0) if sides[0] > sides[1] else (0.0, -0.5))
    mirrored = Channel(channel.inputs, channel.values, np.array([near, [1, 15], [7, 9], near]), 16)
    assert (
        rq.certify(mirrored, 2.0, "zero_out").epsilon
        == rq.certify(channel, 2.0, "zero_out").epsilon
    )


def test_zero_out_where_the_loss_is_from_vertex_to_zero():
    """Code 1 is rare at 0 and common at a vertex, so the vertex against 0 is the worse way."""
    weights = np.array([[8, 8], [15, 1], [15, 1], [14, 2]])
    channel = Channel(np.array([-1.0, -0.5, 0.5, 1.0]), np.array([-1.0, 1.0]), weights, 16)
    found = rq.certify(channel, math.inf, "zero_out")
    assert found.epsilon.lower <= math.log(8) <= found.epsilon.upper
    assert (found.witness, found.code) == ((-1.0, 0.0), 1)
    back = rq.certify(
        Channel(channel.inputs, channel.values, np.array([[15, 1], [8, 8], [8, 8], [8, 8]]), 16),
        math.inf,
        "zero_out",
    )
    assert back.epsilon.lower <= math.log(8) <= back.epsilon.upper
    assert (back.witness, back.code) == ((0.0, -1.0), 1)


def test_replace_one_is_found_between_inner_vertices_in_either_direction():
    """The one far vertex first, last or inside: D(p||q) is not D(q||p)."""
    near, far = [8, 8], [15, 1]
    for place in range(4):
        weights = np.array([far if vertex == place else near for vertex in range(4)])
        for rows in (weights, weights[:, ::-1]):
            channel = Channel(np.linspace(-1, 1, 4), np.array([-1.0, 1.0]), rows, 16)
            exact = oracle.renyi(near, far, 8.0)
            assert exact > 2 * oracle.renyi(far, near, 8.0)
            found = rq.certify(channel, 8.0)
            assert found.epsilon.lower <= exact <= found.epsilon.upper
            assert found.witness[1] == pytest.approx(np.linspace(-1, 1, 4)[place])
            assert found.code == int(rows[place][0] > rows[place][1])


def test_a_pair_is_certified_in_its_own_direction():
    channel = Channel(np.array([-1.0, 1.0]), np.array([-1.0, 1.0]), np.array([[8, 8], [15, 1]]), 16)
    for x, other, rows in ((-1.0, 1.0, ([8, 8], [15, 1])), (1.0, -1.0, ([15, 1], [8, 8]))):
        found = rq.certify_pair(channel, x, other, 8.0).epsilon
        assert found.lower <= oracle.renyi(*rows, 8.0) <= found.upper


@pytest.mark.parametrize("bound", [1.2345678901, 1.2345678949, 5e-10, 99999.99991])
def test_no_printed_figure_is_rounded_to_nearest(bound):
    certificate = rq.Certificate(8.0, rq.Interval(bound / 2, bound), (1.0, -1.0), 0)
    assert float(str(certificate).split("epsilon <= ")[1].split()[0]) >= bound
    metric = MetricCertificate("l1", rq.Interval(bound / 2, bound), (1.0, -1.0), "all inputs")
    assert float(str(metric).split("epsilon <= ")[1].split()[0]) >= bound


@pytest.mark.parametrize("value", [0.1, 1.2345674, 2.5000001, 1e-5 / 3, 123456.4, 1e300 / 7])
def test_rounded_figures_stay_on_their_side_of_the_number_itself(value):
    for digits in (1, 3, 6, 17, 20):
        above = Decimal(round_up(value, digits))
        below = Decimal(round_down(value, digits))
        assert below <= Decimal(value) <= above
        step = Decimal(10) ** (Decimal(value).adjusted() - digits + 1)
        assert above - below <= step
    guarantee = rq.Guarantee(value, 1e-5, "zero_out", "aggregate", 2.0, 1)
    assert float(str(guarantee).split("<= ")[1].split()[0]) >= value
    assert "(zero_out, aggregate trust)" in str(guarantee)


def test_an_interval_that_holds_nothing_is_refused():
    for lower, upper in ((1.0, 0.5), (math.nan, 1.0), (0.0, math.nan)):
        with pytest.raises(ValueError, match="lower <= upper"):
            rq.Interval(lower, upper)
