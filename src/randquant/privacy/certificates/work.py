"""How long the certificates of a channel take, before they are begun: somebody else made it."""

from __future__ import annotations

import math

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sum_bits import Bits
from randquant.privacy.certificates.sum_curvature import FEW, LARGEST_SUM
from randquant.privacy.certificates.sum_parts import WORTH, affordable, at_vertices_counted

MOST = 63_000
"""About a minute on one core, mostly less."""


def check_work(channel: Channel, clients: int, *, clipped: bool = True) -> None:
    """Refuse a channel whose certificates would take too long; no bound rests on the estimate.

    Args:
        channel: made by somebody else.
        clients: how many clients' codes are in the sum that is certified.
        clipped: whether updates are clipped as a whole.

    Raises:
        ValueError: they would.

    Example:
        >>> import randquant as rq
        >>> check_work(rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42), clients=400)
    """
    vertices, codes = channel.weights.shape
    used = channel.weights[:, channel.weights.any(axis=0)]
    # All pairs of inputs; some 350 bytes of memory each, whatever the codes.
    work = vertices**2 * max(codes, 2**4) // 2**9
    if clients > 1 and (used.all() or not clipped):  # else it is infinite, and soon known to be
        work = max(work, _of_sums(channel, clients))
    if work > MOST:
        raise ValueError(
            f"its certificate would take too long, with {vertices} inputs, {codes} codes and "
            f"{clients} clients in a sum"
        )


def _of_sums(channel: Channel, clients: int) -> int:
    """Work of bounds of a sum of codes, which are computed for each of several orders."""
    vertices, codes = channel.weights.shape
    pairs, each = vertices**2 * codes, max(codes, min(clients, LARGEST_SUM) // 2**7)
    bits = Bits.of(channel)
    if bits is not None and (bits.trials > 1 or codes == 2):
        return max(pairs // 2**6, vertices * codes * 4)
    laws, others = 0, min(clients, LARGEST_SUM) - 1
    if vertices > 2 and others <= WORTH * at_vertices_counted(channel, others, FEW, False):
        laws = min(math.comb(clients + vertices - 2, vertices - 1), affordable(channel, others))
    # Kinds of blocks are fitted once, by linear programmes, and then tried at each order.
    return max(pairs * each // 2**4, 2 * vertices * codes * each, laws * others * codes // 2**7)
