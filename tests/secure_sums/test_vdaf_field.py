"""Fields, the XOF's elements and proofs, against Python integers and the textbook's formulas."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from proofs_oracle import SLOW, edges

from randquant.secure_sums import Field64, Flp, SumVec, XofTurboShake128, chunk_length


def test_sums_differences_and_products_are_those_of_integers():
    field, modulus = Field64, SLOW.modulus
    assert modulus == field.MODULUS
    pairs = list(product(edges(modulus, np.random.default_rng(1)), repeat=2))
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    a, b = field.vector(left), field.vector(right)
    assert field.integers(a) == left
    assert field.integers(field.vec_add(a, b)) == [(x + y) % modulus for x, y in pairs]
    assert field.integers(field.vec_sub(a, b)) == [(x - y) % modulus for x, y in pairs]
    each = [field.integers(field.dot(a[i : i + 1], b[i : i + 1]))[0] for i in range(len(pairs))]
    assert each == [x * y % modulus for x, y in pairs]
    assert field.integers(field.dot(a, b)) == [sum(x * y for x, y in pairs) % modulus]
    assert field.integers(field.sum(a)) == [sum(left) % modulus]


def test_bytes_that_are_no_elements_are_refused():
    field = Field64
    vector = field.vector([0, field.MODULUS - 1])
    assert (field.decode_vec(bytes(field.encode_vec(vector))) == vector).all()
    for number in (field.MODULUS, field.MODULUS + 1, 256**field.ENCODED_SIZE - 1):
        with pytest.raises(ValueError, match="below the field's modulus"):
            field.decode_vec(number.to_bytes(field.ENCODED_SIZE, "little"))
    with pytest.raises(ValueError, match="multiple of"):
        field.decode_vec(bytes(field.ENCODED_SIZE + 1))
    with pytest.raises(ValueError, match="one length"):
        field.vec_add(vector, vector[:1])
    for n in (0, 3, 2 * field.GEN_ORDER):
        with pytest.raises(ValueError, match="power of two"):
            field.nth_root(n)


def test_the_xof_skips_numbers_that_are_no_elements(monkeypatch):
    """Which happens once in 2**32 numbers, so that the stream is made up here."""
    field = Field64
    size, modulus = field.ENCODED_SIZE, field.MODULUS
    numbers = [modulus, 5, 256**size - 1, modulus - 1, modulus + 1, 0, 7, modulus, 9, 11]
    stream = b"".join(number.to_bytes(size, "little") for number in numbers)
    read = [0]

    def following(self, length):
        read[0] += length
        return stream[read[0] - length : read[0]]

    monkeypatch.setattr(XofTurboShake128, "next", following)
    vector = XofTurboShake128(b"seed", b"tag").next_vec(field, 5)
    assert field.integers(vector) == [5, modulus - 1, 0, 7, 9]
    assert read[0] == 9 * size  # no number is read that is not needed


def test_a_long_vector_is_that_of_short_reads():
    """A vector longer than one read, and the stream in parts of any length."""
    long = XofTurboShake128.expand_into_vec(Field64, bytes(32), b"tag", b"binder", 300_000)
    xof = XofTurboShake128(bytes(32), b"tag", b"bin", b"der")
    parts = [Field64.decode_vec(xof.next(8 * count)) for count in (1, 131_071, 131_073, 37_855)]
    assert (np.concatenate(parts) == long).all()


def test_seeds_and_tags_that_are_too_long_are_refused():
    for seed, tag in ((bytes(256), b""), (b"", bytes(65536))):
        with pytest.raises(ValueError, match="at most"):
            XofTurboShake128(seed, tag)
    XofTurboShake128(bytes(255), bytes(65535))


@pytest.mark.parametrize(("length", "chunk"), [(1, 1), (5, 2), (7, 3), (4, 9), (12, 4)])
def test_proofs_and_queries_are_the_slow_ones(length, chunk):
    """Of valid and invalid measurements, and of shares, where any numbers come in."""
    field, oracle = Field64, SLOW
    flp = Flp(SumVec(field, length, 1, chunk))
    draw = np.random.default_rng(length)

    def random(count):
        return [int.from_bytes(draw.bytes(16), "little") % field.MODULUS for _ in range(count)]

    for meas in ([int(bit) for bit in draw.integers(0, 2, length)], random(length)):
        factors, seeds, point = random(flp.JOINT_RAND_LEN), random(2 * chunk), random(1)
        proof = flp.prove(field.vector(meas), field.vector(seeds), field.vector(factors))
        assert field.integers(proof) == oracle.prove(meas, factors, chunk, seeds)
        for shares in (1, 2, 3):
            share = random(flp.PROOF_LEN)
            found = flp.query(
                field.vector(meas),
                field.vector(share),
                field.vector(point),
                field.vector(factors),
                shares,
            )
            wanted = oracle.query(meas, share, factors, chunk, point[0], shares)
            assert field.integers(found) == wanted
        verifier = flp.query(
            field.vector(meas), proof, field.vector(point), field.vector(factors), 1
        )
        assert flp.decide(verifier) == (set(meas) <= {0, 1})


def test_a_query_at_a_root_of_unity_is_refused():
    field = Field64
    flp = Flp(SumVec(field, 5, 1, 2))
    zeros = field.zeros
    for root in SLOW.roots(4):
        with pytest.raises(ValueError, match="roots of unity"):
            flp.query(zeros(5), zeros(flp.PROOF_LEN), field.vector([root]), zeros(3), 2)
    between = SLOW.roots(8)[1]
    flp.query(zeros(5), zeros(flp.PROOF_LEN), field.vector([between]), zeros(3), 2)


@pytest.mark.parametrize("length", [1, 2, 10, 100, 650, 5089])
def test_the_chunk_length_has_the_shortest_proof(length):
    chunk = chunk_length(length)
    sizes = {c: Flp(SumVec(Field64, length, 1, c)).PROOF_LEN for c in range(1, length + 1)}
    assert sizes[chunk] == min(sizes.values())


@pytest.mark.parametrize(("length", "below"), [(5089, -168), (1_000_000, -157)])
def test_a_proof_fails_as_rarely_as_the_theory_says(length, below):
    three = Flp(SumVec(Field64, length, 1, chunk_length(length))).error ** 3
    assert 2.0 ** (below - 1) < three < 2.0**below
