"""Flushing to the disk, on systems that do it differently."""

from __future__ import annotations

import errno
import os

import pytest

from randquant._internal import disk


def test_names_are_not_flushed_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("flushed"))
    monkeypatch.setattr(os, "name", "nt")
    disk.sync_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_an_error_of_the_disk_is_an_error(number, tmp_path, monkeypatch):
    def fails(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            disk.sync_folder(tmp_path)
    else:
        disk.sync_folder(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):  # of a file's content, every error is
        disk.flush(0)
