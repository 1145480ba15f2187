"""The draft's test vectors, byte for byte, and what an honest client refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from randquant.secure_sums import Field64, Prio3, SumVec

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "tests" / "vdaf_vectors").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_drafts_vectors(path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import vdaf_vectors

    vector = json.loads(path.read_text())
    count = len(vector["operations"]) if "operations" in vector else 2
    assert vdaf_vectors.line(path) == (True, f"ok, {count} operations")


@pytest.mark.parametrize(
    "measurement", [[0, 2], [0, -1], [0], [0, 2**64], [0.5, 1.0], ["no", ""], [[1], [0]]]
)
def test_an_invalid_measurement_is_refused_by_an_honest_client(measurement):
    prio3 = Prio3(SumVec(Field64, 2, 1, 1), 1)
    with pytest.raises(ValueError, match=r"^Expected "):
        prio3.shard(b"", measurement, bytes(16), bytes(prio3.RAND_SIZE))


def test_randomness_of_another_length_is_refused():
    prio3 = Prio3(SumVec(Field64, 1, 1, 1), 1)
    for nonce, rand in ((15, 128), (17, 128), (16, 127), (16, 129)):
        with pytest.raises(ValueError, match="bytes of"):
            prio3.shard(b"", [1], bytes(nonce), bytes(rand))


@pytest.mark.parametrize("arguments", [(2**32, 1), (-1, 1), (1, 0), (1, 256)])
def test_parameters_out_of_the_drafts_bounds_are_refused(arguments):
    with pytest.raises(ValueError, match=r"^Expected "):
        Prio3(SumVec(Field64, 1, 1, 1), *arguments)
