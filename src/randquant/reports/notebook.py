"""Display of values: `plot`, `report`, and the output of a notebook.

Values do not depend on this. Each kind of value has functions here for its pictures, its table of
facts and its page; they are looked up by the name of the value's class, so that no module is
imported before it is needed.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FACTS_SUFFIX = ".facts.json"
"""End of the name of the JSON file next to a run's page."""

Facts = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table's title, its columns and its rows."""

HOMES = {
    "randquant.channels.channel.Channel": "channels.channel_",
    "randquant.privacy.certificates.coordinate.Certificate": "channels.certificate_",
    "randquant.planning.compare.Comparison": "channels.comparison_",
    "randquant.planning.plans.Plan": "plan.",
    "randquant.training.federated.Run": "run.",
    "randquant.rounds.store.History": "flower.",
    "randquant.statistics.table.Table": "answers.",
}
"""The module here that shows each class, and how the names of its functions begin, which end in
`figures`, `facts` and `page`."""


def plot(value: Any) -> Any:
    """Draw a value as an altair chart, to look at, to combine and to save.

    `chart.save("figure.pdf")` saves it for a paper, `.svg` and `.png` likewise, and
    `chart.save("figure.html", inline=True)` as a page that needs no network. In a notebook it
    reacts to the pointer: drag to move, Shift and the wheel to zoom, a double click to return.

    Args:
        value: a Channel, Certificate, Comparison, Plan, Run or Table, or the History of a strategy.

    Returns:
        An altair Chart; `properties`, `configure` and operators such as `|` work on it.

    Raises:
        TypeError: there is no picture of such a value.
        ImportError: the extra `plots` is not installed.

    Example:
        >>> import randquant as rq
        >>> type(rq.plot(rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.42))).__name__
        'LayerChart'
    """
    from randquant.reports import charts

    return charts.chart(*_function("figures", value)(value))


def report(value: Any, path: str | Path, *, uncovered: bool = False) -> Path:
    """Write a value as one HTML page, and return its path.

    Args:
        value: as for `plot`.
        path: of the file, which is replaced as a whole. A Run's facts are written next to it as
            JSON, to archive: of `report.html` in `report.facts.json`.
        uncovered: of a Run, also show what no epsilon covers, marked as such: the clients' training
            loss, and times.

    Guarantees:
        The page is self-contained: it refers to nothing outside itself, its policy allows no
        script but its own, and it says everything without that script. All text is escaped, and a
        printed bound is never below its value.

    Raises:
        TypeError: there is no page of such a value.
        ValueError: `uncovered` is asked of another value than a Run.

    Example:
        >>> import randquant as rq, tempfile
        >>> channel = rq.rqm(clip=1.5, margin=1.5, levels=4, keep=0.42)
        >>> path = rq.report(channel, f"{tempfile.mkdtemp()}/channel.html")
        >>> path.read_text().startswith("<!doctype html>")
        True
    """
    page, archive = _function("page", value), _function("archive", value)
    if uncovered and page.__module__ != "randquant.reports.run":
        raise ValueError(
            f"Expected a Run with uncovered=True, got a {type(value).__name__}: its page leaves "
            "out nothing that could be shown."
        )
    text = page(value, uncovered=True) if uncovered else page(value)
    return write_page(Path(path), text, None if archive is None else archive(value))


def write_page(path: Path, text: str, facts: Any = None) -> Path:
    """Write a page, and its facts next to it as JSON unless they are None; return its path."""
    from randquant._internal.files import write_atomic
    from randquant._internal.formatting import to_json

    # Facts first, so that a kill in between leaves no new page without its facts.
    if facts is not None:
        text_of_facts = json.dumps(to_json(facts), indent=1, ensure_ascii=False) + "\n"
        write_atomic(path.with_suffix(FACTS_SUFFIX), text_of_facts.encode())
    # A folder name may contain bytes that are not UTF-8; they become character references.
    write_atomic(path, text.encode("utf-8", "xmlcharrefreplace"))
    return path


def display(value: Any) -> str:
    """Return a notebook's output for a value: its facts as a table, and pictures if possible.

    Example:
        >>> import randquant as rq
        >>> "<table" in display(rq.stochastic_rounding(clip=1.0, levels=2))
        True
    """
    from randquant.reports import pages

    title, columns, rows = _function("facts", value)(value)
    figures = _function("figures", value)(value)
    return pages.fragment(pages.DataTable(title, columns, rows, "numbers"), figures)


def _function(end: str, value: Any) -> Any:
    # Subclasses are shown as their parent class; None if a kind of value has no such function.
    for each in type(value).__mro__:
        if name := HOMES.get(f"{each.__module__}.{each.__qualname__}"):
            module, _, start = name.partition(".")
            home = importlib.import_module(f"randquant.reports.{module}")
            return getattr(home, start + end, None)
    known = ", ".join(name.rpartition(".")[2] for name in HOMES)
    raise TypeError(f"Expected one of {known}, got {type(value).__name__}: nothing else is shown.")


def register(shell: Any) -> None:
    """Register the display of all these values with IPython, by the names of their classes."""
    html = shell.display_formatter.formatters["text/html"]
    for name in HOMES:
        html.for_type_by_name(*name.rsplit(".", 1), display)


# In a notebook importing the package is enough; elsewhere IPython is not imported for this.
if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
    register(shell)
