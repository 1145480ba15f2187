"""Throughput of encoding on this machine, compared with plain torch code; for `encode.py`.

All figures of one call are measured alternately in one process, so that their ratios are valid on a
machine whose speed varies. The best repetition is reported for every contender.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from randquant.channels import Key, cores, encode_payload, wire
from randquant.mechanisms import rqm

NAIVE_CHUNK = 1 << 14  # coordinates: the fastest chunk for plain torch among 2**10 to 2**21


def bench(
    coordinates: int = 10_000_000, levels: int = 16, repeats: int = 5, threads: int | None = None
) -> dict[str, Any]:
    """Measure encode + pack, unpack + sum, a memory copy, and a plain torch RQM.

    Args:
        coordinates: float32 coordinates of the update.
        levels: RQM levels.
        repeats: repetitions; the fastest counts.
        threads: cores for the multi-core figure; by default all cores of this process.

    Returns:
        A dict of plain numbers: coordinates per second per core and ratios.
    """
    threads = threads or cores()
    channel = rqm(clip=1.5, margin=1.5, levels=levels, keep=0.42)
    x = np.random.default_rng(0).standard_normal(coordinates, dtype=np.float32)
    key = Key.from_seed(0)  # the same work in every repetition
    payload = encode_payload(channel, x, key)
    totals = np.zeros(coordinates, dtype=np.int32)
    copy = np.empty_like(x)
    contenders: dict[str, Callable[[], object]] = {
        "encode_pack": lambda: encode_payload(channel, x, key, threads=1),
        "encode_pack_all": lambda: encode_payload(channel, x, key, threads=threads),
        "unpack_sum": lambda: wire.add(channel, payload, totals),
        "memory_copy": lambda: np.copyto(copy, x),
        "naive": _naive_contender(x, levels),
    }
    speed = _speeds(contenders, coordinates, repeats)
    return _figures(speed, threads) | {
        "coordinates": coordinates,
        "levels": levels,
        "payload_bytes": len(payload),
    }


def naive_rqm(x: Any, reach: float, levels: int, keep: float) -> Any:
    """RQM as usually written with tensors: a mask of kept levels for every coordinate.

    Args:
        x: (n,) torch float32 tensor within [-reach, reach].
        reach: clip + margin.
        levels, keep: as in `rqm`.

    Returns:
        (n,) uint8 tensor of codes, drawn with torch's generator.
    """
    index = torch.arange(levels)
    position = (x + reach) * ((levels - 1) / (2 * reach))
    cell = position.floor().clamp(0, levels - 2)
    kept = torch.rand(len(x), levels) < keep
    kept[:, 0] = kept[:, -1] = True
    at_or_below = index <= cell[:, None]
    below = torch.where(kept & at_or_below, index, -1).amax(dim=1)
    above = torch.where(kept & ~at_or_below, index, levels).amin(dim=1)
    go_up = torch.rand(len(x)) * (above - below) < position - below
    return torch.where(go_up, above, below).to(torch.uint8)


def _naive_contender(x: np.ndarray, levels: int) -> Callable[[], object]:
    """Plain torch on one core, without packing, with torch's generator."""
    tensor = torch.from_numpy(x)

    def run() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for part in tensor.split(NAIVE_CHUNK):
            naive_rqm(part.clamp(-1.5, 1.5), 3.0, levels, 0.42)
        torch.set_num_threads(threads)

    return run


def _speeds(
    contenders: dict[str, Callable[[], object]], coordinates: int, repeats: int
) -> dict[str, float]:
    best = dict.fromkeys(contenders, float("inf"))
    for repeat in range(repeats + 1):  # the first is a warm-up: compilation, caches
        for name, run in contenders.items():
            started = time.perf_counter()
            run()
            if repeat:
                best[name] = min(best[name], time.perf_counter() - started)
    return {name: coordinates / seconds for name, seconds in best.items()}


def _figures(speed: dict[str, float], threads: int) -> dict[str, Any]:
    copy, naive = speed["memory_copy"], speed["naive"]
    return {
        "encode_pack": {
            "coordinates_per_second_per_core": speed["encode_pack"],
            "coordinates_per_second": speed["encode_pack_all"],
            "threads": threads,
            "ratio_to_naive": speed["encode_pack"] / naive,
            "ratio_to_memory_copy": speed["encode_pack"] / copy,
        },
        "unpack_sum": {
            "coordinates_per_second_per_core": speed["unpack_sum"],
            "ratio_to_memory_copy": speed["unpack_sum"] / copy,
        },
        "memory_copy": {"coordinates_per_second_per_core": copy},
        "naive": {"coordinates_per_second_per_core": naive},
    }
