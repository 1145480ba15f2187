"""The bytes of a payload of a rank mechanism."""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass

CHECK = 2
"""Bytes of a payload that stands alone: they tell its table, dimension and rotations."""


@dataclass(frozen=True, slots=True)
class RankForm:
    """Two forms of an index: alone, and in a payload that says what else is needed to decode it.

    Index j < size is coordinate j, size + j its negative, little-endian. A client whose number the
    server knows sends only that. A payload that stands alone has CHECK and the client's group
    before it. CHECK is the CRC-16 of what follows, begun with `check`: no changed byte is read, nor
    a payload whose form has another `check`, which one of 65,536 others has not.

    Attributes:
        check: CHECK bytes of a digest of the table, dimension and rotation.
        groups: how many groups there are.
        size: coordinates of a rotated update.
    """

    check: bytes
    groups: int
    size: int

    @property
    def of_group(self) -> int:
        """Bytes of a group."""
        return _width(self.groups)

    @property
    def of_index(self) -> int:
        """Bytes of an index."""
        return _width(2 * self.size)

    @property
    def bytes(self) -> int:
        """Bytes of a payload that stands alone."""
        return CHECK + self.of_group + self.of_index

    def index(self, index: int) -> bytes:
        """Write an index alone."""
        return index.to_bytes(self.of_index, "little")

    def read_index(self, payload: bytes) -> int:
        """Read an index alone, or raise ValueError."""
        if len(payload) != self.of_index:
            raise ValueError(
                f"Expected an index of {self.of_index} bytes, got {len(payload)}: a client whose "
                "number is known sends nothing else; encode with mechanism.of_client(number), or "
                "give payloads that stand alone in a list."
            )
        return _below(2 * self.size, "index", payload)

    def payload(self, group: int, index: int) -> bytes:
        """Write a payload that stands alone."""
        body = group.to_bytes(self.of_group, "little") + self.index(index)
        return self._checked(body) + body

    def read(self, payload: bytes) -> tuple[int, int]:
        """Read (group, index) of a payload that stands alone, or raise ValueError."""
        if len(payload) != self.bytes:
            end = ": an index alone is decoded by its client's number, mean({number: payload})."
            raise ValueError(
                f"Expected a payload of {self.bytes} bytes, got {len(payload)}"
                f"{end if len(payload) == self.of_index else '.'}"
            )
        if payload[:CHECK] != self._checked(payload[CHECK:]):
            raise ValueError(
                "Expected a payload of this table, dimension and rotation, got another's or a "
                "damaged one: encode with the same mechanism."
            )
        group = _below(self.groups, "group", payload[CHECK : CHECK + self.of_group])
        return group, self.read_index(payload[CHECK + self.of_group :])

    def _checked(self, body: bytes) -> bytes:
        return crc_hqx(body, int.from_bytes(self.check, "little")).to_bytes(CHECK, "little")


def _width(count: int) -> int:
    """Bytes of a number below count."""
    return ((count - 1).bit_length() + 7) // 8


def _below(count: int, name: str, written: bytes) -> int:
    value = int.from_bytes(written, "little")
    if value >= count:
        raise ValueError(f"Expected {name} below {count}, got {value}: it is damaged.")
    return value
