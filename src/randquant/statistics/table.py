"""A table of answers with its guarantee, and `statistics`, which asks clients' records for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import count
from randquant.channels.keys import Key
from randquant.privacy.accounting.accountant import (
    by_relation,
    other_relation_lines,
    under_other_relation,
)
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import UNITS, Guarantee, Neighboring, Unit
from randquant.statistics.estimate import Answer, ends
from randquant.statistics.query import Columns, Query
from randquant.statistics.records import one_of_each, read_frames
from randquant.statistics.surveys import Survey, check_clients, survey


@dataclass(frozen=True, slots=True, eq=False)
class Table(Mapping[str, Answer]):
    """Answers by the names of their queries.

    Attributes:
        answers: by name.
        records: number of records in the sums, which is public.
        clients: number of clients.
        guarantee: of the whole table.
        guarantees: the same by neighbouring relation, for which each is proven.
        terms: public: its queries, amplitudes and noise.
        release: the input of further accounting: `rq.account([table.release, ...], delta)`.
    """

    answers: Mapping[str, Answer]
    records: int
    clients: int
    guarantee: Guarantee
    terms: Survey

    @property
    def release(self) -> Release:
        # To account for it with other tables and runs.
        return self.terms.release

    def __getitem__(self, name: str) -> Answer:
        return self.answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def guarantees(self) -> Mapping[Neighboring, Guarantee]:
        """The guarantee by neighbouring relation."""
        return by_relation(self.guarantee, self.other_relation)

    @property
    def other_relation(self) -> Guarantee | None:
        """The guarantee under the relation that `guarantee` is not for."""
        return under_other_relation(
            self.guarantee, lambda each: cast(Any, replace)(self.release, neighboring=each)
        )

    def __str__(self) -> str:
        rows = [("", "estimate", "95 % interval", "noise", "sampling")]
        for name, answer in self.items():
            for label, estimate in answer.items():
                # Both ends are rounded outward, so the printed interval contains the computed one.
                rows.append(
                    (f"{name}: {label}", f"{estimate.estimate:.4g}", ends(estimate.interval),
                     f"{estimate.noise_error:.2g}", f"{estimate.sampling_error:.2g}")
                )  # fmt: skip
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in
                       zip(row[1:], widths[1:], strict=True))]).rstrip()
            for row in rows
        ]  # fmt: skip
        size = f"{count(self.records, 'record')} of {count(self.clients, 'client')}"
        guarantees = [f"{size}; {self.guarantee}", *other_relation_lines(self.other_relation)]
        return "\n".join([*lines, *guarantees, *self.terms.notes])


def statistics(
    clients: Any,
    epsilon: float,
    delta: float = 1e-6,
    *,
    queries: Mapping[str, Query],
    trust: Literal["central", "aggregate", "local"] = "aggregate",
    unit: Unit = "client",
    noise: Literal["clients", "helper", "parties"] = "clients",
    weights: Mapping[str, float] | None = None,
    seed: int | None = None,
) -> Table:
    """Ask all queries at once, with one guarantee for the whole table.

    Every record becomes one vector of integers that all queries share, bounded by public bounds;
    the sum of all vectors is released with integer noise, and all answers are computed from it.

    Args:
        clients: a sequence or mapping with one entry per client: a mapping of values (one record),
            or columns of many records (a mapping of arrays, or a table of pandas, polars or arrow);
            or one such table, whose rows are the clients. None and NaN are missing values.
        epsilon, delta: the target, in nats, and the probability with which it may fail.
        queries: `Mean`, `Counts`, `Quantiles`, `KaplanMeier`, `LogRank`, `Covariance` and
            `LinearRegression` by name; of the column of that name unless they name another one.
        trust: `aggregate`, each client adds a share of the noise and the server sees only the sum
            (this simulation computes the sum itself); `local`, each client adds all of the noise,
            and the server sees each client's message; `central`, the party that calls this function
            sees the records and is trusted.
        unit: what is protected: a whole `client`, of whose records one is drawn at random, so that
            a client with many records counts once, and one without records as a missing record; or
            one record of a client, an `example` such as a patient of a hospital. Sampling errors
            assume independent records: if patients of one hospital are alike, they are too small.
        noise: who adds it under `aggregate` trust: `clients`; or the `helper` of the secure sum; or
            the `parties`, helper and server each. Then no figure counts on other clients, and the
            noise is Gaussian (docs/theory/statistics.md, Proposition 4).
        weights: by query: by how much its error shall shrink, relative to the errors of the others,
            compared with an equal split of the budget.
        seed: a simulation seed, which can undo the noise; None for a secret key.

    Returns:
        A Table. The number of clients, and for unit='example' the number of records of each, are
        public: neighbouring tables have equally many records. Errors are public too: they name the
        wrong value to the caller.

    Guarantees:
        The noise is drawn from exactly the certified law (up to a distance that delta pays for),
        and the vectors of any two records lie within the certified distance, whatever their values
        are.
        Each interval is built to contain its number in at least 95 of 100 tables. This is checked
        by simulation, over tied, heaped, missing, unbalanced and very few records, and not proven;
        its assumptions are in `docs/statistics.md`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind; the error names
            the client if it is about a client's records.

    Example:
        >>> from randquant.statistics import Counts, Mean
        >>> people = [{"age": 20 + k % 60, "sex": "fm"[k % 2]} for k in range(6000)]
        >>> queries = {"age": Mean(18, 100), "sex": Counts(["f", "m"])}
        >>> table = statistics(people, epsilon=1, queries=queries)
        >>> table.guarantee.epsilon <= 1, bool(abs(table["age"].estimate - 49.5) < 2)
        (True, True)
    """
    validate.choice("trust", trust, ("central", "aggregate", "local"))
    validate.choice("unit", unit, UNITS)
    frames, single = read_frames(clients)
    key = Key.generate() if seed is None else Key.from_seed(seed)
    if single and unit == "example":
        raise ValueError(
            "Expected clients with columns of many records for unit='example', got one record "
            "each: use unit='client'."
        )
    if not single and unit == "client":
        # One record per client, drawn independently of its values: exchanging the client then
        # exchanges one record (theory/statistics.md, Proposition 1).
        frames = [one_of_each(frame, key.fold_in("record", k)) for k, frame in enumerate(frames)]
    lengths = [len(next(iter(frame.values()))) for frame in frames]
    records = sum(lengths)
    count = records if single else len(frames)
    check_clients(count, trust, noise)
    most = 1 if unit == "client" else max(1, *lengths)
    terms = survey(queries, epsilon, delta, trust, count, records, weights, unit, most, noise)
    guarantee = replace(terms.guarantee, simulated=seed is not None)
    answers = noisy_answers(terms, frames, key, count)
    return Table(answers, records, count, guarantee, terms)


def noisy_answers(
    terms: Survey, frames: Sequence[Columns], key: Key, clients: int | None = None
) -> dict[str, Answer]:
    """Answer the queries of a table from a noisy sum, all of whose noise is drawn with a key.

    Args:
        terms: of the table.
        frames: columns of each client, or of all of them together.
        key: a secret, because it determines the noise: with it, the noise can be subtracted.
        clients: number of clients; by default the number of frames.
    """
    count = len(frames) if clients is None else clients
    totals = np.zeros(terms.dimension, np.int64)
    for k, frame in enumerate(frames):
        totals += terms.vector(frame, key.fold_in("client", k))
    # Each share by itself, as in a deployment: this simulation has the deployed noise.
    for k in range(terms.shares(count)):
        totals += terms.share(key.fold_in("share", k))
    return terms.read(totals, sum(len(next(iter(frame.values()))) for frame in frames), count)
