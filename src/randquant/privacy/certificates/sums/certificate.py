"""What a sum of many clients' codes reveals of one of them: one coordinate, secure aggregation.

The server sees the sum of n codes and may choose the other clients' inputs. Derivations and
rounding: `docs/theory/sums.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.progress import report
from randquant._internal.rounding import round_down, round_up
from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.attacks import Attack, attack
from randquant.privacy.certificates.sums.bit_moments import LONGEST, by_bits
from randquant.privacy.certificates.sums.bounds import (
    NEAR,
    BlockPlan,
    by_blanket,
    by_near_search,
    by_search,
)
from randquant.privacy.certificates.sums.kind_moments import by_kinds
from randquant.privacy.certificates.sums.rows import Rows
from randquant.privacy.divergence import LARGEST_ORDER, UNIT
from randquant.privacy.guarantee import Interval, Neighboring, at_most

Method = Literal[
    "exhaustive", "near search", "bits", "blocks", "blanket", "fewer clients", "one client"
]

CLOSE = 1.15
"""A bound so near what is attained is not improved on by blankets."""


@dataclass(frozen=True, slots=True)
class SumCertificate:
    """How well one coordinate is hidden in a sum of clients' codes.

    Attributes:
        clients: how many codes are added, the client's own among them.
        order: Rényi order in (1, inf].
        epsilon: the largest divergence of the sum, over all pairs of the client's inputs and all
            inputs of the others, lies in this interval; in nats.
        witness: (x, x'), inputs of the client; behind `others` their divergence is at least
            `epsilon.lower`.
        others: {input: how many other clients have it} in the strongest attack found.
        method: what proved `epsilon.upper`: all others were tried; all but those that hide enough
            for this bound; all of the bits that their codes are sums of; all arrangements of a few
            laws that stand for any few of them; the part of their codes that does not depend on
            their inputs was counted; only some of the others were counted; or none was.
        neighboring: what the adversary tries to tell apart.
    """

    clients: int
    order: float
    epsilon: Interval
    witness: tuple[float, float]
    others: dict[float, int]
    method: Method
    neighboring: Neighboring

    def __str__(self) -> str:
        x, other = self.witness
        around = ", ".join(f"{count} at {value:g}" for value, count in self.others.items())
        return (
            f"order {self.order}: epsilon <= {round_up(self.epsilon.upper, 9)} per coordinate of a "
            f"sum of {self.clients} ({self.method}); >= {round_down(self.epsilon.lower)}: x={x:g}, "
            f"x'={other:g}, others {around or 'none'}"
        )


def certify_sum(
    channel: Channel,
    clients: int,
    order: float = math.inf,
    neighboring: Neighboring = "replace_one",
) -> SumCertificate:
    """Certify the sum of n clients' codes at one Rényi order, against adversarial other clients.

    Args:
        channel: the channel that every client sends one coordinate through.
        clients: n >= 1, how many codes are added; the sum is all that is seen.
        order: Rényi order in (1, inf]; infinity (the default) is pure differential privacy.
        neighboring: `replace_one`, or `zero_out`: one of the client's two inputs is 0.

    Returns:
        A SumCertificate with an interval for the largest divergence, and an attack. Results are
        cached: certifying the same sum again costs nothing.

    Guarantees:
        Whatever the others' inputs in [-clip, clip], fixed or random but independent of the
        client's input, no pair of neighbouring inputs has a divergence of the sum above
        epsilon.upper; the attack has one of at least epsilon.lower. Sums taken modulo anything
        reveal no more.

    Raises:
        ValueError: order is not above 1, clients is below 1, or neighboring is unknown.

    References:
        Balle, Bell, Gascón and Nissim 2019 (the privacy blanket, for shuffled messages).

    Example:
        >>> import randquant as rq
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
        >>> found = rq.certify_sum(channel, clients=2, order=2.0)
        >>> round(found.epsilon.upper, 6), found.method
        (4.319297, 'exhaustive')
    """
    validate.kind("channel", channel, Channel)
    clients = validate.whole("clients", clients, low=1, high=2**53)
    order = validate.renyi_order(order)
    validate.choice("neighboring", neighboring, ("replace_one", "zero_out"))
    return _certified(channel, clients, order, neighboring)


@lru_cache(maxsize=4096)
def _certified(
    channel: Channel, clients: int, order: float, neighboring: Neighboring
) -> SumCertificate:
    if LARGEST_ORDER < order < math.inf:
        # theory/rounding.md, Proposition 6: divergences rise with the order.
        pure = _certified(channel, clients, math.inf, neighboring)
        below = _certified(channel, clients, LARGEST_ORDER, neighboring)
        epsilon = Interval(below.epsilon.lower, pure.epsilon.upper)
        return replace(below, order=order, epsilon=epsilon, method=pure.method)
    rows = Rows.of(channel, neighboring)
    above_one = 1.0 if math.isinf(order) else order - 1
    # theory/sums.md, Proposition 2: counting on nobody else is a bound for any number of others.
    alone = rows.alone(order)
    single = float(alone[1].max())
    if clients == 1:
        at = divmod(int(alone[0].argmax()), len(rows.weights))
        strongest = Attack(0.0, at, np.zeros(rows.vertices, dtype=np.int64))
        lower, upper, method = float(alone[0].max()), single, "exhaustive"
    else:
        report("the strongest attack", 0, 0)
        strongest = attack(rows, clients - 1, order)
        # A quotient and a product round: 2 of 4 units. `log_moment` has its own slack.
        lower = strongest.log_moment / above_one * (1 - 4 * UNIT)
        hardest = strongest.log_moment
        upper, method = _upper(channel, rows, neighboring, clients - 1, order, single, hardest)
    p, q = strongest.pair
    return SumCertificate(
        clients=clients,
        order=order,
        # Both are proven; equal but for rounding, they may cross.
        epsilon=Interval(at_most(lower, upper), upper),
        witness=(float(rows.inputs[p]), float(rows.inputs[q])),
        others={float(rows.inputs[v]): int(n) for v, n in enumerate(strongest.counts) if n},
        method=method,
        neighboring=neighboring,
    )


def _upper(
    channel: Channel,
    rows: Rows,
    neighboring: Neighboring,
    others: int,
    order: float,
    single: float,
    attained: float,
) -> tuple[float, Method]:
    """The least of the bounds that can be afforded, and how it was proven."""
    above_one = 1.0 if math.isinf(order) else order - 1
    # Two products: at least the largest log moment of one client, as bounds want it.
    log_single = single * above_one * (1 + 4 * UNIT)
    best: tuple[float, Method] = (single, "one client")
    # theory/sums.md, Proposition 5: an attack as strong as without others; no bound is lower.
    if attained >= log_single * (1 - 1e-11):
        return best
    # theory/sums.md, Propositions 1 and 2: all others are tried, or a part of them.
    search = BlockPlan.of(rows, others, order, log_single)
    if not search.complete and not math.isinf(order):
        # theory/sums.md, Proposition 11.
        bound = by_bits(channel, others, order, neighboring, log_single) / above_one
        best = min(best, (bound * (1 + 4 * UNIT), "bits"))
        if math.isfinite(bound) and others * channel.levels <= LONGEST:
            return best
        # theory/sums.md, Propositions 3 and 4.
        report("what all codes have in common", 0, 0)
        bound = by_kinds(channel, rows, others, order, log_single) / above_one * (1 + 4 * UNIT)
        best = min(best, (bound, "blocks"))
        if bound * above_one > (1 + NEAR) * attained:
            # theory/sums.md, Proposition 15.
            bound = by_near_search(rows, others, order, log_single, attained) / above_one
            best = min(best, (bound * (1 + 4 * UNIT), "near search"))
        if best[0] * above_one <= (1 + NEAR) * attained:
            return best
        if best[0] * above_one > CLOSE * attained:
            bound = by_blanket(channel, rows, others, order, log_single) / above_one
            best = min(best, (bound * (1 + 4 * UNIT), "blanket"))
    bound = by_search(rows, search, order, log_single, attained, best[0] * above_one)
    bound *= (1 + 4 * UNIT) / above_one
    return min(best, (float(bound), "exhaustive" if search.complete else "fewer clients"))
