"""The gallery: results come back from their files, and the site is made of nothing else."""

import json
import math
import shutil
from pathlib import Path

import flips
import fuzz
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import Page

from randquant.privacy import Interval
from randquant.reports import Axis, line_chart
from randquant.reports import figure_to_json as plain
from randquant_papers import cli
from randquant_papers.files import seal
from randquant_papers.gallery import gallery
from randquant_papers.page import as_page
from randquant_papers.registry import ENTRIES
from randquant_papers.result import Claim, Reproduction, Stated, Table, as_text
from randquant_papers.saved import as_json, from_json

COMMITTED = Path(__file__).parents[1] / "docs" / "gallery"
HOSTILE = "<script>alert(1)</script> \"'&amp;</style><b onclick=x> \ud800"
CHART = line_chart('"<b>&', [("<i>", [(0.0, 1.0), (1.0, 2.0)], "c1")], "x<y", Axis("y>x"), note="&")


def made(name: str = "made-up", **changes) -> Reproduction:
    fields = {
        "name": name,
        "title": "A title",
        "source": "A paper, section 1",
        "setting": "A setting.",
        "claims": [
            Claim("without a number", None, "words", "cannot be told", "Why not."),
            Claim("the number is seven", "7", Interval(6.9, 6.99999999), "holds", "It is."),
        ],
        "tables": [Table("A table", ["a", "b"], [[1, math.inf], [None, 0.1]])],
        "figures": [CHART],
    }
    return Reproduction(**{**fields, **changes})


def through_a_file(result: Reproduction) -> Reproduction:
    return from_json(json.loads(json.dumps(as_json(result, figures=True), allow_nan=False)))


def site(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.html")}


text = st.text(max_size=20)
number = st.floats(allow_nan=False)
value = st.one_of(
    st.none(), number, st.integers(-(10**9), 10**9), text.filter(lambda t: "inf" not in t),
    st.tuples(number, number).map(lambda ends: Interval(min(ends), max(ends))),
)  # fmt: skip
verdict = st.sampled_from(["holds", "does not hold", "cannot be told"])
result = st.builds(
    Reproduction,
    name=text, title=text, source=text, setting=text, command=text, stand_in=text,
    scale=st.sampled_from(["full", "quick"]),
    claims=st.lists(st.builds(Claim, text, st.none() | text, value, verdict, text), max_size=3),
    guarantees=st.lists(st.builds(Stated, text, st.none() | text, value, text), max_size=3),
    tables=st.lists(
        st.builds(Table, text, st.just(["a", "b"]), st.lists(st.tuples(value, value), max_size=3)),
        max_size=2,
    ),
    figures=st.lists(st.just(CHART), max_size=2),
)  # fmt: skip


@given(result)
def test_a_result_comes_back_from_its_json(made):
    again = through_a_file(made)
    assert as_page(again) == as_page(made)
    assert as_text(again) == as_text(made)
    assert as_json(again, figures=True) == as_json(made, figures=True)


def test_equal_results_make_equal_sites_whatever_the_order(tmp_path):
    names = ["zebra", "rqm-fig8", "imvu-fig1", "aardvark"]
    for folder, order in (("a", names), ("b", names[::-1])):
        for name in order:
            gallery.save(made(name, title=name.title()), tmp_path / folder)
        gallery.build(tmp_path / folder)
    assert site(tmp_path / "a") == site(tmp_path / "b")
    assert set(site(tmp_path / "a")) == {"index.html", *(f"{name}.html" for name in names)}
    index = Page((tmp_path / "a" / "index.html").read_text())
    links = [target for name, target in index.attributes if name == "href"]
    assert links == ["rqm-fig8.html", "imvu-fig1.html", "aardvark.html", "zebra.html"]


def test_guarantees_are_stated_and_certified_on_the_safe_side(tmp_path):
    run = made(
        guarantees=[
            Stated("RQM", "epsilon 8", Interval(12.0, 1234.5671), "Client, replace one, 1e-5."),
            Stated("PBM", "epsilon 1", 0.12345671, "As above."),
            Stated("QMGeo", None, math.inf, "Nothing finite."),
        ]
    )
    gallery.save(run, tmp_path)
    gallery.build(tmp_path)
    index = Page((tmp_path / "index.html").read_text()).words
    assert "RQM: stated epsilon 8, certified at most 1234.568" in index
    assert "PBM: stated epsilon 1, certified at most 0.1234568" in index
    assert "QMGeo: none stated, nothing finite certified" in index
    for name, certified in (("RQM", "1234.568"), ("PBM", "0.1234568"), ("QMGeo", "infinite")):
        assert certified in Page((tmp_path / "made-up.html").read_text()).words
        assert any(certified in line and name in line for line in as_text(run))


def test_hostile_words_stay_words(tmp_path):
    words = dict.fromkeys(("title", "source", "setting", "command", "stand_in"), HOSTILE)
    run = made(
        **words,
        claims=[Claim(HOSTILE, HOSTILE, HOSTILE, "holds", HOSTILE)],
        guarantees=[Stated(HOSTILE, HOSTILE, HOSTILE, HOSTILE)],
        tables=[Table(HOSTILE, [HOSTILE], [[HOSTILE]])],
    )
    gallery.save(run, tmp_path)
    gallery.save(made("other"), tmp_path)
    gallery.build(tmp_path)
    for name in ("index.html", "made-up.html", "other.html"):
        page = Page((tmp_path / name).read_text())
        assert not set(page.tags) & {"b", "img"}
        assert not any("alert" in script for script in page.scripts)
        assert not {attribute for attribute, _ in page.attributes if attribute.startswith("on")}
        assert page.tags.count("style") == 1
        if name == "made-up.html":
            assert page.words.count(HOSTILE[:-1].strip()) >= 13


GOOD = as_json(made(), figures=True)
LINE = plain(CHART)["lines"][0]


def with_figure(figure: object) -> dict:
    return {**GOOD, "figures": [figure]}


def with_changed(**changes: object) -> dict:
    return with_figure({**plain(CHART), **changes})


NOTHING = {"lower": 2, "upper": 1}
DAMAGED = {
    "nested": "[" * 100_000,
    "an interval of nothing": {
        **GOOD,
        "claims": [{**GOOD["claims"][0], "ours": {"lower": 2, "upper": 1}}],
    },
    "another name": {**GOOD, "name": "another"},
    "HTML": with_figure("<figure><script>alert(1)</script></figure>"),
    "an unknown kind": with_changed(kind="script"),
    "a field more": with_changed(href="https://example.org"),
    "a style that is none": with_changed(lines=[{**LINE, "style": "c1;position:fixed"}]),
    "an immense point": with_changed(lines=[{**LINE, "points": [[0, 10**400]]}]),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_result_is_refused_in_one_sentence(damage, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(ENTRIES, "rqm-fig8", lambda: made("rqm-fig8"))  # it takes a second
    gallery.save(made("rqm-fig8"), tmp_path)
    gallery.build(tmp_path)
    before = site(tmp_path)
    path = tmp_path / "results" / "made-up.json"
    data = json.dumps(seal(damage)) if isinstance(damage, dict) else damage
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert cli.main(["reproduce", "rqm-fig8", "--gallery", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"Expected a saved reproduction in {path}, got a damaged or another file" in line
    assert site(tmp_path) == before


@pytest.mark.parametrize("name", ["../up", "a/b", "", "index", "UPPER", ".hidden", "a--b"])
def test_a_name_that_is_no_page_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=r"named like its file"):
        gallery.save(made(name), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_what_no_file_gives_back_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Expected"):
        gallery.save(made(tables=[Table("t", ["a"], [[math.nan]])]), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_the_command_adds_to_a_gallery(tmp_path, capsys):
    folder = tmp_path / "site"
    for name in ("rqm-fig8", "imvu-fig1"):
        assert cli.main(["reproduce", name, "--gallery", str(folder)]) == 0
        assert capsys.readouterr().out.endswith(f"gallery        {folder}/index.html\n")
    assert {path.name for path in folder.glob("*/*.json")} == {"rqm-fig8.json", "imvu-fig1.json"}
    assert set(site(folder)) == {"index.html", "rqm-fig8.html", "imvu-fig1.html"}
    assert "A title" not in (folder / "index.html").read_text()


@pytest.mark.slow
def test_the_committed_gallery_is_what_its_results_make(tmp_path):
    shutil.copytree(COMMITTED / "results", tmp_path / "results")
    gallery.build(tmp_path)
    committed = site(COMMITTED)
    assert site(tmp_path) == committed, "run randquant-papers gallery papers/docs/gallery"
    assert max(map(len, committed.values())) < 320_000
    assert sum(path.stat().st_size for path in COMMITTED.rglob("*.*")) < 5_000_000


def read_again(data: bytes, folder: Path) -> None:
    path = folder / "made-up.json"
    path.write_bytes(data)
    found = gallery.load(path)
    assert as_json(gallery.load(path), figures=True) == as_json(found, figures=True)
    assert as_json(found, figures=True).keys() <= json.loads(data).keys(), "a field was made up"


def saved() -> list[bytes]:
    return [json.dumps(seal(GOOD)).encode()]


@pytest.mark.parametrize("inputs", [200, pytest.param(5_000, marks=pytest.mark.slow)])
def test_a_damaged_file_is_refused_or_read_rightly(inputs, tmp_path, monkeypatch):
    target = fuzz.Target(saved, fuzz._damaged_sealed, read_again)
    monkeypatch.setitem(fuzz.TARGETS, "saved reproduction", target)
    assert fuzz.fuzz("saved reproduction", inputs, 1, tmp_path) < inputs / 2


def test_no_changed_byte_or_digit_is_believed(tmp_path):
    path = tmp_path / "made-up.json"
    path.write_bytes(saved()[0])
    kind = flips.Kind("saved", path, lambda: as_json(gallery.load(path), figures=True))
    assert flips.flips(kind, 40, 2)[2] == 0
