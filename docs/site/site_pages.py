"""Sphinx extension: Markdown pages stay as a code host shows them, and the site is made of them.

- The navigation is the list of links that a README of a folder already is.
- A link to a file that is no page (JSON, TOML, the gallery's HTML) leads to a copy of the file at
  the same place of the site; a Python file becomes a page with its text.
- A word in backticks of a docstring is a link if it names something documented.
"""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

import reference
from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

GALLERY = Path("papers", "docs", "gallery")

SHOWN_AS_TEXT = {".py", ".toml", ".txt"}
"""Files that a browser would offer to download."""


def navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append hidden tables of contents to a folder's README: one for each of its lists of links."""
    if not docname.startswith("docs/") or not docname.endswith("README"):
        return
    here = Path(app.srcdir) / docname
    added, caption, entries = [], "", []

    def close() -> None:
        if entries:
            title = f":caption: {caption}\n" if docname == app.config.root_doc else ""
            lines = "\n".join(entries)
            added.append(f"```{{toctree}}\n:hidden:\n{title}\n{lines}\n```\n")
            entries.clear()

    for line in source[0].splitlines():
        if line.startswith("## "):
            close()
            caption = line.removeprefix("## ")
        found = re.match(r"- .*?\]\(([^)#]+\.(?:md|ipynb))\)", line)
        if found and (here.parent / found[1]).exists():
            entries.append("/" + _docname(app, here.parent / found[1]))
    close()
    source[0] += "\n\n" + "\n".join(added)


def reference_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the rooms' generated pages to the page of the API reference."""
    if docname == "docs/reference":
        rooms = "\n".join(f"api/{room}" for room in reference.rooms(Path(app.srcdir)))
        source[0] += f"\n\n```{{toctree}}\n:maxdepth: 1\n\n{rooms}\n```\n"


def _docname(app: Sphinx, path: Path) -> str:
    return path.resolve().relative_to(app.srcdir).with_suffix("").as_posix()


def plain_links(app: Sphinx, doctree: nodes.document) -> None:
    """Turn links to files into links to their copies at the same place of the site."""
    docname = app.env.docname
    folder = (Path(app.srcdir) / docname).parent
    copied = set()
    for node in list(doctree.findall(addnodes.download_reference)):
        target = node["reftarget"]
        path = (folder / target).resolve() if not target.startswith("/") else Path(target)
        name = path.relative_to(app.srcdir).as_posix()
        link = "../" * docname.count("/") + name
        copied.add(name)
        if path.suffix in SHOWN_AS_TEXT:
            link += ".html"
        node.replace_self(nodes.reference("", "", *node.children, refuri=link))
    _files(app)[docname] = copied


def _files(app: Sphinx) -> dict[str, set[str]]:
    if not hasattr(app.env, "randquant_files"):
        app.env.randquant_files = {}
    return app.env.randquant_files


def copy_files(app: Sphinx, error: Exception | None) -> None:
    """Copy the gallery and every file that a page links to."""
    if error:
        return
    source, site = Path(app.srcdir), Path(app.outdir)
    shutil.copytree(source / GALLERY, site / GALLERY, dirs_exist_ok=True)
    for name in set().union(*_files(app).values()):
        path, copy = source / name, site / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in SHOWN_AS_TEXT:
            copy.with_name(f"{copy.name}.html").write_text(as_page(name, path.read_text()))
        else:
            shutil.copyfile(path, copy)


def as_page(name: str, text: str) -> str:
    """The text of a file as a page of its own, with colours."""
    formatter = HtmlFormatter(full=True, title=escape(name), style="friendly", lineanchors="line")
    return highlight(text, get_lexer_for_filename(name), formatter)


def plain_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Docstrings are plain text: |x| and x * y mean what they say, and `Returns` holds sentences.

    Napoleon would take what comes before the first colon of `Returns`, or of an attribute's
    docstring, for a type.
    """
    example = False
    for place, line in enumerate(lines):
        example = (example or line.lstrip().startswith(">>>")) and bool(line.strip())
        if not example:
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            lines[place] = "".join(parts)
    for place in [place for place, line in enumerate(lines) if line == "Returns:"]:
        lines[place : place + 2] = ["", f":returns: {lines[place + 1].strip()}"]
    if what in ("attribute", "property", "data"):
        lines.insert(0, "")


class CodeOrName(SphinxRole):
    """`text` of a docstring: a link where it is the name of something, and code anyway."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the reference that Sphinx resolves at the end, or plain code."""
        code = nodes.literal(self.rawtext, self.text, classes=["docutils"])
        if not re.fullmatch(r"[A-Za-z_][\w.]*", self.text):
            return [code], []
        target = re.sub(r"^rq\.", "randquant.", self.text)
        node = addnodes.pending_xref(
            self.rawtext, code, refdomain="py", reftype="obj", reftarget=target, refwarn=False,
            refdoc=self.env.docname, **{
                key: self.env.ref_context.get(key) for key in ("py:module", "py:class")
            },
        )  # fmt: skip
        return [node], []


def near_pages_only(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object
) -> None:
    """The navigation beside a page opens its own branches only.

    With every branch open, each of some hundred pages would name each public name: two thirds of
    the time of a build, and most of a page.
    """
    if "toctree" in context:
        everything = context["toctree"]
        context["toctree"] = lambda **options: everything(**options | {"collapse": True})


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the parts to Sphinx's events."""
    app.add_role("code_or_name", CodeOrName())
    app.connect("builder-inited", lambda app: reference.write(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("source-read", navigation)
    app.connect("source-read", reference_pages)
    app.connect("doctree-read", plain_links, priority=400)
    app.connect("html-page-context", near_pages_only, priority=400)  # Furo's comes at 500
    app.connect("build-finished", copy_files)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
