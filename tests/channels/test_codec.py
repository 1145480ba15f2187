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
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.encoding import batch as rows
from randquant.channels.encoding import kernel
from randquant.channels.encoding import threads as threads_module
from randquant.channels.encoding.batch import encode_payloads
from randquant.channels.encoding.codec import encode_payload
from randquant.channels.encoding.inputs import floats
from randquant.channels.encoding.threads import CHUNK, SEGMENT
from randquant.channels.encoding.thresholds import tables
from randquant.channels.keys import Key

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


@pytest.mark.parametrize("count", [0, 1, 7, 8, 255, 257, CHUNK - 1, CHUNK + 1, 2 * SEGMENT + 5])
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


@pytest.mark.parametrize("count", [CHUNK, CHUNK + 1])
@pytest.mark.parametrize("slab", [1, 3 * CHUNK])
def test_rows_of_any_length_and_however_many_at_a_time(count, slab, monkeypatch):
    monkeypatch.setattr(rows, "SLAB", slab)
    x, keys = normal(5 * count).reshape(5, count), [Key.from_seed(i) for i in range(5)]
    expected = [encode_payload(PAPER, *each) for each in zip(x, keys, strict=True)]
    assert encode_payloads(PAPER, x, keys) == expected


def test_rows_whose_draws_are_not_settled_are_drawn_again(monkeypatch):
    original = kernel.encode_rows

    def unsettled(*arguments):
        original(*arguments)
        bodies, statuses = arguments[-2:]
        bodies[1::2], statuses[1::2] = 0, kernel.TIE

    x, keys = normal(4 * 50).reshape(4, 50), [Key.generate() for _ in range(4)]
    expected = encode_payloads(PAPER, x, [Key(key._secret) for key in keys])
    monkeypatch.setattr(kernel, "encode_rows", unsettled)
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


# The tie path: draws that their first 32 bits do not settle --------------------------------------


def tie_channel() -> Channel:
    """Thresholds that differ in their last bits only, around one value of the first 32 bits."""
    middle = 1 << 61
    offsets = [-5, -1, 0, 1, 5, 1 << 29]
    cuts = [0, *(middle + offset for offset in offsets), 1 << 62]
    row = np.diff(np.array(cuts, dtype=np.int64))
    return Channel(np.array([-1.0, 1.0]), np.arange(7.0), np.array([row, row]), 1 << 62)


def test_ties_are_settled_by_the_full_draw():
    channel = tie_channel()
    x = np.zeros(16, dtype=np.float32)
    body = np.zeros(16, dtype=np.uint8)
    table = tables(channel)
    middle = np.uint64(1 << 31)  # the first 32 bits of 2**61
    words = np.full(16, middle << np.uint64(32))
    empty = np.empty(0, dtype=np.uint64)
    assert kernel.encode(x, words, empty, *table, 8, body) == kernel.TIE
    draws = np.array([0, 1, 4, 5, 6, (1 << 29) - 1, 1 << 29, (1 << 30) - 1] * 2, dtype=np.uint64)
    assert kernel.encode(x, words, draws, *table, 8, body) == 0
    assert body.tolist() == [3, 4, 4, 5, 5, 5, 6, 6] * 2
    words -= np.uint64(1) << np.uint64(32)
    draws = np.uint64(1 << 30) - np.array([6, 5, 4, 2, 1, 1, 1, 1] * 2, dtype=np.uint64)
    assert kernel.encode(x, words, draws, *table, 8, body) == 0
    assert body.tolist() == [0, 1, 1, 1, 2, 2, 2, 2] * 2


def test_a_tie_in_the_middle_of_an_update_is_redrawn_in_place(monkeypatch):
    calls = []
    original = kernel.encode

    def counting(x, words, low, *rest):
        if not calls and low.size == 0:  # pretend that the first chunk has a tie
            calls.append("tie")
            return kernel.TIE
        calls.append("exact" if low.size else "fast")
        return original(x, words, low, *rest)

    monkeypatch.setattr(kernel, "encode", counting)
    x, key = normal(CHUNK + 100), Key.from_seed(5)
    assert (rq.encode(PAPER, x, key) == reference_encoder.encode(PAPER, x, key)).all()
    assert calls == ["tie", "exact", "fast"]


# What is refused ----------------------------------------------------------------------------------


def test_there_is_one_thread_at_least(monkeypatch):
    """Where the system does not say how many cores there are."""
    monkeypatch.delattr(threads_module.os, "sched_getaffinity", raising=False)
    for counted, expected in ((None, 1), (6, 6)):
        monkeypatch.setattr(threads_module.os, "cpu_count", lambda counted=counted: counted)
        assert threads_module.cores() == expected
    assert threads_module.cores(3) == 3
    with pytest.raises(ValueError, match="threads"):
        threads_module.cores(0)


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


@pytest.mark.parametrize("index", [0, 7, 255, 256, CHUNK - 1, CHUNK, SEGMENT + CHUNK + 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_bad_number_is_named_by_every_encoder(index, bad):
    x, key = normal(2 * SEGMENT), Key.from_seed(0)
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


def test_inputs_outside_clip_are_clipped():
    key = Key.from_seed(1)
    inside = rq.encode(PAPER, np.full(1000, 1.5), key)
    assert (rq.encode(PAPER, np.full(1000, 1e30), key) == inside).all()
    assert (rq.encode(PAPER, np.full(1000, np.finfo(np.float64).max), key) == inside).all()


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

CHANNELS = {
    "rqm": PAPER,
    "pbm": rq.pbm(1.5, 0.25, 20),
    "two levels": rq.stochastic_rounding(1.5, 2, 0.5),
    "many levels": rq.rqm(1.5, 0.3, 200, 0.1),
}
POINTS = [-1.5, -1.4, -0.33, 0.0, 0.7001, 1.5]


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize("x", POINTS)
def test_codes_are_drawn_from_the_certified_row(name, x):
    channel = CHANNELS[name]
    codes = rq.encode(channel, np.full(DRAWS, x), Key.from_seed(11))
    weights, total = channel.mix(x)
    assert chance.fits(codes, np.array([float(w / total) for w in weights]))


@pytest.mark.parametrize("x", POINTS)
def test_a_level_biased_by_two_percent_is_caught(x):
    codes = rq.encode(planted.biased_level(PAPER, 0.02), np.full(DRAWS, x), Key.from_seed(11))
    weights, total = PAPER.mix(x)
    assert not chance.fits(codes, np.array([float(w / total) for w in weights]))


def test_swapped_rows_are_caught():
    codes = rq.encode(planted.swapped_rows(PAPER), np.full(DRAWS, -1.5), Key.from_seed(11))
    assert not chance.fits(codes, PAPER.probabilities[0])


def test_a_stuck_random_bit_is_caught():
    words = planted.modulo_words(Key.from_seed(3).words(CHUNK))
    body = np.zeros(CHUNK, dtype=np.uint8)
    empty = np.empty(0, dtype=np.uint64)
    x = np.zeros(CHUNK, dtype=np.float32)
    assert kernel.encode(x, words, empty, *tables(PAPER), 8, body) == 0
    weights, total = PAPER.mix(0.0)
    assert not chance.fits(body, np.array([float(w / total) for w in weights]))


@pytest.mark.parametrize("name", CHANNELS)
def test_the_decoded_mean_is_unbiased(name):
    channel = CHANNELS[name]
    x = normal(DRAWS, 2).clip(-1.5, 1.5)
    error = rq.decode(channel, rq.encode(channel, x, Key.from_seed(12))).astype(float) - x
    spread = float(np.ptp(channel.values)) + 2 * channel.clip
    assert chance.mean_is(error, 0.0, spread)
    assert not chance.mean_is(error + 0.02 * spread, 0.0, spread)


def test_neighbouring_coordinates_clients_and_rounds_are_independent():
    x = np.full(DRAWS, 0.4)
    root = Key.from_seed(13)
    first = rq.encode(PAPER, x, root.fold_in(1, "client", 1)).astype(float)
    other_client = rq.encode(PAPER, x, root.fold_in(1, "client", 2))
    other_round = rq.encode(PAPER, x, root.fold_in(2, "client", 1))
    for lag in (1, 2, 8, 256, CHUNK):
        assert chance.uncorrelated(first[:-lag], first[lag:])
    assert chance.uncorrelated(first, other_client)
    assert chance.uncorrelated(first, other_round)


def test_a_reused_key_is_caught():
    codes = planted.reused_key(PAPER, np.full(20_000, 0.4), 2, Key.from_seed(14))
    assert not chance.uncorrelated(codes[0].astype(float), codes[1])


@pytest.mark.parametrize("kind", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("levels", [3, 16])
def test_every_kind_of_input_is_encoded_as_if_it_were_float64(levels, kind):
    """Over several chunks, on two threads, of NumPy and torch."""
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=0.5)
    x = np.random.default_rng(levels).uniform(-1.2, 1.2, 2 * SEGMENT + 7)
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
