"""Records in every form that people have, and others, which are refused in one sentence."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import randquant as rq
from randquant.channels import Key
from randquant.statistics import numbers, one_of_each, read_frames

MEAN = {"age": rq.Mean(0, 100)}
COUNT = {"sex": rq.Counts(["f", "m"])}


class Frame:
    """A table as pandas has them: names of columns, and columns that become arrays."""

    def __init__(self, **columns):
        self.held = columns
        self.columns = list(columns)

    def __len__(self):
        return len(next(iter(self.held.values())))

    def __getitem__(self, name):
        return Column(self.held[name])


class Column:
    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def to_numpy(self):
        return np.array(self.values)


def ask(clients, queries=None, **more):
    """A table with so little noise that whole numbers are known."""
    settings = {"epsilon": 50, "trust": "central", "seed": 1, **more}
    return rq.statistics(clients, queries=queries or MEAN, **settings)


AGES, SEXES = [20.0, 40.0, None, 60.0], ["f", "m", "f", "x"]
FORMS = {
    "rows": ([{"age": a, "sex": s} for a, s in zip(AGES, SEXES, strict=True)], "client"),
    "named rows": (
        {f"p{k}": {"age": a, "sex": s} for k, (a, s) in enumerate(zip(AGES, SEXES, strict=True))},
        "client",
    ),
    "one table": (Frame(age=[20, 40, math.nan, 60], sex=SEXES), "client"),
    "columns": (
        [{"age": AGES[:1], "sex": SEXES[:1]}, {"age": AGES[1:], "sex": SEXES[1:]}],
        "example",
    ),
    "tables": (
        [
            Frame(age=[20.0, 40.0], sex=SEXES[:2]),
            {"age": np.array([math.nan, 60]), "sex": np.array(SEXES[2:])},
        ],
        "example",
    ),
    "masked": (
        [{"age": np.ma.array([20, 40, 10**9, 60], mask=[0, 0, 1, 0]), "sex": SEXES}],
        "example",
    ),
}


@pytest.mark.parametrize(("clients", "unit"), FORMS.values(), ids=FORMS)
def test_records_in_every_form_give_the_same_table(clients, unit):
    table = ask(clients, MEAN | COUNT, unit=unit)
    assert table.records == 4
    assert table["age"]["present"].estimate == pytest.approx(3, abs=0.5)
    assert table["age"].estimate == pytest.approx(40, abs=4)
    counts = [each.estimate for each in table["sex"].values()]
    assert counts == pytest.approx([2, 1, 1], abs=0.5)


def test_one_of_a_clients_records_is_drawn_evenly_and_none_is_a_missing_one():
    frame = {"age": np.arange(3), "sex": np.array(list("fmx"))}
    drawn = [one_of_each(frame, Key.from_seed(k)) for k in range(600)]
    counts = np.bincount([int(each["age"][0]) for each in drawn], minlength=3)
    assert abs(counts - 200).max() < 5 * math.sqrt(600 * 2 / 9)
    assert all("fmx"[int(each["age"][0])] == each["sex"][0] for each in drawn)
    table = ask([{"age": [50] * 1000}, {"age": []}, {"age": [50]}])
    assert (table.records, table.clients) == (3, 3)
    assert table["age"]["present"].estimate == pytest.approx(2, abs=0.5)


def test_values_beyond_bounds_infinite_huge_or_of_other_kinds_count_as_stated():
    values = [10**400, -(10**400), math.inf, -math.inf, 1e308, True, Fraction(1, 2), np.float32(3)]
    (frame,), single = read_frames([{"age": each} for each in values])
    rows = rq.Mean(0, 100, column="age").rows(frame)[:, 0]
    assert single
    np.testing.assert_allclose(rows, [1, -1, 1, -1, 1, -0.98, -0.99, -0.94])


def test_unknown_categories_are_counted_together_whatever_they_are():
    odd = ["f", "F", b"f", None, math.nan, 1, [1], {"f": 1}, ("f", [1]), np.str_("m")]
    (frame,), _ = read_frames([{"sex": odd}])
    assert rq.Counts(["f", "m"], column="sex").named("sex", {}).rows(frame).tolist() == [
        0, 2, 2, 2, 2, 2, 2, 2, 2, 1,
    ]  # fmt: skip


class Sheet:
    """A table that gives a column by its name, and a lazy one, which has no length."""

    columns = ("age", "age")

    def __getitem__(self, name):
        raise AssertionError


class SizedSheet(Sheet):
    def __len__(self):
        return 2


REFUSED = {
    "a name twice": (SizedSheet(), "Expected columns of different names, got 'age' more than once"),
    "a name as a number": ([{1: 3, "1": 4}] * 2, "Expected columns of different names, got '1'"),
    "a table without length": (Sheet(), "Expected a sequence or mapping of clients"),
    "text": ([{"age": "x"}], "Expected numbers in column 'age', got 'x'"),
    "complex": ([{"age": 1j}], "Expected numbers in column 'age', got 1j"),
    "a date": ([{"age": np.datetime64("2020-01-01")}], "Expected numbers in column 'age'"),
    "a list": ([{"age": [[1]]}, {"age": [1]}], "Expected numbers in column 'age', got"),
    "two sides": ([{"age": np.ones((2, 2))}, {"age": [1]}], "Expected columns of single values"),
    "no column": ([{"sex": 1}], "Expected a column 'age' for the query 'age', got sex."),
    "a client without it": ([{"age": [1]}, {"sex": [1]}], "Expected a column 'age'"),
    "no columns": ([{}, {}], "Expected records with columns, got an empty record of client 0."),
    "no columns of many": (
        [{"age": [1]}, {}],
        "Expected columns of one length, got no columns of client 1.",
    ),
    "lengths": (
        [{"age": [1, 2], "sex": [1]}],
        "Expected columns of one length, got 1, 2 of client 0.",
    ),
    "a word among columns": (
        [{"age": [1, 2, 3, 4], "sex": "male"}],
        "Expected columns of one length",
    ),
    "other columns": (
        [{"age": 1}, {"age": 1, "sex": 2}],
        "Expected every record to have the columns",
    ),
    "nobody": ([], r"Expected at least one client, got \[\]."),
    "a generator": (({"age": 1} for _ in range(3)), "Expected a sequence or mapping of clients"),
    "columns of all": ({"age": [1, 2]}, "Expected a sequence or mapping of clients.*into a list"),
    "numbers": ([1, 2], "Expected a sequence or mapping of clients.*got 1 of client 0"),
    "bytes": (b"age", "Expected a sequence or mapping of clients"),
    "fields": (
        np.array([(1,)], dtype=[("age", float)]),
        "Expected a sequence or mapping of clients",
    ),
}


@pytest.mark.parametrize(("clients", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_record_is_refused_in_one_sentence(clients, sentence):
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        ask(clients, unit="client")


EVENTS = {"s": rq.KaplanMeier("days", "event", until=10, bins=5)}


def test_events_are_zero_or_one_and_times_are_kept_within_the_curve():
    days = [-5.0, 0.0, 2.0, 2.0, 10.0, 10.0, math.inf, math.nan, 3.0]
    event = [1, 0, True, 0, 1, 0, 1, 1, None]
    (frame,), _ = read_frames([{"days": days, "event": event}])
    # Events at time zero and in 255 steps, losses likewise (or seen until the end), missing.
    cells = [0, 256, 51, 256 + 51, 255, 256 + 255, 256 + 255, 512, 512]
    assert EVENTS["s"].rows(frame).tolist() == cells
    with pytest.raises(ValueError, match=r"^Expected 0 or 1 in column 'event', got 2"):
        ask([{"days": 1, "event": 2}], EVENTS)


def test_one_client_is_not_hidden_by_a_sum():
    with pytest.raises(ValueError, match=r"^Expected at least 2 clients under aggregate trust"):
        ask([{"age": [1, 2]}], trust="aggregate", unit="example")
    with pytest.raises(ValueError, match=r"^Expected at least 2 clients under aggregate trust"):
        ask([{"age": 1}], trust="aggregate")
    assert ask([{"age": 1}]).records == 1
    none = ask([{"age": []}], unit="example")
    assert none.records == 0
    assert none["age"].interval == none["age"]["mean"].among_records
    assert (none["age"].interval.lower, none["age"].interval.upper) == (0, 100)


def test_rows_of_one_table_are_clients():
    with pytest.raises(ValueError, match=r"^Expected clients with columns of many records"):
        ask(FORMS["rows"][0], unit="example")


BIG = 2**53 + 1
COUNTS = rq.Counts([BIG, 5, "five", True])
ODD_VALUES = [
    math.nan, 0.5, 2**63, 10**400, None, "", "x", b"x", True, Decimal("5.5"), [1], {},
    np.datetime64("NaT"), np.float32(5), np.array(5),
]  # fmt: skip


class Lists(Frame):
    """A table whose columns become lists, as those of arrow and polars."""

    def __getitem__(self, name):
        return type("Listed", (Column,), {"to_list": lambda self: list(self.values)})(
            self.held[name]
        )


@pytest.mark.parametrize("odd", ODD_VALUES, ids=repr)
@pytest.mark.parametrize(
    "form",
    [
        lambda values: [{"site": each} for each in values],
        lambda values: {k: {"site": each} for k, each in enumerate(values)},
        lambda values: [{"site": list(values)}],
        lambda values: [{"site": np.array([*values, None], dtype=object)[:-1]}],
        lambda values: [Lists(site=values)],
        lambda values: Lists(site=values),
    ],
)
def test_one_record_does_not_change_how_another_is_read(form, odd):
    """A type that a whole column shares would change with one value: 2**53 + 1 is no float."""
    usual = [BIG, 5, "five", True, 1, 5.0, BIG - 1, "true", np.True_, np.False_]
    counts = COUNTS.named("site", {})
    frames, _ = read_frames(form([odd, *usual]))
    assert [row for each in frames for row in counts.rows(each)][1:] == [
        0, 1, 2, 3, 4, 1, 4, 4, 3, 4,
    ]  # fmt: skip
    if not isinstance(odd, str | bytes | list | tuple | dict):
        frames, _ = read_frames(form([odd, 7, True, Fraction(1, 3), BIG]))
        read = [each for frame in frames for each in numbers(frame["site"], "site")]
        assert read[1:] == [7, 1, 1 / 3, BIG - 1]


def test_a_count_of_large_whole_numbers_is_exact_whatever_one_person_says():
    for odd in (math.nan, 0.5, 2**63):
        people = [{"site": BIG}] * 999 + [{"site": odd}]
        table = ask(people, {"site": rq.Counts([BIG, 5])})
        assert table["site"][str(BIG)].estimate == pytest.approx(999, abs=0.5)


@pytest.mark.parametrize("unit", ["ns", "us", "s", "D", "M", "Y"])
@pytest.mark.parametrize("kind", ["timedelta64", "datetime64"])
def test_dates_and_durations_are_refused_by_their_column(kind, unit):
    """As numbers they would count nanoseconds; those that are none are missing."""
    values = np.array([3, "NaT"], dtype=f"{kind}[{unit}]")
    masked = np.ma.array(values, mask=[False, True])
    for column in (values, list(values), masked, [np.array(values[0])]):
        with pytest.raises(TypeError, match=r"^Expected numbers in column 'age', got .* days"):
            ask([{"age": column}], unit="example")
        with pytest.raises(TypeError, match=r"^Expected categories in column 'sex', got"):
            ask([{"sex": column}], {"sex": rq.Counts([3])}, unit="example")
    none = ask([{"age": values[1:], "sex": values[1:]}], MEAN | COUNT, unit="example")
    assert none["age"]["present"].estimate == pytest.approx(0, abs=0.5)


class NAType:
    """As pandas' mark of a missing value: it is no number, and equal to nothing."""

    def __bool__(self):
        raise TypeError


def test_marks_of_missing_values_and_numbers_without_dimension_are_read():
    people = [{"age": age} for age in (NAType(), np.array(40), torch.tensor(40.0), np.float32(40))]
    frames, single = read_frames(people)
    assert single
    found = numbers(frames[0]["age"], "age")
    assert np.isnan(found[0])
    assert found[1:].tolist() == [40, 40, 40]
    assert rq.Counts(np.unique([3, 4])) == rq.Counts([3, 4])


def test_a_deviation_of_no_more_than_the_noise_has_an_error_within_its_bounds():
    """Of values that are all alike noise leaves a variance of 0 in half of all tables."""
    same = [{"age": 50.0}] * 100
    tables = [rq.statistics(same, 1, queries={"age": rq.Mean(0, 100)}, seed=k) for k in range(20)]
    deviations = [table["age"]["deviation"] for table in tables]
    assert min(each.estimate for each in deviations) == 0  # or it is an accident of 1e-6
    assert max(each.noise_error for each in deviations) < 100
