"""No changed byte or digit of a file is believed: `python tests/flips.py` changes 200 of each."""

import flips
import pytest


def test_no_changed_byte_or_digit_of_a_run_is_believed(tmp_path):
    for kind in flips._run(tmp_path / "files"):
        assert flips.flips(kind, 8, 1)[2] == 0, kind.name


@pytest.mark.slow
def test_no_changed_byte_or_digit_of_any_kind_of_file_is_believed(tmp_path):
    found = {kind.name: flips.flips(kind, 80, 2) for kind in flips.kinds(tmp_path)}
    assert len(found) > 14
    assert not [name for name, (_, _, other) in found.items() if other]


def test_a_file_without_a_checksum_is_caught(tmp_path):
    path = tmp_path / "epsilon"
    path.write_text("1.50")
    planted = flips.Kind("planted", path, lambda: float(path.read_text()))
    refused, same, other = flips.flips(planted, 50, 0)
    assert other > 50
    assert refused + same + other == 100
    assert path.read_text() == "1.50"
