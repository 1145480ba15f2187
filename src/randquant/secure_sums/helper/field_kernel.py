"""Compiled arithmetic of both fields, and the loops of proofs over it.

A vector of Field64 is an array (n,) of uint64; one of Field128 is (n, 2): the low word, then the
high one. `get` and `put` read and write an element, a word or a pair of words, and each loop below
is compiled once for either. No branch depends on the value of an element.

Compiled code is cached, and compiled again only when this file changes: all that it uses is here.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload, register_jitable

MODULUS_64 = 2**64 - 2**32 + 1
MODULUS_128 = 2**128 - 28 * 2**64 + 1
HIGH_128 = 2**64 - 28
"""The high word of MODULUS_128, whose low word is 1."""

# Typed once: a Python integer among words would make numba compute in int64 or float64.
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_HALF_WORD_BITS, _HALF_WORD_MASK = np.uint64(32), np.uint64(2**32 - 1)
_MODULUS = np.uint64(MODULUS_64)
_WORD_RESIDUE = np.uint64(2**32 - 1)
"""2**64 modulo MODULUS_64."""
_HIGH = np.uint64(HIGH_128)
# 2**256 modulo MODULUS_128: Montgomery multiplication by it undoes one division by 2**128.
_SQUARE = divmod(2**256 % MODULUS_128, 2**64)
_SQUARE_LOW, _SQUARE_HIGH = np.uint64(_SQUARE[1]), np.uint64(_SQUARE[0])


def _wide(_context: Any, a: Any, b: Any) -> Any:
    # (low word, high word) of a product: numba itself has no product of 128 bits.
    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:
        word, double = ir.IntType(64), ir.IntType(128)
        product = builder.mul(builder.zext(words[0], double), builder.zext(words[1], double))
        high = builder.trunc(builder.lshr(product, double(64)), word)
        pair = (builder.trunc(product, word), high)
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(types.uint64, 2)(types.uint64, types.uint64), generate


wide: Any = intrinsic(_wide)


@register_jitable
def _add_64(a, b):
    # The sum wraps around if it is below `a`: that is 2**64 less, which is added again. One
    # subtraction then suffices.
    total = a + b
    total += _WORD_RESIDUE * np.uint64(total < a)
    return total - _MODULUS * np.uint64(total >= _MODULUS)


@register_jitable
def _sub_64(a, b):
    return a - b - _WORD_RESIDUE * np.uint64(a < b)


@register_jitable
def _mul_64(a, b):
    # 2**64 is 2**32 - 1 and 2**96 is -1 modulo MODULUS_64: no division is needed.
    low, high = wide(a, b)
    top = high >> _HALF_WORD_BITS
    rest = low - top - _WORD_RESIDUE * np.uint64(low < top)
    middle = (high & _HALF_WORD_MASK) * _WORD_RESIDUE
    total = rest + middle
    total += _WORD_RESIDUE * np.uint64(total < middle)
    return total - _MODULUS * np.uint64(total >= _MODULUS)


@register_jitable
def _carried(a, b, carry):
    # (word, carry) of a sum of two words and a carry.
    total = a + b
    whole = total + carry
    return whole, np.uint64(total < a) + np.uint64(whole < carry)


@register_jitable
def _below(low, high, carry):
    # Reduces a number below twice MODULUS_128, given with its carry: without a branch, since the
    # time of a branch would depend on a secret.
    beyond = (carry != _ZERO) | (high > _HIGH) | ((high == _HIGH) & (low >= _ONE))
    less = np.uint64(beyond)
    return low - less, high - _HIGH * less - np.uint64(low < less)


@register_jitable
def _add_128(a, b):
    low, carry = _carried(a[0], b[0], _ZERO)
    high, carry = _carried(a[1], b[1], carry)
    return _below(low, high, carry)


@register_jitable
def _sub_128(a, b):
    low, borrow = a[0] - b[0], np.uint64(a[0] < b[0])
    high = a[1] - b[1]
    whole = high - borrow
    # If the difference is negative the modulus is added, without a branch.
    more = np.uint64((a[1] < b[1]) | (high < borrow))
    return low + more, whole + _HIGH * more + np.uint64(low + more < more)


@register_jitable
def _montgomery(a, b):
    """Multiply to a * b / 2**128, adding the multiple of the modulus that clears the low words.

    The modulus is 1 + 2**64 * HIGH_128, so that this multiple is the negated low word.
    """
    first, x = wide(a[0], b[0])
    y, z = wide(a[0], b[1])
    u, v = wide(a[1], b[0])
    w, fourth = wide(a[1], b[1])
    second, carry = _carried(x, y, _ZERO)
    third, carry = _carried(z, w, carry)
    fourth += carry
    second, carry = _carried(second, u, _ZERO)
    third, carry = _carried(third, v, carry)
    fourth += carry
    low, high = wide(_ZERO - first, _HIGH)
    second, carry = _carried(second, low, np.uint64(first != _ZERO))
    third, carry = _carried(third, high, carry)
    fourth += carry
    low, high = wide(_ZERO - second, _HIGH)
    third, carry = _carried(third, low, np.uint64(second != _ZERO))
    fourth, carry = _carried(fourth, high, carry)
    return _below(third, fourth, carry)


@register_jitable
def _mul_128(a, b):
    return _montgomery(_montgomery(a, b), (_SQUARE_LOW, _SQUARE_HIGH))


def add(a, b):
    """Add two elements."""


def sub(a, b):
    """Subtract the second element from the first."""


def mul(a, b):
    """Multiply two elements."""


def get(vector, i):
    """Read an element of a vector."""


def put(vector, i, element):
    """Write an element of a vector."""


@overload(add)
def _add(a, b):
    if isinstance(a, types.Integer):
        return lambda a, b: _add_64(a, b)
    return lambda a, b: _add_128(a, b)


@overload(sub)
def _sub(a, b):
    if isinstance(a, types.Integer):
        return lambda a, b: _sub_64(a, b)
    return lambda a, b: _sub_128(a, b)


@overload(mul)
def _mul(a, b):
    if isinstance(a, types.Integer):
        return lambda a, b: _mul_64(a, b)
    return lambda a, b: _mul_128(a, b)


@overload(get)
def _get(vector, i):
    if vector.ndim == 1:
        return lambda vector, i: vector[i]
    return lambda vector, i: (vector[i, 0], vector[i, 1])


@overload(put)
def _put(vector, i, element):
    if vector.ndim == 1:

        def put_word(vector, i, element):
            vector[i] = element

        return put_word

    def put_pair(vector, i, element):
        vector[i, 0], vector[i, 1] = element

    return put_pair


@numba.njit(nogil=True, cache=True)
def vec_add(left, right, out):
    # `out` may be one of the two vectors, here and in `vec_sub`.
    for i in range(left.shape[0]):
        put(out, i, add(get(left, i), get(right, i)))


@numba.njit(nogil=True, cache=True)
def vec_sub(left, right, out):
    for i in range(left.shape[0]):
        put(out, i, sub(get(left, i), get(right, i)))


@numba.njit(nogil=True, cache=True)
def vec_dot(left, right, out):
    """Write the sum of products of two vectors into out (1,).

    A shorter `right` is repeated; `out` has as many entries as that happens.
    """
    length = right.shape[0]
    for i in range(out.shape[0]):
        total = mul(get(left, i * length), get(right, 0))
        for j in range(1, length):
            total = add(total, mul(get(left, i * length + j), get(right, j)))
        put(out, i, total)


@numba.njit(nogil=True, cache=True)
def powers(factor, out):
    # Writes out[0] * factor**i: the caller has set out[0].
    for i in range(1, out.shape[0]):
        put(out, i, mul(get(out, i - 1), get(factor, 0)))


@numba.njit(nogil=True, cache=True)
def lagrange(roots, point, scale, out):
    """Write the weight of each value of a polynomial at these n roots in its value at a point.

    That is root * scale * product of all (other root - point), with scale = (-1)**(n-1) / n. The
    products of the roots before and after each one are computed in turn: no element is inverted.
    """
    size = roots.shape[0]
    x, running = get(point, 0), get(scale, 0)
    for i in range(size):
        put(out, i, mul(running, get(roots, i)))
        running = mul(running, sub(get(roots, i), x))
    running = sub(get(roots, size - 1), x)
    for i in range(size - 2, -1, -1):
        put(out, i, mul(running, get(out, i)))
        running = mul(running, sub(get(roots, i), x))


@numba.njit(nogil=True, cache=True)
def odd_values(values, roots, scales):
    """Replace values at the p-th roots of unity by those half-way between them, at roots[1::2].

    Args:
        values: (p,) elements, of a polynomial below degree p.
        roots: the 2p-th roots of unity, in order.
        scales: roots[k] / p, where k runs through 0..p-1 in bit-reversed order.
    """
    size = values.shape[0]
    # Both transforms leave out the reordering: one's output is in the order of the other's input.
    half, step = size // 2, 2
    while half:  # inverse transform; coefficients come out in bit-reversed order
        for start in range(0, size, 2 * half):
            for j in range(half):
                a, b = get(values, start + j), get(values, start + j + half)
                put(values, start + j, add(a, b))
                inverse = get(roots, (2 * size - j * step) & (2 * size - 1))
                put(values, start + j + half, mul(sub(a, b), inverse))
        half, step = half // 2, 2 * step
    for j in range(size):
        put(values, j, mul(get(values, j), get(scales, j)))
    half, step = 1, size
    while half < size:  # transform of coefficients in bit-reversed order
        for start in range(0, size, 2 * half):
            for j in range(half):
                a, b = get(values, start + j), get(values, start + j + half)
                b = mul(b, get(roots, j * step))
                put(values, start + j, add(a, b))
                put(values, start + j + half, sub(a, b))
        half, step = 2 * half, step // 2


@numba.njit(nogil=True, cache=True)
def product_poly(meas, factors, shift, left_seeds, right_seeds, roots, scales, out):
    """Add up the products of pairs of wire polynomials: their values at the 2p-th roots of unity.

    In call k, pair i of n has the values factors[k]**(i+1) * m and m - shift, where m is the
    measurement's element k * n + i, or zero beyond its end; at root 0 it has its two seeds. One
    pair at a time is in memory.

    Args:
        meas: the encoded measurement.
        factors: one for each call.
        shift: (1,).
        left_seeds, right_seeds: (n,).
        roots, scales: as in `odd_values`.
        out: (2p,) zeros.
    """
    pairs, calls, size = left_seeds.shape[0], factors.shape[0], scales.shape[0]
    left, right, running = np.empty_like(scales), np.empty_like(scales), factors.copy()
    zero = sub(get(shift, 0), get(shift, 0))
    for i in range(pairs):
        put(left, 0, get(left_seeds, i))
        put(right, 0, get(right_seeds, i))
        for k in range(1, size):
            index = (k - 1) * pairs + i
            m = get(meas, index) if k <= calls and index < meas.shape[0] else zero
            put(left, k, zero)
            put(right, k, zero)
            if k <= calls:
                put(left, k, mul(get(running, k - 1), m))
                put(right, k, sub(m, get(shift, 0)))
                put(running, k - 1, mul(get(running, k - 1), get(factors, k - 1)))
        for k in range(size):
            put(out, 2 * k, add(get(out, 2 * k), mul(get(left, k), get(right, k))))
        odd_values(left, roots, scales)
        odd_values(right, roots, scales)
        for k in range(size):
            odd = mul(get(left, k), get(right, k))
            put(out, 2 * k + 1, add(get(out, 2 * k + 1), odd))


@numba.njit(nogil=True, cache=True)
def wire_checks(meas, factors, shift, weights, left, right):
    """Evaluate the wire polynomials of `product_poly` at the point of `weights` (see `lagrange`).

    Args:
        meas, factors, shift: as in `product_poly`, or a share of the measurement.
        weights: (p,).
        left, right: (n,), the seeds; replaced by the values.
    """
    # The shift is the same on all right wires: its weighted sum is computed once.
    pairs, first, shift_sum = left.shape[0], get(weights, 0), get(shift, 0)
    shift_sum = sub(shift_sum, shift_sum)
    for k in range(factors.shape[0]):
        shift_sum = add(shift_sum, mul(get(weights, k + 1), get(shift, 0)))
    for i in range(pairs):
        put(left, i, mul(first, get(left, i)))
        put(right, i, sub(mul(first, get(right, i)), shift_sum))
    for k in range(factors.shape[0]):
        weight, factor = get(weights, k + 1), get(factors, k)
        running = weight
        for i in range(min(pairs, meas.shape[0] - k * pairs)):
            m = get(meas, k * pairs + i)
            running = mul(running, factor)
            put(left, i, add(get(left, i), mul(running, m)))
            put(right, i, add(get(right, i), mul(weight, m)))
