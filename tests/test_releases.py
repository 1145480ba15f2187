"""Files that a release wrote are read by today's code, and say what they said.

A git checkout has them readable by all, and without the locks beside them: each test has a copy.
"""

import json
import shutil
from pathlib import Path

import flower_grid
import flower_rounds
import helper_sums
import numpy as np
import pytest
from releases import write

import randquant as rq
from randquant.aggregation import VectorMechanism
from randquant.cli import main
from randquant.rounds import Offer, ServerStore
from randquant.secure_sums import HelperTerms
from randquant.training import read_run

RELEASES = sorted(path for path in Path(write.HERE).iterdir() if (path / "figures.json").exists())
FILES = {
    "account.sqlite", "channel.json", "figures.json", "helper-terms.json", "helper.sqlite",
    "mechanism.json", "offer.json", "payload-2.bin", "payload-3.bin", "payload-4.bin",
    "run.sqlite", "server.sqlite", "skellam.json", "survey.json",
}  # fmt: skip


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request, tmp_path):
    for path in request.param.iterdir():
        shutil.copyfile(path, tmp_path / path.name)
        (tmp_path / path.name).chmod(0o600)
    return tmp_path


def figures(release, name):
    return json.loads((release / "figures.json").read_text())[name]


def test_a_release_has_every_file_and_they_are_small():
    assert "0.1.0" in {path.name for path in RELEASES}
    for place in RELEASES:
        assert {path.name for path in place.iterdir()} >= FILES
        assert all(path.stat().st_size <= 25_000 for path in place.iterdir())


def test_a_run_is_read_and_listed_and_not_trained_again(release, capsys):
    expected = figures(release, "run")
    stored = read_run(release)
    assert len(stored.metrics) == 3
    assert [row.train_loss for row in stored.metrics] == pytest.approx(expected["loss"])
    assert main(["runs", str(release), "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert listed["state"] == "finished"
    assert listed["guarantee"]["epsilon"] == pytest.approx(expected["epsilon"])
    run = write.trained(release)
    assert run.guarantee.epsilon == pytest.approx(expected["epsilon"])
    assert [row.train_loss for row in run.history] == [row.train_loss for row in stored.metrics]


def test_a_server_goes_on_with_its_run(release):
    """From the stored model: the round is the third, and costs what three do."""
    expected = figures(release, "engine")
    stored = ServerStore(release / "server.sqlite").read()
    (weights,) = stored.arrays.values()
    assert weights.tolist() == expected["weights"]
    assert len(stored.history) == 2
    grid = flower_rounds.grid_of(nodes=range(1, 4))
    after, _, strategy = flower_rounds.one_round(
        write.AGGREGATE, grid=grid, folder=release, rounds=3, delta=1e-5
    )
    assert flower_rounds.rounds_of(grid) == 1
    assert after.tolist() != expected["weights"]
    three = rq.account([write.AGGREGATE.release(5, rounds=3)], delta=1e-5)
    spent = strategy.accountant.get_privacy_spent()
    assert expected["server"] < spent.epsilon == pytest.approx(three.epsilon)


def test_a_client_counts_on_from_its_account(release):
    expected = figures(release, "engine")
    answers, epsilon = flower_grid.spent(release / "account.sqlite")
    assert answers == expected["answers"] == 2
    two = rq.account([write.AGGREGATE.release(5, rounds=2)], delta=1e-5)
    # What was proven then holds; less may be proven since.
    assert epsilon == pytest.approx(two.epsilon)
    assert 0.8 * expected["client"] < epsilon <= expected["client"]


def test_a_helper_knows_the_sums_of_its_clients(release, capsys):
    expected = figures(release, "helper")["sums"]
    assert main(["helper", "status", str(release), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["clients"], status["most_sums"]) == (len(expected), 1)
    helper = helper_sums.helper_in(release)
    assert {str(client): count for client, count in helper.sums.items()} == expected
    text = (release / "helper-terms.json").read_text()
    assert HelperTerms.from_text(text).to_text() == text


@pytest.mark.parametrize("name", ["mechanism", "skellam", "survey"])
def test_a_mechanism_is_read_and_costs_what_it_did(name, release):
    mechanism = rq.load(release / f"{name}.json")
    assert write.epsilon(mechanism) == pytest.approx(figures(release, "values")[name])


def test_a_channel_is_read_and_certified_as_it_was(release):
    channel, certificate = rq.load_channel(release / "channel.json")
    assert channel == rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
    assert certificate.epsilon.upper == pytest.approx(figures(release, "values")["channel"])


def test_an_offer_is_read_as_it_was_meant(release):
    offer = Offer.from_text((release / "offer.json").read_text())
    assert offer == Offer(write.AGGREGATE, 10, scaled=True)
    assert isinstance(offer.mechanism, VectorMechanism)


@pytest.mark.parametrize("name", write.PAYLOADS)
def test_a_payload_of_each_version_is_decoded(name, release):
    mechanism, dimension = write.PAYLOADS[name]
    payload = (release / f"{name}.bin").read_bytes()
    assert payload[4] == int(name[-1])
    mean = mechanism.mean([payload], dimension)
    assert np.array_equal(mean, figures(release, "values")[name])
    assert mechanism.encode(write.update(dimension), rq.Key.from_seed(4)) != payload
