"""Files of records and queries: what is read is what was written, and all else is one sentence."""

import json
import math
import re

import numpy as np
import pytest

import randquant as rq
from randquant.statistics import KINDS, by_client, numbers, read_queries, read_records

COMPLETE = """
[age]
kind = "mean"
low = 18
high = 100
weight = 2
[sex]
kind = "counts"
of = ["f", "m", "1"]
by = { ward = [1, "2"] }
[bmi]
kind = "quantiles"
low = 10
high = 70
[curve]
kind = "kaplan-meier"
time = "days"
event = "died"
until = 100
[arms]
kind = "log-rank"
time = "days"
event = "died"
by = "arm"
groups = ["a", "b"]
until = 100
[pair]
kind = "covariance"
columns = { age = [18, 100], bmi = [10, 70] }
[fit]
kind = "linear-regression"
target = { bmi = [10, 70] }
features = { age = [18, 100] }
"""


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_kind_of_query_is_read_as_if_it_were_called(tmp_path):
    queries, weights = read_queries(written(tmp_path, "q.toml", COMPLETE))
    assert weights == {"age": 2}
    assert queries == {
        "age": rq.Mean(18, 100),
        "sex": rq.Counts(["f", "m", "1"], by={"ward": ["1", "2"]}),
        "bmi": rq.Quantiles(10, 70),
        "curve": rq.KaplanMeier("days", "died", 100),
        "arms": rq.LogRank("days", "died", "arm", ["a", "b"], 100),
        "pair": rq.Covariance({"age": (18, 100), "bmi": (10, 70)}),
        "fit": rq.LinearRegression({"bmi": (10, 70)}, {"age": (18, 100)}),
    }
    assert {type(each) for each in queries.values()} == set(KINDS.values())


REFUSED = {
    "age = 3": "Expected queries as tables of TOML.* got age = 3",
    "[age": "Expected queries as tables of TOML.* got: ",
    "": "Expected queries as tables of TOML.* got an empty file",
    "[age]\nlow = 3": r"Expected kind to be one of mean, .*got None",
    '[age]\nkind = "maen"': "did you mean mean",
    '[age]\nkind = "mean"\nlow = 1': "Query 'age': Expected a value for high of mean, got none",
    '[age]\nkind = "mean"\nlow = 1\nhihg = 2': "did you mean high",
    '[age]\nkind = "mean"\nlow = 3\nhigh = 2': "Query 'age': Expected a mean's upper bound > 3",
    '[age]\nkind = "counts"\nof = [1, "1"]': "got 2 of which 1 differ",
}


@pytest.mark.parametrize("text", REFUSED)
def test_wrong_queries_are_one_sentence_that_names_them(text, tmp_path):
    with pytest.raises((ValueError, TypeError), match=f"(?s){REFUSED[text]}") as caught:
        read_queries(written(tmp_path, "q.toml", text))
    assert re.match("(Query 'age': )?Expected ", str(caught.value))


CSV = '\ufeffname,age,sex,ok\n"a, b",40,f,true\nc,,1,\n\nd,1e400,m\n'
LINES = """
{"name": "a, b", "age": 40, "sex": "f", "ok": true}
{"name": "c", "age": null, "sex": "1"}
{"name": "d", "age": 1e400, "sex": "m", "ok": ""}
"""


@pytest.mark.parametrize(("name", "text"), [("r.csv", CSV), ("r.jsonl", LINES)])
def test_both_kinds_of_files_give_the_same_records(name, text, tmp_path):
    assert read_records(written(tmp_path, name, text)) == [
        {"name": "a, b", "age": "40", "sex": "f", "ok": "true"},
        {"name": "c", "age": None, "sex": "1", "ok": None},
        {"name": "d", "age": "1e400", "sex": "m", "ok": None},
    ]


WRONG = {
    "": "Expected records in .*, got 0 characters",
    "a,b\n": "Expected records in .*, got 4 characters without one",
    "a,a\n1,2\n": "different names of columns .* got 'a', 'a'",
    "a,b\n1,2,3\n": "Expected 2 cells in line 2 of .*, got 3",
    'a,b\n"1,2\n': "Expected CSV in ",
}


@pytest.mark.parametrize("text", WRONG)
def test_no_table_is_one_sentence(text, tmp_path):
    with pytest.raises(ValueError, match=WRONG[text]):
        read_records(written(tmp_path, "r.csv", text))


@pytest.mark.parametrize("line", ["[1]", "{", '{"a": [1]}', '{"a": {"b": 1}}', "[" * 10**5])
def test_a_line_that_is_no_record_is_named(line, tmp_path):
    with pytest.raises(ValueError, match="Expected an object of single values in line 2 of "):
        read_records(written(tmp_path, "r.jsonl", '{"a": 1}\n' + line))


@pytest.mark.parametrize(("name", "text"), [
    ("r.csv", "id,age,sex\n1\n2,40\n3,50,f\n"),
    ("r.jsonl", '{"id": 1}\n{"id": 2, "age": 40}\n{"id": 3, "sex": "f", "age": 50}\n'),
])  # fmt: skip
def test_columns_that_the_first_record_lacks_are_those_of_all(tmp_path, name, text):
    assert read_records(written(tmp_path, name, text)) == [
        {"id": "1", "age": None, "sex": None}, {"id": "2", "age": "40", "sex": None},
        {"id": "3", "age": "50", "sex": "f"},
    ]  # fmt: skip


def test_one_record_does_not_change_what_another_becomes(tmp_path):
    """A column's kind never depends on all its cells: replacing one person moves one person."""
    plain = read_records(written(tmp_path, "a.csv", "x\n1\n2\n"))
    other = read_records(written(tmp_path, "b.csv", "x\n1\nword\n"))
    assert plain[0] == other[0] == {"x": "1"}
    counts = rq.Counts(["1"]).named("x", {})
    for records in (plain, other):
        cells = np.array([each["x"] for each in records], dtype=object)
        assert counts.rows({"x": cells})[0] == 0


@pytest.mark.parametrize("note", ["well", "x, y, z, or w", "|" * 9])
def test_the_separator_of_cells_is_that_of_the_names_whatever_a_cell_says(note, tmp_path):
    records = read_records(written(tmp_path, "a.csv", f"id;note\n1;well\n2;{note}\n"))
    assert records == [{"id": "1", "note": "well"}, {"id": "2", "note": note}]


def test_records_of_a_client_are_those_with_its_name():
    records = [{"at": "a", "x": "1"}, {"at": "2", "x": None}, {"at": "a", "x": "3"}]
    assert by_client(records, "at") == {
        "a": {"at": ["a", "a"], "x": ["1", "3"]}, "2": {"at": ["2"], "x": [None]},
    }  # fmt: skip
    with pytest.raises(ValueError, match="did you mean at"):
        by_client(records, "att")
    with pytest.raises(ValueError, match="Expected a client in 'at' of record 2, got no value"):
        by_client([records[0], {"at": None, "x": 1}], "at")


IDS = ["12e45678", "12e45679", "0e345678", "0e999999", "007", "7", "7.0", "1E30", "true", "nan"]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_are_texts_and_no_two_people_become_one_client(kind, tmp_path):
    rows = {"csv": "id,x\n" + "".join(f"{each},1\n" for each in IDS),
            "jsonl": "\n".join(json.dumps({"id": each, "x": 1}) for each in IDS)}  # fmt: skip
    clients = by_client(read_records(written(tmp_path, f"r.{kind}", rows[kind])), "id")
    assert list(clients) == IDS
    codes = rq.Counts(["1E30", "007", "nan"]).named("id", {})
    cells = np.array(IDS, dtype=object)
    assert codes.rows({"id": cells}).tolist() == [3, 3, 3, 3, 1, 3, 3, 0, 3, 2]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_words_for_missing_values_truth_values_and_other_delimiters(delimiter, tmp_path):
    text = "a,b\n NA ,true\n?,False\nnull,1\nn/a,0\nNaN,\n1.5,TRUE\n".replace(",", delimiter)
    records = read_records(written(tmp_path, "r.csv", text))
    a, b = (np.array([each[name] for each in records], dtype=object) for name in "ab")
    np.testing.assert_equal(numbers(a, "a"), [math.nan] * 5 + [1.5])
    np.testing.assert_equal(numbers(b, "b"), [1, 0, 1, 0, math.nan, 1])


def test_other_ends_of_lines_are_part_of_a_text(tmp_path):
    text = '{"a": "x\u2028y"}\n{"a": "x\x85y"}\r\n'
    records = read_records(written(tmp_path, "r.jsonl", text))
    assert [each["a"] for each in records] == ["x\u2028y", "x\x85y"]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path):
    for read in (read_queries, read_records):
        with pytest.raises(FileNotFoundError, match=r"^Expected .*got no such file"):
            read(tmp_path / "none.csv")
