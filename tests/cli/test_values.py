"""How options are read: lists and files of numbers."""

import argparse

import pytest

from randquant.cli.values import numbers


def test_numbers_are_read_from_a_file_as_from_the_line(tmp_path):
    (tmp_path / "numbers.txt").write_text("0.5 1,\n-2e-3\n")
    assert numbers(f"@{tmp_path / 'numbers.txt'}") == numbers("0.5,1,-2e-3") == [0.5, 1.0, -0.002]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(argparse.ArgumentTypeError, match=r"nowhere\.txt"):
        numbers(f"@{tmp_path / 'nowhere.txt'}")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(argparse.ArgumentTypeError, match="cannot read numbers"):
        numbers(f"@{tmp_path / 'bytes'}")
