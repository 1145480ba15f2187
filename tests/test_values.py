"""What is stated once, a certificate, a guarantee, an offer, is not changed afterwards."""

import ast
from pathlib import Path

import randquant as rq

SOURCE = Path(rq.__file__).parent
CHANGING = {
    "rounds/helper_service.py": {"_Share"},
    "mechanisms/design_programme.py": {"MeanError", "WorstVariance", "Tangents"},
}
"""Dataclasses that gather, count, or go from step to step."""


def changing(text: str) -> set[str]:
    """Names of the dataclasses of a source whose fields can be set."""
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list
        if "dataclass" in ast.unparse(decorator) and "frozen=True" not in ast.unparse(decorator)
    }


def test_values_cannot_be_changed():
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    found = {path: changing(text) for path, text in texts.items() if "@dataclass" in text}
    named = {path.relative_to(SOURCE).as_posix(): names for path, names in found.items() if names}
    assert named == CHANGING


def test_a_class_that_can_be_changed_is_found():
    for decorator in (
        "@dataclass",
        "@dataclass(slots=True)",
        "@dataclasses.dataclass(frozen=False)",
    ):
        assert changing(f"{decorator}\nclass A:\n    x: int\n") == {"A"}
    assert not changing("@dataclass(frozen=True, slots=True)\nclass A:\n    x: int\n")
