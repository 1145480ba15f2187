"""Features and targets of mean 0 and deviation 1: their figures, asked for within a run's account.

The figures are the answers of a table of `randquant.statistics` on the clients of the run, and are
public once they are released: what is computed with them costs nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from randquant._internal import declared, validate
from randquant._internal.serialization import from_json
from randquant.channels.keys import Key
from randquant.privacy.guarantee import Trust, Unit
from randquant.statistics.asking import noisy_answers
from randquant.statistics.queries import Mean
from randquant.statistics.query import bounds
from randquant.statistics.records import one_of_each
from randquant.statistics.surveys import Survey, survey

Bound = float | tuple[float, ...]

MAX_BOUND, MIN_BOUNDS_DISTANCE = 1e30, 1e-30
"""Of bounds and their distances, so that float32 holds whatever is computed of them."""

PRIOR_MEAN_ERROR = 1 / 3
"""How far a mean is thought to be from the middle of its bounds, in halves of their distance."""


@dataclass(frozen=True, slots=True)
class Standardize:
    """Let a run bring features, and a regression's targets, to mean 0 and deviation 1.

    All clients are asked for means and deviations before the first round, in one table of
    `randquant.statistics` that counts in the run's guarantee. The model learns on what they give,
    and `run.model` takes features and gives predictions as they were before.

    Attributes:
        lower, upper: public bounds of the features, to which all are clipped: one number for all
            features, or one for each.
        target: (lower, upper) of a regression's targets, likewise; by default targets stay as they
            are, as labels do.
        share: part of the epsilon and delta that `spent` leaves, for the table; 0 to ask for
            nothing, and map the bounds to -1 and 1.

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
            object.__setattr__(self, name, _plain(name, getattr(self, name)))
        if self.target is not None:
            pair = validate.listed("target", self.target)
            if len(pair) != 2:
                raise ValueError(f"Expected target as (lower, upper), got {len(pair)} values.")
            object.__setattr__(self, "target", tuple(_plain("target", each) for each in pair))
        validate.real("share", self.share, low=0, high=0.9)
        declared.checked(self)
        for what in ("features", "target"):
            self.bounds(what)

    @classmethod
    def of(cls, value: Any) -> Standardize | None:
        """From a record, or as it is."""
        if isinstance(value, Mapping):
            return from_json(cls, dict(value))
        if value is not None:
            validate.kind("standardize", value, cls)
        return value

    def bounds(self, what: str, count: int | None = None) -> list[tuple[float, float]]:
        """(lower, upper) of each of so many features, or of a target's numbers; [] of no target.

        Raises:
            ValueError: they are bounds of another number of them, or no bounds.
        """
        ends: Any = (self.lower, self.upper) if what == "features" else self.target
        if ends is None:
            return []
        sizes = {len(each) for each in ends if isinstance(each, tuple)}
        many = max(sizes, default=1) if count is None else count
        if sizes - {many}:
            raise ValueError(
                f"Expected bounds of {many} {what}, or one for all, got {sorted(sizes - {many})[0]}"
                " in standardize."
            )
        pairs = list(zip(*(each if isinstance(each, tuple) else (each,) * many for each in ends),
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
        features: how many of them are features.
    """

    bounds: list[tuple[float, float]]
    means: list[float]
    spreads: list[float]
    features: int


class StandardizationQuery(NamedTuple):
    """The query for the means and spreads of one run's features and targets.

    Attributes:
        bounds: of the features, and of the targets.
        features: how many of them are features.
        terms: of the table; None if nothing is asked.
    """

    bounds: list[tuple[float, float]]
    features: int
    terms: Survey | None


def plan_query(
    settings: Standardize,
    columns: tuple[int, int],
    sizes: np.ndarray,
    left: tuple[float, float],
    trust: Trust | None,
    unit: Unit,
) -> StandardizationQuery:
    """Plan the query of a run; no data are looked at.

    Args:
        settings: of the user.
        columns: how many features there are, and numbers of a target.
        sizes: (N,) how many examples each client has, which is public.
        left: epsilon and delta of which the table has its share.
        trust: the run's.
        unit: what is protected.

    Raises:
        ValueError: the bounds are of others, or there is no such share.
    """
    features = settings.bounds("features", columns[0])
    targets = settings.bounds("target", columns[1])
    terms = None
    if settings.share:
        if not np.isfinite(left[0]) or trust not in ("aggregate", "local"):
            raise ValueError(
                "Expected an epsilon, and trust aggregate or local, with standardize, got "
                f"epsilon={left[0]} and {trust}: it asks with a share of epsilon, of the run's "
                "trust; give share=0 to use the bounds alone."
            )
        records, most = (
            (len(sizes), 1) if unit == "client" else (int(sizes.sum()), int(sizes.max()))
        )
        epsilon, delta = (settings.share * each for each in left)
        terms = _terms(
            (*features, *targets), epsilon, delta, trust, len(sizes), records, unit, most
        )
    return StandardizationQuery([*features, *targets], len(features), terms)


@functools.lru_cache(maxsize=8)  # a run asks for them whenever it is prepared
def _terms(
    pairs: tuple[tuple[float, float], ...], epsilon: float, delta: float, trust: Any, clients: int,
    records: int, unit: Unit, most: int,
) -> Survey:  # fmt: skip
    queries = {str(k): Mean(*each) for k, each in enumerate(pairs)}
    try:
        return survey(queries, epsilon, delta, trust, clients, records, None, unit, most)
    except ValueError as error:
        raise ValueError(
            f"Expected an epsilon of which a share, {epsilon} at delta={delta}, of what was "
            f"not spent before, pays for what standardises, but: {error} share=0 uses the bounds "
            "alone."
        ) from error


def ask_statistics(
    asked: StandardizationQuery, clients: list[np.ndarray], key: Key
) -> FeatureStatistics:
    """Ask the clients for noisy means and spreads.

    Args:
        asked: the query.
        clients: each one's (n, columns) float.
        key: of the noise. The same key and data give the same answers, bit for bit.

    Guarantees:
        Whatever noise does, means are within the bounds, and spreads above 0 and at most half of
        their distance. A spread that noise hides is taken as large as it may be.
    """
    low, high = np.array(asked.bounds).T
    middle, half = (low + high) / 2, (high - low) / 2
    means, spreads = middle, half
    if (terms := asked.terms) is not None:
        frames = [{str(k): column for k, column in enumerate(each.T)} for each in clients]
        if terms.unit == "client":
            frames = [one_of_each(f, key.fold_in("record", k)) for k, f in enumerate(frames)]
        answers = noisy_answers(terms, frames, key).values()
        mean, deviation = ([each[name] for each in answers] for name in ("mean", "deviation"))
        noise = np.array([each.noise_error for each in mean]) / half
        # Of two estimates, the middle and the noisy one, by their precisions.
        shrunk = PRIOR_MEAN_ERROR**2 / (PRIOR_MEAN_ERROR**2 + noise**2)
        means = middle + shrunk * (np.array([each.estimate for each in mean]) - middle)
        root = np.array([each.estimate for each in deviation]) / half
        error = np.array([each.noise_error for each in deviation]) / half
        variance = np.maximum(root**2, error * np.maximum(2 * root, error))  # theirs or its noise
        spreads = half * np.sqrt(np.minimum(variance, 1.0))
    return FeatureStatistics(asked.bounds, means.tolist(), spreads.tolist(), asked.features)


def _plain(name: str, bound: Any) -> Bound:
    """Return one number, or a tuple of them."""
    if np.ndim(bound) == 0:
        return validate.real(name, bound)
    return tuple(validate.array(name, bound).tolist())
