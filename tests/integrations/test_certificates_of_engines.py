"""Engines write the certificate of their account where training ends."""

import json
import math

import pytest
from flower_rounds import model, noisy, one_round
from helper_sums import IDENTITY
from nvflare_job import SITES, Server

import randquant as rq
from randquant.aggregation import HelperNoise
from randquant.flower import QuantizeMod, WithHelper
from randquant.integrations import QuantizeFilter
from randquant.rounds import draw_noise
from randquant.secure_sums import Helper


def claimed(text):
    data = json.loads(text)
    (account,) = data["accounts"]
    return account[0]["rounds"], float.fromhex(data["claims"][0]["epsilon"])


def test_flower_writes_what_its_log_states(tmp_path):
    _, _, strategy = one_round(noisy("local"), folder=tmp_path, rounds=2)
    text = (tmp_path / "certificate.json").read_text()
    assert text == rq.certificate_file(strategy.accountant)
    assert claimed(text) == (2, strategy.accountant.get_privacy_spent().epsilon)


@pytest.mark.parametrize("server_noise", [False, True])
def test_flower_states_who_adds_the_noise(server_noise, tmp_path):
    mechanism = HelperNoise(64.0, 4.0, clients=5, server_noise=server_noise)
    helper = Helper(tmp_path / "helper", IDENTITY, draw_noise=draw_noise)
    pinned = QuantizeMod(epsilon=math.inf, helper=IDENTITY.public_key().public_bytes_raw().hex())
    _, _, strategy = one_round(
        mechanism, mod=pinned, sums=WithHelper(helper), folder=tmp_path, arrays=model(64)
    )
    text = (tmp_path / "certificate.json").read_text()
    assert text == rq.certificate_file(strategy.accountant)
    ((release,),) = json.loads(text)["accounts"]
    assert release["parties"] == ["helper", "server"][: 1 + server_noise]
    assert claimed(text) == (1, strategy.accountant.get_privacy_spent().epsilon)


def test_nvflare_states_who_adds_the_noise(tmp_path):
    mechanism = HelperNoise(1.0, 4.0, clients=len(SITES))
    helper = Helper(tmp_path / "helper", IDENTITY, draw_noise=draw_noise)
    server = Server(tmp_path, mechanism=mechanism, sums=WithHelper(helper), rounds=1)
    pinned = IDENTITY.public_key().public_bytes_raw().hex()
    server.filters = {
        site: QuantizeFilter(1e9, str(tmp_path / "sites"), helper=pinned, clip_norm=1.0)
        for site in SITES
    }
    account = server.run().controller._run.accountant
    text = (tmp_path / "server" / "certificate.json").read_text()
    assert text == rq.certificate_file(account)
    assert json.loads(text)["accounts"][0][0]["parties"] == ["helper", "server"]


@pytest.mark.parametrize("examples", [None, 120])
def test_nvflare_writes_what_its_log_states(examples, tmp_path):
    server = Server(tmp_path, rounds=1, learning_rate=1.0, examples=examples)
    account = server.run().controller._run.accountant
    text = (tmp_path / "server" / "certificate.json").read_text()
    assert text == rq.certificate_file(account)
    units = {claim["unit"] for claim in json.loads(text)["claims"]}
    assert units == ({"client"} if examples is None else {"client", "example"})
    whole = account.client_guarantee() if examples else account.get_privacy_spent()
    assert claimed(text) == (1, whole.epsilon)


def test_a_certificate_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "server").mkdir(mode=0o700)
    (tmp_path / "server" / "certificate.json").mkdir()
    server = Server(tmp_path, rounds=1).run()
    assert len(server.saved) == 1
    assert any("no certificate was written" in line for line in server.log)
