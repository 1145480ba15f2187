"""Tables and figures of the papers, regenerated: our numbers beside theirs, with a verdict.

One file a paper; an entry joins the command by its line in `ENTRIES`.
"""

from __future__ import annotations

from collections.abc import Callable

from randquant import _validate
from randquant.reproduce import imvu, optm, qmgeo, rqm
from randquant.reproduce.page import as_page
from randquant.reproduce.result import Claim, Reproduction, Stated, Table, as_text
from randquant.reproduce.saved import as_json, from_json

ENTRIES: dict[str, Callable[[], Reproduction]] = {
    "rqm-fig2": rqm.figure_2,
    "rqm-fig3": rqm.figure_3,
    "rqm-fig7": rqm.figure_7,
    "rqm-fig8": rqm.figure_8,
    "rqm-sum": rqm.sums,
    "optm-table1": optm.table_1,
    "optm-table2": optm.table_2,
    "optm-fig3": optm.figure_3,
    "qmgeo-fig3": qmgeo.figure_3,
    "qmgeo-fig4": qmgeo.figure_4,
    "imvu-fig1": imvu.figure_1,
}
"""What can be reproduced, by the name that the command uses."""


def reproduce(name: str) -> Reproduction:
    """Regenerate a table or figure of a paper.

    Args:
        name: a key of `ENTRIES`.

    Returns:
        A Reproduction; `as_text`, `as_json` and `as_page` print it.

    Guarantees:
        Nothing is sampled. A number that is called an interval is proven, by certificates over
        exact integers; the others are closed forms, right up to float64 rounding.

    Raises:
        ValueError: the name is unknown.

    Example:
        >>> [claim.verdict for claim in reproduce("rqm-fig8").claims[:2]]
        ['holds', 'holds']
    """
    return ENTRIES[_validate.choice("name", name, ENTRIES)]()


def titles() -> dict[str, str]:
    """What each entry is, by name: the first line of its documentation."""
    return {name: (entry.__doc__ or "").partition("\n")[0] for name, entry in ENTRIES.items()}


__all__ = [
    "ENTRIES",
    "Claim",
    "Reproduction",
    "Stated",
    "Table",
    "as_json",
    "as_page",
    "as_text",
    "from_json",
    "reproduce",
    "titles",
]
