"""Finite fields and vectors over them (draft-irtf-cfrg-vdaf-20, section 6.1)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from Crypto.Hash import TurboSHAKE128

from randquant.secure_sums.vdaf import kernel

Vector = np.ndarray
"""Elements of a field, each below its modulus: (n,) or (n, 2) uint64, as in `vdaf.kernel`."""


class Field:
    """A field of prime order whose multiplicative group has a large subgroup of order 2**k.

    Names are the draft's; a scalar is a vector of one element.

    Args:
        modulus: the field's order.
        size: bytes of an encoded element, 8 or 16.
        order: GEN_ORDER, the subgroup's order.
    """

    def __init__(self, modulus: int, size: int, order: int) -> None:
        self.MODULUS, self.ENCODED_SIZE, self.GEN_ORDER = modulus, size, order
        # The draft's generator, a power of 7 in both fields.
        self._generator = pow(7, (modulus - 1) // order, modulus)

    def zeros(self, length: int) -> Vector:
        return np.zeros((length, 2) if self.ENCODED_SIZE == 16 else length, np.uint64)

    def vector(self, integers: Sequence[int]) -> Vector:
        """Make a vector of integers, which are taken modulo the modulus."""
        size = self.ENCODED_SIZE
        encoded = b"".join((x % self.MODULUS).to_bytes(size, "little") for x in integers)
        return self.decode_vec(encoded)

    def small_vector(self, numbers: np.ndarray) -> Vector:
        """Make a vector of numbers (n,) below 2**32, of any integer type or bool."""
        vector = self.zeros(len(numbers))
        (vector if self.ENCODED_SIZE == 8 else vector[:, 0])[:] = numbers
        return vector

    def integers(self, vector: Vector) -> list[int]:
        if self.ENCODED_SIZE == 8:
            return vector.tolist()
        return [low + (high << 64) for low, high in vector.tolist()]

    def encode_vec(self, vector: Vector) -> memoryview:
        # Each element in little-endian bytes: on most machines those in memory, without a copy.
        return np.ascontiguousarray(vector, "<u8").reshape(-1).view(np.uint8).data

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
        if not (valid := self.below_modulus(vector)).all():
            raise ValueError(
                "Expected encoded numbers below the field's modulus, got one that is not, number "
                f"{int(valid.argmin())} of {len(vector)}."
            )
        return vector

    def words(self, encoded: Any) -> Vector:
        # Not checked: the numbers may be above the modulus.
        words = np.frombuffer(encoded, "<u8").astype(np.uint64)
        return words if self.ENCODED_SIZE == 8 else words.reshape(-1, 2)

    def below_modulus(self, words: Vector) -> np.ndarray:
        """Return (n,) bool: True for each number that is an element of the field."""
        if self.ENCODED_SIZE == 8:
            return words < self.MODULUS
        low, high = words[:, 0], words[:, 1]
        return (high < kernel.HIGH_128) | ((high == kernel.HIGH_128) & (low == 0))

    def vec_add(self, left: Vector, right: Vector, out: Vector | None = None) -> Vector:
        return self._elementwise(kernel.vec_add, left, right, out)

    def vec_sub(self, left: Vector, right: Vector, out: Vector | None = None) -> Vector:
        return self._elementwise(kernel.vec_sub, left, right, out)

    def dot(self, left: Vector, right: Vector) -> Vector:
        """Return the sum of products of two vectors.

        With a shorter `right`, one sum for each part of `left` of its length.
        """
        out = self.zeros(len(left) // len(right))
        kernel.vec_dot(left, right, out)
        return out

    def sum(self, vector: Vector) -> Vector:
        return self.dot(vector, np.broadcast_to(self.vector([1]), vector.shape).copy())

    def nth_root(self, n: int) -> int:
        """Return the principal n-th root of unity, n a power of two (section 6.1.2)."""
        if not 1 <= n <= self.GEN_ORDER or n & (n - 1):
            raise ValueError(f"Expected a power of two up to {self.GEN_ORDER}, got {n}.")
        return pow(self._generator, self.GEN_ORDER // n, self.MODULUS)

    @functools.lru_cache(maxsize=16)  # noqa: B019 - there are two fields
    def nth_root_powers(self, n: int) -> Vector:
        """Return all n-th roots of unity, in order."""
        roots = self.zeros(n)
        roots[:1] = self.vector([1])
        kernel.powers(self.vector([self.nth_root(n)]), roots)
        return roots

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def odd_value_scales(self, n: int) -> Vector:
        """Return the `scales` of `kernel.odd_values` for n values."""
        reversed_order = np.zeros(1, np.int64)  # 0..n-1, bits reversed
        while len(reversed_order) < n:
            reversed_order = np.concatenate([2 * reversed_order, 2 * reversed_order + 1])
        inverse, factor = pow(n, -1, self.MODULUS), self.nth_root(2 * n)
        scales = self.zeros(n)
        scales[:1] = self.vector([inverse])
        kernel.powers(self.vector([factor]), scales)
        return scales[reversed_order]

    def lagrange(self, n: int, point: int) -> Vector:
        """Return weights (n,): a polynomial's value at a point is the weighted sum of its values.

        Those are its values at the n-th roots of unity.
        `Lagrange.poly_eval_batched` of the draft computes the same, for any number of polynomials.
        """
        scale, weights = (-1) ** (n - 1) * pow(n, -1, self.MODULUS), self.zeros(n)
        roots = self.nth_root_powers(n)
        kernel.lagrange(roots, self.vector([point]), self.vector([scale]), weights)
        return weights

    def _elementwise(self, loop: Any, left: Vector, right: Vector, out: Vector | None) -> Vector:
        if len(left) != len(right):
            raise ValueError(
                f"Expected vectors of one length, got {len(left)} and {len(right)} elements."
            )
        out = np.empty_like(left) if out is None else out
        loop(left, right, out)
        return out


Field64 = Field(kernel.MODULUS_64, 8, 2**32)
Field128 = Field(kernel.MODULUS_128, 16, 2**66)


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

        Both moduli begin with a one in the highest bit of their size, so that the draft's mask
        changes nothing.
        """
        vector, filled = field.zeros(length), 0
        while filled < length:
            count = min(length - filled, _READ_BYTES // field.ENCODED_SIZE)
            words = field.words(self.next(count * field.ENCODED_SIZE))
            valid = field.below_modulus(words)
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
