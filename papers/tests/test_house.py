"""The papers' package imports public names of randquant only, and is imported by nobody."""

import ast
import importlib
import sys
import tomllib
import types
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import randquant
import randquant_papers

SOURCE = Path(randquant_papers.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
HOME = Path(__file__).parents[1]


def is_module(name: str) -> bool:
    """Whether a dotted name of randquant is a module."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def strangers(text: str) -> list[str]:
    """What a source takes from randquant that no face of it lists in `__all__`."""
    found, modules, tree = [], {}, ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("randquant.")]
            modules |= {a.asname or a.name: a.name for a in node.names if a.name == "randquant"}
        elif (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] == "randquant"
        ):
            for alias in node.names:
                full, face = f"{node.module}.{alias.name}", importlib.import_module(node.module)
                if is_module(full) and hasattr(importlib.import_module(full), "__all__"):
                    modules[alias.asname or alias.name] = full
                elif alias.name not in getattr(face, "__all__", ()):
                    found.append(full)
                elif isinstance(exported := getattr(face, alias.name), types.ModuleType):
                    modules[alias.asname or alias.name] = exported.__name__
                if "._" in full:
                    found.append(full)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.attr not in importlib.import_module(module).__all__:
                found.append(f"{module}.{node.attr}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_only_public_names_are_imported(path):
    assert strangers(path.read_text()) == []


REFUSAL = "randquant-papers, as randquant_papers.rank."
"""The product's only words on this package: where a mechanism went that files may still name."""


def test_the_product_does_not_know_the_papers_package():
    for path in Path(randquant.__file__).parent.rglob("*"):
        if path.is_file() and path.suffix in (".py", ".html", ".js", ".css"):
            text = path.read_text()
            if path.as_posix().endswith("randquant/aggregation/registry.py"):
                assert text.count(REFUSAL) == 1
                text = text.replace(REFUSAL, "")
            assert "randquant_papers" not in text, path
            assert "randquant-papers" not in text, path


def test_the_two_distributions_fit():
    """One version; what is pinned lies in the ranges of users; every import is required."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert project["version"] == randquant.__version__
    required = {each.name: each for each in map(Requirement, project["dependencies"])}
    lines = (HOME.parent / "constraints.txt").read_text().splitlines()
    pinned = dict(line.lower().split("==") for line in lines if "==" in line and line[0] != "#")
    for name in required.keys() - {"randquant"}:
        assert required[name].specifier.contains(pinned[name]), name
    assert required["randquant"].extras == {"train"}
    imported = set()
    for node in (node for path in FILES for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    strangers = (
        imported - sys.stdlib_module_names - {"randquant_papers", "torch", "sklearn"}
    )  # `train`
    assert strangers == required.keys()
