"""Which random words a piece of code reads: words that are secret must be read once."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from randquant.channels import Key, keys


class Read(NamedTuple):
    """Words start, …, stop - 1 of a key's stream, the key by its secret, and its labels."""

    secret: bytes
    labels: tuple
    start: int
    stop: int


class Reads(list):
    """What was read while `recorded` was open."""

    @property
    def again(self) -> list[tuple]:
        """Labels of the keys some of whose words were read more than once."""
        of_key = defaultdict(list)
        for read in self:
            of_key[read.secret].append(read)
        found = []
        for reads in of_key.values():
            reads.sort(key=lambda read: (read.start, read.stop))
            pairs = itertools.pairwise(reads)
            found += [before.labels for before, after in pairs if after.start < before.stop]
        return found

    @property
    def keys(self) -> set[bytes]:
        return {read.secret for read in self}


@contextlib.contextmanager
def recorded(public: bool = False) -> Iterator[Reads]:
    """Record reads of secret keys' streams, or also of those that begin with a seed."""
    reads, labels, seeds = Reads(), {}, set()
    fold_in, from_seed = Key.fold_in, Key.from_seed

    class Recorded(keys.KeyStream):
        __slots__ = ("_at", "_secret")

        def __init__(self, secret, start):
            super().__init__(secret, start)
            self._secret, self._at = secret, start

        def __call__(self, buffer):
            super().__call__(buffer)
            if (public or self._secret not in seeds) and buffer.size:
                end = self._at + buffer.size
                reads.append(Read(self._secret, labels.get(self._secret, ()), self._at, end))
            self._at += buffer.size

    def folded(self, *given):
        key = fold_in(self, *given)
        labels[key._secret] = (*labels.get(self._secret, ()), *given)
        if self._secret in seeds:
            seeds.add(key._secret)
        return key

    def of_seed(seed):
        key = from_seed(seed)
        seeds.add(key._secret)
        return key

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "KeyStream", Recorded)
        patch.setattr(Key, "fold_in", folded)
        patch.setattr(Key, "from_seed", of_seed)
        yield reads


def windows_again(sent: bytes, width: int = 32) -> int:
    """How many windows of `width` bytes, at any byte, are there a second time.

    Args:
        sent: n bytes of at least b bits of min-entropy a byte, drawn independently: any window is
            there again with a probability below n^2 / 2 · 2**(-b · width).
    """
    view = np.lib.stride_tricks.sliding_window_view(np.frombuffer(sent, np.uint8), width)
    rows = np.ascontiguousarray(view).view([("", f"V{width}")]).reshape(-1)
    return len(rows) - len({row.tobytes() for row in rows})
