"""Sums with a helper on NVFlare."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_sums import IDENTITY
from nvflare.apis.signal import Signal
from nvflare_job import SITES, Server
from proven_sums import lie

from randquant.aggregation import AdditiveMechanism, VectorMechanism
from randquant.integrations import QuantizeFilter, site_number
from randquant.integrations.nvflare import PAYLOAD
from randquant.mechanisms import stochastic_rounding
from randquant.privacy import account, run_release
from randquant.rounds import RemoteHelper, WithHelper, write_certificates
from randquant.secure_sums import Helper, ProtocolError, message_bytes

SUMMED = VectorMechanism(stochastic_rounding(0.5, 2, 2.0), 1.0, "aggregate", len(SITES))
INTEGERS = AdditiveMechanism("skellam", 1.0, 4.0, len(SITES))


def with_helper(folder, known=None, mechanism=None, integrity="masked", **options):
    """A job whose sites and server know one helper."""
    identity = options.pop("identity", None) or Ed25519PrivateKey.generate()
    sums = WithHelper(Helper(folder / "helper", identity), integrity=integrity)
    server = Server(folder, mechanism=mechanism or SUMMED, sums=sums, **options)
    pinned = identity.public_key().public_bytes_raw().hex() if known is None else known
    server.filters = {
        site: QuantizeFilter(
            1e9,
            str(folder / "sites"),
            examples=options.get("examples"),
            helper=pinned or None,
            clip_norm=1.0,
        )
        for site in SITES
    }
    return server


def test_with_a_helper_the_noise_of_all_sites_hides_one_patient(tmp_path):
    options = {"examples": 8, "rounds": 2, "learning_rate": 1.0}
    server = with_helper(tmp_path, mechanism=INTEGERS, **options).run()
    run = server.controller._run
    release = run_release(INTEGERS, 14, 2, examples=8)
    assert run.accountant.get_privacy_spent() == account([release], 1e-5)
    alone = account([release.under("local")], 1e-5).epsilon
    assert run.accountant.get_privacy_spent().epsilon < alone
    said = " ".join(server.log)
    assert "at least 2 honest others and the helper does not collude with the server" in said


def test_with_a_helper_the_coordinates_of_a_round_are_drawn_by_both(tmp_path):
    some = replace(INTEGERS, coordinates=5)
    server = with_helper(tmp_path, mechanism=some, rounds=2, learning_rate=1.0).run()
    assert len(server.saved) == 2, server.log
    moved = server.saved[-1]["weight"].size + server.saved[-1]["bias"].size
    assert some.size(moved) == 5


@pytest.mark.parametrize("integrity", ["masked", "proven"])
def test_sites_are_summed_by_a_helper(integrity, tmp_path):
    options = {"rounds": 2, "learning_rate": 1.0}
    server = with_helper(tmp_path, integrity=integrity, **options).run()
    assert len(server.saved) == 2, server.log
    means = sum(now.mean() for now in server.sums)
    assert np.allclose(server.saved[-1]["weight"].ravel(), means[:12], atol=1e-6)
    for now in server.sums if integrity == "proven" else ():
        assert now.terms.largest == 1
        assert now.upload_bytes == message_bytes(now.terms)
        assert now._sum.clients == set(map(site_number, SITES))


@pytest.mark.parametrize(
    "broken",
    [
        lambda terms, payload: payload[:-40] + bytes([payload[-40] ^ 1]) + payload[-39:],
        lambda terms, payload: lie(terms, site_number("va"), [7] * terms.dimension),
    ],
    ids=["a share or a blind is changed", "a proof, as an honest site's, that each code is 7"],
)
def test_a_site_that_proves_no_codes_is_left_out_and_named(broken, tmp_path):
    few, options = replace(SUMMED, cohort=2), {"integrity": "proven", "rounds": 1}
    server = with_helper(tmp_path, mechanism=few, identity=IDENTITY, **options)

    def tamper(site, reply):
        if site == "va":
            data = reply["DXO"]["data"]
            data[PAYLOAD] = broken(server.sums[-1].terms, bytes(data[PAYLOAD]))
        return reply

    server.tamper = tamper
    server.run()
    assert len(server.saved) == 1, server.log
    [now] = server.sums
    assert list(now.refused) == [site_number("va")]
    assert now.clients == 2
    assert any(f"client {site_number('va')}" in line for line in server.log)


def test_a_site_that_trusts_no_helper_or_another_sends_nothing(tmp_path):
    for number_, known in enumerate(("", "ab" * 32)):
        server = with_helper(tmp_path / str(number_), known=known, rounds=1, patience=1).run()
        assert not server.saved
        assert any("failed, the model is as before" in line for line in server.log)
        assert not list((tmp_path / str(number_) / "sites").glob("*.account"))


class Failing:
    """A helper that answers no request, and does something first."""

    def __init__(self, helper, first=lambda: None):
        self.key, self.first = helper.key, first

    def answer(self, request):
        self.first()
        raise OSError("gone")


def test_without_a_helper_nobody_is_asked(tmp_path):
    server = with_helper(tmp_path)
    port = "localhost:1"  # nobody listens there
    _, own = write_certificates(tmp_path / "tls")
    server.controller.sums = WithHelper(RemoteHelper(port, own, timeout=0.5))
    with pytest.raises(
        ProtocolError, match="Expected the helper of secure sums to answer, got an error"
    ):
        server.run()
    assert not server.sums


def test_a_job_that_is_aborted_has_not_failed(tmp_path):
    server, abort = with_helper(tmp_path, identity=IDENTITY, rounds=2, patience=1), Signal()
    helper = Failing(Helper(tmp_path / "other", IDENTITY), lambda: abort.trigger(True))
    server.controller.sums = WithHelper(helper)
    server.controller.control_flow(abort, server.context)
    assert not server.saved
    assert not any("failed" in line or "panic" in line for line in server.log)


SITES_STARTED_AS_BY_THE_SIMULATOR = """
import os, subprocess
from concurrent.futures import ThreadPoolExecutor
import grpc

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("localhost:0")
server.start()
channel = grpc.insecure_channel(f"localhost:{port}")
try:
    channel.unary_unary("/no/method")(b"", timeout=20)
except grpc.RpcError:
    pass

def started(_):
    return subprocess.Popen(["true"], preexec_fn=os.setsid, stderr=subprocess.DEVNULL).wait()

with ThreadPoolExecutor(4) as threads:
    print(sum(map(bool, threads.map(started, range(300)))), flush=True)
os._exit(0)
"""


def test_no_site_that_a_simulator_forks_is_aborted_by_the_call_to_the_helper(tmp_path, monkeypatch):
    """Without what the controller sets a few of 100 are, and the simulator waits for ever."""
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "1")
    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT")  # so that it is as before after the test
    with_helper(tmp_path)
    simulator = subprocess.run(
        [sys.executable, "-c", SITES_STARTED_AS_BY_THE_SIMULATOR],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert simulator.stdout == "0\n"
