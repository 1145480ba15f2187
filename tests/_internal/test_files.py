"""TOML that others wrote: as `tomllib` reads it, or a sentence."""

from __future__ import annotations

import tomllib
import tracemalloc

import pytest

from randquant._internal import files

HONEST = [
    "", "a.b.c = 1\n[d.e]\nf = [0.5, 0.25]", "a = [" + "0.1, " * 1000 + "]", "a = 1",
    'a = "' + "." * 500 + '"', ".".join("a" * 60) + " = 1", "[x]\nlong-name = 1.0 # a.b\n",
]  # fmt: skip


@pytest.mark.parametrize("text", HONEST, ids=range(len(HONEST)))
def test_what_is_not_deep_is_read_as_it_is(text):
    assert files.parse_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 5000 + "]" * 5000, "a." * 100_000 + "b = 1", f"[{'a.' * 100_000}b]",
        "'a' . " * 5000 + "b = 1", "x = {" + "a." * 5000 + "b = 1}",
        '"a b".' * 5000 + "b = 1", "'a.b' . " * 5000 + "b = 1", '"a\\"\\\\".' * 5000 + "b = 1",
    ],
)  # fmt: skip
def test_what_is_deep_is_refused_in_little_memory(text):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="it is nested too deeply"):
            files.parse_toml(text)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_long_words_take_no_long_time():
    """Each would take hours if the search began anew within a word."""
    for text in ("a" * 400_000, "a " * 200_000, "a" + " " * 400_000 + "=", "." * 400_000,
                 '"' + '\\" ' * 200_000, '\' "' * 200_000, '\\"' * 200_000):  # fmt: skip
        with pytest.raises(ValueError, match=r"at line|at end"):
            files.parse_toml(text)
