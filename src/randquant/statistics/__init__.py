"""Statistics of clients' records under one guarantee: what to ask before training."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.statistics.estimate import (
        LAPLACE_HALF_WIDTH,
        NORMAL_HALF_WIDTH,
        Answer,
        Estimate,
        SumNoise,
        proportion,
        ratio,
    )
    from randquant.statistics.moments import Covariance, LinearRegression, Mean
    from randquant.statistics.queries import Counts, Quantiles
    from randquant.statistics.query import Cells, Products, Query, Totals, Tree, numbers
    from randquant.statistics.records import (
        by_client,
        one_of_each,
        read_frames,
        read_queries,
        read_records,
    )
    from randquant.statistics.survey_mechanism import SurveyMechanism
    from randquant.statistics.surveys import KINDS, MAX_VECTOR_VALUE, Survey, survey
    from randquant.statistics.survival import KaplanMeier, LogRank
    from randquant.statistics.table import Table, statistics

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
