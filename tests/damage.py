"""Damage to good inputs: bits, bytes, lengths, splices, and for JSON any value anywhere."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = [0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1]
VALUES = [
    None, True, False, 0, -1, 1, 2, 256, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**30), 0.5,
    -0.0, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"), "", "x", "inf", "1", "\ud800",
    [], [[]], {}, {"a": 1}, [0] * 50, "9" * 5000,
]  # fmt: skip


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
    if rng.random() < 0.01:
        return rng.choice([b"[", b'{"a":']) * 50_000
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
