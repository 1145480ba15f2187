"""The result of `randquant.train`: the model, its guarantee, and the metrics of each round."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from randquant._internal.formatting import count, round_up
from randquant.privacy.accounting.accountant import by_relation
from randquant.privacy.guarantee import Guarantee, Neighboring
from randquant.rounds.statement import ReleaseTerms, Statement, stated
from randquant.statistics.surveys import Survey
from randquant.training.config import TrainConfig, configured_mechanism
from randquant.training.records import RoundMetrics, RunRecord, RunSummary


class Run:
    """A finished run.

    Attributes:
        model: the trained model, in evaluation mode on the CPU. With standardize it is within a
            `Standardized`, which takes raw features and predicts raw targets.
        guarantee: proven, for one client's whole participation, or for one example of a client if
            that is the run's unit; None without privacy.
        beside: a second guarantee, of a whole client whose participation is seen, where `guarantee`
            is of one example or under `model` trust; else None.
        guarantees: `guarantee` under each neighbouring relation that it is proven for, by the
            relation's name: `zero_out` is to be compared with what others state for adding or
            removing a client (docs/guarantees.md). Empty without privacy.
        history: the metrics of each round, the first round first.
        accuracy: on test data, in [0, 1]; None without test data or without classes.
        loss: mean loss on test data; None without test data.
        summary: all results of the run.
        config: all settings of the run, without its key.
        record: configuration, history and summary together.
        folder: the run's files; a temporary folder is deleted with this object.

    Guarantees:
        The guarantee holds for everything that clients sent in all rounds, so also for the model
        and the history, except `train_loss` (`docs/theory/accounting.md`), and except accuracy and
        loss if test data are a client's. Under `model` trust it holds for the model of each round
        and nothing else: not for the folder's other files or the history.
    """

    def __init__(
        self,
        model: nn.Module,
        record: RunRecord,
        folder: Path,
        *,
        declared: int,
        table: Survey | None = None,
        temporary: bool = False,
    ) -> None:
        self.model = model
        self.folder = folder
        # What a certificate states besides: the declared rounds, and the table asked before them.
        self._declared, self._table = declared, table
        self.history: Sequence[RoundMetrics] = tuple(record.metrics)
        self.summary: RunSummary = record.summary
        self.config: TrainConfig = record.config
        if temporary:
            # Also when the interpreter exits, unlike a __del__, which may not be called.
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def guarantee(self) -> Guarantee | None:
        return self.summary.guarantee

    @property
    def guarantees(self) -> Mapping[Neighboring, Guarantee]:
        """The guarantee by neighbouring relation, see the attributes."""
        return by_relation(self.summary.guarantee, self.summary.other_relation)

    @property
    def beside(self) -> Guarantee | None:
        return self.summary.beside

    @property
    def accuracy(self) -> float | None:
        return self.summary.accuracy

    @property
    def loss(self) -> float | None:
        return self.summary.loss

    @property
    def upload_bytes(self) -> int:
        """Bytes that a client sends in one round it takes part in, under the trust in force.

        Headers are included. Under `aggregate` trust this is a vector masked for a secure sum;
        the other messages of that protocol are not included.
        """
        return self.summary.bytes_per_upload

    @property
    def record(self) -> RunRecord:
        return RunRecord(self.config, self.history, self.summary)

    def __repr__(self) -> str:
        summary, guarantee = self.summary, self.guarantee
        parts = [count(self.record.rounds, "round")]
        if summary.accuracy is not None:
            parts.insert(0, f"accuracy {summary.accuracy:.4f}")
        elif summary.loss is not None:
            parts.insert(0, f"loss {summary.loss:.4g}")
        parts.append("no privacy" if guarantee is None else f"one {guarantee.unit}: {guarantee}")
        parts += _beside(summary.other_relation)
        if (spent := summary.spent) is not None:
            parts.append(f"of it before round 1 {spent}")
        if (second := self.beside) is not None:
            parts.append(f"one {second.unit}: {second}")
        parts += _beside(summary.beside_other_relation)
        parts.append(f"{self.upload_bytes:,} bytes a client and round")
        return f"Run({', '.join(parts)})"


@stated.register
def _run_statement(run: Run) -> Statement:
    config, summary = run.config, run.summary
    if summary.guarantee is None:
        raise ValueError(f"Expected a run with a guarantee to certify, got {run}: it has none.")
    guarantees = (
        summary.guarantee, summary.other_relation, summary.beside, summary.beside_other_relation,
    )  # fmt: skip
    # Under `model` trust the second guarantee is against others, who see more.
    trust = summary.guarantee.trust
    claims = [each for each in guarantees if each is not None and each.trust == trust]
    coordinates = summary.dimension + len(config.privacy.numbers)
    hidden = config.hidden_cohorts
    rounds = summary.participations if hidden is None else run._declared
    terms: list[ReleaseTerms | Guarantee] = [
        ReleaseTerms(configured_mechanism(config), coordinates, rounds, summary.examples, hidden)
    ]
    if run._table is not None:
        terms.append(ReleaseTerms(run._table, 0, 1))
    if config.privacy.spent is not None:
        terms.append(config.privacy.spent)
    return Statement([terms], claims)


def _beside(other: Guarantee | None) -> list[str]:
    # In short: the guarantee under the relation that the one before it is not for.
    return [] if other is None else [f"<= {round_up(other.epsilon)} under {other.neighboring}"]
