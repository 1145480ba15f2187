import json
import pickle

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from randquant.keys import Key
from randquant.records import to_json

SECRET = bytes(range(32))


def test_the_stream_is_aes_256_in_counter_mode():
    block = Cipher(algorithms.AES256(SECRET), modes.ECB()).encryptor()
    expected = b"".join(block.update(counter.to_bytes(16, "big")) for counter in range(50))
    assert Key(SECRET).words(100).astype("<u8").tobytes() == expected


def test_the_block_cipher_gives_the_published_vector():
    # FIPS 197, appendix C.3: the library under the stream is the cipher that it claims to be.
    block = Cipher(algorithms.AES256(SECRET), modes.ECB()).encryptor()
    plain = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert block.update(plain).hex() == "8ea2b7ca516745bfeafc49904b496089"


@given(st.integers(0, 1000), st.integers(0, 50))
def test_a_stream_can_be_entered_anywhere(start, count):
    whole = Key(SECRET).words(2 * start + count)
    assert (Key(SECRET).words(count, 2 * start) == whole[2 * start :]).all()


def test_odd_starts_are_refused():
    with pytest.raises(ValueError, match="even start"):
        Key(SECRET).words(2, 1)


labels = st.lists(st.integers(0, 2**64 - 1) | st.text(max_size=5), max_size=4)


@given(labels, labels)
def test_keys_folded_with_different_labels_give_independent_streams(first, second):
    same = (Key(SECRET).fold_in(*first).words(2) == Key(SECRET).fold_in(*second).words(2)).all()
    kinds = [type(label) for label in first] == [type(label) for label in second]
    assert same == (kinds and first == second)


def test_fresh_keys_differ_and_seeded_ones_repeat():
    assert not (Key.generate().words(4) == Key.generate().words(4)).all()
    assert (Key.from_seed(3).words(4) == Key.from_seed(3).words(4)).all()
    assert not (Key.from_seed(3).words(4) == Key.from_seed(4).words(4)).all()


def test_the_secret_does_not_leak():
    key = Key(SECRET)
    assert repr(key) == str(key) == f"{key}" == "Key(<secret>)"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(key)
    with pytest.raises(TypeError):
        json.dumps(to_json({"key": key}))
    assert not hasattr(key, "__dict__")


@pytest.mark.parametrize(
    ("secret", "error"), [(b"short", ValueError), ("x" * 32, TypeError), (None, TypeError)]
)
def test_wrong_secrets_are_refused(secret, error):
    with pytest.raises(error, match="32 bytes"):
        Key(secret)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_wrong_seeds_are_refused(seed):
    with pytest.raises(ValueError, match="seed"):
        Key.from_seed(seed)
    with pytest.raises(TypeError, match="seed"):
        Key.from_seed(0.5)  # type: ignore[arg-type]


def test_words_have_no_stuck_bits():
    bits = np.unpackbits(Key(SECRET).words(1 << 16).view(np.uint8)).reshape(-1, 64)
    # Each bit is Binomial(2**16, 1/2): 5.9 standard deviations, two tails, 64 bits: 3e-7.
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 5.9 * 0.5 / 256
