"""XofTurboShake128: seeds and field elements from seeds (draft-irtf-cfrg-vdaf-20, section 6.2)."""

from __future__ import annotations

from typing import Any

from Crypto.Hash import TurboSHAKE128

from randquant.secure_sums.vdaf.field import Field, Vector

VERSION = 18
"""Of the draft's algorithms; it is part of every domain separation tag."""

_READ = 2**20
"""Bytes that are read at once: memory beside a vector that is drawn."""


class XofTurboShake128:
    """A stream of bytes that seed, tag and binder determine (section 6.2.1).

    Args:
        seed: up to 255 bytes.
        dst: the domain separation tag, up to 65,535 bytes.
        binder: bytes, or parts of them that are absorbed one after the other.
    """

    SEED_SIZE = 32

    def __init__(self, seed: bytes, dst: bytes, *binder: Any) -> None:
        if len(seed) > 255 or len(dst) > 65535:
            raise ValueError(
                "Expected a seed of 255 and a tag of 65,535 bytes at most, got "
                f"{len(seed)} and {len(dst)}."
            )
        head = len(dst).to_bytes(2, "little") + dst + len(seed).to_bytes(1, "little") + seed
        self._stream = TurboSHAKE128.new(data=head, domain=1)
        for part in binder:
            self._stream.update(part)

    def next(self, length: int) -> bytes:
        """The next bytes of the stream."""
        return self._stream.read(length)

    def next_vec(self, field: Field, length: int) -> Vector:
        """The next elements: numbers that are not below the modulus are skipped (section 6.2).

        Both moduli begin with a one in the highest bit of their size, so that the draft's mask
        changes nothing.
        """
        vector, filled = field.zeros(length), 0
        while filled < length:
            count = min(length - filled, _READ // field.ENCODED_SIZE)
            words = field.words(self.next(count * field.ENCODED_SIZE))
            good = field.below_modulus(words)
            words = words if good.all() else words[good]
            vector[filled : filled + len(words)] = words
            filled += len(words)
        return vector

    @classmethod
    def derive_seed(cls, seed: bytes, dst: bytes, *binder: Any) -> bytes:
        """Derive a new seed."""
        return cls(seed, dst, *binder).next(cls.SEED_SIZE)

    @classmethod
    def expand_into_vec(
        cls, field: Field, seed: bytes, dst: bytes, binder: bytes, length: int
    ) -> Vector:
        """Expand a seed into a vector."""
        return cls(seed, dst, binder).next_vec(field, length)


def format_dst(algorithm_class: int, algorithm: int, usage: int) -> bytes:
    """Format a domain separation tag (section 6.2.3)."""
    parts = ((VERSION, 1), (algorithm_class, 1), (algorithm, 4), (usage, 2))
    return b"".join(number.to_bytes(size, "big") for number, size in parts)
