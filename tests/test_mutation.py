"""The lists of mutants in tests/mutation apply to the code as it is; `make mutants` runs them."""

import pytest
from mutation.equivalent import EQUIVALENT_LINES
from mutation.mechanical import difference
from mutation.mutants import ROOT, handmade, meaning, replaced, source
from mutation.run import lines, scores
from mutation.tests_of import TESTS
from mutation.workspace import Verdict


@pytest.fixture(scope="module")
def mutants():
    return list(handmade())  # raises where a text is not there exactly once


def test_every_listed_mutant_applies(mutants):
    paths = {test.split("::")[0] for mutant in mutants for test in mutant.tests}
    assert mutants
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_no_mutant_is_listed_twice(mutants):
    texts = [mutant.text for mutant in mutants]
    assert len(set(texts)) == len(texts)


def test_tests_and_equivalent_lines_are_there():
    named = {test for tests in TESTS.values() for test in tests}
    for path, _, name in (test.partition("::") for test in named):
        assert f"def {name}" in (ROOT / "tests" / path).read_text()
    for file, before, _, _ in EQUIVALENT_LINES:
        assert before in " ".join(map(str.strip, source(file).splitlines())), before


def test_a_text_that_is_gone_or_changes_nothing_is_refused():
    with pytest.raises(ValueError, match="found it 0 times"):
        replaced("certify.py", "no such text", "")
    with pytest.raises(ValueError, match="to change what the code does"):
        replaced("certify.py", "best = (-1.0, 0, 0)", "best = (-1.0, 0, 0)  # a comment")


def test_comments_docstrings_and_annotations_mean_nothing():
    plain = "def f(a):\n    return a\n"
    assert meaning('def f(a: int | None) -> int:\n    """Doc."""\n    return a  # why\n') == (
        meaning("def f(a):\n    pass\n    return a\n")
    )
    assert meaning(plain) != meaning(plain.replace("return a", "return -a"))


def test_the_difference_is_what_was_changed():
    assert difference("a\n  b\nc\n", "a\n  d\nc\n") == ("b", "d")


def test_equivalent_mutants_do_not_count_and_time_outs_do(mutants):
    verdicts = [Verdict("killed", "", 1), Verdict("survived", "", 1), Verdict("timed out", "", 1)]
    table = scores(zip([mutants[0]] * 4, [*verdicts, None], strict=True))
    row = table[mutants[0].module]
    assert (row["killed"], row["timed_out"], row["survived"], row["equivalent"]) == (2, 1, 1, 1)
    assert row["score"] == pytest.approx(2 / 3, rel=1e-3, abs=0)
    assert row["survivors"] == [mutants[0].name]
    assert "66.7%" in lines(table)[-1]
