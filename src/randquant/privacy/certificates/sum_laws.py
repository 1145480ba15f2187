"""Laws of sums of codes, and Rényi moments of two of them, with proven rounding.

The problem: a bound of a sum needs the probabilities of all values of the sum, of up to 2**17
clients and far into the tails, where float64 underflows; and M = sum_z P(z)^a Q(z)^(1-a) of two
such laws P and Q, a the Rényi order, also where M is so close to 1 that M - 1 would cancel.

Every probability carries a bound of its relative error, and what is trimmed off the tails is
counted: `docs/theory/sums.md`, Propositions 6 to 9; `vector-sums.md`, Propositions 7 to 10 and 21.
Errors are counted in units of 2**-53 (UNIT), the relative error of one rounding.

From top to bottom: `Law` and its convolution, with compiled kernels; `Rows` and `ClientRows`, what
one client sends; `SumOutcomes`, the sums of both; `log_moments` for all pairs of inputs at once and
`log_excesses` for single pairs, however close M is to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numba
import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_kernel import evaluate
from randquant.privacy.divergence import UNIT, log_ratio, renyi
from randquant.privacy.guarantee import Neighboring

# The law of a sum of codes, in scaled floats with a proven error, and its powers.
#
# A sequence is mantissas and exponents: entry i is mantissa[i]·2**exponent[i], 0 if its mantissa
# is. Derivations: `docs/theory/sums.md`, Propositions 6 and 7.

# Compiled code is cached on disk and recompiled only when this file changes: every constant that it
# uses is therefore defined here.
LIMB_BITS = 256
"""Exponents are multiples of it, so that equal exponents are common and need no scaling."""
# A mantissa that is not 0 stays between these: products of two are within float64's 2**±1022, and
# so is a sum of a million of them.
_MANTISSA_MAX, _MANTISSA_MIN = 2.0**128, 2.0**-128
_LIMB_DOWN_SCALE, _LIMB_UP_SCALE = 2.0**-LIMB_BITS, 2.0**LIMB_BITS
_MIN_EXPONENT, _MAX_EXPONENT = -(2**40), 2**40  # below and above those of all entries
_LOST_SHIFT_BITS = -4 * LIMB_BITS  # terms this far below the largest one are below 2**-768 of it

NO_TRIM_FLOOR_BITS = 1e15
"""A floor so low that nothing is trimmed."""


@dataclass(frozen=True, slots=True)
class Law:
    """Probabilities of consecutive values of a sum: mantissa·2**exponent.

    The value of the first entry is not kept: no moment depends on it.

    Attributes:
        mantissa: (L,) float64 >= 0, 0 or within 2**-128 and 2**128.
        exponent: (L,) int64, multiples of 256; that of a zero has no meaning.
        error: bound of the relative error of every entry, in units of 2**-53.
        trimmed: number of entries, each below 2**-floor, that were left out at the ends.
        floor: in bits.
    """

    mantissa: np.ndarray
    exponent: np.ndarray
    error: float
    trimmed: float
    floor: float

    @staticmethod
    def from_weights(row: np.ndarray, total: int, floor: float = NO_TRIM_FLOOR_BITS) -> Law:
        """Return the law of one code, from a row of integers and their sum."""
        # A quotient of integers is rounded once: 1 unit.
        mantissa = np.array([int(weight) / total for weight in row])
        return Law(mantissa, np.zeros(len(row), np.int64), 1.0, 0.0, floor)

    @staticmethod
    def empty_sum(floor: float = NO_TRIM_FLOOR_BITS) -> Law:
        return Law(np.ones(1), np.zeros(1, np.int64), 0.0, 0.0, floor)

    def __len__(self) -> int:
        return len(self.mantissa)

    def __mul__(self, other: Law) -> Law:
        # The sum of two independent sums.
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
        return product([self], [clients])


def product(laws: Sequence[Law], counts: Sequence[int]) -> Law:
    """Return the law of a sum of independent copies, counts[j] of laws[j]."""
    result = Law.empty_sum(min(law.floor for law in laws))
    # Repeated squaring, for all counts together: about log2 of the largest count convolutions,
    # instead of one a copy; errors grow less, too.
    for bit in reversed(range(max(counts).bit_length())):
        result = result * result
        for law, count in zip(laws, counts, strict=True):
            if count >> bit & 1:
                result = result * law
    return result


def multiples(single: Law, counts: Iterable[int]) -> dict[int, Law]:
    """Return {count: law of the sum of that many independent copies}, each from the one before."""
    laws = {0: Law.empty_sum(single.floor)}
    steps: dict[int, Law] = {}
    last = 0
    for count in sorted(set(counts)):
        step = count - last
        # Counts are often evenly spaced: a step between two of them is computed once.
        if step not in steps:
            steps[step] = single.power(step) if step else laws[0]
        laws[count] = laws[last] * steps[step] if step else laws[last]
        last = count
    return laws


def log_trimmed(trimmed: float, floor: float) -> float:
    """Bound the log probability of `trimmed` entries below 2**-floor; -inf if there are none."""
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
        (length of what was written, number of entries > 0 that were trimmed). Each entry's relative
        error grows by at most min(a, b) + 1 units over those of the two factors.
    """
    length = first.shape[0] + second.shape[0] - 1
    # With one exponent on each side no scaling is needed: the ordinary convolution.
    if _is_constant(first_exponent) and _is_constant(second_exponent):
        _convolve_one_exponent(first, second, out)
        out_exponent[:length] = first_exponent[0] + second_exponent[0]
    else:
        _convolve_runs(first, first_exponent, second, second_exponent, out, out_exponent)
    for z in range(length):
        # theory/sums.md, Proposition 6: powers of two, so nothing is rounded. A sum of at most
        # 2**20 products of mantissas below 2**256 does not overflow.
        if out[z] >= _MANTISSA_MAX:
            out[z] *= _LIMB_DOWN_SCALE
            out_exponent[z] += LIMB_BITS
        elif 0 < out[z] < _MANTISSA_MIN:
            out[z] *= _LIMB_UP_SCALE
            out_exponent[z] -= LIMB_BITS
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
def _is_constant(exponents):
    constant = True
    for exponent in exponents:  # `min` and `max` take half a second to compile
        constant &= exponent == exponents[0]
    return constant


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _convolve_one_exponent(first, second, out):
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
def _convolve_runs(first, first_exponent, second, second_exponent, out, out_exponent):
    # Run by run of entries with one exponent; zeros, whose exponent means nothing, are in no run.
    # The first pass finds the largest exponent of each sum's terms, the second adds them up
    # relative to it.
    length = first.shape[0] + second.shape[0] - 1
    out[:length], out_exponent[:length] = 0.0, _MIN_EXPONENT
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
                scale[z] = math.ldexp(1.0, shift) if shift >= _LOST_SHIFT_BITS else 0.0
                used |= shift >= _LOST_SHIFT_BITS
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
    # (r, 2): begin and end of every run of entries above 0 with one exponent.
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
    return mantissa == 0 or (
        exponent + LIMB_BITS < -floor or math.log2(mantissa) + exponent < -floor
    )


@numba.njit(nogil=True, cache=True, error_model="numpy")
def convolve_rows(mantissa, exponent, rows, out, out_exponent):
    """Convolve one sequence with several rows (R, m), of any sign, over shared exponents.

    Args:
        mantissa, exponent: (L,) the sequence.
        rows: (R, m) float64; those that are not 0 of magnitude 2**-62 to 2.
        out, out_exponent: at least (R, L + m - 1) and (L + m - 1,), written to.

    An entry's error is at most m + 1 units of the sum of its terms' magnitudes, beyond those of
    the factors, and 2**-700 of the largest entry at the same place.

    Returns:
        bool: some entry that is not 0 may have come out as 0.
    """
    lost = False
    length, count, codes = mantissa.shape[0], rows.shape[0], rows.shape[1]
    for z in range(length + codes - 1):
        begin, end = max(0, z - codes + 1), min(z + 1, length)
        top, least, level = _MIN_EXPONENT, _MAX_EXPONENT, True
        for i in range(begin, end):
            if mantissa[i] > 0:
                used = False
                for r in range(count):
                    used |= rows[r, z - i] != 0
                if used:
                    level &= exponent[i] == top or top == _MIN_EXPONENT
                    top, least = max(top, exponent[i]), min(least, exponent[i])
        # More than two limbs apart, a term may come out as 0 though it is not: this is reported to
        # the caller, not bounded here.
        lost |= top != _MIN_EXPONENT and top - least > 2 * LIMB_BITS
        out_exponent[z] = top
        for r in range(count):
            total = 0.0
            for i in range(begin, end):
                # theory/sums.md, Proposition 9: m + 1 units of the sum of magnitudes, also with
                # signs.
                if level:
                    total += mantissa[i] * rows[r, z - i]
                elif _LOST_SHIFT_BITS <= exponent[i] - top <= 0:
                    total += math.ldexp(mantissa[i] * rows[r, z - i], exponent[i] - top)
            out[r, z] = total
    return lost


# One client's code, added to the other clients' sum: moments of pairs of the client's inputs.
#
# An outcome is a value of the sum. Derivations: `docs/theory/sums.md` and `vector-sums.md`.

MIN_PLAIN_EXPONENT = -3 * LIMB_BITS
"""Laws with no smaller exponent have products with rows of 2**-958 or more, which are floats."""

CERTAIN_OUTCOME_DEPTH = 40.0
"""An outcome counts in lower bounds if its probability is e to this above all that was trimmed:
what was trimmed then changes it by less than rounding does (e^-40 is 0.04 units)."""

MAX_PLAIN_LOG = 300.0
"""Logarithms up to this, and sums of two, have exponentials within the range of floats."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The distinct rows of a channel's vertices, in exact integers over one total.

    Attributes:
        weights: (R, m) Python integers or int64; the first `vertices` are the channel's, and, for
            zero_out neighbours, the last is the row of input 0.
        total: the sum of every row.
        inputs: (R,) an input that has each row.
        vertices: number of distinct rows that the channel's vertices have.
        allowed: (R, R) bool: (p, q) is a pair of neighbours.
        asymmetry: largest relative change of a weight when vertices and codes are reversed.
    """

    weights: np.ndarray
    total: int
    inputs: np.ndarray
    vertices: int
    allowed: np.ndarray
    asymmetry: float

    @staticmethod
    def from_channel(channel: Channel, neighboring: Neighboring) -> Rows:
        """Return the rows that decide the divergence of a sum of a channel's codes."""
        table, total = channel.weights, channel.denominator
        # theory/sums.md, Proposition 1: equal rows count once, in the order of the inputs.
        first = np.sort(np.unique(table, axis=0, return_index=True)[1])
        weights, inputs = table[first], np.array([channel.vertex_input(int(v)) for v in first])
        count = len(first)
        difference = asymmetry(weights)
        if neighboring == "replace_one":
            return Rows(weights, total, inputs, count, ~np.eye(count, dtype=bool), difference)
        zero, zero_total = channel.mix(0.0)
        # The row of 0 has a larger total, because of the dither: all rows are brought to that,
        # exactly.
        scale = zero_total // total
        weights = np.concatenate([weights.astype(object) * scale, zero[None]])
        divisor = math.gcd(*weights.ravel().tolist(), zero_total)
        allowed = np.zeros((count + 1, count + 1), dtype=bool)
        # theory/sums.md, Proposition 1: pairs (v, 0) and (0, v).
        allowed[-1, :-1] = allowed[:-1, -1] = True
        difference = max(difference, asymmetry(zero[None]))
        return Rows(
            weights // divisor,
            zero_total // divisor,
            np.append(inputs, 0.0),
            count,
            allowed,
            difference,
        )

    @property
    def probabilities(self) -> np.ndarray:
        # (R, m) float64, within 1 unit each.
        return _divided(self.weights, self.total)

    @property
    def apart(self) -> bool:
        """True if some code is possible in one row and impossible in another."""
        possible = self.weights > 0
        return bool((possible.any(axis=0) & ~possible.all(axis=0)).any())

    def single_divergences(self, order: float) -> tuple[np.ndarray, np.ndarray]:
        """Bound the divergence of one client's code, seen alone, for all pairs of neighbours.

        Returns:
            (lower, upper), each (R, R); 0 for pairs that are no neighbours.
        """
        # theory/rounding.md, Propositions 3 to 6.
        table = [renyi(row, self.weights, self.total, order) for row in self.weights]
        lower, upper = (np.array(side) for side in zip(*table, strict=True))
        return np.where(self.allowed, lower, 0.0), np.where(self.allowed, upper, 0.0)

    def ratios(self, code: int) -> np.ndarray:
        """Bound the log ratios of rows' weights of a code from below: (R, R), for neighbours."""
        column = self.weights[:, code]
        ratio = log_ratio(column[:, None], column[None])
        # theory/rounding.md, Proposition 6: a lower bound of the logarithm.
        return np.where(self.allowed, np.maximum(ratio, 0.0) * (1 - 17 * UNIT), 0.0)


def _divided(integers: np.ndarray, total: int) -> np.ndarray:
    if integers.dtype == object:
        return np.vectorize(lambda n: n / total, otypes=[np.float64])(integers)
    return integers / total  # a power of two: nothing but the conversion rounds


@dataclass(frozen=True, slots=True)
class ClientRows:
    """The rows of one client's code at the vertices, and their changes in the cells between.

    Attributes:
        inputs: (V,) vertices, rising.
        rows: (V, m) probabilities, within 1 unit and a relative `error`.
        steps: (V - 1, m) differences of the rows of neighbouring vertices, within 1 unit.
        loss: upper bound of the log of the largest ratio of two rows at one code.
        error: relative, of rows and steps, in addition to rounding.
    """

    inputs: np.ndarray
    rows: np.ndarray
    steps: np.ndarray
    loss: float
    error: float = 0.0

    @staticmethod
    def from_channel(channel: Channel) -> ClientRows:
        """Read the rows of a channel without jumps, its codes possible everywhere or nowhere."""
        keep = np.append(True, np.diff(channel.inputs) > 0)
        inputs, weights = channel.inputs[keep], channel.weights[keep]
        # Whole numbers: their differences are exact.
        steps = np.diff(weights, axis=0) / channel.denominator
        rows = weights / channel.denominator
        loss = largest_ratio(rows[:, weights.any(axis=0)])[1]
        return ClientRows(inputs, rows, steps, loss)


@dataclass(frozen=True, slots=True)
class SumOutcomes:
    """The outcomes of a sum that are evaluated, for one law of the other clients' sum.

    Attributes:
        rows: (V, L) probabilities for the client's input at each vertex, divided by the largest of
            them at each outcome.
        steep: (V - 1, L) upper bounds of the slope in each cell, divided by the same.
        scale: (L,) the logarithm of that largest probability, plus the log mass of the component.
        error: relative, of rows.
        missing: bound of what the outcomes that are left out add to a moment.
        rest: bound of what was trimmed off the others' law adds to a curvature, divided by the
            square of the largest relative change of a row.
    """

    rows: np.ndarray
    steep: np.ndarray
    scale: np.ndarray
    error: float
    missing: float
    rest: float

    @staticmethod
    def from_noise(
        client: ClientRows,
        noise: Law,
        log_mass: float,
        order: float,
        max_omitted: float,
        law_error: float,
    ) -> SumOutcomes:
        """Add one client's code to the other clients' sum, and drop outcomes that hardly count.

        Args:
            client: the client's rows.
            noise: the law of the other clients' sum.
            log_mass: upper bound of the log probability of that law.
            order: in (1, inf).
            max_omitted: what all outcomes that are left out may add to a curvature.
            law_error: relative error of the noise's law, in addition to its rounding.
        """
        parts = np.concatenate([client.rows, client.steps, np.abs(client.steps)])
        values, exponents, lost = convolved_rows(noise, parts)
        vertices, cells = len(client.rows), len(client.steps)
        rows = values[:vertices]
        top = rows.max(axis=0)
        possible = top > 0
        rows, top = rows[:, possible] / top[possible], top[possible]
        scale = np.log(top) + exponents[possible] * math.log(2) + log_mass
        # theory/sums.md, Proposition 6.
        error = client.error + law_error + (noise.error + client.rows.shape[1] + 8) * UNIT
        change, sizes = np.abs(values[vertices:, possible]).reshape(2, cells, -1)
        # theory/vector-sums.md, Proposition 7: raised by the error of every term.
        steep = (change + 1.1 * error * sizes) / top
        steep += 1.1 * client.error * (rows[:-1] + rows[1:])
        steep *= (1 + 8 * UNIT) / np.diff(client.inputs)[:, None]
        # theory/vector-sums.md, Proposition 10, in logarithms: twice, which pays for rounding.
        ratio = -np.log(rows.min(axis=0)) * (1 + 4 * error)
        with np.errstate(divide="ignore", over="ignore"):  # an outcome may not depend on the input
            log_curvature = (
                2 * np.log(steep.max(axis=0)) + math.log(order) + (abs(order - 2) + 1) * ratio
            )
            curvature = np.exp(log_curvature + scale)
            moments = 2 * np.exp((order - 1) * ratio + scale)
            # A moment less 1 is S times this, or more, for inputs a cell apart.
            per_curvature = (order - 1) * float(np.diff(client.inputs).min()) ** 2
            limit = max_omitted / max(len(scale), 1)
            omitted = np.maximum(curvature, moments / per_curvature) <= limit
        power = max(order - 1, 1.0) * client.loss + log_mass
        rest = 2 * (order + 1) * math.exp(log_trimmed(noise.trimmed, noise.floor) + power)
        missing = math.inf if lost else float(moments[omitted].sum()) + rest
        kept = ~omitted
        return SumOutcomes(rows[:, kept], steep[:, kept], scale[kept], error, missing, rest)

    def fits_floats(self, order: float) -> bool:
        """Return True if all powers of ratios and all probabilities are within float64's range."""
        ratio = -float(np.log(self.rows).min(initial=0.0))
        return (order - 1) * ratio < MAX_PLAIN_LOG and float(
            self.scale.min(initial=0.0)
        ) > -MAX_PLAIN_LOG


def convolved_rows(noise: Law, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Convolve a law with rows of any sign.

    Returns:
        (R, L + m - 1) mantissas, their exponents, and whether some entry may have come out as 0.
    """
    codes, length = rows.shape[1], len(noise)
    exponents = np.zeros(length + codes - 1, np.int64)
    if noise.exponent.min() >= MIN_PLAIN_EXPONENT:
        # Every product is within the range of floats: a matrix product is faster.
        law = np.pad(np.ldexp(noise.mantissa, noise.exponent), codes - 1)
        windows = np.lib.stride_tricks.sliding_window_view(law, codes)
        return rows[:, ::-1] @ windows.T, exponents, False
    values = np.empty((len(rows), len(exponents)))
    lost = convolve_rows(noise.mantissa, noise.exponent, rows, values, exponents)
    return values, exponents, lost


def largest_ratio(rows: np.ndarray) -> tuple[float, float]:
    """Return the largest ratio of two rows at one code, and its logarithm, both rounded up."""
    # Rows are within 1 unit, the quotient 1: below 4 units. Bounds that use the logarithm have a
    # factor to spare (theory/vector-sums.md, Proposition 8).
    ratio = float((rows.max(axis=0) / rows.min(axis=0)).max()) * (1 + 8 * UNIT)
    return ratio, math.log(ratio) * (1 + 8 * UNIT) + 8 * UNIT


def asymmetry(rows: np.ndarray) -> float:
    """Bound the largest relative change of an entry when (R, m) rows and codes are reversed."""
    table = rows.astype(np.float64)
    reversed_table = table[::-1, ::-1]
    same = table == reversed_table
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.abs(table - reversed_table) / np.minimum(table, reversed_table)
    change = np.where(same, 0.0, change)
    # Entries that are equal as floats need no allowance: the float is within 1 unit of both, which
    # every law counts. Rounding of unequal ones moves their difference by 2 of these 4 units.
    return float(change.max()) * (1 + 8 * UNIT) + 4 * UNIT * bool((~same).any())


def log_moments(
    noise: Law, first: np.ndarray, second: np.ndarray, order: float
) -> tuple[np.ndarray, float]:
    """Bound log of sum_z P(z)^order Q(z)^(1-order), P and Q being p and q convolved with noise.

    Args:
        noise: law of the others' sum; what was trimmed off it must still be added.
        first, second: (P, m), (Q, m) float64 rows p and q, within 1 unit each.
        order: in (1, inf]; infinity gives the largest log P/Q.

    Returns:
        (P, Q) upper bounds, at least 0; and by how much they may exceed the truth.
    """
    values, exponents, lost = convolved_rows(noise, np.concatenate([first, second]))
    size = len(first)
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    possible = (values[:size] > 0).any(axis=0)
    p, q = logs[:size, possible], logs[size:, possible]
    shift = exponents[possible] * math.log(2)
    if lost and not (first.all() and second.all()):
        return np.full((size, len(second)), np.inf), np.inf
    # theory/sums.md, Proposition 8.
    impossible = (p > -np.inf).astype(float) @ (q == -np.inf).T.astype(float) > 0
    depth = float(np.abs(logs[:, possible][values[:, possible] > 0]).max())
    units = noise.error + first.shape[1] + 2
    if math.isinf(order):
        moments = np.stack([(row[row > -np.inf] - q[:, row > -np.inf]).max(axis=1) for row in p])
        slack = (20 * depth + 2.02 * units) * UNIT
    else:
        moments, slack = _finite_order_moments(p, q, shift, order, depth, units)
    return np.where(impossible, np.inf, np.maximum(moments + slack, 0.0)), 2 * slack


def _finite_order_moments(
    p: np.ndarray, q: np.ndarray, shift: np.ndarray, order: float, depth: float, units: float
) -> tuple[np.ndarray, float]:
    """Compute log moments for `log_moments`, and a bound of their error.

    Args:
        p, q: (P, L), (Q, L) log probabilities, to be increased by `shift`.
        shift: (L,) logarithms of the common scales.
        order: in (1, inf).
        depth: largest magnitude of p and q.
        units: error of the probabilities.
    """
    largest, least = p.max(axis=0), np.where(q > -np.inf, q, np.inf).min(axis=0)
    least = np.where(np.isinf(least), largest, least)
    # The largest term at an outcome is that of its likeliest row over the least likely one. Powers
    # relative to these are at most 1, so nothing overflows, and the sum over outcomes for all pairs
    # is one matrix product.
    largest_term = largest + shift + (order - 1) * (largest - least)
    top = float(largest_term.max())
    upper = np.exp(order * (p - largest) + (largest_term - top))
    lower = np.exp((order - 1) * (least - np.where(q > -np.inf, q, np.inf)))
    # theory/sums.md, Proposition 8: what underflowed is below this, and is added.
    with np.errstate(under="ignore"):
        moments = top + np.log(upper @ lower.T + 1e-305 * len(shift))
    wide = float(np.abs(largest - least).max())
    error = (2 * order - 1) * (13 * depth + 9 * wide + units)
    return moments, 1.01 * UNIT * (error + 16 * (abs(top) + 760) + len(shift) + 40)


def moment_error(error: float, loss: float, scale: np.ndarray, order: float) -> float:
    """Bound the relative error of M - 1, and of S, computed from laws that are e^scale times rows.

    Args:
        error: relative, of the rows.
        loss: upper bound of the log of the largest ratio of two laws at one outcome.
        scale: (L,) logarithms.
        order: in (1, inf).
    """
    # theory/vector-sums.md, Proposition 21: logarithms as large as these.
    depth = loss + float(np.abs(scale).max(initial=0.0))
    relative = 2 * error + 12 * UNIT
    # theory/vector-sums.md, Propositions 7 and 15: the errors of ratios; of powers, and of a sum of
    # len(scale) terms.
    slack = 4 * (order + 4) * relative + (4000 + (64 + 400 * loss) * order) * UNIT
    powers = 5000 * (order + 1) * (20 * depth + 12) * max(1, 1 / (order - 1))
    return slack + (powers + len(scale) + 64) * UNIT


def log_excesses(
    noise: Law, rows: np.ndarray, pairs: tuple[np.ndarray, np.ndarray], order: float, upper: bool
) -> np.ndarray:
    """Bound log(M - 1) of pairs of rows, M as in `log_moments`, however close M is to 1.

    Args:
        noise: law of the others' sum; what was trimmed off it must still be added to upper bounds.
        rows: (R, m) float64, within 1 unit each.
        pairs: (N,) places of p and of q in `rows`.
        order: in (1, inf).
        upper: whether these are upper bounds, or lower ones.

    Returns:
        (N,) bounds; the lower bound of log 0 is -inf.
    """
    values, exponents, lost = convolved_rows(noise, rows)
    top = values.max(axis=0)
    possible = (values > 0).all(axis=0)
    # An outcome that only one of the laws has makes a moment infinite, or its value unknown.
    if upper and (lost or not (possible | (top == 0)).all()):
        return np.full(len(pairs[0]), np.inf)
    if lost and not rows.all():  # what is lost may be all of the less likely law
        return np.full(len(pairs[0]), -np.inf)
    shares = values[:, possible] / top[possible]
    scale = np.log(top[possible]) + exponents[possible] * math.log(2)
    if not upper:
        # theory/sums.md, Proposition 7: what was trimmed hardly changes outcomes that count. The
        # others are left out: every outcome adds to M - 1, so a lower bound stays one.
        least = scale + np.log(shares.min(axis=0))
        certain = least > log_trimmed(noise.trimmed, noise.floor) + CERTAIN_OUTCOME_DEPTH
        shares, scale = shares[:, certain], scale[certain]
    if not len(scale):
        return np.full(len(pairs[0]), -np.inf)
    error, logs = (noise.error + rows.shape[1] + 16) * UNIT, np.log(shares)
    relative_error = moment_error(error, float(np.abs(logs).max()), scale, order)
    excess, no_cells = np.empty(len(pairs[0])), np.zeros(len(pairs[0]), np.int64)
    # With so large an error nothing is claimed.
    if relative_error > 0.25:
        return np.full(len(excess), np.inf if upper else -np.inf)
    evaluate(
        shares, logs, scale, math.log(4) - logs.min(axis=0), np.empty((0, len(scale))), *pairs,
        no_cells, no_cells, order, error if upper else -error, np.empty(len(excess)), excess,
    )  # fmt: skip
    return excess + (math.log1p(relative_error) if upper else math.log1p(-2 * relative_error))
