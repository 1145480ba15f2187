"""What a certificate's releases reveal: sensitivities from what it states, and bounds of delta."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace

from .bits import Steps, TwoRows, delta_of_steps
from .certificate_file import RefusedError, expect
from .gaussian import (
    binomial_curvature,
    delta_of,
    discrete_gaussian_curvature,
    skellam_curvature,
    squared_mu_of_a_step,
)
from .intervals import Interval, exp, interval, largest, log, sqrt

FLOAT_32 = Fraction(1, 2**20)  # vector.md, Proposition 16: what 32-bit floats move a mean


# Sensitivities


def sent_norm(update: SimpleNamespace) -> Interval:
    """subsets.md, Proposition 2: the norm C' of what is encoded."""
    threshold = interval(update.threshold)
    if update.sent == update.rotated:
        return threshold
    share = Fraction(update.sent, update.rotated)
    return threshold * sqrt(share) * (1 + Fraction(1, 2**50))


def distance(release: SimpleNamespace, claim: SimpleNamespace) -> Interval:
    """How far apart two neighbours' vectors are in L2 before anything is drawn.

    One client (accounting.md, Propositions 5 and 6): two vectors of a ball, or one of them and 0.
    One example (vector.md, Proposition 16): means that differ in one gradient, or in whether it is
    there. Neither of these means is 0, so both may be anywhere in the ball, whatever the relation.
    """
    update = release.update
    factor = 2 if claim.relation == "replace_one" else 1
    if update.clip == "coordinates":
        return factor * sqrt(interval(update.sent)) * update.threshold
    norm = sent_norm(update)
    if claim.unit == "client":
        return factor * norm
    one = factor * update.threshold * (Fraction(1, release.examples) + FLOAT_32)
    return interval(min((2 * norm).high, interval(one).high))


def grid_square(release: SimpleNamespace, claim: SimpleNamespace) -> Fraction:
    """additive.md, Propositions 6 and 9: the squared distance of two vectors of integers.

    Each has a squared norm of at most `bound`; a rounding moves each coordinate less than a step.
    """
    grid, sent = release.grid, release.update.sent
    if claim.unit == "client":
        return Fraction(grid.bound * (4 if claim.relation == "replace_one" else 1))
    rounded = distance(release, claim) * grid.scale + 2 * sqrt(sent)
    return min(Fraction(math.ceil((rounded * rounded).high)), Fraction(4 * grid.bound))


def check_bound(release: SimpleNamespace, place: str) -> None:
    """additive.md, Proposition 6: the largest squared norm that rounding may have."""
    grid, sent = release.grid, release.update.sent
    y = sent_norm(release.update) * grid.scale
    root = sqrt(sent)
    always, often = (y + root) * (y + root), y * y + Fraction(sent, 4) + y + root / 2
    bound = interval(min(always.high, often.high))
    off = abs(interval(grid.bound) - bound).high
    right = off <= (bound / 2**40).high + 2
    expect(right, f"{place}.grid.bound", math.floor(bound.high), grid.bound)


def record_distance(release: SimpleNamespace, claim: SimpleNamespace, pure: bool) -> Fraction:
    """statistics.md, Propositions 1 and 5: L1 (pure) or squared L2 distance of two records.

    For one client all of its records may change: as many times the distance of one.
    """
    total = Fraction(0)
    for block in release.blocks:
        a = block.amplitude
        if block.encoding == "cells":
            total += 2 * a if pure else 2 * a * a
        elif block.encoding == "tree":
            halves = (block.cells + 1) // 2, block.cells // 2
            depths = sum((half - 1).bit_length() for half in halves)
            total += (2 + depths) * a if pure else (4 + depths) * a * a
        else:
            p = block.columns
            rounded = 2 * p + p * (p - 1) // 2
            step = Fraction(2002, 1000)
            if pure:
                largest = 2 if p == 1 else 2 * ((p + 1) ** 2 // 4) + Fraction(p, 2)
                total += math.ceil(largest * a + step * rounded)
            else:
                length = (1 + p) * a + step * sqrt(rounded)
                total += math.ceil((length * length).high)
    if claim.unit == "client":
        total *= release.most if pure else release.most**2
    return total


# What each kind of release reveals


class Account:
    """What all releases of one account reveal, as the bounds below take it.

    squared_mu: of Gaussian noise that dominates some; pure: the epsilon of others; steps: sums of
    bits; tables: pairs of rows, and how often one is sent; drawn: the total variation between what
    is sent and what is bounded. `claim` says where bounds are to be sharp.
    """

    def __init__(self, claim: SimpleNamespace) -> None:
        self.claim = claim
        self.squared_mu = self.pure = self.drawn = interval(0)
        self.steps: list[Steps] = []
        self.tables: list[tuple[list[tuple], int]] = []

    def proves(self, epsilon: Fraction) -> bool:
        """Whether delta at this epsilon is at most the claim's.

        accounting.md, Propositions 4 and 10: what is pure is taken off epsilon, and drawn noise
        costs (1 + e^epsilon) times its distance from the law that is bounded.
        """
        rest, near = (e - Fraction(self.pure.high) for e in (epsilon, self.claim.epsilon))
        left = interval(self.claim.delta)
        if self.drawn.high:
            left = left - (1 + exp(epsilon)) * self.drawn
        if rest < 0 or left.low < 0:
            return False
        if not self.tables:
            if not self.steps:
                return delta_of(self.squared_mu, rest).high <= left.low
            if (
                not self.squared_mu.high
                and sum((s.pure for s in self.steps), interval(0)).high <= rest
            ):
                return True
            if delta_of_steps(self.steps, self.squared_mu, rest, near) <= left.low:
                return True
        return self.delta_by_moments(rest, near) <= left.low

    def delta_by_moments(self, epsilon: Fraction, near: Fraction) -> Decimal:
        """accounting.md, Propositions 1 and 2: Renyi divergences of an order, added up."""
        best = Decimal(1)
        for order in self.orders(near):
            divergence = self.divergence(order)
            exponent = (order - 1) * (divergence - epsilon + log(1 - Fraction(1, order)))
            if exponent.high < 0:
                best = min(best, (exp(exponent) / order).high)
        return best

    @lru_cache  # noqa: B019
    def divergence(self, order: Fraction) -> Interval:
        total = order * self.squared_mu / 2
        for s in self.steps:
            total = total + s.channel.curvature(int(order), s.longest) * s.square * s.rounds
        for pairs, count in self.tables:
            total = total + count * largest(*(renyi(p, q, order) for p, q in pairs))
        return total

    def orders(self, near: Fraction) -> set[Fraction]:
        """Orders about the claim's; whole ones of sums of bits (their bound is for these)."""
        order = self.claim.order
        if order == "inf":
            energy = self.squared_mu + sum((s.energy for s in self.steps), interval(0))
            order = near / Fraction(energy.high) + Fraction(1, 2) if energy.high else Fraction(2)
        if self.steps:
            low = max(2, min(400, math.floor(order)))
            return {Fraction(low), Fraction(low + 1)}
        return {1 + (order - 1) * Fraction(k, 8) for k in (6, 7, 8, 9, 10)}


def renyi(p: tuple[int, ...], q: tuple[int, ...], order: Fraction) -> Interval:
    """The Renyi divergence of two rows of whole weights of one sum."""
    total = interval(0)
    for a, b in zip(p, q, strict=True):
        if a and not b:
            raise ValueError("a code that one input never sends")
        if a:
            total = total + a * exp((order - 1) * log(Fraction(a, b)))
    return log(total / sum(p)) / (order - 1)


def compile_account(releases: list, claim: SimpleNamespace, place: str) -> Account:
    account = Account(claim)
    kinds: dict[str, Callable] = {
        "codes": add_codes,
        "integer noise": add_integer_noise,
        "gaussian noise": add_gaussian_noise,
        "table": add_table,
    }
    for k, release in enumerate(releases):
        if release.rounds:
            try:
                kinds[release.kind](account, release, claim, f"{place}[{k}]")
            except RefusedError:
                raise
            except (ArithmeticError, ValueError) as error:
                raise RefusedError(f"{place}[{k}]: no bound is known here: {error}") from None
    return account


def add_gaussian_noise(account, release, claim, place: str) -> None:
    """accounting.md, Proposition 7, and gaussian.md, Proposition 1."""
    whole = SimpleNamespace(unit="client", relation="replace_one")
    deviation = distance(release, whole) * release.noise_multiplier
    ratio = distance(release, claim) / deviation
    account.squared_mu += ratio * ratio * release.rounds


def add_integer_noise(account, release, claim, place: str) -> None:
    """gaussian.md, Proposition 4."""
    check_bound(release, place)
    add_noise(account, release, grid_square(release, claim), release.update.sent)


def add_noise(account, release, square: Fraction, coordinates: int) -> None:
    """additive.md, Proposition 5: and how far drawn noise is from its law."""
    noise = release.noise
    if noise.law == "binomial":
        kappa, off = binomial_curvature(noise.trials * release.cohort)
        account.drawn += off * coordinates * release.rounds
    elif noise.law == "skellam":
        kappa = skellam_curvature(noise.variance * release.cohort)
    else:
        kappa = discrete_gaussian_curvature(noise.variance, release.cohort)
    account.squared_mu += squared_mu_of_a_step(kappa) * square * release.rounds
    account.drawn += draws(release, coordinates)


def draws(release: SimpleNamespace, coordinates: int) -> Fraction:
    each = 2 if release.noise.law in ("skellam", "discrete-laplace") else 1
    return Fraction(each * coordinates * release.rounds * release.cohort, 2**168)


def add_table(account, release, claim, place: str) -> None:
    """statistics.md, Propositions 1, 2 and 5."""
    integers = 0
    for block in release.blocks:
        p = block.columns if block.encoding == "products" else 0
        cells = {"cells": 1, "tree": 0}.get(block.encoding)
        integers += 2 * p + p * (p - 1) // 2 + 1 if p else block.cells + cells
    pure = release.noise.law == "discrete-laplace"
    size = record_distance(release, claim, pure)
    if not pure:
        add_noise(account, release, size, integers)
        return
    account.pure += interval(size * release.rounds / release.noise.scale)
    account.drawn += draws(release, integers)


@lru_cache(64)
def two_rows(low: tuple, high: tuple, denominator: int, clients: int) -> TwoRows:
    return TwoRows([list(low), list(high)], denominator, clients)


def add_codes(account, release, claim, place: str) -> None:
    """martingale.md, Proposition 2: a channel whose rows lie between two rows.

    Two codes, or no inputs but the ends. Displacements are counted in shares of the segment; the
    encoder's rounding moves a coordinate by a share of the widest gap (vector.md, Proposition 14).
    """
    channel, update = release.channel, release.update
    inputs, rows = channel.inputs, sorted(channel.weights)
    if len(inputs) > 2 and len(rows[0]) > 2:
        add_table_of_rows(account, release, claim)
        return
    low, high = rows[0], rows[-1]
    span = high[0] - low[0]
    if low == high:
        return
    slope = Fraction(0)
    for (a, p), (b, q) in itertools.pairwise(zip(inputs, channel.weights, strict=True)):
        if p != q:
            if a == b:
                raise ValueError("a jump")
            slope = max(slope, abs(q[0] - p[0]) / (span * (b - a)) if span else 1 / (b - a))
    steps = two_rows(tuple(low), tuple(high), channel.denominator, release.cohort)
    if update.clip == "coordinates":
        longest = interval(1)
        if claim.relation == "zero_out":
            longest = interval(min(Fraction(1), slope * inputs[-1]))
        square = longest * longest * update.sent
    else:
        widest = max(b - a for a, b in itertools.pairwise(inputs))
        rounding = Fraction(2**17 + 1, 2**49) * widest * sqrt(update.sent)
        moved = (distance(release, claim) + rounding) * slope
        longest = interval(min(Fraction(1), Fraction(moved.high)))
        square = interval(min(Fraction((moved * moved).high), Fraction(update.sent)))
    account.steps.append(Steps(steps, square, release.rounds, longest, update.sent))


def add_table_of_rows(account, release, claim) -> None:
    """certificates.md, Proposition 1: the worst inputs are at vertices; coordinates.

    A sum with others' codes reveals no more than the code itself (data processing).
    """
    channel, update = release.channel, release.update
    if update.clip == "norm":
        raise ValueError("more than two rows of more than two codes, on updates clipped in norm")
    rows = [tuple(row) for row in channel.weights]
    others = rows
    if claim.relation == "zero_out":  # accounting.md, Proposition 5
        k = bisect.bisect_right(channel.inputs, 0) - 1
        left, right = channel.inputs[k : k + 2]
        share = math.floor(-left / (right - left) * 2**32 + Fraction(1, 2))
        pair = zip(rows[k], rows[k + 1], strict=True)
        zero = tuple((2**32 - share) * a + share * b for a, b in pair)
        rows, others = [tuple(2**32 * w for w in row) for row in rows], [zero]
    pairs = {pair for p in rows for q in others for pair in ((p, q), (q, p)) if p != q}
    if len(pairs) * len(rows[0]) > 200_000:
        raise ValueError("too many pairs of rows")
    account.tables.append((sorted(pairs), update.sent * release.rounds))


# Claims


def smallest_epsilon(account: Account, claim: SimpleNamespace) -> Fraction | None:
    """The claim's epsilon if it is proven, else one at most half as large again that is, if any."""
    if account.proves(claim.epsilon):
        return claim.epsilon
    low, high = Fraction(1), Fraction(3, 2)
    if not account.proves(claim.epsilon * high):
        return None
    for _ in range(10):
        middle = (low + high) / 2
        if account.proves(claim.epsilon * middle):
            high = middle
        else:
            low = middle
    return claim.epsilon * high
