"""Discrete Laplace noise, whole or as the sum of equal shares of several clients.

Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.mechanisms.noise.table import CumulativeTable
from randquant.privacy.certificates.noise import ABOVE
from randquant.privacy.guarantee import LARGEST_COHORT

LARGEST_SCALE = 2.0**15
"""Largest scale, whose table then has four million entries."""


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """One client's share of integers k with probability proportional to exp(-|k| / scale).

    Shares are differences of two Pólya variables (negative binomial of 1/clients successes), whose
    sum over so many clients has that law.

    Args:
        scale: of the sum, in steps, 1/8 to 2**15.
        clients: how many shares add up to it; 1 for the whole noise.

    References:
        Ghosh, Roughgarden and Sundararajan 2009 (the law); Goryczka and Xiong 2017 (shares).

    Example:
        >>> noise = DiscreteLaplace(scale=3.0, clients=10)
        >>> round(10 * noise.variance, 1), noise.draw(4, Key.from_seed(0)).shape
        (17.8, (4,))
    """

    scale: float
    clients: int = 1

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("scale", self.scale, low=0.125, high=LARGEST_SCALE)
        validate.whole("clients", self.clients, low=1, high=LARGEST_COHORT)

    @property
    def variance(self) -> float:
        """Of one share: 2p / (1 - p)^2 / clients at p = exp(-1/scale)."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2 / self.clients

    def distance(self, terms: int) -> float:
        """Upper bound of the total variation distance of the sum of `terms` shares as drawn."""
        return 2 * terms * _polya_table(self.scale, self.clients).distance * ABOVE

    def draw(self, count: int, key: Key) -> np.ndarray:
        """Draw (count,) int64, with a key used for nothing else."""
        table = _polya_table(self.scale, self.clients)
        return table.draw(count, key.fold_in("plus")) - table.draw(count, key.fold_in("minus"))


@functools.lru_cache(maxsize=8)
def _polya_table(scale: float, clients: int) -> CumulativeTable:
    with localcontext(Context(prec=80)):
        p = (Decimal(-1) / Decimal(scale)).exp()
    # (k + 1/n) / (k + 1) · p, which is at most p.
    up = (p * (clients * k + 1) / (clients * k + clients) for k in itertools.count())
    return CumulativeTable.of(0, up, (), limit=p)
