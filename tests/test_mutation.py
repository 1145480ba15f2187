"""The lists of mutants in tests/mutation apply to the code as it is; `make mutants` runs them."""

import ast
import functools

import pytest
from mutation.equivalent import EQUIVALENT_LINES
from mutation.mechanical import difference
from mutation.mutants import ROOT, SOURCE, handmade, meaning, replaced, source
from mutation.run import lines, scores
from mutation.tests_of import TESTS
from mutation.workspace import Verdict


@pytest.fixture(scope="module")
def mutants():
    return list(handmade())  # raises where a text is not there exactly once


@functools.cache
def definitions(path):
    """Names of the functions and classes of a file of the repository."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def exists(test):
    """Whether a file has the test that `path::test` names; a path alone names all of it."""
    path, *names = test.partition("[")[0].split("::")
    return (ROOT / path).is_file() and set(names) <= definitions(path)


@pytest.mark.slow
def test_every_listed_mutant_applies_and_its_tests_exist(mutants):
    named = {test for mutant in mutants for test in mutant.tests}
    assert len(mutants) > 900
    assert not [test for test in named if not exists(test)]


def test_a_test_that_is_gone_is_noticed():
    here = "tests/test_mutation.py"
    assert exists(here)
    assert exists(f"{here}::test_no_mutant_is_listed_twice[{here}]")
    assert not exists(f"{here}::test_that_is_gone")
    assert not exists("tests/test_that_moved.py")


@pytest.mark.slow
def test_no_mutant_is_listed_twice(mutants):
    texts = [mutant.text for mutant in mutants]
    assert len(set(texts)) == len(texts)


def test_files_tests_and_equivalent_lines_are_there():
    assert not [file for file in TESTS if not (ROOT / SOURCE / file).is_file()]
    assert not [test for tests in TESTS.values() for test in tests if not exists(f"tests/{test}")]
    for file, before, _, _ in EQUIVALENT_LINES:
        assert before in " ".join(map(str.strip, source(file).splitlines())), before


def test_a_text_that_is_gone_or_changes_nothing_is_refused():
    file, text = "privacy/certificates/coordinate.py", "best = (-1.0, 0, 0)"
    with pytest.raises(ValueError, match="found it 0 times"):
        replaced(file, "no such text", "")
    with pytest.raises(ValueError, match="to change what the code does"):
        replaced(file, text, f"{text}  # a comment")


def test_comments_docstrings_and_annotations_mean_nothing():
    plain = "def f(a):\n    return a\n"
    assert meaning('def f(a: int | None) -> int:\n    """Doc."""\n    return a  # why\n') == (
        meaning("def f(a):\n    pass\n    return a\n")
    )
    assert meaning(plain) != meaning(plain.replace("return a", "return -a"))


def test_the_difference_is_what_was_changed():
    assert difference("a\n  b\nc\n", "a\n  d\nc\n") == ("b", "d")


@pytest.mark.slow
def test_equivalent_mutants_do_not_count_and_time_outs_do(mutants):
    verdicts = [Verdict("killed", "", 1), Verdict("survived", "", 1), Verdict("timed out", "", 1)]
    table = scores(zip([mutants[0]] * 4, [*verdicts, None], strict=True))
    row = table[mutants[0].module]
    assert (row["killed"], row["timed_out"], row["survived"], row["equivalent"]) == (2, 1, 1, 1)
    assert row["score"] == pytest.approx(2 / 3, rel=1e-3, abs=0)
    assert row["survivors"] == [mutants[0].name]
    assert "66.7%" in lines(table)[-1]
