"""The benchmark of the encoder on a GPU, where there is none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


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
