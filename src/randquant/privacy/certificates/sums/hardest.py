"""The compiled search over multisets of blocks of other clients, and its pruning.

A block is a few clients at one vertex. Every multiset of blocks that may exceed a threshold is
evaluated against all pairs of the client's own rows.
"""

from __future__ import annotations

import numba
import numpy as np

from randquant.privacy.certificates.sums.kernel import convolve, log_moments, spread


@numba.njit(nogil=True, cache=True, error_model="numpy")
def search(
    blocks, exponents, rows, allowed, apart, order, depth, threshold, floor, error, mirror, first,
    early, limit
):  # fmt: skip
    """Largest log moment over all multisets of `depth` blocks whose least vertex is `first`.

    Args:
        blocks, exponents: (V, B) the law of each vertex's block.
        rows: (R, m) the client's own rows, the first V of them the vertices'.
        allowed: (R, R) bool, which ordered pairs count.
        apart: whether some row has a zero where another has none.
        order: in (1, inf].
        depth: how many blocks, >= 1.
        threshold: multisets whose log moment is not above it are skipped.
        floor: entries below 2**-floor are trimmed.
        error: relative error of every value of a sum, in units.
        mirror: whether turning vertices and codes round leaves the channel as it is.
        first: the least vertex of the multisets.
        early: whether every beginning is evaluated, which pays where most of them are settled.
        limit: how many are evaluated, at most.

    Returns:
        (largest log moment above the threshold, rounded up, else the threshold, infinite if the
        limit was reached; entries trimmed, at most, on the way to any multiset; multisets and
        beginnings evaluated).
    """
    count, width = blocks.shape
    codes, own = rows.shape[1], rows.shape[0]
    longest = depth * (width - 1) + 1
    law = np.empty((depth + 1, longest + width), np.float64)
    law_exponent = np.empty((depth + 1, longest + width), np.int64)
    size = np.ones(depth + 1, np.int64)
    trimmed = np.zeros(depth + 1, np.float64)
    law[0, 0], law_exponent[0, 0] = 1.0, 0
    values = np.empty((own, longest + codes), np.float64)
    shared = np.empty(longest + codes, np.int64)
    logs = np.empty((own + 1, longest + codes), np.float64)
    table = np.empty((own, own), np.float64)
    chosen = np.full(depth + 1, -1, np.int64)
    # theory/sums.md, Proposition 2: what is not above the threshold, that of a known attack, does
    # not matter, so it may be passed over.
    best, most, evaluated = threshold, 0.0, 0
    at, chosen[1] = 1, first
    while at > 0 and evaluated < limit:
        if chosen[at] >= count or chosen[1] > first:
            at -= 1
            chosen[at] += 1
            continue
        vertex = chosen[at]
        # theory/sums.md, Proposition 1: a mirrored multiset has the same moments.
        if mirror and _mirrored_first(chosen, at, depth, count):
            chosen[at] += 1
            continue
        size[at], lost = convolve(
            law[at - 1, : size[at - 1]], law_exponent[at - 1, : size[at - 1]],
            blocks[vertex], exponents[vertex], law[at], law_exponent[at], floor,
        )  # fmt: skip
        # theory/sums.md, Proposition 7: the most that was trimmed on any way counts for all.
        trimmed[at] = trimmed[at - 1] + lost
        most = max(most, trimmed[at])
        bound = np.inf
        if early or at == depth or at == depth - 2:  # a bound for all that begins like this
            faint = spread(law[at, : size[at]], law_exponent[at, : size[at]], rows, values, shared)
            bound = _largest(
                values, shared, size[at] + codes - 1, order, logs, table, allowed, error
            )
            # A value that came out as 0 may be one row's only: no bound then.
            if faint and apart:
                bound = np.inf
            evaluated += 1
        if at == depth:
            best = max(best, bound)
        # theory/sums.md, Proposition 2: more blocks only hide more, so a beginning that is not
        # above the threshold settles all that go on from it.
        if at == depth or bound <= threshold:
            chosen[at] += 1
        else:
            chosen[at + 1] = vertex
            at += 1
    return (best if at == 0 else np.inf), most, evaluated


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _largest(values, shared, length, order, logs, table, allowed, error):
    # theory/sums.md, Proposition 8.
    fixed, per_unit = log_moments(values, shared, length, order, logs, table)
    largest = -np.inf
    for p in range(table.shape[0]):
        for q in range(table.shape[0]):
            if allowed[p, q]:
                largest = max(largest, table[p, q])
    return largest + (fixed + per_unit * error) * 2.0**-53


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _mirrored_first(chosen, at, depth, count):
    """Whether the mirror image of every multiset that goes on like this comes before it."""
    if at < depth:
        return count - 1 - chosen[at] < chosen[1]
    for i in range(1, depth + 1):
        image = count - 1 - chosen[depth + 1 - i]
        if image != chosen[i]:
            return image < chosen[i]
    return False
