"""Validity circuits: kinds of measurements, and the valid ones (sections 7.3.2 and 7.4).

The draft's `eval` is in two parts here, since all its circuits call one gadget on wires that do not
depend on the gadget's outputs: `wires` has the gadget's inputs, `eval` takes its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from randquant._internal import validate
from randquant.secure_sums.vdaf.field import Field, Vector

# Gadgets: the parts of a validity circuit that are not affine (draft-irtf-cfrg-vdaf-20, annex A).
#
# Each of the draft's gadgets is a sum of products of two inputs, so that one compiled loop serves
# all. An input is a wire, or, in `PolyEval`, a wire less one.


class Gadget(Protocol):
    """A sub-circuit of degree 2.

    Attributes:
        ARITY: number of wires.
    """

    ARITY: int

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        """Return (n,) left and (n,) right factors of the products, for one value of each wire."""
        ...

    def wires(self, left: Vector, right: Vector) -> Vector:
        """Invert `factors`."""
        ...


GADGET_DEGREE = 2
"""Degree of each gadget as a polynomial in its wires. With 3, the gadget polynomial in a proof
would be half as long again, and the kernel would have to multiply three wires."""


def evaluate(gadget: Gadget, field: Field, wires: Vector) -> Vector:
    # `Gadget.eval` of the draft, for one value of each wire.
    return field.dot(*gadget.factors(field, wires))


class ParallelSum:
    """The sum of `count` products (A.3 with `Mul` as its sub-circuit)."""

    def __init__(self, count: int) -> None:
        self.ARITY = 2 * count

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        # Even wires are left factors, odd ones right factors. Compiled loops take whole arrays.
        return np.ascontiguousarray(wires[0::2]), np.ascontiguousarray(wires[1::2])

    def wires(self, left: Vector, right: Vector) -> Vector:
        return np.stack([left, right], axis=1).reshape(-1, *left.shape[1:])


class Mul(ParallelSum):
    """One product (A.1)."""

    def __init__(self) -> None:
        super().__init__(1)


class PolyEval:
    """The polynomial x**2 - x = x * (x - 1), the only one that the draft evaluates (A.2)."""

    ARITY = 1

    def factors(self, field: Field, wires: Vector) -> tuple[Vector, Vector]:
        return wires, field.vec_sub(wires, field.vector([1] * len(wires)))

    def wires(self, left: Vector, right: Vector) -> Vector:
        return left


class Valid(Protocol):
    """A validity circuit, with the names of section 7.3.2; GADGET_CALLS is of its one gadget."""

    field: Field
    GADGET: Gadget
    GADGET_CALLS: int
    MEAS_LEN: int
    JOINT_RAND_LEN: int
    EVAL_OUTPUT_LEN: int
    OUTPUT_LEN: int

    def encode(self, measurement: Any) -> Vector:
        """Encode a measurement: (MEAS_LEN,)."""
        ...

    def wires(self, joint_rand: Vector, num_shares: int) -> tuple[Vector, Vector]:
        """Return the wires, call by call, as `factors` and `shift` of `kernel.product_poly`."""
        ...

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        """Compute the circuit's outputs, zeros if valid, from (a share of) the gadget's."""
        ...

    def truncate(self, meas: Vector) -> Vector:
        """Map (a share of) an encoded measurement to the vector that is added up: (OUTPUT_LEN,)."""
        ...

    def decode(self, output: Vector, num_measurements: int) -> Any:
        """Map a sum of such vectors to the aggregate result."""
        ...


class Count:
    """A measurement is 0 or 1 (section 7.4.1)."""

    GADGET_CALLS = MEAS_LEN = OUTPUT_LEN = EVAL_OUTPUT_LEN = 1
    JOINT_RAND_LEN = 0

    def __init__(self, field: Field) -> None:
        self.field, self.GADGET, self._range = field, Mul(), RangeCheckedInt(field, 1)

    def encode(self, measurement: int) -> Vector:
        return self._range.encode([measurement])

    def wires(self, joint_rand: Vector, num_shares: int) -> tuple[Vector, Vector]:
        # Both wires are the measurement: the gadget's output is its square.
        return self.field.vector([1]), self.field.zeros(1)

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        # The square less the measurement, which is zero for 0 and 1 only.
        return self.field.vec_sub(outputs, meas)

    def truncate(self, meas: Vector) -> Vector:
        return meas

    def decode(self, output: Vector, num_measurements: int) -> int:
        return self.field.integers(output)[0]


class Sum:
    """A measurement is an integer from 0 to `max_measurement` (section 7.4.2)."""

    OUTPUT_LEN = 1
    JOINT_RAND_LEN = 0

    def __init__(self, field: Field, max_measurement: int) -> None:
        self.field, self._range = field, RangeCheckedInt(field, max_measurement)
        bits = len(self._range.weights)
        self.GADGET, self.GADGET_CALLS = PolyEval(), bits
        self.MEAS_LEN = self.EVAL_OUTPUT_LEN = bits

    def encode(self, measurement: int) -> Vector:
        return self._range.encode([measurement])

    def wires(self, joint_rand: Vector, num_shares: int) -> tuple[Vector, Vector]:
        # One bit in each call. The unused calls up to the end of the wire polynomial are zeros on
        # the wire, where x - 1 is not zero: they have a factor, too.
        ones = (1 << self.GADGET_CALLS.bit_length()) - 1
        return self.field.vector([1] * ones), self.field.vector([1])

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        return outputs

    def truncate(self, meas: Vector) -> Vector:
        return self._range.decode(meas)

    def decode(self, output: Vector, num_measurements: int) -> int:
        return self.field.integers(output)[0]


class RangeChecked:
    """The common part of the next three circuits: each encoded entry is 0 or 1.

    Entries are checked `chunk_length` in a call, multiplied by powers of the call's joint
    randomness r: the gadget adds up r**(j+1) * m[j] * (m[j] - 1).
    """

    def __init__(self, field: Field, meas_len: int, chunk_length: int) -> None:
        chunk_length = validate.whole("chunk_length", chunk_length, low=1)
        self.field, self.MEAS_LEN = field, meas_len
        self.GADGET: Gadget = ParallelSum(chunk_length)
        self.GADGET_CALLS = self.JOINT_RAND_LEN = -(-meas_len // chunk_length)

    def wires(self, joint_rand: Vector, num_shares: int) -> tuple[Vector, Vector]:
        # Left wires are powers of r times entries, right wires entries less one. Each of the shares
        # subtracts its part of that one, so that their sum is right.
        return joint_rand, self.field.vector([pow(num_shares, -1, self.field.MODULUS)])


class SumVec(RangeChecked):
    """A measurement is a vector of integers from 0 to `max_measurement` (section 7.4.3).

    Example:
        >>> import os
        >>> from randquant.secure_sums.vdaf import Prio3
        >>> from randquant.secure_sums.vdaf.field import Field64
        >>> bits = SumVec(Field64, length=6, max_measurement=1, chunk_length=2)
        >>> prio3 = Prio3(bits, algorithm=0xFFFFFFFF, proofs=3)
        >>> nonce, key = os.urandom(16), os.urandom(32)
        >>> rand = os.urandom(prio3.RAND_SIZE)
        >>> public, shares = prio3.shard(b"run 7", [0, 1, 1, 0, 1, 0], nonce, rand)
        >>> states, verifiers = zip(*(
        ...     prio3.verify_init(key, b"run 7", j, nonce, public, shares[j]) for j in (0, 1)
        ... ))
        >>> message = prio3.verifier_shares_to_message(b"run 7", verifiers)
        >>> prio3.unshard([prio3.verify_next(state, message) for state in states], 1)
        [0, 1, 1, 0, 1, 0]
    """

    EVAL_OUTPUT_LEN: int = 1

    def __init__(self, field: Field, length: int, max_measurement: int, chunk_length: int) -> None:
        self.OUTPUT_LEN = length = validate.whole("length", length, low=1)
        self._range = RangeCheckedInt(field, max_measurement)
        super().__init__(field, length * len(self._range.weights), chunk_length)

    def encode(self, measurement: Sequence[int] | np.ndarray) -> Vector:
        """Encode each integer as bits."""
        _check_length(measurement, self.OUTPUT_LEN)
        return self._range.encode(measurement)

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        # Zero for valid entries; for others with probability chunk_length / MODULUS at most
        # (theory/vdaf.md, Proposition 1).
        return self.field.sum(outputs)

    def truncate(self, meas: Vector) -> Vector:
        return self._range.decode(meas)

    def decode(self, output: Vector, num_measurements: int) -> list[int]:
        return self.field.integers(output)


class Histogram(RangeChecked):
    """A measurement is one of `length` buckets, counted from 0 (section 7.4.4)."""

    EVAL_OUTPUT_LEN: int = 2

    def __init__(self, field: Field, length: int, chunk_length: int) -> None:
        self.OUTPUT_LEN = length = validate.whole("length", length, low=1)
        super().__init__(field, length, chunk_length)

    def encode(self, measurement: int) -> Vector:
        # A vector with a single one.
        last = self.OUTPUT_LEN - 1
        encoded = self.field.zeros(self.OUTPUT_LEN)
        bucket = validate.whole("measurement", measurement, low=0, high=last)
        encoded[bucket : bucket + 1] = self.field.vector([1])
        return encoded

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        # Two outputs: the range check, and the difference of the entries' sum from one. Each share
        # has its part of the one.
        one = self.field.vector([pow(num_shares, -1, self.field.MODULUS)])
        check = self.field.vec_sub(self.field.sum(meas), one)
        return np.concatenate([self.field.sum(outputs), check])

    def truncate(self, meas: Vector) -> Vector:
        return meas

    def decode(self, output: Vector, num_measurements: int) -> list[int]:
        return self.field.integers(output)


class MultihotCountVec(RangeChecked):
    """A measurement is a vector of bools, of which `max_weight` at most are true (7.4.5)."""

    EVAL_OUTPUT_LEN: int = 2

    def __init__(self, field: Field, length: int, max_weight: int, chunk_length: int) -> None:
        self.OUTPUT_LEN = length = validate.whole("length", length, low=1, high=field.MODULUS - 1)
        max_weight = validate.whole("max_weight", max_weight, low=1, high=length)
        self._entry, self._range = RangeCheckedInt(field, 1), RangeCheckedInt(field, max_weight)
        super().__init__(field, length + len(self._range.weights), chunk_length)

    def encode(self, measurement: Sequence[bool] | np.ndarray) -> Vector:
        """Encode the vector, then its weight as bits."""
        _check_length(measurement, self.OUTPUT_LEN)
        entries, weight = self._entry.encode(measurement), int(np.sum(measurement))
        return np.concatenate([entries, self._range.encode([weight])])

    def eval(self, meas: Vector, outputs: Vector, num_shares: int) -> Vector:
        # Two outputs: the range check, and the difference of the weight from the encoded one, whose
        # bits cannot encode more than `max_weight`.
        weight = self.field.sum(self.truncate(meas))
        check = self.field.vec_sub(weight, self._range.decode(meas[self.OUTPUT_LEN :]))
        return np.concatenate([self.field.sum(outputs), check])

    def truncate(self, meas: Vector) -> Vector:
        return meas[: self.OUTPUT_LEN]  # without the weight

    def decode(self, output: Vector, num_measurements: int) -> list[int]:
        return self.field.integers(output)


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
        largest = validate.whole("largest measurement", largest, low=1, high=field.MODULUS - 1)
        bits = largest.bit_length()
        self.field, self._largest, self._rest = field, largest, 2 ** (bits - 1) - 1
        self.weights = [1 << bit for bit in range(bits - 1)] + [largest - self._rest]

    def encode(self, values: Sequence[int] | np.ndarray) -> Vector:
        """Encode integers (n,), one after the other: (n * bits,)."""
        fits_word = self._largest < 2**62
        numbers = np.asarray(values, None if fits_word else object)
        kinds = "bui" if fits_word else "O"  # larger integers than any word are objects
        if numbers.dtype.kind not in kinds or numbers.ndim != 1:
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
        numbers = numbers.astype(np.int64) if fits_word else numbers
        # One of several encodings where the last weight is not a power of two: the last bit is set
        # only if the others do not suffice. All of them are valid, and have the same sum.
        last = numbers > self._rest
        rest = np.where(last, numbers - self.weights[-1], numbers)
        encoded = np.empty((len(numbers), len(self.weights)), np.uint8)
        for bit in range(len(self.weights) - 1):
            encoded[:, bit] = (rest >> bit) & 1
        encoded[:, -1] = last
        return self.field.small_vector(encoded.reshape(-1))

    def decode(self, encoded: Vector) -> Vector:
        # Linear, so that it works on shares as well.
        if len(self.weights) == 1:
            return encoded
        return self.field.dot(encoded, self.field.vector(self.weights))


def _check_length(measurement: Sequence[Any] | np.ndarray, length: int) -> None:
    if len(measurement) != length:
        raise ValueError(f"Expected a measurement of {length} entries, got {len(measurement)}.")
