"""The encoder on a GPU, or where there is none, on Triton's interpreter."""

import os

import chance
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import channels

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="needs Triton, which comes with a CUDA build of torch")

import randquant as rq
from randquant.channels import wire
from randquant.channels.encoding import kernel
from randquant.channels.encoding.gpu import encode_tensor
from randquant.channels.keys import Key

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DRAWS = 10_000_000 if DEVICE == "cuda" else 200_000
PAPER = rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42)
KINDS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def uniform(count: int, clip: float, kind=torch.float32, seed: int = 0) -> torch.Tensor:
    x = np.random.default_rng(seed).uniform(-1.3 * clip, 1.3 * clip, count)
    return torch.from_numpy(x).to(kind).to(DEVICE)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(channels(), st.integers(0, 3000), st.sampled_from(KINDS))
def test_with_a_key_codes_are_those_of_the_cpu(channel, count, kind):
    x, key = uniform(count, channel.clip, torch.float64).clamp(-6e4, 6e4).to(kind), Key.from_seed(1)
    found = encode_tensor(channel, x, key=key)
    assert (found.cpu().numpy() == rq.encode(channel, x.cpu(), key)).all()
    assert found.dtype == torch.uint8
    assert found.device == x.device


@pytest.mark.parametrize("levels", [2, 4, 8, 16, 64, 256])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 1023, 1025, 5000])
def test_packed_codes_are_a_payload(levels, count):
    channel = rq.stochastic_rounding(clip=1.0, levels=levels, margin=0.5)
    x, key = uniform(count, 1.0), Key.from_seed(2)
    body = encode_tensor(channel, x, key=key, packed=True).cpu().numpy()
    codes = wire.unpack(channel, wire.frame(channel, count, body), count)
    assert (codes == rq.encode(channel, x.cpu(), key)).all()


def test_open_ties_are_settled_by_the_rest_of_the_draw(monkeypatch):
    """Words whose first 32 bits are those of a threshold, as the encoder's tests have them."""
    threshold = int(np.cumsum(PAPER.weights[0])[3]) * (2**62 // PAPER.denominator)
    high, low = threshold >> kernel.LOW_BITS, threshold & ((1 << kernel.LOW_BITS) - 1)
    x = torch.full((64,), -1.5, dtype=torch.float64, device=DEVICE)
    asked = []

    def words(self, count, start=0):
        asked.append(count)
        if len(asked) % 2:
            return np.full(count, high << 32, dtype=np.uint64)
        return np.where(np.arange(count) % 2, low, low - 1).astype(np.uint64)

    monkeypatch.setattr(Key, "words", words)
    found = encode_tensor(PAPER, x, key=Key.from_seed(3))
    assert len(asked) == 2
    assert set(found.tolist()) == {3, 4}  # one below the threshold, and the threshold


@pytest.mark.parametrize("x", [-1.5, -0.33, 0.7001])
def test_with_a_seed_codes_are_drawn_from_the_certified_row(x):
    same = torch.full((DRAWS,), x, dtype=torch.float64, device=DEVICE)
    codes = encode_tensor(PAPER, same, seed=11).cpu().numpy()
    weights, total = PAPER.mix(x)
    row = np.array([float(w / total) for w in weights])
    assert chance.fits(codes, row)
    other = encode_tensor(PAPER, same, seed=12).cpu().numpy().astype(float)
    for lag in (1, 8, 1024):
        assert chance.uncorrelated(codes[:-lag].astype(float), codes[lag:])
    assert chance.uncorrelated(codes.astype(float), other)
    assert not chance.fits(encode_tensor(PAPER, same + 0.2, seed=11).cpu().numpy(), row)


def test_what_cannot_be_encoded_is_refused():
    x = uniform(100, 1.0)
    x[17] = float("nan")
    for options in ({"seed": 1}, {"key": Key.from_seed(1)}):
        with pytest.raises(ValueError, match=r"got nan at index \[17\]"):
            encode_tensor(PAPER, x, **options)
    good = uniform(5, 1.0)
    with pytest.raises(ValueError, match="both or none"):
        encode_tensor(PAPER, good)
    three = rq.stochastic_rounding(clip=1.0, levels=3, margin=0.5)
    with pytest.raises(ValueError, match="power of two to pack"):
        encode_tensor(three, good, seed=1, packed=True)
    with pytest.raises(TypeError, match="16, 32 or 64 bit floats"):
        encode_tensor(PAPER, good.to(torch.int32), seed=1)
    key = Key.generate()
    encode_tensor(PAPER, good, key=key)
    with pytest.raises(ValueError, match="Expected an unused key"):
        encode_tensor(PAPER, good, key=key)
