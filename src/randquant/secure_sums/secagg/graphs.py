"""How many neighbours a client needs for sums to survive losses and colluders.

Where clients have fewer neighbours than others, a sum needs three things of the graph, as Bell et
al. 2020 state for theirs: that enough neighbours of everybody stay, that few of anybody's collude,
and that the others hang together. Their probabilities are computed here, in whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from randquant._internal import validate
from randquant.secure_sums.secagg.terms import MOST_NEIGHBOURS, TWO_THIRDS, part_of

STEPS, UPLOAD = 5, 3
"""Steps in which a client may be lost, and those up to its upload."""

_GRID = 2**30  # probabilities of one client are rounded to multiples of 1 / _GRID, for the worse
_STEP = 6  # numbers of neighbours that are tried: even, and two thirds of them are whole


@dataclass(frozen=True, slots=True)
class Graph:
    """A number of neighbours, and what it withstands.

    Attributes:
        neighbours, threshold: for `Terms`.
        failure: upper bound of the probability that some mask cannot be removed.
        exposure: upper bound of the probability that colluders and an honest-but-curious server
            learn more than one sum.
        reason: why so many, in a sentence.
    """

    neighbours: int
    threshold: int
    failure: float
    exposure: float
    reason: str


@dataclass(frozen=True, slots=True)
class Losses:
    """What sums are to withstand: which clients are lost or collude does not depend on the graph.

    Args:
        step: probability that a client is lost in any one of the five steps, independently.
        colluders: clients that may collude with an honest-but-curious server. (Against one that
            lies, all others must be neighbours.)
        failure: largest probability that a sum is lost because some mask cannot be removed.
        exposure: largest probability that colluders learn more than one sum.

    Example:
        >>> Losses(step=0.01).graph(1000).reason
        '42 of 999 others, 28 of them to the end: with losses of 1% a step and 0 colluders a sum \
fails with probability 6.3e-07 at most'
    """

    step: float
    colluders: int = 0
    failure: float = 1e-6
    exposure: float = 2.0**-40

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("step", self.step, low=0, below=1)
        validate.whole("colluders", self.colluders, low=0)
        validate.real("failure", self.failure, above=0, high=1)
        validate.real("exposure", self.exposure, above=0, high=1)

    def graph(self, clients: int) -> Graph:
        """The fewest neighbours that do, of 6, 12, 18, … and all others.

        Args:
            clients: in the sum, 2 or more.

        Raises:
            ValueError: not even all others do.
        """
        clients = validate.whole("clients", clients, low=max(2, self.colluders + 1))
        others = clients - 1
        low, high = 0, -(-min(others, MOST_NEIGHBOURS) // _STEP)  # bisection: high does, if any
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(self._graph(clients, _STEP * middle)):
                high = middle
            else:
                low = middle
        found = self._graph(clients, min(_STEP * high, others))
        if not self._holds(found):
            raise ValueError(
                f"Expected losses that {clients} clients withstand, got {100 * self.step:.3g}% a "
                f"step and {self.colluders} colluders: even with {found.neighbours} neighbours a "
                f"sum fails with probability {found.failure:.2g}, and exposes clients with "
                f"{found.exposure:.2g}; ask for less, or for more clients."
            )
        return found

    def _holds(self, graph: Graph) -> bool:
        return graph.failure <= self.failure and graph.exposure <= self.exposure

    def _graph(self, clients: int, neighbours: int) -> Graph:
        threshold = part_of(neighbours, TWO_THIRDS)
        kept = _kept(self.step, STEPS)
        failure = _rounded(
            clients * _fewer(threshold, neighbours, kept)
            if neighbours < clients - 1
            else _fewer(threshold + 1, clients, kept)  # then all have what one has
        )
        exposure = _rounded(
            clients * _caught(clients - 1, self.colluders, neighbours, threshold)
            + _split(clients, self.colluders, neighbours, 1 - _kept(self.step, UPLOAD))
        )
        reason = (
            f"{neighbours} of {clients - 1} others, {threshold} of them to the end: with losses of "
            f"{100 * self.step:.3g}% a step and {self.colluders} colluders a sum fails with "
            f"probability {failure:.2g} at most"
        )
        return Graph(neighbours, threshold, failure, exposure, reason)


def _kept(loss: float, steps: int) -> Fraction:
    """The probability to be there after some steps, rounded down."""
    return Fraction(math.floor((1 - Fraction(loss)) ** steps * _GRID), _GRID)


def _fewer(threshold: int, count: int, kept: Fraction) -> Fraction:
    """The probability that fewer than `threshold` of `count` stay: a binomial tail."""
    if kept == 1:
        return Fraction(0)
    stay, lost = int(kept * _GRID), int((1 - kept) * _GRID)
    tail, term = 0, lost**count
    for staying in range(threshold):
        tail += term
        term = term * (count - staying) * stay // ((staying + 1) * lost)  # without remainder
    return Fraction(tail, _GRID**count)


def _caught(others: int, colluders: int, neighbours: int, threshold: int) -> Fraction:
    """The probability that `threshold` neighbours of one client collude: a hypergeometric tail."""
    ways = sum(
        math.comb(colluders, n) * math.comb(others - colluders, neighbours - n)
        for n in range(threshold, min(colluders, neighbours) + 1)
    )
    return Fraction(ways, math.comb(others, neighbours))


def _split(clients: int, colluders: int, neighbours: int, lost: Fraction) -> Fraction:
    """A bound of the probability that the ring falls apart.

    It does only if two gaps open, each of half as many clients in a row as there are neighbours:
    each client of the gap is lost, or colludes.
    """
    if neighbours >= clients - 1:
        return Fraction(0)
    gone, ways = int(lost * _GRID), 0  # lost is a multiple of 1 / _GRID
    for n in range(min(colluders, neighbours) + 1):
        placed = math.comb(neighbours, n) * math.comb(clients - neighbours, colluders - n)
        ways += placed * gone ** (neighbours - n) * _GRID**n
    chance = Fraction(ways, _GRID**neighbours * math.comb(clients, colluders))
    return math.comb(clients, 2) * chance


def _rounded(probability: Fraction) -> float:
    """As a float, not below."""
    if probability >= 1:
        return 1.0
    return math.nextafter(float(probability), 1.0) if probability else 0.0
