"""Divergences that sums attain: the lower ends of `kappa_sum`.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.chain import Powers, rounding
from randquant.privacy.certificates.sums.chain_kernel import curvatures
from randquant.privacy.certificates.sums.rounding import LOG_PRECISE, largest_ratio, ratios, slack
from randquant.privacy.divergence import UNIT

SOME = 9
"""Vertices, evenly spread, of which all pairs are tried, besides the neighbours."""

Reached = tuple[float, tuple[float, float]]
"""A divergence over squared distance, and the pair of inputs that has it."""


def reached(channel: Channel, clients: int, order: float) -> Reached:
    """Others all at one vertex: the best divergence over squared distance of some pairs.

    Args:
        channel: a channel whose curvature is finite.
        clients, order: as in `kappa_sum`.
    """
    lines = CellLines.of(channel)
    inputs, rows = lines.inputs, lines.weights / lines.denominator
    error = 2 * rounding(clients, channel.levels)
    _, loss = largest_ratio(rows)
    # theory/vector-sums.md, Propositions 6 and 9.
    part = max(1 - 2 * slack(error, loss, order), 0.0)
    keep = math.exp(LOG_PRECISE + loss)  # the less likely of two rows is precise too
    # Codes that are never sent keep their places: places add up.
    places = np.zeros((len(rows), channel.levels))
    places[:, channel.weights.any(axis=0)] = rows
    best, witness = 0.0, (float(inputs[0]), float(inputs[0]))
    grid, last = np.empty((2, 2)), len(rows) - 1
    some = np.unique(np.linspace(0, last, SOME).round().astype(int)).tolist()
    pairs = sorted({*itertools.combinations(some, 2), *itertools.pairwise(range(last + 1))})
    # Any others give a lower end: the ends, the middle and the least noise are the likely worst.
    codes = np.arange(channel.levels)
    quietest = int((places @ codes**2 - (places @ codes) ** 2).argmin())
    for vertex in sorted({0, last // 2, last, quietest}):
        others = Powers(places[vertex]).of(clients - 1).mass
        laws = [np.convolve(row, others) for row in places]
        for first, second in pairs:
            # Leaving outcomes out, lowering d and cutting powers all make S smaller.
            curvatures(laws[first], laws[second], keep, -1.0, error, order, 1, grid)
            over = ratios(grid * part, order) / (inputs[second] - inputs[first]) ** 2
            # In a cell the curvature at one input is approached; further apart two are needed.
            if second - first > 1:
                np.fill_diagonal(over, 0.0)
            i, j = np.unravel_index(int(over.argmax()), over.shape)
            if over[i, j] > best:
                ends = (float(inputs[first]), float(inputs[second]))
                best, witness = float(over[i, j]), (ends[i], ends[j])
    # log1p, quotients and the square of a width: below 32 of 64 units.
    return best * (1 - 64 * UNIT), witness


def endless(channel: Channel, witness: tuple[float, float]) -> Reached:
    """For a channel of infinite curvature: infinite where that of a sum is known to be, else 0.

    Where the channel jumps, so do sums. Where its largest or least code becomes impossible at a
    vertex, so does the largest or least sum. A sum in between may arise from other codes.
    """
    for cell, (left, right) in enumerate(itertools.pairwise(channel.weights)):
        start, stop = (float(end) for end in channel.inputs[cell : cell + 2])
        if start == stop and (left != right).any():
            return math.inf, (start, stop)
        (low, high), (least, most) = (np.flatnonzero(row)[[0, -1]] for row in (left, right))
        if least < low or most > high:
            return math.inf, (stop, start)
        if low < least or high > most:
            return math.inf, (start, stop)
    return 0.0, witness
