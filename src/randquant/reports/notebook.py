"""What a notebook shows of a value: a table of its facts, and a picture where one can be drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from randquant.reports import tables

if TYPE_CHECKING:
    from randquant.reports.figures import Figure

Facts = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table's title, its columns and its rows."""


class Pictured(ABC):
    """A value that has a picture.

    Guarantees:
        Importing it imports neither altair nor jinja2; a notebook shows the table without altair.
    """

    __slots__ = ()

    @abstractmethod
    def _figures(self) -> Sequence[Figure]:
        """What `plot` draws."""

    @abstractmethod
    def _facts(self) -> Facts:
        """The table that a notebook shows."""

    def _table(self) -> str:
        """The same table as text."""
        title, columns, rows = self._facts()
        return "\n".join([title, "", *tables.text(columns, rows)])

    def plot(self) -> Any:
        """Draw it, as an altair chart to look at, to combine and to save.

        `chart.save("figure.pdf")` saves it for a paper, `.svg` and `.png` likewise, and
        `chart.save("figure.html", inline=True)` as a page that needs no network. In a notebook it
        answers to the pointer: drag to move, Shift and the wheel to zoom, a double click to return.

        Returns:
            An altair Chart; `properties`, `configure` and operators such as `|` work on it.

        Raises:
            ImportError: the extra `plots` is not installed.
        """
        from randquant.reports import charts

        return charts.chart(*self._figures())

    def _repr_html_(self) -> str:
        from randquant.reports import pages

        title, columns, rows = self._facts()
        return pages.fragment(pages.DataTable(title, columns, rows, "numbers"), self._figures())
