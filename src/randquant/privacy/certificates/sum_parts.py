"""Lower bounds on the randomness of the other clients in a secure sum.

The problem: the server sees the sum of n codes, and the adversary chooses the inputs of the other
n - 1 clients. A bound has to hold for the worst choice, and there are far too many to try.

The bound: a list of components, each with an upper bound of its probability and with the laws that
the sum of the other clients' codes may have in it. A Rényi moment of the sum is at most the mean
over components of the largest moment in each. It is proven in `docs/theory/sums.md` (Propositions
1, 2, 11 to 14) and `docs/theory/vector-sums.md` (Propositions 2, 11, 12, 19 and 21).

From top to bottom: `block_covers` splits the law of every block of a few clients into shifted
copies of a few fixed laws (linear programmes find the splits); `bounding_laws` then yields the
bounds that suit a channel: all clients at one of two ends, at its vertices, or in blocks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_laws import Law, asymmetry, log_moments, multiples
from randquant.privacy.certificates.sum_tools import (
    UNLIKELY_LOG_PROBABILITY,
    Bits,
    LogBinomial,
)
from randquant.privacy.divergence import UNIT

# Blocks of clients. The sum of a few codes is nearly normal whatever the inputs are, so the laws of
# all blocks have more in common than the laws of single codes: theory/vector-sums.md, Proposition
# 19. No constant of this part decides whether a bound holds, but for the error allowances: they
# decide how tight it is and how long it takes.

MAX_PROGRAMMES = 400
"""Linear programmes for one block size, at most; sizes that need more are skipped. Twice as many
would give channels with many vertices larger blocks, in up to twice the time."""

BLOCK_SIZES = (1, 2, 3, 4, 6, 8, 12)
"""Clients in a block. Larger blocks have more in common, but there are fewer of them."""

TAIL_MASS_CHOICES = ((0.0, 0.0), (3e-4, 1e-3), (2e-3, 3e-4), (5e-3, 3e-4), (1e-2, 1e-3))
"""Probabilities that are trimmed off a kind: at the end of the codes that its clients are near, and
at the other. A shorter law has more places under a block's law, but hides slightly less."""

BELL_VARIANCE_FACTORS = (0.3, 0.06)
"""Variances of the bells, as factors of the least variance of a block; the first is fitted first.
The wider bell hides more, the narrower one fits under what little is left."""

MAX_BLOCKS_WITH_BELLS = 12
"""Bells are fitted for up to this many blocks: with more it is unlikely that only a few blocks send
a kind, and bells are not worth the components that they add."""

TAKEN_SHARE = 0.98
"""Fraction of the largest possible share that kinds, and each bell but the last, are limited to
where a bell follows. At 1, nothing would be left for the bells to fit under."""

MAX_ROUNDING_SIZE = 2304
"""Largest block size squared, times levels: up to this, `LAW_ERROR` covers the rounding of laws."""

LAW_ERROR = 1e-13
"""Above the relative error of a block's law, of a sum of shapes under it, and of symmetric rows."""

MAX_BELL_DEVIATIONS = 3.5
"""A bell is cut off at this many standard deviations, where its density is 0.2 % of the peak."""

SHAPE_UNITS = 2.0**40
"""Probabilities of kinds and bells are rounded up to whole numbers of this unit, then divided by
their sum: so float64 holds them with one rounding."""

LAYER_PRIORITY_STEP = 4.0
"""Weight of a layer's share in the linear programme, over that of the next layer. Kinds come first,
for they hide most."""

MAX_PROGRAMMES_PER_CALL = 12
"""Linear programmes that are solved as one: a single one costs less than the call of the solver."""

LEAST_SHARE = 0.5
"""Covers whose kinds have at most this share of some block are dropped: too many blocks would hide
nothing for the bound to be of use."""

SHARE_DENOMINATOR = 2**53
"""Shares of a block are whole numbers over this, so that `LogBinomial` has an exact probability."""


@dataclass(frozen=True, slots=True)
class BlockCover:
    """Laws that are hidden in the law of every block of clients, whatever its clients' inputs.

    The law of a block is at least a sum of shifted copies of these laws. The weights of the shifts
    depend on the inputs, the total weight of each layer (all kinds together, and each bell) does
    not. Layer by layer, these totals are the `shares`.

    Attributes:
        size: clients in a block.
        kinds: (2 or 3, L) probabilities; the clients' inputs decide which of them a block sends.
        bells: (J,) truncated normal laws that fit under what the kinds leave.
        shares: (1 + J,) whole numbers over SHARE_DENOMINATOR: total weights of the layers.
        least_client_variance: smallest variance of one client's code.
    """

    size: int
    kinds: np.ndarray
    bells: tuple[np.ndarray, ...]
    shares: tuple[int, ...]
    least_client_variance: float


def symmetric_rows(channel: Channel) -> np.ndarray:
    """Return the distinct rows of vertices, sorted by mean, made symmetric if they nearly are.

    Guarantees:
        No entry exceeds the channel's probability.
    """
    rows = np.unique(channel.weights, axis=0) / channel.denominator
    rows = rows[np.argsort(rows @ np.arange(channel.levels), kind="stable")]
    # What lies under a lowered row also lies under the true one.
    lowered = np.minimum(rows, rows[::-1, ::-1])
    return lowered if np.allclose(lowered, rows, rtol=LAW_ERROR / 2, atol=0) else rows


def block_covers(channel: Channel, others: int) -> list[BlockCover]:
    """Return the covers of all block sizes that this number of other clients can fill."""
    # With few blocks the bound depends on how likely hardly any of them hides anything: a third
    # kind and bells make that less likely.
    covers = [
        _block_cover(channel, size, others // size <= MAX_BLOCKS_WITH_BELLS)
        for size in BLOCK_SIZES
        if size <= others
    ]
    return [cover for cover in covers if cover is not None]


@functools.lru_cache(maxsize=256)
def _block_cover(
    channel: Channel, size: int, few_blocks: bool, with_bells: bool = True
) -> BlockCover | None:
    rows = symmetric_rows(channel)
    blocks = _distinct_blocks(rows, size)
    if not blocks or size**2 * channel.levels > MAX_ROUNDING_SIZE:
        return None
    kinds, kind_share = _best_kinds(rows, size, few_blocks)
    if kind_share <= LEAST_SHARE:
        return None
    least_variance = size * _least_variance(rows)
    factors = BELL_VARIANCE_FACTORS if few_blocks and with_bells else ()
    bells = tuple(_truncated_normal(factor * least_variance) for factor in factors)
    # Caps on the layers decide how tight the bound is, not whether it holds, so they are estimated
    # from blocks of equal clients, which are few.
    caps = [TAKEN_SHARE * kind_share] if bells else []
    for fitted in range(1, len(bells)):
        last_share = _common_shares(_equal_client_laws(rows, size), kinds, bells[:fitted], caps)[-1]
        caps.append(TAKEN_SHARE * float(last_share))
    # theory/vector-sums.md, Proposition 19: a share counts only if every block has it, all layers
    # at once.
    laws = np.stack([_block_law(rows, block) for block in blocks])
    common = _common_shares(laws, kinds, bells, caps)
    shares = tuple(int(share * SHARE_DENOMINATOR) for share in common)
    if shares[0] <= LEAST_SHARE * SHARE_DENOMINATOR:
        return _block_cover(channel, size, few_blocks, False) if bells else None
    return BlockCover(size, kinds, bells, shares, _least_variance(rows))


def _best_kinds(rows: np.ndarray, size: int, middle: bool) -> tuple[np.ndarray, float]:
    # (kinds, their share in the blocks whose clients all have the same input).
    laws = _equal_client_laws(rows, size)
    # Which laws serve as kinds decides how tight the bound is, not whether it holds: those that
    # hide most variance per block are taken.
    choices = [_kinds(rows, size, middle, *tails) for tails in TAIL_MASS_CHOICES]
    shares = [float(_common_shares(laws, kinds)[0]) for kinds in choices]
    best = max(range(len(choices)), key=lambda i: shares[i] * _least_variance(choices[i]))
    return choices[best], shares[best]


def _distinct_blocks(rows: np.ndarray, size: int) -> list[tuple[int, ...]]:
    # Multisets of vertices, one of each mirrored pair; none where there would be too many.
    last = len(rows) - 1
    if math.comb(last + size, size) > 2 * MAX_PROGRAMMES:
        return []
    blocks = list(itertools.combinations_with_replacement(range(last + 1), size))
    # The set of kinds is its own mirror image, and so is each bell: what fits under a block's law
    # fits, mirrored, under the law of the mirrored block.
    if np.array_equal(rows, rows[::-1, ::-1]):
        blocks = [block for block in blocks if block <= tuple(last - v for v in reversed(block))]
    return blocks if len(blocks) <= MAX_PROGRAMMES else []


def _block_law(rows: np.ndarray, block: tuple[int, ...]) -> np.ndarray:
    return functools.reduce(np.convolve, rows[list(block)])


def _equal_client_laws(rows: np.ndarray, size: int) -> np.ndarray:
    return np.stack([_block_law(rows, (vertex,) * size) for vertex in range(len(rows))])


def _least_variance(rows: np.ndarray) -> float:
    codes = np.arange(rows.shape[1])
    return float((rows @ codes**2 - (rows @ codes) ** 2).min())


def _kinds(
    rows: np.ndarray, size: int, middle: bool, near_tail: float, far_tail: float
) -> np.ndarray:
    """Build the kinds: laws of blocks of clients at a low vertex, a high one and in the middle.

    Args:
        rows: (V, m) probabilities, sorted by mean.
        size: clients in a block.
        middle: whether there is a third kind, of clients at the middle vertices.
        near_tail, far_tail: probabilities to trim at the end that the clients are near, and at the
            other end.

    Returns:
        (2 or 3, L) probabilities.
    """
    codes, half = np.arange(rows.shape[1]), len(rows) // 2
    variance = rows @ codes**2 - (rows @ codes) ** 2
    # The vertex of least variance hides least, so its law is the hardest to find in other blocks.
    low = int(variance[: half + len(rows) % 2].argmin())
    high = half + int(variance[half:].argmin())
    left = _trim_tails(_block_law(rows, (low,) * size), near_tail, far_tail)
    mirrored = np.array_equal(rows, rows[::-1, ::-1])
    right = (
        left[::-1]
        if mirrored
        else _trim_tails(_block_law(rows, (high,) * size), far_tail, near_tail)
    )
    # Alternating between the two middle vertices makes this kind its own mirror image.
    middle_vertices = (half, len(rows) - 1 - half)
    central = _block_law(rows, tuple(middle_vertices[i % 2] for i in range(size)))
    central = _trim_tails(
        (central + central[::-1]) / 2 if mirrored else central, near_tail, near_tail
    )
    # Leading zeros only shift a law, which changes no moment. The central law gets as many zeros on
    # both sides, so that the set of kinds stays its own mirror image.
    length = max(len(left), len(right), len(central))
    length += (length - len(central)) % 2
    kinds = [
        np.pad(left, (0, length - len(left))),
        np.pad(central, (length - len(central)) // 2),
        np.pad(right, (length - len(right), 0)),
    ]
    return np.stack(kinds if middle else kinds[::2])


def _trim_tails(law: np.ndarray, lower_mass: float, upper_mass: float) -> np.ndarray:
    # Whole numbers over their sum, so that float64 holds the law with one rounding.
    first = int(np.searchsorted(np.cumsum(law), lower_mass))
    last = len(law) - int(np.searchsorted(np.cumsum(law[::-1]), upper_mass))
    units = np.ceil(law[first:last] * SHAPE_UNITS)
    return units / units.sum()


def _truncated_normal(variance: float) -> np.ndarray:
    # Whole numbers over their sum, so that float64 holds the law with one rounding.
    reach = max(int(MAX_BELL_DEVIATIONS * math.sqrt(variance)), 1)
    density = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    units = np.ceil(density / density.sum() * SHAPE_UNITS)
    return units / units.sum()


def _common_shares(
    laws: np.ndarray,
    kinds: np.ndarray,
    bells: Sequence[np.ndarray] = (),
    caps: Sequence[float] = (),
) -> np.ndarray:
    """Bound from below the weight of each layer that fits under every one of the laws.

    Args:
        laws: (B, L) probabilities.
        kinds: (2 or 3, L') probabilities, together the first layer.
        bells: one further layer each.
        caps: limits on the weights of all layers but the last.

    Returns:
        (1 + number of bells,) total weights over all shifts, rounded down.
    """
    shapes = [(np.trim_zeros(kind), 0) for kind in kinds]
    shapes += [(bell, 1 + i) for i, bell in enumerate(bells)]
    length, layers = laws.shape[1], 1 + len(bells)
    # A law with an impossible sum, or one shorter than a shape, has no room for some shift.
    if laws.min() <= 0 or max(len(shape) for shape, _ in shapes) > length:
        return np.zeros(layers)
    shifted, layer_numbers = [], []
    for shape, layer in shapes:
        for start in range(length - len(shape) + 1):
            shifted.append(np.pad(shape, (start, length - len(shape) - start)))
            layer_numbers.append(layer)
    shifted, membership = np.array(shifted), np.eye(layers)[:, layer_numbers]
    least = np.ones(layers)
    for first in range(0, len(laws), MAX_PROGRAMMES_PER_CALL):
        # Divided by the law: the solver's tolerance is absolute, and tails matter as much as the
        # middle.
        relative_shapes = [
            shifted.T / law[:, None] for law in laws[first : first + MAX_PROGRAMMES_PER_CALL]
        ]
        solutions = _solve_programmes(relative_shapes, membership, caps)
        # theory/vector-sums.md, Proposition 19: nothing rests on the solver. Its weights are scaled
        # down, place by place, until all shapes fit under the law, then lowered by more than
        # rounding.
        for relative, weights in zip(relative_shapes, solutions, strict=True):
            excess = np.maximum(relative @ weights, 1.0)[:, None]
            fitting = weights / np.where(relative > 0, excess, 1.0).max(axis=0)
            allowance = 1 - 2 * (len(shapes) + 2) * LAW_ERROR
            least = np.minimum(least, membership @ fitting * allowance)
        if least[0] <= LEAST_SHARE:
            break
    return least


def _solve_programmes(
    relative_shapes: list[np.ndarray], membership: np.ndarray, caps: Sequence[float]
) -> np.ndarray:
    # (programmes, shapes) weights, zeros where the solver fails: a proposal, no bound rests on it.
    from scipy.optimize import linprog
    from scipy.sparse import block_diag

    layers = len(membership)
    priority = LAYER_PRIORITY_STEP ** np.arange(layers - 1, -1, -1.0) @ membership
    constraints = [np.concatenate([shape, membership[: len(caps)]]) for shape in relative_shapes]
    limits = np.tile(np.append(np.ones(len(relative_shapes[0])), caps), len(relative_shapes))
    cost = -np.tile(priority, len(relative_shapes))
    # First the dual simplex alone, then, if that fails, the solver's own choice of method. Either
    # solution is a proposal that `_common_shares` checks.
    for options in ({"method": "highs-ds", "options": {"presolve": False}}, {"method": "highs"}):
        solution = linprog(
            cost, A_ub=block_diag(constraints, format="csc"), b_ub=limits, bounds=(0, None),
            **options,
        )  # fmt: skip
        if solution.x is not None:
            return np.maximum(solution.x, 0.0).reshape(len(relative_shapes), -1)
    return np.zeros((len(relative_shapes), membership.shape[1]))


# Bounds over the other clients: components, each with the laws that their sum may have in it.
# theory/sums.md, Propositions 1 and 2: a moment is largest at vertices, and clients that are left
# out only raise it. So every function below may count fewer clients than there are, never more.

Method = Literal["exhaustive", "bits", "blocks", "fewer clients", "one client"]
"""The proof of a sum's upper bound."""

MIN_LAWS = 100
"""Laws of a component that are always affordable. Where there are more arrangements they are
grouped, which leaves out one bit in this many or fewer."""

MIN_UNLIKELY_LAWS = 10
"""The same for an unlikely component: its moments are weighted by its small probability."""

MAX_SHORT_SUM_BLOCKS = 2**9
"""With more blocks than this the laws are long, and only MIN_UNLIKELY_LAWS of them are tried."""

SYMMETRY_TOLERANCE = 1e-12
"""Largest relative difference between rows and their mirror images that counts as rounding, and is
added to the error. Larger ones would be a different channel: all arrangements are tried then."""

MAX_BLOCK_LAWS = 33
"""Laws per component for blocks, half of all arrangements if these are mirrored. Twice as many
would take twice the time."""

MAX_EVEN_DRAWS = 8
"""Evenly drawn codes that a component counts, at most: any number up to the true one is valid, and
few of them already hide a client."""

MAX_SMALL_BLOCK_SIZE = 4
"""Clients in a small block. The best cover is tried among small blocks and among large ones."""

MAX_LAW_ENTRIES = 2**22
"""Total length of the laws of a component, roughly; MIN_LAWS of them are tried in any case. It
limits time and memory: 32 MiB of mantissas."""

VERTICES_FIRST_LIMIT, VERTICES_LAST_LIMIT = 1.15, 1.5
"""Ratios of other clients to those that are counted at vertices. Up to the first, vertices are
tried before blocks; up to the second, after them; beyond it, not at all."""


@dataclass(frozen=True, slots=True)
class Component:
    """One case of what the other clients draw and the adversary may know, and the laws in it.

    Attributes:
        log_mass: upper bound of the logarithm of its probability.
        laws: laws of the other clients' sum: for each that it may have in this case, one of these
            hides no more.
    """

    log_mass: float
    laws: list[Law]


@dataclass(frozen=True, slots=True)
class OthersBound:
    """Distributions that bound the sum of the other clients' codes.

    Attributes:
        components: their moments are averaged; within each the largest counts.
        mirrored: whether each component has only one law of every mirrored pair; the other law has
            the moments of the mirrored pairs of inputs.
        law_error: relative error of each law, in addition to its rounding.
        mixture_error: largest relative difference between a law of the other clients and the
            nearest mixture of these laws.
        method: see `SumCertificate`.
    """

    components: list[Component]
    mirrored: bool
    law_error: float
    mixture_error: float
    method: Method


def mirrored_by(channel: Channel) -> bool:
    """Return whether negating inputs and reversing codes keeps the channel, up to rounding."""
    symmetric = np.array_equal(channel.inputs, -channel.inputs[::-1])
    return symmetric and asymmetry(channel.weights) <= SYMMETRY_TOLERANCE


def bounding_laws(
    channel: Channel,
    others: int,
    floor: float,
    max_laws: int,
    mirrored: bool,
    depth: float,
    order: float,
) -> Iterator[OthersBound]:
    """Yield bounds over the other clients, the most promising first; each holds by itself.

    Args:
        channel: the channel of every client.
        others: number of other clients.
        floor: in bits, see `Law`.
        max_laws: laws that are tried of clients at vertices.
        mirrored: whether the caller also evaluates the mirrored pairs of inputs.
        depth: in nats; components of probability below about e^-depth may be treated coarsely.
        order: Rényi order in (1, inf).
    """
    end_laws = max_affordable_laws(channel, others) if len(channel.inputs) == 2 else MIN_LAWS
    ends = at_two_ends(channel, others, floor, end_laws, mirrored)
    if ends is not None:
        yield ends
        return
    # A bound is looser by about the share of clients that it leaves out. Blocks leave out few, but
    # count less of each: so vertices come first where they leave out hardly any.
    counted = at_vertices_counted(channel, others, max_laws, mirrored)
    if counted * VERTICES_FIRST_LIMIT >= others:
        yield at_vertices(channel, others, floor, max_laws, mirrored)
    if counted < others:
        yield from in_blocks(channel, others, floor, mirrored, depth, order)
    if VERTICES_FIRST_LIMIT * counted < others <= VERTICES_LAST_LIMIT * counted:
        yield at_vertices(channel, others, floor, max_laws, mirrored)


def max_affordable_laws(channel: Channel, others: int) -> int:
    return max(MAX_LAW_ENTRIES // (others * channel.levels), MIN_LAWS)


def at_vertices(
    channel: Channel, others: int, floor: float, max_laws: int, mirrored: bool
) -> OthersBound:
    """Put all other clients at vertices, in every way; count fewer of them if there are too many.

    Args:
        channel, others, floor, max_laws, mirrored: see `bounding_laws`.
    """
    # theory/sums.md, Proposition 1: equal rows count once.
    rows = np.unique(channel.weights, axis=0)
    rows = rows[np.argsort((rows / channel.denominator) @ np.arange(channel.levels), kind="stable")]
    # Rows of equal mean may be sorted in an order that is not its own mirror image.
    mirrored = mirrored and asymmetry(rows) <= SYMMETRY_TOLERANCE
    # Rows that are only nearly symmetric: the difference counts once per client.
    law_error = 1.1 * math.expm1(others * math.log1p(asymmetry(rows))) if mirrored else 0.0
    singles = [Law.from_weights(row, channel.denominator, floor) for row in rows]
    max_laws = min(max_laws, max_affordable_laws(channel, others))
    laws = _arrangement_laws(singles, others, max_laws, mirrored, Law.empty_sum(floor))
    complete = at_vertices_counted(channel, others, max_laws, mirrored) == others
    method: Method = "exhaustive" if complete else "fewer clients"
    return OthersBound([Component(0.0, laws)], mirrored, law_error, 0.0, method)


def at_vertices_counted(channel: Channel, others: int, max_laws: int, mirrored: bool) -> int:
    """Return how many other clients are counted, at least, in every arrangement at vertices."""
    kinds = len(np.unique(channel.weights, axis=0))
    max_laws = min(max_laws, max_affordable_laws(channel, others)) * (1 + mirrored)
    units, group = _grouping(kinds, others, max_laws)
    return max(units - (group - 1) * (kinds - 1), 0)


def _grouping(kinds: int, units: int, max_laws: int) -> tuple[int, int]:
    """Choose a grouping of units that has at most `max_laws` arrangements and counts most of them.

    Args:
        kinds: number of laws that a unit (a client, a bit or a block) may have.
        units: number of units.
        max_laws: number of arrangements of groups that may be tried.

    Returns:
        (units in groups, units of a group).
    """
    groups = 0
    while groups < units and math.comb(groups + kinds, kinds - 1) <= max_laws:
        groups += 1
    # theory/sums.md, Proposition 2: of every kind but the last up to group - 1 units are left out.
    # Larger groups lose more there, smaller ones leave more units without a group.
    sizes = range(1, max(-(-units // max(groups, 1)), 1) + 1)
    choices = [(min(size * groups, units), size) for size in sizes]
    return max(choices, key=lambda choice: choice[0] - (choice[1] - 1) * (kinds - 1))


def _compositions(kinds: int, count: int) -> Iterator[tuple[int, ...]]:
    # Stars and bars: the cuts are the places of the bars.
    for cuts in itertools.combinations(range(count + kinds - 1), kinds - 1):
        ends = (-1, *cuts, count + kinds - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(ends))


def at_two_ends(
    channel: Channel, others: int, floor: float, max_laws: int, mirrored: bool
) -> OthersBound | None:
    """Put all other clients, or all bits that their codes are sums of, at either of two ends.

    Args:
        channel, others, floor, mirrored: see `bounding_laws`.
        max_laws: laws that are tried of a component.

    Returns:
        None if the channel's codes are not sums of bits.
    """
    bits = Bits.from_channel(channel)
    if bits is None:
        return None
    # The ends are whole numbers: the law of a unit is within one rounding.
    ends = [Law.from_weights(end, int(end.sum()), floor) for end in bits.ends]
    codes, mirrored = bits.trials + 1, bits.mirrored and mirrored
    even_law = Law.from_weights(np.ones(codes, int), codes, floor)
    # theory/vector-sums.md, Proposition 21: a component for each range of the number of codes that
    # are drawn evenly. The more of them, the fewer clients send bits.
    components = [
        Component(
            log_mass,
            _arrangement_laws(
                ends, bit_senders * bits.trials, laws, mirrored, even_law.power(draws)
            ),
        )
        for log_mass, bit_senders, draws, laws in _even_draw_groups(others, bits.even, max_laws)
    ]
    # theory/vector-sums.md, Proposition 12: rows that are only nearly binomial.
    mixture_error = 1.1 * math.expm1(others * math.log1p(bits.error))
    return OthersBound(components, mirrored, 0.0, mixture_error, "bits")


def _even_draw_groups(others: int, even: float, max_laws: int) -> list[tuple[float, int, int, int]]:
    """Group the number K of other clients whose codes are drawn evenly, each with probability even.

    Returns:
        (log of at least the group's probability, clients that send bits, evenly drawn codes to
        count, laws to try), one for K = 0 and one for each range from a power of two to the next.
    """
    if even == 0:
        return [(0.0, others, 0, max_laws)]
    starts = [2**k for k in range(others.bit_length())] + [others + 1]
    # theory/vector-sums.md, Proposition 21: P(K = 0), then P(K >= count) by the union bound
    # over the sets of `count` clients. A group counts the fewest draws and the fewest senders.
    groups = [(others * math.log1p(-even) * (1 - 16 * UNIT), others, 0, max_laws)]
    for count, next_count in itertools.pairwise(starts):
        log_mass = math.log(math.comb(others, count)) * (1 + 16 * UNIT)
        log_mass += count * math.log(even) * (1 - 16 * UNIT)
        # Every further group is less likely by far: fewer laws suffice.
        max_laws = max(max_laws // 2, MIN_UNLIKELY_LAWS)
        groups.append((log_mass, others - next_count + 1, min(count, MAX_EVEN_DRAWS), max_laws))
    return groups


def _arrangement_laws(
    ends: list[Law], units: int, max_laws: int, mirrored: bool, constant: Law
) -> list[Law]:
    """Return laws of a sum of units such that every arrangement hides at least as much as one.

    Args:
        ends: the laws that a unit may have.
        units: number of units.
        max_laws: number of laws, if they are not mirrored.
        mirrored: whether one law of every mirrored pair is enough.
        constant: law of a summand that is the same in every arrangement.
    """
    kinds = len(ends)
    units, group = _grouping(kinds, units, max_laws * (1 + mirrored))
    mirrored &= kinds > 1
    # theory/sums.md, Proposition 2: an arrangement of groups covers those with up to group - 1 more
    # units of each kind but the last, so the last kind counts that many fewer.
    arrangements = []
    for groups in _compositions(kinds, units // group):
        counts = [number * group for number in groups[:-1]]
        last = units - sum(counts)
        # Of two mirrored arrangements the one with fewer units of the first kind is kept.
        if not (mirrored and counts[0] > last):
            arrangements.append((*counts, max(last - (group - 1) * (kinds - 1), 0)))
    # Powers of one law are shared: each is computed once, from the next smaller one.
    powers = [
        multiples(end, counts)
        for end, counts in zip(ends, zip(*arrangements, strict=True), strict=True)
    ]
    laws = []
    for counts in arrangements:
        law = constant
        for power, count in zip(powers, counts, strict=True):
            law = law * power[count] if count else law
        laws.append(law)
    return laws


def in_blocks(
    channel: Channel, others: int, floor: float, mirrored: bool, depth: float, order: float
) -> Iterator[OthersBound]:
    """Divide the other clients into blocks, each of which sends a kind, a bell or nothing.

    Args:
        channel, others, floor, mirrored, depth, order: see `bounding_laws`.

    Yields:
        One bound for small blocks, which are many, and one for large blocks, which have more in
        common: each for the block size that promises the smallest moment.
    """
    covers = block_covers(channel, others)
    rows = channel.weights / channel.denominator
    # Estimates for the choice of a cover, on which no bound rests: the log moment behind clients
    # that are all at one end, which is nearly the largest, and that of a client alone.
    end = Law.from_weights(channel.weights[0], channel.denominator, floor)
    end_moment, single_moment = (
        float(log_moments(noise, rows, rows, order)[0].max())
        for noise in (end.power(others), Law.empty_sum(floor))
    )
    for large in (False, True):
        candidates = [
            (_estimated_excess(cover, others, depth, end_moment, single_moment), cover.size, cover)
            for cover in covers
            if (cover.size > MAX_SMALL_BLOCK_SIZE) == large
        ]
        if candidates:
            yield _bound_by_blocks(min(candidates)[-1], mirrored, others, floor, depth)


def _bound_by_blocks(
    cover: BlockCover, mirrored: bool, others: int, floor: float, depth: float
) -> OthersBound:
    zeros = np.zeros(cover.kinds.shape[1], np.int64)
    # theory/sums.md, Proposition 14: whole numbers over their sum, so each entry has 1 unit.
    kinds = [Law(row, zeros, 1.0, 0.0, floor) for row in cover.kinds]
    bells = [Law(bell, np.zeros(len(bell), np.int64), 1.0, 0.0, floor) for bell in cover.bells]
    mirrored &= np.array_equal(cover.kinds, cover.kinds[::-1, ::-1])
    components = []
    for counts, log_mass in _block_counts(cover, others // cover.size, depth):
        # The drawn bells are the same whatever the inputs; the kinds are not.
        constant = Law.empty_sum(floor)
        for bell, count in zip(bells, counts[1:], strict=True):
            constant = constant * bell.power(count)
        likely_laws = MAX_BLOCK_LAWS if counts[0] <= MAX_SHORT_SUM_BLOCKS else MIN_UNLIKELY_LAWS
        likely = log_mass > UNLIKELY_LOG_PROBABILITY
        max_laws = likely_laws if likely else MIN_UNLIKELY_LAWS
        laws = _arrangement_laws(kinds, counts[0], max_laws, mirrored, constant)
        components.append(Component(log_mass, laws))
    return OthersBound(components, mirrored, 0.0, 0.0, "blocks")


def _estimated_excess(
    cover: BlockCover, others: int, depth: float, end_moment: float, single_moment: float
) -> float:
    # An estimate that chooses among covers; no bound rests on it.
    counts, log_masses = zip(*_block_counts(cover, others // cover.size, depth), strict=True)
    variances = [_variance(cover.kinds[0]), *(_variance(bell) for bell in cover.bells)]
    hidden = np.array(counts) @ np.array(variances)
    # A log moment falls about as the inverse of the noise's variance, and is one client's own where
    # nothing hides it.
    moments = np.minimum(
        end_moment * others * cover.least_client_variance / np.maximum(hidden, 1e-9), single_moment
    )
    # Beyond 30 the 1 of M - 1 is below rounding, and expm1 might overflow.
    excess = np.where(moments > 30, moments, np.log(np.expm1(np.minimum(moments, 30))))
    return float(np.logaddexp.reduce(excess + np.array(log_masses)))


def _variance(law: np.ndarray) -> float:
    sums = np.arange(len(law))
    return float(sums**2 @ law - (sums @ law) ** 2)


def _block_counts(
    cover: BlockCover, blocks: int, depth: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Yield groups of the multinomial counts of blocks that send a kind, and each of the bells.

    Yields:
        (the least count of each layer, log of at least the group's probability).
    """
    drawn = LogBinomial.from_share(blocks, sum(cover.shares), SHARE_DENOMINATOR, depth)
    for least, _, log_mass in drawn.groups():
        for counts, log_share in _split_counts(least, cover.shares, depth):
            # theory/sums.md, Proposition 10: both logarithms have units to spare for their sum; 8
            # more are added. A probability is at most 1.
            yield counts, min(log_mass + log_share, 0.0) + 8 * UNIT


def _split_counts(
    total: int, shares: tuple[int, ...], depth: float
) -> Iterator[tuple[tuple[int, ...], float]]:
    if len(shares) == 1:
        yield (total,), 0.0
        return
    # theory/sums.md, Proposition 4: a moment falls in every count, so a group counts its least, and
    # the other layers what its greatest leaves.
    drawn = LogBinomial.from_share(total, shares[0], sum(shares), depth)
    for least, greatest, log_mass in drawn.groups():
        for counts, log_share in _split_counts(total - greatest, shares[1:], depth):
            yield (least, *counts), log_mass + log_share
