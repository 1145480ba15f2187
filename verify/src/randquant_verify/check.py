"""What a certificate's releases reveal: sensitivities from what it states, and bounds of delta."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace

from .bits import Steps, TwoRows, delta_of_steps
from .certificate_file import RefusedError, expect
from .curves import Curve, Losses, composed, mixtures, products
from .gaussian import (
    binomial_curvature,
    delta_of,
    discrete_gaussian_curvature,
    skellam_curvature,
    squared_mu_of_a_step,
)
from .intervals import Interval, exp, interval, largest, log, smallest, sqrt
from .rows import EXACT, Spread, largest_of_rows, others_of, sums_of
from .sampling import HiddenCodes, Laws

MOST_MASSES = 30_000  # in all pairs of laws that are compared
LARGE_ORDER = 32
MOST_OUTCOMES = 2048  # of a sum of codes of several rows: a limit of memory
FINEST = Fraction(1, 10**9)  # the least epsilon that curves are put on a grid for: a limit of time
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


def check_bound(release: SimpleNamespace) -> None:
    """additive.md, Proposition 6: the largest squared norm that rounding may have."""
    grid, sent = release.grid, release.update.sent
    y = sent_norm(release.update) * grid.scale
    root = sqrt(sent)
    always, often = (y + root) * (y + root), y * y + Fraction(sent, 4) + y + root / 2
    bound = interval(min(always.high, often.high))
    off = abs(interval(grid.bound) - bound).high
    right = off <= (bound / 2**40).high + 2
    expect(right, "grid.bound", math.floor(bound.high), grid.bound)


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

PARTIES_ADD = (
    "",
    "the helper adding noise, never seeing a model or a table, and not colluding with the server",
    "the helper and the server adding noise, and not colluding with one another",
)


def delta_of_pure(pure: Interval, epsilon: Fraction) -> Decimal:
    """verifier.md, Proposition 4."""
    if pure.high <= epsilon:
        return Decimal(0)
    return ((1 - exp(epsilon - pure)) / (1 + exp(-pure))).high


class Account:
    """What all releases of one account reveal, as the bounds below take it.

    squared_mu: of Gaussian noise that dominates some; pure: the epsilon of others; steps: sums of
    bits; rows: other codes clipped in norm, or hidden; curves: more, by their hockey-stick
    divergences; drawn: the total variation between what is sent and what is bounded; spent: sums of
    epsilons and deltas; counts_on: sentences; ways: accounts of the same releases, each bounded in
    its way.
    """

    def __init__(self, claim: SimpleNamespace) -> None:
        self.claim = claim
        self.squared_mu = self.pure = self.drawn = interval(0)
        self.steps: list[Steps] = []
        self.curves: list[Curve] = []
        self.rows: list[Spread | HiddenCodes] = []
        self.spent = (Fraction(0), Fraction(0))
        self.counts_on: set[str] = set()
        self.ways: list[Account] = []

    def proves(self, epsilon: Fraction) -> bool:
        for account in self.ways:
            with suppress(ValueError, ArithmeticError):  # no proof, beyond what decimals hold
                if account.proves_itself(epsilon):
                    return True
        return False

    def proves_itself(self, epsilon: Fraction) -> bool:
        """Whether delta at this epsilon is at most the claim's.

        accounting.md, Propositions 4 and 9: what was spent is taken off, and drawn noise costs
        (1 + e^epsilon) times its distance from the law that is bounded.
        """
        epsilon, delta = epsilon - self.spent[0], self.claim.delta - self.spent[1]
        if epsilon < 0 or delta < 0:
            return False
        left = interval(delta)
        if self.drawn.high:
            # Beyond 10^9 it costs more, and that is more than any delta.
            left = delta - (1 + exp(min(epsilon, 10**9))) * self.drawn
        return left.low >= 0 and any(bound <= left.low for bound in self.deltas(epsilon, left.low))

    def deltas(self, epsilon: Fraction, left: Decimal) -> Iterator[Decimal | Fraction]:
        """Upper bounds of delta, the quicker ones first."""
        if not self.curves and not self.squared_mu.high:
            pure = sum((release.pure for release in (*self.steps, *self.rows)), self.pure)
            yield delta_of_pure(pure, epsilon)
        # accounting.md, Proposition 10: what is pure is taken off too.
        epsilon, near = (
            each - Fraction(self.pure.high)
            for each in (epsilon, self.claim.epsilon - self.spent[0])
        )
        if epsilon < 0:
            return
        bits = not self.rows and all(len(s.channel.rows[0]) == 2 for s in self.steps)
        like = [s.squared_mu(self.claim.delta) for s in self.steps] if bits else []
        squared_mu = sum((mu for mu, _ in like), self.squared_mu)
        missed = sum((off for _, off in like), Fraction(0))
        if not self.curves and bits:
            yield (delta_of(squared_mu, epsilon) + missed).high
        if self.curves and bits and self.claim.delta and near > FINEST:
            worse = None
            for parts in (math.ceil(fine / near) for fine in (400, 2000, 10000)):
                laws = self.losses(parts, squared_mu)
                better = max(law.delta(epsilon, parts) for law in laws)
                yield better + missed
                # What a grid adds falls with the square of its step; none is tried without hope.
                if better > 3 * left or (worse and better - (worse - better) / 8 > left):
                    break
                worse = better
        if self.steps and not self.curves and not self.rows:
            yield delta_of_steps(self.steps, self.squared_mu, epsilon, near)
        if not self.curves and all(s.channel.clients <= EXACT for s in self.steps):
            yield from self.deltas_by_moments(epsilon, left)

    @lru_cache  # noqa: B019
    def losses(self, parts: int, squared_mu: Interval) -> list[Losses]:
        """Of all releases, with the worlds in either order if these differ."""
        curves = list(self.curves)
        if squared_mu.high:
            beside = mixtures(sqrt(squared_mu), interval(0), Fraction(1))
            curves.append(Curve(beside, beside, 1))
        orders = [curves, [curve.exchanged() for curve in curves]]
        orders = orders[: 1 + any(curve.ahead != curve.back for curve in curves)]
        return [composed(order, parts, self.claim.delta - self.spent[1]) for order in orders]

    def deltas_by_moments(self, epsilon: Fraction, left: Decimal) -> Iterator[Decimal]:
        """accounting.md, Propositions 1 and 2: Renyi divergences of an order, added up.

        At whole orders beside the claim's, for which the bound of steps is.
        """
        order = self.claim.order
        if order == "inf":  # where it would be for Gaussian noise
            energy = self.squared_mu + sum((s.energy for s in self.steps), interval(1) / 10**9)
            order = 1 + math.sqrt(-2 * math.log(self.claim.delta or 1e-300) / float(energy.high))
        near = max(2, min(2000, math.floor(order)))
        # Among large orders, which take long, one hardly differs from the next.
        orders = (near, near + 1) if near < LARGE_ORDER else (min(2000, round(order)),)
        # At close inputs the curvature of steps is this: it decides only what is worth the time.
        least = self.squared_mu + sum(
            (s.energy for s in self.steps if s.fixed is None), interval(0)
        )
        for order in orders:

            def delta(divergence: Interval, order: int = order) -> Decimal:
                if order == 2 and max(divergence.high, epsilon) < 50:  # by the ratio's variance
                    a = exp(epsilon) - 1
                    return ((sqrt(exp(divergence) - 1 + a * a) - a) / 2).high
                exponent = (order - 1) * (divergence - epsilon + log(1 - Fraction(1, order)))
                return (exp(exponent) / order).high if exponent.high < 0 else Decimal(1)

            if delta(Fraction(order, 2) * least) > left:
                continue
            total = Fraction(order, 2) * self.squared_mu
            for codes in [s.spread for s in self.steps] + self.rows:
                total = total + codes.divergence(order)
            yield delta(total)


def compile_account(releases: list, claim: SimpleNamespace, place: str) -> Account:
    """The account, and in which ways it is bounded, the quicker ones first.

    A way that has no bound for some release is left out.
    """
    hidden = any(release.hidden and release.rounds for release in releases)
    ways, refusals = [], []
    for way in ("steps", "curve", "seen", "moments") if hidden else ("curve", "steps"):
        try:
            account = added_up(releases, claim, place, way)
        except RefusedError as error:
            refusals.append(error)
        else:
            if way != "seen" or account.curves:
                ways.append(account)
        if not hidden and not (ways and ways[0].curves):
            break  # there is no other way
    if not ways:
        raise refusals[0]
    ways[0].ways = ways
    return ways[0]


def added_up(releases: list, claim: SimpleNamespace, place: str, way: str) -> Account:
    account = Account(claim)
    for k, release in enumerate(releases):
        if not release.rounds:
            continue
        try:
            add_release(account, release, claim, way)
        except RefusedError as error:
            raise RefusedError(f"{place}[{k}].{error}") from None
        except (ValueError, ArithmeticError) as error:
            raise RefusedError(f"{place}[{k}]: {error}, for which there is no bound here") from None
    return account


def add_release(account, release: SimpleNamespace, claim: SimpleNamespace, way: str) -> None:
    """What a release adds in one way: "curve", if it has one; "steps", codes without theirs.

    Hidden rounds also as if they were "seen", or by "moments".
    """
    if release.kind == "spent":
        same = (release.unit, release.relation) == (claim.unit, claim.relation)
        expect(same, "unit and relation", f"{claim.unit}, {claim.relation}", "others were spent")
        account.spent = (account.spent[0] + release.epsilon, account.spent[1] + release.delta)
        spent = f"epsilon <= {float(release.epsilon):g} at delta = {float(release.delta):g}"
        account.counts_on.add(f"{spent} spent before, which this file does not prove")
        account.counts_on.add(counted_on(release.counts_on))
        return
    if release.kind in ("integer noise", "party noise"):
        check_bound(release)
    if hasattr(release, "parties"):
        account.counts_on.add(PARTIES_ADD[len(release.parties)])
    if hasattr(release, "noise"):
        account.drawn += drawn_distance(release)
    if release.hidden:
        account.counts_on.add("nobody knowing who takes part")
    if release.hidden and way in ("curve", "moments"):
        if way == "curve":
            account.curves.append(hidden_rounds(account, release, claim))
        else:
            account.rows.append(hidden_codes(release, claim))
    elif release.kind == "codes":
        add_codes(account, release, claim, way)
    elif hasattr(release, "blocks") and release.noise.law == "discrete-laplace":
        size = record_distance(release, claim, True)
        account.pure += interval(size * release.rounds / release.noise.scale)
    else:
        account.squared_mu += squared_mu(release, claim) * release.rounds


def counted_on(whom: SimpleNamespace | None) -> str:
    """Whose honesty a guarantee that was spent before rests on, as the file states it."""
    if whom is None:
        return "whatever what was spent before counts on, which this file does not say"
    parties = "".join(f" and on the noise of the {party}" for party in whom.parties)
    return f"{whom.cohort - 1} honest others{parties} in what was spent before"


def squared_mu(release: SimpleNamespace, claim: SimpleNamespace) -> Interval:
    """The Gaussian noise that dominates one round, by its squared distance.

    accounting.md, Proposition 7; gaussian.md, Propositions 1 and 4; statistics.md, Proposition 5.
    """
    if release.kind == "gaussian noise":
        # From zeros the longest update is as far as its norm, in which the noise is counted.
        zeroed = SimpleNamespace(unit="client", relation="zero_out")
        deviation = distance(release, zeroed) * release.noise_in_clip_norms
        ratio = distance(release, claim) / deviation
        return ratio * ratio
    if hasattr(release, "blocks"):
        square = record_distance(release, claim, False)
    else:
        square = grid_square(release, claim)
    noise = release.noise
    if noise.law == "binomial":
        kappa, _ = binomial_curvature(noise.trials * release.cohort)
    elif noise.law == "skellam":
        kappa = skellam_curvature(noise.variance * release.cohort)
    else:
        kappa = discrete_gaussian_curvature(noise.variance, release.cohort)
    return squared_mu_of_a_step(kappa) * square


def drawn_distance(release: SimpleNamespace) -> Interval:
    """additive.md, Propositions 4 and 5: how far drawn noise is from the law that is bounded."""
    law, coordinates = release.noise.law, 0
    for block in getattr(release, "blocks", ()):
        p = block.columns if block.encoding == "products" else 0
        cells = {"cells": 1, "tree": 0}.get(block.encoding)
        coordinates += 2 * p + p * (p - 1) // 2 + 1 if p else block.cells + cells
    coordinates = coordinates or release.update.sent
    drawing = len(release.parties) if hasattr(release, "parties") else release.cohort
    each = drawing * interval(Fraction(2 if law in ("skellam", "discrete-laplace") else 1, 2**168))
    if law == "binomial":
        each = each + binomial_curvature(release.noise.trials * release.cohort)[1]
    return each * coordinates * release.rounds


def hidden_codes(release: SimpleNamespace, claim: SimpleNamespace) -> HiddenCodes:
    """sampling.md, Propositions 5 to 10: codes of rounds drawn secretly, by Renyi divergences."""
    if release.kind != "codes" or release.update.clip != "norm":
        raise ValueError("hidden rounds that are not codes of updates clipped in norm")
    one = SimpleNamespace(**{**vars(release), "rounds": 1})
    far, near = (
        Laws(spread_of(one, SimpleNamespace(unit="client", relation=relation)))
        for relation in ("replace_one", "zero_out")
    )
    return HiddenCodes(
        far, near, release.hidden.draw, release.hidden.rate, release.rounds, claim.relation
    )


def hidden_rounds(account: Account, release: SimpleNamespace, claim: SimpleNamespace) -> Curve:
    """sampling.md, Propositions 13 to 15 and 19: the pair that bounds a round drawn secretly.

    far: the distance of the Gaussian noise that dominates a round under replace_one; near: the
    same under zero_out.
    """
    if release.rounds > 10**6:
        raise ValueError("more than a million rounds")
    distances = []
    for relation in ("replace_one", "zero_out"):
        pair = SimpleNamespace(unit="client", relation=relation)
        if release.kind == "codes":
            if len(release.channel.weights[0]) > 2 or release.update.clip != "norm":
                raise ValueError("hidden codes that are not bits of updates clipped in norm")
            steps = steps_of_codes(release, pair)
            square, off = steps.squared_mu(claim.delta)
            account.drawn += off
            square = square / release.rounds
        else:
            square = squared_mu(release, pair)
        distances.append(sqrt(square))
    (far, near), zero, rate = distances, interval(0), release.hidden.rate
    ahead, back = {
        ("poisson", "zero_out"): ((near, zero), (zero, -near)),
        ("poisson", "replace_one"): ((near, near - far),) * 2,
        ("fixed", "zero_out"): ((far, far - near), (near, zero)),
        ("fixed", "replace_one"): ((far, zero),) * 2,
    }[release.hidden.draw, claim.relation]
    first = mixtures(ahead[0], ahead[1], rate)
    second = first if back is ahead else mixtures(back[0], back[1], rate)
    return Curve(first, second, release.rounds)


two_rows = lru_cache(64)(TwoRows)


def mixing_error(inputs: list[Fraction]) -> Fraction:
    """vector.md, Proposition 14: how far off two inputs may be together where rows are mixed."""
    return Fraction(2**17 + 1, 2**49) * max(b - a for a, b in itertools.pairwise(inputs))


def encoded_distance(release: SimpleNamespace, claim: SimpleNamespace) -> Interval:
    """vector.md, Proposition 14: two vectors' distance where rows are mixed."""
    each = mixing_error(release.channel.inputs)
    return distance(release, claim) + each * sqrt(release.update.sent)


def against_zeros(claim: SimpleNamespace) -> bool:
    """vector.md, Proposition 18: a mean in which one gradient is zero is not zero."""
    return (claim.unit, claim.relation) == ("client", "zero_out")


def displacements(release: SimpleNamespace, claim: SimpleNamespace) -> tuple[Interval, Interval]:
    """How far one coordinate may move where rows are mixed, and the square of all together.

    vector.md, Propositions 17 and 19: no farther than the whole, nor than its ends are apart.
    """
    inputs, moved = release.channel.inputs, encoded_distance(release, claim)
    ends = inputs[-1] + mixing_error(inputs) if against_zeros(claim) else 2 * inputs[-1]
    longest = smallest(ends, moved)
    square = smallest(moved * moved, longest * longest * release.update.sent)
    return longest, square


def share_of_zero(channel: SimpleNamespace, low: tuple, high: tuple) -> Fraction:
    """Where the row of 0 is between two rows, as a share of the way."""
    k = bisect.bisect_right(channel.inputs, 0) - 1
    left, right = channel.inputs[k : k + 2]
    code = max(range(len(low)), key=lambda j: abs(high[j] - low[j]))
    a, b = (row[code] for row in channel.weights[k : k + 2])
    row = a + (b - a) * -left / (right - left)
    return (row - low[code]) / Fraction(high[code] - low[code])


def steps_of_codes(release: SimpleNamespace, claim: SimpleNamespace) -> Steps:
    """martingale.md, Proposition 2: a channel whose rows lie between two rows.

    Two codes, or no inputs but the ends. Displacements are counted in shares of the segment.
    """
    channel, sent = release.channel, release.update.sent
    inputs, rows = channel.inputs, sorted(channel.weights)
    low, high = rows[0], rows[-1]
    span, slope = high[0] - low[0], Fraction(0)
    for (a, p), (b, q) in itertools.pairwise(zip(inputs, channel.weights, strict=True)):
        if p != q:
            if a == b:
                raise ValueError("a jump")
            slope = max(slope, abs(q[0] - p[0]) / (span * (b - a)) if span else 1 / (b - a))
    steps = two_rows((tuple(low), tuple(high)), channel.denominator, release.cohort)
    longest, square = displacements(release, claim)
    longest = interval(min(Decimal(1), (longest * slope).high))
    square = smallest(square * slope * slope, longest * longest * sent)
    fixed = share_of_zero(channel, low, high) if against_zeros(claim) and low != high else None
    return Steps(steps, square, release.rounds, longest, sent, fixed)


def vertex_pairs(release: SimpleNamespace, claim: SimpleNamespace, clients: int) -> list:
    """certificates.md, Proposition 1: by coordinates the worst inputs are at vertices.

    Pairs of one client's rows, beside the others of a sum in each way; none if they are too many.
    """
    channel = release.channel
    rows = others = [tuple(row) for row in channel.weights]
    kinds, outcomes = len(set(rows)), clients * (len(rows[0]) - 1)
    if kinds * (2 if against_zeros(claim) else kinds - 1) * outcomes > 2 * MOST_MASSES:
        return []  # before there are laws of them
    if against_zeros(claim):  # accounting.md, Proposition 5
        k = bisect.bisect_right(channel.inputs, 0) - 1
        left, right = channel.inputs[k : k + 2]
        share = math.floor(-left / (right - left) * 2**32 + Fraction(1, 2))
        pair = zip(rows[k], rows[k + 1], strict=True)
        zero = tuple((2**32 - share) * a + share * b for a, b in pair)
        rows, others = [tuple(2**32 * w for w in row) for row in rows], [zero]
    pairs = {pair for p in rows for q in others for pair in ((p, q), (q, p)) if p != q}
    laws = others_of(tuple(map(tuple, channel.weights)), clients)
    if len(pairs) * sum(len(law) + len(rows[0]) for law in laws) > MOST_MASSES:
        return []
    most = sum(rows[0]) * sum(laws[0])
    return [tuple(products(law, list(row), most) for row in pair) for law in laws for pair in pairs]


def add_codes(account: Account, release: SimpleNamespace, claim: SimpleNamespace, way: str) -> None:
    """Codes by the curve of all pairs of vertices, by squared distance, or as steps of two rows.

    A sum with others' codes reveals no more than the code itself (data processing).
    """
    channel, update = release.channel, release.update
    rows = tuple(map(tuple, channel.weights))
    if len(set(rows)) == 1:
        return
    several = len(rows) > 2 and len(rows[0]) > 2
    longest, square = displacements(release, claim)
    # Whole updates may reach all pairs of vertices at once where the norm is that long.
    anywhere = way != "steps" and (longest * longest * update.sent).low <= square.high
    by_vertices = update.clip == "coordinates" and (several or release.cohort == 1)
    if anywhere or by_vertices:
        for clients in (min(release.cohort, EXACT), *(1,) * by_vertices):
            if pairs := vertex_pairs(release, claim, clients):
                worst = largest_of_rows(pairs)
                account.curves.append(Curve(worst, worst, update.sent * release.rounds))
                return
        if by_vertices:
            raise ValueError("too many pairs of rows")
    if several:
        account.rows.append(spread_of(release, claim))
    else:
        account.steps.append(steps_of_codes(release, claim))


def spread_of(release: SimpleNamespace, claim: SimpleNamespace) -> Spread:
    """Codes on updates clipped in norm, to be bounded by Renyi divergences."""
    inputs, rows = tuple(release.channel.inputs), tuple(map(tuple, release.channel.weights))
    codes = len(release.channel.weights[0])
    if len(rows) == 2 or codes == 2:
        return steps_of_codes(release, claim).spread
    longest, square = displacements(release, claim)
    clients = min(release.cohort, EXACT if len(rows) < 5 else 1)  # a limit of time
    clients = min(clients, max(1, MOST_OUTCOMES // max(1, codes - 1)))
    fixed = Fraction(0) if against_zeros(claim) else None
    tables = sums_of(inputs, rows, clients, fixed)
    pure = largest(*(table.pure for table in tables)) * release.update.sent * release.rounds
    return Spread(tables, square * release.rounds, longest, pure, fixed)


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
