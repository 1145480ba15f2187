"""The compiled search for the worst arrangement of others, pair of inputs by pair of inputs.

Derivation: `docs/theory/vector-sums.md`, Proposition 25.
"""

from __future__ import annotations

import numba
import numpy as np

from randquant.privacy.certificates.sums.chain_kernel import convolved
from randquant.privacy.certificates.sums.pairs_kernel import curvatures

MOST_PRODUCTS = 256.0
"""Whole powers up to it are products of squares."""


@numba.njit(nogil=True, cache=True, error_model="numpy")
def worst(
    kinds, several, places, widths, cells, positions, first, second, low, start, order, error, keep,
    raised, rest, allowed, due, found,
):  # fmt: skip
    """The largest values of pairs of points over all arrangements, or less than is allowed.

    Args:
        kinds: (J, m') probabilities, what one of the others sends.
        several: how many others there are.
        places, widths: (V, m) the client's rows at vertices, (V - 1,) widths of the cells.
        cells, positions: (P,) where the points are.
        first, second, low, start: pairs of points and their cells, as `curvatures` takes them.
        order, error: as there.
        keep: outcomes below it in all rows are left out.
        raised, rest: factor that pays for the rounding of values, and what is added to moments.
        allowed: curvatures (start[-1],) and moments (N,): where a pair's are not larger with some
            of the others, more of them need not be looked at.
        found: as `allowed`, gets the values, each at the fewest others that were looked at.
    """
    pairs = first.shape[0]
    chosen, count = np.zeros(several + 1, np.int64), np.zeros(several + 1, np.int64)
    # Of each beginning, the pairs that are above what is allowed: first those.
    above = np.empty((several + 1, pairs), np.int64)
    some, laws = np.empty(pairs, np.int64), [np.ones(1)] * (several + 1)
    size = 0
    while True:
        beginning = count[size - 1] if size > 0 else pairs
        if size > 0:
            # theory/vector-sums.md, Proposition 25: one by one, fewer units than `rounding` counts.
            laws[size] = convolved(laws[size - 1], kinds[chosen[size]])
        # theory/vector-sums.md, Proposition 25: whoever waits is not allowed yet.
        waiting, looked = 0, 0
        for at in range(beginning):
            pair = above[size - 1, at] if size > 0 else at
            if size < due[pair] and size < several:
                above[size, waiting] = pair
                waiting += 1
            else:
                some[looked] = pair
                looked += 1
        if looked:
            looked = _compare(
                laws[size], some[:looked], places, widths, cells, positions, first, second, low,
                start, order, error, keep, raised, rest, allowed, found, size == several,
            )  # fmt: skip
        for at in range(looked):
            above[size, waiting + at] = some[at]
        count[size] = waiting + looked
        if count[size] > 0:
            size += 1
            chosen[size] = chosen[size - 1]
            continue
        # Multisets are in order: the last vertex that can rise does, all after it begin there.
        while size > 0 and chosen[size] == kinds.shape[0] - 1:
            size -= 1
        if size == 0:
            return
        chosen[size] += 1


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _compare(
    law, pairs, places, widths, cells, positions, first, second, low, start, order, error, keep,
    raised, rest, allowed, found, last,
):  # fmt: skip
    """Values of pairs behind one law; those above what is allowed are put first, and counted."""
    some = pairs.shape[0]
    # Only points of these pairs, and vertices beside them, take any work.
    points = np.full(cells.shape[0], -1)
    lows, starts = np.empty(some, np.int64), np.zeros(some + 1, np.int64)
    least, most = places.shape[0] - 1, 0
    for at in range(some):
        pair = pairs[at]
        points[first[pair]] = points[second[pair]] = 0
        lows[at] = low[pair]
        several = start[pair + 1] - start[pair]
        starts[at + 1] = starts[at] + several
        if several:
            least, most = min(least, low[pair]), max(most, low[pair] + several)
    used = 0
    for point in range(cells.shape[0]):
        if points[point] == 0:
            points[point] = used
            used += 1
            least, most = min(least, cells[point]), max(most, cells[point] + 1)
    joint, length = _joint(law, places, least, most, keep)
    rows, grown = _at_points(joint, length, least, points, used, cells, positions, order)
    steep = _slopes(joint, length, widths[least:most], error)
    curvature, moments = np.empty(starts[some]), np.empty(some)
    curvatures(
        rows, grown, steep, points[first[pairs]], points[second[pairs]], lows - least, starts,
        order, error, curvature, moments,
    )  # fmt: skip
    left = 0
    # theory/vector-sums.md, Proposition 25: what is settled counts, what is not goes on.
    for at in range(some):
        pair = pairs[at]
        # theory/vector-sums.md, Propositions 9 and 18: raised like `PairGrid.evaluate`.
        moment = moments[at] * raised + rest
        above = moment > allowed[1][pair]
        for cell in range(starts[at], starts[at + 1]):
            curvature[cell] *= raised
            above |= curvature[cell] > allowed[0][start[pair] + cell - starts[at]]
        if above and not last:
            pairs[left] = pair
            left += 1
            continue
        found[1][pair] = max(found[1][pair], moment)
        for cell in range(starts[at], starts[at + 1]):
            into = start[pair] + cell - starts[at]
            found[0][into] = max(found[0][into], curvature[cell])
    return left


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _at_points(joint, length, least, points, used, cells, positions, order):
    """Laws at the points in use, and powers of them over those of the first."""
    rows, grown = np.empty((used, length)), np.empty((used, length))
    for point in range(cells.shape[0]):
        at = points[point]
        if at < 0:
            continue
        left, right = joint[cells[point] - least], joint[cells[point] + 1 - least]
        part = positions[point]
        for z in range(length):
            # theory/vector.md, Proposition 10: a mix with positive parts.
            rows[at, z] = (1.0 - part) * left[z] + part * right[z]
        # theory/vector-sums.md, Proposition 18: powers of points, none of pairs.
        _grown(rows[at], rows[0], order - 1.0, grown[at])
    return rows, grown


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _slopes(joint, length, widths, error):
    """The slope of each cell, rounded up."""
    steep = np.empty((widths.shape[0], length))
    for cell in range(widths.shape[0]):
        for z in range(length):
            a, b = joint[cell, z], joint[cell + 1, z]
            # theory/vector.md, Proposition 10, as `CellLines.slopes`: both ends are counted twice.
            change = (abs(b - a) + 5.0 * error * (a + b)) / widths[cell]
            # Quotient, sum and product: 8 units.
            steep[cell, z] = change * (1.0 + 2.0**-50)
    return steep


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _joint(law, places, least, most, keep):
    """The laws of the sum, the client at each of some vertices; of the outcomes that count."""
    codes = places.shape[1]
    joint = np.empty((most - least + 1, law.shape[0] + codes - 1))
    for vertex in range(joint.shape[0]):
        joint[vertex] = convolved(law, places[least + vertex])
    length = 0
    # theory/vector-sums.md, Proposition 10: what is left out is paid for by whoever asked.
    for z in range(joint.shape[1]):
        largest = 0.0
        for vertex in range(joint.shape[0]):
            largest = max(largest, joint[vertex, z])
        if largest >= keep:
            for vertex in range(joint.shape[0]):
                joint[vertex, length] = joint[vertex, z]
            length += 1
    return joint, length


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _grown(row, over, power, out):
    """Powers of quotients; of whole ones by products, which several outcomes share a step of."""
    if power != np.floor(power) or power > MOST_PRODUCTS:
        for z in range(out.shape[0]):
            out[z] = np.exp(power * np.log(row[z] / over[z]))
        return
    # theory/vector-sums.md, Proposition 25: as many units as factors, and as the quotient counts.
    left, square = int(power), np.empty(out.shape[0])
    for z in range(out.shape[0]):
        out[z], square[z] = 1.0, row[z] / over[z]
    while left:
        if left % 2:
            for z in range(out.shape[0]):
                out[z] *= square[z]
        left //= 2
        if left:
            for z in range(out.shape[0]):
                square[z] *= square[z]
