"""Attack the real pipeline on two neighbouring inputs, and bound epsilon from below by counting.

The adversary's statistics are learned from trials, then the event that separates two worlds best; a
world is one of the two inputs. Counts of that event give the bound: `docs/theory/audit.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_down
from randquant._internal.progress import report
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.privacy.accounting.accountant import account
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring

MIN_TRIAL_COUNT = 40
"""Fewest trials: ten to learn from, ten to choose an event by, twenty to count it in."""

MAX_DECODED_NUMBERS = 2**25
"""Most coordinates that are decoded in all trials of one world: a quarter of a gigabyte. Twice as
many need twice the memory."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an attack on the real pipeline.

    Attributes:
        epsilon_lower: with probability `confidence` over the randomness of the trials, no smaller
            epsilon holds at `delta`; in nats, 0 if nothing was shown.
        delta: the delta of the claim.
        confidence: lower bound of the probability that epsilon_lower is valid.
        stated: the accountant's guarantee of one release; None without one.
        event: the counted event, in words.
        likelier: the input under which the event is likelier: `update` or `other`.
        hits: numbers of trials with the event, under that input and under the other one.
        counted: trials under each input in which the event was counted.
        trials: all trials under each input; the event was learned from the rest.
        ceiling: the largest epsilon_lower that any counts of this many trials could give.
        constant: all outcomes were equal, so that no randomness was seen.
        epsilon_stated: the stated epsilon; infinity without a guarantee.
        contradicted: the lower bound exceeds the stated epsilon: a fault, or a statistical error.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    stated: Guarantee | None
    event: str
    likelier: World
    hits: tuple[int, int]
    counted: int
    trials: int
    ceiling: float
    constant: bool

    @property
    def epsilon_stated(self) -> float:
        return math.inf if self.stated is None else self.stated.epsilon

    @property
    def contradicted(self) -> bool:
        return self.epsilon_lower > self.epsilon_stated

    def __str__(self) -> str:
        return (
            f"epsilon >= {round_down(self.epsilon_lower)} at delta = {self.delta} "
            f"with confidence {self.confidence}"
        )

    def lines(self) -> list[str]:
        """Return the result in words: stated guarantee, lower bound, event and verdict."""
        stated = "no guarantee" if self.stated is None else str(self.stated)
        share = ""
        if 0 < self.epsilon_stated < math.inf:
            share = f": {math.floor(100 * self.epsilon_lower / self.epsilon_stated)} % of it"
        unlikelier = "other" if self.likelier == "update" else "update"
        lines = [
            f"stated   {stated}",
            f"audited  {self}{share}",
            f"event    {self.event}: in {self.hits[0]:,} of {self.counted:,} trials with "
            f"`{self.likelier}`, in {self.hits[1]:,} with `{unlikelier}`",
        ]
        if self.ceiling < self.epsilon_stated < math.inf:
            lines.append(
                f"limit    this many trials show at most epsilon {round_down(self.ceiling)}: they "
                "could not contradict the stated guarantee; use more trials or fewer coordinates"
            )
        if self.constant:
            lines.append(
                "warning  all outcomes were equal: the mechanism is nearly constant at these "
                "inputs, or its key is reused"
            )
        verdict = "the stated guarantee is not contradicted"
        if self.contradicted:
            verdict = (
                "CONTRADICTED: the privacy loss exceeds the stated guarantee. The mechanism or its "
                "accounting is wrong, unless this is the one audit in "
                f"{1 / (1 - self.confidence):.0f} that errs"
            )
        return [*lines, f"verdict  {verdict}"]


def audit(
    mechanism: UpdateMechanism,
    update: np.ndarray,
    other: np.ndarray,
    *,
    key: Key,
    delta: float = 0.0,
    confidence: float = 0.99,
    trials: int = 20_000,
    others: np.ndarray | None = None,
    neighboring: Neighboring = "replace_one",
) -> Audit:
    """Run a mechanism many times on two neighbouring inputs, and bound its epsilon from below.

    Args:
        mechanism: the mechanism under attack; its own `encode` and `mean` are called.
        update, other: (d,) float32, the client's update in either world. They may lie beyond the
            clipping threshold, so that clipping is attacked too.
        key: root of all randomness; every client of every trial has its own key, derived as in
            federated training.
        delta: the delta of the claim, in [0, 1).
        confidence: lower bound of the probability that the result is valid; in [0.5, 1).
        trials: trials in each world, >= 40; trials times d at most 2**25.
        others: (n - 1, d) float32, the updates of the cohort's other clients, the same in both
            worlds; by default one client, with update `other`.
        neighboring: which guarantee is attacked; `zero_out` requires an `other` of zeros.

    Returns:
        An Audit: the bound, the guarantee that `account` states for one release, and the event.

    Guarantees:
        The adversary sees what leaves the clients. Under local trust this is the payload, byte
        for byte, and how many other clients sent an equal one; under aggregate and central trust
        it is the result of `mean` for the cohort's payloads.
        The event is learned on a quarter of the trials, chosen on another and counted on the other
        half, so that the bound is valid with probability `confidence` for any learned event.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or the mechanism
            refuses an input or a cohort.

    References:
        Clopper and Pearson 1934; Jagielski, Ullman and Oprea 2020 (auditing by counting);
        `docs/theory/audit.md`.

    Example:
        >>> import randquant as rq
        >>> from randquant.aggregation.channel_mechanisms import ChannelMechanism
        >>> mechanism = ChannelMechanism(rq.pbm(clip=1.0, theta=0.25, trials=1))
        >>> x, other = np.ones(1, dtype=np.float32), -np.ones(1, dtype=np.float32)
        >>> finding = rq.audit(mechanism, x, other, trials=2000, key=rq.Key.from_seed(0))
        >>> finding.epsilon_lower < finding.epsilon_stated < 1.4 * finding.epsilon_lower
        True
        >>> finding.event
        'decoded value -2'
    """
    expected = "a mechanism for whole updates, such as ChannelMechanism(channel)"
    validate.answers("mechanism", mechanism, expected, "trust", "cohort", "encode", "mean")
    validate.kind("key", key, Key)
    delta = validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    confidence = validate.real("confidence", confidence, low=0.5, below=1)
    trials = validate.whole("trials", trials, low=MIN_TRIAL_COUNT)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    update, other = _vector("update", update), _vector("other", other)
    if neighboring == "zero_out" and other.any():
        raise ValueError(
            "Expected an other update of zeros under zero_out, got "
            f"{np.count_nonzero(other)} of {other.size} that are not: audit it under replace_one."
        )
    others = other[None] if others is None else _cohort(others)
    if not update.size == other.size == others.shape[1]:
        raise ValueError(
            f"Expected updates of one dimension, got {update.size} and {other.size}, and "
            f"{others.shape[1]} for the other clients."
        )
    validate.whole(
        "trials times dimension",
        trials * update.size,
        high=MAX_DECODED_NUMBERS,
        why="memory is finite",
    )
    worth = functools.partial(least_epsilon, delta=delta, error=1 - confidence)
    outcomes, in_worlds = _run_worlds(mechanism, (update, other), others, trials, key)
    learn, choose = slice(trials // 4), slice(trials // 4, trials // 2)
    scores = statistics(outcomes, in_worlds[0][learn], in_worlds[1][learn])
    event = best_event(scores, in_worlds[0][choose], in_worlds[1][choose], worth)
    in_update, in_other = (event.hits(numbers[trials // 2 :]) for numbers in in_worlds)
    hits = (in_update, in_other) if event.likelier == "update" else (in_other, in_update)
    counted = trials - trials // 2
    release = mechanism.release(update.size, 1, neighboring)
    return Audit(
        epsilon_lower=max(0.0, float(worth(hits[0], hits[1], counted))),
        delta=delta,
        confidence=confidence,
        stated=None if release is None else account([release], delta),
        event=in_words(event, outcomes),
        likelier=event.likelier,
        hits=hits,
        counted=counted,
        trials=trials,
        ceiling=ceiling(counted, delta, 1 - confidence),
        constant=len(outcomes.equal) == 1,
    )


def worst_inputs(
    mechanism: UpdateMechanism, dimension: int, neighboring: Neighboring = "replace_one"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the two updates that a mechanism should find hardest to hide, for an audit.

    Args:
        mechanism: the mechanism; its `audit_inputs` gives the pair.
        dimension: d, coordinates of an update.
        neighboring: `replace_one`, or `zero_out`, where the other update is zero.

    Returns:
        (update, other), (d,) float32 each, all coordinates equal. With a `clip_norm` or a `clip`
        they lie far beyond it, with opposite signs, so that missing clipping shows; for a channel
        alone they are the worst pair of its certificate.

    Raises:
        ValueError: the mechanism has no such pair, or an argument is out of bounds.

    Example:
        >>> from randquant.aggregation.baselines import LocalGaussian
        >>> worst_inputs(LocalGaussian(clip_norm=1.0, noise_multiplier=2.0), 2)[0]
        array([1024., 1024.], dtype=float32)
    """
    dimension = validate.whole("dimension", dimension, low=1, high=MAX_DECODED_NUMBERS)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    pair = mechanism.audit_inputs(neighboring)
    return np.full(dimension, pair[0], np.float32), np.full(dimension, pair[1], np.float32)


def cohort_inputs(
    mechanism: UpdateMechanism,
    dimension: int,
    cohort: int,
    neighboring: Neighboring = "replace_one",
    x: float | None = None,
    other: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a cohort's updates in either world, each with equal coordinates.

    Args:
        mechanism, dimension, neighboring: as in `worst_inputs`.
        cohort: n, number of clients, >= 1.
        x, other: every coordinate of either update; None for that of `worst_inputs`.

    Returns:
        (update, other, others): (d,), (d,) and (n - 1, d) float32; all others send `other`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """
    cohort = validate.whole("cohort", cohort, low=1)
    update, replaced = worst_inputs(mechanism, dimension, neighboring)
    limit = float(np.finfo(np.float32).max)
    for name, value, filled in (("x", x, update), ("other", other, replaced)):
        if value is not None:
            filled[:] = validate.real(name, value, low=-limit, high=limit)
    return update, replaced, np.tile(replaced, (cohort - 1, 1))


def _run_worlds(
    mechanism: UpdateMechanism,
    inputs: tuple[np.ndarray, np.ndarray],
    others: np.ndarray,
    trials: int,
    key: Key,
) -> tuple[Outcomes, tuple[np.ndarray, np.ndarray]]:
    # Returns every outcome that occurred, and each trial's outcome number (trials,) in each world.
    dimension = inputs[0].size
    local = mechanism.trust in ("local", None)
    numbers: dict[tuple[bytes, int], int] = {}

    def outcome(update: np.ndarray, root: Key) -> int:
        payloads = [
            mechanism.encode(vector, root.fold_in("client", client))
            for client, vector in enumerate((update, *others))
        ]
        # What the adversary sees. A payload equal to others' may betray a key that is used twice.
        if local:
            view = payloads[0], payloads[1:].count(payloads[0])
        else:
            mean = mechanism.mean(payloads, dimension, root.fold_in("server"))
            view = mean.astype(np.float32).tobytes(), 0
        # By number: equal outcomes are decoded and scored once.
        return numbers.setdefault(view, len(numbers))

    def world(number: int) -> np.ndarray:
        # Every world, trial and client has a key of its own: the bound on counts rests on
        # independent trials, and equal noise in both worlds would show the difference of the inputs
        # alone.
        root = key.fold_in("audit", number)
        results = np.empty(trials, dtype=np.int64)
        for trial in range(trials):
            if trial % 256 == 0:
                report("trials", number * trials + trial, 2 * trials)
            results[trial] = outcome(inputs[number], root.fold_in(trial))
        return results

    outcomes = world(0), world(1)
    # After both worlds and with one key: an outcome decodes alike, whichever world it came from.
    decoded = np.empty((len(numbers), dimension))
    server = key.fold_in("server")
    for (seen, _), number in numbers.items():
        if local:
            decoded[number] = mechanism.mean([seen], dimension, server)
        else:
            decoded[number] = np.frombuffer(seen, dtype=np.float32)
    bodies = _bodies([seen if local else b"" for seen, _ in numbers])
    return Outcomes(decoded, np.array([equal for _, equal in numbers]), bodies), outcomes


def _bodies(payloads: list[bytes]) -> np.ndarray:
    # (k, b) uint8, without the header of `wire`: it is constant but for a checksum, from which a
    # score would only learn the whole payload again.
    bodies = [p[wire.HEADER_BYTES :] if p.startswith(wire.MAGIC) else p for p in payloads]
    width = max(map(len, bodies))
    joined = b"".join(body.ljust(width, b"\0") for body in bodies)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(bodies), width)


def _vector(name: str, update: np.ndarray) -> np.ndarray:
    array = _floats(name, update)
    if array.ndim != 1 or not array.size or array.dtype.kind != "f":
        raise ValueError(
            f"Expected {name} to be a vector (d,) of floats, got shape {array.shape}, "
            f"{array.dtype}."
        )
    return array.astype(np.float32)


def _floats(name: str, value: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:
        raise TypeError(f"Expected {name} as one array, got rows of uneven lengths.") from None


def _cohort(others: np.ndarray) -> np.ndarray:
    array = _floats("others", others)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(
            f"Expected others to be (n - 1, d) floats, got shape {array.shape}, {array.dtype}."
        )
    return array.astype(np.float32)


# What the adversary learns knows no mechanism: outcomes are numbered, and a statistic is one score
# for each outcome.

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
                # By the very bound that is reported: the event of the largest difference in
                # frequency may prove less than a rare one of a larger ratio.
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
    # (epsilon, delta) says P <= e^epsilon P' + delta. With P bounded from below and P' from above
    # no smaller epsilon fits; an event of no more than delta shows nothing, minus infinity.
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(lower - delta, 0.0) / upper) - BETA_ERROR


def ceiling(trials: int, delta: float, error: float) -> float:
    """Return the largest `least_epsilon` that this many trials can show.

    Its event happened in every trial of one world, and in none of the other.
    """
    return max(0.0, float(least_epsilon(trials, 0, trials, delta, error)))
