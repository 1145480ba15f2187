"""Many training runs from one description: a grid, or a search for the best of them."""

from randquant_papers.sweep.conductor import conduct, is_sweep, outcomes
from randquant_papers.sweep.page import write_page
from randquant_papers.sweep.pareto import frontier
from randquant_papers.sweep.spec import Spec, read
from randquant_papers.sweep.summary import as_json, as_text, results

__all__ = [
    "Spec",
    "as_json",
    "as_text",
    "conduct",
    "frontier",
    "is_sweep",
    "outcomes",
    "read",
    "results",
    "write_page",
]
