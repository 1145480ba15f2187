"""Updates of a client, and others', that are easy to tell apart: lower ends of whole runs.

Derivation: `docs/theory/composition.md`, Proposition 11.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from randquant.channels.channel import Channel
from randquant.privacy.accounting.chain import Powers, rounding
from randquant.privacy.accounting.composition.loss import PrivacyLoss, log_moments
from randquant.privacy.accounting.composition.rule import reached_epsilon
from randquant.privacy.accounting.rounds import SumRound, few_enough, places_of
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring

MOST_CLIENTS = 2**17
"""Sums of more clients are not attacked."""

VERTICES = 5
"""Vertices that the others are put at, at most."""

LEAST = 1e-250
"""Outcomes less likely in either world are left out."""

INSIDE = 1 - 2.0**-20
"""Updates are so much shorter than their threshold: rounding of norms does not clip them."""


class RunAttack(Protocol):
    """Two inputs of a client, the same in every part of a run, and inputs of all others."""

    def attained(self) -> tuple[PrivacyLoss, ...]:
        """The loss of one part, rounded down, for each order of the two worlds."""
        ...

    def together(self, times: int) -> tuple[PrivacyLoss, ...]:
        """The loss of so many parts at once, in the same order, if it is known more closely."""
        ...


@dataclass(frozen=True, slots=True)
class SumAttack:
    """One coordinate of a sum: the client at one of two places, all others at one vertex.

    Attributes:
        channel: of every client.
        clients: how many are in the sum, at most MOST_CLIENTS.
        vertex: where the others are.
        places: the client's input in the two worlds.

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=1.0, levels=2, margin=1.0)
        >>> one, _ = SumAttack(bit, 1, 0, (-1.0, 1.0)).attained()
        >>> one.losses.round(3).tolist()  # log 3 and its negative
        [1.099, -1.099]
    """

    channel: Channel
    clients: int
    vertex: int
    places: tuple[float, float]

    def attained(self) -> tuple[PrivacyLoss, ...]:
        """The loss of this coordinate, either world first."""
        return _losses(self)

    def together(self, times: int) -> tuple[PrivacyLoss, ...]:
        """Nothing closer is known."""
        return ()


def on_updates(
    channel: Channel, clients: int, neighboring: Neighboring, lengths: Iterable[tuple[int, float]]
) -> tuple[tuple[SumAttack, int], ...]:
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
    found: dict[SumAttack, int] = {}
    for count, length in lengths:
        # No norm is clipped, and the encoder reads the place from float32 exactly.
        far = min(float(np.float32(length * INSIDE)), channel.clip)
        places = (far, -far if neighboring == "replace_one" else 0.0)
        for vertex in vertices if clients > 1 else vertices[:1]:  # alone, nobody is anywhere
            attack = SumAttack(channel, clients, vertex, places)
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


@functools.lru_cache(maxsize=256)
def _others(channel: Channel, clients: int, vertex: int) -> np.ndarray:
    return Powers(channel.weights[vertex] / channel.denominator).of(clients - 1).mass


@functools.lru_cache(maxsize=256)
def _losses(attack: SumAttack) -> tuple[PrivacyLoss, ...]:
    noise = _others(attack.channel, attack.clients, attack.vertex)
    worlds = []
    for place in attack.places:
        # The encoder's row, exactly: whole numbers.
        row, total = attack.channel.mix(place)
        worlds.append(np.convolve(np.array([int(weight) / total for weight in row]), noise))
    first, second = worlds
    # theory/composition.md, Proposition 11: each law is within this, relatively.
    error = 2 * rounding(attack.clients, attack.channel.levels)
    # Fewer outcomes tell less.
    used = np.minimum(first, second) > LEAST
    loss = np.log(first[used] / second[used])
    slack = 2.1 * error + 8 * UNIT + 18 * UNIT * np.abs(loss)
    return tuple(
        PrivacyLoss(sign * loss - slack, law[used] * (1 - 1.1 * error), 0.0, upward=False)
        for sign, law in ((1, first), (-1, second))
    )
