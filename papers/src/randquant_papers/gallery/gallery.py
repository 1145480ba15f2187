"""The gallery: a folder of saved reproductions, and the static site that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from filelock import FileLock

from randquant.reports import CHARTS_FILE, charts_script
from randquant_papers import registry
from randquant_papers.files import seal, unseal, write_atomic
from randquant_papers.gallery.index import index
from randquant_papers.page import as_page
from randquant_papers.result import Reproduction
from randquant_papers.saved import as_json, from_json

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
RESERVED = ("index",)


def save(result: Reproduction, folder: Path) -> Path:
    """Save a result in a gallery, replacing an earlier one of the same name.

    Args:
        result: what was reproduced.
        folder: the gallery's folder; created if missing. `build` renders it.

    Returns:
        The file, FOLDER/results/NAME.json.

    Guarantees:
        A reader sees the old file or the whole new one. Equal results give equal bytes.

    Raises:
        ValueError: the name is not valid for a page, or the result cannot be restored from a file.

    Example:
        >>> import tempfile
        >>> from randquant_papers.registry import reproduce
        >>> folder = Path(tempfile.mkdtemp())
        >>> save(reproduce("rqm-fig8"), folder).name, build(folder).name
        ('rqm-fig8.json', 'index.html')
    """
    data = as_json(result, figures=True)
    _named(from_json(data), result.name)
    path = folder / "results" / f"{result.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        text = json.dumps(seal(data), separators=(",", ":"), allow_nan=False)
        write_atomic(path, text.encode() + b"\n")
    return path


def build(folder: Path) -> Path:
    """Render the site of a gallery: index.html, and one page per saved result.

    Args:
        folder: of the gallery.

    Returns:
        The site's first page, FOLDER/index.html.

    Guarantees:
        Results are in the order of `registry.ENTRIES`, others follow by name; entries without a
        result are listed with their command. The pages request nothing but the script of their
        charts, which is in one file beside them. Each file is replaced atomically, and none if a
        result cannot be read. Equal results give equal bytes.

    Raises:
        ValueError: a file in FOLDER/results is damaged or not a result.
        FileNotFoundError: there is no such folder.
    """
    if not (folder / "results").is_dir():
        raise FileNotFoundError(
            f"Expected a gallery in {folder}, got a folder without results: fill it with "
            f"randquant-papers reproduce NAME --gallery {folder}."
        )
    with FileLock(folder / ".lock"):
        saved = {path.stem: load(path) for path in sorted((folder / "results").glob("*.json"))}
        titles = registry.titles()
        names = [
            *(name for name in titles if name in saved),
            *(n for n in saved if n not in titles),
        ]
        results = [saved[name] for name in names]
        missing = {name: text for name, text in titles.items() if name not in saved}
        for place, result in enumerate(results):
            before = results[place - 1] if place else None
            after = results[place + 1] if place + 1 < len(results) else None
            text = as_page(result, before=before, after=after, gallery=True)
            _write(folder / f"{result.name}.html", text)
        _write(folder / CHARTS_FILE, charts_script())
        _write(folder / "index.html", index(results, missing))
    return folder / "index.html"


def load(path: Path) -> Reproduction:
    """Return the result in a file that `save` wrote.

    Raises:
        ValueError: it is damaged, was changed or is something else.
    """
    try:
        return _named(from_json(unseal(path.read_bytes())), path.stem)
    except (ValueError, RecursionError, OverflowError) as error:
        raise ValueError(
            f"Expected a saved reproduction in {path}, got a damaged or another file: remove it, "
            f"or reproduce its entry again ({error})"
        ) from None


def _named(result: Reproduction, name: str) -> Reproduction:
    if result.name != name or not NAME.fullmatch(name) or name in RESERVED:
        raise ValueError(
            f"Expected the result in {name}.json to be named like its file, in a-z, 0-9 and "
            f"hyphens, got {result.name!r}."
        )
    return result


def _write(path: Path, text: str) -> None:
    # Text may contain lone surrogates, which UTF-8 cannot encode.
    write_atomic(path, text.encode("utf-8", "xmlcharrefreplace"))
