"""Divergences that sums attain: the lower ends of `kappa_sum`.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.chain import Powers, rounding
from randquant.privacy.certificates.sums.chain_kernel import curvatures
from randquant.privacy.certificates.sums.rounding import LOG_PRECISE, largest_ratio, ratios, slack
from randquant.privacy.divergence import UNIT

Reached = tuple[float, tuple[float, float]]
"""A divergence over squared distance, and the pair of inputs that has it."""


def reached(inputs: np.ndarray, rows: np.ndarray, clients: int, order: float) -> Reached:
    """Others all at one vertex: the best divergence over squared distance within a cell.

    Args:
        inputs: (V,) rising.
        rows: (V, m) probabilities of the codes at them, within 1 unit.
        clients, order: as in `kappa_sum`.
    """
    best, witness = 0.0, (float(inputs[0]), float(inputs[0]))
    grid = np.empty((2, 2))
    error = 2 * rounding(clients, rows.shape[1])
    _, loss = largest_ratio(rows[:, rows.any(axis=0)])
    # theory/vector-sums.md, Propositions 6 and 9.
    part = max(1 - 2 * slack(error, loss, order), 0.0)
    keep = math.exp(LOG_PRECISE + loss)  # the less likely of two rows is precise too
    # Any others give a lower end: the ends and the middle are the likely worst.
    for vertex in sorted({0, len(rows) // 2, len(rows) - 1}):
        others = Powers(rows[vertex]).of(clients - 1).mass
        for cell in range(len(inputs) - 1):
            ends = inputs[cell : cell + 2]
            first, second = (np.convolve(row, others) for row in rows[cell : cell + 2])
            # Leaving outcomes out, lowering d and cutting powers all make S smaller.
            curvatures(first, second, keep, -1.0, error, order, 1, grid)
            over = ratios(grid * part, order) / (ends[1] - ends[0]) ** 2
            i, j = np.unravel_index(int(over.argmax()), over.shape)
            if over[i, j] > best:
                best, witness = float(over[i, j]), (float(ends[i]), float(ends[j]))
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
