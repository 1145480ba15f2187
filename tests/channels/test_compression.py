import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.channels import wire
from randquant.channels.wire.compression import compress, decompress

PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
UPDATE = np.random.default_rng(0).normal(0, 0.3, 400_000).astype(np.float32)


def payload_of(channel, x=UPDATE) -> bytes:
    return wire.pack(channel, rq.encode(channel, x, rq.Key.from_seed(0)))


def entropy(codes: np.ndarray) -> float:
    """Bits a code."""
    parts = np.bincount(codes) / codes.size
    parts = parts[parts > 0]
    return float(-(parts * np.log2(parts)).sum())


def deflated(symbols: bytes) -> bytes:
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return made.compress(symbols) + made.flush()


def forged(form: wire.Coding, dimension: int, stream: bytes, checksum: bytes = bytes(8)) -> bytes:
    """A right header, and whatever stream."""
    return b"RQPZ" + wire.header(form, dimension, checksum)[4:] + stream


@settings(deadline=None)
@given(
    st.integers(2, 256) | st.sampled_from([2, 3, 16, 256]),
    st.integers(0, 300),
    st.integers(0, 99),
    st.integers(0, 50),
)
def test_payloads_survive_the_trip(levels, count, seed, padding):
    form = wire.Format.of(levels, "test")
    codes = np.random.default_rng(seed).binomial(levels - 1, 0.2, count).astype(np.uint8)
    payload = wire.pack(form, codes)
    found = compress(form, payload)
    assert decompress(form, found, count) == payload
    padded = compress(form, payload, pad_to=len(found) + padding)
    assert len(padded) == len(found) + padding
    assert decompress(form, padded, count) == payload


@pytest.mark.parametrize(
    "channel",
    [
        *(rq.qmgeo(clip=1.5, levels=m, p=0.5, mixing=0.1) for m in (3, 16, 64, 256)),
        *(rq.rqm(clip=1.5, margin=1.5, levels=m, keep=0.42) for m in (2, 16, 64, 256)),
        *(rq.stochastic_rounding(clip=1.5, levels=m, margin=0.5) for m in (3, 17, 23, 60)),
    ],
    ids=lambda c: f"{c.levels}-{c.fingerprint.hex()[:4]}",
)
def test_the_size_is_within_three_percent_of_the_entropy(channel):
    payload = payload_of(channel)
    bits = 8 * (len(compress(channel, payload)) - 40) / UPDATE.size
    codes = wire.unpack(channel, payload, UPDATE.size)
    assert bits >= 0.9999 * entropy(codes)
    assert bits <= 1.03 * entropy(codes)


def test_many_levels_gain_and_one_bit_gains_nothing():
    sizes = {}
    for levels in (2, 256):
        channel = rq.qmgeo(clip=1.5, levels=levels, p=0.1, mixing=0.1)
        payload = payload_of(channel, 0 * UPDATE)
        sizes[levels] = len(compress(channel, payload)) / len(payload)
    assert 1 <= sizes[2] < 1.001
    assert sizes[256] < 0.75


def test_a_table_of_lengths_is_shared_by_32768_bytes():
    """The first bit of a deflate stream says whether its first block is its last."""
    form = wire.Format.of(256, "test")
    for count, alone in ((32_000, 1), (33_000, 0)):
        stream = compress(form, wire.pack(form, np.zeros(count, dtype=np.uint8)))[40:]
        assert stream[0] & 1 == alone


@pytest.mark.parametrize("levels", [2, 3, 5, 16, 17, 22, 23, 46, 60, 91, 129, 181, 256])
def test_equally_likely_codes_take_at_most_two_percent_more(levels):
    form = wire.Format.of(levels, "test")
    codes = np.random.default_rng(0).integers(0, levels, 200_000).astype(np.uint8)
    payload = wire.pack(form, codes)
    assert len(compress(form, payload)) < 1.02 * len(payload)


def test_every_flipped_bit_of_the_codes_is_an_error_or_nothing():
    payload = payload_of(PAPER, UPDATE[:500])
    good, refused = compress(PAPER, payload, pad_to=400), 0
    for bit in range(8 * len(good)):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        try:
            assert decompress(PAPER, bytes(data), 500) == payload  # a bit that deflate skips
        except ValueError:
            refused += 1
        else:
            assert bit >= 8 * 40
    assert refused > 0.99 * 8 * len(good)


def test_every_truncation_of_the_codes_is_an_error():
    good = compress(PAPER, payload_of(PAPER, UPDATE[:500]))
    for size in range(len(good)):
        with pytest.raises(ValueError, match=r"^Expected"):
            decompress(PAPER, good[:size], 500)


@given(st.binary(max_size=200), st.integers(0, 2**40))
def test_garbage_is_never_a_payload(garbage, dimension):
    for data in (garbage, b"RQPZ" + garbage, forged(PAPER, dimension, garbage)):
        with pytest.raises(ValueError, match=r"^Expected"):
            decompress(PAPER, data, dimension)


def test_what_the_codes_do_not_fill_is_refused():
    form = wire.Format.of(3, "test")
    good = payload = wire.pack(form, np.array([1, 0, 2, 0, 1, 2], dtype=np.uint8))
    checksum = payload[32:40]
    whole = bytes([100, 162])  # 10201 and 20000 in base 3
    assert decompress(form, forged(form, 6, deflated(whole), checksum), 6) == good
    for symbols, reason in (
        (bytes([100, 163]), "zeros after the last code"),
        (bytes([100, 243]), "bytes that hold codes below 3"),
        (bytes([101, 162]), "checksum"),
        (bytes([100]), "truncated"),
        (whole + b"\0", "got more"),
    ):
        with pytest.raises(ValueError, match=reason):
            decompress(form, forged(form, 6, deflated(symbols), checksum), 6)
    with pytest.raises(ValueError, match="zeros as padding"):
        decompress(form, forged(form, 6, deflated(whole) + b"\0\1", checksum), 6)
    with pytest.raises(ValueError, match="a deflate stream"):
        decompress(form, forged(form, 6, b"\xff" * 20, checksum), 6)


def test_a_bomb_is_refused_in_the_memory_of_what_was_expected():
    bomb = deflated(bytes(200_000_000))
    assert len(bomb) < 200_000
    for dimension in (0, 1000):
        data = forged(PAPER, dimension, bomb)
        tracemalloc.start()
        with pytest.raises(ValueError, match=f"Expected {dimension // 2} bytes after .* got more"):
            decompress(PAPER, data, dimension)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 3 * len(data)
    with pytest.raises(ValueError, match="1000 coordinates, got 400000000"):
        decompress(PAPER, forged(PAPER, 400_000_000, bomb), 1000)


def test_what_does_not_fit_or_is_no_payload_is_refused():
    payload = payload_of(PAPER, UPDATE[:100])
    with pytest.raises(ValueError, match=r"compress to pad_to=50 bytes, got \d+: choose a larger"):
        compress(PAPER, payload, pad_to=50)
    least = len(compress(PAPER, payload))
    for few in (0, 40, least - 40, least - 1):  # no message is longer than the others
        with pytest.raises(ValueError, match=f"pad_to={few} bytes, got {least}"):
            compress(PAPER, payload, pad_to=few)
    assert len(compress(PAPER, payload, pad_to=least)) == least
    with pytest.raises(ValueError, match="Expected pad_to"):
        compress(PAPER, payload, pad_to=-1)
    with pytest.raises(ValueError, match="truncated"):
        compress(PAPER, payload[:20])
    with pytest.raises(ValueError, match="channel"):
        compress(rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.43), payload)
    with pytest.raises(ValueError, match=r"starts with b'RQPZ', got b'RQPL'"):
        decompress(PAPER, payload, 100)
    for levels in (1, 257):
        wide = wire.Format.of(levels, "masked")
        with pytest.raises(ValueError, match=f"2 to 256 levels to compress, got {levels}"):
            compress(wide, payload)
        with pytest.raises(ValueError, match="2 to 256 levels"):
            decompress(wide, payload, 1)
