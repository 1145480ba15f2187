"""How long the certificates of a channel take, before they are begun: somebody else made it."""

from __future__ import annotations

import math

from randquant.channels.channel import Channel
from randquant.privacy.certificates.sums.bits import Bits
from randquant.privacy.certificates.sums.others import WORTH, affordable, at_vertices_counted
from randquant.privacy.certificates.sums.sum_curvature import FEW, LARGEST_SUM

MOST = 2**16
"""About a minute on one core, mostly less."""

LEAST = MOST // 32
"""Of a channel however small: of several in one offer each counts."""


class Allowance:
    """Work that the certificates in one message may take; no bound rests on these estimates.

    Example:
        >>> import randquant as rq
        >>> allowance = Allowance()
        >>> allowance.take(rq.rqm(clip=1.0, margin=1.0, levels=16, keep=0.42), clients=400)
        >>> allowance.left < MOST
        True
    """

    def __init__(self) -> None:
        self.left = MOST

    def take(self, channel: Channel, clients: int, *, clipped: bool = True) -> None:
        """Count a channel; ValueError if the certificates would take too long.

        Args:
            channel: made by somebody else.
            clients: how many clients' codes are in the sum that is certified.
            clipped: whether updates are clipped as a whole.
        """
        vertices, codes = channel.weights.shape
        used = channel.weights[:, channel.weights.any(axis=0)]
        # All pairs of inputs; some 350 bytes of memory each, whatever the codes.
        work = vertices**2 * max(codes, 2**4) // 2**9
        if clients > 1 and (used.all() or not clipped):  # else it is infinite, and soon known to be
            work = max(work, _of_sums(channel, clients))
        self.left -= LEAST + work
        if self.left < 0:
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
