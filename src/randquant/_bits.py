"""Compiled kernels between codes and bytes.

Code k of a body occupies bits k·b to k·b + b - 1, lowest bit first: eight codes fill b bytes.
"""

from __future__ import annotations

import numba
import numpy as np

_U8 = np.uint64(8)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def pack(codes, bits, body):
    """Pack codes (n,) uint8 of `bits` bits each into body (ceil(n·bits/8),) uint8."""
    count = codes.shape[0]
    written = 0
    for start in range(0, count, 8):
        word = np.uint64(0)
        for j in range(min(8, count - start)):
            word |= np.uint64(codes[start + j]) << np.uint64(j * bits)
        for _ in range(min(bits, body.shape[0] - written)):
            body[written] = np.uint8(word & np.uint64(255))
            word >>= _U8
            written += 1


@numba.njit(nogil=True, cache=True, error_model="numpy")
def add(body, bits, totals):
    """Add the codes of a body to totals (n,), of any integer type; return the largest code."""
    count = totals.shape[0]
    mask = np.uint64((1 << bits) - 1)
    largest = np.uint64(0)
    read = 0
    for start in range(0, count, 8):
        word = np.uint64(0)
        for j in range(min(bits, body.shape[0] - read)):
            word |= np.uint64(body[read + j]) << np.uint64(8 * j)
        read += bits
        for j in range(min(8, count - start)):
            code = word & mask
            word >>= np.uint64(bits)
            totals[start + j] += code
            largest = max(largest, code)
    return largest
