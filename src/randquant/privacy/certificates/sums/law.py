"""The law of a sum of codes, in scaled floats with a proven error, and its powers.

A sequence is mantissas and exponents: entry i is mantissa[i]·2**exponent[i], 0 if its mantissa is.
Derivations: `docs/theory/sums.md`, Propositions 6 and 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from randquant.privacy.divergence import UNIT

# Compiled code is cached on disk and renewed when this file changes, and only then: every constant
# that it uses stands here.
LIMB = 256
"""Exponents are multiples of it; a mantissa that is not 0 lies in [2**-128, 2**128)."""
_LARGE, _SMALL = 2.0**128, 2.0**-128
_DOWN, _UP = 2.0**-LIMB, 2.0**LIMB
_NEVER, _EVER = -(2**40), 2**40  # exponents of a zero, and above all others
_LOST = -4 * LIMB  # terms so far below the largest one are less than 2**-768 of it

KEEP_ALL = 1e15
"""A floor so low that nothing is trimmed."""


@dataclass(frozen=True, slots=True)
class Law:
    """Probabilities of consecutive sums: mantissa·2**exponent. Where they begin does not matter.

    Attributes:
        mantissa: (L,) float64 >= 0, 0 or within 2**-128 and 2**128.
        exponent: (L,) int64, multiples of 256; that of a zero has no meaning.
        error: relative error of every entry, at most, in units of 2**-53.
        trimmed: how many entries, each below 2**-floor, were left out at the ends.
        floor: in bits.
    """

    mantissa: np.ndarray
    exponent: np.ndarray
    error: float
    trimmed: float
    floor: float

    @staticmethod
    def of(row: np.ndarray, total: int, floor: float = KEEP_ALL) -> Law:
        """The law of one code, from a row of integers and their sum."""
        # A quotient of integers is rounded once: 1 unit.
        mantissa = np.array([int(weight) / total for weight in row])
        return Law(mantissa, np.zeros(len(row), np.int64), 1.0, 0.0, floor)

    @staticmethod
    def nothing(floor: float = KEEP_ALL) -> Law:
        """The law of an empty sum."""
        return Law(np.ones(1), np.zeros(1, np.int64), 0.0, 0.0, floor)

    def __len__(self) -> int:
        return len(self.mantissa)

    def __mul__(self, other: Law) -> Law:
        """The law of the sum of two independent sums."""
        length = len(self) + len(other) - 1
        mantissa, exponent = np.empty(length), np.empty(length, np.int64)
        floor = min(self.floor, other.floor)
        kept, trimmed = convolve(
            self.mantissa, self.exponent, other.mantissa, other.exponent, mantissa, exponent, floor
        )
        return Law(
            mantissa[:kept],
            exponent[:kept],
            # theory/sums.md, Proposition 6.
            self.error + other.error + min(len(self), len(other)) + 1.0,
            # theory/sums.md, Proposition 7: each trimmed entry is below the floor when it goes, and
            # convolving what is left out with a law leaves its mass as it is.
            self.trimmed + other.trimmed + trimmed,
            floor,
        )

    def power(self, clients: int) -> Law:
        """The law of the sum of `clients` independent copies."""
        return product([self], [clients])


def product(laws: Sequence[Law], counts: Sequence[int]) -> Law:
    """The law of a sum of independent copies: counts[j] of laws[j]; one squaring for all."""
    result = Law.nothing(min(law.floor for law in laws))
    # Squaring: log2 of the largest count convolutions, instead of as many as draws.
    for bit in reversed(range(max(counts).bit_length())):
        result = result * result
        for law, count in zip(laws, counts, strict=True):
            if count >> bit & 1:
                result = result * law
    return result


def multiples(single: Law, counts: Iterable[int]) -> dict[int, Law]:
    """The laws of sums of so many independent copies, each from the one before it."""
    known = {0: Law.nothing(single.floor)}
    steps: dict[int, Law] = {}
    last = 0
    for count in sorted(set(counts)):
        step = count - last
        if step not in steps:
            steps[step] = single.power(step) if step else known[0]
        known[count] = known[last] * steps[step] if step else known[last]
        last = count
    return known


def log_trimmed(trimmed: float, floor: float) -> float:
    """log of the probability of `trimmed` entries below 2**-floor, rounded up; -inf for none."""
    if trimmed == 0:
        return -math.inf
    # Twice: an entry is compared with the floor after rounding.
    count, bits = math.log(2 * trimmed), floor * math.log(2)
    # A logarithm, two products, a difference: below 16 of 32 units.
    return count - bits + 32 * UNIT * (count + bits)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def convolve(first, first_exponent, second, second_exponent, out, out_exponent, floor):
    """Convolve two sequences; trim entries below 2**-floor off the ends.

    Args:
        first, second: (a,), (b,) mantissas >= 0, with their exponents.
        out, out_exponent: at least (a + b - 1,), written to.
        floor: in bits.

    Returns:
        (length of what was written, how many entries > 0 were trimmed). Each entry's relative
        error grows by at most min(a, b) + 1 units over those of the two factors.
    """
    length = first.shape[0] + second.shape[0] - 1
    # With one exponent on each side no scaling is needed: the ordinary convolution.
    if _even(first_exponent) and _even(second_exponent):
        _convolve_even(first, second, out)
        out_exponent[:length] = first_exponent[0] + second_exponent[0]
    else:
        _convolve_uneven(first, first_exponent, second, second_exponent, out, out_exponent)
    for z in range(length):
        # theory/sums.md, Proposition 6: powers of two, so nothing is rounded. A sum of at most
        # 2**20 products of mantissas below 2**256 does not overflow.
        if out[z] >= _LARGE:
            out[z] *= _DOWN
            out_exponent[z] += LIMB
        elif 0 < out[z] < _SMALL:
            out[z] *= _UP
            out_exponent[z] -= LIMB
    # theory/sums.md, Proposition 7: entries that are trimmed are counted; a 0 weighs nothing.
    start, trimmed = 0, 0
    while start < length - 1 and _below(out[start], out_exponent[start], floor):
        trimmed += out[start] > 0
        start += 1
    while length - 1 > start and _below(out[length - 1], out_exponent[length - 1], floor):
        trimmed += out[length - 1] > 0
        length -= 1
    for z in range(start, length):
        out[z - start] = out[z]
        out_exponent[z - start] = out_exponent[z]
    return length - start, trimmed


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _even(exponents):
    even = True
    for exponent in exponents:  # `min` and `max` take half a second to compile
        even &= exponent == exponents[0]
    return even


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _convolve_even(first, second, out):
    if first.shape[0] > second.shape[0]:
        first, second = second, first
    length, whole = second.shape[0], first.shape[0] - first.shape[0] % 4
    out[: first.shape[0] + length - 1] = 0.0
    padded = np.zeros(length + 6)
    for j in range(length):  # numba takes seconds to compile an assignment of arrays
        padded[j + 3] = second[j]
    for i in range(0, whole, 4):  # four factors at a time pass over memory once
        a, b, c, d = first[i], first[i + 1], first[i + 2], first[i + 3]
        part = out[i : i + length + 3]
        for j in range(length + 3):
            part[j] += a * padded[j + 3] + b * padded[j + 2] + c * padded[j + 1] + d * padded[j]
    for i in range(whole, first.shape[0]):
        factor = first[i]
        part = out[i : i + length]
        for j in range(length):
            part[j] += factor * second[j]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _convolve_uneven(first, first_exponent, second, second_exponent, out, out_exponent):
    """Run by run of equal exponents; zeros, whose exponents are their own, are runs to pass by."""
    length = first.shape[0] + second.shape[0] - 1
    out[:length], out_exponent[:length] = 0.0, _NEVER
    a, b = _runs(first, first_exponent), _runs(second, second_exponent)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            exponent = first_exponent[a[i, 0]] + second_exponent[b[j, 0]]
            for z in range(a[i, 0] + b[j, 0], a[i, 1] + b[j, 1] - 1):
                out_exponent[z] = max(out_exponent[z], exponent)
    scale = np.empty(length)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            exponent = first_exponent[a[i, 0]] + second_exponent[b[j, 0]]
            used = False
            for z in range(a[i, 0] + b[j, 0], a[i, 1] + b[j, 1] - 1):
                shift = exponent - out_exponent[z]
                # theory/sums.md, Proposition 6: what is left out is below 2**-768 of the largest.
                scale[z] = math.ldexp(1.0, shift) if shift >= _LOST else 0.0
                used |= shift >= _LOST
            if not used:
                continue
            run = second[b[j, 0] : b[j, 1]]
            for x in range(a[i, 0], a[i, 1]):
                factor, start = first[x], x + b[j, 0]
                part, share = out[start : start + run.shape[0]], scale[start:]
                for y in range(run.shape[0]):
                    part[y] += factor * run[y] * share[y]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _runs(mantissa, exponent):
    """(r, 2): begin and end of every run of entries above 0 with one exponent."""
    runs = np.empty((mantissa.shape[0], 2), np.int64)
    count = 0
    for z in range(mantissa.shape[0]):
        if mantissa[z] > 0:
            if z == 0 or mantissa[z - 1] == 0 or exponent[z] != exponent[z - 1]:
                runs[count, 0] = z
                count += 1
            runs[count - 1, 1] = z + 1
    return runs[:count]


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _below(mantissa, exponent, floor):
    # A mantissa is below 2**128, so the first test settles most entries without a logarithm.
    return mantissa == 0 or (exponent + LIMB < -floor or math.log2(mantissa) + exponent < -floor)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def spread(mantissa, exponent, rows, out, out_exponent):
    """Convolve one sequence with several rows (R, m), of any sign, over shared exponents.

    Args:
        mantissa, exponent: (L,) the sequence.
        rows: (R, m) float64; those that are not 0 of magnitude 2**-62 to 2.
        out, out_exponent: at least (R, L + m - 1) and (L + m - 1,), written to.

    An entry's error is at most m + 1 units of the sum of its terms' magnitudes, beyond those of
    the factors, and 2**-700 of the largest entry at the same place.

    Returns:
        Whether some entry that is not 0 may have come out as 0.
    """
    lost = False
    length, count, codes = mantissa.shape[0], rows.shape[0], rows.shape[1]
    for z in range(length + codes - 1):
        begin, end = max(0, z - codes + 1), min(z + 1, length)
        top, least, level = _NEVER, _EVER, True
        for i in range(begin, end):
            if mantissa[i] > 0:
                used = False
                for r in range(count):
                    used |= rows[r, z - i] != 0
                if used:
                    level &= exponent[i] == top or top == _NEVER
                    top, least = max(top, exponent[i]), min(least, exponent[i])
        # Two limbs apart: such a term may come out as 0 and is then told, not bounded.
        lost |= top != _NEVER and top - least > 2 * LIMB
        out_exponent[z] = top
        for r in range(count):
            total = 0.0
            for i in range(begin, end):
                # theory/sums.md, Proposition 9: m + 1 units of the sum of magnitudes, also with
                # signs.
                if level:
                    total += mantissa[i] * rows[r, z - i]
                elif _LOST <= exponent[i] - top <= 0:
                    total += math.ldexp(mantissa[i] * rows[r, z - i], exponent[i] - top)
            out[r, z] = total
    return lost
