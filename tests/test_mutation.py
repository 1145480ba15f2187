"""The lists of mutants in tests/mutation apply to the code as it is; `make mutants` runs them."""

import ast
import functools
import json

import pytest
from mutation import mechanical, record
from mutation.equivalent import ALIKE, EQUIVALENT_LINES, equivalent
from mutation.mechanical import difference
from mutation.mutants import (
    ROOT,
    SOURCE,
    Mutant,
    handmade,
    meaning,
    means_the_same,
    replaced,
    source,
)
from mutation.run import QUICK, confirm, learn, lines, ordered, scores, together
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


def test_every_listed_mutant_applies_and_its_tests_exist(mutants):
    named = {test for mutant in mutants for test in mutant.tests}
    assert len(mutants) > 900
    assert not [test for test in named if not exists(test)]


@pytest.mark.slow
def test_every_listed_mutant_means_something_else(mutants):
    assert not [mutant.name for mutant in mutants if means_the_same(mutant)]


def test_a_test_that_is_gone_is_noticed():
    here = "tests/test_mutation.py"
    assert exists(here)
    assert exists(f"{here}::test_no_mutant_is_listed_twice[{here}]")
    assert not exists(f"{here}::test_that_is_gone")
    assert not exists("tests/test_that_moved.py")


def test_no_mutant_is_listed_twice(mutants):
    texts = [mutant.text for mutant in mutants]
    assert len(set(texts)) == len(texts)


def test_files_tests_and_equivalent_lines_are_there():
    assert not [file for file in TESTS if not (ROOT / SOURCE / file).is_file()]
    assert not [test for tests in TESTS.values() for test in tests if not exists(f"tests/{test}")]
    for file, before, _, _ in EQUIVALENT_LINES:
        assert before in " ".join(map(str.strip, source(file).splitlines())), before


def test_lines_that_are_alike_in_any_file_are_found_and_no_others():
    frozen = "@dataclass(frozen=True, slots=True)"
    alike = (
        ("  @final", "  "),
        ("@functools.cache", ""),
        ("@functools.lru_cache(maxsize=16)", "@functools.lru_cache(maxsize= 17)"),
        (frozen, frozen.replace("slots=True", "slots=False")),
        ("x.reshape(-1)", "x.reshape(~1)"),
        ("@numba.njit(nogil=True, cache=True)", "@numba.njit(nogil=True, cache=False)"),
    )
    for before, after in alike:
        assert equivalent("any.py", before, after)
    assert {equivalent("any.py", *lines) for lines in alike} == {why for *_, why in ALIKE}
    for before, after in (
        (" @property", ""),
        (frozen, frozen.replace("frozen=True", "frozen=False")),
        ("@dataclass(slots=True)", "@dataclass(slots=False)"),
        ("x.reshape(-1)", "x.reshape(1)"),
        ("@numba.njit(nogil=True, cache=True)", "@numba.njit(nogil=False, cache=True)"),
    ):
        assert not equivalent("any.py", before, after)


def test_a_text_that_is_gone_is_refused_and_one_that_changes_nothing_noticed():
    file, text = "privacy/certificates/coordinate.py", "best = (-1.0, 0, 0)"
    with pytest.raises(ValueError, match="found it 0 times"):
        replaced(file, "no such text", "")
    for after, same in ((f"{text}  # a comment", True), ("best = (-1.0, 0, 1)", False)):
        assert means_the_same(Mutant(file, replaced(file, text, after), "", ())) is same


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


def planted(name, module="keys", origin="lists"):
    """A mutant of a file whose source is one line."""
    return Mutant(f"{module}.py", f"y = {name!r}\n", name, (), origin=origin)


def test_verdicts_are_kept_by_mutant(monkeypatch):
    """What is run again replaces what was known of it; other mutants and modules stay."""
    monkeypatch.setattr(record, "source", lambda file: "x = 1\n")
    first, second, gone = planted("one"), planted("two"), planted("gone")
    other, mechanical = planted("one", "wire"), planted("one", origin="mechanical")
    killed, survived = Verdict("killed", "t", 1.0), Verdict("survived", "", 1.0)
    known = record.merged({}, [first, gone], [(first, survived), (gone, killed)])
    known = record.merged(known, [other, mechanical], [(other, killed), (mechanical, None)])
    assert record.rows(known, [first, second], {})["keys"]["handmade"] == {
        "killed": 1, "timed_out": 0, "mended": 0, "survived": 1, "equivalent": 0, "not_run": 0,
        "score": 0.5, "survivors": ["one"],
    }  # fmt: skip
    known = record.merged(known, [first, second], [])
    old = {"wire": {"handmade": {"killed": 1, "survived": 0}}}
    table = record.rows(known, [first, second], old)
    assert table["keys"]["handmade"]["not_run"] == 1
    assert table["wire"] == old["wire"]
    known = record.merged(known, [first, second], [(first, Verdict("timed out", "", 9.0))])
    row = record.rows(known, [first, second], old)["keys"]["handmade"]
    assert (row["killed"], row["timed_out"], row["survived"], row["not_run"]) == (1, 1, 0, 1)
    assert record.totals(record.rows(known, [mechanical], old)) == {
        "mechanical": {
            "killed": 0, "timed_out": 0, "mended": 0, "survived": 0, "equivalent": 1, "not_run": 0,
            "score": None,
        },
        "handmade": {"killed": 1, "survived": 0, "score": 1.0},
    }  # fmt: skip


def test_what_is_noticed_only_after_it_survived_is_told_apart(monkeypatch):
    """The share at first says how good the tests are: mending them does not raise it."""
    monkeypatch.setattr(record, "source", lambda file: "x = 1\n")
    mutants = [planted(name, origin="fresh") for name in ("one", "two")]
    survived, killed = Verdict("survived", "", 1.0), Verdict("killed", "t", 1.0)
    known = record.merged({}, mutants, [(mutants[0], survived), (mutants[1], killed)])
    for _ in range(2):
        known = record.merged(known, mutants, [(mutant, killed) for mutant in mutants])
        row = record.rows(known, mutants, {})["keys"]["fresh"]
        assert (row["killed"], row["mended"], row["survived"]) == (2, 1, 0)
    known = record.merged(known, mutants, [(mutants[0], survived)])
    row = record.rows(known, mutants, {})["keys"]["fresh"]
    assert (row["killed"], row["mended"], row["survived"]) == (1, 0, 1)


def test_a_second_fresh_sample_keeps_what_is_known_of_the_first(monkeypatch):
    """Also where both seeds draw the same fault: it counts once."""
    drawn = {seed: [planted(f"{seed}", origin="fresh"), planted("both", origin="fresh")]
             for seed in mechanical.FRESH_SEEDS}  # fmt: skip
    monkeypatch.setattr(mechanical, "sample", lambda file, most, seed: drawn[seed])
    monkeypatch.setattr(record, "source", lambda file: "x = 1\n")
    first, second = drawn.values()
    killed, survived = Verdict("killed", "t", 1.0), Verdict("survived", "", 1.0)
    known = record.merged({}, together(first), [(first[0], killed), (first[1], survived)])
    listed = together(second)
    assert len(listed) == 3
    known = record.merged(known, listed, [(second[0], survived), (second[1], killed)])
    row = record.rows(known, listed, {})["keys"]["fresh"]
    assert (row["killed"], row["mended"], row["survived"]) == (2, 1, 1)


def test_the_same_change_twice_in_a_file_is_two_mutants(monkeypatch):
    monkeypatch.setattr(record, "source", lambda file: "x = 1\nx = 1\n")
    twice = [Mutant("keys.py", text, "x", ()) for text in ("x = 2\nx = 1\n", "x = 1\nx = 2\n")]
    names = record.digests(twice)
    assert len(set(names.values())) == 2
    assert record.digests([*twice, planted("one")])[twice[1]] == names[twice[1]]


def test_what_is_pending_has_not_been_killed(monkeypatch, tmp_path):
    monkeypatch.setattr(record, "source", lambda file: "x = 1\n")
    monkeypatch.setattr(record, "FILE", tmp_path / "mutation.json")
    mutants = [planted(name) for name in ("killed", "survived", "timed out", "new")]
    assert record.pending(mutants, mutants[1:]) == mutants[1:]
    judged = [(mutant, Verdict(mutant.name, "", 1.0)) for mutant in mutants[:3]]
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "PAGE", tmp_path / "page.md")
    record.PAGE.write_text("")
    record.save(mutants, judged, 0)
    assert record.pending(mutants, mutants) == [mutants[1], mutants[3]]
    record.save(mutants, [(mutants[1], Verdict("killed", "", 1.0))], 0)
    assert record.pending(mutants, mutants) == [mutants[3]]


class Clean:
    """A workspace without a fault, in which one test fails all the same."""

    def __init__(self):
        self.asked = []

    def test(self, tests, limit):
        self.asked.append(tests)
        return Verdict("killed" if "tests/t.py::b" in tests else "survived", "FAILED b", 1.0)


def test_what_fails_with_a_fault_must_pass_without_it():
    space, passed = Clean(), set()
    for _ in range(2):
        confirm(space, Verdict("killed", "FAILED tests/t.py::a[x y] - Ass", 1.0), ("t",), passed)
    confirm(space, Verdict("killed", "ERROR    flwr: no", 1.0), ("tests/all.py",), passed)
    assert space.asked == [("tests/t.py::a",), ("tests/all.py",)]
    assert passed == {"tests/t.py::a", "tests/all.py"}
    with pytest.raises(SystemExit, match="fail without a mutant"):
        confirm(space, Verdict("killed", "FAILED tests/t.py::b - Ass", 1.0), ("t",), passed)


def test_tests_that_killed_others_of_the_module_come_first():
    killers = {}
    mechanical = planted("one", origin="mechanical")
    for name in ("a", "b", "c", "d", "e", "a"):
        learn(mechanical, Verdict("killed", f"FAILED tests/t.py::{name}[x y] - Ass", 1.0), killers)
    learn(mechanical, Verdict("survived", "", 1.0), killers)
    learn(mechanical, Verdict("killed", "FAILED src/randquant/x.py::doctest", 1.0), killers)
    first = [f"tests/t.py::{name}" for name in "aedc"]
    assert ordered(mechanical, killers).tests == (*first[:QUICK], *mechanical.tests)
    assert ordered(planted("one", "wire", "mechanical"), killers).tests == ()
    assert ordered(planted("one"), killers).tests == ()


def test_a_module_counts_in_the_line_of_its_area(monkeypatch, tmp_path):
    for module, name in (
        ("privacy.certificates.sums.kernel", "sums"), ("aggregation.vector", "aggregate"),
        ("aggregation.secagg.client", "secagg"), ("integrations.flower.sums", "flower"),
        ("_internal.rounding", "others"),
    ):  # fmt: skip
        assert record.area(module) == name
    row = {"killed": 19, "mended": 0, "survived": 1, "equivalent": 2, "not_run": 3}
    table = {
        "channels.wire.kernel": {"mechanical": row, "fresh": {**row, "mended": 4}},
        "channels.wire.upload": {"handmade": row},
    }
    written = record.page(table)
    wire = "15 | 4 | 1 | 2 | 75.0% | 95.0% | 19 | 1 | 2 | 19 | 1 | 2 | 3 |"
    assert f"| wire | {wire}" in written
    assert f"| keys | 0 | 0 | 0 | 0 | - | - |{' 0 |' * 7}" in written
    assert written[-1] == f"| all | {wire}"
    monkeypatch.setattr(record, "PAGE", tmp_path / "page.md")
    record.PAGE.write_text(f"before\n\n{record.TABLE}old |\n| x |\n\nafter\n")
    for _ in range(2):
        record.write_page(table)
        assert record.PAGE.read_text() == "before\n\n" + "\n".join(written) + "\n\nafter\n"


def test_the_page_states_what_was_measured():
    saved = json.loads(record.FILE.read_text())
    assert "\n".join(record.page(saved["modules"])) in record.PAGE.read_text()
    assert saved["totals"] == record.totals(saved["modules"])
