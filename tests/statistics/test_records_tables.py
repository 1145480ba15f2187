"""Tables of pandas, polars and arrow themselves, with every type of column that holds records."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import randquant as rq

AGES, SEXES, SMOKES = [20, None, 60, 41], ["f", "m", None, "x"], [True, False, None, True]
QUERIES = {
    "age": rq.Mean(0, 100),
    "sex": rq.Counts(["f", "m"]),
    "smokes": rq.Counts([False, True]),
}
PEOPLE = [dict(zip(QUERIES, each, strict=True)) for each in zip(AGES, SEXES, SMOKES, strict=True)]
COLUMNS = dict(zip(QUERIES, (AGES, SEXES, SMOKES), strict=True))
MASK = np.array([False, True, False, False])

TABLES = {
    "pandas": pd.DataFrame(COLUMNS),
    "pandas, of objects": pd.DataFrame(COLUMNS, dtype=object),
    "pandas, nullable": pd.DataFrame(COLUMNS).astype(
        {"age": "Int8", "sex": "string", "smokes": "boolean"}
    ),
    "pandas, on arrow": pd.DataFrame(COLUMNS).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, categorical": pd.DataFrame(COLUMNS).astype({"sex": "category", "smokes": "category"}),
    "pandas, named rows": pd.DataFrame(COLUMNS, index=list("dbca")),
    "polars": pl.DataFrame(COLUMNS),
    "polars, categorical": pl.DataFrame(COLUMNS).with_columns(pl.col("sex").cast(pl.Categorical)),
    "arrow": pa.table(COLUMNS),
    "arrow, in chunks": pa.concat_tables([pa.Table.from_pylist(PEOPLE[:1]), pa.table(COLUMNS)[1:]]),
    "arrow, dictionary": pa.table({**COLUMNS, "sex": pa.array(SEXES).dictionary_encode()}),
    "arrow, one batch": pa.RecordBatch.from_pylist(PEOPLE),
}


def ask(clients, queries=None, unit="client"):
    table = rq.statistics(
        clients, 50, queries=queries or QUERIES, trust="central", seed=1, unit=unit
    )
    return {(name, label): each for name in table for label, each in table[name].items()}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_says_what_its_records_say(name):
    table = TABLES[name]
    assert ask(table) == ask(PEOPLE), "a client a row"
    assert ask([table], unit="example") == ask([COLUMNS], unit="example"), "one client"


DATES = [datetime.date(2026, 1, day) for day in (1, 2, 3)]
ODD = {
    "dates of pandas": pd.DataFrame({"age": pd.to_datetime(DATES)}),
    "durations of pandas": pd.DataFrame({"age": pd.to_timedelta([1, 2, 3], unit="D")}),
    "dates of polars": pl.DataFrame({"age": DATES}),
    "durations of polars": pl.DataFrame({"age": [datetime.timedelta(days=1)] * 3}),
    "dates of arrow": pa.table({"age": DATES}),
    "durations of arrow": pa.table({"age": [datetime.timedelta(days=1)] * 3}),
}


@pytest.mark.parametrize("name", ODD)
def test_dates_and_durations_are_refused_by_their_column(name):
    with pytest.raises(TypeError, match=r"^Expected numbers in column 'age', got "):
        ask(ODD[name], {"age": rq.Mean(0, 100)})
    with pytest.raises(TypeError, match=r"^Expected categories in column 'age', got "):
        ask(ODD[name], {"age": rq.Counts(["2026-01-01", 1])})


def test_a_missing_date_is_counted_as_missing():
    answers = ask(pd.DataFrame({"age": pd.to_datetime([None] * 3)}), {"age": rq.Counts(["1"])})
    assert answers["age", "other or missing"].estimate == pytest.approx(3, abs=0.5)


@pytest.mark.parametrize(
    "table",
    [
        pl.DataFrame({"age": [1, 2], "odd": [{"a": 1}, {"a": 2}]}),
        pl.DataFrame({"age": [1, 2], "odd": pl.Series([2**100, 1], dtype=pl.Int128)}),
        pa.RecordBatch.from_pylist([{"age": 1, "odd": "a"}, {"age": 2, "odd": "b"}]),
        pa.table({"age": [1, 2], "odd": [[1], [2, 3]]}),
        pd.DataFrame({"age": [1, 2], "odd": pd.period_range("2026-01", periods=2, freq="M")}),
    ],
    ids=["struct", "128 bits", "text", "list", "period"],
)
def test_columns_that_no_query_asks_for_may_be_of_any_type(table):
    answers = ask(table, {"age": rq.Mean(0, 100)})
    assert answers["age", "present"].estimate == pytest.approx(2, abs=0.5)


def test_whole_numbers_beyond_a_double_are_counted_exactly_where_a_column_keeps_them():
    big = [2**53 + 1, 5, None]
    for table in (
        pd.DataFrame({"site": pd.array(big, dtype="Int64")}),
        pl.DataFrame({"site": big}),
        pa.table({"site": big}),
    ):
        answers = ask(table, {"site": rq.Counts([2**53 + 1, 5])})
        counts = [each.estimate for each in answers.values()]
        assert counts == pytest.approx([1, 1, 1], abs=0.5)
