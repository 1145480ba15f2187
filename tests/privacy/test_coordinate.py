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
from randquant._internal import round_down, round_up
from randquant.channels import from_probabilities

ORDERS = [1.0005, 2.0, 8.0, 1000.0, math.inf]


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


def ratios(p, q):
    return [int(a) / int(b) if b else math.inf if a else -1 for a, b in zip(p, q, strict=True)]


@pytest.mark.parametrize("neighboring", ["replace_one", "zero_out"])
@settings(max_examples=80, deadline=None)
@given(channels(), st.sampled_from(ORDERS))
def test_the_worst_pair_is_found_in_its_direction_with_the_code_that_tells_most(
    neighboring, channel, order
):
    found = rq.certify(channel, order, neighboring)
    zero, total = channel.mix(0.0)
    rows = [row.astype(object) * (total // channel.denominator) for row in channel.weights]
    pairs = itertools.product(rows, repeat=2)
    if neighboring == "zero_out":
        pairs = [pair for row in rows for pair in ((row, zero), (zero, row))]
        assert 0.0 in found.witness
    exact = max(oracle.renyi(p, q, order) for p, q in pairs)
    assert found.epsilon.lower <= exact <= found.epsilon.upper
    assert math.isinf(exact) or found.epsilon.width < 1e-10
    covers = {"replace_one": "all pairs", "zero_out": "pairs with zero"}[neighboring]
    assert (found.covers, found.neighboring) == (covers, neighboring)
    (p, _), (q, _) = (channel.mix(x) for x in found.witness)
    pair = rq.certify_pair(channel, *found.witness, order)
    assert found.epsilon.lower <= oracle.renyi(p, q, order) <= pair.epsilon.upper
    assert pair.epsilon.lower <= oracle.renyi(p, q, order)
    assert math.isinf(exact) or pair.epsilon.width < 1e-10
    assert found.code == pair.code
    assert ratios(p, q)[found.code] == max(ratios(p, q))


def test_nothing_overflows_with_64_levels_and_tiny_weights():
    rng = np.random.default_rng(0)
    table = rng.random((128, 64)) ** 30 + 1e-25
    table /= table.sum(axis=1, keepdims=True)
    channel = from_probabilities(np.linspace(-1, 1, 128), np.arange(64.0), table)
    for order in [*ORDERS, 1e6, 1e300]:
        interval = rq.certify(channel, order).epsilon
        assert 0 < interval.lower <= interval.upper < 62 * math.log(2)
    assert interval.width < 1e-7


@pytest.mark.parametrize(("levels", "margin"), [(2, 0.0), (2, 0.5), (3, 0.5), (16, 0.5)])
def test_stochastic_rounding_protects_only_with_two_levels_and_a_margin(levels, margin):
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=margin)
    for certificate in (rq.certify(channel, order) for order in ORDERS):
        infinite = math.isinf(certificate.epsilon.upper)
        assert infinite == ("never does" in str(certificate)) == (levels > 2 or margin == 0)


@pytest.mark.parametrize("value", [0.1, 1.2345674, 2.5000001, 1e-5 / 3, 123456.4, 1e300 / 7])
def test_rounded_figures_stay_on_their_side_of_the_number_itself(value):
    for digits in (1, 3, 6, 17, 20):
        above = Decimal(round_up(value, digits))
        below = Decimal(round_down(value, digits))
        assert below <= Decimal(value) <= above
        step = Decimal(10) ** (Decimal(value).adjusted() - digits + 1)
        assert above - below <= step


def test_a_figure_for_pairs_with_zero_says_so():
    """At order 2 log(4/3) for 1 and 0, log(7/3) for 1 and -1."""
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
    one = rq.certify(channel, 2.0, "zero_out")
    assert str(one).startswith("order 2.0, zero_out: epsilon <= 0.287682073 per coordinate")
    sums = rq.certify_sum(channel, 2, 2.0, "zero_out")
    assert str(sums).startswith("order 2.0, zero_out: epsilon <= 0.")
    assert str(rq.certify(channel, 2.0)).startswith("order 2.0: epsilon <= 0.847297861 per")
    sure = rq.stochastic_rounding(clip=1.0, levels=2)
    assert "zero_out: epsilon is infinite" in str(rq.certify(sure, neighboring="zero_out"))
