"""Packing of codes when the number of levels is not a power of two: a block is one number.

A block of k codes c_1 .. c_k below m is the number (c_1·m + c_2)·m + ... + c_k, in the fewest bits
that hold m^k - 1, with the least k for which this is within 1 % of k·log2(m): for 3 levels, 5 codes
in a byte. Blocks follow each other, lowest bit first; the last one may have fewer codes, and then
fewer bits.
"""

from __future__ import annotations

import functools

LARGEST = 256
"""Most levels that are packed in blocks; with more, every code takes whole bits."""


@functools.lru_cache(maxsize=256)
def block(levels: int) -> tuple[int, int]:
    """(codes, bits) of a block. One code for a power of two; never more than 128 bits.

    Example:
        >>> block(16), block(3), block(5)
        ((1, 4), (5, 8), (3, 7))
    """
    codes, bits = 1, (levels - 1).bit_length()
    if levels & (levels - 1) == 0 or levels > LARGEST:
        return codes, bits
    # theory/encoding.md, Proposition 5: bits <= 1.01 · codes · log2(levels), in whole numbers.
    while 2 ** (100 * bits) > levels ** (101 * codes):
        codes += 1
        bits = (levels**codes - 1).bit_length()
    return codes, bits


def blocks(levels: int, count: int) -> tuple[int, int, int]:
    """(codes, bits, bits of the last block if it has fewer codes) for `count` codes."""
    codes, bits = block(levels)
    return codes, bits, (levels ** (count % codes) - 1).bit_length()


def bits_per_code(levels: int) -> float:
    """Average bits per code in a long payload: log2(levels), or up to 1 % more (<= 256 levels).

    Example:
        >>> bits_per_code(16), bits_per_code(3)
        (4.0, 1.6)
    """
    codes, bits = block(levels)
    return bits / codes


def length(levels: int, count: int) -> int:
    """Bits that `count` codes take."""
    codes, bits, last = blocks(levels, count)
    return count // codes * bits + last
