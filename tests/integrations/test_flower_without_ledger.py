"""A client without a file for its account: it answers in a simulation, or if its operator says so.

SuperNodes answer messages that come together in processes with copies of one state, so that a limit
holds by a file alone (`tests/rounds/test_limits_settings.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from flower_grid import WITHOUT_FILE, counted
from flower_rounds import STEPS, ask, grid_of, mover, noisy
from tests.deployments import deployment

from randquant.integrations.flower import mod
from randquant.rounds import ACCOUNT_RECORD, NO_LEDGER, Offer

OFFER = Offer(noisy("local"), 5)


def client(node_config, run_config=None, train=mover):
    grid = grid_of(nodes=[1], train=train)
    grid.contexts[1].node_config = node_config
    grid.contexts[1].run_config = run_config or {}
    return grid


def is_refused(grid, step="upload"):
    reply = ask(grid, 1, step, offer=OFFER.to_text())
    return reply.has_error() and reply.error.reason == mod.LEDGER_NEEDED


@pytest.mark.parametrize("run_config", [{}, WITHOUT_FILE, {"randquant-ledger": "/tmp/account"}])
@pytest.mark.parametrize("step", STEPS)
def test_without_a_file_each_step_is_refused_and_the_server_s_run_changes_nothing(step, run_config):
    grid = client({"partition-id": 0, "num-partitions": 9}, run_config, train=pytest.fail)
    assert is_refused(grid, step)
    assert ACCOUNT_RECORD not in grid.contexts[1].state


def test_who_has_a_file_or_does_without_is_not_refused(tmp_path, caplog):
    path = tmp_path / "account"
    reply = ask(client({"randquant-ledger": str(path)}), 1, "upload", offer=OFFER.to_text())
    assert reply.has_content()
    assert counted(path) == (1, 1)
    assert NO_LEDGER not in caplog.text
    assert ask(client(WITHOUT_FILE), 1, "upload", offer=OFFER.to_text()).has_content()
    assert NO_LEDGER in caplog.text


@pytest.mark.parametrize("name", ["", "None", "no", False])
def test_whoever_does_without_says_so_in_one_way(name, caplog):
    reply = ask(client({"randquant-ledger": name}), 1, "upload", offer=OFFER.to_text())
    assert reply.has_error()
    assert "Expected randquant-ledger to be a whole path" in caplog.text


@pytest.mark.parametrize(
    ("connected", "actor", "simulated"),
    [(True, "4f00", True), (True, None, False), (False, None, False)],
    ids=["an actor", "a train function that calls Ray", "an import of Ray"],
)
def test_a_simulation_is_an_actor_of_ray(connected, actor, simulated, monkeypatch):
    context = types.SimpleNamespace(get_actor_id=lambda: actor)
    ray = types.SimpleNamespace(
        is_initialized=lambda: connected, get_runtime_context=lambda: context
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert is_refused(client({})) is not simulated
    monkeypatch.delitem(sys.modules, "ray")
    assert is_refused(client({}))


IN_RAY = """
import ray
from tests.integrations.test_flower_without_ledger import client, is_refused

ray.init(num_cpus=1, include_dashboard=False)

@ray.remote
class Actor:
    def is_refused(self):
        return is_refused(client({}))

print("here", is_refused(client({})), "there", ray.get(Actor.remote().is_refused.remote()))
"""


@pytest.mark.slow
def test_ray_itself_tells_its_actors_from_who_calls_it():
    """In a whole simulation: tests/integrations/test_flower_template.py."""
    pytest.importorskip("ray")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", IN_RAY], cwd=root, capture_output=True, text=True, check=False,
        timeout=300, env={**os.environ, "PYTHONPATH": f"{root / 'tests'}{os.pathsep}{root}"},
    )  # fmt: skip
    assert "here True there False" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_supernode_without_a_file_is_refused_and_those_that_do_without_are_not(tmp_path):
    """Four SuperNodes: the sum is of the three whose operators do without, with a warning."""
    settings = ("num-server-rounds=1", "clip-norm=0", "learning-rate=1.5", "round-timeout=120")
    script = Path(__file__).parents[1] / "without_ledgers.py"
    printed, status = deployment(tmp_path, 4, settings=settings, script=script)
    assert status == 0, printed
    assert re.search(r"round 1: .*; 4 clients, 1 dropped", printed), printed
    assert f"to 'advertise' dropped: {mod.LEDGER_NEEDED}" in printed
    logs = [(tmp_path / f"client{number}.log").read_text() for number in range(4)]
    assert f"randquant: refused: {mod.LEDGER_NEEDED}" in logs[0]
    assert "this client's answers so far" not in logs[0]
    assert all(NO_LEDGER in log and "this client's answers so far" in log for log in logs[1:])
