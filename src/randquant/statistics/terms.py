"""The terms of a table: its queries, the amplitude of each, and the noise that protects all.

A survey is public. Each client encodes its records by it as one integer vector and adds its share
of the noise; the sum of all is read by it. Derivations: `docs/theory/statistics.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant.channels.keys import Key
from randquant.mechanisms.noise.laplace import LARGEST_SCALE, DiscreteLaplace
from randquant.mechanisms.noise.laws import LARGEST_VARIANCE, DiscreteGaussian, Skellam
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.gaussian import gaussian_noise
from randquant.privacy.accounting.integer_noise import NoiseRelease
from randquant.privacy.accounting.laplace import LaplaceRelease
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Guarantee, Neighboring, Trust, Unit
from randquant.statistics import estimate
from randquant.statistics.blocks import Norm
from randquant.statistics.estimate import Answer
from randquant.statistics.query import Columns, Query, Totals

FINE = 2.0**10
"""Least standard deviation of the noise in a sum, in steps, that is aimed at."""

COARSEST = 16
"""Least amplitude."""

EXACT, LARGEST_SUM = 2**23, 2**29
"""Largest integers of a client's vector (exact in float32, as engines carry it), and of a sum."""

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
        unit: whether all of a client is protected, of which one record is taken, or one `example`.
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
        if self.amplitudes.keys() != self.queries.keys():
            raise ValueError("Expected an amplitude for each query, got others.")
        for each in self.amplitudes.values():
            validate.whole("amplitude", each, low=1, high=EXACT)
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
        validate.whole("bits", self.bits, low=2, high=32)
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
    def release(self) -> Release:
        """What accounting sees of the table: the release of one record."""
        distance = _distance(self.queries, self.amplitudes, self.norm)
        release = _release(self.law, self.cohort, self.trust, distance, self.dimension)
        return replace(release, one_example=self.unit == "example")

    @property
    def guarantee(self) -> Guarantee:
        """Of one record, or of a client with one record."""
        return account([self.release], self.delta)

    def of_client(self, rounds: int, neighboring: Neighboring) -> Release:
        """The release of all that a client sends, which knows that of one example.

        No record's vector is longer than two of them can be apart: so zeros are no farther.
        """
        distance = _distance(self.queries, self.amplitudes, self.norm)
        farther = self.most if self.norm == "l1" else self.most**2
        whole = _release(self.law, self.cohort, self.trust, farther * distance, self.dimension)
        known = distance if self.unit == "example" else None
        return replace(whole, rounds=rounds, neighboring=neighboring, example_distance=known)

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
        noise = estimate.SumNoise(math.sqrt(shares * self.law.variance), tail)
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
    """Choose amplitudes and the noise: by default all queries have the same relative error.

    Args:
        queries: by name.
        epsilon, delta: the target for one record, or one client with one record.
        trust: `central`, `aggregate` or `local`.
        clients: how many share the noise under `aggregate` trust.
        records: how many there are, about.
        weights: of queries whose relative error shall be as many times smaller than the others'.
        unit: what is protected: a `client`, or one `example` of a client.
        most: records of a client, at most; 1 for the unit of a client.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """
    validate.real("epsilon", epsilon, above=0, high=1e3)
    validate.real(
        "delta", delta, above=0, below=1,
        why="tables that noise is drawn from are off by some 1e-50; 1e-30 is as good as none",
    )  # fmt: skip
    named = _named(queries)
    relative = _relative(named, weights or {})
    validate.whole("clients", clients, low=2 if trust == "aggregate" else 1)
    validate.choice("unit", unit, ("client", "example"))
    validate.whole("most", most, low=1, high=1 if unit == "client" else EXACT // COARSEST)
    cohort = clients if trust == "aggregate" else 1
    fine = max(FINE, 8 * math.sqrt(max(records, 1)))
    widest = min(EXACT / most, LARGEST_SUM / max(records, most))
    found = []
    for norm in ("l1", "l2"):
        for amplitudes, law in _calibrated(
            named, relative, epsilon, delta, trust, cohort, (fine, widest), norm
        ):
            apart, spread = _apart(named, amplitudes, norm), 64 * math.sqrt(law.variance * clients)
            bits = math.ceil(math.log2(2 * (max(records, most) * apart + spread))) + 1
            found.append(Survey(named, amplitudes, law, cohort, trust, delta, unit, most, bits))
    if not found:
        raise ValueError(
            f"Expected fewer queries or a larger epsilon, got {len(named)} at epsilon={epsilon:g} "
            f"and delta={delta:g}: the noise would be too large for this arithmetic."
        )
    # The noise of a query, relative to its amplitude.
    return min(found, key=_loudness)


def _loudness(terms: Survey) -> float:
    largest = max(terms.amplitudes.values())
    tail = estimate.LAPLACE if terms.norm == "l1" else estimate.NORMAL
    return tail * math.sqrt(terms.cohort * terms.law.variance) / largest


def _calibrated(
    queries: Mapping[str, Query],
    relative: Mapping[str, float],
    epsilon: float,
    delta: float,
    trust: Trust,
    cohort: int,
    ends: tuple[float, float],
    norm: Norm,
) -> list[tuple[dict[str, int], Law]]:
    """Amplitudes and the least noise of this norm that meets the target; none if there is none."""
    unit = (
        _apart(queries, {name: round(1000 * each) for name, each in relative.items()}, norm) / 1000
    )
    dimension = sum(query.block().size for query in queries.values())
    # Noise at distance 1.
    per_step = 1 / epsilon if norm == "l1" else gaussian_noise(epsilon, delta)
    fine, widest = ends
    deviation = max(fine, COARSEST * unit * per_step / min(relative.values()))
    deviation = min(deviation, widest * per_step)
    amplitudes = {
        name: max(int(deviation / (per_step * unit) * each), 1) for name, each in relative.items()
    }
    apart = _apart(queries, amplitudes, norm)
    distance = _distance(queries, amplitudes, norm)
    noise = apart * per_step
    for _ in range(200):
        try:
            law = _law(noise, norm, trust, cohort)
        except ValueError:
            return []
        release = _release(law, cohort, trust, distance, dimension)
        if account([release], delta).epsilon <= epsilon:
            return [(amplitudes, law)]
        noise *= 1.0002 if norm == "l2" else 1 + 1e-9
    return []


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
    law: Law, cohort: int, trust: Trust, distance: int, dimension: int
) -> NoiseRelease | LaplaceRelease:
    if isinstance(law, DiscreteLaplace):
        return LaplaceRelease(
            law.scale, distance, law.distance(cohort), cohort, dimension, 1, trust=trust
        )
    return NoiseRelease(law, cohort, distance, dimension, 1, trust=trust)


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
        validate.answers(f"query {name!r}", each, "a query, such as rq.Mean(18, 100)", "block")
    return {str(name): each.named(str(name), queries) for name, each in queries.items()}


def _relative(queries: Mapping[str, Query], weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        validate.choice("weights' names", name, queries)
        validate.real(f"the weight of {name!r}", weight, low=0.01, high=100)
    return {name: float(weights.get(name, 1.0)) for name in queries}


def check_clients(clients: Sequence[Any], trust: Trust) -> None:
    """Refuse one client that only a sum would hide."""
    if trust == "aggregate" and len(clients) < 2:
        raise ValueError(
            "Expected at least 2 clients under aggregate trust, got 1: a sum of one client is its "
            "own; use trust='central' if whoever holds the records may see them."
        )
