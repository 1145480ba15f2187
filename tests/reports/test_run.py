"""The page of a run: self-contained, inert, deterministic, and never rounding a bound down."""

from __future__ import annotations

import dataclasses
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_runs import finished, promise, record
from pages import Page, check_charts, check_self_contained
from torch import nn

import randquant as rq
from randquant.aggregation import describe_influence
from randquant.privacy import SIMULATED
from randquant.reports import LARGE_EPSILON, render_run
from randquant.reports import run as pictures
from randquant.reports.pages import how_to_compare
from randquant.training import Run, configured_mechanism

HOSTILE = "<script>alert('1')</script>\"><img src=https://example.org/x>&amp;"


CHANNEL = rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.42)
CASES = {
    "full": (record(promise()), record(mechanism="clipped-sgd"), CHANNEL),
    "bare": (record(),),
    "infinite": (
        record(promise(math.inf)),
        None,
        rq.stochastic_rounding(clip=1.5, levels=4),
    ),
    "central": (record(promise(7.93, "central")), record()),
    "no evaluation": (record(promise(), every=99), None, CHANNEL),
    "one round": (record(promise(), rounds=1), record(rounds=1), CHANNEL),
    "no round": (record(promise(), rounds=0),),
    "hostile": (record(promise(), mechanism=HOSTILE),),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_is_self_contained_and_its_charts_are_well_formed(case: str) -> None:
    text = render_run(*CASES[case])
    check_self_contained(text)
    assert len(check_charts(text)) >= (0 if case == "no round" else 2)


def test_text_of_the_configuration_is_inert() -> None:
    page = check_self_contained(render_run(*CASES["hostile"]))
    assert "img" not in page.tags
    assert not any("alert" in script for script in page.scripts)
    assert HOSTILE in page.words


def printed_epsilons(text: str) -> list[Decimal]:
    found = re.findall(r"ε ≤ ([0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)", text)
    return [Decimal(number.replace(",", "")) for number in found]


@settings(deadline=None)  # a busy machine is no failure
@given(st.floats(min_value=0.0, allow_infinity=False, allow_nan=False))
@example(0.1)
@example(9.9999995)
@example(999999.5)
@example(152345.6)
@example(5e-324)
@example(1.7976931348623157e308)
def test_the_printed_epsilon_is_never_below_the_real_one(epsilon: float) -> None:
    run = record(promise(epsilon), rounds=1)
    printed = printed_epsilons(render_run(run))
    assert len(printed) == 2  # the card and the text
    exact = Decimal(epsilon)
    for value in printed:
        assert exact <= value <= exact * Decimal("1.00001")


@settings(deadline=None, max_examples=15)  # a busy machine is no failure
@given(st.floats(min_value=1e-2, max_value=1e2))
def test_the_printed_epsilon_of_one_coordinate_is_never_below_the_real_one(margin: float) -> None:
    channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=margin)
    pure = rq.certify(channel).epsilon.upper
    printed = printed_epsilons(render_run(record(promise(math.inf)), None, channel))
    assert len(printed) == 1  # the legend
    assert all(value >= Decimal(pure) for value in printed)


def test_equal_input_gives_an_equal_page() -> None:
    """The order in which parameters were given is no difference."""
    run, baseline, channel = CASES["full"]
    parameters = dict(reversed(run.config.parameters.items()))
    again = dataclasses.replace(run, config=run.config.changed(parameters=parameters))
    assert render_run(again, baseline, channel) == render_run(run, baseline, channel)


def test_epsilon_so_far_is_drawn_and_tabled_where_it_is_known() -> None:
    run = record(promise(7.93), stop_at_epsilon=8.0, rounds=4)
    assert "Epsilon so far" not in render_run(run)
    metrics = [dataclasses.replace(m, epsilon=1.98 * m.round) for m in run.metrics]
    stopped = dataclasses.replace(run.summary, rounds=4, stopped="before round 5 of 9: <i>dear</i>")
    text = render_run(dataclasses.replace(run, metrics=metrics, summary=stopped))
    words = Page(text).words
    assert "Epsilon so far, per round" in words
    assert "not to be exceeded" in words
    assert "1.980" in words or "1.98" in words
    assert "Stopped before round 5 of 9: <i>dear</i>." in words
    assert "<i>" not in text
    check_charts(text)
    endless = [dataclasses.replace(m, epsilon=math.inf) for m in run.metrics]
    text = render_run(dataclasses.replace(run, metrics=endless))
    assert "Epsilon so far" not in text
    assert "∞" in text


@pytest.mark.parametrize("participations", [1, 7, 75])
def test_the_guarantee_is_said_to_be_for_the_rounds_of_the_client_called_most_often(
    participations: int,
) -> None:
    run = record(promise())
    summary = dataclasses.replace(run.summary, participations=participations)
    words = Page(render_run(dataclasses.replace(run, summary=summary))).words
    rounds = f"{participations} round{'s' * (participations > 1)}"
    assert (
        f"the client with the most rounds takes part in {rounds} with 650 coordinates in each, and "
        "48,750 releases were composed"
    ) in words


def test_an_infinite_epsilon_is_said_and_not_drawn() -> None:
    words = Page(render_run(*CASES["infinite"])).words
    assert "There is no guarantee." in words
    assert "There is no finite value to draw." in words  # of one coordinate
    assert "ε ≤" not in words


@pytest.mark.parametrize("epsilon", [1.0, LARGE_EPSILON, math.nextafter(LARGE_EPSILON, 99), 1e5])
def test_a_large_total_is_called_what_it_is(epsilon: float) -> None:
    words = Page(render_run(record(promise(epsilon)))).words
    warning = "does not by itself hide a client's update from a server that sees every code"
    assert (warning in words) == (epsilon > LARGE_EPSILON)
    assert "This run simulated all clients on one machine" in words


SECRET_LOSS, SECRET_SECONDS = 7319.25, 6137.5


@pytest.mark.parametrize("baseline", [None, record(mechanism="clipped-sgd")])
def test_what_no_epsilon_covers_is_shown_only_if_asked_and_marked(baseline) -> None:
    """Neither loss on clients' data nor time is on a page, in its pictures or in their data."""
    run = record(promise(7.93))
    metrics = [
        dataclasses.replace(m, train_loss=SECRET_LOSS, seconds_gradient=SECRET_SECONDS)
        for m in run.metrics
    ]
    run = dataclasses.replace(run, metrics=metrics)
    text, asked = render_run(run, baseline), render_run(run, baseline, uncovered=True)
    for hidden in ("7319", "7,319", "6137", "6,137", "6138", "6,138", "seconds"):
        assert hidden not in Page(text).words
        assert not any(hidden in data for data in Page(text).data)
    changed = [dataclasses.replace(m, train_loss=9.9, seconds_protect=5.0) for m in metrics]
    assert render_run(dataclasses.replace(run, metrics=changed), baseline) == text
    assert any(f"{SECRET_LOSS}" in data for data in Page(asked).data)
    assert "Not covered by the guarantee" in Page(asked).words
    for page in (text, asked):
        words = check_self_contained(page).words
        assert "What is covered, what is not" in words
        assert "taken to be public: if they are not, these figures are not covered" in words
        marked = "87.30 % without privacy: no ε covers it" in words.replace("\u00a0", " ")
        assert marked == (baseline is not None)
        said = (
            "The run without privacy was trained on the clients' data with no protection" in words
        )
        assert said == (baseline is not None)
    assert "rq.report(run, path, uncovered=True)" in Page(text).words
    assert len(check_charts(asked)) == len(check_charts(text)) + 2


def test_a_picture_of_a_run_has_nothing_that_no_epsilon_covers(tmp_path) -> None:
    run = record(promise(7.93))
    regression = dataclasses.replace(run.summary, accuracy=None)
    for summary in (run.summary, regression):
        changed = dataclasses.replace(run, summary=summary)
        shown = pictures.figures(Run(nn.Identity(), changed, tmp_path, declared=3))
        labels = [label for figure in shown for line in figure.lines for label in [line.label]]
        assert labels
        assert not any("train" in label for label in labels)


@pytest.mark.parametrize("guarantee", [None, promise(math.inf), promise(7.93)])
def test_only_a_finite_epsilon_is_said_to_cover_anything(guarantee) -> None:
    words = Page(render_run(record(guarantee))).words
    finite = guarantee is not None and math.isfinite(guarantee.epsilon)
    assert ("Covered. All that clients sent in the declared rounds" in words) == finite
    assert ("Covered. Nothing: no finite ε is proven." in words) == (not finite)


def test_settings_that_a_run_did_not_use_are_left_out_and_padding_is_explained() -> None:
    run = record(promise(7.93))
    words = Page(render_run(run)).words
    for unused in ("(none)", "weighted_by", "standardize", "frozen"):
        assert unused not in words
    assert "stop_at_epsilon never" in words
    assert "padded" not in words  # 650 coordinates are sent as they are
    padded = dataclasses.replace(promise(7.93), releases=75 * 1024)
    summary = dataclasses.replace(run.summary, guarantee=padded)
    words = Page(render_run(dataclasses.replace(run, summary=summary))).words
    assert "They are 1,024 a round, since an update is padded to that" in words


@pytest.mark.parametrize(("sampling", "summed"), [("poisson", 200), ("fixed", 40)])
def test_under_model_trust_a_page_says_what_is_masked_and_who_moves_the_sum(
    sampling, summed, tmp_path
) -> None:
    """Absent clients send zeros where cohorts vary: all of them are in the sum."""
    run = record(promise(7.9, "model"), trust="model", sampling=sampling, clip_norm=1.0)
    page = Page(pictures._rendered(run, tmp_path, False)).words
    mechanism = configured_mechanism(run.config)
    told = describe_influence(mechanism, 650, summed, 40)
    assert told.startswith(f"one hostile client of {summed} ")
    assert f"O{told[1:]}." in " ".join(page.split())
    assert f"masked for a sum of {summed} clients" in page


@pytest.mark.parametrize(
    ("losses", "label"), [("cm", "loss"), ("cc", "loss, nats"), ("mm", "loss"), ("c", "loss, nats")]
)
def test_a_loss_is_in_nats_where_it_is_a_cross_entropy(losses, label) -> None:
    names = {"c": "cross_entropy", "m": "mse_loss"}
    runs = [record(promise(), loss=names[each]) for each in losses]
    shown = [
        finished(Path(str(place)), run.config, run.summary.guarantee, *run.metrics)
        for place, run in enumerate(runs)
    ]
    drawn = pictures._charts(shown, list("ab")[: len(shown)])
    if len(runs) == 1:
        drawn += pictures.training_charts(runs[0], None)
    labels = {each.y.label for each in drawn if each.title.startswith("Loss")}
    assert labels == {label}


@pytest.mark.parametrize("stated", ["replace_one", "zero_out"])
def test_each_figure_is_compared_with_those_of_its_own_relation(stated) -> None:
    figures = {"replace_one": 4.0, "zero_out": 2.0}
    guarantees = {
        name: dataclasses.replace(promise(epsilon), neighboring=name)
        for name, epsilon in figures.items()
    }
    [other] = [each for name, each in guarantees.items() if name != stated]
    [(_, text)] = how_to_compare(guarantees[stated], other)
    assert "for adding or removing one client with ε ≤ 2:" in text
    assert "for replacing one with ε ≤ 4." in text


@pytest.mark.parametrize("server", [True, False, None])
def test_a_page_says_on_whom_the_noise_of_a_run_counts(server) -> None:
    run = record(promise(7.9, "aggregate"), trust="aggregate")
    if server is not None:
        noise = {"clip_norm": 1.0, "noise_multiplier": 4.0, "clients": 5, "server_noise": server}
        config = run.config.changed(mechanism="helper-noise", parameters=noise)
        run = dataclasses.replace(run, config=config)
    who = "and the server as much again" if server else "the helper of each sum alone"
    words = " ".join(Page(render_run(run)).words.split())
    for said in ("Clients add no noise", who, "if the helper leaves out its noise or colludes"):
        assert (said in words) == (server is not None)


@pytest.mark.parametrize("simulated", [True, False])
def test_the_card_of_a_guarantee_says_that_a_simulation_protects_nobody(simulated) -> None:
    guarantee = dataclasses.replace(promise(7.93), simulated=simulated)
    words = Page(render_run(record(guarantee))).words
    assert (SIMULATED in words) == simulated
