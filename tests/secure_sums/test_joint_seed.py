"""The seed that server and helper draw together, and what neither can do alone."""

import os

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from helper_sums import IDENTITY, PINNED, helper_in

from randquant.secure_sums import HelperKey, JointSeed, ProtocolError, sign_commitment
from randquant.secure_sums.helper import message
from randquant.secure_sums.helper.message import (
    JOINT_PART_BYTES,
    JOINT_SEED_MAGIC,
    check_joint_seed,
)

SESSION = b"run 7, round 1"


@pytest.fixture
def drawn(tmp_path):
    """(seed, proof) of a round, by a real helper."""
    server = JointSeed(SESSION)
    return server.close(helper_in(tmp_path).answer(server.request))


def test_a_client_finds_the_seed_of_the_server(drawn):
    seed, proof = drawn
    assert check_joint_seed(SESSION, proof, PINNED) == seed < 2**64


def test_any_other_bit_of_a_proof_is_refused(drawn):
    proof = drawn[1]
    for place in range(len(proof)):
        changed = bytearray(proof)
        changed[place] ^= 1
        with pytest.raises(ProtocolError, match="have drawn together"):
            check_joint_seed(SESSION, bytes(changed), PINNED)
    for wrong in (b"", proof[:-1], proof + b"\0"):
        with pytest.raises(ProtocolError, match="have drawn together"):
            check_joint_seed(SESSION, wrong, PINNED)


def test_a_seed_of_another_round_or_of_another_helper_is_refused(drawn):
    proof = drawn[1]
    other = Ed25519PrivateKey.generate()
    for session, helper in (
        (SESSION + b"0", PINNED),
        (SESSION[:-1], PINNED),
        (SESSION, other.public_key().public_bytes_raw()),
        (SESSION, b"no key"),
    ):
        with pytest.raises(ProtocolError, match="have drawn together"):
            check_joint_seed(session, proof, helper)


def test_a_signature_for_one_part_and_session_fits_no_other_split_of_the_same_bytes():
    """The commitment has a fixed length, so that bytes cannot move to the session and back."""
    request = JointSeed(SESSION).request
    signature = sign_commitment(IDENTITY, request)
    for moved in (b"", SESSION[:3], SESSION + request[-1:]):
        with pytest.raises(ProtocolError):
            check_joint_seed(moved, os.urandom(JOINT_PART_BYTES) + signature, PINNED)


def test_the_helper_sees_nothing_of_the_part_of_the_server(monkeypatch):
    monkeypatch.setattr(message.os, "urandom", lambda count: bytes(range(count)))
    assert bytes(range(JOINT_PART_BYTES)) not in JointSeed(SESSION).request


def test_neither_the_server_nor_the_helper_has_chosen_a_seed_alone(monkeypatch):
    """The session, the server's part and the helper's signature: each changes it."""

    def seed_of(session=SESSION, part=0, helper=IDENTITY):
        monkeypatch.setattr(message.os, "urandom", lambda count: bytes([part]) * count)
        server = JointSeed(session)
        seed, proof = server.close(sign_commitment(helper, server.request))
        assert check_joint_seed(session, proof, helper.public_key().public_bytes_raw()) == seed
        return seed

    others = [Ed25519PrivateKey.generate() for _ in range(4)]
    seeds = [
        *(seed_of(helper=other) for other in others),
        *(seed_of(part=part) for part in range(4)),
        *(seed_of(session=b"%d" % n) for n in range(4)),
    ]
    assert len(set(seeds)) == len(seeds)
    assert seed_of() == seed_of()


def test_a_helper_signs_nothing_else(tmp_path):
    helper = helper_in(tmp_path)
    for request in (
        JOINT_SEED_MAGIC,
        JOINT_SEED_MAGIC + bytes(JOINT_PART_BYTES),
        JOINT_SEED_MAGIC + bytes(JOINT_PART_BYTES + 65),
    ):
        with pytest.raises(ProtocolError, match="sign a part of a seed"):
            helper.answer(request)


def test_an_answer_that_is_no_signature_ends_the_draw():
    with pytest.raises(ProtocolError, match="a helper's signature"):
        JointSeed(SESSION).close(b"short")


def test_a_signature_of_a_seed_is_none_of_a_helpers_key():
    """A server may let a helper sign what it likes; it is a request for a seed all the same."""
    secret = X25519PrivateKey.generate()
    public = secret.public_key().public_bytes_raw()
    wanted = b"X25519\0" + public  # as short as a commitment and a session
    for start in (b"", b"randquant helper key\0"):
        signature = sign_commitment(IDENTITY, JOINT_SEED_MAGIC + start + wanted)
        with pytest.raises(ProtocolError, match="signed by the helper that this client knows"):
            HelperKey("X25519", public, signature).check(PINNED)
