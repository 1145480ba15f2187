import json
import os
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

import randquant as rq
from randquant._internal import to_json
from randquant.aggregation import update_mechanism
from randquant.channels import Key, encode_payload

SECRET = bytes(range(32))


def same(key: Key, secret: str) -> bool:
    """Whether a key is that of 32 bytes in hexadecimal."""
    return bool((key.words(8) == Key(bytes.fromhex(secret)).words(8)).all())


def test_the_stream_is_aes_256_in_counter_mode():
    block = Cipher(algorithms.AES256(SECRET), modes.ECB()).encryptor()
    expected = b"".join(block.update(counter.to_bytes(16, "big")) for counter in range(50))
    assert Key(SECRET).words(100).astype("<u8").tobytes() == expected


def test_the_stream_gives_the_published_vectors_of_counter_mode():
    # NIST SP 800-38A, section F.5.5: the output blocks of CTR-AES256, entered at its first counter.
    secret = "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
    start = 2 * int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    assert Key(bytes.fromhex(secret)).words(8, start).astype("<u8").tobytes().hex() == (
        "0bdf7df1591716335e9a8b15c860c5025a6e699d536119065433863c8f657b94"
        "1bc12c9c01610d5d0d8bd6a3378eca622956e1c8693536b1bee99c73a31576b6"
    )


def test_keys_are_derived_as_they_always_were():
    r"""Made with the openssl command line, so that old and new versions draw the same codes.

    The key of seed 7 is (printf 'randquant simulation seed\0'; printf '\0\0\0\0\0\0\0\7') |
    openssl dgst -sha256. Labels are the kind, the length or value in 8 bytes, and the text of each:
    's', 5, 'round', 'i', 258, 's', 6, 'client', 'i', 0, 's', 0. They go through openssl dgst
    -sha256 -mac HMAC -macopt hexkey:$seed, and 48 zeros through openssl enc -aes-256-ctr -K $folded
    -iv 00000000000000000000000000000000.
    """
    seed = Key.from_seed(7)
    assert same(seed, "dc05cda5fbc93043f8c00e7a986d9055c3509bbc3fced8c72984ed819cc5dbc4")
    folded = seed.fold_in("round", 258, "client", 0, "")
    assert same(folded, "9c3e292def2bf8d75223b6fbdc60d8021809665ad663dca18674dd03237c876f")
    assert folded.words(6).astype("<u8").tobytes().hex() == (
        "2afa26f112a59bc34f57662f7a44e661"
        "0da851b6f059c3d88e56f66a4c7486a3"
        "1650bcce597c8401ee57ece108b781ec"
    )


def test_a_fresh_key_is_32_bytes_of_the_operating_system(monkeypatch):
    asked = []

    def urandom(count: int) -> bytes:
        asked.append(count)
        return SECRET[:count]

    monkeypatch.setattr(os, "urandom", urandom)
    key = Key.generate()
    assert asked == [32]
    assert (key.words(8) == Key(SECRET).words(8)).all()


def test_words_are_little_endian_on_every_machine(monkeypatch):
    """On a big-endian machine the same bytes are swapped: simulated by what Python says of it."""
    words = Key(SECRET).words(6)
    other = "big" if sys.byteorder == "little" else "little"
    monkeypatch.setattr(sys, "byteorder", other)
    assert (Key(SECRET).words(6) == words.byteswap()).all()


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


def test_labels_that_look_alike_give_other_keys():
    """Whatever bytes labels become: no two sequences of them share theirs."""
    root = Key(SECRET)
    alike = [
        ("a", "sb"), ("asb",), ("assb",), ("a", "b"), ("ab",), ("b", "a"), ("a\0\0\0\0\0\0\0\1b",),
        (0,), ("",), ("", ""), (0, 0), (), ("0",), ("i",), ("\0" * 8,), ("i" + "\0" * 8,),
        (1,), (256,), (2**32,), (2**63,), (1, 0), (0, 1),
    ]  # fmt: skip
    streams = {root.fold_in(*labels).words(4).tobytes() for labels in alike}
    streams.add(root.words(4).tobytes())
    streams.add(root.fold_in("a").fold_in("b").words(4).tobytes())
    assert len(streams) == len(alike) + 2
    seeds = (0, 1, 256, 2**32, 2**32 + 1, 2**63)
    assert len({Key.from_seed(seed).words(4).tobytes() for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("label", [-1, 2**64, 0.5, True, b"round", None])
def test_wrong_labels_are_refused(label):
    with pytest.raises((TypeError, ValueError), match="label"):
        Key(SECRET).fold_in("round", label)


def test_the_secret_does_not_leak():
    key = Key(SECRET)
    assert repr(key) == str(key) == f"{key}" == "Key(<secret>)"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(key)
    with pytest.raises(TypeError):
        json.dumps(to_json({"key": key}))
    assert not hasattr(key, "__dict__")


@pytest.mark.parametrize(
    ("secret", "error"),
    [
        *((bytes(size), ValueError) for size in (0, 16, 31, 33, 64)),
        ("x" * 32, TypeError),
        (bytearray(32), TypeError),
        (None, TypeError),
    ],
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


PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
ENCODERS = {
    "codes": lambda key: rq.encode(PAPER, np.zeros(9), key),
    "payload": lambda key: encode_payload(PAPER, np.zeros(9), key),
    "noise": lambda key: update_mechanism(
        "skellam", {"clip_norm": 1.0, "noise_multiplier": 2.0}, cohort=1
    ).encode(np.zeros(9, dtype=np.float32), key),
    "party": lambda key: update_mechanism(
        "helper-noise", {"clip_norm": 1.0, "noise_multiplier": 2.0}, cohort=1
    ).party_noise(9, key),
    "gaussian": lambda key: update_mechanism(
        "local-gaussian", {"clip_norm": 1, "noise_multiplier": 18}
    ).encode(np.zeros(9, dtype=np.float32), key),
    "server": lambda key: update_mechanism(
        "gaussian", {"clip_norm": 1, "noise_multiplier": 18}, cohort=1
    ).mean([np.zeros(9, dtype="<f4").tobytes()], 9, key),
}


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_a_key_encodes_once(encoder):
    root = Key.generate()
    encoder(root.fold_in("round", 1, "client", 1))
    encoder(root.fold_in("round", 2, "client", 1))
    with pytest.raises(ValueError, match="Expected an unused key"):
        encoder(root.fold_in("round", 1, "client", 1))
    encoder(root)
    with pytest.raises(ValueError, match="Expected an unused key"):
        encoder(root)
    for _ in range(2):
        encoder(Key.from_seed(1))  # simulations repeat


def test_of_two_threads_with_one_key_one_gets_in():
    root, lost = Key.generate(), []

    def attempt(number):
        try:
            root.fold_in(number % 50).claim()
        except ValueError:
            lost.append(number)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(attempt, range(500)))
    assert len(lost) == 450


def test_a_fork_does_not_share_a_stream():
    """Real processes: the child may not use its parent's keys, and its own are others."""
    key = Key.generate()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        child = os.fork()
    if child == 0:
        try:
            key.fold_in(1).claim()
        except ValueError as error:
            fresh = Key.generate()
            fresh.claim()
            os.write(writing, str(error).encode() + b"|" + fresh.words(2).tobytes())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as pipe:
        text, words = pipe.read().split(b"|", 1)
    assert b"before a fork" in text
    assert words != Key.generate().words(2).tobytes()
    key.fold_in(1).claim()
