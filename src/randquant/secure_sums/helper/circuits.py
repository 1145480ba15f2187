"""Field64 and the circuit `SumVec` over it (draft-irtf-cfrg-vdaf-20, 6.1, 7.3.2 and 7.4.3).

A circuit describes a kind of measurements, and accepts the valid ones. Codes need this one alone.
The draft's `eval` is in two parts here, since it calls one gadget on wires that do not depend on
the gadget's outputs: `wires` has the gadget's inputs, `eval` takes its outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from Crypto.Hash import TurboSHAKE128

from randquant._internal import validate
from randquant.secure_sums.helper import field_kernel

Vector = np.ndarray
"""Elements of the field, each below its modulus: (n,) uint64."""


class Field:
    """The field of prime order 2**64 - 2**32 + 1, with a large subgroup of order 2**32.

    Names are the draft's; a scalar is a vector of one element.
    """

    MODULUS, ENCODED_SIZE, GEN_ORDER = field_kernel.MODULUS_64, 8, 2**32

    def zeros(self, length: int) -> Vector:
        return np.zeros(length, np.uint64)

    def vector(self, integers: Sequence[int]) -> Vector:
        """Make a vector of integers, which are taken modulo the modulus."""
        return np.array([x % self.MODULUS for x in integers], np.uint64)

    def integers(self, vector: Vector) -> list[int]:
        return vector.tolist()

    def encode_vec(self, vector: Vector) -> memoryview:
        # Each element in little-endian bytes: on most machines those in memory, without a copy.
        return np.ascontiguousarray(vector, "<u8").view(np.uint8).data

    def decode_vec(self, encoded: Any) -> Vector:
        """Decode a vector.

        Raises:
            ValueError: the length is not a multiple of an element's, or a number is too large.
        """
        if len(encoded) % self.ENCODED_SIZE:
            raise ValueError(
                f"Expected a multiple of {self.ENCODED_SIZE} bytes, got {len(encoded)}."
            )
        vector = self.words(encoded)
        # Compiled loops assume reduced elements; and one element must have one encoding.
        if not (valid := vector < self.MODULUS).all():
            raise ValueError(
                "Expected encoded numbers below the field's modulus, got one that is not, number "
                f"{int(valid.argmin())} of {len(vector)}."
            )
        return vector

    def words(self, encoded: Any) -> Vector:
        # Not checked: the numbers may be above the modulus.
        return np.frombuffer(encoded, "<u8").astype(np.uint64)

    def vec_add(self, left: Vector, right: Vector, out: Vector | None = None) -> Vector:
        return self._elementwise(field_kernel.vec_add, left, right, out)

    def vec_sub(self, left: Vector, right: Vector, out: Vector | None = None) -> Vector:
        return self._elementwise(field_kernel.vec_sub, left, right, out)

    def dot(self, left: Vector, right: Vector) -> Vector:
        """Return the sum of products of two vectors.

        With a shorter `right`, one sum for each part of `left` of its length.
        """
        out = self.zeros(len(left) // len(right))
        field_kernel.vec_dot(left, right, out)
        return out

    def sum(self, vector: Vector) -> Vector:
        return self.dot(vector, np.ones_like(vector))

    def nth_root(self, n: int) -> int:
        """Return the principal n-th root of unity, n a power of two (section 6.1.2)."""
        if not 1 <= n <= self.GEN_ORDER or n & (n - 1):
            raise ValueError(f"Expected a power of two up to {self.GEN_ORDER}, got {n}.")
        # The draft's generator is a power of 7.
        return pow(7, (self.MODULUS - 1) // n, self.MODULUS)

    @functools.lru_cache(maxsize=16)  # noqa: B019 - there is one field
    def nth_root_powers(self, n: int) -> Vector:
        """Return all n-th roots of unity, in order."""
        roots = self.zeros(n)
        roots[:1] = self.vector([1])
        field_kernel.powers(self.vector([self.nth_root(n)]), roots)
        return roots

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def odd_value_scales(self, n: int) -> Vector:
        """Return the `scales` of `field_kernel.odd_values` for n values."""
        reversed_order = np.zeros(1, np.int64)  # 0..n-1, bits reversed
        while len(reversed_order) < n:
            reversed_order = np.concatenate([2 * reversed_order, 2 * reversed_order + 1])
        inverse, factor = pow(n, -1, self.MODULUS), self.nth_root(2 * n)
        scales = self.zeros(n)
        scales[:1] = self.vector([inverse])
        field_kernel.powers(self.vector([factor]), scales)
        return scales[reversed_order]

    def lagrange(self, n: int, point: int) -> Vector:
        """Return weights (n,): a polynomial's value at a point is the weighted sum of its values.

        Those are its values at the n-th roots of unity.
        `Lagrange.poly_eval_batched` of the draft computes the same, for any number of polynomials.
        """
        scale, weights = (-1) ** (n - 1) * pow(n, -1, self.MODULUS), self.zeros(n)
        roots = self.nth_root_powers(n)
        field_kernel.lagrange(roots, self.vector([point]), self.vector([scale]), weights)
        return weights

    def _elementwise(self, loop: Any, left: Vector, right: Vector, out: Vector | None) -> Vector:
        if len(left) != len(right):
            raise ValueError(
                f"Expected vectors of one length, got {len(left)} and {len(right)} elements."
            )
        out = np.empty_like(left) if out is None else out
        loop(left, right, out)
        return out


Field64 = Field()


# XofTurboShake128: seeds and field elements from seeds (draft-irtf-cfrg-vdaf-20, section 6.2).

VERSION = 18
"""Version of the draft's algorithms, which is part of every domain separation tag."""

_READ_BYTES = 2**20
"""Bytes of the stream that are read at once: memory in addition to the vector that is drawn,
which larger reads would double."""


class XofTurboShake128:
    """A stream of bytes that seed, tag and binder determine (section 6.2.1).

    Args:
        seed: up to 255 bytes.
        dst: the domain separation tag, up to 65,535 bytes.
        binder: bytes, or parts of them that are absorbed one after the other.
    """

    SEED_SIZE = 32

    def __init__(self, seed: bytes, dst: bytes, *binder: Any) -> None:
        if len(seed) > 255 or len(dst) > 65535:
            raise ValueError(
                "Expected a seed of 255 and a tag of 65,535 bytes at most, got "
                f"{len(seed)} and {len(dst)}."
            )
        head = len(dst).to_bytes(2, "little") + dst + len(seed).to_bytes(1, "little") + seed
        self._stream = TurboSHAKE128.new(data=head, domain=1)
        for part in binder:
            self._stream.update(part)

    def next(self, length: int) -> bytes:
        return self._stream.read(length)

    def next_vec(self, field: Field, length: int) -> Vector:
        """Draw the next elements; numbers that are not below the modulus are skipped (section 6.2).

        The modulus begins with a one in the highest bit of its size, so that the draft's mask
        changes nothing.
        """
        vector, filled = field.zeros(length), 0
        while filled < length:
            count = min(length - filled, _READ_BYTES // field.ENCODED_SIZE)
            words = field.words(self.next(count * field.ENCODED_SIZE))
            valid = words < field.MODULUS
            words = words if valid.all() else words[valid]
            vector[filled : filled + len(words)] = words
            filled += len(words)
        return vector

    @classmethod
    def derive_seed(cls, seed: bytes, dst: bytes, *binder: Any) -> bytes:
        return cls(seed, dst, *binder).next(cls.SEED_SIZE)

    @classmethod
    def expand_into_vec(
        cls, field: Field, seed: bytes, dst: bytes, binder: bytes, length: int
    ) -> Vector:
        return cls(seed, dst, binder).next_vec(field, length)


def format_dst(algorithm_class: int, algorithm: int, usage: int) -> bytes:
    """Format a domain separation tag (section 6.2.3)."""
    parts = ((VERSION, 1), (algorithm_class, 1), (algorithm, 4), (usage, 2))
    return b"".join(number.to_bytes(size, "big") for number, size in parts)


GADGET_DEGREE = 2
"""Degree of the gadget as a polynomial in its wires. With 3, the gadget polynomial in a proof
would be half as long again, and the kernel would have to multiply three wires."""


class ParallelSum:
    """The gadget, which is not affine: a sum of `count` products (A.3 with `Mul` as sub-circuit).

    Attributes:
        ARITY: number of wires.
    """

    def __init__(self, count: int) -> None:
        self.ARITY = 2 * count

    def factors(self, wires: Vector) -> tuple[Vector, Vector]:
        """Return (n,) left and (n,) right factors of the products, for one value of each wire."""
        # Even wires are left factors, odd ones right factors. Compiled loops take whole arrays.
        return np.ascontiguousarray(wires[0::2]), np.ascontiguousarray(wires[1::2])

    def wires(self, left: Vector, right: Vector) -> Vector:
        """Return the wires that have these left and right factors: (2n,)."""
        return np.stack([left, right], axis=1).reshape(-1)


class SumVec:
    """A measurement is a vector of integers from 0 to `max_measurement` (section 7.4.3).

    Each entry of the encoded measurement is 0 or 1. Entries are checked `chunk_length` in a call,
    multiplied by powers of the call's joint randomness r: the gadget adds up
    r**(j+1) * m[j] * (m[j] - 1).

    Example:
        >>> import os
        >>> from randquant.secure_sums import Field64, Prio3
        >>> bits = SumVec(Field64, length=6, max_measurement=1, chunk_length=2)
        >>> prio3 = Prio3(bits, algorithm=0xFFFFFFFF, proofs=3)
        >>> nonce, key = os.urandom(16), os.urandom(32)
        >>> rand = os.urandom(prio3.RAND_SIZE)
        >>> public, shares = prio3.shard(b"run 7", [0, 1, 1, 0, 1, 0], nonce, rand)
        >>> states, verifiers = zip(*(
        ...     prio3.verify_init(key, b"run 7", j, nonce, public, shares[j]) for j in (0, 1)
        ... ))
        >>> message = prio3.verifier_shares_to_message(b"run 7", verifiers)
        >>> outputs = [prio3.verify_next(state, message) for state in states]
        >>> Field64.integers(Field64.vec_add(*outputs))
        [0, 1, 1, 0, 1, 0]
    """

    def __init__(self, field: Field, length: int, max_measurement: int, chunk_length: int) -> None:
        self.OUTPUT_LEN = length = validate.whole("length", length, low=1)
        self.field, self._range = field, RangeCheckedInt(field, max_measurement)
        self.MEAS_LEN = length * len(self._range.weights)
        chunk_length = validate.whole("chunk_length", chunk_length, low=1)
        self.GADGET = ParallelSum(chunk_length)
        self.GADGET_CALLS = self.JOINT_RAND_LEN = -(-self.MEAS_LEN // chunk_length)

    def encode(self, measurement: Sequence[int] | np.ndarray) -> Vector:
        """Encode each integer as bits: (MEAS_LEN,)."""
        if len(measurement) != self.OUTPUT_LEN:
            raise ValueError(
                f"Expected a measurement of {self.OUTPUT_LEN} entries, got {len(measurement)}."
            )
        return self._range.encode(measurement)

    def wires(self, joint_rand: Vector, num_shares: int) -> tuple[Vector, Vector]:
        """Return the wires, call by call: `factors` and `shift` of `field_kernel.product_poly`."""
        # Left wires are powers of r times entries, right wires entries less one. Each of the shares
        # subtracts its part of that one, so that their sum is right.
        return joint_rand, self.field.vector([pow(num_shares, -1, self.field.MODULUS)])

    def eval(self, outputs: Vector) -> Vector:
        """Compute the circuit's output, zero if valid, from (a share of) the gadget's."""
        # Zero for valid entries; for others with probability chunk_length / MODULUS at most
        # (theory/vdaf.md, Proposition 1).
        return self.field.sum(outputs)

    def truncate(self, meas: Vector) -> Vector:
        """Map (a share of) an encoded measurement to the vector that is added up: (OUTPUT_LEN,)."""
        return self._range.decode(meas)


def chunk_length(meas_len: int) -> int:
    """Choose the chunk length with the shortest proof (section 7.4.3.1).

    For each length of wire polynomials, a power of two, the smallest chunk that fits is best.

    Args:
        meas_len: entries of the encoded measurement.

    Example:
        >>> chunk_length(5089)
        81
    """
    meas_len = validate.whole("meas_len", meas_len, low=1)
    # A proof has two seeds for each entry of a chunk, and about two values for each of the p points
    # of a wire polynomial. One point is for the seeds, so that p - 1 calls fit.
    sizes = [2**k for k in range(1, meas_len.bit_length() + 2)]
    return min((2 * -(-meas_len // (p - 1)) + 2 * p, -(-meas_len // (p - 1))) for p in sizes)[1]


class RangeCheckedInt:
    """Integers from 0 to `largest` as bits with weights 1, 2, 4, ... (`encode_range_checked_int`).

    The last weight is smaller if necessary, so that the weights add up to `largest`: a client that
    sends valid bits cannot encode more.
    """

    def __init__(self, field: Field, largest: int) -> None:
        largest = validate.whole("largest measurement", largest, low=1, high=2**62)
        bits = largest.bit_length()
        self.field, self._largest, self._rest = field, largest, 2 ** (bits - 1) - 1
        self.weights = [1 << bit for bit in range(bits - 1)] + [largest - self._rest]

    def encode(self, values: Sequence[int] | np.ndarray) -> Vector:
        """Encode integers (n,), one after the other: (n * bits,)."""
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "bui" or numbers.ndim != 1:
            raise ValueError(
                f"Expected integers from 0 to {self._largest}, got an array of shape "
                f"{numbers.shape} and type {numbers.dtype}."
            )
        outside = np.count_nonzero((numbers < 0) | (numbers > self._largest))
        if outside:  # how many, and not which: a measurement is a secret
            raise ValueError(
                f"Expected integers from 0 to {self._largest}, got {outside} of {len(numbers)} "
                "outside."
            )
        numbers = numbers.astype(np.int64)
        # One of several encodings where the last weight is not a power of two: the last bit is set
        # only if the others do not suffice. All of them are valid, and have the same sum.
        last = numbers > self._rest
        rest = np.where(last, numbers - self.weights[-1], numbers)
        encoded = np.empty((len(numbers), len(self.weights)), np.uint8)
        for bit in range(len(self.weights) - 1):
            encoded[:, bit] = (rest >> bit) & 1
        encoded[:, -1] = last
        return encoded.reshape(-1).astype(np.uint64)

    def decode(self, encoded: Vector) -> Vector:
        # Linear, so that it works on shares as well.
        if len(self.weights) == 1:
            return encoded
        return self.field.dot(encoded, self.field.vector(self.weights))
