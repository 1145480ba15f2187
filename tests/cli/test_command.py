"""What every command shares: how it is found, how it prints, what it says while it works."""

import runpy
import sys
from pathlib import Path

import pytest

import randquant as rq
from randquant.cli.command import all_commands


def test_every_command_is_found_by_its_file():
    commands = all_commands()
    assert list(commands) == sorted(commands)
    assert {"train", "certify", "plan"} <= commands.keys()
    assert all(f"randquant {name} " in f"{each.example} " for name, each in commands.items())
    assert {name for name, each in commands.items() if each.resumable} == {"train"}


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    line = "randquant certify pbm --clip 1 --theta 0.2 --trials 3 --json"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(Path(rq.__file__).with_name("__main__.py")), run_name="__main__")
    assert stop.value.code == 0
    assert '"epsilon"' in capsys.readouterr().out
