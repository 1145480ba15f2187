"""The status of runs, read from their stores: nothing is trained, locked or changed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from randquant._internal import files
from randquant.privacy.guarantee import SIMULATED, Guarantee, Neighboring
from randquant.training.config import TrainConfig
from randquant.training.records import RoundMetrics, RunSummary, SentRounds
from randquant.training.runs.store import BASELINE, NAME, RunStore

State = Literal["finished", "unfinished", "being trained", "damaged"]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a run.

    Attributes:
        folder: the run's folder.
        state: `finished`, `unfinished` (it can be resumed), `being trained` or `damaged` (its
            store cannot be read).
        config: the configuration; None if it is damaged.
        metrics, rounds: of the rounds that are done, and their number.
        summary: the results; None before the end.
        error: what is damaged.
        sent_rounds: what was declared and sent; None if that cannot be read.
    """

    folder: Path
    state: State
    config: TrainConfig | None = None
    metrics: tuple[RoundMetrics, ...] = ()
    summary: RunSummary | None = None
    error: str = ""
    sent_rounds: SentRounds | None = None

    @property
    def rounds(self) -> int:
        return len(self.metrics)

    @property
    def accuracy(self) -> float | None:
        """Accuracy on test data at the last evaluation."""
        measured = [m.accuracy for m in self.metrics if m.accuracy is not None]
        return measured[-1] if measured else None

    @property
    def epsilon(self) -> float | None:
        """Proven upper bound of epsilon for all declared rounds; None without privacy.

        Infinite until a run is resumed if its neighbouring relation was changed from `zero_out`.
        """
        if self.summary is not None:
            guarantee = self.summary.guarantee
            return None if guarantee is None else guarantee.epsilon
        if self.sent_rounds is None or not self.sent_rounds.binding:
            return None
        # A bound for any two updates implies one for an update and zeros, but not conversely.
        known = self.config is None or self.config.privacy.neighboring in (
            self.sent_rounds.neighboring,
            "zero_out",
        )
        return self.sent_rounds.epsilon if known else math.inf

    def epsilon_under(self, relation: Neighboring) -> float | None:
        """Return `epsilon` under a neighbouring relation; None if it is not known for that one."""
        if self.config is None or relation == self.config.privacy.neighboring:
            return self.epsilon
        other = None if self.summary is None else self.summary.other_relation
        return None if other is None else other.epsilon

    @property
    def delta(self) -> float | None:
        """Delta of that epsilon; None if there is none."""
        if self.epsilon is None:
            return None
        if self.summary is not None and self.summary.guarantee is not None:
            return self.summary.guarantee.delta
        return None if self.sent_rounds is None else self.sent_rounds.delta

    @property
    def guarantee(self) -> Guarantee | None:
        return None if self.summary is None else self.summary.guarantee

    @property
    def simulated(self) -> bool:
        # There is an epsilon, but the noise can be subtracted by those who know the seed.
        return self.epsilon is not None and self.config is not None and self.config.seed is not None

    @property
    def bytes_per_upload(self) -> int | None:
        """Bytes that one client uploads in one round; None if not known yet."""
        if self.summary is not None:
            return self.summary.bytes_per_upload
        if self.config is None or not self.metrics or self.config.privacy.sampling != "fixed":
            return None
        # Only a cohort of fixed size divides the bytes of a round.
        return self.metrics[-1].bytes_up // self.config.cohort

    @property
    def bytes_up(self) -> int:
        return sum(metrics.bytes_up for metrics in self.metrics)


def find(roots: Iterable[Path]) -> list[Path]:
    """Return the folders of all runs in or below the given folders, sorted by name.

    Raises:
        ValueError: a folder does not exist, or there is no run in it.
    """
    folders: list[Path] = []
    for root in roots:
        below = sorted(path.parent for path in root.rglob(NAME) if path.is_file())
        if not below:
            raise ValueError(f"Expected runs in {root}, found none: randquant train makes one.")
        folders += below
    return list(dict.fromkeys(folders))


def read(folder: str | Path) -> Status:
    """Return the status of the run in a folder; `damaged` if its store cannot be read."""
    folder = Path(folder)
    store, config = RunStore(folder), None
    try:
        config = store.config()
        # A baseline is trained under the lock of its run. The lock is read before the store: in the
        # other order, a run that ends in between would look unfinished.
        locked = files.is_locked(folder) or (
            files.is_locked(folder.parent) and folder.name == BASELINE
        )
        run = store.read()
    except (ValueError, TypeError, KeyError, OSError) as error:
        return Status(folder, "damaged", config, error=" ".join(str(error).split()))
    config, sent_rounds = run.config, run.sent_rounds
    metrics = tuple(_at_configured_terms(round, config) for round in run.metrics)
    if locked:
        return Status(folder, "being trained", config, metrics, sent_rounds=sent_rounds)
    ended = run.summary is not None and (
        bool(run.summary.stopped) or sent_rounds.round >= config.rounds
    )
    if ended and run.is_stated:
        return Status(folder, "finished", config, metrics, run.summary, sent_rounds=sent_rounds)
    return Status(folder, "unfinished", config, metrics, sent_rounds=sent_rounds)


def _at_configured_terms(metrics: RoundMetrics, config: TrainConfig) -> RoundMetrics:
    # An epsilon at another delta or for other neighbours must not be shown with the new ones.
    if (metrics.delta, metrics.neighboring) == (config.delta, config.privacy.neighboring):
        return metrics
    return dataclasses.replace(metrics, epsilon=None)


def notes(statuses: Iterable[Status]) -> list[str]:
    """Return notes for below a list of runs: which of them protect nobody."""
    private = [status for status in statuses if status.epsilon is not None]
    names = [status.folder.name for status in private if status.simulated]
    every = 1 < len(private) == len(names)
    return [f"{'every run' if every else ', '.join(names)}: {SIMULATED}"] if names else []
