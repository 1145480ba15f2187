"""The draft's test vectors, byte for byte, and what an honest client refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from randquant.secure_sums import (
    Count,
    Field64,
    Field128,
    Histogram,
    MultihotCountVec,
    Prio3,
    Sum,
    SumVec,
    encode_agg_share,
    encode_input_share,
    encode_public_share,
    encode_verifier_message,
    encode_verifier_share,
)

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "vdaf_vectors").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_drafts_vectors(path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import vdaf_vectors

    vector = json.loads(path.read_text())
    count = len(vector["operations"]) if "operations" in vector else 2
    assert vdaf_vectors.line(path) == (True, f"ok, {count} operations")


LISTED = [
    (Count(Field64), 1, 1, 1, "e5da57ea61adae1f28dba8c33f8dda9c27c3f81f8a434c4ce6df0b1df28bdad9"),
    (
        Sum(Field64, 1000), 2, 617, 617,
        "3d82047c6c44b27e91da36b81107167245cd972b43c0a94091a1a3e3e2d4a2de",
    ),
    (
        Sum(Field128, 1), 2, 1, 1,
        "421926434147e0f77ab23adbaa7b0f300cffd5380a402cf32759dc3aab830033",
    ),
    (
        SumVec(Field128, 3, 2**70, 5), 3, [0, 2**70, 12345678901234567890],
        [0, 2**70, 12345678901234567890],
        "501dd77202d56f7f25230c3017407847172a7094cbcdfffd81321c3908ffdd79",
    ),
    (
        Histogram(Field64, 11, 4), 4, 7, [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        "0347e89b41bf08d9f68f5f9efd8a03be6ba934ac5367db9c7e65c3dcf782c57a",
    ),
    (
        MultihotCountVec(Field128, 9, 4, 3), 5, [0, 1, 1, 0, 0, 0, 1, 0, 0],
        [0, 1, 1, 0, 0, 0, 1, 0, 0],
        "66808aeb7151133e1ada2218cbff15032a844ab1187f2c76e568488e27fe2527",
    ),
]  # fmt: skip
"""Circuit, identifier, measurement, its sum, and the SHA-256 of all messages as the draft's own
listings compute them, with three aggregators and two proofs."""


@pytest.mark.parametrize(("circuit", "algorithm", "measurement", "result", "digest"), LISTED)
def test_all_messages_are_those_of_the_drafts_listings(
    circuit, algorithm, measurement, result, digest
):
    prio3 = Prio3(circuit, algorithm, shares=3, proofs=2)
    ctx, key, nonce = b"some application", bytes(range(32)), bytes(range(16))
    public, shares = prio3.shard(ctx, measurement, nonce, bytes(range(prio3.RAND_SIZE)))
    sent = [encode_public_share(public)]
    sent += [bytes(encode_input_share(prio3, each)) for each in shares]
    begun = [prio3.verify_init(key, ctx, j, nonce, public, shares[j]) for j in range(3)]
    sent += [encode_verifier_share(prio3, each) for _, each in begun]
    message = prio3.verifier_shares_to_message(ctx, [each for _, each in begun])
    sent.append(encode_verifier_message(message))
    out = [prio3.verify_next(state, message) for state, _ in begun]
    sent += [encode_agg_share(prio3, each) for each in out]
    assert hashlib.sha256(b"".join(sent)).hexdigest() == digest
    assert prio3.unshard(out, 1) == result


@pytest.mark.parametrize(
    ("circuit", "measurement"),
    [
        (Count(Field64), 2), (Count(Field64), -1), (Count(Field64), 0.9), (Count(Field64), "1"),
        (Sum(Field64, 5), 6), (Sum(Field64, 5), -1),
        (SumVec(Field64, 2, 1, 1), [0, 2]), (SumVec(Field64, 2, 1, 1), [0]),
        (SumVec(Field64, 2, 1, 1), [0, 2**64]), (SumVec(Field64, 2, 1, 1), [0.5, 1.0]),
        (SumVec(Field64, 1, 2**63, 1), [2**63 + 1]),
        (Histogram(Field64, 3, 1), 3), (Histogram(Field64, 3, 1), -1),
        (MultihotCountVec(Field64, 3, 1, 1), [1, 1, 0]),
        (MultihotCountVec(Field64, 3, 1, 1), [1, 0]),
        (MultihotCountVec(Field64, 3, 2, 1), [2, 0, 0]),
        (MultihotCountVec(Field64, 3, 2, 1), [0.5, 0.0, 0.0]),
        (MultihotCountVec(Field64, 3, 2, 1), ["no", "", ""]), (SumVec(Field64, 1, 1, 1), [[1]]),
    ],
)  # fmt: skip
def test_an_invalid_measurement_is_refused_by_an_honest_client(circuit, measurement):
    prio3 = Prio3(circuit, 1)
    with pytest.raises(ValueError, match=r"^Expected "):
        prio3.shard(b"", measurement, bytes(16), bytes(prio3.RAND_SIZE))


def test_randomness_of_another_length_is_refused():
    prio3 = Prio3(Count(Field64), 1)
    for nonce, rand in ((15, 64), (17, 64), (16, 63), (16, 65)):
        with pytest.raises(ValueError, match="bytes of"):
            prio3.shard(b"", 1, bytes(nonce), bytes(rand))


@pytest.mark.parametrize(
    "arguments", [(2**32, 2, 1), (-1, 2, 1), (1, 1, 1), (1, 256, 1), (1, 2, 0), (1, 2, 256)]
)
def test_parameters_out_of_the_drafts_bounds_are_refused(arguments):
    with pytest.raises(ValueError, match=r"^Expected "):
        Prio3(Count(Field64), *arguments)
