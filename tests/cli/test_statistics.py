"""`randquant statistics`: a file of records and one of queries become a table, as its page says."""

import re
import shlex
from pathlib import Path

import pytest
from command_line import as_json, printed, refused
from pages import Page

PAGE = (Path(__file__).parents[2] / "docs" / "statistics.md").read_text()
[LINE] = re.findall(r"```sh\nrandquant (statistics .*)\n```", PAGE)
[QUERIES] = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the page's command names: 4,000 patients of four hospitals."""
    monkeypatch.chdir(tmp_path)
    rows = [f"h{k % 4},{18 + k % 70},{'fm'[k % 2]},{k % 900},{k % 3 // 2}" for k in range(4000)]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,sex,days,died", *rows]))
    (tmp_path / "queries.toml").write_text(QUERIES)
    return tmp_path


def test_the_command_of_the_page_prints_a_table_and_writes_its_page(folder, capsys):
    text = printed(capsys, shlex.split(LINE))
    assert re.search(r"^age: mean +5\d\.\d+ ", text, re.MULTILINE)
    assert "4,000 records of 4 clients; epsilon <= " in text
    assert "(replace_one example, central trust)" in text
    assert text.endswith("page           table.html\n")
    assert "age: mean" in Page((folder / "table.html").read_text()).words


def test_each_record_is_a_client_unless_a_column_says_whose_it_is(folder, capsys):
    base = "statistics --data patients.csv --queries queries.toml --epsilon 1"
    for more, clients, records in (
        ("", 4000, 4000),
        ("--by-client hospital", 4, 4),  # one record of each is drawn
        ("--by-client hospital --unit example", 4, 4000),
    ):
        result = as_json(capsys, f"{base} {more}")
        assert (result["clients"], result["records"]) == (clients, records)


def test_what_is_wrong_is_one_line(folder, capsys):
    for change, said in (
        (("queries.toml", "patients.csv"), "Expected queries"),
        (("--by-client hospital ", ""), "one record each: use unit='client'"),
        (("hospital", "hopsital"), "did you mean hospital?"),
        (("--epsilon 1", "--epsilon 0"), "Expected epsilon >"),
    ):
        assert said in refused(capsys, shlex.split(LINE.replace(*change)))
    (folder / "patients.csv").write_text("age,sex\nforty,f\n41,m\n")
    (folder / "queries.toml").write_text('[age]\nkind = "mean"\nlow = 18\nhigh = 100\n')
    line = "statistics --data patients.csv --queries queries.toml --epsilon 1"
    assert "Expected numbers in column 'age', got 'forty'" in refused(capsys, line)


def test_a_certificate_that_is_refused_leaves_no_answers_behind(folder, capsys, monkeypatch):
    monkeypatch.setattr("randquant.rounds.statement.LARGEST_FILE", 10)
    line = f"{LINE} --trust aggregate --noise helper --certificate table.json"
    assert "Expected a certificate of at most 10 bytes" in refused(capsys, shlex.split(line))
    assert not (folder / "table.html").exists()
    assert not (folder / "table.json").exists()
