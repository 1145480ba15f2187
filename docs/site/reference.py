"""Pages of the API reference: one for every name that a face exports, by room.

A face is a module with `__all__`, mostly an `__init__.py`. A name is documented once, under its
shortest address: `randquant.certify` before `randquant.mechanisms.rqm`. What the guides import from
elsewhere has its page too. The pages are written to docs/api, which is not committed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

ROOMS = (
    "channels", "privacy", "secure_sums", "mechanisms", "aggregation", "audit", "planning",
    "statistics", "rounds", "local_training", "training", "integrations", "reports", "cli",
    "_internal",
)  # fmt: skip

KINDS = {"autoclass": "class", "data": "constant"}
"""What the file names of classes and constants end in, where a function has the same name."""


@dataclass(frozen=True, slots=True)
class Documented:
    """A public name: its shortest address, and the room where it is defined."""

    address: str
    room: str
    value: Any

    @property
    def shown(self) -> str:
        """How code writes it after `import randquant as rq`."""
        return re.sub(r"^randquant\.(?=\w+$)", "rq.", self.address)

    @property
    def directive(self) -> str:
        """The kind of thing it is, for autodoc."""
        if isinstance(self.value, ModuleType):
            return "automodule"
        if inspect.isclass(self.value):
            return "autoexception" if issubclass(self.value, Exception) else "autoclass"
        return "autofunction" if callable(self.value) else "data"

    @property
    def summary(self) -> str:
        """First line of its docstring."""
        text = self.about if self.directive == "data" else inspect.getdoc(self.value) or ""
        return text.partition("\n")[0]

    @property
    def about(self) -> str:
        """Docstring of a constant: the string that follows it where it is defined."""
        face, _, name = self.address.rpartition(".")
        tree = ast.parse(Path(importlib.import_module(face).__file__ or "").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                return Documented(f"{node.module}.{name}", self.room, self.value).about
        for node, following in pairwise(tree.body):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(following, ast.Expr):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if ast.unparse(target) == name:
                    return inspect.cleandoc(ast.literal_eval(following.value))
        return ""


def faces(root: Path) -> list[str]:
    """Modules that export names, from the package's own face to the deepest."""
    package = root / "src" / "randquant"
    found = []
    modules = [path for path in package.glob("[!_]*/[!_]*.py") if path.parent.name != "_internal"]
    for path in [*package.rglob("__init__.py"), package / "flower.py", *modules]:
        parts = path.relative_to(root / "src").with_suffix("").parts
        if any(isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
               for n in ast.parse(path.read_text()).body):  # fmt: skip
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return sorted(found, key=lambda name: (name.count("."), name))


def imported_by_guides(root: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that the Markdown pages import from the package."""
    found = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for module, names in re.findall(
            r"^from (randquant[\w.]*) import ([\w, ]+)$", path.read_text(), flags=re.MULTILINE
        ):
            found += [(module, each.split(" as ")[0].strip()) for each in names.split(",")]
    return found


def documented(root: Path) -> list[Documented]:
    """Every public name, once."""
    wanted = [
        (face, name) for face in faces(root) for name in importlib.import_module(face).__all__
    ]
    seen: dict[int, Documented] = {}
    for module, name in [*wanted, *imported_by_guides(root)]:
        value = getattr(importlib.import_module(module), name, None)
        if value is None:
            value = importlib.import_module(f"{module}.{name}")
        if id(value) not in seen:
            home = getattr(value, "__module__", None) or getattr(value, "__name__", module)
            home = str(home) if str(home).startswith("randquant.") else f"{module}._internal"
            room = home.split(".")[1]
            seen[id(value)] = Documented(f"{module}.{name}", room, value)
    return sorted(seen.values(), key=lambda each: each.shown.lower())


def rooms(root: Path) -> list[str]:
    """Rooms that have public names, from left to right."""
    return sorted({each.room for each in documented(root)}, key=ROOMS.index)


def files(names: list[Documented]) -> dict[str, Documented]:
    """File name of each page; names that differ in case only get different files everywhere."""
    found: dict[str, Documented] = {}
    lower = [each.address.lower() for each in names]
    for each in names:
        twice = lower.count(each.address.lower()) > 1 and each.directive in KINDS
        found[f"{each.address}-{KINDS[each.directive]}" if twice else each.address] = each
    return found


def write(root: Path) -> None:
    """Write the pages of all rooms and names to docs/api; those of names that are gone go."""
    folder = root / "docs" / "api"
    folder.mkdir(exist_ok=True)
    pages = {name: _page(each) for name, each in files(documented(root)).items()}
    for room in rooms(root):
        pages[room] = _room(room, root)
    for path in folder.glob("*.rst"):
        if path.stem not in pages:
            path.unlink()
    for name, text in pages.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"


def _page(each: Documented) -> str:
    if each.directive == "automodule" and not hasattr(each.value, "__all__"):
        body = f".. automodule:: {each.value.__name__}\n"
    elif each.directive == "automodule":
        names = "\n".join(f"- :py:obj:`{each.value.__name__}.{n}`" for n in each.value.__all__)
        body = f".. automodule:: {each.value.__name__}\n   :no-members:\n\n{names}\n"
    elif each.directive == "data":
        value = repr(each.value)
        shown = f"   :value: {value}\n" if len(value) < 80 else ""
        body = f".. py:data:: {each.address}\n{shown}\n   {each.about}\n"
    else:
        body = f".. {each.directive}:: {each.address}\n"
    return _title(each.shown) + body


def _room(room: str, root: Path) -> str:
    here = {k: v for k, v in files(documented(root)).items() if v.room == room}
    rows = "".join(
        f"   * - :doc:`{each.shown} <{name}>`\n     - {each.summary}\n"
        for name, each in here.items()
    )
    short = {name: each.address.rpartition(".")[2] for name, each in here.items()}
    entries = "".join(f"   {shown} <{name}>\n" for name, shown in short.items())
    module = importlib.import_module("randquant" if room == "_internal" else f"randquant.{room}")
    purpose = inspect.getdoc(module)
    return (
        _title(room.replace("_internal", "package"))
        + f"{purpose}\n\n.. list-table::\n   :widths: 35 65\n\n{rows}\n"
        + f".. toctree::\n   :hidden:\n\n{entries}"
    )
