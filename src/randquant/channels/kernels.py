"""Compiled kernels: inputs to codes, a block of them at a time; codes to bytes, and back.

The encoder clips, finds the cell, dithers, draws and packs. A block's working arrays stay in the
first-level cache; the loops that find cells and dither have no branches, so that the compiler turns
them into vector instructions.

Code k of a body occupies bits k·b to k·b + b - 1, lowest bit first: eight codes fill b bytes.
`pack` and `add` are for codes of up to 32 bits, `pack_blocks` and `unpack_blocks` for codes that
share numbers of up to 128 bits (`blocks`).
"""

from __future__ import annotations

import sys
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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


# Codes to bytes, and back.

_BITS_8, _BITS_32 = np.uint64(8), np.uint64(32)
# Unsigned like the words that they shift: a mix of both would not stay unsigned in numba.
_WORD_MASK = np.uint64(2**32 - 1)


def _load_word(_context: Any, body: Any, byte: Any) -> Any:
    # The eight bytes from any index on, lowest first: numba itself has no unaligned load.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        word = builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)
        return word if sys.byteorder == "little" else builder.bswap(word)

    return types.uint64(body, types.uint64), generate


load_word: Any = intrinsic(_load_word)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def add(body, bits, totals):
    """Add the codes of a body, of 1 to 32 bits each, to totals (n,), integers that may wrap."""
    done = _add_whole_bytes(body, bits, totals)
    # Unsigned throughout, and no state between codes, so that the compiler vectorises the loop.
    width, mask = np.uint64(bits), np.uint64((1 << bits) - 1)
    three, seven = np.uint64(3), np.uint64(7)
    # Up to 32 bits, after up to 7 of the code before, are within a word, as far as there are words.
    whole = min(totals.shape[0], (body.shape[0] - 8) * 8 // max(bits, 1))
    for k in range(done, whole):
        index = np.uint64(k)
        position = index * width
        code = load_word(body, position >> three) >> (position & seven) & mask
        totals[index] += totals.dtype.type(code)
    for k in range(max(done, whole), totals.shape[0]):
        position = np.uint64(k) * width
        word = np.uint64(0)
        first = k * bits // 8
        for i in range(first, min(first + 5, body.shape[0])):
            word |= np.uint64(body[i]) << np.uint64(8 * (i - first))
        totals[k] += totals.dtype.type(word >> (position & seven) & mask)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_whole_bytes(body, bits, totals):
    """Add codes that do not span bytes, several times as fast; return how many were added."""
    # Constants, since only then the compiler unrolls the loop over a byte and sees the memory
    # layout.
    if bits == 8:
        return _add_in_byte(body, 1, totals)
    if bits == 4:
        return _add_in_byte(body, 2, totals)
    if bits == 2:
        return _add_in_byte(body, 4, totals)
    if bits == 1:
        return _add_in_byte(body, 8, totals)
    return 0


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_in_byte(body, each, totals):
    # `each` codes in a byte; those of the last byte, if it is not full, are left.
    whole, bits = totals.shape[0] // each, 8 // each
    mask = np.uint8((1 << bits) - 1)
    for k in range(whole):
        byte = body[k]
        for j in range(each):
            totals[each * k + j] += byte >> np.uint8(j * bits) & mask
    return whole * each


@numba.njit(nogil=True, cache=True, error_model="numpy")
def pack(codes, bits, body):
    """Pack codes (n,), unsigned integers of `bits` bits each, into body (ceil(n·bits/8),) uint8."""
    word, filled, written = np.uint64(0), 0, 0
    for k in range(codes.shape[0]):
        word |= np.uint64(codes[k]) << np.uint64(filled)
        filled += bits
        while filled >= 8:
            body[written] = np.uint8(word & np.uint64(255))
            word >>= _BITS_8
            filled -= 8
            written += 1
    if filled:
        body[written] = np.uint8(word)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def pack_blocks(codes, levels, each, bits, last, body):
    """Pack codes (n,) uint8, `each` in a number of `bits` bits, fewer of `last` bits at the end."""
    count, base = codes.shape[0], np.uint64(levels)
    word, filled, written = np.uint64(0), 0, 0  # bits that do not fill a byte yet
    for start in range(0, count, each):
        high, low = np.uint64(0), np.uint64(0)  # the block's number, 128 bits
        in_block = min(each, count - start)
        for k in range(start, start + in_block):
            right = (low & _WORD_MASK) * base + np.uint64(codes[k])
            left = (low >> _BITS_32) * base + (right >> _BITS_32)
            low = (left << _BITS_32) | (right & _WORD_MASK)
            high = high * base + (left >> _BITS_32)
        remaining = bits if in_block == each else last
        while remaining > 0:
            part = min(32, remaining)
            mask = (np.uint64(1) << np.uint64(part)) - np.uint64(1)
            word |= (low & mask) << np.uint64(filled)
            filled += part
            remaining -= part
            low, high = (low >> _BITS_32) | (high << _BITS_32), high >> _BITS_32
            while filled >= 8:
                body[written] = np.uint8(word & np.uint64(255))
                word >>= _BITS_8
                filled -= 8
                written += 1
    if filled > 0:
        body[written] = np.uint8(word)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def unpack_blocks(body, levels, each, bits, last, codes):
    """Invert `pack_blocks`; return whether every number encodes a block of codes."""
    count, base = codes.shape[0], np.uint64(levels)
    word, filled, read = np.uint64(0), 0, 0
    beyond = np.uint64(0)  # remainders after all codes of a block: zero for valid numbers
    for start in range(0, count, each):
        in_block = min(each, count - start)
        remaining, place = bits if in_block == each else last, 0
        high, low = np.uint64(0), np.uint64(0)
        while remaining > 0:
            part = min(32, remaining)
            while filled < part:
                word |= np.uint64(body[read]) << np.uint64(filled)
                filled += 8
                read += 1
            mask = (np.uint64(1) << np.uint64(part)) - np.uint64(1)
            piece = word & mask
            word >>= np.uint64(part)
            filled -= part
            remaining -= part
            if place < 64:
                low |= piece << np.uint64(place)
            else:
                high |= piece << np.uint64(place - 64)
            place += 32
        for k in range(start + in_block - 1, start - 1, -1):
            if high == 0:
                quotient = low // base
                codes[k] = np.uint8(low - quotient * base)
                low = quotient
            else:  # long division, 32 bits at a time
                quotient = high // base
                rest = high - quotient * base
                high = quotient
                upper = (rest << _BITS_32) | (low >> _BITS_32)
                quotient = upper // base
                rest = upper - quotient * base
                lower = (rest << _BITS_32) | (low & _WORD_MASK)
                low = quotient << _BITS_32
                quotient = lower // base
                codes[k] = np.uint8(lower - quotient * base)
                low |= quotient
        beyond |= high | low
    return beyond == 0
