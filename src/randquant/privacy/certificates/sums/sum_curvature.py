"""Updates of bounded L2 norm in a secure sum: how fast its divergence grows with distance.

Derivations and rounding: `docs/theory/vector-sums.md`.
"""

from __future__ import annotations

import functools
import math

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.bits import curvature_of_bits
from randquant.privacy.certificates.sums.ends import LARGEST_SUM, between_ends
from randquant.privacy.certificates.sums.kappa_blanket import by_blanket
from randquant.privacy.certificates.sums.reachable import endless, reached
from randquant.privacy.certificates.sums.rounding import between
from randquant.privacy.certificates.vector import Kappa, kappa

GIVEN_UP = 4.0
"""A bound of bits so many times what is attained, or infinite, is compared with one of blankets."""


def kappa_sum(channel: Channel, clients: int, order: float) -> Kappa:
    """Bound the Rényi divergence of a sum of codes by the squared distance of one input.

    Args:
        channel: the channel of every client.
        clients: n >= 1, how many clients' codes are in the sum.
        order: Rényi order in (1, 1e9].

    Returns:
        K, per squared unit of x, with `upper` proven and `lower` attained at `witness`, a pair of
        the client's inputs, and some inputs of the others.

    Guarantees:
        Whatever the other clients' inputs are, D_order <= upper · (x - x')^2 for all inputs x, x'
        of one client; for vectors, summed coordinate by coordinate, upper · ||x - x'||^2. Take the
        distance from `squared_distance`, which allows for the encoder's rounding. A sum of more
        clients has a smaller K.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> import randquant as rq
        >>> channel = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)  # one bit, values ±4
        >>> found = kappa_sum(channel, clients=200, order=2.0)
        >>> round(found.upper * 200 * 16 / (2.0 / 2), 3)  # over Gaussian noise of variance 16 · 200
        1.07
    """
    validate.kind("channel", channel, Channel)
    clients = validate.whole("clients", clients, low=1)
    return _kappa_sum(channel, clients, validate.renyi_order(order))


@functools.lru_cache(maxsize=4096)
def _kappa_sum(channel: Channel, clients: int, order: float) -> Kappa:
    alone = kappa(channel, order)
    if clients == 1:
        return alone
    if math.isinf(alone.upper):
        # theory/vector-sums.md, Proposition 7.
        lower, witness = endless(channel, alone.witness)
        return Kappa(lower, alone.upper, order, witness)
    # theory/vector-sums.md, Proposition 2.
    if len(channel.inputs) == 2:
        found = between_ends(channel, clients, order)
    else:
        counted = min(clients, LARGEST_SUM)
        # theory/vector-sums.md, Proposition 17, where a code is a sum of bits.
        lower, witness = reached(channel, counted, order)
        upper = curvature_of_bits(channel, counted, order, lower)
        found = between(lower, witness, upper, alone)
        if upper > GIVEN_UP * lower:
            blanket = by_blanket(channel, counted, order, alone)
            found = min(found, blanket, key=lambda each: each.upper)
    # theory/vector-sums.md, Proposition 1: what fewer clients attain, more need not.
    lower = found.lower if clients <= LARGEST_SUM else 0.0
    return Kappa(lower, found.upper, order, found.witness)
