"""Statistics of clients' records in one account: what one asks before training."""

from typing import TYPE_CHECKING

from randquant._internal.faces import lazily

if TYPE_CHECKING:
    from randquant.statistics.answers import Table
    from randquant.statistics.asking import statistics
    from randquant.statistics.estimate import Answer, Estimate
    from randquant.statistics.queries import Counts, Mean, Quantiles
    from randquant.statistics.regression import Covariance, LinearRegression
    from randquant.statistics.survey_mechanism import SurveyMechanism
    from randquant.statistics.surveys import Survey, survey
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
