"""The adversary's statistics, learned from trials, and the event that separates two worlds best.

A world is one of two neighbouring inputs. This module knows no mechanism: outcomes are numbered,
and a statistic is one score for each outcome.

From counts of that event follows a lower bound of epsilon: `docs/theory/audit.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

World = Literal["update", "other"]
"""Name of the neighbouring input that was used."""

WORLD_NAMES: tuple[World, World] = ("update", "other")

BIN_COUNT = 64
"""Most bins of a coordinate's values, cut at quantiles. More would learn the noise of few trials in
each bin; fewer would blur the ratio at rare values, where it is largest."""

THRESHOLD_COUNT = 256
"""Most thresholds that are tried from either end of a statistic's range. The time of the choice is
proportional to it."""

MAX_LISTED_VALUES = 3
"""Most decoded values of an event that are listed in its description."""

MAX_DECODED_VALUE = 1e30
"""Decoded values are clipped to this magnitude: squares of larger floats could overflow."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Every outcome that occurred, in no particular order.

    Attributes:
        decoded: (k, d) float64, the server's decoding of each outcome.
        equal: (k,) number of other clients that sent the same payload.
        bodies: (k, b) uint8, an outcome's bytes without the payload header; b may be 0.
    """

    decoded: np.ndarray
    equal: np.ndarray
    bodies: np.ndarray


@dataclass(frozen=True, slots=True)
class Event:
    """A set of outcomes, presumably likelier in one world than in the other.

    Attributes:
        words: a description of the set.
        likelier: the world in which the event should happen more often.
        contains: (k,) bool, which outcomes belong to it.
    """

    words: str
    likelier: World
    contains: np.ndarray

    def hits(self, outcomes: np.ndarray) -> int:
        # `outcomes` (n,) has the outcome's number of each trial.
        return int(np.count_nonzero(self.contains[outcomes]))


Worth = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""The value of an event with these counts in (likelier world, other world) among n trials."""


def statistics(outcomes: Outcomes, update: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    """Learn scores that separate the two worlds.

    Args:
        outcomes: every outcome that occurred.
        update, other: (n,) outcome numbers of the trials of each world to learn from.

    Returns:
        By description, a score (k,) float64 for each outcome: the empirical likelihood ratio of
        whole outcomes; that of their coordinates, or of their bytes, as if these were independent;
        the decoded value, or the linear combination that separates two normal laws with diagonal
        covariance best; how many other clients sent the same payload.
    """
    decoded = np.clip(np.nan_to_num(outcomes.decoded), -MAX_DECODED_VALUE, MAX_DECODED_VALUE)
    dimension = decoded.shape[1]
    linear = "decoded value" if dimension == 1 else "weighted sum of the decoded coordinates"
    scores = {
        linear: _linear(decoded, update, other),
        "learned likelihood ratio (log) of the coordinates": sum(
            _coordinate(decoded[:, j], update, other) for j in range(dimension)
        ),
        "learned likelihood ratio (log) of the bytes": sum(
            (_ratio(column, 256, update, other) for column in outcomes.bodies.T),
            np.zeros(len(decoded)),
        ),
        "counted likelihood ratio (log) of the whole outcome": _ratio(
            np.arange(len(decoded)), len(decoded), update, other
        ),
        "other clients with the same payload": outcomes.equal.astype(np.float64),
    }
    return {words: np.asarray(score) for words, score in scores.items()}


def best_event(
    scores: dict[str, np.ndarray], update: np.ndarray, other: np.ndarray, worth: Worth
) -> Event:
    """Choose the event of the largest value: a score at or above a threshold, or below it.

    Args:
        scores: (k,) each, a score for every outcome, by description.
        update, other: (n,) outcome numbers of the trials of each world to choose by. They must not
            be those that the scores were learned from, which would reward overfitting.
        worth: the value of an event, from its counts.
    """
    best, chosen, trials = -np.inf, None, len(update)
    for words, score in scores.items():
        # Both directions and both worlds: a score may be large where the other input is likelier.
        samples = np.sort(score[update]), np.sort(score[other])
        thresholds = _thresholds(np.sort(np.concatenate(samples)))
        below = [np.searchsorted(sample, thresholds) for sample in samples]
        above = [trials - count for count in below]
        for sign, counts in ((">=", above), ("<", below)):
            for first in (0, 1):
                values = worth(counts[first], counts[1 - first], trials)
                place = int(values.argmax())
                if chosen is None or values[place] > best:
                    best, threshold = values[place], thresholds[place]
                    contains = score >= threshold if sign == ">=" else score < threshold
                    text = f"{words} {sign} {threshold + 0.0:.6g}"  # + 0.0: no negative zero
                    chosen = Event(text, WORLD_NAMES[first], contains)
    assert chosen is not None
    return chosen


def in_words(event: Event, outcomes: Outcomes) -> str:
    """Describe an event by its decoded values if there are few, else by its score."""
    if outcomes.decoded.shape[1] == 1:
        values = outcomes.decoded[:, 0]
        inside, outside = set(values[event.contains]), set(values[~event.contains])
        if 0 < len(inside) <= MAX_LISTED_VALUES and not inside & outside:
            return "decoded value " + " or ".join(f"{value + 0.0:.6g}" for value in sorted(inside))
    return event.words


def _thresholds(sample: np.ndarray) -> np.ndarray:
    # Denser towards the ends of the sorted sample: the largest ratios are those of rare events.
    ranks = np.geomspace(1, len(sample), THRESHOLD_COUNT).astype(np.int64)
    return np.unique(np.concatenate([sample[ranks - 1], sample[-ranks]]))


def _linear(decoded: np.ndarray, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    # Fisher's discriminant with a diagonal covariance; it separates two normal laws best.
    if decoded.shape[1] == 1:
        return decoded[:, 0]
    first, second = decoded[update], decoded[other]
    difference = first.mean(axis=0) - second.mean(axis=0)
    variance = first.var(axis=0) + second.var(axis=0)
    # A coordinate that differs but has no noise must not lead to a division by zero.
    floor = np.maximum(1e-9 * difference**2, np.finfo(np.float64).tiny)
    return decoded @ (difference / np.maximum(variance, floor))


def _coordinate(values: np.ndarray, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    # Each value is a bin if there are few; otherwise bins are cut at quantiles.
    cuts = np.unique(values[np.concatenate([update, other])])
    if len(cuts) > BIN_COUNT:
        sample = values[np.concatenate([update, other])]
        cuts = np.unique(np.quantile(sample, np.arange(1, BIN_COUNT) / BIN_COUNT))
    bins = np.searchsorted(cuts, values, side="right")
    return _ratio(bins, len(cuts) + 1, update, other)


def _ratio(bins: np.ndarray, count: int, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    # Half a count more in both worlds: a bin that only one of them reached has a finite ratio.
    first, second = (np.bincount(bins[world], minlength=count) for world in (update, other))
    return np.log((first + 0.5) / (second + 0.5))[bins]


BETA_ERROR = 1e-9
"""Generous bound of the relative error of scipy's inverse incomplete beta function.

With too small a bound the audit's lower bounds would be unproven; twice as large a one costs a few
1e-9 of epsilon."""


def proportion(hits: int | np.ndarray, trials: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound a probability from below and from above by counts of its event.

    Args:
        hits: number of trials in which the event happened, any shape.
        trials: number of independent trials, >= 1.
        error: upper bound of the probability with which each bound fails, in (0, 1).

    Returns:
        (lower, upper), float64, of the shape of hits: two one-sided bounds, which together fail
        with a probability of at most 2 · error.

    References:
        Clopper and Pearson 1934.

    Example:
        >>> lower, upper = proportion(0, 100, 0.05)
        >>> float(lower), round(float(upper), 6)
        (0.0, 0.029513)
    """
    from scipy.special import betainccinv, betaincinv

    hits = np.asarray(hits, dtype=np.float64)
    missed = trials - hits
    # If a beta distribution would have a parameter of 0, the bound is 0 or 1.
    lower = np.where(hits == 0, 0.0, betaincinv(np.maximum(hits, 1), missed + 1, error))
    upper = np.where(missed == 0, 1.0, betainccinv(hits + 1, np.maximum(missed, 1), error))
    return lower * (1 - BETA_ERROR), np.minimum(upper * (1 + BETA_ERROR), 1.0)


def least_epsilon(
    hits: int | np.ndarray, others: int | np.ndarray, trials: int, delta: float, error: float
) -> np.ndarray:
    """Bound epsilon from below by counts of an event in two neighbouring worlds.

    Args:
        hits: number of trials of one world in which the event happened, any shape.
        others: the same number for the other world, same shape.
        trials: number of independent trials in each world.
        delta: the delta of the claim, in [0, 1).
        error: upper bound of the probability with which the bound fails, in (0, 1).

    Returns:
        float64, in nats: under (epsilon, delta)-differential privacy with a smaller epsilon such
        counts have a probability below `error`. Negative or minus infinity if they show nothing.

    Example:
        >>> round(float(least_epsilon(900, 300, 1000, 0.0, 0.01)), 4)
        0.9469
    """
    # Half of the error for each of the two bounds, so that both hold with probability 1 - error.
    lower, _ = proportion(hits, trials, error / 2)
    _, upper = proportion(others, trials, error / 2)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0) / upper) - BETA_ERROR


def ceiling(trials: int, delta: float, error: float) -> float:
    """Return the largest `least_epsilon` that this many trials can show.

    Its event happened in every trial of one world, and in none of the other.
    """
    return max(0.0, float(least_epsilon(trials, 0, trials, delta, error)))
