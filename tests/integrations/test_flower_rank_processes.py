"""The example app under local trust on real processes: clients take turns, each sends one index."""

import json

import pytest
from flower_grid import spent
from tests.deployments import deployment

from randquant.aggregation import RankMechanism
from randquant.privacy.accounting.accountant import account

CLIENTS, DIMENSION, DELTA = 4, 650, 1e-5
SETTINGS = (
    "num-server-rounds=3", "round-timeout=120", "step-timeout=120", "mechanism=rank",
    "trust=local", "cohort=2", "fraction-train=0.5", "stop-at-epsilon=8.0", "clip-norm=0.5",
)  # fmt: skip


@pytest.mark.slow
def test_clients_take_turns_until_each_has_sent_its_one_index(tmp_path):
    printed, status = deployment(tmp_path, CLIENTS, "--epsilon", "8", settings=SETTINGS)
    assert status == 0, printed
    found = json.loads((tmp_path / "results.json").read_text())
    for number in ("1", "2"):
        row = found["rounds"][number]
        assert (row["clients"], row["dropped"]) == (2, 0)
        assert (row["upload_bytes"], row["plain_bytes"]) == (2, 2)
    assert "clients" not in found["rounds"].get("3", {})
    assert "before round 3: epsilon of 4 clients would have exceeded 8.0" in found["stopped"]
    release = RankMechanism(0.5, 7.99).release(DIMENSION, 1)
    assert found["epsilon"] == account([release], DELTA).epsilon < 8
    assert f"\n{found['guarantee']}\n" in printed
    for client in range(CLIENTS):
        answers, epsilon = spent(tmp_path / f"account{client}")
        assert answers == 1
        assert epsilon < 8
