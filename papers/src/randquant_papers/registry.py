"""Tables and figures of the papers, regenerated: our numbers beside theirs, with a verdict.

Each paper has its own files. A line in `ENTRIES` (computed) or in `EXPERIMENTS` (trained) adds an
entry to the command.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from randquant_papers.imvu import tables as imvu
from randquant_papers.optm import tables as optm
from randquant_papers.page import as_page
from randquant_papers.qmgeo import tables as qmgeo
from randquant_papers.result import Claim, Reproduction, Stated, Table, as_text
from randquant_papers.rqm import tables as rqm
from randquant_papers.rqm import trade_offs as rqm_trade_offs
from randquant_papers.saved import as_json, from_json

ENTRIES: dict[str, Callable[[], Reproduction]] = {
    "rqm-fig2": rqm.figure_2,
    "rqm-fig3": rqm_trade_offs.figure_3,
    "rqm-fig7": rqm.figure_7,
    "rqm-fig8": rqm.figure_8,
    "rqm-fig9": rqm_trade_offs.figure_9,
    "rqm-fig10": rqm_trade_offs.figure_10,
    "rqm-sum": rqm.sums,
    "optm-table1": optm.table_1,
    "optm-table2": optm.table_2,
    "optm-fig3": optm.figure_3,
    "qmgeo-fig3": qmgeo.figure_3,
    "qmgeo-fig4": qmgeo.figure_4,
    "imvu-fig1": imvu.figure_1,
}
"""Entries that are computed, by the name that the command uses."""


class Experiment(NamedTuple):
    """An entry that is trained: its module among the papers and function, and a title."""

    where: str
    title: str


EXPERIMENTS = {
    "rqm-fig4": Experiment("rqm.training.figure_4", "EMNIST, RQM beside PBM with theta 0.15"),
    "rqm-fig5": Experiment("rqm.training.figure_5", "EMNIST, RQM beside PBM with theta 0.25"),
    "rqm-fig6": Experiment("rqm.training.figure_6", "EMNIST, RQM beside PBM with theta 0.35"),
    "rqm-fig11": Experiment("rqm.training.figure_11", "CIFAR-100, RQM beside PBM and Gaussian"),
    "imvu-fig2": Experiment("imvu.training.figure_2", "MNIST, I-MVU beside MVU, signs, Gaussian"),
    "imvu-fig2-cifar": Experiment(
        "imvu.training.figure_2_right", "CIFAR-10, I-MVU beside MVU, signs, Gaussian"
    ),
    "imvu-fig3": Experiment("imvu.training.figure_3", "FEMNIST, I-MVU beside signs and Gaussian"),
    "imvu-fig4": Experiment("imvu.training.figure_4", "FEMNIST, I-MVU with 1 to 4 bits"),
    "optm-fig4": Experiment(
        "optm.training.figure_4", "breast cancer and MNIST, and vectors' errors"
    ),
    "qmgeo-fig5": Experiment("qmgeo.training.figure_5", "MNIST, QMGeo with p 0.5 and 0.9"),
    "qmgeo-fig6": Experiment("qmgeo.training.figure_6", "MNIST, QMGeo with 8 and 16 levels"),
}
"""Entries that are trained, by the name that the command uses. Their modules are imported on
demand, because they need torch."""


def reproduce(name: str, setting: Any = None) -> Reproduction:
    """Regenerate a table or figure of a paper.

    Args:
        name: a key of `ENTRIES` or `EXPERIMENTS`.
        setting: an `experiment.Setting`, for what is trained; its defaults unless given.

    Returns:
        A Reproduction; `as_text`, `as_json` and `as_page` print it.

    Guarantees:
        No entry of `ENTRIES` samples anything. Intervals are proven by certificates over exact
        integers; other numbers are closed forms, correct up to float64 rounding. Experiments train
        for real; equal settings give equal results, and finished runs are not trained again.

    Raises:
        ValueError: the name is unknown, or a run cannot be trained.
        FileNotFoundError: the data files are missing.
        ImportError: a library that training needs is not installed.

    Example:
        >>> [claim.verdict for claim in reproduce("rqm-fig8").claims[:2]]
        ['holds', 'holds']
    """
    if name not in ENTRIES and name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, [*ENTRIES, *EXPERIMENTS], n=1)
        meant = f"did you mean {near[0]}?" if near else "see randquant-papers reproduce --list."
        raise ValueError(f"Expected the name of a table or figure, got {name!r}: {meant}")
    if name in ENTRIES:
        return ENTRIES[name]()
    from randquant_papers.experiment import Setting

    return _experiment(name)(setting or Setting())


def titles() -> dict[str, str]:
    """The title of each entry, by name."""
    computed = {name: (entry.__doc__ or "").partition("\n")[0] for name, entry in ENTRIES.items()}
    return computed | {name: f"Training: {entry.title}." for name, entry in EXPERIMENTS.items()}


def _experiment(name: str) -> Callable[[Any], Reproduction]:
    module, _, function = EXPERIMENTS[name].where.rpartition(".")
    return getattr(importlib.import_module(f"randquant_papers.{module}"), function)


__all__ = [
    "ENTRIES",
    "EXPERIMENTS",
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
