"""A survey as JSON data, for the messages and files of engines."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from randquant._internal import validate
from randquant._internal.serialization import to_json
from randquant.mechanisms.noise import DiscreteGaussian, DiscreteLaplace, Skellam
from randquant.statistics.queries import Counts, Mean, Quantiles
from randquant.statistics.query import Query
from randquant.statistics.regression import Covariance, LinearRegression
from randquant.statistics.surveys import Survey
from randquant.statistics.survival import KaplanMeier, LogRank

KINDS: dict[str, type] = {
    "mean": Mean, "counts": Counts, "quantiles": Quantiles, "kaplan-meier": KaplanMeier,
    "log-rank": LogRank, "covariance": Covariance, "linear-regression": LinearRegression,
}  # fmt: skip
"""Queries by the names that files and messages have for them."""

LAWS: dict[str, type] = {
    "discrete-laplace": DiscreteLaplace, "discrete-gaussian": DiscreteGaussian, "skellam": Skellam,
}  # fmt: skip

MOST_QUERIES = 256


def query_from(fields: Mapping[str, Any]) -> Query:
    """Make a query from its kind and its arguments by name.

    Raises:
        ValueError, TypeError: it is none.

    Example:
        >>> query_from({"kind": "mean", "low": 18, "high": 100})
        Mean(low=18.0, high=100.0, column='')
    """
    if not isinstance(fields, Mapping):
        raise TypeError(f"Expected a query's kind and arguments, got {validate.shown(fields)}.")
    own = dict(fields)
    kind = validate.choice("kind", own.pop("kind", None), KINDS)
    return validate.call(kind, KINDS[kind], own)


def text_of(survey: Survey) -> str:
    """Return a survey as one line of JSON; equal surveys have equal texts."""
    names = {kind: name for name, kind in {**KINDS, **LAWS}.items()}
    queries = {
        name: {"kind": names[type(query)], **dataclasses.asdict(query)}  # type: ignore[call-overload]
        for name, query in survey.queries.items()
    }
    law = {"law": names[type(survey.law)], **dataclasses.asdict(survey.law)}
    own = {name: getattr(survey, name) for name in FIELDS}
    return json.dumps(to_json({**own, "queries": queries, "law": law}))


FIELDS = ("amplitudes", "cohort", "trust", "delta", "unit", "most", "bits")


@functools.lru_cache(maxsize=8)
def survey_from(text: str) -> Survey:
    """Undo `text_of`; the text need not be trusted, as its distances are worked out again.

    Raises:
        ValueError: it is no survey.
    """
    try:
        record = json.loads(text)
        queries = {name: query_from(fields) for name, fields in record.pop("queries").items()}
        if len(queries) > MOST_QUERIES:
            raise ValueError(f"more than {MOST_QUERIES} queries")
        law = dict(record.pop("law"))
        made = validate.call("law", LAWS[law.pop("law")], law)
        if record.keys() != set(FIELDS):
            raise ValueError("its fields are others")
        return Survey(
            queries={name: query.named(name, queries) for name, query in queries.items()},
            law=made, **record,
        )  # fmt: skip
    except (
        ArithmeticError,
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        reason = str(error).rstrip(".")
        raise ValueError(f"Expected the text of a survey, but: {reason}.") from error
