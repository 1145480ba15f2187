"""The statistics that a run standardises by: clients are asked once, and the store keeps them.

The cost is in the record `sent` before clients are asked. The noise is drawn with the run's key: a
run that is killed before it has stored the statistics gets the same ones again, which is no second
release.
"""

from __future__ import annotations

from randquant.channels.keys import Key
from randquant.local_training.problem import Problem
from randquant.local_training.standardize import (
    FeatureStatistics,
    StandardizationQuery,
    ask_statistics,
)
from randquant.local_training.standardized_model import client_matrices
from randquant.statistics.surveys import survey_text
from randquant.training.runs.store import RunStore


def ask(
    store: RunStore, query: StandardizationQuery, problem: Problem, key: Key, identity: str
) -> None:
    """Ask a run's clients for the statistics, and store them."""
    # More bounds than features: targets are standardised too.
    rows = client_matrices(problem, len(query.bounds) > query.features)
    statistics = ask_statistics(query, rows, key.fold_in("standardize"))
    record = {"means": statistics.means, "spreads": statistics.spreads, "terms": _terms(query)}
    store.write("standardization", record, identity)


def read(store: RunStore, query: StandardizationQuery, identity: str) -> FeatureStatistics:
    """Return the statistics of the run with that identity.

    Raises:
        ValueError: there are none, they were changed, or were asked for on other terms.
    """
    if query.survey is None:
        # The bounds determine them: nobody is asked, and the key draws nothing.
        return ask_statistics(query, [], Key.from_seed(0))
    record = store.record("standardization", identity)
    # Another version of this package may plan the query differently: its statistics would not be
    # what the stored guarantee was stated for.
    if record.pop("terms") != _terms(query):
        raise ValueError(
            f"Expected the statistics in {store.path} that this version asks for, got statistics "
            "on other terms: continue with the version that the run began with."
        )
    return FeatureStatistics(query.bounds, features=query.features, **record)


def _terms(query: StandardizationQuery) -> str:
    assert query.survey is not None
    return survey_text(query.survey)
