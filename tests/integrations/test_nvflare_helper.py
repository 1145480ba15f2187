"""Sums with a helper on NVFlare: of this process, and as one more site."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from helper_sums import IDENTITY
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare_job import SITES, Server, context_of
from proven_sums import lie
from tls import keep

from randquant.aggregation import VectorMechanism
from randquant.integrations import (
    TASK,
    HelperExecutor,
    HelperMember,
    QuantizeFilter,
    WithHelper,
    number,
)
from randquant.integrations.nvflare.tasks import PAYLOAD
from randquant.mechanisms import stochastic_rounding
from randquant.privacy import account
from randquant.secure_sums import Helper, ProtocolError, message_bytes

SUMMED = VectorMechanism(stochastic_rounding(0.5, 2, 2.0), 1.0, "aggregate", len(SITES))


AGENCY = "agency"
"""The site that is the helper."""


class WithAgency(Server):
    """The same engine with one more site, whose executor is the helper."""

    def __init__(self, folder, **options):
        self.folder, self.asked, self.broken = folder, [], lambda reply: reply
        super().__init__(folder, **options)

    def get_clients(self):
        return [*super().get_clients(), SimpleNamespace(name=AGENCY)]

    def broadcast_and_wait(self, task, context, sites, *rest, **options):
        if task.name != TASK:
            assert AGENCY not in sites
            super().broadcast_and_wait(task, context, sites, *rest)
            return
        assert sites == [AGENCY]
        self.asked.append(Shareable.from_bytes(task.data.to_bytes()))
        answer = self.broken(executed(self.folder, self.asked[-1]))
        if answer is not None:
            received = Shareable.from_bytes(answer.to_bytes())
            client = SimpleNamespace(client=SimpleNamespace(name=AGENCY), result=received)
            task.result_received_cb(client, context)


def operated(folder, identity):
    """What the operator of a helper's site keeps there."""
    (folder / "local").mkdir(parents=True, exist_ok=True)
    key = keep(folder / "helper.key", identity)
    own = {"randquant-identity": key, "randquant-helper-journal": str(folder / "helper")}
    (folder / "local" / "randquant_helper.json").write_text(json.dumps(own))


def executed(folder, request, task=TASK):
    """A helper site's answer, by an executor of a new process."""
    context = context_of(AGENCY)
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(folder / "local"))
    context.set_prop(FLContextKey.WORKSPACE_OBJECT, workspace, private=True)
    return HelperExecutor().execute(task, request, context, Signal())


def with_helper(
    folder, helper=True, known=None, mechanism=None, site=False, integrity="masked", **options
):
    """A job whose sites and server know one helper; `site` for one that is a site."""
    identity = options.pop("identity", None) or Ed25519PrivateKey.generate()
    own = HelperMember(AGENCY) if site else Helper(folder / "helper", identity)
    sums = WithHelper(own, integrity=integrity) if helper else None
    server = (WithAgency if site else Server)(
        folder, mechanism=mechanism or SUMMED, sums=sums, **options
    )
    pinned = identity.public_key().public_bytes_raw().hex() if known is None else known
    if site:
        operated(folder, identity)
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


@pytest.mark.seldom
def test_with_a_helper_the_noise_of_all_sites_hides_one_patient(tmp_path):
    server = with_helper(tmp_path, examples=8, rounds=2, learning_rate=1.0).run()
    run = server.controller._run
    release = SUMMED.example_release(14, 2, "replace_one", 8)
    assert run.accountant.get_privacy_spent() == account([release], 1e-5)
    alone = account([release.under("local")], 1e-5).epsilon
    assert run.accountant.get_privacy_spent().epsilon < alone
    said = " ".join(server.log)
    assert "at least 2 honest others and the helper does not collude with the server" in said


def test_with_a_helper_the_coordinates_of_a_round_are_drawn_by_both(tmp_path):
    some = replace(SUMMED, coordinates=5)
    server = with_helper(tmp_path, mechanism=some, rounds=2, learning_rate=1.0).run()
    assert len(server.saved) == 2, server.log
    moved = server.saved[-1]["weight"].size + server.saved[-1]["bias"].size
    assert some.size(moved) == 5


@pytest.mark.parametrize("integrity", ["masked", "proven"])
@pytest.mark.parametrize("site", [False, True])
def test_sites_are_summed_by_a_helper_which_may_be_a_site(site, integrity, tmp_path):
    options = {"rounds": 2, "learning_rate": 1.0}
    server = with_helper(tmp_path, site=site, integrity=integrity, **options).run()
    assert len(server.saved) == 2, server.log
    means = sum(now.mean() for now in server.sums)
    assert np.allclose(server.saved[-1]["weight"].ravel(), means[:12], atol=1e-6)
    assert not site or len(server.asked) == 3  # its key, and the sums
    for now in server.sums if integrity == "proven" else ():
        assert now.terms.largest == 1
        assert now.upload_bytes == message_bytes(now.terms)
        assert now._sum.clients == set(map(number, SITES))


@pytest.mark.parametrize(
    "broken",
    [
        lambda terms, payload: payload[:-40] + bytes([payload[-40] ^ 1]) + payload[-39:],
        lambda terms, payload: lie(terms, number("va"), [7] * terms.dimension),
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
    assert list(now.refused) == [number("va")]
    assert now.clients == 2
    assert any(f"client {number('va')}" in line for line in server.log)


def test_a_site_that_trusts_no_helper_or_another_sends_nothing(tmp_path):
    for number_, known in enumerate(("", "ab" * 32)):
        server = with_helper(tmp_path / str(number_), known=known, rounds=1, patience=1).run()
        assert not server.saved
        assert any("failed, the model is as before" in line for line in server.log)
        assert not list((tmp_path / str(number_) / "sites").glob("*.account"))


def test_what_the_operator_of_a_site_allows_holds_whatever_a_job_says(tmp_path):
    server = with_helper(tmp_path, site=True, rounds=2, patience=1)
    own = tmp_path / "local" / "randquant_helper.json"
    own.write_text(json.dumps({**json.loads(own.read_text()), "randquant-helper-least": 4}))
    server.run()
    assert not server.saved
    assert any("4 clients or more" in line for line in server.log)


def answer_of(**fields):
    return DXO(DataKind.APP_DEFINED, fields).to_shareable()


@pytest.mark.parametrize(
    ("broken", "error", "reason"),
    [
        (lambda reply: None, ProtocolError, "site agency does not answer"),
        (lambda reply: make_reply(ReturnCode.OK), ProtocolError, "with data, got one without"),
        (lambda reply: answer_of(answer="text"), ProtocolError, "answer in bytes"),
        (lambda reply: answer_of(answer=b"{}"), ProtocolError, "a helper's key"),
        (lambda reply: answer_of(refusal="no\u202e"), ProtocolError, "The helper: no"),
    ],
)
def test_without_an_answer_of_the_site_nobody_is_asked(broken, error, reason, tmp_path):
    server = with_helper(tmp_path, site=True)
    server.broken = broken
    with pytest.raises(error, match=reason) as raised:
        server.run()
    assert str(raised.value).isprintable()
    assert not server.sums


def test_a_site_answers_nothing_but_requests_to_a_helper(tmp_path):
    operated(tmp_path, Ed25519PrivateKey.generate())
    for request in (Shareable(), answer_of(request=7), answer_of(), answer_of(request=b"RQHQ")):
        answer = executed(tmp_path, request)
        assert set(answer["DXO"]["data"]) == {"refusal"}
    unknown = executed(tmp_path, answer_of(request=b""), task="train")
    assert unknown.get_return_code() == ReturnCode.TASK_UNKNOWN


@pytest.mark.parametrize("settings", ["", "[]", "{}", '{"randquant-helper-journal": "x"}'])
def test_a_site_without_its_operators_settings_is_no_helper(settings, tmp_path):
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "randquant_helper.json").write_text(settings)
    answer = executed(tmp_path, answer_of(request=b""))
    assert answer.get_return_code() == ReturnCode.EXECUTION_EXCEPTION or "refusal" in str(answer)
    assert str(tmp_path) not in str(answer)


def test_a_job_that_is_aborted_has_not_failed(tmp_path):
    server = with_helper(tmp_path, site=True, rounds=2, patience=1)
    abort = Signal()

    def aborted(reply):
        if len(server.asked) == 1:  # its key
            return reply
        abort.trigger(True)
        return None

    server.broken = aborted
    server.controller.control_flow(abort, server.context)
    assert not server.saved
    assert not any("failed" in line or "panic" in line for line in server.log)
