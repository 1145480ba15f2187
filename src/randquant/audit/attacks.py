"""What an adversary looks for: statistics of one outcome, learned from trials, and the best event.

Nothing here knows a mechanism: outcomes are numbered, and a statistic is a score for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

World = Literal["update", "other"]
"""Which of the two neighbouring inputs was used."""

WORLDS: tuple[World, World] = ("update", "other")

BINS = 64
"""A coordinate that takes more values than this is cut at quantiles into so many parts."""

THRESHOLDS = 256
"""Thresholds tried at either end of a statistic's range."""

NAMED = 3
"""An event about so many decoded values at most is put into words by naming them."""

MOST = 1e30
"""Decoded values are cut here: squares of the largest floats would overflow."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Every outcome that occurred, in no order.

    Attributes:
        decoded: (k, d) float64, what the server decodes an outcome to.
        equal: (k,) how many other clients sent the same payload.
        bodies: (k, b) uint8, the bytes of an outcome that are its own; b may be 0.
    """

    decoded: np.ndarray
    equal: np.ndarray
    bodies: np.ndarray


@dataclass(frozen=True, slots=True)
class Event:
    """A set of outcomes, claimed to be likelier in one world than in the other.

    Attributes:
        words: which outcomes they are.
        likelier: the world in which it is to happen more often.
        contains: (k,) bool, the outcomes.
    """

    words: str
    likelier: World
    contains: np.ndarray

    def hits(self, outcomes: np.ndarray) -> int:
        """Count the trials, given by the numbers of their outcomes, in which it happened."""
        return int(np.count_nonzero(self.contains[outcomes]))


Worth = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""What counts in (likelier world, other world) out of so many trials are worth: the more the
better."""


def statistics(outcomes: Outcomes, update: np.ndarray, other: np.ndarray) -> dict[str, np.ndarray]:
    """Learn scores that tell two worlds apart.

    Args:
        outcomes: every outcome that occurred.
        update, other: (n,) numbers of the outcomes of each world's trials to learn from.

    Returns:
        A score (k,) float64 for each outcome, by what it is called in words:
        the likelihood ratio of whole outcomes, as counted; that of their coordinates, or of their
        bytes, taken to be independent; the decoded value, or the linear combination that separates
        two normal laws with diagonal covariance best; how many other clients sent the same.
    """
    decoded = np.clip(np.nan_to_num(outcomes.decoded), -MOST, MOST)
    dimension = decoded.shape[1]
    linear = "decoded value" if dimension == 1 else "weighted sum of the decoded coordinates"
    found = {
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
    return {words: np.asarray(score) for words, score in found.items()}


def best_event(
    scores: dict[str, np.ndarray], update: np.ndarray, other: np.ndarray, worth: Worth
) -> Event:
    """Choose the event that is worth most: a score at or above a threshold, or below it.

    Args:
        scores: of every outcome, (k,) each, by name.
        update, other: (n,) numbers of the outcomes of each world's trials to choose by; not those
            that scores were learned from, which would favour what was learned by heart.
        worth: what counts are worth.
    """
    best, chosen, trials = -np.inf, None, len(update)
    for words, score in scores.items():
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
                    shown = f"{words} {sign} {threshold + 0.0:.6g}"  # no minus before a zero
                    chosen = Event(shown, WORLDS[first], contains)
    assert chosen is not None
    return chosen


def in_words(event: Event, outcomes: Outcomes) -> str:
    """Name the decoded values that an event is about where they are few, else say it as it is."""
    if outcomes.decoded.shape[1] == 1:
        values = outcomes.decoded[:, 0]
        inside, outside = set(values[event.contains]), set(values[~event.contains])
        if 0 < len(inside) <= NAMED and not inside & outside:
            return "decoded value " + " or ".join(f"{value + 0.0:.6g}" for value in sorted(inside))
    return event.words


def _thresholds(sample: np.ndarray) -> np.ndarray:
    """Values of a sorted sample, denser towards its ends, where rare events are."""
    ranks = np.geomspace(1, len(sample), THRESHOLDS).astype(np.int64)
    return np.unique(np.concatenate([sample[ranks - 1], sample[-ranks]]))


def _linear(decoded: np.ndarray, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Fisher's discriminant with a diagonal covariance; one coordinate is taken as it is."""
    if decoded.shape[1] == 1:
        return decoded[:, 0]
    first, second = decoded[update], decoded[other]
    difference = first.mean(axis=0) - second.mean(axis=0)
    variance = first.var(axis=0) + second.var(axis=0)
    # A coordinate without any noise that differs must not divide by zero.
    floor = np.maximum(1e-9 * difference**2, np.finfo(np.float64).tiny)
    return decoded @ (difference / np.maximum(variance, floor))


def _coordinate(values: np.ndarray, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Log-likelihood ratio of one coordinate, by its values or by its parts between quantiles."""
    cuts = np.unique(values[np.concatenate([update, other])])
    if len(cuts) > BINS:
        sample = values[np.concatenate([update, other])]
        cuts = np.unique(np.quantile(sample, np.arange(1, BINS) / BINS))
    part = np.searchsorted(cuts, values, side="right")
    return _ratio(part, len(cuts) + 1, update, other)


def _ratio(part: np.ndarray, parts: int, update: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Log ratio of how often each outcome's part occurred, half a count added to either."""
    first, second = (np.bincount(part[world], minlength=parts) for world in (update, other))
    return np.log((first + 0.5) / (second + 0.5))[part]
