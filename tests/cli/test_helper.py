"""`randquant helper`: a new identity that only its user can read, and what was answered."""

import json
import stat

from cryptography.hazmat.primitives.serialization import load_pem_private_key
from helper_sums import codes_of, collected, helper_in, messages_of, terms_of

from randquant import cli
from randquant.aggregation.helper import Helper


def test_a_new_identity_is_private_and_its_public_half_is_what_clients_take(tmp_path, capsys):
    path = tmp_path / "helper.key"
    assert cli.main(["helper", "keygen", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    identity = load_pem_private_key(path.read_bytes(), None)
    assert bytes.fromhex(said["identity"]) == identity.public_key().public_bytes_raw()
    assert (tmp_path / "helper.key.pub").read_text() == said["identity"] + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    Helper(tmp_path, identity, suite="X25519").key.check(bytes.fromhex(said["identity"]))


def test_no_identity_is_replaced(tmp_path, capsys):
    path = tmp_path / "helper.key"
    assert cli.main(["helper", "keygen", str(path)]) == 0
    before = path.read_bytes()
    assert cli.main(["helper", "keygen", str(path)]) == 2
    assert path.read_bytes() == before
    assert "got one that is there: choose another name." in capsys.readouterr().err
    assert cli.main(["helper", "keygen", str(tmp_path / "no" / "helper.key")]) == 2
    assert "create it." in capsys.readouterr().err


def test_the_status_of_a_helper_counts_its_clients(tmp_path, capsys):
    assert cli.main(["helper", "status", str(tmp_path)]) == 2
    assert "Expected a helper's folder" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    helper = helper_in(tmp_path)
    for clients in (range(4), range(3)):
        terms = terms_of(helper)
        helper.answer(collected(terms, messages_of(terms, codes_of(terms, clients))).request())
    assert cli.main(["helper", "status", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"clients": 4, "most_sums": 2, "by_sums": {"1": 1, "2": 3}}
    assert cli.main(["helper", "status", str(tmp_path)]) == 0
    assert "clients in so many" in capsys.readouterr().out
