"""What a query and a survey must not be: each rule with a call against it."""

import pandas
import pytest

import randquant as rq
from randquant.statistics import SurveyMechanism, survey

AGES, SEXES = rq.Mean(0, 100), rq.Counts(["f", "m"])


def asked(**queries):
    return survey(queries, 1.0, 1e-5, "aggregate", 10, 10)


REFUSED = {
    "neither categories nor bins": (
        lambda: rq.Counts(), ValueError, "either categories or bins"),
    "categories and bins": (
        lambda: rq.Counts(["f"], bins=[0, 1]), ValueError, "either categories or bins"),
    "one edge of bins": (
        lambda: rq.Counts(bins=[0.0]), ValueError, "two or more increasing edges"),
    "an edge twice": (
        lambda: rq.Counts(bins=[0, 1, 1]), ValueError, "two or more increasing edges"),
    "edges that fall": (
        lambda: rq.Counts(bins=[1, 0]), ValueError, "two or more increasing edges"),
    "a category twice": (lambda: rq.Counts(["f", "f"]), ValueError, "of which 1 differ"),
    "a category that is a fraction": (
        lambda: rq.Counts([0.5, "f"]), TypeError, "categories of text or whole numbers, got 0.5"),
    "a label of what is in no category": (
        lambda: asked(sex=rq.Counts(["f", "other or missing"])), ValueError,
        "got 'other or missing' twice"),
    "categories with one label": (
        lambda: asked(sex=rq.Counts([1, "1"])), ValueError, "got '1' twice"),
    "more crossed categories than fit": (
        lambda: asked(age=rq.Counts(range(2000), by={"ward": range(2000)})), ValueError,
        "crossed categories, got 4000000 in 'age'"),
    "no quantile": (lambda: rq.Quantiles(0, 1, at=[]), ValueError, "one or more quantiles"),
    "quantiles with one name": (
        lambda: rq.Quantiles(0, 1, at=[0.5, 0.50001]), ValueError, "2 of which 1 do"),
    "a quantile of one": (
        lambda: rq.Quantiles(0, 1, at=[1.0]), ValueError, "each quantile > 0 and < 1"),
    "bounds that are one": (lambda: rq.Mean(1, 1), ValueError, "upper bound > 1"),
    "bounds the wrong way round": (lambda: rq.Mean(1, 0), ValueError, "upper bound > 1"),
    "bounds with few digits between them": (
        lambda: rq.Mean(1e6, 1e6 + 1e-4), ValueError, "bounds to be further apart"),
    "bounds without end": (lambda: rq.Mean(0, float("inf")), ValueError, "finite number"),
    "no columns": (lambda: rq.Covariance({}), ValueError, "columns with their bounds"),
    "columns without bounds": (
        lambda: rq.Covariance(["age"]), ValueError, "columns with their bounds"),
    "two targets": (
        lambda: rq.LinearRegression({"a": (0, 1), "b": (0, 1)}, {"c": (0, 1)}), ValueError,
        "one target that is not a feature"),
    "a target that is a feature": (
        lambda: rq.LinearRegression({"a": (0, 1)}, {"a": (0, 1)}), ValueError,
        "one target that is not a feature"),
    "one group": (
        lambda: rq.LogRank("t", "e", "by", ["x"], 9.0), ValueError, "two groups .* got 1"),
    "three groups": (
        lambda: rq.LogRank("t", "e", "by", ["x", "y", "z"], 9.0), ValueError, "two .* got 3"),
    "a table without rows": (
        lambda: rq.statistics(pandas.DataFrame({"age": []}), queries={"age": AGES}, epsilon=1),
        ValueError, "a row of the table, got 0 rows"),
    "a survey of a trusted server on an engine": (
        lambda: SurveyMechanism(survey({"a": AGES}, 1.0, 1e-5, "central", 9, 9)), ValueError,
        "aggregate or local trust, got central"),
    "a weight of nothing": (
        lambda: survey({"a": AGES}, 1.0, 1e-5, "local", 9, 9, weights={"a": 0.0}), ValueError,
        "the weight of 'a'"),
}  # fmt: skip
"""By what is wrong: a call, the error, and what it says."""


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_question_that_has_no_answer_is_refused_before_anybody_is_asked(wrong):
    call, error, said = REFUSED[wrong]
    with pytest.raises(error, match=said):
        call()
