"""Hostile bytes for every parser: python tests/fuzz.py [INPUTS [SEED]], or `make fuzz`.

Inputs are good ones, damaged: bits, bytes, lengths, splices, and for JSON any value anywhere.
Payloads and checkpoints get a right checksum again half of the time, to come past it. A parser
must give a ValueError or TypeError, or else a result that fits its bytes; soon, and in memory
that those bytes justify.
"""

from __future__ import annotations

import contextlib
import copy
import gzip
import hashlib
import json
import random
import signal
import sys
import tempfile
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import randquant as rq
from randquant import _idx, run_folder, wire
from randquant.compress import compress, decompress
from randquant.federate import State
from randquant.records import TrainConfig, to_json

SECONDS = 10
BYTES_PER_BYTE, SPARE = 400, 4_000_000  # JSON takes many times its text
DIMENSION = 37
CHANNELS = [
    rq.rqm(clip=1.5, margin=1.5, levels=16, keep=0.42),
    rq.stochastic_rounding(clip=1.0, levels=3, margin=0.5),
    rq.stochastic_rounding(clip=1.0, levels=60, margin=0.5),
]
WIDE = wire.Format.of(2**18, "fuzz")
NUMBERS = [0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]
VALUES = [
    None, True, False, 0, -1, 1, 2, 256, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**30), 0.5,
    -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), "", "x", "inf", "1", "\ud800",
    [], [[]], {}, {"a": 1}, [0] * 50, "9" * 5000,
]  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A parser: good inputs, how to damage one, and what reads and checks it."""

    seeds: Callable[[], list[bytes]]
    damage: Callable[[random.Random, bytes], bytes]
    read: Callable[[bytes, Path], None]


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Some of: a bit, a byte, a number, a cut, a splice, an insertion, a repetition."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(out):
                out[at] = rng.randrange(256)
            case 2:
                size = rng.choice([1, 2, 4, 8])
                number = rng.choice(NUMBERS) % 256**size
                out[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
            case 3:
                del out[at:]
            case 4:
                out[at:at] = rng.randbytes(rng.randrange(1, 64))
            case 5:
                other = rng.randrange(len(out) + 1)
                out[at:at] = out[min(at, other) : max(at, other)][:4096]
            case 6:
                del out[at : at + rng.randrange(1, 64)]
            case _:
                out += bytes(rng.randrange(64))
    return bytes(out)


def damaged_json(rng: random.Random, data: bytes) -> bytes:
    """A value, a key or the text."""
    if rng.random() < 0.3:
        return damaged(rng, data)
    holder = {"": json.loads(data)}
    for _ in range(rng.choice([1, 1, 2, 5])):
        places = list(_places(holder))
        place, key = rng.choice(places[1:] or places)
        match rng.randrange(6):
            case 0 if place is not holder:
                del place[key]
            case 1 if isinstance(place, dict) and place is not holder:
                place[rng.choice(["", "x", "levels", "clip", "format"])] = _value(rng)
            case 2 if isinstance(place, list):
                place.insert(key, _value(rng))
            case 3 if isinstance(place[key], int) and not isinstance(place[key], bool):
                place[key] += rng.choice([-1, 1, 2**62])
            case _:
                place[key] = _value(rng)
    return json.dumps(holder[""]).encode(errors="surrogatepass")


def _value(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


def _places(record: dict | list) -> Iterator[tuple[dict | list, Any]]:
    """Everywhere in a record of JSON."""
    for key in record if isinstance(record, dict) else range(len(record)):
        yield record, key
        if isinstance(record[key], dict | list):
            yield from _places(record[key])


def _payloads() -> list[bytes]:
    rng = np.random.default_rng(0)
    good = [
        wire.pack(channel, rng.integers(0, channel.levels, DIMENSION).astype(np.uint8))
        for channel in CHANNELS
    ]
    return [*good, wire.pack(WIDE, rng.integers(0, WIDE.levels, DIMENSION).astype(np.uint32))]


def _damaged_payload(rng: random.Random, data: bytes) -> bytes:
    out = damaged(rng, data)
    if rng.random() < 0.5 and len(out) >= wire.HEADER_BYTES:
        checksum = hashlib.sha256(out[:32] + out[40:]).digest()[:8]
        out = out[:32] + checksum + out[40:]
    return out


def _read_payload(data: bytes, _folder: Path) -> None:
    refused = 0
    for coding in (*CHANNELS, WIDE):
        totals = np.zeros(DIMENSION, dtype=np.int64)
        try:
            codes = wire.unpack(coding, data, DIMENSION)
            wire.add(coding, data, totals)
        except ValueError:
            assert not totals.any(), "a refused payload was added"
            refused += 1
            continue
        assert codes.shape == (DIMENSION,), "another dimension"
        assert int(codes.max()) < coding.levels, "a code that does not exist"
        assert wire.pack(coding, codes) == data, "not the codes of these bytes"
        assert np.array_equal(totals, codes), "another sum"
    if refused == len(CHANNELS) + 1:
        raise ValueError


def _compressed() -> list[bytes]:
    return [
        compress(channel, payload, pad_to=pad_to)
        for channel, payload in zip(CHANNELS, _payloads(), strict=False)
        for pad_to in (None, 120)
    ]


def _damaged_compressed(rng: random.Random, data: bytes) -> bytes:
    """Damage to the bytes, or to what they decompress to, or a bomb."""
    if rng.random() < 0.5:
        return damaged(rng, data)
    symbols = zlib.decompress(data[wire.HEADER_BYTES :].rstrip(b"\0") + bytes(4), -15, DIMENSION)
    symbols = damaged(rng, symbols) if rng.random() < 0.98 else bytes(rng.randrange(2**24))
    deflate = zlib.compressobj(rng.randrange(10), zlib.DEFLATED, -rng.randrange(9, 16))
    return data[: wire.HEADER_BYTES] + deflate.compress(symbols) + deflate.flush()


def _read_compressed(data: bytes, _folder: Path) -> None:
    for channel in CHANNELS:
        with contextlib.suppress(ValueError):
            payload = decompress(channel, data, DIMENSION)
            wire.unpack(channel, payload, DIMENSION)
            assert payload[4:40] == data[4:40], "another header"
            assert decompress(channel, compress(channel, payload), DIMENSION) == payload
            return
    raise ValueError


def _channels() -> list[bytes]:
    return [json.dumps(to_json(rq.channel_file.channel_record(c))).encode() for c in CHANNELS]


def _read_channel(data: bytes, folder: Path) -> None:
    path = folder / "channel.json"
    path.write_bytes(data)
    channel, certificate = rq.channel_file.load_channel(path)
    again = rq.channel_file.channel_record(channel, certificate)
    said = json.loads(data)
    assert again["fingerprint"] == said["fingerprint"], "another channel"
    assert certificate.epsilon.upper >= 0, "no certificate"
    assert (channel.weights.sum(axis=1) == channel.denominator).all(), "no distribution"


MADE_WITH = np.arange(32, dtype=np.uint8)


def _checkpoints() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        state = State(7, np.linspace(0, 1, 50, dtype=np.float32), np.arange(9))
        run_folder.save_checkpoint(path, state, MADE_WITH)
        return [path.read_bytes()]


def _read_checkpoint(data: bytes, folder: Path) -> None:
    path = folder / "checkpoint"
    path.write_bytes(data)
    state = run_folder.load_checkpoint(path, MADE_WITH)
    assert state is not None
    assert (state.round, state.parameters.shape, state.participations.shape) == (7, (50,), (9,))
    assert safetensors.numpy.load(data)["round"][0] == 7


SHAPE = (3, 4)


def _idx_files() -> list[bytes]:
    header = np.array([0x803, 5, *SHAPE], dtype=">u4").tobytes()
    plain = header + np.arange(60, dtype=np.uint8).tobytes()
    return [b"p" + plain, b"g" + gzip.compress(plain, mtime=0)]


def _read_idx(data: bytes, folder: Path) -> None:
    path = folder / ("f.gz" if data[:1] == b"g" else "f")
    path.write_bytes(data[1:])
    items = _idx.read(path, _idx.IMAGES, SHAPE)
    raw = gzip.decompress(data[1:]) if path.suffix else data[1:]
    assert items.tobytes() == raw[16:], "not the items of these bytes"
    assert items.shape == (int.from_bytes(raw[4:8], "big"), *SHAPE), "another shape"


def _configs() -> list[bytes]:
    config = TrainConfig("digits", "softmax", "rqm", {"clip": 1.0, "levels": 16}, clip_norm=1.0)
    return [json.dumps(to_json(config)).encode()]


def _read_config(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    config = run_folder.read_config(folder)
    again = json.loads(json.dumps(to_json(config)))
    assert again.keys() >= json.loads(data).keys(), "a field was lost"


TARGETS = {
    "payload": Target(_payloads, _damaged_payload, _read_payload),
    "compressed payload": Target(_compressed, _damaged_compressed, _read_compressed),
    "channel file": Target(_channels, damaged_json, _read_channel),
    "checkpoint": Target(_checkpoints, damaged, _read_checkpoint),
    "IDX file": Target(_idx_files, damaged, _read_idx),
    "configuration": Target(_configs, damaged_json, _read_config),
}


class Hang(BaseException):
    """A parser took too long."""


@contextlib.contextmanager
def _soon():
    def late(signum, frame):
        raise Hang(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(name: str, inputs: int, seed: int, folder: Path, weigh_every: int = 10) -> int:
    """Try so many inputs; how many were accepted. AssertionError names the input that was not met.

    Every `weigh_every`th input the memory is measured too.
    """
    target, rng, accepted = TARGETS[name], random.Random(f"{name} {seed}"), 0
    seeds = target.seeds()
    for good in seeds:
        target.read(good, folder)
    for number in range(inputs):
        data = target.damage(rng, rng.choice(seeds))
        weigh = number % weigh_every == 0
        if weigh:
            tracemalloc.start()
        try:
            with _soon():
                target.read(data, folder)
            accepted += 1
        except (ValueError, TypeError):
            pass
        except BaseException as error:
            raise AssertionError(
                f"{name}, seed {seed}, input {number}: {data[:300]!r}: {error!r}"
            ) from error
        finally:
            peak = tracemalloc.get_traced_memory()[1] if weigh else 0
            tracemalloc.stop()
        if peak > SPARE + BYTES_PER_BYTE * len(data):
            raise AssertionError(
                f"{name}, input {number}: {peak} bytes for {len(data)}: {data[:300]!r}"
            )
    return accepted


if __name__ == "__main__":
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    start = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(2**32)
    with tempfile.TemporaryDirectory() as scratch:
        for each in TARGETS:
            found = fuzz(each, total // len(TARGETS), start, Path(scratch), weigh_every=100)
            print(
                f"{each}: {total // len(TARGETS)} inputs, seed {start}, {found} accepted",
                flush=True,
            )
