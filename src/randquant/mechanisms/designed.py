"""Designed channels as mechanisms: the optimum computed on the spot, or read from a file."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from randquant.channel import Channel
from randquant.channel_file import load_channel


def optimal(
    clip: float,
    epsilon: float,
    values: Sequence[float] | np.ndarray | None = None,
    levels: int | None = None,
    reach: float | None = None,
    objective: str = "mse",
    inputs: int | None = None,
    constraint: str = "pure",
) -> Channel:
    """Return the channel of `design.optimal`, as a mechanism like the others.

    Args:
        clip: per-coordinate clipping threshold.
        epsilon: bound of the constraint per coordinate: pure epsilon, in nats, or what
            `design.optimal` says.
        values: what the codes decode to; or give `levels`.
        levels: how many evenly spaced levels to search for, so that summed codes decode.
        reach: largest magnitude of a searched level, in units as clip; `mae` needs one.
        objective: `mae`, `mse` or `worst_variance`.
        inputs: vertices between which inputs are dithered; 33, or 129 where levels are searched.
        constraint: `pure`, or `fisher`, `l1` or `l2`, as in `design.optimal`. `fisher` is the one
            for updates whose L2 norm is clipped.

    Returns:
        A Channel.

    Raises:
        ValueError, TypeError: as `design.optimal`.

    Example:
        >>> optimal(clip=1.0, epsilon=2.0, values=[-2, -1, 0, 1, 2]).levels
        5
    """
    return designed(
        clip,
        None if values is None else tuple(values),
        epsilon,
        objective,
        inputs,
        levels=levels,
        reach=reach,
        lattice=levels is not None,
        constraint=constraint,
    )


@functools.lru_cache(maxsize=64)
def designed(*arguments: Any, **options: Any) -> Channel:
    """Return the channel of `design.optimal`, remembered: a run builds its mechanism many times."""
    from randquant import design  # its solver is slow to import

    return design.optimal(*arguments, **options).channel


def channel_file(path: str) -> Channel:
    """Return the channel of a file that `save_channel` wrote; loading certifies it again.

    Args:
        path: the file.

    Raises:
        ValueError: the file is not a channel's, or its content does not match its certificate.
        OSError: the file cannot be read.
    """
    return load_channel(path)[0]
