import hashlib
import math

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import randquant as rq
from randquant.channels import Channel, block, encode_payload, length, wire

CHANNEL = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)


def channel_of(levels: int) -> Channel:
    row = np.zeros(levels, dtype=np.int64)
    row[0] = 4
    return Channel(np.array([-1.0, 1.0]), np.arange(float(levels)), np.array([row, row]), 4)


def random_codes(levels: int, count: int, seed: int = 0) -> np.ndarray:
    """Codes of which the last is the largest there is."""
    codes = np.random.default_rng(seed).integers(0, levels, count)
    codes[-1:] = levels - 1
    return codes.astype(np.uint8 if levels <= 256 else np.uint32)


@settings(deadline=None)
@given(
    st.integers(2, 256) | st.integers(9, 32).map(lambda bits: 2**bits),
    st.integers(0, 300) | st.just(1001), st.integers(0, 99),
)  # fmt: skip
def test_codes_survive_the_trip(levels, count, seed):
    """Those of channels, and wide ones, bit by bit."""
    form = channel_of(levels) if levels <= 256 else wire.Format.from_facts(levels, "test")
    codes = random_codes(levels, count, seed)
    payload = wire.pack(form, codes)
    assert len(payload) == 40 + oracle.body_bytes(levels, count)
    assert (wire.unpack(form, payload, count) == codes).all()
    assert (oracle.unpack(payload[40:], levels, count) == codes).all()


def test_no_code_takes_one_percent_more_than_its_information():
    for levels in range(2, 257):
        codes, bits = block(levels)
        assert levels**codes <= 2**bits
        assert bits <= min(1.01 * codes * math.log2(levels), 103)
        assert (codes, bits) == (1, math.log2(levels)) or levels & (levels - 1)
        many = 10**5 // codes * codes
        size = len(wire.pack(channel_of(levels), random_codes(levels, many)))
        assert size <= 41 + many * bits / 8


@pytest.mark.parametrize("levels", [3, 5, 6, 7, 60, 61, 127, 253])
def test_a_number_that_is_no_codes_is_refused(levels):
    """The largest number of a block's bits, and the least that is too large."""
    channel, (codes, bits) = channel_of(levels), block(levels)
    for number in (levels**codes, 2**bits - 1):
        if number >= 2**bits:
            continue
        body = np.frombuffer(number.to_bytes(-(-bits // 8), "little"), dtype=np.uint8)
        with pytest.raises(ValueError, match=f"codes below {levels}"):
            wire.unpack(channel, wire.frame(channel, codes, body), codes)
        for place in range(3):  # whichever block it is in
            numbers = [0, 0, 0]
            numbers[place] = number
            joined = sum(each << index * bits for index, each in enumerate(numbers))
            body = np.frombuffer(joined.to_bytes(-(-3 * bits // 8), "little"), dtype=np.uint8)
            with pytest.raises(ValueError, match=f"codes below {levels}"):
                wire.unpack(channel, wire.frame(channel, 3 * codes, body), 3 * codes)
    most = np.full(codes, levels - 1, dtype=np.uint8)
    assert (wire.unpack(channel, wire.pack(channel, most), codes) == most).all()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([3, 5, 60, 61, 253]), st.integers(0, 60_000), st.integers(1, 4))
def test_encoding_into_blocks_is_packing_the_codes(levels, count, threads):
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=0.5)
    x = np.random.default_rng(count).uniform(-1, 1, count).astype(np.float32)
    key = rq.Key.from_seed(count)
    payload = encode_payload(channel, x, key, threads=threads)
    assert payload == wire.pack(channel, rq.encode(channel, x, key))


def test_every_flipped_bit_is_one_clear_error():
    codes = random_codes(16, 33)
    payload = wire.pack(CHANNEL, codes)
    totals = np.zeros(33, dtype=np.int64)
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"^Expected"):
            wire.add(CHANNEL, bytes(damaged), totals)
    assert not totals.any()


def test_every_truncation_and_every_surplus_is_an_error():
    payload = wire.pack(CHANNEL, random_codes(16, 33))
    for size in range(len(payload)):
        with pytest.raises(ValueError, match="truncated"):
            wire.unpack(CHANNEL, payload[:size], 33)
    with pytest.raises(ValueError, match="too long"):
        wire.unpack(CHANNEL, payload + b"\0", 33)


@given(st.binary(max_size=100), st.integers(0, 2**40))
def test_garbage_is_never_an_array(garbage, dimension):
    # Dimensions of terabytes: refused before anything is allocated.
    with pytest.raises(ValueError, match=r"^Expected"):
        wire.unpack(CHANNEL, garbage, dimension)


def test_a_payload_is_these_bytes():
    """Written down by hand; digests by `openssl dgst -sha256`: of the format's name, of the rest.

    Old and new versions, and machines of either byte order, must agree on every one of them.
    """
    form = wire.Format.from_facts(16, "test")
    fingerprint = "2f1ae36e14f072b5fd87af67cf57f237"  # of (16, 'test')
    checksum = "7ee134eec73531d4"  # of all the others
    expected = "5251504c020010000500000000000000" + fingerprint + checksum + "210f07"
    codes = np.array([1, 2, 15, 0, 7], dtype=np.uint8)
    assert wire.pack(form, codes).hex() == expected
    assert (wire.unpack(form, bytes.fromhex(expected), 5) == codes).all()
    checked = bytes.fromhex(expected[:64] + expected[80:])
    assert hashlib.sha256(checked).hexdigest()[:16] == checksum


@pytest.mark.parametrize(
    ("offset", "byte", "message"),
    [
        (0, b"r", "starts with"),
        (4, b"\1", "version 2, got 1"),
        (4, b"\3", "version 2, got 3"),
        (5, b"\1", "version 2"),
        (6, b"\21", "with 16 levels, got channel .* with 17"),
        (8, b"\6", "5 coordinates, got 6"),
        (8, b"\4", "5 coordinates, got 4"),
        (15, b"\1", "5 coordinates, got 72057594037927941"),
        (16, b"\0", "payload of channel"),
        (31, b"\0", "payload of channel"),
        (32, b"\0", "checksum"),
        (39, b"\0", "checksum"),
    ],
)
def test_every_field_of_the_header_is_checked(offset, byte, message):
    form = wire.Format.from_facts(16, "test")
    payload = wire.pack(form, np.array([1, 2, 15, 0, 7], dtype=np.uint8))
    assert payload[offset : offset + 1] != byte
    forged = payload[:offset] + byte + payload[offset + 1 :]
    digest = hashlib.sha256(forged[:32] + forged[40:]).digest()[:8]
    for other in (forged, forged[:32] + digest + forged[40:]):
        if offset >= 32 and other is not forged:
            continue
        with pytest.raises(ValueError, match=message):
            wire.unpack(form, other, 5)


@pytest.mark.parametrize("levels", [3, 5, 127, *(2**bits for bits in range(1, 33))])
@pytest.mark.parametrize("kind", wire.TOTAL_TYPES)
def test_codes_are_added_to_what_is_there_wherever_they_are_in_memory(levels, kind):
    form, random = wire.Format.from_facts(levels, "test"), np.random.default_rng(levels)
    for count in (*range(1, 20), 31, 61, 64, 65, 1009):
        codes = random_codes(levels, count, count)
        payload = wire.pack(form, codes)
        start = count % 9  # a part of a larger message begins at any address
        message = memoryview(b"\xff" * start + payload + b"\xff" * 9)
        totals = random.integers(0, 2**31, count).astype(kind)
        expected = totals + codes.astype(kind)
        wire.add(form, message[start : start + len(payload)], totals)
        assert totals.dtype == kind
        assert (totals == expected).all()


def test_codes_that_do_not_exist_are_refused_on_both_sides():
    channel = channel_of(127)  # every code by itself, in 7 bits
    with pytest.raises(ValueError, match="below 127, got 127 at index 2"):
        wire.pack(channel, np.array([0, 4, 127, 255], dtype=np.uint8))
    body = np.frombuffer((127 << 14).to_bytes(3, "little"), dtype=np.uint8)
    payload = wire.frame(channel, 3, body)
    totals = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="below 127, got 127 at index 2"):
        wire.add(channel, payload, totals)
    channel = channel_of(5)  # three codes in 7 bits
    with pytest.raises(ValueError, match="below 5, got 7 at index 2"):
        wire.pack(channel, np.array([0, 4, 7], dtype=np.uint8))
    with pytest.raises(ValueError, match="blocks of codes below 5"):
        wire.add(channel, wire.frame(channel, 3, np.array([125], dtype=np.uint8)), totals)
    assert not totals.any()


@pytest.mark.parametrize(("levels", "count"), [(2, 1), (2, 7), (3, 3), (16, 1), (127, 1), (512, 3)])
def test_spare_bits_must_be_zero(levels, count):
    form = wire.Format.from_facts(levels, "test")
    used = length(levels, count)
    for bit in range(used, -(-used // 8) * 8):
        body = np.frombuffer((1 << bit).to_bytes(-(-used // 8), "little"), dtype=np.uint8)
        with pytest.raises(ValueError, match="spare bits"):
            wire.unpack(form, wire.frame(form, count, body), count)


def test_wrong_totals_are_refused():
    payload = wire.pack(CHANNEL, random_codes(16, 4))
    read_only = np.broadcast_to(np.int64(0), 4)
    narrow = [np.zeros(4, kind) for kind in (np.uint8, np.int8, np.int16, np.uint16)]
    for totals in (np.zeros((2, 2), np.int64), np.zeros(4), *narrow, read_only):
        with pytest.raises(TypeError, match="totals"):
            wire.add(CHANNEL, payload, totals)


def test_wrong_arrays_are_refused():
    for codes in (np.zeros(3), np.zeros(3, dtype=np.int64), np.zeros((2, 2), dtype=np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            wire.pack(CHANNEL, codes)


def test_sizes_that_a_padded_header_has_no_room_for_are_refused():
    """Beside its padding a count has 32 bits: one more would be read as another padding."""
    form = wire.Format.from_facts(2, "a coin")
    assert wire.sizes(wire.bare_header(form, 2**32 - 1, 5)) == (2**32 - 1, 5)
    for size in (2**32, 2**32 + 9, 2**33):
        with pytest.raises(ValueError, match="padding"):
            wire.bare_header(form, size, 5)


def test_padding_is_stated_and_checked():
    """Version 3: eight codes, three of them padding; written down by hand like the one above."""
    form = wire.Format.from_facts(16, "test")
    codes = np.array([1, 2, 15, 0, 7, 3, 3, 3], dtype=np.uint8)
    payload = wire.pack(form, codes, padding=3)
    assert payload[4:16].hex() == "030010000800000003000000"
    assert wire.sizes(payload) == (8, 3)
    assert wire.stated_dimension(form, payload) == 5
    for padding in (9, -(2**32)):
        with pytest.raises(ValueError, match="Expected padding of 0 to 8 codes"):
            wire.pack(form, codes, padding)


@pytest.mark.parametrize("stated", [-3, -1, 0, 1, 3])
def test_a_payload_is_read_only_as_what_its_header_says_of_padding(stated):
    """Codes of a part of an update are no codes of a padded one, also of as many coordinates."""
    form, codes = wire.Format.from_facts(16, "test"), np.arange(8, dtype=np.uint8)
    payload = wire.pack(form, codes, padding=stated)
    assert wire.stated_dimension(form, payload) == 8 - stated
    for expected in (-3, -1, 0, 1, 3):
        totals = np.zeros(8, dtype=np.int64)
        if expected == stated:
            assert (wire.unpack(form, payload, 8, expected) == codes).all()
            wire.add(form, payload, totals, expected)
            continue
        for read in (wire.unpack, wire.add):
            with pytest.raises(ValueError, match=f"of {8 - expected} coordinates, got"):
                read(form, payload, 8 if read is wire.unpack else totals, expected)
        assert not totals.any()


@pytest.mark.parametrize(("size", "padding"), [(8, 9), (8, 100), (8, 2**32 - 1), (0, 1)])
@pytest.mark.parametrize("read", ["unpack", "add", "dimension"])
def test_a_header_with_more_padding_than_codes_is_refused_though_its_checksum_fits(
    size, padding, read
):
    """Only a hostile sender writes one: no update has fewer than no coordinates."""
    form = wire.Format.from_facts(16, "test")
    body = bytes(size // 2)
    bare = wire.bare_header(form, size)[:8] + (size | padding << 32).to_bytes(8, "little")
    bare = bare[:4] + bytes([wire.PADDED_VERSION]) + bare[5:] + form.fingerprint
    payload = bare + hashlib.sha256(bare + body).digest()[:8] + body
    totals = np.zeros(size, dtype=np.int64)
    reading = {
        "unpack": lambda: wire.unpack(form, payload, size),
        "add": lambda: wire.add(form, payload, totals),
        "dimension": lambda: wire.stated_dimension(form, payload),
    }
    with pytest.raises(ValueError, match="Expected a payload of"):
        reading[read]()
    assert not totals.any()
