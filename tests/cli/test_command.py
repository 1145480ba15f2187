"""What every command shares: how it is found, how it prints, what it says while it works."""

import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import randquant as rq
from randquant import cli
from randquant.cli.command import Output, all_commands, written_page


def test_every_command_is_found_by_its_file():
    commands = all_commands()
    assert list(commands) == sorted(commands)
    assert {"train", "certify", "plan"} <= commands.keys()
    assert all(f"randquant {name} " in f"{each.example} " for name, each in commands.items())
    assert {name for name, each in commands.items() if each.resumable} == {"train"}


def test_an_output_is_lines_or_one_strict_object():
    output = Output({"epsilon": float("inf")}, ["a", "b"])
    assert output.text(as_json=False) == "a\nb"
    assert output.text(as_json=True) == '{"epsilon": "inf"}'


def test_a_page_is_written_where_one_was_asked_for(tmp_path):
    assert written_page(None, lambda: pytest.fail("not asked for")) == []
    path = tmp_path / "page.html"
    assert written_page(str(path), lambda: "<p>é")[-1].endswith("page.html")
    assert path.read_text(encoding="utf-8") == "<p>é"


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    line = "randquant certify pbm --clip 1 --theta 0.2 --trials 3 --json"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(Path(rq.__file__).with_name("__main__.py")), run_name="__main__")
    assert stop.value.code == 0
    assert '"epsilon"' in capsys.readouterr().out


RQM = "rqm --clip 1.5 --margin 1.5 --levels 4 --keep 0.42"
LINES = [
    f"certify {RQM}",
    f"certify {RQM} --order 2 --clients 2",
    f"account {RQM} --dimension 5 --rounds 1",
    f"audit {RQM} --audit-trials 100",
    "design --clip 1 --values -3,3 --epsilon 1",
    "compare --channel 'pbm clip=1 theta=0.2 trials=3' --channel 'pbm clip=1 theta=0.1 trials=3'",
    "plan --dimension 64 --population 9 --cohort 9 --rounds 2 --epsilon 8 --mechanisms gaussian",
]
"""Of every command that needs no run or files; the others have tests of their own."""


@pytest.mark.parametrize("line", LINES)
def test_every_command_prints_exactly_one_object(line, capsys):
    assert cli.main([*shlex.split(line), "--json"]) == 0
    output = capsys.readouterr()
    assert output.out.count("\n") == 1
    assert isinstance(json.loads(output.out), dict)
    assert output.err == ""


def test_every_command_is_asked_for_its_object():
    tried = {line.split()[0] for line in LINES}
    assert tried | {"train", "runs", "report", "helper", "statistics"} == set(all_commands())
