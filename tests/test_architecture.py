"""The shape of the code: imports point down the list of ranks, modules stay small, names say."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "randquant"
RANKS = {
    "_validate": 0,
    "privacy": 1, "keys": 1,
    "channel": 2, "divergence": 2, "wire": 2, "blocks": 2, "locks": 2, "records": 2, "_bits": 2,
    "sealed": 2, "compress": 2, "probabilities": 2, "upload": 2, "moments": 2,
    "mechanisms": 3, "certify": 3, "geometry": 3, "channel_file": 3, "encode": 3, "design": 3,
    "curvature": 3, "vector": 3, "sums": 3,
    "composition": 4, "release": 4, "releases": 4,
    "amplification": 4, "sampling": 4, "account": 4, "aggregate": 4, "families": 4,
    "secagg": 4,
    "datasets": 5, "_idx": 5, "_cifar": 5, "_leaf": 5, "cohorts": 5, "events": 5, "ledger": 5,
    "features": 5, "optimizer": 5,
    "flower": 6, "models": 6, "learner": 6, "collect": 6, "federate": 6, "schedule": 6,
    "bench": 7, "report": 7, "_svg": 7, "_page": 7, "_table": 7, "_text": 7,
    "settings": 3, "_scatter": 7,
    "run_status": 7, "runs_page": 7, "sweep": 7, "tensorboard_log": 7,
    "run_folder": 7, "run_log": 7, "run_setup": 7, "run_page": 7,
    "runs": 7, "progress": 7, "compare": 7, "compare_page": 7, "reproduce": 7,
    "proportions": 7, "attacks": 7, "audit": 7,
    "deviation": 3,
    "calibrate": 5, "schemes": 5, "configured": 5, "limits": 5, "plan": 7,
    "reading": 8, "arguments": 8, "train_command": 8, "cli": 8,
    "option_texts": 8, "run_arguments": 8, "run_commands": 8, "sweep_command": 8,
    "reproduce_command": 8, "__main__": 9,
}  # fmt: skip
EXTRAS = {
    "torch": {
        "models",
        "learner",
        "collect",
        "runs",
        "bench",
        "encode",
        "features",
        "tensorboard_log",
    },
    "safetensors": {"run_folder"},
    "sklearn": {"datasets", "features"},
    "kymatio": {"features"},
    "rich": {"progress"},
    "triton": {"encode"},
    "flwr": {"flower"},
    "matplotlib": set(),
    "dp_accounting": {"events"},
    "attr": {"events"},
    "Crypto": set(),
    "nacl": {"secagg"},
    "optuna": {"sweep"},
    "tensorboard": set(),
}
FILES = sorted(ROOT.rglob("*.py"))


def module(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Full names of everything that a file imports, `from a import b` as a.b."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own(path: Path) -> set[str]:
    """Modules of randquant that a file imports."""
    parts = [name.split(".") for name in imported(path)]
    return {p[1] for p in parts if p[0] == "randquant" and len(p) > 1 and p[1] in RANKS}


def test_every_module_has_a_rank():
    assert {module(path) for path in FILES} - {"__init__"} == set(RANKS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_up_the_list(path):
    if module(path) == "__init__":
        return
    for name in own(path):
        assert RANKS[name] <= RANKS[module(path)], f"{path.name} imports {name}"


def test_there_is_no_cycle():
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if module(path) != "__init__":
            graph.setdefault(module(path), set()).update(own(path) - {module(path)})
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("package", EXTRAS)
def test_extras_stay_where_they_belong(package):
    users = {
        module(path)
        for path in FILES
        if any(name.split(".")[0] == package for name in imported(path))
    }
    assert users == EXTRAS[package]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_modules_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            length = node.end_lineno - node.lineno + 1 - docstring.count("\n")
            assert length <= 60, f"{node.name} has {length} lines"


def test_the_channel_stays_under_250_lines():
    assert (ROOT / "channel.py").read_text().count("\n") < 250
