"""From codes to bytes and back."""

from randquant.channels.wire.payload import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    TOTALS,
    VERSION,
    Coding,
    Format,
    add,
    bare_header,
    body_bytes,
    checked_header,
    frame,
    header,
    pack,
    unpack,
)

__all__ = [
    "HEADER",
    "HEADER_BYTES",
    "MAGIC",
    "TOTALS",
    "VERSION",
    "Coding",
    "Format",
    "add",
    "bare_header",
    "body_bytes",
    "checked_header",
    "frame",
    "header",
    "pack",
    "unpack",
]
