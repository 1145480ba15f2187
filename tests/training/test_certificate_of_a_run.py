"""The certificate of a finished run claims what the run states, of what its clients were asked."""

import json
import math

import pytest
import torch

import randquant as rq
from randquant.cli import main

CLIENTS = [(torch.eye(3).repeat(4, 1), torch.arange(12) % 2) for _ in range(12)]


def trained(tmp_path, rounds=2, **settings):
    torch.manual_seed(0)  # the same weights, to go on with a run
    return rq.train(
        torch.nn.Linear(3, 2), CLIENTS, rounds=rounds, cohort=6, folder=tmp_path / "run",
        progress=False, **settings,
    )  # fmt: skip


BIT = rq.VectorMechanism(rq.stochastic_rounding(0.25, 2, 2.0), 1.0, "aggregate", 6)
SETTINGS = {
    "clients": ({"mechanism": BIT, "seed": 5}, "codes", None),
    "examples": ({"epsilon": 4, "privacy": rq.Privacy(unit="example")}, "integer noise", 12),
    "numbers": ({"epsilon": 4, "privacy": rq.Privacy(numbers=["loss:0:5"])}, "integer noise", None),
    "parties": ({"epsilon": 20, "privacy": rq.Privacy(noise="parties")}, "party noise", None),
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


def accounted(text):
    """The only account's releases by kind, and the only claims' epsilons by relation."""
    data = json.loads(text)
    (account,) = data["accounts"]
    claims = {claim["relation"]: float.fromhex(claim["epsilon"]) for claim in data["claims"]}
    return {each["kind"]: each for each in account}, claims, data


def test_hidden_cohorts_are_certified_for_those_who_see_the_models_of_all_declared_rounds(tmp_path):
    def stop(metrics):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, mechanism=BIT, trust="model", server=rq.Server(on_round=stop))
    run = trained(tmp_path, mechanism=BIT, trust="model", rounds=1)
    releases, claims, data = accounted(rq.certificate_file(run))
    (release,) = releases.values()
    assert data["trust"] == "model"
    assert release["hidden"] == {"draw": "fixed", "rate": math.nextafter(0.5, 1).hex()}
    assert (run.summary.rounds, release["rounds"]) == (1, 2)
    assert run.beside is not None
    assert claims == {name: each.epsilon for name, each in run.guarantees.items()}


def test_what_was_spent_before_is_a_part_of_the_account(tmp_path):
    spent = rq.Guarantee(0.5, 1e-7, "replace_one", "aggregate", 2.0, 1)
    run = trained(tmp_path, epsilon=4, privacy=rq.Privacy(spent=spent))
    releases, claims, _ = accounted(rq.certificate_file(run))
    assert releases.keys() == {"codes", "spent"} or releases.keys() == {"integer noise", "spent"}
    before = releases["spent"]
    assert (before["unit"], before["relation"]) == ("client", "replace_one")
    assert [float.fromhex(before[name]) for name in ("epsilon", "delta")] == [0.5, 1e-7]
    assert run.guarantee is not None
    assert claims == {"replace_one": run.guarantee.epsilon}


def test_the_table_that_a_run_standardises_by_is_a_part_of_the_account(tmp_path):
    local = rq.Local(standardize=rq.Standardize(0, 1, share=0.5))
    run = trained(tmp_path, epsilon=20, local=local)
    releases, claims, _ = accounted(rq.certificate_file(run))
    assert releases["table"]["blocks"] == [
        {"encoding": "products", "columns": 1, "amplitude": each["amplitude"]}
        for each in releases["table"]["blocks"]
    ]
    assert len(releases["table"]["blocks"]) == 3
    assert len(releases) == 2
    assert claims == {name: each.epsilon for name, each in run.guarantees.items()}
    assert run.summary.spent is not None
    assert claims["replace_one"] > run.summary.spent.epsilon > 5


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
