"""Power cuts: which states of the disk a sequence of writes may leave behind, by POSIX's rules.

What POSIX promises is little. Bytes that were written are on the disk once the file was flushed
(`fsync`); before that any of the writes may be, in any part, or garbage in its place. A name that
was created, replaced or deleted is on the disk once its folder was flushed; before that each such
change may or may not be. What SQLite does is seen by a file system of its own (`apsw.VFS`) between
it and the real one.
"""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import apsw
import pytest


class Trace:
    """Records writes, flushes and renames below a folder while they happen."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.events = root, []
        self._opened: dict[int, tuple[str, object]] = {}
        real = {name: getattr(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "open")}

        def followed(name, event):
            def call(*arguments, **options):
                result = real[name](*arguments, **options)
                event(*arguments)
                return result

            monkeypatch.setattr(os, name, call)

        followed("fsync", lambda file: self._add("fsync", f"/proc/self/fd/{file}", link=True))
        followed("replace", lambda old, new: self._add("replace", old, self._name(new)))
        followed("mkdir", lambda path, *_: self._add("mkdir", path))
        followed("unlink", lambda path, *_: self._add("unlink", path))
        self._follow_open(monkeypatch)
        self._follow_sqlite(monkeypatch)

    def _follow_sqlite(self, monkeypatch):
        trace = self

        class File(apsw.VFSFile):
            def __init__(self, name, flags):
                self.path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
                new = not self.path.exists()
                super().__init__("", name, flags)
                if new:
                    trace._add("create", self.path)
                # SQLite's `unixSync` flushes the folder with the first flush of a new journal.
                self.folder = new and bool(flags[0] & apsw.SQLITE_OPEN_MAIN_JOURNAL)

            def xWrite(self, data, offset):
                super().xWrite(data, offset)
                trace._add("write", self.path, bytes(data), offset)

            def xTruncate(self, size):
                super().xTruncate(size)
                trace._add("truncate", self.path, size)

            def xSync(self, flags):
                super().xSync(flags)
                trace._add("fsync", self.path)
                if self.folder:
                    trace._add("fsync", self.path.parent)
                    self.folder = False

        class Files(apsw.VFS):
            def xOpen(self, name, flags):
                return File(name, flags)

            def xDelete(self, path, flush):
                super().xDelete(path, flush)
                trace._add("unlink", path)
                if flush:
                    trace._add("fsync", Path(path).parent)

        class Connection(apsw.Connection):
            text_factory: object = None  # as sqlite3's has

        self._files = Files("traced", "")
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
        monkeypatch.setattr(
            "randquant._internal.files.sqlite3.connect",
            lambda address, **_: Connection(address, flags=flags, vfs="traced"),
        )

    def _follow_open(self, monkeypatch):
        plain = builtins.open

        def opened(path, mode="r", *arguments, **options):
            file = plain(path, mode, *arguments, **options)
            if "x" not in mode or "b" not in mode:
                return file
            self._add("create", path)
            write = file.write

            class Followed:
                def __enter__(self):
                    return self

                def __exit__(self, *error):
                    file.close()

                def __getattr__(self, name):
                    return getattr(file, name)

                def write(_, data):
                    self._add("write", path, bytes(data))
                    return write(data)

            return Followed()

        monkeypatch.setattr("randquant._internal.files.open", opened, raising=False)

    def _name(self, path) -> str:
        return os.path.relpath(path, self.root)

    def _add(self, kind, path, *more, link=False):
        name = self._name(os.readlink(path) if link else path)
        if not name.startswith(".."):
            self.events.append((kind, name, *more))

    def note(self, what) -> None:
        """Record something of the test's own, such as an answer that was sent."""
        self.events.append(("note", what))


Change = tuple[int, bytes | None]
"""Bytes written at an offset, or None: the file was cut off there."""


def _contents(synced: bytes | None, changes: list[Change]) -> list[bytes]:
    """What a file may hold after a power cut: any of the changes since it was flushed, or not."""
    base = b"" if synced is None else synced
    parts = [changes[:n] for n in range(len(changes) + 1)]  # none, the first ones, all
    for n, (offset, data) in enumerate(changes):
        if data is None:
            parts.append([*changes[:n], *changes[n + 1 :]])
            continue
        half, last = len(data) // 2, len(data) - 1
        others = [None, data[:1], data[:half], data[:last], b"\0" * len(data),
                  data[:half] + b"\xff" * 9]  # fmt: skip
        for other in others:
            torn = [] if other is None else [(offset, other)]
            parts.append([*changes[:n], *torn, *changes[n + 1 :]])
    return list(dict.fromkeys(_changed(base, part) for part in parts))


def _changed(content: bytes, changes: Sequence[Change]) -> bytes:
    for offset, data in changes:
        if data is None:
            content = content[:offset]
        else:
            content = content.ljust(offset, b"\0")
            content = content[:offset] + data + content[offset + len(data) :]
    return content


class _Disk:
    """The model: names and contents that are in memory, and what of it is surely on the disk."""

    def __init__(self) -> None:
        self.memory: dict[str, int | str] = {}
        self.names: dict[str, int | str] = {}
        self.pending: list[tuple[str, dict[str, int | str | None]]] = []
        self.changes: dict[int, list[Change]] = {}
        self.synced: dict[int, bytes | None] = {}

    def change(self, **entries: int | str | None) -> None:
        folder = os.path.dirname(next(iter(entries)))
        self.pending.append((folder, entries))
        _apply(self.memory, entries)

    def do(self, kind: str, name: str, *more: object) -> None:
        if kind == "create":
            if name in self.memory:  # truncated in place
                self.changes[self.memory[name]].append((0, None))  # type: ignore[index]
            else:
                number = len(self.changes)
                self.changes[number], self.synced[number] = [], None
                self.change(**{name: number})
        elif kind == "write":
            number = self.memory[name]
            offset = more[1] if len(more) > 1 else len(self._content(number))  # type: ignore[arg-type]
            self.changes[number].append((offset, more[0]))  # type: ignore[index, arg-type]
        elif kind == "truncate":
            self.changes[self.memory[name]].append((more[0], None))  # type: ignore[index, arg-type]
        elif kind == "mkdir":
            self.change(**{name: "folder"})
        elif kind == "unlink":
            self.change(**{name: None})
        elif kind == "replace":
            self.change(**{str(more[0]): self.memory[name], name: None})
        elif kind == "fsync" and isinstance(number := self.memory.get(name), int):
            self.synced[number], self.changes[number] = self._content(number), []
        elif kind == "fsync":
            folder = "" if name == "." else name
            for place, entries in self.pending:
                if place == folder:
                    _apply(self.names, entries)
            self.pending = [each for each in self.pending if each[0] != folder]

    def _content(self, number: int) -> bytes:
        return _changed(self.synced[number] or b"", self.changes[number])

    def states(self) -> Iterator[dict[str, bytes]]:
        """Every possible disk: files by name."""
        for chosen in itertools.product((True, False), repeat=len(self.pending)):
            names = dict(self.names)
            for (_, entries), there in zip(self.pending, chosen, strict=True):
                if there:
                    _apply(names, entries)
            folders = {name for name, what in names.items() if what == "folder"}
            files = {
                name: what
                for name, what in names.items()
                if isinstance(what, int) and all(str(p) in folders for p in Path(name).parents[:-1])
            }
            options = [_contents(self.synced[n], self.changes[n]) for n in files.values()]
            for contents in itertools.product(*options):
                yield dict(zip(files, contents, strict=True))


def _apply(names, entries):
    for name, what in entries.items():
        names.pop(name, None)
        if what is not None:
            names[name] = what


def reachable(events: list[tuple]) -> Iterator[tuple[list, dict[str, bytes]]]:
    """For every moment of a power cut: what was noted before it, and each state of the disk."""
    disk, noted, seen = _Disk(), [], set()
    for event in [("start", ""), *events]:
        if event[0] == "note":
            noted = [*noted, event[1]]
        else:
            disk.do(*event)
        for files in disk.states():
            state = (len(noted), frozenset(files.items()))
            if state not in seen:
                seen.add(state)
                yield noted, files


def restore(files: dict[str, bytes], folder: Path) -> Path:
    """Write a state of the disk into a new folder."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    return folder
