"""The certificate of a finished run claims what the run states, of what its clients were asked."""

import json

import pytest
import torch

import randquant as rq
from randquant.cli import main

CLIENTS = [(torch.eye(3).repeat(4, 1), torch.arange(12) % 2) for _ in range(12)]


def trained(tmp_path, **settings):
    return rq.train(
        torch.nn.Linear(3, 2), CLIENTS, rounds=2, cohort=6, folder=tmp_path / "run",
        progress=False, **settings,
    )  # fmt: skip


BIT = rq.VectorMechanism(rq.stochastic_rounding(0.25, 2, 2.0), 1.0, "aggregate", 6)
SETTINGS = {
    "clients": ({"mechanism": BIT, "seed": 5}, "codes", None),
    "examples": ({"epsilon": 4, "privacy": rq.Privacy(unit="example")}, "integer noise", 12),
    "numbers": ({"epsilon": 4, "privacy": rq.Privacy(numbers=["loss:0:5"])}, "integer noise", None),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_it_claims_what_the_run_states(name, tmp_path):
    settings, kind, examples = SETTINGS[name]
    run = trained(tmp_path, **settings)
    data = json.loads(text := rq.certificate_file(run, tmp_path / "run.json"))
    assert (tmp_path / "run.json").read_text() == text
    ((release,),) = data["accounts"]
    assert release["kind"] == kind
    assert release["examples"] == examples
    assert release["rounds"] == run.summary.participations
    assert release["update"]["dimension"] == 8 + (name == "numbers")
    claims = {(c["unit"], c["relation"]): float.fromhex(c["epsilon"]) for c in data["claims"]}
    for relation, guarantee in run.guarantees.items():
        assert claims[guarantee.unit, relation] == guarantee.epsilon
    assert data["simulated"] == (name == "clients")


def test_what_was_spent_before_is_refused(tmp_path):
    spent = rq.Guarantee(0.5, 1e-7, "replace_one", "aggregate", 2.0, 1)
    run = trained(tmp_path, epsilon=4, privacy=rq.Privacy(spent=spent))
    with pytest.raises(ValueError, match="nothing was spent"):
        rq.certificate_file(run)


SCRIPT = """
import torch
model = torch.nn.Linear(3, 2)
clients = [(torch.eye(3).repeat(4, 1), torch.arange(12) % 2) for _ in range(12)]
"""


@pytest.mark.slow
def test_the_command_writes_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(SCRIPT)
    words = ["train", "job.py", "--epsilon", "4", "--rounds", "2", "--certificate", "run.json"]
    assert main([*words, "--quiet"]) == 0
    assert "certificate    run.json" in capsys.readouterr().out
    assert json.loads((tmp_path / "run.json").read_text())["trust"] == "aggregate"
