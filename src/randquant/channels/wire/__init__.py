"""From codes to bytes and back."""

from randquant.channels.wire.payload import (
    HEADER_BYTES,
    MAGIC,
    PADDED,
    TOTALS,
    Coding,
    Format,
    add,
    bare_header,
    body_bytes,
    dimension_of,
    frame,
    pack,
    sizes,
    unpack,
)

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "PADDED",
    "TOTALS",
    "Coding",
    "Format",
    "add",
    "bare_header",
    "body_bytes",
    "dimension_of",
    "frame",
    "pack",
    "sizes",
    "unpack",
]
