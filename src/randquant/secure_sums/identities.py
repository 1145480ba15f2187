"""Public identities, 32 bytes of Ed25519: only their owners can sign for them."""

from __future__ import annotations

from collections.abc import Mapping

from randquant._internal import validate

IDENTITY_BYTES = 32
MAX_CLIENT_NUMBER = 2**64 - 1

_FIELD_ORDER = 2**255 - 19
# The y coordinate of a point of order 8.
_ORDER_8_Y = int.from_bytes(
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"), "little"
)
_SMALL_ORDER_Y = {
    0, 1, _FIELD_ORDER - 1, _FIELD_ORDER, _FIELD_ORDER + 1, _ORDER_8_Y, _FIELD_ORDER - _ORDER_8_Y,
}  # fmt: skip
"""The y of all points whose order divides 8, in every encoding. Under such a key one signature is
valid for an eighth of all messages or more, so that anybody can sign."""


def check_identity(public: bytes) -> None:
    """Raise ValueError unless bytes may be the public half of somebody's key.

    Example:
        >>> check_identity(bytes(32))
        Traceback (most recent call last):
        ValueError: Expected an Ed25519 identity, got 0000...0000, for which anybody can sign.
    """
    if not isinstance(public, bytes) or len(public) != IDENTITY_BYTES:
        size = f"{len(public)} bytes" if isinstance(public, bytes) else validate.shown(public)
        raise ValueError(f"Expected an identity in {IDENTITY_BYTES} bytes of Ed25519, got {size}.")
    # Without the top bit, which is the sign of x.
    if int.from_bytes(public, "little") % 2**255 in _SMALL_ORDER_Y:
        shown = f"{public.hex()[:4]}...{public.hex()[-4:]}"
        raise ValueError(f"Expected an Ed25519 identity, got {shown}, for which anybody can sign.")


def check_directory(directory: Mapping[int, bytes]) -> None:
    """Raise ValueError unless each client, by its number, has an identity of its own."""
    owners: dict[bytes, int] = {}
    for client, public in directory.items():
        validate.whole("a client's number", client, low=0, high=MAX_CLIENT_NUMBER)
        check_identity(public)
        # One client under two numbers would be two of the clients that a guarantee counts on.
        if (other := owners.setdefault(public, client)) != client:
            raise ValueError(
                f"Expected each client's own identity in the directory, got one of both {other} "
                f"and {client}: one client would count as two."
            )
