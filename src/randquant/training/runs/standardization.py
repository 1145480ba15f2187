"""The figures that a run standardises by: asked for once, and kept in its store.

What asking costs is in the record `sent`, with all that is declared, before anybody is asked. The
noise is drawn with the run's key: if the run is killed while it asks, it gets the same answers
again.
"""

from __future__ import annotations

from randquant.channels.keys import Key
from randquant.local_training.problem import Problem
from randquant.local_training.raw_units import rows_of
from randquant.local_training.standardize import (
    FeatureStatistics,
    StandardizationQuery,
    ask_statistics,
)
from randquant.statistics.surveys import survey_text
from randquant.training.runs.store import RunStore


def ask(
    store: RunStore, asked: StandardizationQuery, problem: Problem, key: Key, identity: str
) -> None:
    """Ask a run's clients, and write the figures, from which all else follows."""
    rows = rows_of(problem, len(asked.bounds) > asked.features)
    figures = ask_statistics(asked, rows, key.fold_in("standardize"))
    record = {"means": figures.means, "spreads": figures.spreads, "terms": _terms(asked)}
    store.write("standardization", record, identity)


def read(store: RunStore, asked: StandardizationQuery, identity: str) -> FeatureStatistics:
    """Return the figures of the run with that identity; of the bounds alone if it asks nobody.

    Raises:
        ValueError: there are none, they were changed, or were asked for otherwise.
    """
    if asked.terms is None:
        return ask_statistics(asked, [], Key.from_seed(0))
    record = store.record("standardization", identity)
    if record.pop("terms") != _terms(asked):
        raise ValueError(
            f"Expected the figures in {store.path} that this version asks for, got other terms: go "
            "on with the version that the run began with."
        )
    return FeatureStatistics(asked.bounds, features=asked.features, **record)


def _terms(asked: StandardizationQuery) -> str:
    assert asked.terms is not None
    return survey_text(asked.terms)
