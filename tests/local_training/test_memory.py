"""Clients' data are in memory once at most, measured as the memory of a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

MEASURE = """
import sys
import memory

memory.CLIENTS = 1000  # 314 MB
form, folder = sys.argv[1:]
memory.run("tensors", memory.small(), {})  # what is imported and compiled is not counted
before = memory.megabytes("RssAnon"), memory.megabytes("VmHWM")
clients, options = memory.given(form, folder)
held = memory.megabytes("RssAnon") - before[0]
with memory.Watched() as watched:
    memory.run(form, clients, options)
print(held, watched.own - before[0], memory.megabytes("VmHWM") - before[1])
"""


def measured(form, folder):
    """Megabytes of the data as they are given, and the most of the run, of its own and in all."""
    code = [sys.executable, "-c", MEASURE, form, str(folder)]
    done = subprocess.run(code, cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    return map(float, done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["tensors", "strided tensors"])
def test_tensors_are_in_memory_once(form, tmp_path):
    held, own, everything = measured(form, tmp_path)
    assert held > 300
    assert own < 1.1 * held
    assert everything < 1.1 * held


@pytest.mark.slow
def test_a_mapped_file_is_not_in_memory(tmp_path):
    _, own, _ = measured("memory-mapped", tmp_path)
    assert own < 0.1 * 314


@pytest.mark.slow
def test_a_million_clients_of_a_function_are_not_in_memory(tmp_path):
    """All their data would be 8,800 MB."""
    _, own, everything = measured("function", tmp_path)
    assert own < 0.02 * 8800
    assert everything < 0.02 * 8800
