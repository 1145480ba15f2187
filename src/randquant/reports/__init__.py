"""How results look: pages, tables and charts, and one module for each kind of value."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant._internal import formatting
    from randquant._internal.tables import text as text_table
    from randquant.reports.figures import (
        Axis,
        Figure,
        LineChart,
        Mark,
        ScatterPlot,
        Series,
        line_chart,
    )
    from randquant.reports.figures import checked as figure_from_json
    from randquant.reports.figures import plain as figure_to_json
    from randquant.reports.pages import (
        CHARTS_FILE,
        DataTable,
        Group,
        Notes,
        Paragraphs,
        Part,
        Section,
        page,
    )
    from randquant.reports.pages import report as report_page
    from randquant.reports.run import report_run
    from randquant.reports.runtime import script as charts_script

__all__ = [
    "CHARTS_FILE",
    "Axis",
    "DataTable",
    "Figure",
    "Group",
    "LineChart",
    "Mark",
    "Notes",
    "Paragraphs",
    "Part",
    "ScatterPlot",
    "Section",
    "Series",
    "charts_script",
    "figure_from_json",
    "figure_to_json",
    "formatting",
    "line_chart",
    "page",
    "report_page",
    "report_run",
    "text_table",
]

lazily(__name__)
