"""Keys: 32 secret bytes from which every random bit of an encoding is derived."""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from randquant._internal import validate

_BLOCK = 16  # bytes of one AES block
_ZEROS = memoryview(bytes(1 << 17))  # what counter mode encrypts to give its bare stream


class Key:
    """A secret key; everything drawn with it is a deterministic function of it.

    One key protects one encoding: encode two updates with the same key and their difference
    shows. Derive a fresh one with `fold_in` for each round, client and purpose.

    Guarantees:
        The 32 bytes never appear in its repr, and it cannot be pickled.
        Keys folded with different labels give independent streams (HMAC-SHA256).
        A key that is generated, or derived from one, encodes once, and only in the process that
        generated it: a second time, or in a fork, is an error. Keys of seeds, and of given bytes,
        repeat, for simulation and tests.

    Example:
        >>> Key.generate()
        Key(<secret>)
    """

    __slots__ = ("_secret", "_uses")

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes):
            raise TypeError(f"Expected a key of 32 bytes, got {type(secret).__name__}.")
        if len(secret) != 32:
            raise ValueError(f"Expected a key of 32 bytes, got {len(secret)} bytes.")
        self._secret = secret
        self._uses: _Uses | None = None

    @classmethod
    def generate(cls) -> Key:
        """Return a fresh key from the operating system: the one to protect data with."""
        key = cls(os.urandom(32))
        key._uses = _Uses(os.getpid(), {})
        return key

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """Return the key of a seed, for simulation only: who knows the seed sees through it.

        Args:
            seed: whole number, 0 to 2**64 - 1.

        Example:
            >>> bool((Key.from_seed(7).words(2) == Key.from_seed(7).words(2)).all())
            True
        """
        seed = validate.whole("seed", seed, low=0, high=2**64 - 1)
        return cls(
            hashlib.sha256(b"randquant simulation seed\0" + seed.to_bytes(8, "big")).digest()
        )

    def fold_in(self, *labels: int | str) -> Key:
        """Derive the key of a (round, client, purpose, …) from this one.

        Args:
            labels: whole numbers below 2**64 and words; their order and kinds count.

        Example:
            >>> root = Key.from_seed(0)
            >>> bool((root.fold_in(1, 2).words(1) == root.fold_in(2, 1).words(1)).all())
            False
        """
        key = Key(hmac.digest(self._secret, b"".join(map(_encoded, labels)), "sha256"))
        key._uses = self._uses
        return key

    def claim(self) -> None:
        """Take this key for one encoding; every encoder does.

        Raises:
            ValueError: it was generated, here or as the key it derives from, and has encoded
                before, or was generated in another process.
        """
        if self._uses is None:
            return
        if self._uses.process != os.getpid():
            raise ValueError(
                "Expected a key of this process, got one from before a fork, whose stream the "
                "other process may use too: generate keys where they are used."
            )
        mine = object()  # setdefault is one step: of two threads, one gets in
        if self._uses.seen.setdefault(hashlib.sha256(self._secret).digest()[:16], mine) is not mine:
            raise ValueError(
                "Expected a key that has encoded nothing yet, got a used one, and the difference "
                "of two updates would show: fold in the round and the client, or generate another."
            )

    def words(self, count: int, start: int = 0) -> np.ndarray:
        """Return words start, …, start + count - 1 of the key's stream.

        Args:
            count: how many words.
            start: first word, even (a block of the cipher holds two).

        Returns:
            (count,) uint64, uniform: AES-256 in counter mode, little-endian.
        """
        buffer = np.empty(count, dtype=np.uint64)
        self.stream(start)(buffer)
        return buffer

    def stream(self, start: int = 0) -> KeyStream:
        """Return a reader of the key's stream from word `start` (even) on."""
        return KeyStream(self._secret, start)

    def __repr__(self) -> str:
        return "Key(<secret>)"

    def __reduce__(self) -> str:
        raise TypeError("Expected a key to stay in its process: a Key cannot be pickled.")


class _Uses(NamedTuple):
    """What was encoded with the keys that derive from one that was generated."""

    process: int
    seen: dict[bytes, object]


class KeyStream:
    """Reads a key's stream in order; each call fills a buffer with its next words."""

    __slots__ = ("_encryptor",)

    def __init__(self, secret: bytes, start: int) -> None:
        if start % 2:
            raise ValueError(f"Expected an even start, got {start}: a cipher block is two words.")
        counter = (start * 8 // _BLOCK).to_bytes(_BLOCK, "big")
        self._encryptor = Cipher(algorithms.AES256(secret), modes.CTR(counter)).encryptor()

    def __call__(self, buffer: np.ndarray) -> None:
        """Fill a contiguous uint64 buffer with the next words of the stream."""
        view = buffer.data.cast("B")
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        if sys.byteorder == "big":  # the same words, and so the same codes, on every machine
            buffer.byteswap(inplace=True)


def _encoded(label: int | str) -> bytes:
    """Encode a label so that no two sequences of labels share their bytes."""
    if isinstance(label, str):
        word = label.encode()
        return b"s" + len(word).to_bytes(8, "big") + word
    return b"i" + validate.whole("label", label, low=0, high=2**64 - 1).to_bytes(8, "big")
