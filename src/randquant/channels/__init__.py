"""What is sent: channels, their moments, keys, codes and bytes."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.channels.channel import (
        DITHER_STEPS,
        MAX_DENOMINATOR,
        Channel,
        from_probabilities,
        moments,
        with_even,
    )
    from randquant.channels.encoding import (
        CELL_BUCKET_COUNT,
        CHUNK_SIZE,
        SEGMENT_SIZE,
        cores,
        encode_payload,
        encode_payloads,
        floats,
        scratch,
        tables,
    )
    from randquant.channels.kernels import LOW_BITS
    from randquant.channels.keys import Key
    from randquant.channels.wire import block, length

lazily(__name__)
