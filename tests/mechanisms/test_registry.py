import itertools
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import mechanism_channels

import randquant as rq
from randquant.mechanisms import build, channel_mechanisms

EXAMPLES = {
    **{name: record.example for name, record in channel_mechanisms().items()},
    "channel-file": {"path": str(Path(__file__).parents[1] / "designed.json")},
}
BIASED = {"qmgeo", "imvu"}
"""As they are published, but for what `mixing` mends of QMGeo: its privacy."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_contract(name):
    record, example = channel_mechanisms()[name], EXAMPLES[name]
    channel = build(name, example)
    assert channel == build(name, json.loads(json.dumps(example)))
    assert channel.clip == 1.5
    assert channel.lattice is not None
    assert (channel.weights.sum(axis=1) == channel.denominator).all()
    assert (channel.weights >= 0).all()
    assert (rq.moments(channel).bias_max < 1e-9 * channel.clip) == (name not in BIASED)
    assert 0 < rq.certify(channel).epsilon.upper < math.inf
    assert record.help.keys() == set(record.parameters)
    assert set(example) <= set(record.parameters)


CHOSEN_BY_ITSELF = {"pbm": ({"clip": 1.0, "theta": 0.35, "trials": 15}, "mixing")}
"""Mechanisms, parameters with which they choose another one, and that one."""


@pytest.mark.parametrize("name", CHOSEN_BY_ITSELF)
def test_only_what_a_mechanism_chose_by_itself_is_noted(name):
    """Of a parameter that was given nothing is said: not of 0 either, which turns it off."""
    records = {n: record for n, record in channel_mechanisms().items() if record.implied}
    assert records.keys() == CHOSEN_BY_ITSELF.keys()
    parameters, chosen = CHOSEN_BY_ITSELF[name]
    (note,) = records[name].notes(parameters)
    assert note.startswith(f"{name} has {chosen}=")
    for given_by_hand in (0, 0.0, records[name].chosen_by_default(parameters)[chosen]):
        assert records[name].notes({**parameters, chosen: given_by_hand}) == []


@given(mechanism_channels())
def test_unbiased(channel):
    # The means range over 2·clip, of which the rounded dither can cost 2**-33.
    allowed = channel.clip * 2.0**-32 + 1e-13 * np.abs(channel.values).max()
    assert rq.moments(channel).bias_max <= allowed


def distance(channel, x, exact) -> Fraction:
    """Farthest of the row at x from an exact one.

    2**-32 of a cell is the rounding of the dither; rows change by at most 1 over a cell.
    """
    weights, total = channel.mix(float(x))
    return max(
        abs(Fraction(int(weight), total) - probability)
        for weight, probability in zip(weights, exact, strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 8),
    st.fractions(0, 3, max_denominator=50),
    st.fractions(0, 1, max_denominator=50),
)
def test_rqm_equals_the_enumeration_of_all_subsets_of_levels(levels, margin, keep):
    channel = rq.rqm(1.0, float(margin), levels, float(keep))
    reach = 1 + Fraction(float(margin))
    for x in np.linspace(-1, 1, 9):
        exact = oracle.rqm_row(Fraction(float(x)), reach, levels, Fraction(float(keep)))
        assert distance(channel, x, exact) < Fraction(1, 2**32)


@pytest.mark.parametrize(("trials", "even"), [(1, 0), (15, 0), (18, 0), (19, 1), (60, 1)])
def test_pbm_equals_the_binomial_at_its_vertices(trials, even):
    """Where a code is rarer than 2^-36, a millionth of all codes or so is drawn evenly."""
    channel = rq.pbm(1.5, 0.25, trials)
    assert channel.levels == trials + 1
    assert channel.inputs == pytest.approx(np.linspace(-1.5, 1.5, 65), rel=1e-12, abs=1e-12)
    for vertex, x in enumerate(channel.inputs):
        success = Fraction(1, 2) + Fraction(1, 4) * Fraction(float(x)) / Fraction(3, 2)
        exact = oracle.binomial_row(trials, success)
        for weight, probability in zip(channel.weights[vertex], exact, strict=True):
            share = Fraction(even, 2**20)
            mixed = (1 - share) * probability + share / channel.levels
            wanted = mixed * channel.denominator
            assert abs(int(weight) - wanted) <= wanted * Fraction(1, 10**13) + 1


def qmgeo_oracle(x, levels, p, mixing):
    """Equations 9 to 11 of the paper in fractions; x in units of a step from the lowest level."""
    cell = min(int(x), levels - 2)
    down = mixing + (1 - 2 * mixing) * (cell + 1 - x)
    sides = []
    for count in (cell + 1, levels - 1 - cell):
        masses = [p * (1 - p) ** k for k in range(count)]
        sides.append([mass / sum(masses) for mass in masses])
    return [down * q for q in sides[0][::-1]] + [(1 - down) * q for q in sides[1]]


@settings(max_examples=40)
@given(
    st.integers(2, 9),
    st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50),
    st.fractions(0, Fraction(1, 2), max_denominator=50),
)
def test_qmgeo_equals_its_definition(levels, p, mixing):
    channel = rq.qmgeo(1.0, levels, float(p), float(mixing))
    for k in range(8 * (levels - 1)):
        steps = Fraction(k, 8) + Fraction(1, 16)  # inside the cells: the levels are jumps
        exact = qmgeo_oracle(steps, levels, p, mixing)
        assert distance(channel, 2 * steps / (levels - 1) - 1, exact) < Fraction(1, 2**31)


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_qmgeo_as_published_protects_nothing_and_its_repair_does(p):
    for order in (1.5, 2.0, math.inf):
        certificate = rq.certify(rq.qmgeo(1.0, 8, p), order)
        assert math.isinf(certificate.epsilon.lower)
        repaired = rq.certify(rq.qmgeo(1.0, 8, p, mixing=0.05), order)
        assert repaired.epsilon.upper < math.inf


def two_bin_oracle(x, bins, left, right):
    """Equation 4 of the paper in fractions, selection by selection."""
    j = max(i for i in range(len(bins) - 1) if bins[i] <= x)
    row = [Fraction(0)] * len(bins)
    for low, high in itertools.product(range(j + 1), range(j + 1, len(bins))):
        chance = left[j][low] * right[j][high - j - 1]
        up = (x - bins[low]) / (bins[high] - bins[low])
        row[high] += chance * up
        row[low] += chance * (1 - up)
    return row


@settings(max_examples=40)
@given(st.integers(3, 7), st.randoms(use_true_random=False))
def test_two_bins_equals_its_definition_for_any_selection(count, random):
    inner = sorted(random.sample(range(-140, 140), count - 2))
    bins = [Fraction(b, 100) for b in (-150, *inner, 150)]

    def selection(length):
        parts = [random.randint(1, 9) for _ in range(length)]
        return [Fraction(part, sum(parts)) for part in parts]

    left = [selection(j + 1) for j in range(count - 1)]
    right = [selection(count - 1 - j) for j in range(count - 1)]
    channel = rq.two_bins(
        1.0,
        [float(b) for b in bins],
        [[float(p) for p in part] for part in left],
        [[float(p) for p in part] for part in right],
    )
    assert rq.moments(channel).bias_max < 1e-9
    for x in [Fraction(k, 16) for k in range(-16, 16)]:
        exact = two_bin_oracle(x, bins, left, right)
        # Bins such as 0.1 are rounded by 1e-17 relative.
        assert distance(channel, x, exact) < Fraction(1, 2**31)


@pytest.mark.parametrize("inside", [2e-9, 9e-10, 1e-12, 0.0, -1e-12, -9e-10, -2e-9])
def test_bins_that_all_but_touch_clip_are_taken_for_it(inside):
    touching = rq.erm(1.0, [-2, -1, 0, 1, 2], 1.0)
    nearly = rq.erm(1.0, [-2, inside - 1, 0, 1 - inside, 2], 1.0)
    assert rq.moments(nearly).bias_max < 1.2e-9
    if inside < 1e-9:  # beyond, the bin is a jump of its own
        expected = rq.certify(touching).epsilon.upper
        assert rq.certify(nearly).epsilon.upper == pytest.approx(expected, abs=1e-7)
    rounding = rq.stochastic_rounding(1.0, 5, margin=1 - 2 * inside)
    assert rq.moments(rounding).bias_max < 1.2e-9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1, 0], [[1]], [[1]]), "cover"),
        (([2, -2], [[1]], [[1]]), "increasing"),
        (([-2, 0, 2], [[1], [0.5, 0.5]], [[1], [1]]), "lengths"),
        (([-2, 0, 2], [[1], [0.5, 0.4]], [[0.5, 0.5], [1]]), "sum to 1"),
    ],
)
def test_wrong_bins_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        rq.two_bins(1.0, *arguments)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rqm", {"clip": 0}, "clip > 0"),
        ("rqm", {"clip": math.nan}, "clip"),
        ("rqm", {"clip": math.inf}, "clip"),
        ("rqm", {"margin": -1}, "margin >= 0"),
        ("rqm", {"levels": 1}, "levels >= 2"),
        ("rqm", {"levels": 257}, "levels"),
        ("rqm", {"keep": 1.5}, "keep"),
        ("rqm", {"colour": 1}, "colour"),
        ("qmgeo", {"p": 1.0}, "p > 0"),
        ("qmgeo", {"mixing": 0.6}, "mixing"),
        ("pbm", {"theta": 0}, "theta > 0"),
        ("pbm", {"theta": 0.6}, "theta"),
        ("pbm", {"trials": 0}, "trials >= 1"),
        ("imvu", {"clip_norm": 0}, "clip_norm > 0"),
        ("imvu", {"levels": 1}, "levels >= 2"),
        ("imvu", {"levels": 17}, "levels"),
        ("imvu", {"epsilon": 0}, "epsilon >= 1e-06"),
        ("imvu", {"epsilon": 21}, "epsilon"),
        ("imvu", {"beta": 0.5}, "beta >= 1"),
        ("imvu", {"beta": 1e5}, "beta"),
    ],
)
def test_wrong_parameters_are_refused(name, change, message):
    with pytest.raises(ValueError, match=message):
        build(name, EXAMPLES[name] | change)


def test_wrong_kinds_missing_parameters_and_unknown_names_are_refused():
    with pytest.raises(TypeError, match="levels"):
        rq.rqm(1.0, 1.0, 16.5, 0.4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="margin, levels, keep"):
        build("rqm", {"clip": 1.0})
    with pytest.raises(ValueError, match="rqm, pbm"):
        build("laplace", {})
