"""An error planted on purpose, which statistical tests must catch."""

from __future__ import annotations

from randquant.channels import Channel


def biased_level(channel: Channel, part: float) -> Channel:
    """The channel with `part` of its likeliest code's mass moved to the next code, in every row."""
    weights = channel.weights.copy()
    for row in weights:
        code = int(row[:-1].argmax())
        moved = int(part * int(row[code]))
        row[code] -= moved
        row[code + 1] += moved
    return Channel(channel.inputs, channel.values, weights, channel.denominator)
