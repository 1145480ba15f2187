"""`randquant statistics`: a file of records and one of queries become a table, as its page says."""

import json
import re
import shlex
from pathlib import Path

import pytest
from pages import Page

from randquant import cli

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
    assert cli.main(shlex.split(LINE)) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^age: mean +5\d\.\d+ ", printed, re.MULTILINE)
    assert "4,000 records of 4 clients; epsilon <= " in printed
    assert "(replace_one example, central trust)" in printed
    assert printed.endswith("page           table.html\n")
    assert "age: mean" in Page((folder / "table.html").read_text()).words


def test_each_record_is_a_client_unless_a_column_says_whose_it_is(folder, capsys):
    base = "statistics --data patients.csv --queries queries.toml --epsilon 1 --json"
    for more, clients, records in (
        ("", 4000, 4000),
        ("--by-client hospital", 4, 4),  # one record of each is drawn
        ("--by-client hospital --unit example", 4, 4000),
    ):
        assert cli.main([*base.split(), *more.split()]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["clients"], result["records"]) == (clients, records)


def test_what_is_wrong_is_one_line(folder, capsys):
    for change, said in (
        (("queries.toml", "patients.csv"), "Expected queries"),
        (("--by-client hospital ", ""), "one record each: use unit='client'"),
        (("hospital", "hopsital"), "did you mean hospital?"),
        (("--epsilon 1", "--epsilon 0"), "Expected epsilon >"),
    ):
        assert cli.main(shlex.split(LINE.replace(*change))) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error
    (folder / "patients.csv").write_text("age,sex\nforty,f\n41,m\n")
    (folder / "queries.toml").write_text('[age]\nkind = "mean"\nlow = 18\nhigh = 100\n')
    line = "statistics --data patients.csv --queries queries.toml --epsilon 1"
    assert cli.main(shlex.split(line)) == 2
    assert "Expected numbers in column 'age', got 'forty'" in capsys.readouterr().err
