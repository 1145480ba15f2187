"""Compiled arithmetic of Field64, and the loops of proofs over it.

A vector is an array (n,) of uint64. No branch depends on the value of an element.

Compiled code is cached, and compiled again only when this file changes: all that it uses is here.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

MODULUS_64 = 2**64 - 2**32 + 1

# Typed once: a Python integer among words would make numba compute in int64 or float64.
_HALF_WORD_BITS, _HALF_WORD_MASK = np.uint64(32), np.uint64(2**32 - 1)
_MODULUS = np.uint64(MODULUS_64)
_WORD_RESIDUE = np.uint64(2**32 - 1)
"""2**64 modulo MODULUS_64."""


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
def add(a, b):
    # The sum wraps around if it is below `a`: that is 2**64 less, which is added again. One
    # subtraction then suffices.
    total = a + b
    total += _WORD_RESIDUE * np.uint64(total < a)
    return total - _MODULUS * np.uint64(total >= _MODULUS)


@register_jitable
def sub(a, b):
    return a - b - _WORD_RESIDUE * np.uint64(a < b)


@register_jitable
def mul(a, b):
    # 2**64 is 2**32 - 1 and 2**96 is -1 modulo MODULUS_64: no division is needed.
    low, high = wide(a, b)
    top = high >> _HALF_WORD_BITS
    rest = low - top - _WORD_RESIDUE * np.uint64(low < top)
    middle = (high & _HALF_WORD_MASK) * _WORD_RESIDUE
    total = rest + middle
    total += _WORD_RESIDUE * np.uint64(total < middle)
    return total - _MODULUS * np.uint64(total >= _MODULUS)


@numba.njit(nogil=True, cache=True)
def vec_add(left, right, out):
    # `out` may be one of the two vectors, here and in `vec_sub`.
    for i in range(left.shape[0]):
        out[i] = add(left[i], right[i])


@numba.njit(nogil=True, cache=True)
def vec_sub(left, right, out):
    for i in range(left.shape[0]):
        out[i] = sub(left[i], right[i])


@numba.njit(nogil=True, cache=True)
def vec_dot(left, right, out):
    """Write the sum of products of two vectors into out (1,).

    A shorter `right` is repeated; `out` has as many entries as that happens.
    """
    length = right.shape[0]
    for i in range(out.shape[0]):
        total = mul(left[i * length], right[0])
        for j in range(1, length):
            total = add(total, mul(left[i * length + j], right[j]))
        out[i] = total


@numba.njit(nogil=True, cache=True)
def powers(factor, out):
    # Writes out[0] * factor**i: the caller has set out[0].
    for i in range(1, out.shape[0]):
        out[i] = mul(out[i - 1], factor[0])


@numba.njit(nogil=True, cache=True)
def lagrange(roots, point, scale, out):
    """Write the weight of each value of a polynomial at these n roots in its value at a point.

    That is root * scale * product of all (other root - point), with scale = (-1)**(n-1) / n. The
    products of the roots before and after each one are computed in turn: no element is inverted.
    """
    size = roots.shape[0]
    x, running = point[0], scale[0]
    for i in range(size):
        out[i] = mul(running, roots[i])
        running = mul(running, sub(roots[i], x))
    running = sub(roots[size - 1], x)
    for i in range(size - 2, -1, -1):
        out[i] = mul(running, out[i])
        running = mul(running, sub(roots[i], x))


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
                a, b = values[start + j], values[start + j + half]
                values[start + j] = add(a, b)
                inverse = roots[(2 * size - j * step) & (2 * size - 1)]
                values[start + j + half] = mul(sub(a, b), inverse)
        half, step = half // 2, 2 * step
    for j in range(size):
        values[j] = mul(values[j], scales[j])
    half, step = 1, size
    while half < size:  # transform of coefficients in bit-reversed order
        for start in range(0, size, 2 * half):
            for j in range(half):
                a, b = values[start + j], values[start + j + half]
                b = mul(b, roots[j * step])
                values[start + j] = add(a, b)
                values[start + j + half] = sub(a, b)
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
    zero = sub(shift[0], shift[0])
    for i in range(pairs):
        left[0] = left_seeds[i]
        right[0] = right_seeds[i]
        for k in range(1, size):
            index = (k - 1) * pairs + i
            m = meas[index] if k <= calls and index < meas.shape[0] else zero
            left[k] = zero
            right[k] = zero
            if k <= calls:
                left[k] = mul(running[k - 1], m)
                right[k] = sub(m, shift[0])
                running[k - 1] = mul(running[k - 1], factors[k - 1])
        for k in range(size):
            out[2 * k] = add(out[2 * k], mul(left[k], right[k]))
        odd_values(left, roots, scales)
        odd_values(right, roots, scales)
        for k in range(size):
            odd = mul(left[k], right[k])
            out[2 * k + 1] = add(out[2 * k + 1], odd)


@numba.njit(nogil=True, cache=True)
def wire_checks(meas, factors, shift, weights, left, right):
    """Evaluate the wire polynomials of `product_poly` at the point of `weights` (see `lagrange`).

    Args:
        meas, factors, shift: as in `product_poly`, or a share of the measurement.
        weights: (p,).
        left, right: (n,), the seeds; replaced by the values.
    """
    # The shift is the same on all right wires: its weighted sum is computed once.
    pairs, first, shift_sum = left.shape[0], weights[0], shift[0]
    shift_sum = sub(shift_sum, shift_sum)
    for k in range(factors.shape[0]):
        shift_sum = add(shift_sum, mul(weights[k + 1], shift[0]))
    for i in range(pairs):
        left[i] = mul(first, left[i])
        right[i] = sub(mul(first, right[i]), shift_sum)
    for k in range(factors.shape[0]):
        weight, factor = weights[k + 1], factors[k]
        running = weight
        for i in range(min(pairs, meas.shape[0] - k * pairs)):
            m = meas[k * pairs + i]
            running = mul(running, factor)
            left[i] = add(left[i], mul(running, m))
            right[i] = add(right[i], mul(weight, m))
