"""The terms of a table: its queries, the amplitude of each, and the noise that protects all.

A survey is public. Each client encodes its records by it as one integer vector and adds its share
of the noise; the sum of all is read by it. Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import to_json
from randquant.aggregation.additive import describe_parties
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
from randquant.privacy.accounting.release_protocol import Release
from randquant.privacy.accounting.releases import LaplaceRelease, NoiseRelease
from randquant.privacy.guarantee import LARGEST_COHORT, Guarantee, Neighboring, Trust, Unit
from randquant.statistics.counts import Counts, KaplanMeier, LogRank, Quantiles
from randquant.statistics.moments import Covariance, LinearRegression, Mean
from randquant.statistics.query import (
    LAPLACE_HALF_WIDTH,
    NORMAL_HALF_WIDTH,
    Answer,
    Columns,
    Norm,
    Query,
    SumNoise,
    Totals,
)

MIN_DEVIATION_STEPS = 2.0**10
"""Smallest standard deviation of the noise in a sum that is aimed at, in steps of the integers. The
finer the steps, the less random rounding adds to the errors: for few records next to nothing."""

MAX_DEVIATION_STEPS = 2.0**14
"""Largest such deviation: the tables from which noise is drawn grow in proportion to it."""

MIN_AMPLITUDE_STEPS = 16
"""Smallest amplitude that is aimed at. Amplitudes are rounded down to whole steps, so a query loses
at most 1/16 of its accuracy to that; with 8 it would be 1/8."""

MAX_VECTOR_VALUE = 2**23
"""Largest integer of a client's vector that is aimed at. Engines carry vectors as float32, which
holds whole numbers up to twice this value exactly."""

MAX_SUM_VALUE = 2**29
"""Largest integer of a sum without noise that is aimed at; with noise and sign it fits 32 bits."""

WEIGHT_STEPS = 2**20
"""Resolution of the queries' weights: they are whole multiples of one in about a million."""

Law = DiscreteLaplace | DiscreteGaussian | Skellam

NoiseOf = Literal["clients", "helper", "parties"]
NOISE_MODES: tuple[NoiseOf, ...] = ("clients", "helper", "parties")


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The terms of one table.

    All queries are answered by one release: their blocks are coordinates of one vector, and the
    distances of blocks add up, squared in L2, whether or not they ask the same column
    (docs/theory/statistics.md, Proposition 1).

    Attributes:
        queries: by name.
        amplitudes: of their blocks, in steps.
        law: distribution of each client's share of the noise, on each integer.
        cohort: number of shares that the guarantee relies on.
        trust: central, aggregate or local; see `statistics`.
        delta: of the guarantee.
        unit: what is protected: a `client`, of which one record is drawn, or one `example`.
        most: largest number of records of a client.
        bits: binary logarithm of a modulus that no sum exceeds.
        noise: who adds it under aggregate trust: `clients` share it; or the `helper` of the secure
            sum adds all of it; or the `parties`, the helper and the server, each add all of it.
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
    noise: NoiseOf = "clients"

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if self.amplitudes.keys() != self.queries.keys():
            raise ValueError(
                f"Expected an amplitude for each query of {validate.shown(list(self.queries))}, "
                f"got {validate.shown(list(self.amplitudes))}."
            )
        amplitudes = {
            name: validate.whole("amplitude", each, low=1, high=MAX_VECTOR_VALUE)
            for name, each in self.amplitudes.items()
        }
        object.__setattr__(self, "amplitudes", amplitudes)
        validate.choice("trust", self.trust, ("central", "aggregate", "local"))
        self._check_noise()
        if isinstance(self.law, DiscreteLaplace) and self.law.clients != self.cohort:
            raise ValueError(
                f"Expected shares of {self.cohort} clients, the cohort, got {self.law.clients}: "
                "fewer would not add up to the noise."
            )
        validate.real("delta", self.delta, above=0, below=1)
        validate.choice("unit", self.unit, ("client", "example"))
        most_allowed = 1 if self.unit == "client" else MAX_VECTOR_VALUE
        validate.whole("most", self.most, low=1, high=most_allowed)
        validate.whole("bits", self.bits, low=2, high=64)
        _ = self.release  # the releases and accounts check law, distance and dimension

    def _check_noise(self) -> None:
        validate.choice("noise", self.noise, NOISE_MODES)
        if self.noise == "clients":
            validate.whole("cohort", self.cohort, low=2 if self.trust == "aggregate" else 1)
        elif (self.trust, self.cohort, type(self.law)) != ("aggregate", 1, DiscreteGaussian):
            raise ValueError(
                f"Expected aggregate trust, a cohort of 1 and discrete Gaussian noise with "
                f"noise={self.noise!r}, got {self.trust} trust, a cohort of {self.cohort} and "
                f"{type(self.law).__name__}: a helper draws no other noise."
            )

    @property
    def norm(self) -> Norm:
        return "l1" if isinstance(self.law, DiscreteLaplace) else "l2"

    @property
    def notes(self) -> list[str]:
        """Sentences on what the guarantee relies on, if it is not the clients' own noise."""
        return [] if self.noise == "clients" else [describe_parties(self.noise == "parties")]

    @property
    def dimension(self) -> int:
        return sum(query.block().size for query in self.queries.values())

    @property
    def largest(self) -> float:
        # Upper bound of the absolute integers of a client's vector, without noise: an integer is at
        # most the vector's norm, and the norm at most the distance of two records.
        return self.most * _record_distance(self.queries, self.amplitudes, self.norm)

    @property
    def release(self) -> Release:
        return self.released(1, "replace_one", self.unit)

    @property
    def guarantee(self) -> Guarantee:
        # For one record, or for a client with one record, by the unit of the survey.
        return self.under("replace_one")

    def under(self, neighboring: Neighboring) -> Guarantee:
        """Return the guarantee under a neighbouring relation, for the unit of the survey."""
        return account([self.released(1, neighboring, self.unit)], self.delta)

    def released(self, rounds: int, neighboring: Neighboring, unit: Unit) -> Release:
        """Return the release of several rounds for a whole client, or for one record.

        The distance also covers `zero_out` neighbours: no record's vector is longer than the
        distance of two records.

        Raises:
            ValueError: the unit is one record, but the survey draws one of each client's records.
        """
        if unit == "example" != self.unit:
            # With some probability the exchanged record is the one drawn, and then the whole vector
            # changes; no smaller bound is derived (theory/statistics.md, Proposition 1).
            raise ValueError(
                "Expected a survey of unit='example' to count it for one record of a client, got "
                "one of unit='client', which draws one of each client's records: ask for a survey "
                "of examples."
            )
        distance = _distance(self.queries, self.amplitudes, self.norm)
        if unit == "client":
            # All records of a client may change at once; in L2 `distance` is a square.
            distance *= self.most if self.norm == "l1" else self.most**2
        one_round = _release(
            self.law, self.cohort, self.trust, distance, self.dimension, unit == "example"
        )
        return replace(one_round, rounds=rounds, neighboring=neighboring)

    def certified(self, dimension: int = 0) -> dict[str, Any]:
        """Return what `release` is of, as a certificate file states it; names say nothing there."""
        blocks = [(query.block(), self.amplitudes[name]) for name, query in self.queries.items()]
        table = {"kind": "table", "noise": self.law, "most": self.most, "blocks": blocks}
        if self.noise != "clients":
            parties = ["helper"] if self.noise == "helper" else ["helper", "server"]
            table |= {"kind": "party table", "parties": parties}
        return {**table, "update": None, "examples": None}

    def vector(self, columns: Columns, key: Key, *, lenient: bool = False) -> np.ndarray:
        """Add up the integers of all records, without noise: (dimension,) int64.

        Args:
            columns: of the records.
            key: of the rounding.
            lenient: whether a record with a value that a query cannot read is missing there.

        Raises:
            ValueError, TypeError: a column is missing, or has a value that its query cannot read.
        """
        blocks = []
        for name, query in self.queries.items():
            try:
                rows = _lenient_rows(name, query, columns) if lenient else query.rows(columns)
            except KeyError as error:
                raise ValueError(
                    f"Expected a column {error} for the query {name!r}, got "
                    f"{', '.join(columns) or 'no columns'}."
                ) from None
            # By name: how one query is rounded does not depend on which others are asked.
            rounding = key.fold_in("rounding", name)
            blocks.append(query.block().total(rows, self.amplitudes[name], self.norm, rounding))
        return np.concatenate(blocks)

    def share(self, key: Key) -> np.ndarray:
        return self.law.draw(self.dimension, key.fold_in("noise"))

    def shares(self, clients: int) -> int:
        """Return how many draws of the law are in a sum over this many clients."""
        return _shares(self.noise, self.trust, clients)

    def read(self, totals: np.ndarray, records: int, clients: int = 1) -> dict[str, Answer]:
        """Estimate all answers from the noisy sum.

        Args:
            totals: (dimension,) the sum.
            records: number of records in it.
            clients: number of clients in it.
        """
        shares = self.shares(clients)
        tail = LAPLACE_HALF_WIDTH if self.norm == "l1" else NORMAL_HALF_WIDTH
        # Rounding at random has a variance of at most 1/4 per record.
        noise = SumNoise(math.sqrt(shares * self.law.variance + records / 4), tail)
        # All answers are computed from the one noisy sum, and cost nothing more than it.
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
    noise: NoiseOf = "clients",
) -> Survey:
    """Choose amplitudes and noise that meet a target.

    By default all queries have equal parts of the distance of two records, as if the budget were
    split equally among them.

    Args:
        queries: by name.
        epsilon, delta: the target for one record, or one client with one record.
        trust: `central`, `aggregate` or `local`.
        clients: number of clients, who share the noise under `aggregate` trust.
        records: approximate number of records.
        weights: of queries: by how much their errors shall shrink, relative to the errors of the
            others, compared with equal parts.
        unit: what is protected: a `client`, or one `example` of a client.
        most: largest number of records of a client; 1 for the unit of a client.
        noise: of whom, as in `Survey`.

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
    check_clients(clients, trust, noise)
    validate.choice("unit", unit, ("client", "example"))
    most_allowed = 1 if unit == "client" else MAX_VECTOR_VALUE // MIN_AMPLITUDE_STEPS
    most = validate.whole("most", most, low=1, high=most_allowed)
    records = max(validate.whole("records", records, low=0), most)
    # Shares beyond the cohort only add to the noise (theory/statistics.md, Proposition 2).
    shared = trust == "aggregate" and noise == "clients"
    cohort = min(clients, LARGEST_COHORT) if shared else 1
    # Rounding's deviation is at most sqrt(records) / 2: 16 times as much noise hides it.
    smallest = min(max(MIN_DEVIATION_STEPS, 8 * math.sqrt(records)), MAX_DEVIATION_STEPS)
    carried = min(MAX_VECTOR_VALUE / most, MAX_SUM_VALUE / records)
    # A trusted server adds in 64 bits. Elsewhere clients' vectors travel as floats of 32 bits, and
    # sums modulo 2**32 at most.
    widest = math.inf if trust == "central" else carried
    per_step: dict[Norm, float] = {"l1": 1 / epsilon, "l2": gaussian_noise(epsilon, delta)}
    # Where the first norm is beyond the arithmetic, the other one.
    for norm in _norms(named, relative, per_step, noise):
        calibrated = _calibrated(
            named, _parts(named, relative, norm), epsilon, delta, trust, cohort, (smallest, widest),
            norm, per_step[norm],
        )  # fmt: skip
        if calibrated:
            amplitudes, law = calibrated
            largest = records * _record_distance(named, amplitudes, norm)
            bits = _sum_bits(largest, law.variance * _shares(noise, trust, clients))
            return Survey(named, amplitudes, law, cohort, trust, delta, unit, most, bits, noise)
    raise ValueError(
        f"Expected fewer queries, or another target, got {len(named)} at epsilon={epsilon} and "
        f"delta={delta:g}: the noise would be too large for this arithmetic."
    )


def _norms(
    queries: Mapping[str, Query],
    relative: Mapping[str, float],
    per_step: Mapping[Norm, float],
    noise: NoiseOf,
) -> list[Norm]:
    """Return the norms whose noise may be drawn, that of the shorter intervals first."""
    if noise != "clients":  # a helper draws Gaussian noise alone
        return ["l2"]
    tails = {"l1": LAPLACE_HALF_WIDTH * math.sqrt(2), "l2": NORMAL_HALF_WIDTH}

    def relative_length(norm: Norm) -> float:
        # The sum of the logarithms of interval lengths, relative to amplitudes.
        parts = _parts(queries, relative, norm)
        width = tails[norm] * per_step[norm] * _record_distance(queries, parts, norm)
        return sum(math.log(width / part) for part in parts.values())

    return sorted(per_step, key=relative_length)


def _sum_bits(largest: float, variance: float) -> int:
    # 64 deviations of all the noise: no sum is beyond, but with a probability far below any delta,
    # and then an answer is wrong, not the guarantee.
    return math.ceil(math.log2(2 * (largest + 64 * math.sqrt(variance)))) + 1


def _shares(noise: NoiseOf, trust: Trust, clients: int) -> int:
    if noise != "clients":
        return 2 if noise == "parties" else 1
    return 1 if trust == "central" else clients


def _lenient_rows(name: str, query: Query, columns: Columns) -> np.ndarray:
    try:
        return query.rows(columns)
    except (TypeError, ValueError):
        pass  # some record cannot be read: each is read by itself
    missing = query.rows({column: np.array([None]) for column in columns})
    rows, unread = [], 0
    for k in range(len(next(iter(columns.values())))):
        try:
            rows.append(query.rows({c: values[k : k + 1] for c, values in columns.items()}))
        except (TypeError, ValueError):
            rows.append(missing)
            unread += 1
    # For the caller alone, so without a value: engines never send a warning.
    warnings.warn(
        f"Expected records that the query {name!r} can read, got {unread} that it cannot: they "
        "count as missing.",
        UserWarning,
        stacklevel=validate.callers(),
    )
    return np.concatenate(rows)


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
    """Return amplitudes and the least noise that meets the target, or None if it is out of reach.

    Args:
        parts: relative amplitudes.
        ends: smallest deviation of the noise to aim at, and largest distance of two records.
        norm: of the noise.
        per_step: approximate noise that distance 1 needs.
    """
    unit = _record_distance(queries, parts, norm)
    dimension = sum(query.block().size for query in queries.values())
    smallest, widest = ends
    deviation = max(smallest, MIN_AMPLITUDE_STEPS * unit * per_step / min(parts.values()))
    deviation = min(deviation, widest * per_step)
    amplitudes = {
        name: max(int(deviation / (per_step * unit) * part), 1) for name, part in parts.items()
    }
    # Of the amplitudes as they were rounded to whole steps, not of those that were aimed at.
    distance = _distance(queries, amplitudes, norm)
    noise = _record_distance(queries, amplitudes, norm) * per_step * (1 + 1e-9)
    # The first value is for continuous noise of one client; the account of the discrete law decides
    # and needs little more: 200 steps are 4 %.
    for _ in range(200):
        try:
            law = _law(noise, norm, trust, cohort)
        except ValueError:
            return None
        reached = account([_release(law, cohort, trust, distance, dimension)], delta).epsilon
        if reached <= epsilon:
            return amplitudes, law
        # Infinite where the tables' distance to their law is beyond delta: no noise can help.
        if math.isinf(reached):
            return None
        noise *= 1.0002
    return None


def _parts(
    queries: Mapping[str, Query], weights: Mapping[str, float], norm: Norm
) -> dict[str, int]:
    # Relative amplitudes, about 2**20, at which the queries' distances have the ratios of weights.
    distances = {
        name: _record_distance({name: query}, {name: WEIGHT_STEPS}, norm)
        for name, query in queries.items()
    }
    return {
        name: round(WEIGHT_STEPS**2 * weight / distances[name]) for name, weight in weights.items()
    }


def _law(noise: float, norm: Norm, trust: Trust, cohort: int) -> Law:
    """Return the law of one share of the noise; ValueError if its table would be too long.

    `noise` is the deviation of all shares together, or the scale of Laplace noise.
    """
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
    # theory/statistics.md, Proposition 1: blocks are coordinates of one vector, so their distances
    # add up: squared in L2, plain in L1.
    return sum(query.block().distance(amplitudes[name], norm) for name, query in queries.items())


def _record_distance(
    queries: Mapping[str, Query], amplitudes: Mapping[str, int], norm: Norm
) -> float:
    # Not squared, in either norm.
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


def check_clients(clients: int, trust: Trust, noise: NoiseOf = "clients") -> None:
    validate.choice("noise", noise, NOISE_MODES)
    if noise != "clients" and trust != "aggregate":
        raise ValueError(
            f"Expected trust='aggregate' with noise={noise!r}, got trust={trust!r}: the helper of "
            "a secure sum adds it."
        )
    if trust == "aggregate" and noise == "clients" and clients < 2:
        raise ValueError(
            f"Expected at least 2 clients under aggregate trust, got {clients}: the sum of one "
            "client hides nothing; use trust='central' if the holder of the records may see them."
        )


# A survey as JSON data, for the messages and files of engines.

KINDS: dict[str, type] = {
    "mean": Mean, "counts": Counts, "quantiles": Quantiles, "kaplan-meier": KaplanMeier,
    "log-rank": LogRank, "covariance": Covariance, "linear-regression": LinearRegression,
}  # fmt: skip
"""Queries by their names in files and messages."""

LAWS: dict[str, type] = {
    "discrete-laplace": DiscreteLaplace, "discrete-gaussian": DiscreteGaussian, "skellam": Skellam,
}  # fmt: skip

MAX_QUERIES = 256
"""Largest number of queries of a survey from a text, which a hostile server may have written: a
client's work and message grow with it."""


def query_from(fields: Mapping[str, Any]) -> Query:
    """Make a query from its kind and its arguments by name.

    Raises:
        ValueError, TypeError: the kind is unknown, or an argument is missing or wrong.

    Example:
        >>> query_from({"kind": "mean", "low": 18, "high": 100})
        Mean(low=18.0, high=100.0, column='')
    """
    if not isinstance(fields, Mapping):
        raise TypeError(f"Expected a query's kind and arguments, got {validate.shown(fields)}.")
    arguments = dict(fields)
    # A text may come from a hostile server: it chooses among these names, never a class.
    kind = validate.choice("kind", arguments.pop("kind", None), KINDS)
    return validate.call(kind, KINDS[kind], arguments)


def survey_text(survey: Survey) -> str:
    """Return a survey as one line of JSON; equal surveys have equal texts."""
    names = {kind: name for name, kind in {**KINDS, **LAWS}.items()}
    queries = {
        name: {"kind": names[type(query)], **dataclasses.asdict(query)}  # type: ignore[call-overload]
        for name, query in survey.queries.items()
    }
    law = {"law": names[type(survey.law)], **dataclasses.asdict(survey.law)}
    terms = {name: getattr(survey, name) for name in FIELDS}
    if survey.noise != "clients":  # the text of the others is that of version 0.1.0
        terms["noise"] = survey.noise
    return json.dumps(to_json({**terms, "queries": queries, "law": law}))


FIELDS = ("amplitudes", "cohort", "trust", "delta", "unit", "most", "bits")


@functools.lru_cache(maxsize=8)
def survey_from(text: str) -> Survey:
    """Read the text of a survey, which need not be trusted: its distances are computed again.

    Raises:
        ValueError: it is not the text of a survey.
    """
    try:
        record = json.loads(text)
        queries = {name: query_from(fields) for name, fields in record.pop("queries").items()}
        if len(queries) > MAX_QUERIES:
            raise ValueError(f"it has {len(queries)} queries, more than {MAX_QUERIES}")
        parameters = dict(record.pop("law"))
        law = validate.call("law", LAWS[parameters.pop("law")], parameters)
        if record.keys() - {"noise"} != set(FIELDS):
            raise ValueError(f"its fields are {validate.shown(list(record))}, not {FIELDS}")
        return Survey(
            queries={name: query.named(name, queries) for name, query in queries.items()},
            law=law, **record,
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
