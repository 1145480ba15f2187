"""An estimate of the work of a channel's certificates, before they are begun.

A channel may come from a file or a message. Without a limit its author could keep the
reader busy for hours, for the time grows with vertices, codes and clients.
"""

from __future__ import annotations

import math

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_bits import Bits
from randquant.privacy.certificates.sum_curvature import MAX_SUM_CLIENTS, MAX_VERTEX_LAWS
from randquant.privacy.certificates.sum_parts import (
    VERTICES_LAST_LIMIT,
    at_vertices_counted,
    max_affordable_laws,
)

MAX_WORK_UNITS = 63_000
"""About a minute on one core, mostly less; the time is roughly proportional."""


def check_work(channel: Channel, clients: int, *, clipped: bool = True) -> None:
    """Refuse a channel whose certificates would take too long; no bound rests on the estimate.

    Args:
        channel: a channel from an untrusted source.
        clients: number of clients whose codes are in the sum that is certified.
        clipped: whether updates are clipped as a whole.

    Raises:
        ValueError: the certificates would take too long.

    Example:
        >>> import randquant as rq
        >>> check_work(rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42), clients=400)
    """
    vertices, codes = channel.weights.shape
    used = channel.weights[:, channel.weights.any(axis=0)]
    # All pairs of inputs; some 350 bytes of memory each, whatever the codes.
    work = vertices**2 * max(codes, 2**4) // 2**9
    # Where a code is impossible at a vertex, K of clipped updates is infinite, which is soon known.
    if clients > 1 and (used.all() or not clipped):
        work = max(work, _sum_work(channel, clients))
    if work > MAX_WORK_UNITS:
        raise ValueError(
            f"its certificate would take too long, with {vertices} inputs, {codes} codes and "
            f"{clients} clients in a sum"
        )


def _sum_work(channel: Channel, clients: int) -> int:
    # The bounds of a sum are computed for each of several orders.
    vertices, codes = channel.weights.shape
    pairs, each = vertices**2 * codes, max(codes, min(clients, MAX_SUM_CLIENTS) // 2**7)
    bits = Bits.from_channel(channel)
    if bits is not None and (bits.trials > 1 or codes == 2):
        return max(pairs // 2**6, vertices * codes * 4)
    laws, others = 0, min(clients, MAX_SUM_CLIENTS) - 1
    counted = at_vertices_counted(channel, others, MAX_VERTEX_LAWS, False)
    if vertices > 2 and others <= VERTICES_LAST_LIMIT * counted:
        arrangements = math.comb(clients + vertices - 2, vertices - 1)
        laws = min(arrangements, max_affordable_laws(channel, others))
    # Kinds of blocks are fitted once, by linear programmes, and then tried at each order.
    return max(pairs * each // 2**4, 2 * vertices * codes * each, laws * others * codes // 2**7)
