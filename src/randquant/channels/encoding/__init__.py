"""Encoding values as codes, with exactly the certified distribution."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.channels.encoding.batch import encode_payloads
    from randquant.channels.encoding.codec import decode, encode, encode_payload
    from randquant.channels.encoding.threads import CHUNK, SEGMENT, cores

__all__ = [
    "CHUNK",
    "SEGMENT",
    "cores",
    "decode",
    "encode",
    "encode_payload",
    "encode_payloads",
]

lazily(__name__)
