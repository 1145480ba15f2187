"""Chosen random words: a draw or a dither one below, at and one above each of its thresholds.

Random words would find none of these in any number of tests: each has a probability of 2^-32 or
2^-62.
"""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import oracle
import pytest
import reference_encoder

import randquant as rq
from randquant.channels import (
    CELL_BUCKET_COUNT,
    CHUNK_SIZE,
    Channel,
    Key,
    encode_payload,
    encode_payloads,
    kernels,
    scratch,
    tables,
    wire,
)

NONE = np.empty(0, dtype=np.uint64)
JUNK = np.uint64(0xFFFFFFFF << 30)
"""Bits of a word for ties that no draw may use."""


class Planted(Key):
    """A key of chosen words: one sequence of them for each label."""

    __slots__ = ("_words",)

    def __init__(self, words: dict[str, np.ndarray]) -> None:
        super().__init__(bytes(32))
        self._words = words

    def fold_in(self, *labels: int | str) -> Planted:
        (label,) = labels
        return Planted({"": self._words[str(label)]})

    def words(self, count: int, start: int = 0) -> np.ndarray:
        padded = np.append(self._words[""], np.zeros(2, np.uint64))  # of an odd number, one more
        assert start + count <= padded.size
        return padded[start : start + count]

    def stream(self, start: int = 0):
        at = [start]

        def fill(buffer: np.ndarray) -> None:
            buffer[:] = self.words(buffer.size, at[0])
            at[0] += buffer.size

        return fill


def planted(dithers, draws) -> Planted:
    """The key under which coordinates get these dithers of 32 bits and draws of 62."""
    dithers, draws = (np.array(each, dtype=np.uint64) for each in (dithers, draws))
    high, low = draws >> np.uint64(30), draws & np.uint64(2**30 - 1)
    return Planted({"draw": (high << np.uint64(32)) | dithers, "tie": low | JUNK})


def all_encoders(channel: Channel, x: np.ndarray, key: Planted) -> dict[str, np.ndarray]:
    """Codes by every way there is to draw them."""
    payloads = {
        "payload": encode_payload(channel, x, key),
        "rows": encode_payloads(channel, x[None], [key])[0],
    }
    codes = {name: wire.unpack(channel, payload, x.size) for name, payload in payloads.items()}
    return codes | {
        "codes": rq.encode(channel, x, key),
        "reference": reference_encoder.encode(channel, x, key),
    }


def check(channel: Channel, cases: list[tuple[float, int, int]]) -> None:
    """Every encoder against the oracle, for (x, dither, draw) anywhere in an update."""
    expected = np.array([oracle.drawn(channel, *case) for case in cases])
    xs, dithers, draws = (np.array(each, dtype=kind) for each, kind in zip(
        zip(*cases, strict=True), (np.float64, np.uint64, np.uint64), strict=True
    ))  # fmt: skip
    for count in (len(cases), 2 * CHUNK_SIZE + 99):  # within a block; over chunks and blocks
        order = np.random.default_rng(count).integers(0, len(cases), count)
        order[: len(cases)] = np.arange(len(cases))
        key = planted(dithers[order], draws[order])
        for name, codes in all_encoders(channel, xs[order], key).items():
            wrong = np.flatnonzero(codes != expected[order])
            assert wrong.size == 0, (name, cases[order[wrong[0]]], wrong[0])


def visible(inputs: list[float]) -> Channel:
    """A channel whose code is the vertex."""
    weights = 8 * np.eye(len(inputs), dtype=np.int64)
    return Channel(np.array(inputs), np.arange(float(len(inputs))), weights, 8)


DYADIC = visible([-1.0, -0.5, -0.5, 0.0, 1.0])  # cells of 1/2, 0 (a jump), 1/2 and 1: all exact


def dither_cases() -> list[tuple[float, int, int]]:
    """Positions at, and a quarter and a half of a step beside, whole steps of the dither."""
    cases = []
    for left, width in ((-1.0, 0.5), (-0.5, 0.5), (0.0, 1.0)):
        steps = (0, 1, 2, 3, 2**16, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 2, 2**32 - 1)
        for whole, part in itertools.product(steps, (0.0, 0.25, 0.5, 0.75)):
            place = Fraction(whole) + Fraction(part)
            x = float(Fraction(left) + Fraction(width) * place / 2**32)
            rounded = whole + (part >= 0.5)
            for dither in {rounded - 1, rounded, rounded + 1, 0, 2**32 - 1}:
                if 0 <= dither < 2**32:
                    cases.append((x, dither, 2**61))
    return [*cases, (1.0, 2**32 - 1, 0), (1.0, 0, 2**62 - 1)]


def test_a_dither_at_its_threshold():
    check(DYADIC, dither_cases())


def test_the_stated_mix_counts_the_dithers_of_each_row():
    """`Channel.mix` says exactly how many dithers lead to each vertex."""
    for x in {case[0] for case in dither_cases()}:
        weights, total = DYADIC.mix(x)
        assert total == 2**32 * 8
        reached = [int(weight) // 8 for weight in weights]
        assert sum(reached) == 2**32
        upper = max(v for v, dithers in enumerate(reached) if dithers)
        for dither in (0, reached[upper] - 1, reached[upper], 2**32 - 1):
            if dither < 2**32:
                assert oracle.drawn(DYADIC, x, dither, 0) == upper - (dither >= reached[upper])


def row_of(cuts: list[int]) -> np.ndarray:
    return np.diff(np.array([0, *cuts, 2**62], dtype=object)).astype(np.int64)


BUCKET, STEP = 2**52, 2**30  # draws that share a guide entry, and their first 32 bits
CUTS = {
    "ends of buckets": [1, STEP, BUCKET - 1, BUCKET, BUCKET + 1, 5 * BUCKET - 1, 2**62 - 1],
    "ends of steps": [STEP - 1, 7 * STEP - 1, 7 * STEP, 7 * STEP + 1, BUCKET + STEP - 1, 2**61],
    "next to each other": [2**61 - 1, 2**61, 2**61 + 1, 2**61 + 2, 2**61 + STEP - 1, 2**62 - STEP],
    "impossible codes": [0, 0, BUCKET - 1, BUCKET - 1, 2**61, 2**62 - 1, 2**62],
}


@pytest.mark.parametrize("name", CUTS)
def test_a_draw_at_its_threshold(name):
    """At a vertex, where the row is certain; the other vertex has another row."""
    cuts = CUTS[name]
    other = [min(cut + 1, 2**62) for cut in cuts]
    rows = np.array([row_of(cuts), row_of(other)])
    channel = Channel(np.array([-1.0, 1.0]), np.arange(float(len(cuts) + 1)), rows, 2**62)
    near = {0, 2**62 - 1} | {cut + shift for cut in cuts for shift in (-2, -1, 0, 1, STEP, -STEP)}
    draws = sorted(draw for draw in near if 0 <= draw < 2**62)
    check(channel, [(x, 2**31, draw) for x in (-1.0, 1.0) for draw in draws])


def test_small_denominators_are_scaled_up_exactly():
    rows = np.array([[1, 0, 7], [5, 2, 1]])
    channel = Channel(np.array([-1.0, 1.0]), np.arange(3.0), rows, 8)
    draws = [eighth * 2**59 + shift for eighth in range(1, 8) for shift in (-1, 0, 1)]
    check(channel, [(x, 0, draw) for x in (-1.0, 1.0) for draw in draws])


def test_a_draw_that_32_bits_settle_is_no_tie():
    """Beside a step of first bits that holds a threshold: the second stream is not asked."""
    channel = Channel(
        np.array([-1.0, 1.0]), np.arange(2.0), np.array([row_of([7 * STEP - 1])] * 2), 2**62
    )
    for first, status in ((5, 0), (6, kernels.TIE), (7, 0)):
        words, body = np.full(1, first << 32, np.uint64), np.zeros(1, np.uint8)
        assert kernels.encode(np.zeros(1), words, NONE, *tables(channel), 8, body) == status


@pytest.mark.parametrize("clip", [1.0, 1.5, 0.1, 1 / 3, 700.0, 2.7e-9])
def test_inputs_beside_a_jump_take_its_own_side(clip):
    """Jumps at the edges of the lookup's buckets, where its products are rounded."""
    edges = clip * (2 * np.arange(1, CELL_BUCKET_COUNT) / CELL_BUCKET_COUNT - 1)
    for chosen in (edges[::9], edges[4::9], np.nextafter(edges[::9], clip)):
        inputs = np.array([-clip, *np.repeat(chosen, 2), clip])
        weights = np.zeros((inputs.size, 2), dtype=np.int64)
        weights[np.arange(inputs.size), np.arange(inputs.size) % 2] = 4  # left limits: 1, right: 0
        channel = Channel(inputs, np.arange(2.0), weights, 4)
        key = planted(np.zeros(chosen.size), np.zeros(chosen.size))
        before = np.nextafter(chosen, -np.inf)
        assert rq.encode(channel, before, key).all()
        assert not rq.encode(channel, chosen, planted([2**32 - 1] * chosen.size, chosen * 0)).any()


def test_a_jump_that_its_product_puts_into_the_bucket_before():
    """One ulp beyond a bucket's edge, with as many vertices before it as the lookup allows for."""
    clip, bucket = 1.4442534981735462, 358
    edges = -clip + np.arange(CELL_BUCKET_COUNT) / (CELL_BUCKET_COUNT / (2 * clip))
    jump = np.nextafter(edges[bucket], clip)
    assert int((jump + clip) * (CELL_BUCKET_COUNT / (2 * clip))) == bucket - 1
    earlier = edges[bucket - 2 : bucket].mean()
    inputs = np.array([-clip, earlier, earlier, jump, jump, clip])
    weights = np.zeros((6, 6), dtype=np.int64)
    np.fill_diagonal(weights, 4)
    channel = Channel(inputs, np.arange(6.0), weights, 4)
    x = np.array([np.nextafter(earlier, -clip), earlier, np.nextafter(jump, -clip), jump])
    for dither in (0, 2**32 - 1):
        codes = rq.encode(channel, x, planted([dither] * 4, [0] * 4))
        assert codes[1] == 2
        assert codes[3] == 4
    assert rq.encode(channel, x, planted([0] * 4, [0] * 4)).tolist() == [1, 2, 3, 4]


def test_clipped_inputs_are_at_the_last_vertex():
    """One ulp inside clip the dither may still go the other way, at clip and beyond it cannot."""
    channel = visible([-1.0, 1.0])
    for x, code in ((1.0, 1), (1.5, 1), (1e300, 1), (-1.0, 0), (-1.5, 0), (-1e300, 0)):
        for dither in (0, 2**32 - 1):
            assert rq.encode(channel, np.array([x]), planted([dither], [0]))[0] == code


def test_threads_have_words_of_their_own():
    """What one thread draws into, no other may write to while it encodes."""
    both = threading.Barrier(2, timeout=300)

    def mine(_) -> np.ndarray:
        both.wait()
        return scratch("words", np.uint64, 100)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(mine, range(2))
    assert not np.shares_memory(first, second)
