"""Means and deviations that standardise features and targets, as a query within a run's account.

They are answers of `randquant.statistics` by the clients of the run, and public once released:
whatever is computed with them costs no more privacy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from randquant._internal import declared, validate
from randquant._internal.serialization import from_json
from randquant.channels.keys import Key
from randquant.privacy.guarantee import Trust, Unit
from randquant.statistics.moments import Mean
from randquant.statistics.query import bounds
from randquant.statistics.records import one_of_each
from randquant.statistics.surveys import Survey, survey
from randquant.statistics.table import noisy_answers

Bound = float | tuple[float, ...]

MAX_BOUND, MIN_BOUNDS_DISTANCE = 1e30, 1e-30
"""Largest bound and smallest distance of two bounds, so that no value computed from them overflows
float32 or becomes zero in it."""

PRIOR_MEAN_ERROR = 1 / 3
"""Deviation of means from the middle of their bounds, in halves of the bounds' distance, that is
assumed before any answer. Twice as much trusts noisy means more; half as much draws them closer to
the middle."""


@dataclass(frozen=True, slots=True)
class Standardize:
    """Standardise features, and a regression's targets, to mean 0 and deviation 1.

    Before the first round, the run asks all clients for means and deviations in one table of
    `randquant.statistics`, which counts in its guarantee. The model learns on standardised values;
    `run.model` takes raw features and predicts in raw units.

    Attributes:
        lower, upper: public bounds to which features are clipped: one number for all features, or
            one for each.
        target: (lower, upper) of a regression's targets, likewise; by default targets stay as they
            are, as labels do.
        share: part of the epsilon and delta that `spent` leaves, for the table; with 0 nothing is
            asked, and the bounds are mapped to -1 and 1.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Standardize([18, 15], [100, 70], target=(0, 400)).bounds("features", 2)
        [(18.0, 100.0), (15.0, 70.0)]
    """

    lower: Bound
    upper: Bound
    target: tuple[Bound, Bound] | None = None
    share: float = 0.1

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, _as_bound(name, getattr(self, name)))
        if self.target is not None:
            pair = validate.listed("target", self.target)
            if len(pair) != 2:
                raise ValueError(f"Expected target as (lower, upper), got {len(pair)} values.")
            object.__setattr__(self, "target", tuple(_as_bound("target", each) for each in pair))
        # At most 0.9, because training needs some of epsilon.
        validate.real("share", self.share, low=0, high=0.9)
        declared.checked(self)
        # For their refusals alone: wrong bounds should fail before any data are read.
        for what in ("features", "target"):
            self.bounds(what)

    @classmethod
    def read(cls, value: Any) -> Standardize | None:
        """Return settings from a record, or settings and None as they are."""
        if isinstance(value, Mapping):
            return from_json(cls, dict(value))
        if value is not None:
            validate.kind("standardize", value, cls)
        return value

    def bounds(self, what: str, count: int | None = None) -> list[tuple[float, float]]:
        """Return (lower, upper) of each feature or number of a target; [] without a target.

        Args:
            what: `features` or `target`.
            count: of features, or of numbers of a target; by default as many as there are bounds.

        Raises:
            ValueError: there are bounds of another number of values, or a pair is not a range.
        """
        ends: Any = (self.lower, self.upper) if what == "features" else self.target
        if ends is None:
            return []
        sizes = {len(each) for each in ends if isinstance(each, tuple)}
        if count is None:
            count = max(sizes, default=1)
        if sizes - {count}:
            raise ValueError(
                f"Expected bounds of {count} {what}, or one for all, got "
                f"{sorted(sizes - {count})[0]} in standardize."
            )
        pairs = list(zip(*(each if isinstance(each, tuple) else (each,) * count for each in ends),
                         strict=True))  # fmt: skip
        for number, (low, high) in enumerate(pairs):
            bounds(f"{what.removesuffix('s')} {number}", low, high)
            validate.real("a bound's distance from 0", max(abs(low), abs(high)), high=MAX_BOUND)
            validate.real("bounds' distance", high - low, low=MIN_BOUNDS_DISTANCE)
        return pairs


class FeatureStatistics(NamedTuple):
    """Means and spreads that standardise: (value clipped to its bounds - mean) / spread.

    Attributes:
        bounds: (n, 2), first of the features, then of the targets.
        means, spreads: (n,), spreads above 0.
        features: number of the n values that are features.
    """

    bounds: list[tuple[float, float]]
    means: list[float]
    spreads: list[float]
    features: int


class StandardizationQuery(NamedTuple):
    """The query for the means and spreads of one run's features and targets.

    Attributes:
        bounds: (n, 2), first of the features, then of the targets.
        features: number of the n values that are features.
        survey: terms of the table; None if nothing is asked.
    """

    bounds: list[tuple[float, float]]
    features: int
    survey: Survey | None


def plan_query(
    settings: Standardize,
    columns: tuple[int, int],
    sizes: np.ndarray,
    left: tuple[float, float],
    trust: Trust | None,
    unit: Unit,
) -> StandardizationQuery:
    """Plan the query of a run, without any client's data.

    Args:
        settings: the user's.
        columns: numbers of features, and of values of a target.
        sizes: (N,) each client's number of examples, which is public.
        left: epsilon and delta that the run may still spend, of which the table has its share.
        trust: the run's.
        unit: what is protected.

    Raises:
        ValueError: bounds do not fit the columns, or the share does not pay for the table.
    """
    features = settings.bounds("features", columns[0])
    targets = settings.bounds("target", columns[1])
    terms = None
    # The table is noisy in the run's trust, so that it needs no other party than the run does.
    if settings.share:
        if not np.isfinite(left[0]) or trust not in ("aggregate", "local"):
            raise ValueError(
                "Expected an epsilon, and trust aggregate or local, with standardize, got "
                f"epsilon={left[0]} and {trust}: it asks with a share of epsilon, of the run's "
                "trust; give share=0 to use the bounds alone."
            )
        # For a whole client one of its examples is drawn; otherwise all count, and the largest
        # client's number of them bounds a client's vector.
        records, most = (
            (len(sizes), 1) if unit == "client" else (int(sizes.sum()), int(sizes.max()))
        )
        epsilon, delta = (settings.share * each for each in left)
        terms = _terms(
            (*features, *targets), epsilon, delta, trust, len(sizes), records, unit, most
        )
    return StandardizationQuery([*features, *targets], len(features), terms)


# Cached, because calibrating the noise takes long and a run is prepared several times.
@functools.lru_cache(maxsize=8)
def _terms(
    pairs: tuple[tuple[float, float], ...], epsilon: float, delta: float, trust: Any, clients: int,
    records: int, unit: Unit, most: int,
) -> Survey:  # fmt: skip
    queries = {str(k): Mean(*each) for k, each in enumerate(pairs)}
    try:
        return survey(queries, epsilon, delta, trust, clients, records, None, unit, most)
    except ValueError as error:
        raise ValueError(
            f"Expected an epsilon whose share, {epsilon} at delta={delta} after what was spent "
            f"before, pays for means and deviations, but: {error} share=0 uses the bounds alone."
        ) from error


def ask_statistics(
    query: StandardizationQuery, clients: Iterable[np.ndarray], key: Key
) -> FeatureStatistics:
    """Ask the clients for noisy means and spreads.

    Args:
        query: from `plan_query`.
        clients: each client's (n, columns) float.
        key: of the noise. The same key and data give the same answers, bit for bit.

    Guarantees:
        With any noise, means are within the bounds, and spreads above 0 and at most half of the
        bounds' distance. A spread below its noise is replaced by the noise, so that features never
        become large.
    """
    # All values are in units of half the bounds' distance, where a deviation is at most 1.
    low, high = np.array(query.bounds).T
    middle, half = (low + high) / 2, (high - low) / 2
    means, spreads = middle, half
    if (terms := query.survey) is not None:
        frames = []
        for number, rows in enumerate(clients):
            frame = {str(k): column for k, column in enumerate(rows.T)}
            # By a key of its own for each client, so that draws of records are independent.
            if terms.unit == "client":
                # Copied, so that the client's other records are not kept.
                one = one_of_each(frame, key.fold_in("record", number))
                frame = {name: column.copy() for name, column in one.items()}
            frames.append(frame)
        answers = noisy_answers(terms, frames, key).values()
        mean, deviation = ([each[name] for each in answers] for name in ("mean", "deviation"))
        noise = np.array([each.noise_error for each in mean]) / half
        # The mean of two estimates, the middle and the noisy one, weighted by their precisions.
        shrunk = PRIOR_MEAN_ERROR**2 / (PRIOR_MEAN_ERROR**2 + noise**2)
        means = middle + shrunk * (np.array([each.estimate for each in mean]) - middle)
        root = np.array([each.estimate for each in deviation]) / half
        error = np.array([each.noise_error for each in deviation]) / half
        # The variance, or the error of its estimate where that is larger.
        variance = np.maximum(root**2, error * np.maximum(2 * root, error))
        spreads = half * np.sqrt(np.minimum(variance, 1.0))
    return FeatureStatistics(query.bounds, means.tolist(), spreads.tolist(), query.features)


def _as_bound(name: str, bound: Any) -> Bound:
    if np.ndim(bound) == 0:
        return validate.real(name, bound)
    return tuple(validate.array(name, bound).tolist())
