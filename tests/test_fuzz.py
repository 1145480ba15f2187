"""Hostile bytes: some thousand inputs, the same each time; `make fuzz` tries a million new ones.

The first tenth of them are tried for every parser in `make test` too.
"""

import fuzz
import pytest


@pytest.mark.parametrize("total", [3_000, pytest.param(30_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_damaged_inputs_are_refused_or_read_rightly(name, total, tmp_path):
    inputs = total // len(fuzz.TARGETS) // fuzz.TARGETS[name].cost
    assert fuzz.fuzz(name, inputs, 1, tmp_path) < inputs / 2  # most must be damaged


def test_a_parser_that_crashes_or_hangs_or_lies_is_caught(tmp_path, monkeypatch):
    good = fuzz.TARGETS["payload"]

    def crash(data, folder):
        raise KeyError

    def grow(data, folder):
        assert len(bytes(10_000_000)) == 10_000_000

    def hang(data, folder):
        while True:
            pass

    monkeypatch.setattr(fuzz, "SECONDS", 0.05)
    for planted in (crash, grow, hang):
        seeds = iter([lambda data, folder: None] * len(good.seeds()))

        def read(data, folder, seeds=seeds, planted=planted):
            next(seeds, planted)(data, folder)  # good inputs are read without a fault

        target = fuzz.Target(good.seeds, good.damage, read)
        monkeypatch.setitem(fuzz.TARGETS, "planted", target)
        with pytest.raises(AssertionError):
            fuzz.fuzz("planted", 1, 1, tmp_path)
