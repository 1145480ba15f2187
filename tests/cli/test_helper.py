"""`randquant helper`: a new identity that only its user can read, and what was answered."""

import dataclasses
import inspect
import stat
from pathlib import Path

import pytest
from command_line import as_json, printed, refused
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from helper_sums import codes_of, collected, helper_in, messages_of, terms_of

from randquant.cli.helper import COMMANDS
from randquant.rounds import TLS, RemoteHelper, ServiceLimits, service
from randquant.secure_sums import Helper, HelperLimits


def test_a_new_identity_is_private_and_its_public_half_is_what_clients_take(tmp_path, capsys):
    path = tmp_path / "helper.key"
    said = as_json(capsys, ["helper", "keygen", path])
    identity = load_pem_private_key(path.read_bytes(), None)
    assert bytes.fromhex(said["identity"]) == identity.public_key().public_bytes_raw()
    assert (tmp_path / "helper.key.pub").read_text() == said["identity"] + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Helper(tmp_path, identity, suite="X25519").key.check(bytes.fromhex(said["identity"]))


def test_no_identity_is_replaced(tmp_path, capsys):
    path = tmp_path / "helper.key"
    keygen = ["helper", "keygen", path]
    printed(capsys, keygen)
    before = path.read_bytes()
    assert "helper.key exists: choose another name." in refused(capsys, keygen)
    assert path.read_bytes() == before
    assert "create it." in refused(capsys, ["helper", "keygen", tmp_path / "no" / "helper.key"])


def test_the_status_of_a_helper_counts_its_clients(tmp_path, capsys):
    status = ["helper", "status", tmp_path]
    assert "Expected a helper's folder" in refused(capsys, status)
    assert not list(tmp_path.iterdir())
    helper = helper_in(tmp_path)
    for clients in (range(4), range(3)):
        terms = terms_of(helper)
        helper.answer(collected(terms, messages_of(terms, codes_of(terms, clients))).request())
    assert as_json(capsys, status) == {"clients": 4, "most_sums": 2, "by_sums": {"1": 1, "2": 3}}
    assert "sums per client" in printed(capsys, status)


@pytest.mark.parametrize("limits", [HelperLimits, ServiceLimits])
def test_the_command_has_the_defaults_of_the_limits(limits):
    declared = inspect.signature(COMMANDS["helper"].run).parameters
    named = {field.name: field.default for field in dataclasses.fields(limits)}
    named.pop("affords", None)  # by epsilon, delta and examples
    assert {name: declared[name].default for name in named} == named


def test_no_private_key_is_left_where_its_public_half_cannot_be_written(tmp_path, capsys):
    (tmp_path / "helper.key.pub").write_text("another's")
    assert "helper.key.pub" in refused(capsys, ["helper", "keygen", tmp_path / "helper.key"])
    assert [each.name for each in tmp_path.iterdir()] == ["helper.key.pub"]


def test_certificates_of_a_trial_connect_a_server_and_its_helper(tmp_path, capsys):
    """Over TLS, under the address that they are for; nobody reads the keys but their owner."""
    said = as_json(capsys, ["helper", "certificates", tmp_path / "tls", "--host", "127.0.0.1"])
    own, server = (TLS(**said[name]) for name in ("helper", "server"))
    helper = helper_in(tmp_path)
    running, port = service(helper, "127.0.0.1:0", own)
    running.start()
    try:
        reached = RemoteHelper(f"127.0.0.1:{port}", server)
        assert reached.key == helper.key
    finally:
        running.stop(grace=None).wait()
    for side in (own, server):
        assert stat.S_IMODE(Path(side.private_key).stat().st_mode) == 0o600
    names = sorted(each.name for each in (tmp_path / "tls").iterdir())
    assert names == ["authority.pem", "helper-tls.key", "helper.pem", "server-tls.key",
                     "server.pem"]  # fmt: skip
    again = ["helper", "certificates", tmp_path / "tls"]
    assert "without certificates, got" in refused(capsys, again)
