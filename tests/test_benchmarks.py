"""Stored measurements are one a line."""

import doctest
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_measurement_is_a_line(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    assert doctest.testmod(results).failed == 0
    for path in results.FOLDER.iterdir():
        assert path.read_text() == results.lines(json.loads(path.read_text())) + "\n", path.name
