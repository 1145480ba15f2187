"""Attacks on whole runs: inputs that are easy to tell apart, and what is lost there; lower ends.

Derivations: `docs/theory/composition.md`, Propositions 11 to 13.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.accounting.composition import reached_epsilon
from randquant.privacy.accounting.privacy_loss import PrivacyLoss, log_moments, powered
from randquant.privacy.accounting.rounds import CELLS, SeenRound, SumRound, few_enough, places_of
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring

MOST_CLIENTS = 2**17
"""Sums of more clients are not attacked."""

VERTICES = 5
"""Vertices that the others are put at, at most."""

INSIDE = 1 - 2.0**-20
"""Updates are so much shorter than their threshold: rounding of norms does not clip them."""

LEAST = 1e-250
"""Less likely outcomes are left out; those that are so in the other world count as that likely."""

PRECISE = 1e-4
"""Outcomes whose masses are known less well are left out."""

SIZE = 2**17
"""Points of the grid on which scores are added up."""

MOST_ROUNDS = 2**20
"""Scores of more rounds are not added up."""

UNLIKELY = 1e-18
"""Scores of outcomes less likely are those of others."""

FINEST = 2**15
"""Values of the score of one round, at most."""


class RunAttack(Protocol):
    """Two inputs of a client, the same in every part of a run, and inputs of all others."""

    def attained(self) -> tuple[PrivacyLoss, ...]:
        """The loss of one part, rounded down, for each order of the two worlds."""
        ...

    def together(self, times: int) -> tuple[PrivacyLoss, ...]:
        """The loss of so many parts at once, in the same order, if it is known more closely."""
        ...


@dataclass(frozen=True, slots=True)
class DrawnRound:
    """One round, in which the client takes part with some probability.

    Attributes:
        seen: the round's inputs, and what is seen of them.
        rate: the probability of taking part; 1 for a round that it surely takes part in.
    """

    seen: SeenRound
    rate: float

    def attained(self) -> tuple[PrivacyLoss, ...]:
        """The loss of this round, rounded down, either world first."""
        return _both_ways(*self._worlds())

    def together(self, times: int) -> tuple[PrivacyLoss, ...]:
        """The loss of the sum of the scores of so many rounds, rounded down."""
        if times > MOST_ROUNDS:
            return ()
        # theory/composition.md, Proposition 13, with the log-ratio of a round as its score.
        first, second, error = _precise(*self._worlds())
        return _summed(first, second, times, error)

    def _worlds(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The laws of what is seen in either world, and their errors."""
        laws = self.seen.laws()
        # theory/composition.md, Proposition 12: 3 units for the mix.
        first, second = (
            (1 - self.rate) * laws.absent + self.rate * law for law in (laws.first, laws.second)
        )
        return first, second, laws.error + 8 * UNIT


def on_updates(
    channel: Channel, clients: int, neighboring: Neighboring, lengths: Iterable[tuple[int, float]]
) -> tuple[tuple[DrawnRound, int], ...]:
    """Attacks on a round, each with the number of coordinates that it is repeated in.

    Args:
        channel: the channel of every coordinate.
        clients: in a sum.
        neighboring: the other world has the opposite update (`replace_one`), or zeros.
        lengths: (m, h): updates that may be h long, in either direction, in each of m coordinates.
    """
    if clients > MOST_CLIENTS:
        return ()
    # theory/composition.md, Proposition 11: others at any vertex give a lower end.
    last = len(channel.inputs) - 1
    vertices = sorted({round(last * k / (VERTICES - 1)) for k in range(VERTICES)})
    found: dict[DrawnRound, int] = {}
    for count, length in lengths:
        # No norm is clipped, and the encoder reads the place from float32 exactly.
        far = min(float(np.float32(length * INSIDE)), channel.clip)
        places = (far, -far if neighboring == "replace_one" else 0.0, 0.0)
        for vertex in vertices if clients > 1 else vertices[:1]:  # alone, nobody is anywhere
            others = channel.input_of(vertex)
            attack = DrawnRound(SumRound(channel, clients, 1, places, others), 1.0)
            # Lengths are alternatives: of two that float32 makes one, the repeated one counts.
            found[attack] = max(found.get(attack, 0), count)
    return tuple(found.items())


def on_rounds(
    channel: Channel,
    clients: int,
    neighboring: Neighboring,
    stand_in: bool,
    coordinates: int,
    length: float,
) -> tuple[SumRound, ...]:
    """Inputs of one round that may be absent, in as many coordinates as are looked at.

    Args:
        channel: the channel of every coordinate.
        clients: in a sum.
        neighboring: what the two worlds differ by.
        stand_in: another client takes an absent one's place, and all others do as it does; else an
            absent client's entries are zeros, and all others do as the client, or the opposite.
        coordinates: in which updates may be so long.
        length: of updates in each of them, in either direction.
    """
    count = few_enough(channel, clients, coordinates)
    if not count:
        return ()
    # No norm is clipped, and the encoder reads the place from float32 exactly.
    far = min(float(np.float32(length * INSIDE)), channel.clip)
    # theory/composition.md, Proposition 12: others at any place give a lower end.
    return tuple(
        SumRound(channel, clients, count, (one * far, other * far, absent * far), others * far)
        for one, other, absent in places_of(neighboring, stand_in)
        for others in ((absent,) if stand_in else (1.0, -1.0)[:clients])
    )


def attacked_epsilon(attacks: Iterable[tuple[RunAttack, int]], delta: float, order: float) -> float:
    """Bound epsilon of a run from below by the best, it seems, of some attacks.

    Args:
        attacks: each with the number of parts of the run that it is repeated in.
        delta: in [0, 1).
        order: the Rényi order at which they are compared.

    Example:
        >>> attacked_epsilon([], 1e-5, 2.0)
        0.0
    """
    # What the same attack tells in several releases adds up; others may be left out.
    total: dict[RunAttack, int] = {}
    for attack, times in attacks:
        total[attack] = total.get(attack, 0) + times
    losses = [
        (loss, times, attack, way)
        for attack, times in total.items()
        for way, loss in enumerate(attack.attained() if times else ())
        if loss.infinite > 0 or len(loss.losses)
    ]
    tilt = np.array([min(max(order - 1, 0.5), 1e4)])

    def strength(candidate: tuple[PrivacyLoss, int, RunAttack, int]) -> float:
        loss, times, _, _ = candidate
        return math.inf if loss.infinite > 0 else times * float(log_moments(loss, tilt)[0])

    # Whichever is taken, it is a lower end: one composition takes a tenth of a second.
    best = max(losses, key=strength, default=None)
    if best is None:
        return 0.0
    loss, times, attack, way = best
    at_once = attack.together(times)[way : way + 1]
    return max(
        reached_epsilon(each, parts, delta)
        for each, parts in ((loss, times), *((one, 1) for one in at_once))
    )


def _precise(*laws: np.ndarray) -> list[np.ndarray]:
    """The same laws, the last of them the errors, where they are known well."""
    # theory/composition.md, Proposition 13: runs with other outcomes are told apart no more.
    some = (np.min(laws[:-1], axis=0) > LEAST) & (laws[-1] < PRECISE)
    return [law[some] for law in laws]


def _summed(
    first: np.ndarray, second: np.ndarray, rounds: int, error: np.ndarray
) -> tuple[PrivacyLoss, ...]:
    """The loss of the sum of so many rounds' log-ratios, either world first.

    Args:
        first, second: laws of a round's outcomes in either world.
        rounds: how many scores are added up.
        error: relative error of each mass.
    """
    # theory/composition.md, Proposition 13: relative errors of all rounds.
    relative = 1.1 * rounds * float(error.max(initial=0.0))
    score, likely = np.log(first / second), first > UNLIKELY
    # Worlds may be so far apart that what is known of both is likely in neither.
    if relative > 0.1 or not likely.any():
        return ()
    score = np.clip(score, score[likely].min(), score[likely].max())
    mean = float(first @ score) / float(first.sum())
    spread = math.sqrt(rounds * float(first @ (score - mean) ** 2))
    step = max(float(np.ptp(score)) / FINEST, 32 * spread / SIZE, 1e-300)
    low = float(score.min())
    place = np.rint((score - low) / step).astype(np.int64)
    start = round(rounds * (mean - low) / step) - SIZE // 2
    return _certain([powered(law, place, start, SIZE, rounds) for law in (first, second)], relative)


def _certain(found: list[tuple[np.ndarray, float]], relative: float) -> tuple[PrivacyLoss, ...]:
    """The losses of two laws on the grid, whose errors' lengths are known; `relative` besides."""
    width = SIZE // CELLS
    # theory/composition.md, Proposition 13: of a cell, the root of its width times the length.
    cells = [
        (sums.reshape(CELLS, width).sum(axis=1), 1.01 * math.sqrt(width) * error + width * UNIT)
        for sums, error in found
    ]
    losses = []
    for (one, off), (other, other_off) in (cells, cells[::-1]):
        surely, most = one - off, np.maximum(other, 0.0) + other_off
        used = surely > 0
        loss = np.log(surely[used] / most[used])
        loss -= 2.1 * relative + 8 * UNIT + 18 * UNIT * np.abs(loss)
        losses.append(PrivacyLoss(loss, surely[used] * (1 - 1.1 * relative), 0.0, upward=False))
    return tuple(losses)


def _both_ways(first: np.ndarray, second: np.ndarray, error: np.ndarray) -> tuple[PrivacyLoss, ...]:
    """The loss of two laws with relative errors, rounded down, either one first."""
    found = []
    for law, other in ((first, second), (second, first)):
        used = (law > LEAST) & (error < PRECISE)
        mass, off = law[used], error[used]
        loss = np.log(mass / np.maximum(other[used], LEAST))
        # theory/composition.md, Proposition 12, as in Proposition 11.
        loss -= 2.1 * off + 8 * UNIT + 18 * UNIT * np.abs(loss)
        found.append(PrivacyLoss(loss, mass * (1 - 1.1 * off), 0.0, upward=False))
    return tuple(found)
