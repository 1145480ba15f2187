"""Scalars, points, keys and masks of a secure sum, against the standards that they follow."""

from __future__ import annotations

import hashlib
import hmac
import threading

import numpy as np
import pytest

pytest.importorskip("nacl")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from randquant.channels import encoding
from randquant.secure_sums import ProtocolError, add_masks, mask_dtype, terms
from randquant.secure_sums.secagg import crypto

ORDER = 2**252 + 27742317777372353535851937790883648493  # RFC 8032, section 5.1
BASE = bytes([0x58, *[0x66] * 31])  # its base point, encoded
ONE_BEFORE = ORDER - 1


def test_the_group_is_that_of_the_standard():
    assert crypto.ORDER == ORDER
    assert crypto.base(1) == BASE
    assert crypto.times(1, BASE) == BASE
    assert crypto.total([BASE, crypto.base(ONE_BEFORE)]) == crypto.IDENTITY == crypto.total([])
    assert crypto.total([crypto.base(5), crypto.base(7)]) == crypto.base(12)


@pytest.mark.parametrize(
    ("drawn", "scalar"),
    [(0, 1), (1, 2), (ORDER - 2, ORDER - 1), (ORDER - 1, 1), (3 * (ORDER - 1) + 41, 42)],
)
def test_every_scalar_but_zero_may_be_drawn(monkeypatch, drawn, scalar):
    asked = []

    def bytes_of(count):
        asked.append(count)
        return drawn.to_bytes(count, "little")

    monkeypatch.setattr(crypto.os, "urandom", bytes_of)
    assert crypto.random_scalar() == scalar
    assert asked == [64]


def hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, no salt and 32 bytes."""
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\1", hashlib.sha256)


def montgomery(point):
    """The coordinate u of a point of edwards25519 (RFC 7748, section 4.1), in fractions mod p."""
    prime = 2**255 - 19
    y = int.from_bytes(point, "little") & (2**255 - 1)
    return ((1 + y) * pow((1 - y) % prime, prime - 2, prime) % prime).to_bytes(32, "little")


def test_x25519_multiplies_by_the_scalars_that_are_shared():
    # The ends, where a multiple of 8 is 2**254 or negated, small multiples that X25519 does not
    # take (a client chooses its scalar), and others at random.
    turn = 2**254 % crypto.ORDER  # of the scalar whose multiple is 2**254
    edge = (8 * crypto.ORDER - 2**255) // 8 * 8
    ends = [1, 2, crypto.ORDER - 1, turn, turn - 8, turn + 8]
    ends += [8, 16, crypto.ORDER - 8, edge, edge + 8, crypto.ORDER - edge, crypto.ORDER - edge - 8]
    for mine in [*ends, *(crypto.random_scalar() for _ in range(30))]:
        other = crypto.random_scalar()
        private, public = crypto.masking_private(mine), crypto.base(other)
        assert private(public) == montgomery(crypto.times(mine, public))


def test_keys_are_derived_by_the_standard_from_parts_with_their_lengths():
    secret, pair = bytes(range(32)), b"a pair"

    def info(*parts):
        return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

    assert crypto.derive(secret, b"x", b"yz") == hkdf(secret, info(b"x", b"yz"))
    one, two = X25519PrivateKey.from_private_bytes(secret), X25519PrivateKey.generate()
    shared = one.exchange(two.public_key())
    expected = hkdf(shared, info(b"seal", pair))
    assert crypto.sealing_key(one, two.public_key().public_bytes_raw(), pair) == expected
    assert crypto.sealing_key(two, one.public_key().public_bytes_raw(), pair) == expected
    both = montgomery(crypto.base(15))
    for mine, other in ((3, 5), (5, 3)):
        key = crypto.masking_key(crypto.masking_private(mine), crypto.base(other), pair)
        assert key == hkdf(both, info(b"mask", pair))
    own = crypto.self_masking_key(7, pair)
    assert own == hkdf((7).to_bytes(32, "little"), info(b"self", pair))
    for wrong in (bytes(32), b"short"):
        with pytest.raises(ProtocolError, match="public key"):
            crypto.sealing_key(one, wrong, pair)


def test_what_is_sealed_opens_with_its_key_and_context_alone():
    key, message, context = bytes(range(32)), b"shares of a secret", b"from 1 to 2"
    sealed, again = (crypto.seal(key, message, context) for _ in range(2))
    assert sealed[:12] != again[:12]
    assert (
        len(sealed)
        == 12 + len(message) + 16
        == len(message) + crypto.NONCE_BYTES + (crypto.TAG_BYTES)
    )
    assert crypto.unseal(key, sealed, context) == message
    flipped = [bytes(b ^ (at == i) for i, b in enumerate(sealed)) for at in (0, 12, 45)]
    for wrong in (*flipped, sealed[:20], b""):
        with pytest.raises(ProtocolError, match="forged"):
            crypto.unseal(key, wrong, context)
    for other in ((bytes(32), context), (key, b"from 2 to 1")):
        with pytest.raises(ProtocolError, match="forged"):
            crypto.unseal(other[0], sealed, other[1])


@pytest.mark.parametrize(
    ("bits", "name"),
    [(1, "uint8"), (8, "uint8"), (9, "uint16"), (16, "uint16"), (17, "uint32"), (32, "uint32")],
)
def test_a_mask_is_the_ciphers_stream_all_along(bits, name):
    """AES-256 in counter mode from a nonce of zeros, two whole parts and some."""
    dtype, secret, size = mask_dtype(bits), bytes(range(32)), 2 * terms._PART_COORDINATES + 77
    assert dtype == np.dtype(name)
    cipher = Cipher(AES(secret), CTR(bytes(16))).encryptor()
    stream = np.frombuffer(cipher.update(bytes(size * dtype.itemsize)), dtype.newbyteorder("<"))
    before = np.random.default_rng(bits).integers(0, 2**31, size).astype(dtype)
    totals = before.copy()
    add_masks(totals, [secret], 1)
    assert np.array_equal(totals, before + stream)
    add_masks(totals, [secret], -1)
    assert np.array_equal(totals, before)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("size", [2**17, 2**17 + 1, 300_007])
def test_threads_add_the_same_masks(dtype, size, monkeypatch):
    secrets, totals = [bytes([k]) * 32 for k in range(5)], np.zeros((2, size), dtype)
    add_masks(totals[0], secrets, -1)
    monkeypatch.setattr(terms, "_MIN_SHARED_COORDINATES", 1)
    monkeypatch.setattr(encoding, "cores", lambda: 7)
    asked = []
    add_masks(totals[1], secrets, -1, lambda: asked.append(threading.get_ident()))
    assert len(asked) == 5 * min(7, size // 2**15)
    assert np.array_equal(totals[0], totals[1])

    def leave():
        raise ProtocolError("gone")

    with pytest.raises(ProtocolError, match="gone"):
        add_masks(totals[1], secrets, +1, leave)
