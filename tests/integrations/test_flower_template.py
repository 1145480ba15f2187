"""The template of an app, run by `flwr run` as its README says, on simulated clients."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pages import Page

EXAMPLES = Path(__file__).parents[2] / "examples"
TEMPLATE, HOSPITALS = EXAMPLES / "flower_template", EXAMPLES / "flower_hospitals"
CLIENTS = 5
ROUND = r"round (\d): ε ≤ ([\d.]+) \(<= [\d.]+ under zero_out\)"
"""A round's line of the log, with its epsilon under both relations."""
SLOW = "Failed to start local SuperLink"
"""Flower gives its SuperLink 15 seconds, which a busy machine may exceed."""


def _end(home):
    """End the SuperLink that `flwr run` leaves behind, which has our FLWR_HOME."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if f"FLWR_HOME={home}\0".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGTERM)


def flwr_run(source, home, settings, nodes):
    """What `flwr run` of a copy of an example prints, with its simulated clients."""
    shutil.copytree(source, home / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (home / "flwr").mkdir()
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home / "flwr"), "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }  # fmt: skip
    command = ["flwr", "run", ".", "local", "--stream", "--run-config", settings,
               "--federation-config", f"num-supernodes={nodes}"]  # fmt: skip
    printed = SLOW
    for _ in range(3):
        if SLOW not in printed:
            break
        try:
            run = subprocess.run(command, cwd=home / "app", env=environment, capture_output=True,
                                 text=True, timeout=400)  # fmt: skip
        finally:
            _end(home / "flwr")
        printed = run.stdout + run.stderr
    return printed


@pytest.mark.slow
def test_every_round_is_in_the_log_and_on_the_page(tmp_path):
    home = tmp_path
    settings = f'folder="{home / "run"}" num-server-rounds=2 clients=5 cohort=5 dropouts=1'
    printed = flwr_run(TEMPLATE, home, settings, CLIENTS)
    lines = re.findall(rf"{ROUND}; 5 clients, 0 dropped; a client sent", printed)
    assert [number for number, _ in lines] == ["1", "2"], printed
    assert 7.5 < float(lines[1][1]) <= 8.0
    page = Page((home / "run" / "report.html").read_text()).words
    assert "2 rounds, 0 failed" in page
    assert "accuracy, measured by the server" in page


@pytest.mark.slow
def test_four_hospitals_have_a_guarantee_for_a_patient_on_flower(tmp_path):
    data = tmp_path / "data"
    subprocess.run([sys.executable, str(HOSPITALS / "sites.py"), str(data)], check=True)
    settings = f'data="{data}" folder="{tmp_path / "run"}" num-server-rounds=2'
    printed = flwr_run(HOSPITALS, tmp_path, settings, 4)
    lines = re.findall(rf"{ROUND}; 4 clients, 0 dropped", printed)
    assert [number for number, _ in lines] == ["1", "2"], printed
    assert 1.9 < float(lines[1][1]) <= 2.0
    assert "this client's answers so far: one example: epsilon <= " in printed
    assert (tmp_path / "run" / "report.html").is_file()
