"""A target for a run on an engine, and the mechanism that meets it, before any client is asked."""

from __future__ import annotations

from dataclasses import dataclass
from logging import WARNING
from typing import Literal

from randquant._internal import validate
from randquant._internal.progress import waiting
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import update_mechanism
from randquant.planning.choice import choose
from randquant.planning.plans import Need
from randquant.planning.privacy import Privacy, refuse_spent
from randquant.privacy.accounting.release import check_examples
from randquant.rounds.sums import Log

MAX_DEFAULT_DELTA = 1e-5
"""Default delta of small populations, where a tenth of 1 / clients would be more: the default of
`randquant.train`. Twice as much would be a weaker guarantee than that; half as much, more noise."""


@dataclass(frozen=True)
class Target:
    """What a run on an engine must not exceed, and the clients whose noise it counts on.

    Args:
        epsilon: in nats, for one client's (or one example's) whole participation.
        rounds: of the run.
        population: clients that there are.
        summed: clients whose noise every sum has, at least.
        delta: of the target; `default_delta` has the default.
        trust: `aggregate`, a server that sees sums only, or `local`, one that sees each client's
            codes.
        privacy: what is protected, how updates are clipped and sent, and what is sent with them.
        examples: protect one example instead of a client: the public number by which clients
            divide their sums of clipped gradients.

    Raises:
        TypeError, ValueError: an argument is out of bounds, or missing for `unit="example"`.
    """

    epsilon: float
    rounds: int
    population: int
    summed: int
    delta: float
    trust: Literal["aggregate", "local"]
    privacy: Privacy
    examples: int | None = None

    def __post_init__(self) -> None:
        validate.choice("trust", self.trust, ("aggregate", "local"))
        validate.kind("privacy", self.privacy, Privacy)
        validate.choice("sampling", self.privacy.sampling, ("fixed",))
        if self.examples is not None:
            check_examples(self.examples)
        elif self.privacy.unit == "example":
            raise ValueError(
                'Expected examples with unit="example", got examples=None: give the public number '
                "by which clients divide their sums of clipped gradients, such as the number of "
                "all clients' examples over the number of clients."
            )
        refuse_spent(self.privacy, self.epsilon, self.delta)

    def mechanism(self, dimension: int, log: Log) -> UpdateMechanism:
        """Calibrate a mechanism for updates of so many coordinates.

        Args:
            dimension: of a model's update, without the numbers sent with it.
            log: gets a warning where the target leaves no useful signal.

        Raises:
            OutOfReach: no noise meets the target.
        """
        privacy = self.privacy
        participations = min(self.rounds, privacy.max_participations or self.rounds)
        need = Need(
            dimension + len(privacy.numbers), self.population, self.summed, self.rounds,
            self.epsilon, self.delta, self.trust, privacy, participations,
        )  # fmt: skip
        with waiting():
            choice = choose(need, examples=self.examples)
        if choice.warning:
            log(WARNING, f"randquant: {choice.warning}")
        return update_mechanism(
            choice.mechanism, choice.parameters, trust=self.trust, clip_norm=choice.clip_norm,
            cohort=self.summed if self.trust == "aggregate" else None,
            coordinates=privacy.coordinates,
        )  # fmt: skip


def default_delta(population: int, examples: int | None) -> float:
    """Return a tenth of 1 / (clients, or their examples), and at most MAX_DEFAULT_DELTA."""
    return min(MAX_DEFAULT_DELTA, 0.1 / (population * (examples or 1)))
