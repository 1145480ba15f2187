"""The worst that one hostile client can do to a round's mean, in one line for plans and reports."""

from __future__ import annotations

import contextlib

from randquant._internal.formatting import round_up
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.secure_sums.helper.proven import proven_bytes


def describe_influence(mechanism: UpdateMechanism, dimension: int, clients: int) -> str:
    """Bound how far one client moves a secure sum's mean: by codes, by any vector, by its update.

    Args:
        mechanism: of the round.
        dimension: coordinates of an update.
        clients: how many are in the sum.

    Returns:
        One line, its bounds rounded up; empty where sums are not of codes.

    Guarantees:
        No valid codes move the decoded mean further, before it is rounded, and no vector moves a
        sum that is not refused further (`docs/theory/helper-sums.md`, Proposition 10).

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=0.125, levels=2, margin=0.526)
        >>> describe_influence(rq.VectorMechanism(bit, 1.0, "aggregate", 60), 650, 100)
        'one hostile client of 100 moves the mean by at most 0.417 (l2) by valid codes, 41.7 by \
any vector where codes are not proven; an honest client that replaces its update moves the exact \
mean by at most 0.02; with proofs a client sends 12,620 bytes'
    """
    channel = mechanism.channel
    if mechanism.trust != "aggregate" or channel is None or not clients:
        return ""
    try:
        valid = mechanism.influence(dimension, clients)
    except TypeError:  # a user's own mechanism, for which no bound is known
        return ""
    largest = channel.levels - 1
    most = min(2 ** mechanism.sum_bits(dimension, clients) - 1, clients * largest)
    line = (
        f"one hostile client of {clients:,} moves the mean by at most {round_up(valid, 3)} (l2) by "
        f"valid codes, {round_up(valid * most / largest, 3)} by any vector where codes are not "
        "proven"
    )
    if mechanism.clip_norm is not None:
        by_update = f"{2 * mechanism.clip_norm / clients:.3g}"
        line += (
            "; an honest client that replaces its update moves the exact mean by at most "
            f"{by_update}"
        )
    with contextlib.suppress(ValueError):  # of more codes than can be proven
        upload_bytes = proven_bytes(mechanism.size(dimension), largest)
        line += f"; with proofs a client sends {upload_bytes:,} bytes"
    return line
