"""The terms of a table: its queries, the amplitude of each, and the noise that protects all.

A survey is public. Each client encodes its records by it as one integer vector and adds its share
of the noise; the sum of all is read by it. Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.serialization import to_json
from randquant.channels.keys import Key
from randquant.mechanisms.noise import (
    LARGEST_SCALE,
    LARGEST_VARIANCE,
    DiscreteGaussian,
    DiscreteLaplace,
    Skellam,
)
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.gaussian import gaussian_noise
from randquant.privacy.accounting.noise_releases import LaplaceRelease, NoiseRelease
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import LARGEST_COHORT, Guarantee, Neighboring, Trust, Unit
from randquant.statistics import estimate
from randquant.statistics.encodings import Norm
from randquant.statistics.estimate import Answer
from randquant.statistics.queries import Counts, Mean, Quantiles
from randquant.statistics.query import Columns, Query, Totals
from randquant.statistics.regression import Covariance, LinearRegression
from randquant.statistics.survival import KaplanMeier, LogRank

FINE = 2.0**10
"""Least standard deviation of the noise in a sum, in steps, that is aimed at."""

FINEST = 2.0**14
"""The same at most: tables of its law would take long."""

COARSEST = 16
"""Least amplitude."""

EXACT, LARGEST_SUM = 2**23, 2**29
"""Largest integers of a client's vector (exact in float32, as engines carry it), and of a sum."""

PARTS = 2**20
"""Steps that weights are rounded to."""

Law = DiscreteLaplace | DiscreteGaussian | Skellam


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The terms of one table.

    Attributes:
        queries: by name.
        amplitudes: of their blocks, in steps.
        law: each client's share of the noise on each number.
        cohort: how many shares the guarantee relies on.
        trust: who sees what.
        delta: of the guarantee.
        unit: whose vectors the distances are of: a client's, of which one record is taken, or those
            of one `example`.
        most: records of a client, at most.
        bits: of a modulus that no sum exceeds.
    """

    queries: Mapping[str, Query]
    amplitudes: Mapping[str, int]
    law: Law
    cohort: int
    trust: Trust
    delta: float
    unit: Unit
    most: int
    bits: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if self.amplitudes.keys() != self.queries.keys():
            raise ValueError("Expected an amplitude for each query, got others.")
        amplitudes = {
            name: validate.whole("amplitude", each, low=1, high=EXACT)
            for name, each in self.amplitudes.items()
        }
        object.__setattr__(self, "amplitudes", amplitudes)
        validate.choice("trust", self.trust, ("central", "aggregate", "local"))
        validate.whole("cohort", self.cohort, low=2 if self.trust == "aggregate" else 1)
        if isinstance(self.law, DiscreteLaplace) and self.law.clients != self.cohort:
            raise ValueError(
                f"Expected shares of {self.cohort} clients, the cohort, got {self.law.clients}: "
                "fewer would not add up to the noise."
            )
        validate.real("delta", self.delta, above=0, below=1)
        validate.choice("unit", self.unit, ("client", "example"))
        validate.whole("most", self.most, low=1, high=1 if self.unit == "client" else EXACT)
        validate.whole("bits", self.bits, low=2, high=64)
        _ = self.release  # checks the rest

    @property
    def norm(self) -> Norm:
        """In which distances count."""
        return "l1" if isinstance(self.law, DiscreteLaplace) else "l2"

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return sum(query.block().size for query in self.queries.values())

    @property
    def largest(self) -> float:
        """A bound of the integers of a client's vector, without noise."""
        return self.most * _apart(self.queries, self.amplitudes, self.norm)

    @property
    def release(self) -> Release:
        """What accounting sees of the table: the release of one record."""
        return self.released(1, "replace_one", self.unit)

    @property
    def guarantee(self) -> Guarantee:
        """Of one record, or of a client with one record."""
        return account([self.release], self.delta)

    def released(self, rounds: int, neighboring: Neighboring, unit: Unit) -> Release:
        """The release of so many rounds about all that a client sends, or about one record.

        No record's vector is longer than two of them can be apart: so zeros are no farther.

        Raises:
            ValueError: one record is asked about, where one of a client's records is drawn.
        """
        if unit == "example" != self.unit:
            # One record is the whole vector of a client that drew it: nothing less is derived.
            raise ValueError(
                "Expected a survey of unit='example' to count it for one record of a client, got "
                "one of unit='client', which draws one of each client's records: ask for a survey "
                "of examples."
            )
        distance = _distance(self.queries, self.amplitudes, self.norm)
        if unit == "client":
            distance *= self.most if self.norm == "l1" else self.most**2
        one = _release(
            self.law, self.cohort, self.trust, distance, self.dimension, unit == "example"
        )
        return replace(one, rounds=rounds, neighboring=neighboring)

    def vector(self, columns: Columns, key: Key) -> np.ndarray:
        """Add up the integers of all records, without noise: (dimension,) int64.

        Raises:
            ValueError, TypeError: a column is missing, or holds what its query cannot read.
        """
        parts = []
        for name, query in self.queries.items():
            try:
                rows = query.rows(columns)
            except KeyError as error:
                raise ValueError(
                    f"Expected a column {error} for the query {name!r}, got "
                    f"{', '.join(columns) or 'none'}."
                ) from None
            part = key.fold_in("rounding", name)
            parts.append(query.block().total(rows, self.amplitudes[name], self.norm, part))
        return np.concatenate(parts)

    def share(self, key: Key) -> np.ndarray:
        """Draw one share of the noise: (dimension,) int64."""
        return self.law.draw(self.dimension, key.fold_in("noise"))

    def read(self, totals: np.ndarray, records: int, clients: int = 1) -> dict[str, Answer]:
        """Estimate all answers from the noisy sum over so many records, of so many clients."""
        shares = 1 if self.trust == "central" else clients
        tail = estimate.LAPLACE if self.norm == "l1" else estimate.NORMAL
        # Of numbers rounded at random, each record adds at most 1/4.
        noise = estimate.SumNoise(math.sqrt(shares * self.law.variance + records / 4), tail)
        answers, start = {}, 0
        for name, query in self.queries.items():
            end = start + query.block().size
            part = Totals(totals[start:end], records, self.amplitudes[name], self.norm, noise)
            answers[name] = query.answer(part)
            start = end
        return answers


def survey(
    queries: Mapping[str, Query],
    epsilon: float,
    delta: float,
    trust: Trust,
    clients: int,
    records: int,
    weights: Mapping[str, float] | None = None,
    unit: Unit = "client",
    most: int = 1,
) -> Survey:
    """Choose amplitudes and the noise: by default equal parts of the distance of two records.

    That is what each query would have if the budget were split among them.

    Args:
        queries: by name.
        epsilon, delta: the target for one record, or one client with one record.
        trust: `central`, `aggregate` or `local`.
        clients: how many share the noise under `aggregate` trust.
        records: how many there are, about.
        weights: of queries: how many times smaller their error shall be, over the others', than in
            equal parts.
        unit: what is protected: a `client`, or one `example` of a client.
        most: records of a client, at most; 1 for the unit of a client.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """
    epsilon = validate.real(
        "epsilon", epsilon, low=1e-6, high=64, why="beyond, nobody is protected"
    )
    delta = validate.real(
        "delta", delta, low=1e-100, high=0.1,
        why="tables that noise is drawn from are off by some 1e-50; 1e-30 is as good as none",
    )  # fmt: skip
    named = _named(queries)
    relative = _relative(named, {} if weights is None else weights)
    clients = validate.whole("clients", clients, low=1)
    check_clients(clients, trust)
    validate.choice("unit", unit, ("client", "example"))
    most = validate.whole("most", most, low=1, high=1 if unit == "client" else EXACT // COARSEST)
    records = max(validate.whole("records", records, low=0), most)
    # More shares than are counted on only add to the noise.
    cohort = min(clients, LARGEST_COHORT) if trust == "aggregate" else 1
    fine = min(max(FINE, 8 * math.sqrt(records)), FINEST)
    widest = math.inf if trust == "central" else min(EXACT / most, LARGEST_SUM / records)
    per_step: dict[Norm, float] = {"l1": 1 / epsilon, "l2": gaussian_noise(epsilon, delta)}
    tails = {"l1": estimate.LAPLACE * math.sqrt(2), "l2": estimate.NORMAL}

    def loudness(norm: Norm) -> float:
        """Noise of queries relative to their amplitudes, in the logarithmic mean."""
        parts = _parts(named, relative, norm)
        noise = tails[norm] * per_step[norm] * _apart(named, parts, norm)
        return sum(math.log(noise / each) for each in parts.values())

    for norm in sorted(per_step, key=loudness):
        found = _calibrated(
            named, _parts(named, relative, norm), epsilon, delta, trust, cohort, (fine, widest),
            norm, per_step[norm],
        )  # fmt: skip
        if found:
            amplitudes, law = found
            spread = 64 * math.sqrt(law.variance * clients)
            largest = records * _apart(named, amplitudes, norm) + spread
            bits = math.ceil(math.log2(2 * largest)) + 1
            return Survey(named, amplitudes, law, cohort, trust, delta, unit, most, bits)
    raise ValueError(
        f"Expected fewer queries, or another target, got {len(named)} at epsilon={epsilon} and "
        f"delta={delta:g}: the noise would be too large for this arithmetic."
    )


def _calibrated(
    queries: Mapping[str, Query],
    parts: Mapping[str, int],
    epsilon: float,
    delta: float,
    trust: Trust,
    cohort: int,
    ends: tuple[float, float],
    norm: Norm,
    per_step: float,
) -> tuple[dict[str, int], Law] | None:
    """Amplitudes and the least noise of this norm that meets the target; None if there is none.

    Args:
        parts: amplitudes in proportion to those that are sought.
        ends: the least noise to aim at, and the largest distance of two records.
        per_step: about what noise is needed at distance 1.
    """
    unit = _apart(queries, parts, norm)
    dimension = sum(query.block().size for query in queries.values())
    fine, widest = ends
    deviation = max(fine, COARSEST * unit * per_step / min(parts.values()))
    deviation = min(deviation, widest * per_step)
    amplitudes = {
        name: max(int(deviation / (per_step * unit) * each), 1) for name, each in parts.items()
    }
    distance = _distance(queries, amplitudes, norm)
    noise = _apart(queries, amplitudes, norm) * per_step * (1 + 1e-9)
    for _ in range(200):
        try:
            law = _law(noise, norm, trust, cohort)
        except ValueError:
            return None
        reached = account([_release(law, cohort, trust, distance, dimension)], delta).epsilon
        if reached <= epsilon:
            return amplitudes, law
        if math.isinf(reached):  # the distance to the law alone is beyond delta
            return None
        noise *= 1.0002
    return None


def _parts(
    queries: Mapping[str, Query], weights: Mapping[str, float], norm: Norm
) -> dict[str, int]:
    """Amplitudes at which weights are parts of the distance, about 2**20 and exact to as much."""
    alone = {name: _apart({name: query}, {name: PARTS}, norm) for name, query in queries.items()}
    return {name: round(PARTS**2 * each / alone[name]) for name, each in weights.items()}


def _law(noise: float, norm: Norm, trust: Trust, cohort: int) -> Law:
    """One share of noise of this deviation (Laplace noise: of this scale); ValueError if none."""
    if norm == "l1":
        if noise > LARGEST_SCALE:
            raise ValueError("the table of its law would be too long")
        return DiscreteLaplace(noise, cohort)
    variance = noise**2 / cohort
    if variance > LARGEST_VARIANCE:
        raise ValueError("the table of its law would be too long")
    return DiscreteGaussian(variance) if cohort == 1 else Skellam(variance)


def _release(
    law: Law, cohort: int, trust: Trust, distance: int, dimension: int, one_example: bool = False
) -> NoiseRelease | LaplaceRelease:
    if isinstance(law, DiscreteLaplace):
        return LaplaceRelease(
            law.scale, distance, law.distance(cohort), cohort, dimension, 1, trust=trust,
            one_example=one_example,
        )  # fmt: skip
    return NoiseRelease(law, cohort, distance, dimension, 1, trust=trust, one_example=one_example)


def _distance(queries: Mapping[str, Query], amplitudes: Mapping[str, int], norm: Norm) -> int:
    """Of two records' vectors: squared in L2."""
    # theory/statistics.md, Proposition 1: blocks are coordinates of one vector.
    return sum(query.block().distance(amplitudes[name], norm) for name, query in queries.items())


def _apart(queries: Mapping[str, Query], amplitudes: Mapping[str, int], norm: Norm) -> float:
    distance = _distance(queries, amplitudes, norm)
    return float(distance) if norm == "l1" else math.sqrt(distance)


def _named(queries: Any) -> dict[str, Query]:
    if not isinstance(queries, Mapping) or not queries:
        raise TypeError(
            "Expected queries by name, such as {'age': rq.Mean(18, 100)}, got "
            f"{validate.shown(queries)}."
        )
    for name, each in queries.items():
        wanted = "a query, such as rq.Mean(18, 100)"
        validate.answers(f"query {name!r}", each, wanted, "block", "rows", "answer")
        if isinstance(each, type):
            raise TypeError(
                f"Expected query {name!r} to be {wanted}, got the class {each.__name__}."
            )
    return {str(name): each.named(str(name), queries) for name, each in queries.items()}


def _relative(queries: Mapping[str, Query], weights: Mapping[str, float]) -> dict[str, float]:
    validate.kind("weights", weights, Mapping)
    for name in weights:
        validate.choice("weights' names", name, queries)
    return {
        name: validate.real(f"the weight of {name!r}", weights.get(name, 1.0), low=0.01, high=100)
        for name in queries
    }


def check_clients(clients: int, trust: Trust) -> None:
    """Refuse one client that only a sum would hide."""
    if trust == "aggregate" and clients < 2:
        raise ValueError(
            f"Expected at least 2 clients under aggregate trust, got {clients}: a sum of one "
            "client is its own; use trust='central' if whoever holds the records may see them."
        )


# A survey as JSON data, for the messages and files of engines.

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
