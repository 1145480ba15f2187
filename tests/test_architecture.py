"""The shape of the house: rooms, direction of imports, faces, names, sizes; tests mirror it."""

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "randquant"
TESTS = Path(__file__).parent
ROOMS = (
    ("_internal",), ("channels",), ("privacy", "secure_sums"), ("mechanisms",), ("aggregation",),
    ("audit", "planning", "statistics"), ("rounds",), ("local_training",), ("training",),
    ("integrations",), ("reports",), ("cli",),
)  # fmt: skip
"""From left to right; rooms in one place are siblings."""

PLACE = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}
FRONT = {"__init__.py", "__main__.py", "flower.py", "py.typed"}
"""The package's face, its command, and the one short name kept for users."""

EXTRAS = {
    "torch": {"local_training", "training", "cli"},
    "sklearn": set(),
    "kymatio": set(),
    "tensorboard": set(),
    "optuna": set(),
    "rich": {"_internal.progress"},
    "altair": {"reports.charts"},
    "vl_convert": {"reports.charts"},
    "flwr": {"integrations.flower"},
    "ray": {"integrations.flower.simulation"},
    "nvflare": {"integrations.nvflare"},
    "nacl": {"secure_sums.secagg"},
    "dp_accounting": set(),
    "matplotlib": set(),
    "Crypto": {"secure_sums.helper.circuits"},
}
"""Where packages that not every installation has may be imported: rooms, packages or modules."""


def dotted(path: Path) -> str:
    """Name of a module without the package: `privacy.divergence`; a package's for its face."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {dotted(path): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in FILES.items()}
INSIDE = [name for name in FILES if name.split(".")[0] in PLACE]


@functools.cache
def imported(name: str) -> set[str]:
    """Full names of everything that a module imports, `from a import b` as a.b."""
    names = set()
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(name: str) -> set[str]:
    """Modules of randquant that a module imports; the face is the empty name."""
    found = set()
    for each in imported(name):
        if each == "randquant" or each.startswith("randquant."):
            inner = each.removeprefix("randquant").lstrip(".")
            found.add(inner if inner in FILES else inner.rpartition(".")[0])
    return found - {name}


def test_the_package_has_its_rooms_and_nothing_else():
    entries = {path.name for path in ROOT.iterdir()} - {"__pycache__"}
    assert entries == {*PLACE, *FRONT}
    assert len(PLACE) == 15


def test_imports_point_left():
    for name in INSIDE:
        room = name.split(".")[0]
        for other in own(name):
            assert other, f"{name} imports the package's face: import where it is defined"
            theirs = other.split(".")[0]
            assert theirs == room or PLACE[theirs] < PLACE[room], f"{name} imports {other}"


def test_there_is_no_cycle_of_modules():
    graph = {name: own(name) for name in FILES}
    assert list(TopologicalSorter(graph).static_order())


def test_faces_only_re_export():
    """A docstring, imports, `__all__`; or imports for type checkers, and `lazily`."""
    faces = [name for name, path in FILES.items() if path.stem == "__init__"]
    for name, node in ((face, node) for face in faces for node in TREES[face].body):
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        lazy = ast.unparse(node) == "lazily(__name__)"
        checked = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body if checked else [node]:
            plain = isinstance(each, ast.Import | ast.ImportFrom)
            assert plain or docstring or exported or lazy, f"{name}: {ast.unparse(each)[:60]}"


@pytest.mark.parametrize("package", EXTRAS)
def test_extras_stay_where_they_belong(package):
    users = {
        name for name in INSIDE if any(each.split(".")[0] == package for each in imported(name))
    }
    homes = EXTRAS[package]
    strangers = {u for u in users if not any(u == h or u.startswith(h + ".") for h in homes)}
    assert not strangers
    assert len(homes) <= len(users)


def test_a_class_name_is_used_once():
    homes: dict[str, list[str]] = {}
    for name, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_modules_and_functions_stay_small():
    for name, path in FILES.items():
        lines = path.read_text().count("\n")
        assert lines <= 800, f"{name} has {lines} lines"
        for node in ast.walk(TREES[name]):
            if isinstance(node, ast.FunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                length = node.end_lineno - node.lineno + 1 - docstring.count("\n")
                assert length <= 60, f"{name}: {node.name} has {length} lines"


HOUSE = {
    "architecture", "benchmarks", "citations", "docs", "flips", "fuzz", "golden_vectors",
    "kills", "records", "refusals", "releases", "settings", "site", "tolerances", "values", "wheel",
}  # fmt: skip
"""Tests about the whole: the code's shape, the docs, the tests themselves."""


def test_tests_mirror_the_rooms():
    """Tests of a room are in tests/ROOM, and import its face."""
    assert {path.stem[5:] for path in TESTS.glob("test_*.py")} == HOUSE
    assert {path.parent.name for path in TESTS.glob("*/test_*.py")} == set(PLACE)


def test_a_command_is_one_entry_of_one_file():
    """No other file of the command line knows which commands there are."""
    commands: dict[str, str] = {}
    for name in (name for name in INSIDE if name.startswith("cli.")):
        stated = re.findall(r"^`randquant (\w+)`: ", ast.get_docstring(TREES[name]) or "", re.M)
        for node in TREES[name].body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS":
                assert isinstance(node.value, ast.Dict)
                entries = [ast.literal_eval(key) for key in node.value.keys if key is not None]
                assert entries == stated
                assert not commands.keys() & {*entries}
                commands |= dict.fromkeys(entries, name)
    assert {"train", "certify", "plan", "runs"} <= commands.keys()
    files = {*commands.values()}
    for name in (name for name in INSIDE if name.startswith("cli") and name not in files):
        assert not own(name) & files, name


def test_the_command_line_is_parsed_in_one_place():
    others = re.compile(r"^\s*(?:from|import) (?:argparse|optparse|getopt|click|typer)\b", re.M)
    texts = {path.name: path.read_text() for path in FILES.values()}
    assert not [name for name, text in texts.items() if others.search(text)]
    assert [name for name, text in texts.items() if "sys.argv" in text] == ["main.py"]


def test_nobody_asks_for_the_class_of_a_mechanism_or_a_release():
    """But errors that name it, the rule that mechanisms are final, and runs bound to a class."""
    asks = re.compile(
        r"\b(?:type\(\w*(?:mechanism|release)\b|(?:is|has|get)\w+\([\w.]*(?:mechanism|release)\b,"
        r"|is(?:instance|subclass)\([^()]*,[^()]*(?:Mechanism|Release|Sampled|Gaussian|SGD))[^)]*\)"
    )
    found = {call for path in FILES.values() for call in asks.findall(path.read_text())}
    assert found <= {
        "issubclass(parent, MechanismDefaults)", "isinstance(release, Channel)",
        "type(mechanism)", "type(release)",
    }  # fmt: skip


def test_no_function_has_its_modules_name():
    """A reader, and the API reference, can tell a module from a function."""
    for name, tree in TREES.items():
        here = name.rpartition(".")[2]
        defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert here not in defined or name in ALONE, name


ALONE = {"cli.main"}
"""Entry points and inner functions, which no face exports."""
