"""Upper bounds of a sum's log moment over all pairs and all other clients: blanket and search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from randquant._internal.progress import report
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.blanket import Blanket, shifted_blankets
from randquant.privacy.certificates.sums.blanket_draws import FEW, Noises, draws
from randquant.privacy.certificates.sums.blocks import block_blankets
from randquant.privacy.certificates.sums.law import KEEP_ALL, Law
from randquant.privacy.certificates.sums.mixture import add_trimmed, mixed, table
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.divergence import UNIT

SAFETY = 90.0
"""Bits by which what is trimmed is less than one client's moment."""

WORK, WORK_FOR_PART = 5.2e9, 3e9
"""Nanoseconds, roughly, that a search of all others may take, and one of blocks of them."""

SMALL = 64
"""Up to so many others a search may take longer: beyond, blocks lose little."""

NEAR = 0.04
"""So far above the attack, relatively, a search of all others need not look closely."""

EVALUATED, PROMISING = 60_000, 2**21
"""How many multisets and beginnings of them such a search evaluates at most; and how many multisets
there may be that are as small as one at the worst vertex that is settled."""


def floor_for(rows: Rows, log_single: float) -> float:
    """Bits below which the ends of a law may be trimmed without harm to a bound."""
    if rows.apart or math.isinf(log_single):
        return KEEP_ALL
    # theory/sums.md, Proposition 7: trimmed entries weigh one client's moment at most, so the bound
    # gains count · 2**-90 relative to that of the sum, which is 1 or more.
    return SAFETY + log_single / math.log(2)


def by_blanket(channel: Channel, rows: Rows, others: int, order: float, log_single: float) -> float:
    """Bound the log moment by the others' draws from a blanket; the least over several blankets.

    Args:
        channel: the channel.
        rows: the client's own rows.
        others: how many other clients there are.
        order: in (1, inf).
        log_single: at least the largest log moment of one client.
    """
    best = log_single
    if math.isinf(log_single):
        return best
    floor = floor_for(rows, log_single)
    known = blankets(channel)
    # theory/sums.md, Proposition 3: each blanket bounds the moment, the least counts.
    for blanket in known[-1:] if others > 2 * FEW else known:
        noises = Noises(blanket, floor)
        # e^-60 below the sum's own moment: what is treated coarsely there does not show.
        groups = draws(blanket, blanket.drawing(others), 60 + log_single)
        laws = [noises.of(counts) for counts, _ in groups]
        log_masses = np.array([log_mass for _, log_mass in groups])
        best = min(best, mixed(rows, laws, log_masses, log_single, order))
    return best


@lru_cache(maxsize=256)
def blankets(channel: Channel) -> tuple[Blanket, ...]:
    """The blankets that sums of a channel are bounded by."""
    return (*block_blankets(channel), *shifted_blankets(channel))


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A search over all multisets of `depth` blocks of `block` clients at one vertex each.

    However n - 1 others are spread over V vertices, they hold at least `depth` whole blocks;
    leaving the rest out of the sum only reveals more.
    """

    block: int
    depth: int
    complete: bool

    @staticmethod
    def of(rows: Rows, others: int, order: float, log_single: float) -> BlockPlan:
        """The plan that counts most clients within the work allowed."""
        floor = KEEP_ALL if math.isinf(order) else floor_for(rows, log_single)
        place = np.arange(rows.weights.shape[1])
        # Times are estimates: they decide which bound is tried, none rests on them.
        spread = rows.probabilities @ place**2 - (rows.probabilities @ place) ** 2
        deviation = math.sqrt(max(float(spread.max()), 0.0))
        best = BlockPlan(1, 0, False)
        sizes = np.unique(np.geomspace(1, others, 40).astype(np.int64)).tolist()
        for block in sizes:
            # theory/sums.md, Proposition 2: so many whole blocks there are, at least.
            most = -(-(others - rows.vertices * (block - 1)) // block)
            if most <= best.block * best.depth // block:
                continue
            depth = most
            allowed = WORK if others <= SMALL else WORK_FOR_PART
            if block == 1 and _work(rows, deviation, 1, others, floor) <= allowed:
                return BlockPlan(1, others, True)
            while depth and _work(rows, deviation, block, depth, floor) > WORK_FOR_PART:
                depth = min(depth - 1, int(depth * 0.97))
            if depth * block > best.depth * best.block:
                best = BlockPlan(block, depth, False)
        return best


def _work(rows: Rows, deviation: float, block: int, depth: int, floor: float) -> float:
    """Nanoseconds of a search, roughly."""
    count, codes = rows.weights.shape

    def length(clients: int) -> float:
        reach = 2 * deviation * math.sqrt(2 * clients * floor * math.log(2)) + 2 * codes
        return min(clients * (codes - 1) + 1, reach)

    def multisets(size: int) -> int:
        several = math.comb(size + rows.vertices - 1, size) if size >= 0 else 0
        return min(several, 10**30)

    laws = min(math.comb(depth + rows.vertices, depth), 10**30)
    longest = length(block * depth)
    work = 1.5 * laws * longest * length(block)
    work += (multisets(depth) + multisets(depth - 2)) * longest * (45 * count + 1.2 * count**2)
    return work * (0.5 if rows.mirror else 1.0)


def by_search(
    rows: Rows, plan: BlockPlan, order: float, log_single: float, attained: float, goal: float
) -> float:
    """Bound the log moment by trying all others, or all multisets of blocks of them.

    Args:
        rows: the client's own rows.
        plan: what to try.
        order: in (1, inf].
        log_single: at least the largest log moment of one client.
        attained: at most the log moment of some others and pair.
        goal: a bound known already: a search that cannot improve on it is skipped.
    """
    if plan.depth == 0:
        return log_single
    floor = floor_for(rows, log_single) if not math.isinf(order) else KEEP_ALL
    laws = _powers(rows, plan.block, floor)
    # What all others at one vertex attain is below every bound of this plan.
    if not plan.complete and _exceeded(rows, laws, plan.depth, order, goal):
        return log_single
    return _tried(rows, laws, plan.depth, order, log_single, attained, floor)


def by_near_search(
    rows: Rows, others: int, order: float, log_single: float, attained: float
) -> float:
    """Bound the log moment by trying all others, but for those that hide about as well or better.

    Args:
        rows: the client's own rows.
        others: how many other clients there are.
        order: in (1, inf).
        log_single: at least the largest log moment of one client.
        attained: at most the log moment of some others and pair.

    Returns:
        At most `NEAR` above what is attained, about; infinite if that would take too long.
    """
    enough = attained * (1 + NEAR)
    floor = floor_for(rows, log_single)
    laws = _powers(rows, 1, floor)
    fewest = others
    while math.comb(fewest + rows.vertices, rows.vertices) > PROMISING:
        fewest = fewest * 9 // 10
    # Where so few at one vertex are not enough there is more to try; where nobody is needed, which
    # so few would say too, one client's bound is no larger.
    if fewest < others and (enough >= log_single or _exceeded(rows, laws, fewest, order, enough)):
        return math.inf
    # theory/sums.md, Proposition 15.
    return _tried(rows, laws, others, order, log_single, enough, floor, early=True)


def _powers(rows: Rows, block: int, floor: float) -> list[Law]:
    """The laws of blocks of clients at each vertex."""
    return [Law.of(row, rows.total, floor).power(block) for row in rows.weights[: rows.vertices]]


def _tried(
    rows: Rows,
    laws: list[Law],
    depth: int,
    order: float,
    log_single: float,
    threshold: float,
    floor: float,
    early: bool = False,
) -> float:
    """Bound the log moment, or the threshold, by trying all multisets of `depth` of these laws."""
    from randquant.privacy.certificates.sums.hardest import search

    width = max(len(law) for law in laws)
    blocks = np.stack([np.pad(law.mantissa, (0, width - len(law))) for law in laws])
    exponents = np.stack([np.pad(law.exponent, (0, width - len(law))) for law in laws])
    errors = max(law.error for law in laws)
    # theory/sums.md, Proposition 6: each convolution with a block adds its length and 1; the last,
    # with rows, codes + 2.
    error = depth * (errors + width + 1) + rows.weights.shape[1] + 4
    # theory/sums.md, Proposition 7: counted at the blocks, and by the search on its way.
    trimmed = max(law.trimmed for law in laws) * depth
    best, most, count = threshold, 0.0, len(blocks)
    total, done, left = math.comb(depth + count - 1, depth), 0, EVALUATED if early else 2**62
    for first in range(count):
        report("how the others are spread, %", 100 * done // total, 100)
        found, more, evaluated = search(
            blocks, exponents, rows.probabilities, rows.allowed, rows.apart, order, depth,
            threshold, floor, error, rows.mirror, first, early, left,
        )  # fmt: skip
        best, most, left = max(best, found), max(most, more), left - evaluated
        if math.isinf(best):
            return best
        done += math.comb(depth + count - first - 2, depth - 1)
    return add_trimmed(best, trimmed + most, floor, log_single)


def _exceeded(rows: Rows, laws: list[Law], depth: int, order: float, goal: float) -> bool:
    """Whether the sum with so many blocks at one vertex already exceeds the goal."""
    return any(
        # 2**20 units: more than such a moment is rounded up by; only time is at stake.
        float(table(rows, law.power(depth), order)[0].max()) * (1 - 2**20 * UNIT) > goal
        for law in laws
    )
