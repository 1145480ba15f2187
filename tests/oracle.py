"""Slow and exact: what the fast code is checked against. Nothing here imports the fast code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np

mpmath.mp.dps = 60


def renyi(p: Sequence[int], q: Sequence[int], order: float) -> mpmath.mpf:
    """Rényi divergence of two rows of integers, to 60 digits."""
    total = mpmath.mpf(sum(int(w) for w in p))
    pairs = [(int(a), int(b)) for a, b in zip(p, q, strict=True) if a]
    if any(b == 0 for _, b in pairs):
        return mpmath.inf
    if math.isinf(order):
        return max(mpmath.log(mpmath.mpf(a) / b) for a, b in pairs)
    alpha = mpmath.mpf(order)
    moment = mpmath.fsum(a / total * (mpmath.mpf(a) / b) ** (alpha - 1) for a, b in pairs)
    return mpmath.log(moment) / (alpha - 1)


def row(channel, x: Fraction) -> list[Fraction]:
    """The row that the channel mixes at an exact input (no jumps)."""
    inputs = [Fraction(float(u)) for u in channel.inputs]
    cell = max(v for v in range(len(inputs) - 1) if inputs[v] <= x and inputs[v] < inputs[v + 1])
    part = (x - inputs[cell]) / (inputs[cell + 1] - inputs[cell])
    pairs = zip(*channel.weights[cell : cell + 2].tolist(), strict=True)
    return [((1 - part) * a + part * b) / channel.denominator for a, b in pairs]


def steepness(channel, x: Fraction, other: Fraction, order: float) -> mpmath.mpf:
    """Divergence over squared distance, to far more digits than are compared."""
    p, q = row(channel, x), row(channel, other)
    with mpmath.workdps(120):
        total = mpmath.mpf(0)
        for a, b in zip(p, q, strict=True):
            if a or b:
                a_high, b_high = (mpmath.mpf(f.numerator) / f.denominator for f in (a, b))
                total += a_high * (a_high / b_high) ** (mpmath.mpf(order) - 1)
        divergence = mpmath.log(total) / (mpmath.mpf(order) - 1)
        square = (x - other) ** 2
        return divergence * square.denominator / square.numerator


def rqm_row(x: Fraction, reach: Fraction, levels: int, keep: Fraction) -> list[Fraction]:
    """RQM's distribution at x, by enumerating every subset of kept levels (Algorithm 2)."""
    grid = [-reach + 2 * i * reach / (levels - 1) for i in range(levels)]
    row = [Fraction(0)] * levels
    for choice in itertools.product((False, True), repeat=levels - 2):
        chance = Fraction(1)
        for kept in choice:
            chance *= keep if kept else 1 - keep
        kept_levels = [0, *(i + 1 for i, kept in enumerate(choice) if kept), levels - 1]
        for low, high in itertools.pairwise(kept_levels):
            if grid[low] <= x <= grid[high]:
                up = (x - grid[low]) / (grid[high] - grid[low])
                row[high] += chance * up
                row[low] += chance * (1 - up)
                break
    return row


def binomial_row(trials: int, success: Fraction) -> list[Fraction]:
    """Binomial distribution."""
    return [
        math.comb(trials, k) * success**k * (1 - success) ** (trials - k) for k in range(trials + 1)
    ]


def unpack(body: bytes, levels: int, count: int) -> np.ndarray:
    """Codes of a packed body: whole numbers of Python, cut from one long one."""
    each = _together(levels)
    number, codes = int.from_bytes(body, "little"), []
    for start in range(0, count, each):
        here = min(each, count - start)
        size = _size(levels, here)
        block, number = number % 2**size, number >> size
        codes += [block // levels**k % levels for k in range(here - 1, -1, -1)]
    assert number == 0
    return np.array(codes)


def body_bytes(levels: int, count: int) -> int:
    """How many bytes packed codes take: whole blocks, then what the rest of them needs."""
    each = _together(levels)
    return -(-(count // each * _size(levels, each) + _size(levels, count % each)) // 8)


def _together(levels: int) -> int:
    """Codes in a block: one of a power of two, else the fewest that waste at most 1 %."""
    if levels & (levels - 1) == 0:
        return 1
    return next(k for k in range(1, 200) if _size(levels, k) <= 1.01 * k * math.log2(levels))


def _size(levels: int, codes: int) -> int:
    return (levels**codes - 1).bit_length()


def binary_log_delta(up: int, total: int, releases: int, epsilon: float) -> mpmath.mpf:
    """log delta of binary randomised response with p = up/total, by the binomial sum."""
    p = mpmath.mpf(up) / total
    loss, tilt = mpmath.log(p / (1 - p)), mpmath.exp(mpmath.mpf(epsilon))
    ahead = mpmath.mpf(epsilon) / loss
    first = max(int(mpmath.ceil((releases + ahead) / 2)), 0)
    mass = mpmath.binomial(releases, first) * p**first * (1 - p) ** (releases - first)
    delta = mpmath.mpf(0)
    for successes in range(first, releases + 1):
        term = mass * (1 - tilt * mpmath.exp(-(2 * successes - releases) * loss))
        delta += term
        if term < delta * mpmath.mpf(10) ** -40 and successes > first + 5:
            break
        mass *= p / (1 - p) * (releases - successes) / (successes + 1)
    return mpmath.log(delta) if delta > 0 else -mpmath.inf


def rdp_to_epsilon(divergence: float, order: float, delta: float) -> mpmath.mpf:
    """Canonne, Kamath and Steinke 2020, Proposition 12."""
    alpha = mpmath.mpf(order)
    return (
        mpmath.mpf(divergence)
        + mpmath.log(1 - 1 / alpha)
        - (mpmath.log(delta) + mpmath.log(alpha)) / (alpha - 1)
    )


def drawn(channel, x: float, dither: int, draw: int) -> int:
    """The code of x for a dither of 32 random bits and a draw of 62, both as whole numbers.

    By the words of docs/theory/encoding.md, in fractions; x within [-clip, clip].
    """
    inputs = [Fraction(float(u)) for u in channel.inputs]
    cell = max(v for v in range(len(inputs) - 1) if inputs[v] <= Fraction(x))
    place = (Fraction(x) - inputs[cell]) / (inputs[cell + 1] - inputs[cell])
    steps = math.floor(place * 2**32 + Fraction(1, 2))
    row = [int(weight) for weight in channel.weights[cell + (dither < steps)]]
    reached = itertools.accumulate(weight * (2**62 // channel.denominator) for weight in row)
    return sum(total <= draw for total in reached)


def top_sum(size: int, count: int) -> mpmath.mpf:
    """Mean sum of a random unit vector's `count` largest magnitudes, by their densities."""
    with mpmath.workdps(25):
        total = mpmath.mpf(0)
        for place in range(1, count + 1):
            ways = place * mpmath.binomial(size, place)

            def density(x, place=place, ways=ways):
                tail = mpmath.erfc(x / mpmath.sqrt(2))
                normal = mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-x * x / 2)
                return x * ways * tail ** (place - 1) * (1 - tail) ** (size - place) * normal

            total += mpmath.quad(density, [0, 1, 2, 4, 8])
        half = mpmath.mpf(size) / 2
        return total / (
            mpmath.sqrt(2) * mpmath.gamma(half + mpmath.mpf(1) / 2) / mpmath.gamma(half)
        )


def composed_delta(p: Sequence[int], q: Sequence[int], releases: int, epsilon) -> mpmath.mpf:
    """Hockey-stick divergence of so many independent pairs, by enumerating all outcomes."""
    total, tilt = Fraction(sum(map(int, p))), mpmath.exp(mpmath.mpf(epsilon))
    delta = mpmath.mpf(0)
    for outcome in itertools.product(range(len(p)), repeat=releases):
        first = math.prod((Fraction(int(p[i])) / total for i in outcome), start=Fraction(1))
        second = math.prod((Fraction(int(q[i])) / total for i in outcome), start=Fraction(1))
        exact = [mpmath.mpf(f.numerator) / f.denominator for f in (first, second)]
        delta += max(exact[0] - tilt * exact[1], 0)
    return delta


def epsilon_of_laws(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    """The least epsilon at which p exceeds e^epsilon q by delta at most in any event; in float64.

    Args:
        p, q: probabilities of the same outcomes, shaped alike.
        delta: in (0, 1).
    """
    low, high = 0.0, 80.0
    for _ in range(70):
        middle = (low + high) / 2
        above = float(np.maximum(p - math.exp(middle) * q, 0).sum())
        low, high = (middle, high) if above > delta else (low, middle)
    return low


def kaplan_meier(times, happened, places) -> list[Fraction]:
    """Kaplan and Meier's estimate after each place; 1 for an event, else last seen at that time.

    Whoever was last seen at the time of an event was at risk of it. Compared with lifelines 0.30.3
    (`KaplanMeierFitter`) and survival 3.5-3 of R (`survfit`) on the data sets of
    tests/statistics/test_estimate_reference.py: the same to 1e-12.
    """
    records = list(zip(times, happened, strict=True))
    alive, curve = Fraction(1), {}
    for time in sorted({t for t, event in records if event}):
        events = sum(event for t, event in records if t == time)
        alive *= 1 - Fraction(int(events), sum(t >= time for t, _ in records))
        curve[time] = alive
    reached = ([s for t, s in curve.items() if t <= place] for place in places)
    return [before[-1] if before else Fraction(1) for before in reached]


def log_rank(times, happened, first) -> tuple[Fraction, Fraction]:
    """Events of the first group less those expected, and their hypergeometric variance.

    Compared as `kaplan_meier` was, with `logrank_test` and `survdiff`.
    """
    records = list(zip(times, happened, first, strict=True))
    gap = variance = Fraction(0)
    for time in {t for t, event, _ in records if event}:
        n = sum(t >= time for t, _, _ in records)
        own = Fraction(sum(t >= time and bool(one) for t, _, one in records))
        events = sum(t == time and bool(event) for t, event, _ in records)
        gap += sum(t == time and bool(event) and bool(one) for t, event, one in records)
        gap -= events * own / n
        if n > 1:
            variance += events * own / n * (1 - own / n) * Fraction(n - events, n - 1)
    return gap, variance
