"""A table of answers, with its guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from randquant._internal.formatting import count
from randquant.privacy.accounting.relations import (
    by_relation,
    other_relation_lines,
    under_other_relation,
)
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Guarantee, Neighboring
from randquant.statistics.estimate import Answer, ends
from randquant.statistics.surveys import Survey


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
