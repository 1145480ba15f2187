"""Proof-critical code cites the propositions of docs/theory that its constants come from."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "randquant"
THEORY = ROOT / "docs" / "theory"
PATTERNS = (
    "privacy/divergence.py",
    "privacy/certificates/coordinate.py",
    "privacy/certificates/vector.py",
    "privacy/certificates/sum_*.py",
    "privacy/accounting/accountant.py",
    "privacy/accounting/sampling.py",
    "planning/calibration.py",
    "privacy/accounting/gaussian.py",
    "privacy/accounting/gaussian.py",
    "privacy/accounting/ratios.py",
    "privacy/accounting/releases.py",
    "privacy/accounting/composition.py",
    "privacy/accounting/privacy_loss.py",
)
CRITICAL = sorted(
    path for pattern in PATTERNS for path in SOURCE.glob(pattern) if path.stem != "__init__"
)
FEWEST = 8
"""Comments per 100 lines of code, at least."""

HEADING = re.compile(r"^### Proposition (\d+) \(.+\)$", re.MULTILINE)
CITATION = re.compile(
    r"theory/([\w-]+\.md), Propositions? (\d+)((?:(?:,| to| and) \d+)*)", re.ASCII
)


def propositions(page: Path) -> list[int]:
    return [int(number) for number in HEADING.findall(page.read_text())]


def comments(path: Path) -> dict[int, str]:
    """Line -> comment, without those that only speak to tools."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    found = {t.start[0]: t.string for t in tokens if t.type == tokenize.COMMENT}
    return {
        line: text for line, text in found.items() if not re.match(r"# (fmt|noqa|type|py)", text)
    }


def lines_of_code(path: Path) -> int:
    """Lines that are not blank, comments, or docstrings (those of constants included)."""
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    skipped |= {tokenize.COMMENT, tokenize.ENDMARKER}
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type not in skipped:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def prose(path: Path) -> str:
    """Comments and docstrings as running text: a citation may go over the end of a line."""
    return re.sub(r"\s*\n\s*(# ?)?", " ", path.read_text())


def citations(path: Path) -> list[tuple[str, int]]:
    cited = []
    for page, first, rest in CITATION.findall(prose(path)):
        cited += [(page, int(number)) for number in [first, *re.findall(r"\d+", rest)]]
    return cited


KNOWN = {page.name: propositions(page) for page in sorted(THEORY.glob("*.md"))}


def test_propositions_are_numbered_in_order():
    for page, numbers in KNOWN.items():
        assert numbers == list(range(1, len(numbers) + 1)), page


def test_every_citation_names_a_proposition():
    for path in sorted(SOURCE.rglob("*.py")):
        pages = re.findall(r"theory/([\w-]+\.md)", path.read_text())
        assert not set(pages) - set(KNOWN), path
        missing = [(page, one) for page, one in citations(path) if one not in KNOWN[page]]
        assert not missing, path


def test_the_proof_critical_modules_are_there():
    assert not [pattern for pattern in PATTERNS if not list(SOURCE.glob(pattern))]


def test_proof_critical_code_says_why():
    for path in CRITICAL:
        assert 100 * len(comments(path)) >= FEWEST * lines_of_code(path), path


def test_proof_critical_code_cites_the_theory():
    cited = {path: len(citations(path)) for path in CRITICAL}
    assert not [path for path, count in cited.items() if not count]
    assert sum(cited.values()) >= 150


def test_a_citation_of_no_proposition_is_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("x = 1\n# see theory/vector.md, Propositions 3, 4 and\n# 99: because.\ny = x\n")
    assert citations(path) == [("vector.md", 3), ("vector.md", 4), ("vector.md", 99)]
    assert (len(comments(path)), lines_of_code(path)) == (2, 2)
