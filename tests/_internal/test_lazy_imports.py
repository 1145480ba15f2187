"""Faces that import a name when it is first used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import randquant
from randquant._internal import Face

ROOT = Path(randquant.__file__).parent
LAZY = [
    ".".join(["randquant", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if "\nlazily(__name__)" in path.read_text()
]


@pytest.mark.parametrize("name", LAZY)
def test_a_face_has_all_its_names(name):
    face = importlib.import_module(name)
    assert isinstance(face, Face)
    listed = set(getattr(face, "__all__", ()))
    assert listed <= set(dir(face))
    source = ast.parse(Path(str(face.__file__)).read_text())
    (block,) = (node for node in source.body if isinstance(node, ast.If))
    imports = [node for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    names = {a.asname or a.name: (str(n.module), a.name) for n in imports for a in n.names}
    eager = {a.name for n in source.body if isinstance(n, ast.ImportFrom) for a in n.names}
    assert names.keys() | eager >= listed
    for public, (home, own) in names.items():
        assert getattr(face, public) is getattr(importlib.import_module(home), own)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'mouse'"):
        _ = face.mouse


def test_a_room_does_not_take_the_place_of_a_public_name():
    """`randquant.audit` is a room and a function: whoever came first, users get the function."""
    code = (
        "import randquant, randquant.audit.attack; assert callable(randquant.audit); "
        "from randquant import *; assert callable(audit) and callable(plan)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
