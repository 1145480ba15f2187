"""The strongest attack found: inputs of the other clients, and a pair that they hide poorly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from randquant.privacy.certificates.sums.blanket_draws import MOST_CLIENTS
from randquant.privacy.certificates.sums.bounds import floor_for
from randquant.privacy.certificates.sums.law import Law
from randquant.privacy.certificates.sums.mixture import table
from randquant.privacy.certificates.sums.pair import log_moment
from randquant.privacy.certificates.sums.rows import Rows

PRACTICE, BEST = 64, 3
"""How many clients vertices are compared with, when there are more; and how many vertices are the
most promising."""

MOVES = 2.0**27
"""Multiplications that a local search may take."""

SPLITS = 6
"""Into how many parts more others are cut, when they are spread over both ends."""

FLOOR, DEEPER, DEEP = 90.0, 1000.0, 2**12
"""Bits below which the tails of long sums are left out: of sums of more clients than the last
number, and at most of others; lower bounds account for that."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Others' inputs and a pair of the client's.

    Attributes:
        log_moment: at most the log moment of this pair behind these others (infinite order: the
            largest log ratio).
        pair: (p, q), rows of `Rows`.
        counts: (V,) how many others send from each vertex's row.
    """

    log_moment: float
    pair: tuple[int, int]
    counts: np.ndarray


def attack(rows: Rows, others: int, order: float) -> Attack:
    """Search for the worst others: all at one vertex, then one at a time moved elsewhere."""
    strongest = _search(rows, others, order)
    if math.isinf(order):
        return max([strongest, *_ends(rows, others)], key=lambda candidate: candidate.log_moment)
    return strongest


def _ends(rows: Rows, others: int) -> Iterator[Attack]:
    """Pure privacy: the least sum (the greatest) is one client's least code (greatest) alone.

    So if the others can send it too, the ratio of two inputs' probabilities of it remains.
    """
    for code in (0, -1):
        # theory/sums.md, Proposition 5.
        table = rows.ratios(code)
        vertex = int(rows.weights[: rows.vertices, code].argmax())
        counts = np.zeros(rows.vertices, dtype=np.int64)
        counts[vertex] = others
        p, q = (int(i) for i in np.unravel_index(int(table.argmax()), table.shape))
        if rows.weights[vertex, code] > 0:
            yield Attack(float(table[p, q]), (p, q), counts)


def _search(rows: Rows, others: int, order: float) -> Attack:
    corners = _corners(rows.vertices, min(others, PRACTICE))
    tried = [_evaluate(rows, counts, order) for counts in corners]
    tried.sort(key=lambda candidate: -candidate.log_moment)
    practice = tried[0]
    if others > PRACTICE:
        whole = [np.where(each.counts > 0, others, 0) for each in tried[:BEST]]
        # theory/sums.md, Proposition 4: such sums are not evaluated, and 0 is a lower end.
        if others > MOST_CLIENTS:
            return Attack(0.0, practice.pair, whole[0])
        floor = _floor(rows, others, order)
        candidates = itertools.chain(whole, _split(rows.vertices, others))
        found = (_evaluate(rows, counts, order, floor) for counts in candidates)
        return max(found, key=lambda candidate: candidate.log_moment)
    # Any others and any pair give a lower end: the search may stop where it likes.
    best, work = practice, MOVES
    length = (others + 1) * rows.weights.shape[1]
    cost = length * len(rows.weights) * (len(rows.weights) + 60)
    # One other client at a time is moved to another vertex while that helps.
    improved = True
    while improved and work > 0:
        improved = False
        for counts in list(_moves(best.counts)):
            work -= cost
            candidate = _evaluate(rows, counts, order)
            # By more than rounding, or the search would walk in circles.
            if candidate.log_moment > best.log_moment * (1 + 1e-9):
                best, improved = candidate, True
            if work <= 0:
                break
    return best


def _floor(rows: Rows, others: int, order: float) -> float:
    """Bits below which sums may be left out: hardly likely ones decide at high orders."""
    if math.isinf(order) or others > DEEP:
        return FLOOR
    # theory/sums.md, Proposition 7: any floor is valid, and below this one nothing counts.
    log_single = (order - 1) * float(rows.alone(order)[1].max())
    return min(floor_for(rows, log_single), DEEPER)


def _corners(vertices: int, others: int) -> Iterator[np.ndarray]:
    for vertex in range(vertices if others else 1):
        counts = np.zeros(vertices, dtype=np.int64)
        counts[vertex] = others
        yield counts


def _split(vertices: int, others: int) -> Iterator[np.ndarray]:
    """Some of the others at one end of the inputs, the rest at the other."""
    for part in range(1, SPLITS):
        counts = np.zeros(vertices, dtype=np.int64)
        counts[0] += others * part // SPLITS
        counts[-1] += others - others * part // SPLITS
        yield counts


def _moves(counts: np.ndarray) -> Iterator[np.ndarray]:
    for source in np.flatnonzero(counts):
        for target in range(len(counts)):
            if source != target:
                moved = counts.copy()
                moved[source] -= 1
                moved[target] += 1
                yield moved


def _evaluate(rows: Rows, counts: np.ndarray, order: float, floor: float = math.inf) -> Attack:
    noise = _law_of(rows, counts, floor)
    # Rounded moments choose the pair; its proven lower end counts.
    rough, _ = table(rows, noise, order)
    p, q = (int(i) for i in np.unravel_index(int(rough.argmax()), rough.shape))
    # theory/sums.md, Proposition 9: exact in integers, so that small differences keep digits.
    difference = (rows.weights[p] - rows.weights[q]) / float(rows.total)
    lower, _ = log_moment(noise, rows.probabilities[q], difference.astype(np.float64), order)
    return Attack(lower, (p, q), counts)


def _law_of(rows: Rows, counts: np.ndarray, floor: float) -> Law:
    """The law of others' sum; tails are trimmed unless that could matter."""
    # theory/sums.md, Proposition 7: where some code is impossible, no tail is harmless.
    floor = math.inf if rows.apart else floor
    noise = Law.nothing(floor)
    for vertex in np.flatnonzero(counts):
        noise = noise * Law.of(rows.weights[vertex], rows.total, floor).power(int(counts[vertex]))
    return noise
