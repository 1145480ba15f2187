"""Files that survive a power cut, with checksums; lock files, SQLite files, and files of users.

Everything that decides what may still be sent is kept in a `Database`: a file of SQLite that only
its owner can read, and in which a committed transaction stays. A rollback journal is used and not a
write-ahead log: a damaged log is cut off in silence at the first damaged page, and the file would
then state less than was sent.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import lock_descriptor

from randquant._internal import validate
from randquant._internal.formatting import to_json

if sys.platform == "darwin":
    import fcntl


# Files whose bytes and names are on the disk itself, as far as the system can promise it.

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
"""Errors of file systems that lack an operation, such as some on a network."""


_OPEN_MODE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags of `os.open`, on systems that have them: it follows no link and waits for no pipe."""


def opener(path: str | Path, flags: int, mode: int = 0o666) -> int:
    """Open a regular file, for `open(..., opener=opener)`.

    Raises:
        OSError: the name is that of a symbolic link, a pipe, a device or a folder.
    """
    # Before opening, because to open some devices has an effect; and after it, because another
    # process may replace the file in between.
    with contextlib.suppress(FileNotFoundError):
        check_regular(path, os.lstat(path))
    file = os.open(path, flags | _OPEN_MODE_FLAGS, mode)
    try:
        check_regular(path, os.fstat(file))
    except BaseException:
        os.close(file)
        raise
    return file


def read_regular(path: Path) -> bytes:
    # By `opener`: a pipe or device in the file's place is an OSError, and nothing to wait for.
    with open(path, "rb", opener=opener) as file:
        return file.read()


def exists(path: Path) -> bool:
    """Return whether there is a file of that name; OSError if this cannot be told.

    `Path.exists` and `os.path.lexists` say no whatever the error: a disk that does not answer for a
    moment would make a new file replace the old one.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_one_name(path: Path, status: os.stat_result) -> None:
    if (links := status.st_nlink) > 1:
        raise OSError(
            f"Expected {path} to be a file with one name, got {links} hard links: remove the "
            "others."
        )


def check_private(path: Path, status: os.stat_result) -> None:
    # Windows has no such mode: there the permissions of the folder decide.
    if os.name != "nt" and (mode := stat.S_IMODE(status.st_mode)) & 0o077:
        raise OSError(
            f"Expected {path} to be a file for its owner alone, got mode {mode:o}: others may have "
            f"read it; if not, set chmod 600."
        )


def check_regular(path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        folder = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else folder
        raise OSError(f"Expected {path} to be a regular file, got {kind}: use another name.")


def flush(file: int) -> None:
    """Write an open file's content to the disk, so that it survives a power cut.

    On macOS `fsync` leaves data in the disk's own cache, which a power cut empties.

    Raises:
        OSError: the disk reports an error.
    """
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            # A file system without it: `fsync` is the best that is left.
    os.fsync(file)


def sync_folder(folder: Path) -> None:
    """Write the names in a folder to the disk: files that were created, renamed or deleted there.

    Windows cannot open a folder for this; its file system journals names itself.

    Raises:
        OSError: the disk reports an error.
    """
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flush(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder, and missing folders above it, so that they survive a power cut.

    Guarantees:
        The folder's name is on the disk even if another process created it and was killed before it
        flushed the name.

    Raises:
        OSError: it cannot be created, or the disk reports an error.
    """
    if folder.is_dir():
        with contextlib.suppress(PermissionError):  # of a folder above that is not ours to read
            sync_folder(folder.parent)
        return
    # From the top: a name is on the disk before anything is written below it.
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def write_atomic(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write `data` to `path` atomically: a reader sees either the old file or the whole new one.

    Args:
        path: the file.
        data: its new content.
        private: whether only this user may read it.

    Guarantees:
        The written file survives a power failure. If writing fails, the old file is unchanged and
        no other file is left behind. Symbolic links are not followed.

    Raises:
        OSError: it cannot be written; the error names `path`.
    """
    temporary = path.with_name(path.name + ".partial")
    mode = 0o600 if private else 0o666
    with naming(path):
        temporary.unlink(missing_ok=True)  # left by a killed process, or a planted link
        try:
            # Content first, then the name, then the folder: after a power cut at any point the name
            # has a whole file, the old one or the new one.
            with open(temporary, "xb", opener=functools.partial(opener, mode=mode)) as file:
                file.write(data)
                file.flush()
                flush(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    # Adds the file's name to errors of writing it, which name the temporary file or none.
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"Expected an existing folder to write {path.name} in, got {path.parent}: create it."
        ) from error
    except IsADirectoryError as error:
        raise IsADirectoryError(
            f"Expected to write a file {path}, got a folder of that name: choose another."
        ) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, record: Any) -> None:
    text = json.dumps(to_json(record), indent=2, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


# Lock files, held by one process at a time, on every system that has file locks.

LOCK_NAME = "lock"
"""Name of the lock file in a run's folder."""

POLL_SECONDS = 0.005
"""Time between two attempts to get a lock that another process holds. Half of it would double the
attempts, which are 200 a second; twice of it would let a user wait 5 ms longer."""

PROBE_SECONDS = 0.05
"""Time for which a lock may be busy because `is_locked` probes it, which takes microseconds. A lock
that is busy for longer belongs to a run. With half of it a slow probe may look like a run; with
twice of it, a folder in use is reported 50 ms later."""


@contextlib.contextmanager
def exclusive(path: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Hold a lock file; the operating system releases it when the process ends, however it ends.

    Args:
        path: the lock file.
        wait: seconds for which another process may hold it.

    Raises:
        BlockingIOError: another process holds it for longer.
        PermissionError: the file cannot be written.
        OSError: the file system has no locks. The existence of a file is no substitute: it would
            outlast a process that is killed.
    """
    file = _acquired(path, time.monotonic() + max(wait, PROBE_SECONDS))
    with file:
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock of the run in a folder; nothing is written.

    Raises:
        OSError: the lock file cannot be read, or the file system has no locks.
    """
    deadline = time.monotonic() + PROBE_SECONDS
    try:
        with open(path / LOCK_NAME, "rb", opener=opener) as lock:
            # It may be busy only because another process probes it too.
            while not _try_lock(lock, path / LOCK_NAME):
                if time.monotonic() > deadline:
                    return True
                time.sleep(POLL_SECONDS)
    except FileNotFoundError:
        pass
    return False


@contextlib.contextmanager
def folder(path: Path) -> Iterator[None]:
    """Lock the run in a folder for this process.

    Raises:
        BlockingIOError: another process holds the lock.
        PermissionError: the folder cannot be written.
        OSError: the file system has no locks.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path / LOCK_NAME))
        except BlockingIOError:
            raise BlockingIOError(
                f"Expected {path} to be free, but another process is training it: wait for it "
                "or choose another folder."
            ) from None
        yield


def remove(path: Path) -> None:
    """Delete a folder with the run in it, which no other process may be training.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: as in `folder`, or a file cannot be deleted.
    """
    with folder(path):
        # The lock file goes last: until then no other process can begin a run here.
        for entry in path.iterdir():
            if entry.name == LOCK_NAME:
                continue
            # A link is deleted as a link: what it points to is not part of the run.
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        with contextlib.suppress(PermissionError):  # Windows deletes no file that is open
            (path / LOCK_NAME).unlink()
    (path / LOCK_NAME).unlink(missing_ok=True)
    path.rmdir()


def _acquired(path: Path, deadline: float) -> BinaryIO:
    while True:
        file = _opened(path)
        try:
            if _try_lock(file, path):
                # `remove` may have deleted the file since it was opened: then the lock is worthless
                # and the file is opened again.
                if _is_current(file, path):
                    return file
            elif time.monotonic() > deadline:
                raise BlockingIOError(
                    f"Expected {path} to be free, but another process holds it: wait for it."
                )
            else:
                time.sleep(POLL_SECONDS)
        except BaseException:
            file.close()
            raise
        file.close()


def _opened(path: Path) -> BinaryIO:
    # Append mode creates the file if it is missing and changes nothing in it.
    try:
        return open(path, "ab", opener=opener)
    except OSError as error:
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise PermissionError(
                f"Expected a folder that can be written, got {path.parent}: change its "
                "permissions, or choose another."
            ) from error
        raise


def _try_lock(file: BinaryIO, path: Path) -> bool:
    try:
        return lock_descriptor(file.fileno(), blocking=False)
    except OSError as error:
        raise OSError(
            f"Expected a file system with locks under {path.parent}, got {error.strerror!r}: "
            "choose a folder on a local disk."
        ) from error


def _is_current(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# Reading of files that a user names.

TOO_DEEP = "it is nested too deeply"

_LONG_KEY = re.compile(
    r"""(?<![\w"'\\-])(?:(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')[ \t]*\.[ \t]*){64}"""
)
"""A dotted key of more than 64 parts, which may be quoted: `tomllib` needs memory in the square of
their number, so a hostile file could exhaust it."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; ValueError if it is not TOML, or is nested too deeply."""
    if _LONG_KEY.search(text):  # before tomllib sees it
        raise ValueError(TOO_DEEP)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def read_text(path: Path, what: str, advice: str = "check its name") -> str:
    """Return the text of a file.

    Args:
        path: the file.
        what: the expected content, with its article, as in "a channel".
        advice: what to do if the file does not exist.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError, OSError: it cannot be read.
        ValueError: it is not a text in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"Expected {what} in {path}, got no text: it is another file.") from None
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(f"Expected {what} in {path}, got no such file: {advice}.") from None
    except IsADirectoryError:
        raise IsADirectoryError(f"Expected {what} in {path}, got a folder: {advice}.") from None
    except PermissionError:
        raise PermissionError(f"Expected {what} in {path}, got no permission to read it.") from None


# Files of SQLite.

LOCK_TIMEOUT_SECONDS = 60.0
"""Longest wait for another process's transaction, which takes far less. With twice of it, requests
would wait longer in vain for a process that hangs; half of it would do on all but slow disks."""

PARTIAL = ".partial"
"""End of the name of a file that is not whole yet."""

# Each protects against a machine that loses power, or against somebody who gets the disk.
DATABASE_SETTINGS = (
    "PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = EXTRA",  # on the disk when COMMIT returns, the folder's names included
    "PRAGMA fullfsync = ON",  # on macOS
    "PRAGMA temp_store = MEMORY",
)


@dataclass(frozen=True, slots=True)
class Database:
    """A file of SQLite, which several processes may share.

    Attributes:
        path: the file.
        tables: the statements that create its tables.
        version: of the tables. A file of another version is not read: what it counts might mean
            something else.
        content: a noun with its article for the file, for messages.
        keeps_deleted: True if deleted content may stay on the disk until its place is used again,
            which saves writing it over. False where a key is replaced.
    """

    path: Path
    tables: Sequence[str]
    version: int
    content: str
    keeps_deleted: bool = False

    def create(self) -> None:
        """Create the file and its tables, unless there is one.

        Raises:
            OSError: the file cannot be written, is not a regular file, has a second name, is open
                to other users, is damaged, or its folder does not exist.
        """
        if not exists(self.path):
            # Without the lock another process might replace a file that counts something by now.
            lock = self.path.with_name(self.path.name + ".lock")
            with exclusive(lock, wait=LOCK_TIMEOUT_SECONDS):
                if not exists(self.path):
                    self.create_whole(lambda _: None)
        with self.transaction():
            pass

    def create_whole(self, fill: Callable[[sqlite3.Connection], object]) -> None:
        """Create the file with its first content; if this is interrupted, there is no file.

        A file of its name was whole once: an empty one is damaged, and not taken for a new one.

        Args:
            fill: writes the content.
        """
        new = replace(self, path=self.path.with_name(self.path.name + PARTIAL))
        # Left by processes that were killed. SQLite would take the pages of an old file's journal
        # into the new file.
        for left in (new.path, new.journal, self.journal):
            left.unlink(missing_ok=True)
        # Created before SQLite opens it, which would let others read it: there are keys in it.
        with open(new.path, "xb", opener=functools.partial(opener, mode=0o600)):
            pass
        with new.transaction(new=True) as database:
            fill(database)
        os.replace(new.path, self.path)
        sync_folder(self.path.parent)

    @property
    def journal(self) -> Path:
        # SQLite keeps in it what a transaction has changed, until the transaction ends.
        return self.path.with_name(self.path.name + "-journal")

    @contextlib.contextmanager
    def transaction(self, *, new: bool = False) -> Iterator[sqlite3.Connection]:
        """Read and write as one step; after an error nothing is changed.

        Args:
            new: True if the file is empty, and its tables are to be created.

        Guarantees:
            What was written is on the disk when the context ends, and survives a loss of power.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read or written, or is damaged.
        """
        with self._connected() as database:
            # IMMEDIATE locks the file before anything is read, so that no other process can change
            # what a decision rests on.
            database.execute("BEGIN IMMEDIATE")
            if new:
                for table in self.tables:
                    database.execute(table)
                database.execute(f"PRAGMA user_version = {self.version}")
            self._check_version(database)
            yield database
            database.execute("COMMIT")  # closing without it rolls back

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Read the file as it is at one moment, while others may write to it.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: it cannot be read, or is damaged.
        """
        with self._connected() as database:
            database.execute("BEGIN")
            self._check_version(database)
            yield database

    def _check_version(self, database: sqlite3.Connection) -> None:
        if (version := _version(database)) != self.version:
            raise OSError(
                f"Expected version {self.version} of {self.content} in {self.path}, got {version}: "
                "use the version of randquant that wrote it, or restore the file from a copy."
            )
        # Nothing but the tables: views and triggers are programmes, which SQLite would run.
        statements = database.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"
        ).fetchall()
        if sorted(sql for (sql,) in statements) != sorted(self.tables):
            raise OSError(
                f"Expected the tables of {self.content} in {self.path}, {len(self.tables)} "
                f"statements, got {len(statements)} that are not the same."
            )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        self._check_file()
        address = f"{self.path.absolute().as_uri()}?mode=rw"  # `rw` creates nothing
        try:
            with contextlib.closing(
                sqlite3.connect(
                    address, timeout=LOCK_TIMEOUT_SECONDS, isolation_level=None, uri=True
                )
            ) as database:
                # SQLite's own error would show the text that it cannot decode, which may be a key.
                database.text_factory = lambda text: text.decode(errors="replace")
                # Set anew each time: settings are of the connection, and not of the file.
                erase = "OFF" if self.keeps_deleted else "ON"
                for setting in (*DATABASE_SETTINGS, f"PRAGMA secure_delete = {erase}"):
                    database.execute(setting)
                yield database
        except sqlite3.Error as error:
            raise OSError(
                f"Expected {self.content} that can be read and written in {self.path}, but: "
                f"{error}."
            ) from error

    def _check_file(self) -> None:
        # SQLite follows links, and waits for pipes. The file is not opened for this: to close it
        # would release the locks that other threads of this process hold on it.
        status = os.lstat(self.path)
        check_regular(self.path, status)
        check_private(self.path, status)
        check_one_name(self.path, status)
        with contextlib.suppress(FileNotFoundError):
            check_regular(self.journal, os.lstat(self.journal))


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    return version


# JSON objects with a checksum of their content, so that a changed file is detected.
#
# A checksum detects damage and manual edits. It is not a signature: anyone can compute it.

CHECKSUM = "checksum"


def seal(record: Any, before: str = "") -> dict[str, Any]:
    """Return a record as a JSON object with a checksum as its last field.

    Args:
        record: a dataclass or mapping that `formatting.to_json` turns into a JSON object.
        before: the previous record's checksum, which is part of this one: records form a chain, in
            which a missing, repeated or moved record is detected.

    Example:
        >>> seal({"epsilon": 1.5})
        {'epsilon': 1.5, 'checksum': 'c72970e599586e0d136390c5548596d6'}
    """
    data = to_json(record)
    return {**data, CHECKSUM: _checksum(data, before)}


def unseal(text: bytes | str, before: str = "") -> tuple[dict[str, Any], str]:
    """Invert `seal`, from the object's JSON text; return (record, checksum).

    Guarantees:
        A text whose content differs from the sealed record, or that followed another record, is
        refused; white space and the order of fields do not matter.

    Raises:
        ValueError: it is not a JSON object, has no checksum, or its checksum does not match.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or CHECKSUM not in data:
            raise ValueError("it is not a JSON object with a checksum")
        checksum = data.pop(CHECKSUM)  # it covers all other fields
        if checksum != _checksum(data, before):
            raise ValueError("its checksum does not match its content, so it was changed")
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error).rstrip(".")) from None
    return data, checksum


def write(path: Path, record: Any, before: str = "") -> None:
    write_json(path, seal(record, before))


def read(path: Path, advice: str, before: str = "") -> dict[str, Any]:
    """Return the record in a sealed file.

    Args:
        path: the file.
        advice: what to do if it was changed, after "Expected … as it was written, but: ….".
        before: the previous record's checksum, as passed to `seal`.

    Raises:
        ValueError: the file was changed.
        OSError: it cannot be read.
    """
    try:
        return unseal(read_regular(path), before)[0]
    except ValueError as error:
        raise ValueError(f"Expected {path} as it was written, but: {error}. {advice}") from None


# Arrays of numbers as bytes: the length of a head, the head, the arrays, each in its own bytes.

HASH_BYTES = 32
MAX_ARRAY_DIMENSIONS = 64
"""Largest number of dimensions of NumPy's arrays, and so of an array that was written."""

DTYPE = re.compile(r"[<>|][biuf][0-9]{1,2}")


def pack_arrays(record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return a record of JSON data and arrays of numbers by name as bytes, with their checksum.

    Raises:
        ValueError: an array is of something else, which could not be read again.
    """
    for name, array in arrays.items():
        if not DTYPE.fullmatch(array.dtype.str):
            raise ValueError(f"Expected arrays of numbers, got {name!r} of {array.dtype}.")
    fields = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    head = json.dumps({"record": record, "arrays": fields}).encode()
    parts = [len(head).to_bytes(8, "little"), head, *(a.tobytes() for a in arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([digest.digest(), *parts])


def unpack_arrays(content: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Invert `pack_arrays`: return (record, arrays).

    Raises:
        ValueError: the content is damaged.
    """
    body = memoryview(content)[HASH_BYTES:]
    if content[:HASH_BYTES] != hashlib.sha256(body).digest():
        raise ValueError("it is damaged")
    try:
        return _unpacked(body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it was not written by this package: {error}") from None


def _unpacked(body: memoryview) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    start = 8 + int.from_bytes(body[:8], "little")
    head: dict[str, Any] = json.loads(bytes(body[8:start]))
    arrays = {}
    for name, dtype, shape in head["arrays"]:
        if not (isinstance(name, str) and DTYPE.fullmatch(dtype)) or name in arrays:
            raise ValueError(f"{name!r} is not an array of numbers, or comes twice")
        if len(shape) > MAX_ARRAY_DIMENSIONS:  # before they are multiplied
            raise ValueError(f"{name!r} has {len(shape)} sides")
        sides = [validate.whole("side", side, low=0, high=len(body)) for side in shape]
        size = math.prod(sides) * np.dtype(dtype).itemsize
        if size > len(body) - start:  # before memory is taken for it
            raise ValueError("its arrays end too soon")
        arrays[name] = np.ndarray(sides, dtype, bytearray(body[start : start + size]))
        start += size
    if start != len(body) or not isinstance(head["record"], dict):
        raise ValueError("it has other bytes after its arrays, or no record")
    return head["record"], arrays


def _checksum(data: dict[str, Any], before: str) -> str:
    # 128 bits: enough against accidents, which is all a checksum is for.
    text = json.dumps(data, sort_keys=True, allow_nan=False)
    return hashlib.sha256((before + text).encode()).hexdigest()[:32]
