"""Keys: 32 secret bytes that determine every random bit of an encoding."""

from __future__ import annotations

import hashlib
import hmac
import os
import sys
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from randquant._internal import validate

_BLOCK_BYTES = 16  # AES
_ZEROS = memoryview(bytes(1 << 17))  # plaintext whose encryption is the cipher's key stream


class Key:
    """A secret key, which determines all random draws made with it.

    One key protects one encoding: two updates encoded with the same key reveal their difference.
    Derive a fresh key with `fold_in` for each round, client and purpose.

    Guarantees:
        The 32 bytes never appear in its repr, and it cannot be pickled.
        Keys folded with different labels have independent streams (HMAC-SHA256).
        A generated key, or one derived from it, encodes once, and only in the process that
        generated it: a second encoding, or one in a forked process, is an error. Keys from seeds
        or given bytes may encode repeatedly, for simulation and tests.

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
        """Return a fresh key from the operating system's randomness: use it to protect data."""
        key = cls(os.urandom(32))
        key._uses = _Uses(os.getpid(), {})
        return key

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """Return the key of a seed, for simulation only: anybody who knows the seed knows the key.

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
            labels: whole numbers below 2**64 and strings; their order and types matter.

        Example:
            >>> root = Key.from_seed(0)
            >>> bool((root.fold_in(1, 2).words(1) == root.fold_in(2, 1).words(1)).all())
            False
        """
        key = Key(hmac.digest(self._secret, b"".join(map(_encoded, labels)), "sha256"))
        key._uses = self._uses
        return key

    def claim(self) -> None:
        """Mark this key as used; every encoder calls this once.

        Raises:
            ValueError: the key, or the one it derives from, was generated, and this key has been
                used before or belongs to another process.
        """
        if self._uses is None:
            return
        if self._uses.process != os.getpid():
            raise ValueError(
                f"Expected a key of this process, {os.getpid()}, but process {self._uses.process} "
                "generated it before a fork and may use it too: generate keys in the process that "
                "uses them."
            )
        # setdefault is atomic: of two threads only one succeeds. 16 bytes of a hash are enough: of
        # two keys that share them the second is refused.
        mine = object()
        if self._uses.seen.setdefault(hashlib.sha256(self._secret).digest()[:16], mine) is not mine:
            raise ValueError(
                "Expected an unused key, but this key has encoded before, which would reveal the "
                "difference of two updates: fold in the round and the client, or generate another."
            )

    def words(self, count: int, start: int = 0) -> np.ndarray:
        """Return words start, …, start + count - 1 of the key's stream.

        Args:
            count: number of words.
            start: first word, even (a cipher block is two words).

        Returns:
            (count,) uint64, uniform: AES-256 in counter mode, little-endian.
        """
        count = validate.whole("count", count, low=0, high=2**40)
        buffer = np.empty(count, dtype=np.uint64)
        self.stream(start)(buffer)
        return buffer

    def stream(self, start: int = 0) -> KeyStream:
        # As `words`: a cipher block is two words, so the start is even.
        return KeyStream(self._secret, validate.whole("start", start, low=0, high=2**129))

    def secret_bytes(self) -> bytes:
        """Return the 32 bytes, for a process that simulates clients; a generated key refuses."""
        if self._uses is not None:
            raise ValueError("Expected a key from a seed or from bytes, got a generated one.")
        return self._secret

    def __repr__(self) -> str:
        return "Key(<secret>)"

    def __reduce__(self) -> str:
        raise TypeError("Expected a key to stay in its process: a Key cannot be pickled.")


class _Uses(NamedTuple):
    """Uses of a generated key and of all keys derived from it."""

    process: int
    seen: dict[bytes, object]


class KeyStream:
    """Reads a key's stream in order; each call fills a buffer with its next words."""

    __slots__ = ("_encryptor",)

    def __init__(self, secret: bytes, start: int) -> None:
        if start % 2:
            raise ValueError(f"Expected an even start, got {start}: a cipher block is two words.")
        counter = (start * 8 // _BLOCK_BYTES).to_bytes(_BLOCK_BYTES, "big")
        self._encryptor = Cipher(algorithms.AES256(secret), modes.CTR(counter)).encryptor()

    def __call__(self, buffer: np.ndarray) -> None:
        """Fill a contiguous uint64 buffer with the next words of the stream."""
        view = buffer.data.cast("B")
        for start in range(0, len(view), len(_ZEROS)):
            part = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(part)], part)
        if sys.byteorder == "big":  # the same words, hence the same codes, on every machine
            buffer.byteswap(inplace=True)


def _encoded(label: int | str) -> bytes:
    # A type letter and a length: different sequences of labels have different bytes.
    if isinstance(label, str):
        word = label.encode()
        return b"s" + len(word).to_bytes(8, "big") + word
    return b"i" + validate.whole("label", label, low=0, high=2**64 - 1).to_bytes(8, "big")
