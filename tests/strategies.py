"""Hypothesis strategies: channels of every shape, rows of weights, updates."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from randquant.channels import Channel
from randquant.mechanisms import erm, pbm, rqm, stochastic_rounding


@st.composite
def weight_rows(draw, rows: int, codes: int, bits: int = 62) -> np.ndarray:
    """(rows, codes) int64 weights that sum to 2**bits, zeros and tiny weights included."""
    total = 2**bits
    table = np.zeros((rows, codes), dtype=np.int64)
    for row in table:
        cuts = sorted(draw(st.lists(_cut(total), min_size=codes - 1, max_size=codes - 1)))
        row[:] = np.diff([0, *cuts, total])
    return table


def _cut(total: int) -> st.SearchStrategy[int]:
    near_ends = st.integers(0, 3) | st.integers(total - 3, total)
    return st.integers(0, total) | near_ends


@st.composite
def channels(draw) -> Channel:
    """Any channel: uneven vertices, jumps, zero weights, small denominators."""
    clip = draw(st.sampled_from([1e-30, 1e-6, 0.03, 1.0, 1.5, 700.0, 1e27]))
    codes = draw(st.integers(2, 20))
    inner = draw(st.lists(st.integers(-999, 999), max_size=6, unique=True))
    jumps = [u for u in inner if draw(st.booleans())]
    inputs = clip * np.array([-1000, *sorted(inner + jumps), 1000]) / 1000
    values = np.sort(clip * np.array(draw(st.lists(
        st.integers(-3000, 3000), min_size=codes, max_size=codes, unique=True
    ))) / 1000)  # fmt: skip
    bits = draw(st.sampled_from([3, 8, 31, 32, 33, 62]))
    weights = draw(weight_rows(len(inputs), codes, bits))
    return Channel(inputs, values, weights, 2**bits)


@st.composite
def mechanism_channels(draw) -> Channel:
    """Channels as the constructors make them."""
    clip = draw(st.floats(1e-5, 1e3))
    kind = draw(st.sampled_from(["rqm", "pbm", "stochastic", "erm"]))
    if kind == "rqm":
        return rqm(
            clip,
            clip * draw(st.floats(0.0, 4.0)),
            draw(st.integers(2, 64)),
            draw(st.floats(0.0, 1.0)),
        )
    if kind == "pbm":
        return pbm(clip, draw(st.floats(0.01, 0.5)), draw(st.integers(1, 63)))
    if kind == "erm":
        inner = draw(st.lists(st.integers(-1400, 1400), max_size=14, unique=True))
        return erm(
            clip, clip * np.array([-1500, *sorted(inner), 1500]) / 1000, draw(st.floats(0, 20))
        )
    return stochastic_rounding(clip, draw(st.integers(2, 64)), clip * draw(st.floats(0.0, 2.0)))


def softened(channel: Channel) -> Channel:
    """The channel without jumps, each code possible everywhere, so that its curvature is finite."""
    keep = np.append(True, np.diff(channel.inputs) > 0)
    weights = channel.weights[keep].astype(object) * 63
    least = channel.denominator // channel.levels
    added = np.full(channel.levels, least, dtype=object)
    added[-1] += channel.denominator - added.sum()
    if not added.all():
        added = np.ones(channel.levels, dtype=object)
        added[-1] += channel.denominator - channel.levels
        if added[-1] <= 0:
            return pbm(channel.clip, 0.2, 3)
    scaled = ((weights + added) * 2**50) // (64 * channel.denominator)
    weights = np.maximum(scaled.astype(np.int64), 1)
    weights[:, -1] += 2**50 - weights.sum(axis=1)
    if (weights <= 0).any():
        return pbm(channel.clip, 0.2, 3)
    return Channel(channel.inputs[keep], channel.values, weights, 2**50)


def steep_channels() -> st.SearchStrategy[Channel]:
    """Channels of every shape with a finite curvature."""
    return channels().map(softened) | mechanism_channels().map(softened)
