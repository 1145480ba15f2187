"""The bytes of a payload of a rank mechanism."""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass

CHECK = 2
"""Bytes of a payload that tell its table, dimension and rotations from others."""


@dataclass(frozen=True, slots=True)
class RankForm:
    """The payload of an index: CHECK, the client's group, the index, all little-endian.

    CHECK bytes are the CRC-16 of what follows, begun with `check`: no changed byte is read, nor a
    payload whose form has another `check`, which one of 65,536 others has not.
    Index j < size is coordinate j, size + j its negative.

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
        return ((self.groups - 1).bit_length() + 7) // 8

    @property
    def of_index(self) -> int:
        """Bytes of an index."""
        return ((2 * self.size - 1).bit_length() + 7) // 8

    def payload(self, group: int, index: int) -> bytes:
        """Put a payload together."""
        parts = group.to_bytes(self.of_group, "little"), index.to_bytes(self.of_index, "little")
        body = b"".join(parts)
        return self._checked(body) + body

    def _checked(self, body: bytes) -> bytes:
        return crc_hqx(body, int.from_bytes(self.check, "little")).to_bytes(CHECK, "little")

    def read(self, payload: bytes) -> tuple[int, int]:
        """Read (group, index), or raise ValueError."""
        wanted = CHECK + self.of_group + self.of_index
        if len(payload) != wanted:
            raise ValueError(f"Expected a payload of {wanted} bytes, got {len(payload)}.")
        if payload[:CHECK] != self._checked(payload[CHECK:]):
            raise ValueError(
                "Expected a payload of this table, dimension and rotation, got another's or a "
                "damaged one: encode with the same mechanism."
            )
        group = int.from_bytes(payload[CHECK : CHECK + self.of_group], "little")
        index = int.from_bytes(payload[CHECK + self.of_group :], "little")
        for name, value, count in (("group", group, self.groups), ("index", index, 2 * self.size)):
            if value >= count:
                raise ValueError(f"Expected {name} below {count}, got {value}: it is damaged.")
        return group, index
