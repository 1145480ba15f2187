"""What is sent: channels, their moments, keys, codes and bytes."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.channels.channel import DITHER_STEPS, MAX_DENOMINATOR, Channel
    from randquant.channels.encoding.batch import encode_payloads
    from randquant.channels.encoding.codec import encode_payload
    from randquant.channels.encoding.inputs import floats
    from randquant.channels.encoding.kernel import LOW_BITS
    from randquant.channels.encoding.threads import CHUNK, SEGMENT, cores, scratch
    from randquant.channels.encoding.thresholds import CELL_BUCKETS, tables
    from randquant.channels.exact_moments import moments
    from randquant.channels.keys import Key
    from randquant.channels.probabilities import from_probabilities
    from randquant.channels.wire.block_codes import block, length

__all__ = [
    "CELL_BUCKETS",
    "CHUNK",
    "DITHER_STEPS",
    "LOW_BITS",
    "MAX_DENOMINATOR",
    "SEGMENT",
    "Channel",
    "Key",
    "block",
    "cores",
    "encode_payload",
    "encode_payloads",
    "floats",
    "from_probabilities",
    "length",
    "moments",
    "scratch",
    "tables",
]

lazily(__name__)
