"""How much code reads arguments: libraries read, and each option is declared once.

Lines of code are counted, without docstrings, comments and blank lines. Argument code is

- *reading*: modules that call cyclopts, or msgspec's checks and schemas, and those that say what is
  wrong with what was given;
- *declaring*: the signatures of commands and their `COMMAND`, and annotated fields of records from
  which options are made.

The rest of a command is its work: it calls the library and says what came out.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import randquant as rq

SOURCE = Path(rq.__file__).parent
LIBRARIES = re.compile(r"^(?:from|import) cyclopts|\bmsgspec\.(?:convert|json\.schema)", re.M)
PICTURES = {"reports/figures.py"}  # reads specifications of charts
PARTS = {
    "training/config.py": "TrainConfig", "training/task.py": "Task", "training/local.py": "Local",
    "training/server.py": "Server", "planning/privacy.py": "Privacy",
}  # fmt: skip
RECORDS = {**PARTS, "cli/options.py": "Common"}
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER}  # fmt: skip


def code(path: Path) -> tuple[set[int], ast.Module]:
    """The numbers of the lines that have code, and the module."""
    text = path.read_text()
    module = ast.parse(text)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {
        line
        for token in tokens
        if token.type not in SKIPPED
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines, module


def declarations(module: ast.Module, record: str | None = None) -> Iterator[int]:
    """The lines of the signature of `run`, of COMMAND, and of a record's fields."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            yield from range(node.lineno, node.body[0].lineno)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMAND":
            yield from range(node.lineno, (node.end_lineno or 0) + 1)
        elif isinstance(node, ast.ClassDef) and node.name == record:
            yield from (each.lineno for each in node.body if isinstance(each, ast.AnnAssign))


def options(module: ast.Module, record: str | None = None) -> int:
    """How many parameters `run` has, or fields a record."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == "run":
            return len(node.args.posonlyargs + node.args.args + node.args.kwonlyargs)
        if isinstance(node, ast.ClassDef) and node.name == record:
            return sum(isinstance(each, ast.AnnAssign) for each in node.body)
    raise AssertionError("no declarations")


def reading() -> dict[str, int]:
    paths = [path for path in SOURCE.rglob("*.py") if LIBRARIES.search(path.read_text())]
    names = {path.relative_to(SOURCE).as_posix(): len(code(path)[0]) for path in sorted(paths)}
    return {name: lines for name, lines in names.items() if name not in PICTURES}


def declaring() -> dict[str, tuple[int, int]]:
    """Lines and options of every command and record."""
    paths = sorted(path.name for path in (SOURCE / "cli/commands").glob("[a-z]*.py"))
    found = {}
    for name, record in {**{f"cli/commands/{each}": None for each in paths}, **RECORDS}.items():
        lines, module = code(SOURCE / name)
        found[name] = len(lines & set(declarations(module, record))), options(module, record)
    return found


def test_reading_arguments_takes_a_few_hundred_lines():
    assert {"cli/options.py", "cli/wrong.py", "_internal/declared.py"} <= reading().keys()
    assert sum(reading().values()) <= 530, reading()


def test_an_option_is_declared_in_a_line():
    for name, (lines, count) in declaring().items():
        assert lines <= count + 12, f"{name}: {lines} lines for {count} options"
    assert sum(declaring()[name][1] for name in PARTS) > 45


def test_nothing_else_parses_a_command_line():
    others = re.compile(r"^\s*(?:from|import) (?:argparse|optparse|getopt|click|typer)\b", re.M)
    assert not [path for path in SOURCE.rglob("*.py") if others.search(path.read_text())]
    given = re.compile(r"\bsys\.argv\b")
    assert [p.name for p in SOURCE.rglob("*.py") if given.search(p.read_text())] == ["main.py"]
