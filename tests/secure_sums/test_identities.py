"""Identities for which anybody can sign, or that stand for two clients, are none."""

import os

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from helper_sums import helper_in
from sum_rounds import signers

from randquant.secure_sums import HelperKey, ProtocolError, check_directory, check_identity

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def added(a, b):
    """Points of RFC 8032, Section 5.1.4."""
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P


def point_of(y):
    """The even point with this y, by RFC 8032, Section 5.1.3; None if there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    for root in (x, x * pow(2, (P - 1) // 4, P) % P):
        if root * root % P == square:
            return (min(root, P - root), y)
    return None


def torsion():
    """Each y of a point of small order: of points multiplied by the prime order."""
    prime = 2**252 + 27742317777372353535851937790883648493
    found, y = set(), 2
    while len(found) < 5:
        y += 1
        if (point := point_of(y)) is None:
            continue
        times, power = (0, 1), point
        for bit in bin(prime)[:1:-1]:
            times = added(times, power) if bit == "1" else times
            power = added(power, power)
        found.add(times[1])
    return found


def test_the_points_of_small_order_are_refused_in_every_spelling():
    for y in torsion():
        for spelled in {y, y + P} if y + P < 2**255 else {y}:
            for sign in (0, 1):
                with pytest.raises(ValueError, match="for which anybody can sign"):
                    check_identity((spelled + (sign << 255)).to_bytes(32, "little"))


def test_anybody_signs_for_the_point_that_is_neutral():
    """Why they are refused: the library's verification alone takes such a signature."""
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), b"whatever")
    honest = Ed25519PrivateKey.generate().public_key()
    with pytest.raises(InvalidSignature):
        honest.verify(neutral + bytes(32), b"whatever")
    check_identity(honest.public_bytes_raw())
    forged = HelperKey("X25519", os.urandom(32), neutral + bytes(32))
    with pytest.raises(ProtocolError, match="signed by the helper that this client knows"):
        forged.check(neutral)


@pytest.mark.parametrize("public", [b"", b"a" * 31, b"a" * 33, "ab" * 16, None])
def test_identities_of_another_length_are_refused(public):
    with pytest.raises(ValueError, match="Expected an identity in 32 bytes"):
        check_identity(public)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda known: {**known, 9: known[1]}, "one of both 1 and 9"),
        (lambda known: {**known, 9: known[1][:31]}, "in 32 bytes"),
        (lambda known: {**known, 9: bytes(32)}, "anybody can sign"),
        (lambda known: {**known, -1: os.urandom(32)}, "number"),
        (lambda known: {**known, 2**64: os.urandom(32)}, "number"),
    ],
)
def test_a_directory_that_does_not_tell_clients_apart_is_refused(change, reason, tmp_path):
    _, known = signers(range(3))
    helper_in(tmp_path, directory=known)
    for take in (check_directory, lambda each: helper_in(tmp_path, directory=each)):
        with pytest.raises(ValueError, match=reason):
            take(change(known))
