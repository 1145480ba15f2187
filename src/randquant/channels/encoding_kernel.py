"""The compiled encoder: clip, find the cell, dither, draw, pack, a block at a time.

The block's working arrays stay in the first-level cache; the loops that find cells and dither
have no branches, so that the compiler turns them into vector instructions.
"""

from __future__ import annotations

import numba
import numpy as np

# Compiled code is cached on disk and recompiled only when this file changes: every constant that it
# uses is therefore defined here, and `encoding.tables` imports them from here.
CODE_BITS = 62
"""Random bits that decide a code: thresholds are in units of 2**-62."""
FIRST_BITS = 32
"""Number of them that are compared first; the rest only if these leave the code undecided (a tie),
which one draw in 2**32 per threshold does."""
LOW_BITS = CODE_BITS - FIRST_BITS
GUIDE_BITS = 10
"""Number of them that pick an entry of the guide table. With more, fewer buckets would contain a
threshold, but larger tables would not fit the cache."""
UNSETTLED_BIT = 256
"""Added to a guide entry when a threshold lies inside its bucket."""
DITHER_BITS = 32
"""An input's position in its cell is rounded to a multiple of 2**-32."""
TIE, NOT_FINITE = 1, 2
"""Statuses of an encoding that stopped early; 0 is success."""
_BLOCK_SIZE = (
    256  # coordinates; a multiple of 8, so that every block but the last fills whole bytes
)
_FIRST_SHIFT = np.uint64(DITHER_BITS)
_DITHER_MASK = np.uint64(2**DITHER_BITS - 1)
_LOW_MASK = np.uint64((1 << LOW_BITS) - 1)
_LOW_SHIFT = np.uint64(LOW_BITS)
_GUIDE_BITS = np.uint64(GUIDE_BITS)
_GUIDE_SHIFT = np.uint64(FIRST_BITS - GUIDE_BITS)
_STEP = np.int64(1 << LOW_BITS)
_DITHER_STEPS = 2.0**DITHER_BITS
_UNSETTLED_BIT = np.uint64(UNSETTLED_BIT)
_ONE = np.uint64(1)  # unsigned indices: numba then skips its check for negative ones


@numba.njit(nogil=True, cache=True, error_model="numpy")
def encode(
    x, words, low_words, inputs, next_input, inverse, scale, first_cell, hops, thresholds,
    first_code, levels, bits, body,
):  # fmt: skip
    """Encode x (n,) into body, `bits` bits a code; return 0, TIE or NOT_FINITE.

    words (n,) uint64 hold per coordinate 32 bits of dither (low half) and the first 32 bits of
    the draw (high half). low_words is empty, or (n,) uint64 whose low 30 bits complete the draw;
    without them, a draw that 32 bits do not decide ends the call with TIE. The tables are those
    of `encoding.tables`, flattened.
    """
    values = np.empty(_BLOCK_SIZE, np.float64)
    cells = np.empty(_BLOCK_SIZE, np.int64)
    exact = low_words.shape[0] > 0
    lowest, highest, stride = inputs[0], inputs[-1], np.uint64(levels)
    written = 0
    for begin in range(0, x.shape[0], _BLOCK_SIZE):
        count = min(_BLOCK_SIZE, x.shape[0] - begin)
        finite = 0
        for j in range(count):
            value = np.float64(x[begin + j])
            good = abs(value) < np.inf
            finite += good
            value = min(max(value if good else 0.0, lowest), highest)
            values[j] = value
            cells[j] = first_cell[np.uint64(np.int64((value - lowest) * scale))]
        if finite < count:
            return NOT_FINITE
        for _ in range(hops):
            for j in range(count):
                cells[j] += values[j] >= next_input[np.uint64(cells[j])]
        for j in range(count):  # from here on, cells holds the vertex of the row to draw from
            cell = np.uint64(cells[j])
            steps = np.int64((values[j] - inputs[cell]) * inverse[cell] * _DITHER_STEPS + 0.5)
            cells[j] += np.int64(words[begin + j] & _DITHER_MASK) < steps
        for start in range(0, count, 8):
            packed = np.uint64(0)
            for j in range(min(8, count - start)):
                k = begin + start + j
                vertex = np.uint64(cells[start + j])
                first = words[k] >> _FIRST_SHIFT
                code = np.uint64(first_code[(vertex << _GUIDE_BITS) + (first >> _GUIDE_SHIFT)])
                if code >= _UNSETTLED_BIT:  # a threshold lies in this bucket of draws: compare
                    code -= _UNSETTLED_BIT
                    draw = np.int64(first << _LOW_SHIFT)
                    if exact:
                        draw |= np.int64(low_words[k] & _LOW_MASK)
                    row = vertex * stride
                    while thresholds[row + code] <= draw:
                        code += _ONE
                    if not exact and thresholds[row + code] < draw + _STEP:
                        return TIE
                packed |= code << np.uint64(j * bits)
            for _ in range(min(bits, body.shape[0] - written)):
                body[written] = np.uint8(packed & np.uint64(255))
                packed >>= np.uint64(8)
                written += 1
    return 0


@numba.njit(nogil=True, cache=True, error_model="numpy")
def encode_rows(
    x, words, inputs, next_input, inverse, scale, first_cell, hops, thresholds, first_code,
    levels, bits, bodies, statuses,
):  # fmt: skip
    """Encode each row of x (n, d) into the same row of bodies, and its status into statuses (n,).

    One call serves all rows, since after each return to Python a thread may have to wait.
    """
    none = np.empty(0, np.uint64)
    for i in range(x.shape[0]):
        statuses[i] = encode(
            x[i], words[i], none, inputs, next_input, inverse, scale, first_cell, hops,
            thresholds, first_code, levels, bits, bodies[i],
        )  # fmt: skip
