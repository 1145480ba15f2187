"""Statistics of clients' records under one guarantee: what to ask before training."""

from typing import TYPE_CHECKING

from randquant._internal.imports import lazily

if TYPE_CHECKING:
    from randquant.statistics.counts import Counts, KaplanMeier, LogRank, Quantiles
    from randquant.statistics.moments import Covariance, LinearRegression, Mean
    from randquant.statistics.query import (
        LAPLACE_HALF_WIDTH,
        NORMAL_HALF_WIDTH,
        Answer,
        Cells,
        Estimate,
        Products,
        Query,
        SumNoise,
        Totals,
        Tree,
        numbers,
        proportion,
        ratio,
    )
    from randquant.statistics.surveys import KINDS, MAX_VECTOR_VALUE, Survey, survey
    from randquant.statistics.table import (
        SurveyMechanism,
        Table,
        by_client,
        one_of_each,
        read_frames,
        read_queries,
        read_records,
        statistics,
    )

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
