"""The example app on real processes, over TLS: one of four SuperNodes is killed in mid-round."""

import json
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from flower_grid import counted
from tests.deployments import deployment

from randquant import stochastic_rounding
from randquant.rounds import ServerStore

CLIENTS, RATE, CLIP, MARGIN = 4, 1.5, 0.05, 0.02
SETTINGS = (
    "num-server-rounds=2", "round-timeout=120", "step-timeout=120",
    "clip-norm=0", f"learning-rate={RATE}", f"clip={CLIP}", f"margin={MARGIN}",
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """The script's folder, what it printed, and its exit status."""
    folder = tmp_path_factory.mktemp("deployed")
    return folder, *deployment(folder, CLIENTS, "--kill-client", "1", settings=SETTINGS)


def test_a_round_goes_on_without_the_client_that_was_killed(deployed):
    folder, printed, status = deployed
    assert status == 0, printed
    found = json.loads((folder / "results.json").read_text())
    assert list(found["rounds"]) == ["0", "1", "2"]
    assert found["rounds"]["1"]["clients"] == CLIENTS - 1
    assert found["rounds"]["1"]["dropped"] == 1
    assert found["rounds"]["2"]["clients"] == CLIENTS - 1
    nodes = re.findall(r"Client \d: process \d+, node (\d+)\.", printed)
    assert "Killed client 3 in round 1" in printed
    assert f"client {nodes[-1]}: no reply to 'upload'" in printed
    assert (folder / "client0.log").read_text().count("Receiving: train message") == 5 + 3


def test_the_sum_is_exact_without_the_killed_clients_mask(deployed):
    # A mask that is left on makes totals uniform modulo 8: 650 of them would be in their range by
    # chance less than once in 2**100 runs.
    folder, _, _ = deployed
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    lattice = stochastic_rounding(clip=CLIP, levels=2, margin=MARGIN).lattice
    assert lattice is not None
    first, step = lattice
    saved = ServerStore(folder / "server" / "server.sqlite").read().arrays
    for name, old in model.state_dict().items():
        mean = (saved[f"model/{name}"] - old.numpy()) / RATE
        totals = (mean - 2 * first) / step * (CLIENTS - 1)  # of both rounds
        assert np.abs(totals - totals.round()).max() < 1e-3
        assert totals.round().min() >= 0
        assert totals.round().max() <= 2 * (CLIENTS - 1)


def test_each_client_has_counted_what_it_sent(deployed):
    folder, _, _ = deployed
    answers = [counted(folder / f"account{client}")[0] for client in range(CLIENTS)]
    assert answers == [2, 2, 2, 0]  # the last was killed before


def test_no_process_is_left(deployed):
    folder, printed, _ = deployed
    started = {int(found) for found in re.findall(r"process (\d+)", printed)}
    assert len(started) == CLIENTS + 1
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _parent, group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it has ended
            continue
        assert state == "Z" or not started & {int(stat.parent.name), int(group)}
    for process in Path("/proc").glob("[0-9]*/environ"):  # children of children, too
        try:
            environment = process.read_bytes()
        except OSError:  # it has ended, or is another user's
            continue
        assert f"FLWR_HOME={folder}\0".encode() not in environment
    port = int(re.findall(r"127\.0\.0\.1:(\d+), TLS", printed)[0])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_private_keys_are_for_their_owner_alone(deployed):
    folder, _, _ = deployed
    private = [*folder.glob("*.key"), *folder.glob("identity*.pem")]
    assert len(private) == 2 * CLIENTS + 1
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in private)
