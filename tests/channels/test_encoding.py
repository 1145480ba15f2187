import tracemalloc

import chance
import numpy as np
import planted
import pytest
import reference_encoder
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import channels, mechanism_channels

import randquant as rq
from randquant.channels import (
    CHUNK_SIZE,
    SEGMENT_SIZE,
    Channel,
    Key,
    encode_payload,
    encode_payloads,
    floats,
    kernels,
    tables,
    wire,
)
from randquant.channels import encoding as rows

PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
DRAWS = 1_000_000


def normal(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


# Same codes as the slow reference -------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(channels() | mechanism_channels(), st.integers(0, 600), st.integers(0, 2**32))
def test_the_kernel_equals_the_reference(channel, count, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.2, 1.2, count) * channel.clip
    special = np.concatenate([channel.inputs, np.nextafter(channel.inputs, 0), [0.0, -0.0]])
    x[: len(special)] = special[: len(x)]
    for kind in (np.float64, np.float32, np.float16):
        with np.errstate(over="ignore"):
            values = np.nan_to_num(x.astype(kind))
        key = Key.from_seed(seed)
        expected = reference_encoder.encode(channel, values, key)
        assert (rq.encode(channel, values, key) == expected).all()


@pytest.mark.parametrize(
    "count", [0, 1, 7, 8, 255, 257, CHUNK_SIZE - 1, CHUNK_SIZE + 1, 2 * SEGMENT_SIZE + 5]
)
def test_chunks_and_threads_do_not_change_the_codes(count):
    x, key = normal(count), Key.from_seed(count)
    codes = rq.encode(PAPER, x, key)
    assert (codes == reference_encoder.encode(PAPER, x, key)).all()
    for threads in (2, 3, 7):
        assert (rq.encode(PAPER, x, key, threads=threads) == codes).all()
        assert encode_payload(PAPER, x, key, threads=threads) == wire.pack(PAPER, codes)


@settings(max_examples=60, deadline=None)
@given(
    channels() | mechanism_channels(), st.integers(0, 5), st.integers(0, 300), st.integers(0, 99)
)
def test_rows_are_the_payloads_of_their_clients(channel, clients, count, seed):
    x = np.random.default_rng(seed).uniform(-1.2, 1.2, (clients, count)) * channel.clip
    keys = [Key.from_seed(seed).fold_in(i) for i in range(clients)]
    for values in (x, x.astype(">f4"), np.asfortranarray(x.astype(np.float32))):
        expected = [encode_payload(channel, *each) for each in zip(values, keys, strict=True)]
        assert encode_payloads(channel, values, keys) == expected


@pytest.mark.parametrize("count", [CHUNK_SIZE, CHUNK_SIZE + 1])
@pytest.mark.parametrize("slab", [1, 3 * CHUNK_SIZE])
def test_rows_of_any_length_and_however_many_at_a_time(count, slab, monkeypatch):
    monkeypatch.setattr(rows, "SLAB_SIZE", slab)
    x, keys = normal(5 * count).reshape(5, count), [Key.from_seed(i) for i in range(5)]
    expected = [encode_payload(PAPER, *each) for each in zip(x, keys, strict=True)]
    assert encode_payloads(PAPER, x, keys) == expected


def test_rows_whose_draws_are_not_settled_are_drawn_again(monkeypatch):
    original = kernels.encode_rows

    def unsettled(*arguments):
        original(*arguments)
        bodies, statuses = arguments[-2:]
        bodies[1::2], statuses[1::2] = 0, kernels.TIE

    x, keys = normal(4 * 50).reshape(4, 50), [Key.generate() for _ in range(4)]
    expected = encode_payloads(PAPER, x, [Key(key._secret) for key in keys])
    monkeypatch.setattr(kernels, "encode_rows", unsettled)
    assert encode_payloads(PAPER, x, keys) == expected
    with pytest.raises(ValueError, match="Expected an unused key"):
        encode_payloads(PAPER, x, keys)


def test_rows_that_cannot_be_encoded_are_named():
    x, keys = np.zeros((3, 10)), [Key.from_seed(i) for i in range(3)]
    x[2, 7] = np.inf
    with pytest.raises(ValueError, match=r"got inf at index \[2, 7\]"):
        encode_payloads(PAPER, x, keys)
    for wrong in (x[:2], x[0]):
        with pytest.raises(ValueError, match="Expected a row for each of 3 keys"):
            encode_payloads(PAPER, wrong, keys)


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("x", [np.arange(3), np.zeros(3, np.longdouble), [1, 2], ["a"]])
def test_wrong_kinds_are_refused(x):
    with pytest.raises(TypeError, match="dtype"):
        rq.encode(PAPER, x, Key.from_seed(0))


@pytest.mark.parametrize("levels", [257, 512])
def test_more_than_256_levels_are_refused(levels):
    row = np.ones(levels, dtype=np.int64)
    row[0] += 512 - levels
    channel = Channel(np.array([-1.0, 1.0]), np.arange(float(levels)), np.array([row, row]), 512)
    with pytest.raises(ValueError, match="256"):
        rq.encode(channel, np.zeros(3), Key.from_seed(0))


def test_numbers_of_other_machines_keep_their_digits():
    """Codes would hardly tell: what the encoder reads must be the same number."""
    x = np.array([1 / 3, -1 / 7, 5e-324, 2.0**-140, 65504.0, -0.0])
    for kind in (">f8", "<f8", ">f4", "<f4", ">f2", "<f2"):
        array, widen = floats(x.astype(kind))
        wide = widen(array)
        assert wide.dtype.isnative
        assert wide.dtype.itemsize == max(4, array.dtype.itemsize)
        assert np.array_equal(wide.astype(np.float64), x.astype(kind).astype(np.float64))
    for value in (*x, -1e30, 3e38, np.inf):
        tensor = torch.tensor([value, 1.0]).to(torch.bfloat16)
        array, widen = floats(tensor)
        assert np.array_equal(widen(array), tensor.to(torch.float32).numpy())


def test_shared_tables_cannot_be_written_to():
    for table in tables(PAPER):
        if isinstance(table, np.ndarray):
            assert not table.flags.writeable


@pytest.mark.parametrize(
    "index", [0, 7, 255, 256, CHUNK_SIZE - 1, CHUNK_SIZE, SEGMENT_SIZE + CHUNK_SIZE + 1]
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_number_is_named_by_every_encoder(index, bad):
    x, key = normal(2 * SEGMENT_SIZE), Key.from_seed(0)
    x[[index, index + 7, -1]] = bad, np.nan, np.nan
    for encode in (rq.encode, encode_payload):
        for threads in (1, 2):
            with pytest.raises(ValueError, match=rf"got {bad} at index \[{index}\]"):
                encode(PAPER, x, key, threads=threads)
    row, place = divmod(index, 1000)
    with pytest.raises(ValueError, match=rf"got {bad} at index \[{row}, {place}\]"):
        rq.encode(PAPER, x[: x.size // 1000 * 1000].reshape(-1, 1000), key)
    with pytest.raises(ValueError, match=rf"got {bad} at index \[1, {index % 300}\]"):
        encode_payloads(
            PAPER, np.stack([normal(300), np.resize(x[index // 300 * 300 :], 300)]), [key, key]
        )


# Decoding -----------------------------------------------------------------------------------------


def test_decode_gives_each_codes_value():
    codes = np.arange(16).reshape(4, 4)
    decoded = rq.decode(PAPER, codes)
    assert decoded.dtype == np.float32
    assert (decoded == PAPER.values.astype(np.float32).reshape(4, 4)).all()


@pytest.mark.parametrize("codes", [[16], [-1], [0, 99]])
def test_codes_out_of_range_are_refused(codes):
    with pytest.raises(ValueError, match="codes 0 to 15"):
        rq.decode(PAPER, np.array(codes))
    for wrong in (np.array([0.5]), np.array([True])):
        with pytest.raises(TypeError, match="integer codes"):
            rq.decode(PAPER, wrong)


# Statistics: false-alarm rate 1e-6 a test, and a planted error beside each ------------------------


def pairs(a, b, levels):
    """How often each pair of codes occurs together."""
    return np.bincount(a.astype(np.int64) * levels + b, minlength=levels**2)


def test_pairs_of_codes_are_independent():
    """Every pair as often as its two rows say: of coordinates, of clients, of rounds."""
    x, root, m = np.full(4 * DRAWS, 0.37 * 1.5), Key.from_seed(22), PAPER.levels
    weights, total = PAPER.mix(0.37 * 1.5)
    row = np.array([float(weight / total) for weight in weights])
    both = np.outer(row, row).reshape(-1)
    first = rq.encode(PAPER, x, root.fold_in("round", 1, "client", 1))
    for lag in (1, 2, 7, 8, 256, CHUNK_SIZE, SEGMENT_SIZE):
        # Two halves that do not overlap: pairs are then independent of each other too.
        starts = np.arange(x.size - lag) // lag % 2 == 0
        assert chance.counts_fit(pairs(first[:-lag][starts], first[lag:][starts], m), both)
    for labels in (("round", 1, "client", 2), ("round", 2, "client", 1)):
        other = rq.encode(PAPER, x, root.fold_in(*labels))
        assert chance.counts_fit(pairs(first, other, m), both)
    assert not chance.counts_fit(pairs(first, first, m), both)
    biased = rq.encode(planted.biased_level(PAPER, 0.02), x, root.fold_in("another"))
    assert not chance.counts_fit(pairs(first, biased, m), both)


@pytest.mark.parametrize("kind", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("levels", [3, 16])
def test_every_kind_of_input_is_encoded_as_if_it_were_float64(levels, kind):
    """Over several chunks, on two threads, of NumPy and torch."""
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=0.5)
    x = np.random.default_rng(levels).uniform(-1.2, 1.2, 2 * SEGMENT_SIZE + 7)
    update = torch.from_numpy(x).to(getattr(torch, kind))
    wide = update.to(torch.float64).numpy()  # every one of these kinds is exact in it
    payload = encode_payload(channel, wide, Key.from_seed(1), threads=1)
    assert encode_payload(channel, update, Key.from_seed(1), threads=2) == payload
    if kind != "bfloat16":
        assert encode_payload(channel, update.numpy(), Key.from_seed(1)) == payload


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_encoding_makes_no_large_temporary(dtype):
    channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
    x = np.zeros(8_000_000, dtype=dtype)
    encode_payload(channel, x[:10], rq.Key.from_seed(1))
    tracemalloc.start()
    payload = encode_payload(channel, x, rq.Key.from_seed(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(payload) + 3_000_000
