"""Calibration never passes its target and finds what brute force finds; pages are sound."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from pages import Page, check_charts, check_self_contained
from strategies import channels

import randquant as rq
from randquant.channels import Channel, from_probabilities
from randquant.mechanisms import CoordinateTarget, build, channel_mechanisms, unregister
from randquant.planning import Unreachable, compare, tune_coordinate
from randquant.planning.compare import tunable_mechanisms
from randquant.reports.channels import comparison_json, comparison_notes, comparison_page


@pytest.fixture
def registry():
    before = channel_mechanisms()
    yield
    for name in channel_mechanisms().keys() - before:
        unregister(name)


def response(clip: float, levels: int, noise: float) -> Channel:
    grid = np.linspace(-clip, clip, levels)
    rows = (1 - noise) * np.eye(levels) + noise / levels
    return from_probabilities(grid, grid / (1 - noise), rows)


@settings(max_examples=80)
@given(channels())
def test_the_fast_epsilon_of_a_search_is_the_certified_one(channel):
    fast = compare._Candidate({}, channel).epsilon
    interval = rq.certify(channel).epsilon
    assert interval.lower * (1 - 1e-13) <= fast <= interval.upper * (1 + 1e-13)


ZOOMS = {"optm": 0}
TARGETS = ((2, 0.3), (4, 1.3), (4, 5.0))
"""Levels and epsilons."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("levels", "epsilon", "name"),
    [(*target, name) for target in TARGETS for name in tunable_mechanisms()
     if (target, name) != (TARGETS[-1], "optm")],  # whose programmes take half a minute
)  # fmt: skip
def test_no_target_is_passed_and_the_parameters_build_the_channel(name, levels, epsilon):
    clip = 0.03
    try:
        # On one grid where every channel is a programme's optimum, and slow to make.
        found = tune_coordinate(
            name, CoordinateTarget(clip, levels, epsilon, "mse"), zooms=ZOOMS.get(name)
        )
    except Unreachable:
        if name != "sparse-ternary":  # made for sums, not for one coordinate's epsilon
            assert (name, levels) == ("qmgeo", 4)
            assert epsilon < 2
        return
    assert found.channel.levels == levels
    assert found.channel.clip == clip
    assert rq.certify(found.channel).epsilon.upper <= epsilon
    assert found.certificate.epsilon.lower >= epsilon * (1 - 2e-5)
    assert found.error == rq.moments(found.channel).mse
    assert build(name, json.loads(json.dumps(found.parameters))) == found.channel


@pytest.mark.parametrize(("epsilon", "trials"), [(0.5, 3), (2.0, 15), (4.0, 1)])
def test_pbm_is_calibrated_to_its_closed_form(epsilon, trials):
    found = tune_coordinate("pbm", CoordinateTarget(1.0, trials + 1, epsilon, "mae"))
    # trials·log((1/2 + theta)/(1/2 - theta)) = epsilon
    theta = 0.5 * math.tanh(epsilon / (2 * trials))
    assert found.parameters["theta"] == pytest.approx(theta, rel=1e-5)
    assert found.parameters["theta"] <= theta


@pytest.mark.parametrize("levels", [2, 4, 16])
def test_stochastic_rounding_is_calibrated_to_its_two_middle_levels(levels):
    found = tune_coordinate("stochastic-rounding", CoordinateTarget(2.0, levels, 1.0, "mse"))
    reach = 2.0 + 4.0 / math.expm1(1.0)  # where log((reach + clip)/(reach - clip)) = 1
    middle = found.channel.values[levels // 2]
    assert middle == pytest.approx(reach, rel=1e-5)
    assert found.error == pytest.approx(reach**2 - 4 / 3, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "objective"), [(0.7, "mse"), (1.5, "mae"), (3.0, "mae")])
@pytest.mark.slow
def test_rqm_is_as_good_as_brute_force(epsilon, objective):
    best = math.inf
    for margin, keep in itertools.product(np.linspace(0.1, 3, 30), np.linspace(0, 1, 51)):
        channel = rq.rqm(1.0, float(margin), 4, float(keep))
        high, low = channel.weights.max(axis=0), channel.weights.min(axis=0)
        if (high <= math.exp(epsilon) * low).all():
            best = min(best, getattr(rq.moments(channel), objective))
    found = tune_coordinate("rqm", CoordinateTarget(1.0, 4, epsilon, objective))
    assert found.error <= best * 1.0005


def test_rqm_finds_the_papers_parameters():
    found = tune_coordinate("rqm", CoordinateTarget(1.0, 4, 1.0, "mae"))
    assert found.error == pytest.approx(1.993, abs=0.002)  # OPTM paper, table 1


def test_the_least_epsilon_is_named():
    with pytest.raises(Unreachable, match=r"least epsilon found is 1\.099"):
        tune_coordinate("qmgeo", CoordinateTarget(1.0, 4, 1.0, "mae"))
    with pytest.raises(Unreachable, match="infinite"):  # an odd number: 0 is a level
        tune_coordinate("stochastic-rounding", CoordinateTarget(1.0, 3, 1.0, "mae"))


def test_every_mechanism_is_compared_unless_some_are_chosen(monkeypatch):
    def nothing(*_):
        raise Unreachable("not looked for")

    monkeypatch.setattr(compare, "tune_coordinate", nothing)
    found = compare.at_equal_epsilon(1.0, 1, 1.0, mechanisms="all")
    assert sorted(entry.mechanism for entry in found.entries) == sorted(tunable_mechanisms())
    assert found.left_out == ()
    quick = compare.at_equal_epsilon(1.0, [1], 1.0)
    assert list(quick.left_out) == ["optm"]
    assert {e.mechanism for e in quick.entries} == {e.mechanism for e in found.entries} - {"optm"}
    assert "--mechanisms all adds it" in comparison_notes(quick)[0]
    assert comparison_json(quick)["left_out"] == ["optm"]


def test_a_mechanism_with_one_number_is_calibrated_unasked(registry):
    rq.register("response", response)
    for epsilon in (0.1, 1.0, 6.0):
        found = tune_coordinate("response", CoordinateTarget(1.0, 4, epsilon, "mse"))
        noise = 4 / (3 + math.exp(epsilon))  # 1 + 4 (1 - noise)/noise = e^epsilon
        assert found.parameters["noise"] == pytest.approx(noise, rel=2e-5)
        assert found.certificate.epsilon.upper <= epsilon


def test_what_cannot_be_searched_says_how_to_go_on(registry):
    def listed(clip: float, levels: int, weights: list) -> Channel:
        raise AssertionError

    rq.register("listed", listed)
    entries = compare.at_equal_epsilon(1.0, [1], 1.0, mechanisms=["listed", "pbm"]).entries
    assert [entry.mechanism for entry in entries] == ["pbm", "listed"]
    assert entries[1].measured is None
    assert "give it clip, levels, weights with --channel" in entries[1].remark


@pytest.mark.parametrize(
    ("name", "constructor", "message"),
    [
        ("rqm", response, "taken"),
        ("gaussian", response, "taken"),
        ("Response", response, "lower-case"),
        ("response", lambda levels: None, "clip"),
        ("response", lambda clip, *rest: None, "by name"),
    ],
)
def test_wrong_registrations_are_refused(registry, name, constructor, message):
    before = channel_mechanisms()
    with pytest.raises(ValueError, match=message):
        rq.register(name, constructor)
    assert before == channel_mechanisms()


def test_a_page_of_given_channels_tells_them_apart_and_says_what_is_not_drawn():
    small = {"clip": 1.5, "theta": 0.25, "trials": 15}, {"clip": 2.0, "theta": 0.1, "trials": 3}
    given = [("pbm", each) for each in small]
    given.append(("qmgeo", {"clip": 1.5, "levels": 16, "p": 0.2}))
    text = comparison_page(compare.compare_channels(given, order=8.0))
    check_self_contained(text)
    check_charts(text)
    for words in ("pbm 1", "pbm 2", "Infinite and not drawn: qmgeo.", "Clips differ"):
        assert words in Page(text).words


@pytest.mark.parametrize("order", [2.0, 4.0])
def test_given_channels_are_shown_at_the_order_that_is_asked_for(order):
    settings = {"clip": 1.0, "margin": 1.0, "levels": 4, "keep": 0.4}
    compared = compare.compare_channels([("rqm", settings)], order)
    assert compared.order == order
    assert compared.entries[0].measured.renyi == rq.certify(build("rqm", settings), order)
