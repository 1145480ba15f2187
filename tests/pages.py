"""What every HTML page of the package has to be: balanced, inert, self-contained."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and fails where tags are not balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def check_self_contained(text: str) -> None:
    """No request, no script, and a policy that would forbid both."""
    page = Page(text)
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "action", "data", "poster"}
    assert not {name for name in names if name.startswith("on")}
    assert not set(page.tags) & {"script", "link", "img", "iframe", "object", "embed", "base"}
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert styles
    assert "url(" not in styles
    assert "@import" not in styles
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def check_charts(text: str) -> list[ElementTree.Element]:
    """Every drawing is well-formed and has finite coordinates."""
    roots = []
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        for element in root.iter():
            assert "nan" not in element.attrib.get("d", "")
            assert "inf" not in element.attrib.get("d", "")
            for name in ("width", "height"):
                assert float(element.attrib.get(name, 0)) >= 0
        roots.append(root)
    return roots
