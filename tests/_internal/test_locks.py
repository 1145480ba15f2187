"""One process at a time, whatever becomes of the others."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from randquant._internal import files

HOLDER = """
import sys
from pathlib import Path
from randquant._internal import files
with files.folder(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
TAKEN = "to be free, but another process is training it: wait for it or choose another folder"


@contextlib.contextmanager
def holder(folder):
    """Another process that holds the lock of a folder."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def test_another_process_is_refused_at_once_and_a_killed_one_holds_nothing(tmp_path):
    assert not files.is_locked(tmp_path)
    with holder(tmp_path) as process:
        assert files.is_locked(tmp_path)
        for work in (files.folder, files.remove):
            with pytest.raises(BlockingIOError, match=TAKEN):
                work(tmp_path).__enter__()
        with pytest.raises(BlockingIOError, match="another process holds it"):
            files.exclusive(tmp_path / "lock").__enter__()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not files.is_locked(tmp_path)
        with files.folder(tmp_path):
            assert files.is_locked(tmp_path)
    assert not files.is_locked(tmp_path)


def test_one_that_waits_gets_the_lock_after_the_other(tmp_path):
    order = []

    def second():
        with files.exclusive(tmp_path / "lock", wait=300):
            order.append("second")

    with files.exclusive(tmp_path / "lock"):
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.05)
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]


def test_nobody_waits_for_ever(tmp_path):
    with (
        files.exclusive(tmp_path / "lock"),
        pytest.raises(BlockingIOError, match="but another process holds it: wait for it"),
        files.exclusive(tmp_path / "lock", wait=0.1),
    ):
        pass


def test_to_ask_is_not_to_hold(tmp_path, monkeypatch):
    """Many ask at the same time whether a run is being trained: nobody is told yes."""
    monkeypatch.setattr(files, "PROBE_SECONDS", 300.0)  # on a busy machine a moment may be long
    (tmp_path / "lock").touch()
    answers = []

    def ask():
        answers.extend(files.is_locked(tmp_path) for _ in range(20))

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for thread in asking:
        thread.start()
    with files.folder(tmp_path):
        pass
    for thread in asking:
        thread.join()
    assert answers == [False] * 80


def test_a_lock_of_a_deleted_file_is_no_lock(tmp_path, monkeypatch):
    """Between opening the file and locking it, its owner deleted it: the new name is locked."""
    real, times = files.lock_descriptor, []

    def late(file, **options):
        if not times:
            (tmp_path / "lock").unlink()
        times.append(1)
        return real(file, **options)

    monkeypatch.setattr(files, "lock_descriptor", late)
    with files.folder(tmp_path):
        assert len(times) == 2
        assert files.is_locked(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_gets_its_sentence(number, tmp_path, monkeypatch):
    def unsupported(file, **options):
        raise OSError(number, os.strerror(number))

    (tmp_path / "lock").touch()
    monkeypatch.setattr(files, "lock_descriptor", unsupported)
    for ask in (files.is_locked, lambda path: files.folder(path).__enter__()):
        with pytest.raises(OSError, match=r"Expected a file system with locks under .*local disk"):
            ask(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_read_only_folder_gets_its_sentence_and_can_be_asked(number, tmp_path, monkeypatch):
    """Simulated: the superuser may write everywhere."""
    real = open

    def read_only(path, mode="r", *arguments, **options):
        if set(mode) & set("wax+"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, mode, *arguments, **options)

    (tmp_path / "lock").touch()
    monkeypatch.setattr(files, "open", read_only, raising=False)
    with pytest.raises(PermissionError, match=f"a folder that can be written, got {tmp_path}"):
        files.folder(tmp_path).__enter__()
    assert not files.is_locked(tmp_path)


def test_a_folder_is_removed_with_everything_in_it(tmp_path):
    folder = tmp_path / "run"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").touch()
    (folder / "away").symlink_to(tmp_path)
    (folder / "run.sqlite").touch()
    files.remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_where_open_files_are_not_deleted(tmp_path, monkeypatch):
    """Windows refuses to delete the lock file while it is open."""
    folder = tmp_path / "run"
    folder.mkdir()
    real, refused = type(folder).unlink, []

    def unlink(path, missing_ok=False):
        if files.is_locked(folder):
            refused.append(path.name)
            raise PermissionError(errno.EACCES, "in use", str(path))
        real(path, missing_ok)

    monkeypatch.setattr(type(folder), "unlink", unlink)
    files.remove(folder)
    assert refused == ["lock"]
    assert not folder.exists()
