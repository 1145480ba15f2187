"""Many training runs from one description: a grid, or a search for the best of them."""

from randquant.sweep.conduct import conduct, is_sweep, outcomes
from randquant.sweep.page import write_page
from randquant.sweep.pareto import frontier
from randquant.sweep.results import as_json, as_text, results
from randquant.sweep.spec import Spec, read

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
