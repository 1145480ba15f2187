"""Compiled loops of sums: convolutions that never underflow, moments of all pairs, the search.

A sequence is mantissas and exponents: entry i is mantissa[i]·2**exponent[i], 0 if its mantissa is.
"""

from __future__ import annotations

import math

import numba
import numpy as np

# Compiled code is cached on disk and renewed when this file changes, and only then: every constant
# that it uses stands here.
LIMB = 256
"""Exponents are multiples of it; a mantissa that is not 0 lies in [2**-128, 2**128)."""
_LARGE, _SMALL = 2.0**128, 2.0**-128
_DOWN, _UP = 2.0**-LIMB, 2.0**LIMB
_NEVER, _EVER = -(2**40), 2**40  # exponents of a zero, and above all others
_LOST = -4 * LIMB  # terms so far below the largest one are less than 2**-768 of it
_LOG2 = math.log(2.0)


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


@numba.njit(nogil=True, cache=True, error_model="numpy")
def log_moments(values, exponents, length, order, logs, table):
    """log of sum_z p^order q^(1-order) for all ordered pairs of rows; infinity: largest log p/q.

    Args:
        values, exponents: (R, >= length), (>= length,) as `spread` writes them, all >= 0.
        length: how many entries count.
        order: in (1, inf].
        logs: (R + 1, >= length) float64 to work in.
        table: (R, R) float64, written to; (p, q) is at [p, q].

    Returns:
        (a, b): the computed table is within (a + b·e) units of the truth, e the relative error in
        units of every value.
    """
    count = values.shape[0]
    pure = math.isinf(order)
    # theory/sums.md, Proposition 8: whole orders by products, while no power overflows.
    if order <= 16 and order == math.floor(order):
        wide = _whole_moments(values, exponents, length, int(order), table)
        if wide * 2 * order < 900 * _LOG2:
            return 1.01 * (8 * order + length + 24 + 9 * order * wide), 1.01 * (2 * order - 1)
    impossible = np.zeros((count, count), np.bool_)
    table[:] = -np.inf if pure else 0.0
    top, wide, deep = -np.inf, 0.0, 0.0
    for z in range(length):
        largest, least, holes = -np.inf, np.inf, False
        for r in range(count):
            if values[r, z] > 0:
                logs[r, z] = math.log(values[r, z])
                largest, least = max(largest, logs[r, z]), min(least, logs[r, z])
                deep = max(deep, abs(logs[r, z]))
            else:
                logs[r, z] = -np.inf
                holes = True
        logs[count, z] = -np.inf
        if largest == -np.inf:
            continue
        if holes:
            for p in range(count):
                for q in range(count):
                    # A code of p that q never sends: infinite, whatever the other terms are.
                    impossible[p, q] |= values[p, z] > 0 and not values[q, z] > 0
        # theory/sums.md, Proposition 8: `wide` is its c - l, `deep` its |log|.
        wide = max(wide, largest - least)
        if pure:
            for p in range(count):
                for q in range(count):
                    if values[q, z] > 0 and values[p, z] > 0:
                        table[p, q] = max(table[p, q], logs[p, z] - logs[q, z])
            continue
        # The largest term at z is that of the likeliest row over the least likely one.
        logs[count, z] = largest + exponents[z] * _LOG2 + (order - 1) * (largest - least)
        top = max(top, logs[count, z])
    if not pure:
        _add_moments(logs, length, order, top, table)
    for p in range(count):
        for q in range(count):
            if impossible[p, q]:
                table[p, q] = np.inf
    if pure:
        # theory/sums.md, Proposition 8, infinite order: each of two logarithms costs 8, their
        # difference 2, and the errors e of both rows count once each.
        return 18 * deep + 2 * wide, 2.02
    # theory/sums.md, Proposition 8.
    error = (2 * order - 1) * (13 * deep + 9 * wide) + 16 * (abs(top) + 760) + length + 40
    return 1.01 * error, 1.01 * (2 * order - 1)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _whole_moments(values, exponents, length, order, table):
    """Moments of a whole order by products; the largest log p/q, infinite where that fails."""
    count = values.shape[0]
    widest = 1.0
    table[:] = 0.0
    upper, lower = np.empty(count), np.empty(count)
    for z in range(length):
        largest, least = 0.0, np.inf
        for r in range(count):
            largest, least = max(largest, values[r, z]), min(least, values[r, z])
        if largest == 0:
            continue
        # Products need all values in one range: elsewhere logarithms are taken.
        if least == 0 or exponents[z] != 0:
            return np.inf
        widest = max(widest, largest / least)
        for r in range(count):
            share = values[r, z] / largest
            power = share
            for _ in range(order - 2):
                power *= share
            upper[r] = power * values[r, z]
            # Shares are at most 1 and their powers at least e^-312: nothing is lost.
            lower[r] = 1 / power
        for p in range(count):
            for q in range(count):
                table[p, q] += upper[p] * lower[q]
    for p in range(count):
        for q in range(count):
            table[p, q] = math.log(table[p, q])
    return math.log(widest)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _add_moments(logs, length, order, top, table):
    count = table.shape[0]
    upper, lower = np.empty(count), np.empty(count)
    for z in range(length):
        # The largest term at z is below e^-760 of the largest of all: raised to 1e-305 below.
        if logs[count, z] < top - 760:
            continue
        largest, least = -np.inf, np.inf
        for r in range(count):
            if logs[r, z] > -np.inf:
                largest, least = max(largest, logs[r, z]), min(least, logs[r, z])
        # The common factor of a code, so that exponentials are at most 1 each.
        scale = math.exp(logs[count, z] - top)
        for r in range(count):
            upper[r] = lower[r] = 0.0
            if logs[r, z] > -np.inf:
                upper[r] = math.exp(order * (logs[r, z] - largest)) * scale
                lower[r] = math.exp((order - 1) * (least - logs[r, z]))
        for p in range(count):
            for q in range(count):
                table[p, q] += upper[p] * lower[q]
    for p in range(count):
        for q in range(count):
            # What underflowed: at most this much a code, and e^-760 of the largest term.
            table[p, q] = top + math.log(table[p, q] + 1e-305 * length)
