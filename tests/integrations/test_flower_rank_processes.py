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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """The script's folder, what it printed, and what it measured."""
    folder = tmp_path_factory.mktemp("ranks")
    printed, status = deployment(folder, CLIENTS, "--epsilon", "8", settings=SETTINGS)
    assert status == 0, printed
    return folder, printed, json.loads((folder / "results.json").read_text())


def test_clients_take_turns_until_all_have_answered(deployed):
    _, _, found = deployed
    rounds = found["rounds"]
    clients = {number: (row.get("clients"), row.get("dropped")) for number, row in rounds.items()}
    assert clients["1"] == clients["2"] == (2, 0)
    assert clients.get("3", (None, None)) == (None, None)
    assert "before round 3: epsilon of 4 clients would have exceeded 8.0" in found["stopped"]


def test_the_guarantee_is_that_of_one_index(deployed):
    _, printed, found = deployed
    release = RankMechanism(0.5, 7.99).release(DIMENSION, 1)
    assert found["epsilon"] == account([release], DELTA).epsilon < 8
    assert f"\n{found['guarantee']}\n" in printed


def test_an_update_is_two_bytes(deployed):
    _, _, found = deployed
    sent = [found["rounds"][number] for number in ("1", "2")]
    assert [(row["upload_bytes"], row["plain_bytes"]) for row in sent] == [(2, 2)] * 2


def test_each_client_has_counted_its_one_answer(deployed):
    folder, _, _ = deployed
    for client in range(CLIENTS):
        answers, epsilon = spent(folder / f"account{client}")
        assert answers == 1
        assert epsilon < 8
