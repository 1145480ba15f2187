"""Epsilons from settings alone, slowly; and few calls in which every pair of settings meets.

Nothing here imports the product: an epsilon is that of the laws that settings describe, and a
guarantee below it is none.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special, stats

LOSSES = 2**15
"""Cells of a law of losses: an epsilon is found to a few parts in as many."""

ROUNDING = 2.0**-20
"""What rounding to float32 adds to the distance of two means of gradients, over clip_norm."""


@functools.cache
def of_gaussian(square: float, delta: float) -> float:
    """Exact epsilon of Gaussian noise (Balle and Wang 2018, Theorem 8).

    Args:
        square: squared distances over the noise's variance, added up over all that is sent.
        delta: in (0, 1).
    """
    if square == 0:
        return 0.0
    mu = math.sqrt(square)

    def exceeds(epsilon: float) -> bool:
        first = special.log_ndtr(mu / 2 - epsilon / mu)
        second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
        return first + math.log1p(-math.exp(min(second - first, 0.0))) > math.log(delta)

    low, high = 0.0, square + 10 * mu * math.sqrt(1 - math.log(delta)) + 1
    if not exceeds(0.0):
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return low


def radii(neighboring: str) -> int:
    """How many radii of a ball two neighbours in it are apart."""
    return {"replace_one": 2, "zero_out": 1}[neighboring]


def apart(clip_norm: float, neighboring: str, examples: int | None = None) -> float:
    """Distance of what two neighbours send: of updates, or of means of so many gradients."""
    if examples is None:
        return radii(neighboring) * clip_norm
    # Without one example an update is not zero, but that of the others: the ball's diameter limits.
    return min(2.0, radii(neighboring) * (1 / examples + ROUNDING)) * clip_norm


def composed(p: np.ndarray, q: np.ndarray, draws: int, delta: float) -> float:
    """An epsilon that so many draws from two laws of outcomes lose at delta, in one direction.

    Losses are rounded down to cells, so that it is below the exact one.
    """
    both = (p > 0) & (q > 0)
    losses, masses = np.log(p[both] / q[both]), p[both]
    low, high = float(losses.min()), float(losses.max())
    cell = max(high - low, 1e-12) * draws / (LOSSES // 2)
    places = np.floor((losses - low) / cell).astype(np.int64)
    law = np.bincount(places, weights=masses, minlength=LOSSES)
    law = np.maximum(np.fft.irfft(np.fft.rfft(law) ** draws, LOSSES), 0.0)
    at = low * draws + cell * np.arange(LOSSES)
    certain = 1 - (1 - float(p[q == 0].sum())) ** draws

    def lost(epsilon: float) -> float:
        above = at > epsilon
        return certain + float((law[above] * -np.expm1(epsilon - at[above])).sum())

    if lost(0.0) <= delta:
        return 0.0
    least, most = 0.0, high * draws
    for _ in range(40):
        middle = (least + most) / 2
        least, most = (middle, most) if lost(middle) > delta else (least, middle)
    return least


def of_pair(p: np.ndarray, q: np.ndarray, draws: int, delta: float) -> float:
    """The larger of both directions of `composed`."""
    return max(composed(p, q, draws, delta), composed(q, p, draws, delta))


@functools.cache
def of_mixture(one: tuple[float, float], other: tuple[float, float], rate: float, rounds: int,
               delta: float) -> float:  # fmt: skip
    """Epsilon of rounds that a client is drawn into, with Gaussian noise of deviation one.

    Args:
        one, other: (place with the client, place without it), in either world.
        rate: with which it takes part, in each round.
    """
    edges = np.linspace(-12.0, 12.0, 12001)

    def law(places: tuple[float, float]) -> np.ndarray:
        with_it, without = (np.diff(special.ndtr(edges - place)) for place in places)
        return rate * with_it + (1 - rate) * without

    return of_pair(law(one), law(other), rounds, delta)


@functools.cache
def of_bits(chances: tuple[float, float], others: tuple[float, ...], draws: int,
            delta: float) -> float:  # fmt: skip
    """Epsilon of sums of one client's bit and others', drawn so often.

    Args:
        chances: of a bit of the client, in either world.
        others: chances of each other client's bit.
        draws: coordinates times rounds.
    """
    hidden = np.ones(1)
    for chance in others:
        hidden = np.convolve(hidden, [1 - chance, chance])
    p, q = (np.convolve(hidden, [1 - chance, chance]) for chance in chances)
    return of_pair(p, q, draws, delta)


def chance_of(x: float, reach: float) -> float:
    """Chance of the upper of two levels at ±reach, for an input x."""
    return 0.5 + x / (2 * reach)


def of_bit_vectors(
    reach: float, clip: float, clip_norm: float, size: int, cohort: int, neighboring: str,
    rounds: int, delta: float, examples: int | None = None,
) -> float:  # fmt: skip
    """What opposite updates, long in all of `size` coordinates, lose among alike others' bits."""
    whole = clip_norm / (examples or 1)
    length = min(whole / math.sqrt(size), clip)
    there = -length if neighboring == "replace_one" else 0.0
    pair = chance_of(length, reach), chance_of(there, reach)
    found = 0.0
    for other in (0.0, -min(clip_norm / math.sqrt(size), clip)):
        others = (chance_of(other, reach),) * (cohort - 1)
        found = max(found, of_bits(pair, others, size * rounds, delta))
    return found


def binomial(trials: int, chance: float) -> np.ndarray:
    """The law of a sum of equal bits."""
    return stats.binom.pmf(np.arange(trials + 1), trials, chance)


# Few calls in which every pair of settings meets.

Row = dict[str, str]
"""By setting, the name of its value: of the first, which is usual, or of another."""


def rows(
    settings: Mapping[str, Sequence[str]], allowed: Callable[[Mapping[str, str]], bool]
) -> list[Row]:
    """Few rows, in which each pair of values meets that may meet at all.

    Args:
        settings: names of the values of each setting, the usual one first.
        allowed: whether all values of a row, or of some settings, go together.

    Guarantees:
        Each pair of values of two settings that goes together at all, with at most two other
        settings that are not usual, is in a row that `allowed` accepts. The same settings give the
        same rows.
    """
    usual = {name: values[0] for name, values in settings.items()}
    pairs = [
        ((a, x), (b, y))
        for a, b in itertools.combinations(settings, 2)
        for x in settings[a]
        for y in settings[b]
    ]
    begun = {pair: _completed({**usual, **dict(pair)}, dict(pair), settings, allowed)
             for pair in pairs}  # fmt: skip
    wanted = {pair for pair in pairs if begun[pair] is not None}
    found: list[Row] = []
    while wanted:
        first = min(wanted, key=pairs.index)
        row, fixed = begun[first], dict(first)
        assert row is not None
        for name in settings:
            if name in fixed:
                continue
            kept = [v for v in settings[name] if allowed({**row, name: v})]
            row[name] = max(kept, key=lambda v: _met({**row, name: v}, wanted))
        found.append(row)
        wanted -= {pair for pair in wanted if _meets(row, pair)}
    return found


def _completed(
    row: Row, fixed: Row, settings: Mapping[str, Sequence[str]],
    allowed: Callable[[Mapping[str, str]], bool],
) -> Row | None:  # fmt: skip
    """A row that is allowed, with few changes of what is not fixed; None if there is none."""
    others = [(name, v) for name in settings if name not in fixed for v in settings[name][1:]]
    for count in (0, 1, 2):
        for changes in itertools.combinations(others, count):
            if allowed(changed_row := {**row, **dict(changes)}):
                return changed_row
    return None


def _meets(row: Mapping[str, str], pair: tuple[tuple[str, str], ...]) -> bool:
    return all(row[name] == value for name, value in pair)


def _met(row: Mapping[str, str], wanted: set) -> int:
    return sum(_meets(row, pair) for pair in wanted)


def changed(row: Mapping[str, str], settings: Mapping[str, Mapping[str, Any]]) -> str:
    """What is not usual in a row, as the name of its test."""
    other = [
        f"{name}={value}" for name, value in row.items() if value != next(iter(settings[name]))
    ]
    return ", ".join(other) or "usual"
