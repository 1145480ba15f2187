"""The page of a table says every number, what it promises, and what its intervals cover."""

import json
import math

import pytest
from pages import Page

import randquant as rq
from randquant._internal import to_json
from randquant.reports import BandedCurve, Intervals, answers, draw_intervals

WARD = {
    "age": [float(18 + k % 70) for k in range(4000)],
    "days": [k % 41 / 2 for k in range(4000)],
    "event": [k % 3 > 0 for k in range(4000)],
}
ASKED = {
    "age": rq.Mean(18, 100),
    "ages": rq.Counts(bins=[18, 40, 100], column="age"),
    "ended": rq.Counts([False, True], column="event"),
    "survival": rq.KaplanMeier("days", "event", until=40, bins=8),
    "fit": rq.LinearRegression({"age": (18, 100)}, {"days": (0, 1000)}),
}
TABLE = rq.statistics([WARD], 1.0, queries=ASKED, trust="central", unit="example", seed=1)


def test_the_page_says_every_estimate_and_what_is_promised(tmp_path):
    words = " ".join(Page(rq.report(TABLE, tmp_path / "page.html").read_text()).words.split())
    for name, answer in TABLE.items():
        for label, each in answer.items():
            assert f"{name}: {label}" in words
            assert f"{each.estimate:.4g}".replace("-", "−") in words
    for said in ("someone who sees this table", "Replace one record", "simulation from a seed",
                 answers.COVERED, answers.UNCOVERED):  # fmt: skip
        assert said in words
    assert rq.plot(TABLE).to_dict()["$schema"]


def test_a_picture_has_the_answers_numbers_and_none_where_nothing_is_known():
    titled = {figure.title: figure for figure in answers.figures(TABLE)}
    ages, ended, survival = (titled[name] for name in ("ages", "ended", "survival"))
    mean, fit = titled["age: mean"], titled["fit: days"]
    assert [each.estimate for each in ages.rows] == [
        each.estimate for each in TABLE["ages"].values()
    ]
    assert isinstance(ages, Intervals)
    assert ages.x is not None
    # What has another unit has an axis of its own.
    assert [len(titled[f"age: {label}"].rows) for label in TABLE["age"]] == [1] * len(TABLE["age"])
    assert all(figure.x is not None for figure in titled.values())
    assert mean.rows[0].estimate == TABLE["age"].estimate
    assert ages.x == ended.x, "counts of records are compared over one axis"
    domains = [draw_intervals(each, True)["layer"][0]["encoding"]["x"]["scale"]["domain"]
               for each in (ages, ended)]  # fmt: skip
    assert domains[0] == domains[1]
    assert domains[0][1] >= max(each.estimate for each in TABLE["ended"].values())
    assert isinstance(survival, BandedCurve)
    assert survival.places == (0.0, *TABLE["survival"].places)
    for row, each in zip(survival.rows[1:], TABLE["survival"].values(), strict=True):
        assert row.whole == (each.interval.lower, each.interval.upper)
        assert row.inner == (each.among_records.lower, each.among_records.upper)
        # How many come through day 20, the last of all, is not known: there is a band, and no line.
        assert (row.estimate is None) == math.isinf(each.noise_error) == (float(row.label) >= 20)
    assert math.isinf(TABLE["fit"]["days"].noise_error)  # days hardly vary within such bounds
    assert fit.rows[0].estimate is None
    assert fit.rows[0].text == "unknown"


def test_json_has_intervals_and_infinity_as_a_word():
    plain = json.loads(json.dumps(to_json(answers.as_json(TABLE)), allow_nan=False))
    assert plain["table"]["fit"]["days"]["interval"] == {"lower": "-inf", "upper": "inf"}
    assert plain["table"]["age"]["mean"].keys() == {
        "estimate", "interval", "among_records", "noise_error", "sampling_error",
    }  # fmt: skip
    assert (plain["records"], plain["clients"]) == (4000, 1)
    assert plain["epsilon"] == TABLE.guarantee.epsilon <= 1


@pytest.mark.parametrize(
    ("noise", "who"),
    [
        ("helper", "the helper of each sum alone"),
        ("parties", "the helper of each sum, and the server as much again"),
        ("clients", None),
    ],
)
def test_a_table_and_its_page_say_on_whom_the_noise_counts(noise, who):
    table = TABLE
    if who is not None:
        people = [{"x": k % 2} for k in range(30)]
        table = rq.statistics(people, 1.0, queries={"x": rq.Counts([0, 1])}, noise=noise, seed=1)
    page = " ".join(Page(answers.page(table)).words.split())
    for said in (page, str(table)):
        assert ("Clients add no noise" in said) == (who is not None)
        if who is not None:
            assert f"it is added by {who}" in said
            assert "nothing holds against the server if the helper leaves out its noise" in said
    assert answers.as_json(table)["noise"] == noise
