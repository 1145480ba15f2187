"""Flushing to the disk, on systems that do it differently."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from randquant._internal import files


def test_names_are_not_flushed_where_folders_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("flushed"))
    monkeypatch.setattr(os, "name", "nt")
    files.sync_folder(tmp_path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_an_error_of_the_disk_is_an_error(number, tmp_path, monkeypatch):
    def fails(file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fails)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            files.sync_folder(tmp_path)
    else:
        files.sync_folder(tmp_path)
    with pytest.raises(OSError, match=os.strerror(number)):  # of a file's content, every error is
        files.flush(0)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_planted_name_is_not_written_through(plant, private, tmp_path):
    """Whoever may create files in a folder knows the names of those that are written there."""
    (tmp_path / "target").write_text("theirs")
    plant(tmp_path / "target", tmp_path / "account.partial")
    files.write_atomic(tmp_path / "account", b"ours", private=private)
    assert (tmp_path / "target").read_text() == "theirs"
    assert (tmp_path / "account").read_bytes() == b"ours"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["account", "target"]


def test_a_link_planted_in_the_last_moment_is_not_written_through(tmp_path, monkeypatch):
    (tmp_path / "target").write_text("theirs")
    unlink = type(tmp_path).unlink

    def late(path, missing_ok=False):
        unlink(path, missing_ok)
        if not (tmp_path / "account.partial").exists():
            (tmp_path / "account.partial").symlink_to(tmp_path / "target")

    monkeypatch.setattr(type(tmp_path), "unlink", late)
    with pytest.raises(OSError, match="got a symbolic link"):
        files.write_atomic(tmp_path / "account", b"ours")
    assert (tmp_path / "target").read_text() == "theirs"
    assert not (tmp_path / "account").exists()


@pytest.mark.parametrize(
    ("plant", "words"),
    [(lambda name: name.symlink_to("target"), "symbolic links"),
     (os.mkfifo, "got a pipe or a device")],
    ids=["link", "pipe"],
)  # fmt: skip
def test_what_is_planted_between_the_look_and_the_opening_is_not_read(
    plant, words, tmp_path, monkeypatch
):
    (tmp_path / "target").write_text("theirs")
    plant(tmp_path / "name")
    monkeypatch.setattr(os, "lstat", lambda path: os.stat(tmp_path / "target"))
    with pytest.raises(OSError, match=words):
        files.read_regular(tmp_path / "name")


def test_who_may_read_a_file_is_its_writers_choice(tmp_path):
    before = os.umask(0o022)
    try:
        files.write_atomic(tmp_path / "secret", b"", private=True)
        files.write_atomic(tmp_path / "page", b"")
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("secret", "page")]
    assert modes == [0o600, 0o644]


def test_a_new_files_content_is_on_the_disk_before_its_name_and_both_before_it_returns(
    tmp_path, monkeypatch
):
    """A power cut then leaves the old file or the whole new one, and never forgets the new name."""
    steps, replace = [], os.replace

    def flushed(file):
        steps.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "content")

    def renamed(*names):
        steps.append("name")
        replace(*names)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(files.sys, "platform", "linux")
    files.write_atomic(tmp_path / "account", b"ours")
    assert steps == ["content", "name", "folder"]
