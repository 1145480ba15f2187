"""Records of a run: each round's release and measurements, and the results of the whole."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from randquant._internal import validate
from randquant._internal.formatting import from_json
from randquant.privacy.guarantee import Guarantee, Neighboring
from randquant.training.config import TrainConfig


@dataclass(frozen=True, slots=True)
class RoundCost:
    """The released mean of one round, and the time and traffic it took.

    Attributes:
        train_loss: mean loss of the cohort's local data, in nats, before the step; None if nobody
            took part.
        bytes_up: bytes that all clients of the round uploaded, headers included; under
            `aggregate` trust those of masked vectors (the handshake is not counted). Of a plan's
            Candidate, `bytes_up` is of one client: stored files keep both names.
        seconds_gradient: wall time that workers spent in forward and backward passes.
        seconds_protect: all the rest of the round: clip, encode, pack, unpack, sum, decode, step.
        mean: SHA-256 of the decoded mean, which is all that the server learns, in hexadecimal.
            Empty if nobody took part.
        mean_norm: L2 norm of the decoded mean, noise included; None if nobody took part.
        noise_norm: expected L2 norm of the noise in the mean; None where the mechanism does not
            say.
        numbers: means over the cohort of the numbers that clients sent with their updates, by name,
            each with the standard deviation of its noise as `NAME_deviation`. The guarantee covers
            them. They are estimates: noise may move them beyond their bounds.
    """

    train_loss: float | None
    bytes_up: int
    seconds_gradient: float
    seconds_protect: float
    mean: str = ""
    mean_norm: float | None = None
    noise_norm: float | None = None
    numbers: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMetrics(RoundCost):
    """A round of a run: its release and cost, and the state of the run after it.

    Attributes:
        round: 1 for the first round.
        accuracy, loss: on test data, or None on rounds without evaluation; loss in nats for
            cross-entropy. Accuracy is None where the task is not a classification.
        balanced_accuracy: on the same, the mean of the classes' accuracies; None unless the most
            frequent class has 1.5 times the examples of the rarest one.
        auc: on the same, the area under the ROC curve; None unless there are two classes.
        seconds_evaluate: evaluation on test data, in seconds.
        seconds: wall time of the round and its evaluation.
        participations: the most rounds that any client has taken part in, this one included.
        epsilon: proven upper bound of that client's epsilon if the run had been declared to end
            with this round; None without privacy. It is not the guarantee of a run whose end was
            chosen by looking at it: that guarantee covers all declared rounds.
        delta, neighboring: those of that epsilon; they may change when a run is resumed.
    """

    round: int
    accuracy: float | None = None
    loss: float | None = None
    seconds_evaluate: float = 0.0
    participations: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    neighboring: Neighboring | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None

    @property
    def seconds(self) -> float:
        return self.seconds_gradient + self.seconds_protect + self.seconds_evaluate


@dataclass(frozen=True, slots=True)
class SentRounds:
    """The rounds a run has declared and sent, including the current one.

    It is written to disk before a round is sent: after a crash the files never state fewer rounds
    than clients have answered.

    Attributes:
        settings: digest of the settings that must not change during the run.
        channel: fingerprint of its channel, or of its own mechanism (`mechanism_fingerprint`), in
            hexadecimal; empty if it uses none.
        round: number of rounds that were started.
        declared: number of rounds of the run when its first one was sent. The run may end earlier,
            for any reason, but never later.
        participations: the most of the declared rounds that any client takes part in.
        epsilon: proven upper bound of that client's epsilon after all declared rounds; None without
            privacy.
        delta, neighboring: those of that epsilon.
        commitment: binds the run to its secret key without revealing it; empty for a seed.
        asked: clients were asked for the statistics that standardise the data.
    """

    settings: str
    channel: str
    round: int
    declared: int
    participations: int
    epsilon: float | None
    delta: float
    neighboring: Neighboring
    commitment: str = ""
    asked: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        # Read back from a file: a record that contradicts itself must not pass for a smaller cost.
        validate.whole("declared", self.declared, low=1)
        validate.whole("round", self.round, low=0, high=self.declared)
        validate.whole("participations", self.participations, low=0, high=self.declared)
        validate.real("delta", self.delta, low=0, high=1, why="it is a probability")

    @property
    def binding(self) -> bool:
        # Rounds can no longer be added once something was sent under a guarantee.
        return self.begun and self.epsilon is not None

    @property
    def begun(self) -> bool:
        return self.round > 0 or self.asked

    @property
    def identity(self) -> str:
        # All files of the run are bound to it: a record of another run would not be read.
        return hashlib.sha256(f"{self.settings} {self.channel}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The results of a finished run.

    Attributes:
        accuracy, loss: of the final model on test data; None without test data, accuracy also
            where the task is not a classification.
        dimension: coordinates of an update.
        bytes_per_upload: bytes one client uploads in one round it takes part in: `upload_bytes`
            of a Run and a mechanism. Stored runs and JSON keep this name.
        bits_per_coordinate: the same in bits, for each coordinate of an update.
        participations: the most of the declared rounds that any client takes part in.
        guarantee: of all declared rounds, also if the run ended before; None without privacy.
        rounds: number of rounds that were done.
        stopped: reason why these are fewer than configured or declared; empty if they are not.
        bytes_as_codes: bytes of one client's plain codes, not masked for a sum.
        beside: a second guarantee of the same run, of a whole client, against the server and
            anyone who sees who takes part, where `guarantee` is of one example or under `model`
            trust; else None.
        advice: what to do about the released means or the loss on test data; may be empty.
        spent: the part of the guarantee that was spent before the first round: before the run
            (`Privacy.spent`), and on the statistics that it standardises by; None if nothing was.
        balanced_accuracy, auc: of the final model, as in `RoundMetrics`.
        other_relation, beside_other_relation: `guarantee` and `beside` under the neighbouring
            relation that they are not for, from the same declared releases; None where that is not
            derived.
        examples: fewest examples whose clipped gradients an update is the mean of, where one
            example is the unit; else None.
    """

    accuracy: float | None
    loss: float | None
    dimension: int
    bytes_per_upload: int
    participations: int
    guarantee: Guarantee | None
    rounds: int
    stopped: str = ""
    bytes_as_codes: int = 0
    beside: Guarantee | None = None
    advice: str = ""
    spent: Guarantee | None = None
    other_relation: Guarantee | None = None
    beside_other_relation: Guarantee | None = None
    balanced_accuracy: float | None = None
    auc: float | None = None
    examples: int | None = None

    @property
    def bits_per_coordinate(self) -> float:
        return 8 * self.bytes_per_upload / self.dimension

    @property
    def figures_if_imbalanced(self) -> Mapping[str, float]:
        """Figures to read with the accuracy, by name; empty unless classes are imbalanced."""
        if self.balanced_accuracy is None:
            return {}
        named = {"balanced accuracy": self.balanced_accuracy, "AUC": self.auc}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> RunSummary:
        """Build a summary, its guarantee too, from parsed JSON.

        Raises:
            ValueError: a field is missing or unknown.
        """
        summary = from_json(cls, data)
        names = "guarantee", "beside", "spent", "other_relation", "beside_other_relation"
        parsed: dict[str, Any] = {name: getattr(summary, name) for name in names}
        return dataclasses.replace(summary, **{
            name: None if record is None else from_json(Guarantee, record)
            for name, record in parsed.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A finished run: its configuration, the metrics of each round, and its results.

    Attributes:
        rounds: number of rounds that were done.
        seconds: wall time of all rounds and evaluations, without loading data and compiling.
    """

    config: TrainConfig
    metrics: Sequence[RoundMetrics]
    summary: RunSummary

    @property
    def rounds(self) -> int:
        return self.config.rounds if self.summary.rounds is None else self.summary.rounds

    @property
    def seconds(self) -> float:
        return sum(metrics.seconds for metrics in self.metrics)
