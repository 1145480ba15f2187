"""Statistics of clients' records under one guarantee: what to ask before training."""

from typing import TYPE_CHECKING

from randquant._internal.lazy_imports import lazily

if TYPE_CHECKING:
    from randquant.statistics.answers import Table
    from randquant.statistics.asking import statistics
    from randquant.statistics.encodings import Cells, Products, Tree
    from randquant.statistics.estimate import (
        LAPLACE,
        NORMAL,
        Answer,
        Estimate,
        SumNoise,
        proportion,
        ratio,
    )
    from randquant.statistics.queries import Counts, Mean, Quantiles
    from randquant.statistics.query import Query, Totals, numbers
    from randquant.statistics.records import (
        by_client,
        frames_of,
        one_of_each,
        read_queries,
        read_records,
    )
    from randquant.statistics.regression import Covariance, LinearRegression
    from randquant.statistics.survey_mechanism import SurveyMechanism
    from randquant.statistics.surveys import KINDS, MAX_VECTOR_VALUE, Survey, survey
    from randquant.statistics.survival import KaplanMeier, LogRank

__all__ = [
    "Answer",
    "Counts",
    "Covariance",
    "Estimate",
    "KaplanMeier",
    "LinearRegression",
    "LogRank",
    "Mean",
    "Quantiles",
    "Survey",
    "SurveyMechanism",
    "Table",
    "statistics",
    "survey",
]

lazily(__name__)
