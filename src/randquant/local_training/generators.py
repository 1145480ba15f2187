"""Global random generators, which layers such as dropout and data sets that augment draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

CPU = torch.device("cpu")


@contextmanager
def seeded(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Run with the global generators seeded: torch's on the CPU and a device, NumPy's, Python's.

    Afterwards they are as they were. They belong to all threads: only one may be in here.
    """
    there = device.type == "cuda"
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if there else []):
            seed_cpu(seed)
            if there:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        np.random.set_state(numpys)  # noqa: NPY002
        random.setstate(pythons)


def seed_cpu(seed: int) -> None:
    """Seed the generators of the CPU; within `seeded`, which puts them back."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (data sets of others draw from it)
    random.seed(seed)


def drawn() -> tuple[bytes, bytes, object]:
    """The state of the global generators."""
    state = torch.get_rng_state().numpy().tobytes()
    legacy: Any = np.random.get_state()  # noqa: NPY002
    return state, legacy[1].tobytes() + bytes(str(legacy[2]), "ascii"), random.getstate()
