"""Stored measurements are one a line; the benchmark on a GPU says so where there is none."""

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_a_measurement_is_a_line(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    assert doctest.testmod(results).failed == 0
    for path in results.FOLDER.iterdir():
        assert path.read_text() == results.lines(json.loads(path.read_text())) + "\n", path.name


@pytest.mark.slow  # torch in a process of its own
def test_without_a_gpu_it_says_so_and_saves_nothing():
    saved = sorted((ROOT / "benchmarks" / "results").iterdir())
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # also on a machine that has one
    )
    [line] = done.stdout.splitlines()
    assert line.startswith("Expected a machine with a CUDA device, torch and triton, got no ")
    assert not done.stderr
    assert sorted((ROOT / "benchmarks" / "results").iterdir()) == saved
