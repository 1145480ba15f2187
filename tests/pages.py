"""What every HTML page of the package has to be: balanced, inert, self-contained."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and fails where tags are not balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self.data: list[str] = []
        self._data = False
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self._data = ("type", "application/json") in attrs
            (self.data if self._data else self.scripts).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open:
            (self.data if self._data else self.scripts)[-1] += data
        elif "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


LARGEST = 1_000_000  # bytes of a page


def check_self_contained(text: str) -> Page:
    """No request, no script but the page's own, and a policy that would forbid all others."""
    page = Page(text)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    assert not {name for name in names if name.startswith("on")}
    assert not set(page.tags) & {"link", "img", "iframe", "object", "embed", "base", "form"}
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert styles
    assert "url(" not in styles
    assert "@import" not in styles
    assert ("content", policy(page)) in page.attributes
    assert len(text.encode("utf-8", "xmlcharrefreplace")) < LARGEST
    return page


def policy(page: Page) -> str:
    """The only policy that a page may have: it allows its own scripts, by their hashes."""
    rules = "default-src 'none'; style-src 'unsafe-inline'"
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()) for s in page.scripts]
    allowed = " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
    return f"{rules}; script-src {allowed}" if allowed else rules


def check_charts(text: str) -> list[ElementTree.Element]:
    """Every drawing is well-formed, has finite coordinates, and data that a script can read."""
    roots = []
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        for element in root.iter():
            for name in ("d", "transform", "x", "y", "x2", "y2"):
                words = element.attrib.get(name, "").lower()
                assert not re.search("nan|inf|undefined", words), words
            for name in ("width", "height"):
                assert float(element.attrib.get(name, 0)) >= 0
        roots.append(root)
    for data in Page(text).data:
        assert json.loads(data)["marks"]
    return roots


def drawn(text: str) -> list[dict[str, Any]]:
    """The rows of data of every chart that a page's script draws, in order."""
    found = []
    for data in Page(text).data:
        for each in json.loads(data)["data"]:
            found += each.get("values", [])
    return found
