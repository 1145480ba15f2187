"""The sum of the codes of clients that are simulated on a GPU, drawn where their updates are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from randquant.channel import Channel
from randquant.keys import Key


def sum_of_codes(
    channel: Channel, updates: torch.Tensor, clients: Sequence[int], key: Key
) -> torch.Tensor:
    """Clip, encode and add up clients' updates; for simulation.

    Args:
        channel: the channel.
        updates: (n, d), a row for each client.
        clients: who they are; none twice in a round.
        key: of the round.

    Returns:
        (d,) int64, on the device of `updates`.

    Guarantees:
        Each code is drawn from exactly the channel's row, independently, as
        `encode.gpu.encode_tensor` does with a seed.

    Raises:
        ValueError: a row has a NaN or infinity; its client is named.
        ModuleNotFoundError: there is no Triton, which comes with a CUDA build of torch.
    """
    from randquant.encode.gpu import encode_tensor

    finite = updates.isfinite().all(dim=1)
    if not finite.all():
        raise ValueError(
            f"Client {clients[int(finite.int().argmin())]}: Expected finite values to send, got "
            "others: drop or repair this update."
        )
    seed = int(key.fold_in("clients", *clients).words(2)[0] >> np.uint64(1))
    return encode_tensor(channel, updates, seed=seed).sum(dim=0, dtype=torch.int64)
