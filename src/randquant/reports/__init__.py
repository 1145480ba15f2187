"""Pages, tables and charts of results, with one module for each kind of value."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant._internal import formatting
    from randquant._internal.formatting import text as text_table
    from randquant.reports.chart_marks import draw_intervals
    from randquant.reports.figures import (
        Axis,
        BandedCurve,
        Figure,
        Intervals,
        LineChart,
        Mark,
        Ranged,
        ScatterPlot,
        Series,
        StackedAreas,
        digits,
        grouped_bars,
        line_chart,
    )
    from randquant.reports.figures import checked as figure_from_json
    from randquant.reports.figures import plain as figure_to_json
    from randquant.reports.notebook import display
    from randquant.reports.pages import (
        CHARTS_FILE,
        LARGE_EPSILON,
        DataTable,
        Group,
        Notes,
        Paragraphs,
        Part,
        Section,
        charts_script,
        page,
    )
    from randquant.reports.pages import report as report_page
    from randquant.reports.plan import as_json, as_text
    from randquant.reports.run import render as render_run
    from randquant.reports.run import report_run

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
