"""Power cuts: which states of the disk a sequence of writes may leave behind, by POSIX's rules.

What POSIX promises is little. Bytes that were written are on the disk once the file was flushed
(`fsync`); before that any part of them may be, or garbage. A name that was created, replaced or
deleted is on the disk once its folder was flushed; before that each such change may or may not be.
"""

from __future__ import annotations

import builtins
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

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

        monkeypatch.setattr("randquant._internal.serialization.open", opened, raising=False)

    def _name(self, path) -> str:
        return os.path.relpath(path, self.root)

    def _add(self, kind, path, *more, link=False):
        name = self._name(os.readlink(path) if link else path)
        if not name.startswith(".."):
            self.events.append((kind, name, *more))

    def note(self, what) -> None:
        """Record something of the test's own, such as an answer that was sent."""
        self.events.append(("note", what))


def _contents(synced: bytes | None, written: bytes) -> list[bytes]:
    """What a file may hold after a power cut."""
    if synced == written:
        return [written]
    cuts = sorted({0, 1, len(written) // 2, max(len(written) - 1, 0), len(written)})
    garbage = [b"\0" * len(written), written[: len(written) // 2] + b"\xff" * 9]
    return [*(written[:cut] for cut in cuts), *garbage, *([] if synced is None else [synced])]


class _Disk:
    """The model: names and contents that are in memory, and what of it is surely on the disk."""

    def __init__(self) -> None:
        self.memory: dict[str, int | str] = {}
        self.names: dict[str, int | str] = {}
        self.pending: list[tuple[str, dict[str, int | str | None]]] = []
        self.written: dict[int, bytes] = {}
        self.synced: dict[int, bytes | None] = {}

    def change(self, **entries: int | str | None) -> None:
        folder = os.path.dirname(next(iter(entries)))
        self.pending.append((folder, entries))
        _apply(self.memory, entries)

    def do(self, kind: str, name: str, *more: object) -> None:
        if kind == "create":
            if name in self.memory:  # truncated in place
                self.written[self.memory[name]] = b""  # type: ignore[index]
            else:
                number = len(self.written)
                self.written[number], self.synced[number] = b"", None
                self.change(**{name: number})
        elif kind == "write":
            self.written[self.memory[name]] += more[0]  # type: ignore[index, operator]
        elif kind == "mkdir":
            self.change(**{name: "folder"})
        elif kind == "unlink":
            self.change(**{name: None})
        elif kind == "replace":
            self.change(**{str(more[0]): self.memory[name], name: None})
        elif kind == "fsync" and isinstance(number := self.memory.get(name), int):
            self.synced[number] = self.written[number]
        elif kind == "fsync":
            folder = "" if name == "." else name
            for place, entries in self.pending:
                if place == folder:
                    _apply(self.names, entries)
            self.pending = [each for each in self.pending if each[0] != folder]

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
            options = [_contents(self.synced[n], self.written[n]) for n in files.values()]
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
    return folder
