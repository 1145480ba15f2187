"""The documentation site: every public name has a page, and a browser finds nothing missing."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
SITE = ROOT / "docs" / "site"


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.syspath_prepend(SITE)
    return importlib.import_module("reference")


def test_every_public_name_has_a_page(reference):
    pages = reference.files(reference.documented(ROOT))
    values = {id(each.value) for each in pages.values()}
    faces = reference.faces(ROOT)
    assert faces[0] == "randquant"
    assert {"randquant.flower", "randquant.secure_sums.secagg"} <= set(faces)
    modules = map(importlib.import_module, faces)
    missing = {
        f"{module.__name__}.{name}"
        for module in modules
        for name in module.__all__
        if id(getattr(module, name)) not in values
    }
    assert not missing
    assert len({name.lower() for name in pages}) == len(pages)  # on every file system


def test_every_public_name_says_what_it_is(reference):
    for each in reference.documented(ROOT):
        assert re.match(r"\S.{10,}[.:]$", each.summary), each.address


def test_the_table_of_notation_names_what_the_package_has():
    """Every name in it is a parameter or an attribute somewhere in the package."""
    table = (ROOT / "docs" / "notation.md").read_text()
    names = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert {"clip", "clip_norm", "epsilon", "trust"} <= names
    code = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    missing = {name for name in names if not re.search(rf"\b{name}s?: [A-Za-z\"]", code)}
    assert missing <= {"client", "code"}  # what an update, and a payload, is of


def watched(page: Page, site: Path) -> tuple[list[str], list[str]]:
    """Errors of the console, and requests for anything but files of the site that exist."""
    errors: list[str] = []
    strangers: list[str] = []

    def seen(url: str) -> None:
        parts = urlsplit(url)
        path = Path(unquote(parts.path))
        inside = parts.scheme == "file" and path.is_relative_to(site) and path.is_file()
        if not inside and parts.scheme not in ("data", "blob"):
            strangers.append(url)

    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.on("request", lambda r: seen(r.url))
    return errors, strangers


def links_of(path: Path) -> set[str]:
    """Pages and files of the site that a page links to."""
    found = set()
    for target in re.findall(r'(?:href|src)="([^"#]+)', path.read_text()):
        if not re.match(r"[a-z]+:", target):
            found.add(unquote(target.partition("?")[0]))
    return found


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_opens_offline(browser, tmp_path):
    """One test, because its build takes a minute: workers would build it more than once."""
    site = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(SITE),
         "-d", str(tmp_path / "doctrees"), str(ROOT), str(site)],
        cwd=ROOT, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    for path in site.rglob("*.html"):
        if "gallery" not in path.parts:
            for target in links_of(path):
                assert (path.parent / target).exists(), f"{path.relative_to(site)}: {target}"
    page = browser.new_page()
    errors, strangers = watched(page, site)

    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/docs/README.html")
    assert page.get_by_role("heading", name="Documentation").is_visible()
    page.get_by_role("link", name="Your own mechanism", exact=True).first.click()
    page.locator(".cell_output").first.wait_for(state="attached")
    outputs = page.locator(".cell_output").all_inner_texts()
    assert any(text.startswith("order inf: epsilon <= 0.998528831") for text in outputs)

    page.goto((site / "docs" / "api" / "randquant.certify.html").as_uri())
    assert page.locator("dl.py.function").count() == 1
    for section in ("Parameters", "Returns", "Raises", "Guarantees", "References", "Example"):
        assert page.locator("article").get_by_text(section).first.is_visible(), section
    page.locator("dt.sig a.reference.internal", has_text="Channel").first.click()
    page.wait_for_url(re.compile(r"#randquant\.Channel$"))

    page.goto((site / "docs" / "theory" / "vector.html").as_uri())
    assert page.get_by_role("heading", name=re.compile("Proposition 5")).is_visible()
    assert "D <= α w²/8" in page.locator("article").inner_text()

    page.goto((site / "docs" / "README.html").as_uri())
    page.get_by_role("link", name="Gallery", exact=True).first.click()
    page.wait_for_url("**/gallery/index.html")

    page.goto((site / "search.html").as_uri() + "?q=hockey")
    page.wait_for_selector("ul.search li a")
    page.goto((site / "search.html").as_uri() + "?q=certify_sum")
    page.wait_for_selector("ul.search li a")
    assert "certify_sum" in page.locator("ul.search").inner_text()
    page.close()
    assert errors == []
    assert strangers == []
