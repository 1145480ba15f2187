"""Whether what is drawn follows from the operating system's bytes, and from nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

FLIPPED = 8
"""The bit that is flipped: one that X25519 does not overwrite in its first and last byte."""


class Script:
    """Bytes in the place of the operating system's: those of a seed, with one of them changed.

    Attributes:
        calls: how many bytes each call has read.
    """

    def __init__(self, seed: int, changed: tuple[int, int] | None = None) -> None:
        self.seed, self.changed, self.calls = seed, changed, []

    def __call__(self, count: int) -> bytes:
        label = f"{self.seed} {len(self.calls)}".encode()
        drawn = bytearray(hashlib.shake_128(label).digest(count))
        if self.changed is not None and self.changed[0] == len(self.calls):
            drawn[self.changed[1]] ^= FLIPPED
        self.calls.append(count)
        return bytes(drawn)


@contextlib.contextmanager
def scripted(seed: int, changed: tuple[int, int] | None = None) -> Iterator[Script]:
    """Let everything read a script; X25519 keys too, which OpenSSL draws by itself."""
    script = Script(seed, changed)
    of_script = staticmethod(lambda: X25519PrivateKey.from_private_bytes(os.urandom(32)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", script)
        patch.setattr(X25519PrivateKey, "generate", of_script)
        yield script


def check_follows(draw: Callable[[], object]) -> None:
    """Two draws differ; with the same bytes of the system they do not, with others they do.

    Args:
        draw: gives all that it has drawn, from facts that are the same in each call: whatever else
            another party knows, a second call has the same.
    """
    assert draw() != draw()
    found = []
    for seed in (1, 1, 2):
        with scripted(seed):
            found.append(draw())
    assert found[0] == found[1] != found[2]


def check_drawn(draw: Callable[[], object], least: int) -> None:
    """As `check_follows`; `least` bytes are read, and each call's first and last byte matter."""
    check_follows(draw)
    with scripted(1) as script:
        usual = draw()
    assert sum(script.calls) >= least
    for call, count in enumerate(script.calls):
        for place in (0, count - 1):
            with scripted(1, (call, place)):
                assert draw() != usual, f"byte {place} of call {call} does not matter"
