"""Divergences that sums attain: the lower ends of `kappa_sum`.

Derivation: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from scipy.special import logsumexp

from randquant.channels.channel import Channel
from randquant.privacy.certificates.curvature import CellLines
from randquant.privacy.certificates.sums.chain import LOST, Powers, rounding
from randquant.privacy.certificates.sums.chain_kernel import attained
from randquant.privacy.certificates.sums.rounding import (
    LOG_PRECISE,
    PRECISE,
    largest_ratio,
    log_keep,
    ratios,
    slack,
)
from randquant.privacy.divergence import UNIT

SOME = 16
"""Parts into which the way from end to end is cut, about, and vertices that others are put at."""

TRIED, CLOSER = 4, 5
"""Most promising pairs of inputs, and vertices of the others, that are evaluated with a proof; and
how often the parts beside the best of them are cut in half to find a better one."""

Reached = tuple[float, tuple[float, float]]
"""A divergence over squared distance, and the pair of inputs that has it."""


@functools.lru_cache(maxsize=256)
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
    # Outcomes that hardly count are left out. The less likely of two rows is precise too.
    length = clients * (channel.levels - 1) + 1
    precise = max(log_keep(length, loss, order) - loss, LOG_PRECISE)
    keep, lost = math.exp(precise + loss), max(math.exp(precise) * (LOST / PRECISE), LOST)
    # Codes that are never sent keep their places: places add up.
    places = np.zeros((len(rows), channel.levels))
    places[:, channel.weights.any(axis=0)] = rows
    points = _points(inputs)
    own = np.stack([_row(channel, at) for at in points])
    # Any others give a lower end: they are all put at one vertex.
    some = np.unique(np.linspace(0, len(rows) - 1, SOME + 1).round().astype(int)).tolist()
    others = {vertex: Powers(places[vertex], lost).of(clients - 1).mass for vertex in some}
    candidates = []
    for vertex, noise in others.items():
        laws = np.stack([np.convolve(row, noise) for row in own])
        for ratio, i, j in _promising(laws, points, order, keep):
            candidates.append((ratio, (float(points[i]), float(points[j])), vertex))
    candidates.sort(key=lambda found: -found[0])
    closer = [
        (*_closer(channel, others[vertex], points, ends, order, keep), vertex)
        for _, ends, vertex in candidates[: 2 * TRIED]
    ]
    tried = candidates[:TRIED] + sorted(closer, key=lambda found: -found[0])[:1]
    best, witness = 0.0, (float(inputs[0]), float(inputs[0]))
    grid = np.empty((2, 2))
    for _, ends, vertex in tried:
        pair = [np.convolve(_row(channel, at), others[vertex]) for at in ends]
        # Leaving outcomes out, lowering d and cutting powers all make S smaller.
        attained(pair[0], pair[1], keep, error, order, 1, grid)
        over = ratios(grid * part, order) / (ends[1] - ends[0]) ** 2
        # In a cell the curvature at one input is approached; further apart two are needed.
        if np.any((ends[0] < inputs) & (inputs < ends[1])):
            np.fill_diagonal(over, 0.0)
        i, j = np.unravel_index(int(over.argmax()), over.shape)
        if over[i, j] > best:
            best, witness = float(over[i, j]), (ends[i], ends[j])
    # log1p, quotients and the square of a width: below 32 units; an input between vertices is off
    # by 1 unit of itself, a distance of a part or more by 64, of a 32nd by 2048, its square twice.
    return best * (1 - 2**13 * UNIT), witness


def _points(inputs: np.ndarray) -> np.ndarray:
    """Inputs to try, all vertices among them."""
    reach = inputs[-1] - inputs[0]
    parts = np.maximum(SOME * np.diff(inputs) / reach, 1.0)
    # Powers of two: the encoder's dither has these positions exactly.
    counts = (2 ** np.log2(parts).round()).astype(int)
    cells = zip(inputs[:-1], inputs[1:], counts.tolist(), strict=True)
    points = [np.linspace(left, right, count, endpoint=False) for left, right, count in cells]
    return np.append(np.concatenate(points), inputs[-1])


def _row(channel: Channel, at: float) -> np.ndarray:
    """The row of an input: of exact integers."""
    row, total = channel.mix(float(at))
    return np.asarray(row, dtype=np.float64) / total


def _closer(
    channel: Channel,
    noise: np.ndarray,
    points: np.ndarray,
    ends: tuple[float, float],
    order: float,
    least: float,
) -> tuple[float, tuple[float, float]]:
    """A pair of inputs near a pair, with about the largest ratio; the parts beside are halved."""
    ratio = 0.0
    for _ in range(CLOSER):
        at = np.searchsorted(points, ends)
        beside = np.concatenate([at - 1, at])
        beside = np.unique(beside[(beside >= 0) & (beside < len(points) - 1)])
        # Halves of parts of a cell: the encoder's dither has these positions exactly.
        points = np.sort(np.append(points, (points[beside] + points[beside + 1]) / 2))
        at = np.searchsorted(points, ends)
        near = np.unique(np.concatenate([at - 1, at, at + 1]).clip(0, len(points) - 1))
        laws = np.stack([np.convolve(_row(channel, point), noise) for point in points[near]])
        for found, i, j in _promising(laws, points[near], order, least)[:1]:
            ratio, ends = found, (float(points[near[i]]), float(points[near[j]]))
    return ratio, ends


def _promising(
    laws: np.ndarray, points: np.ndarray, order: float, least: float
) -> list[tuple[float, int, int]]:
    """Pairs of points with the largest ratios, in float64: (ratio, first, second)."""
    laws = laws[:, laws.min(axis=0) > least]
    if not laws.size:
        return []
    top = laws.max(axis=0)
    relative = np.log(laws / top)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        moments = (np.exp(order * relative) * top) @ np.exp((1 - order) * relative).T
        log_moments = np.log(moments)
    # Powers beyond float64, of high orders: one row after the other.
    for i, beyond in enumerate(~np.isfinite(log_moments)):
        if beyond.any():
            terms = order * relative[i] + (1 - order) * relative[beyond]
            log_moments[i, beyond] = logsumexp(terms, b=top, axis=1)
    square = (points[:, None] - points) ** 2
    ratio = log_moments / ((order - 1) * np.where(square > 0, square, np.inf))
    ratio = np.nan_to_num(np.maximum(ratio, ratio.T), posinf=0.0)
    some = np.argsort(-ratio, axis=None)[: 4 * TRIED]
    where = [np.unravel_index(int(at), ratio.shape) for at in some]
    pairs = [(int(i), int(j)) for i, j in where if i < j]
    return [(float(ratio[i, j]), i, j) for i, j in pairs[:TRIED]]


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
