"""What is asked of a plan and what it found, as frozen data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from randquant.mechanisms.registry import channel_mechanisms
from randquant.mechanisms.tuning import UpdateSetting
from randquant.privacy.guarantee import Guarantee, Neighboring

Verdict = Literal["useful", "doubtful", "hopeless"]
"""Whether training is likely to learn something with this noise."""


@dataclass(frozen=True, slots=True)
class Need:
    """What is asked for.

    Attributes:
        dimension: coordinates of an update.
        population, cohort, rounds: clients, clients a round, rounds.
        bits: most bits of one code, 1 to 24; channels have 256 codes at most.
        trust: `local`: the server sees each client's codes; `aggregate`: only their sum.
        clip_norm: L2 clipping threshold of a whole update.
        epsilon, delta: the guarantee of one client's whole participation.
        neighboring: what an adversary tries to tell apart.
        participations: most rounds that a client takes part in.
    """

    dimension: int
    population: int
    cohort: int
    rounds: int
    bits: int
    trust: Literal["local", "aggregate"]
    clip_norm: float
    epsilon: float
    delta: float
    neighboring: Neighboring
    participations: int

    @property
    def setting(self) -> UpdateSetting:
        """What mechanisms need to know of it."""
        return UpdateSetting(
            self.dimension, self.cohort, self.bits, self.trust, self.clip_norm, self.neighboring
        )

    @property
    def balanced(self) -> int:
        """Rounds that a client takes part in when all do equally often."""
        return -(-self.rounds * self.cohort // self.population)


@dataclass(frozen=True, slots=True)
class DecodedError:
    """How large the error of a decoded mean is.

    Attributes:
        deviation: root mean square error of one coordinate of the mean.
        relative: over the Gaussian limit's; None where there is none.
        length: of the whole error vector, over clip_norm: the longest that the mean can be.
        share: of the run: the errors of all rounds added up, over the longest that all means can
            add up to.
    """

    deviation: float
    relative: float | None
    length: float
    share: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One mechanism.

    Attributes:
        mechanism: its name.
        parameters: what it is built from; empty where the target is out of reach.
        guarantee: what the accountant says of it; None likewise, as the rest.
        noise: its error.
        bytes_up: what one client uploads in one round, header included; under `aggregate` trust a
            vector masked for a sum of the cohort.
        bytes_run: what all clients upload in all rounds.
        baseline: samples in floating point: to compare with, not to deploy.
        remark: why there is nothing, or what to know.
    """

    mechanism: str
    parameters: dict[str, Any]
    guarantee: Guarantee | None = None
    noise: DecodedError | None = None
    bytes_up: int = 0
    bytes_run: int = 0
    baseline: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """What no quantiser can be expected to beat."""

    name: str
    noise: DecodedError


@dataclass(frozen=True, slots=True)
class Plan:
    """Mechanisms by error, limits, and what follows.

    Attributes:
        need: what was asked for.
        entries: least error first; those out of reach last.
        limits: for comparison.
        verdict: `useful`, `doubtful` or `hopeless`.
        advice: the verdict in sentences.
        recommended: of the mechanisms whose error is within ALIKE of the least, the one with the
            shortest upload; None where there is none. Baselines are not.
    """

    need: Need
    entries: Sequence[Candidate]
    limits: Sequence[Limit]
    verdict: Verdict
    advice: Sequence[str]
    recommended: Candidate | None


def code(entry: Candidate, need: Need) -> str:
    """One line of Python that makes an entry's mechanism; it wants `update_mechanism`."""
    parameters = ", ".join(f"{name!r}: {value!r}" for name, value in entry.parameters.items())
    options = f'trust="{need.trust}"'
    if need.trust == "aggregate":
        options += f", cohort={need.cohort}"
    if entry.mechanism in channel_mechanisms():
        options += f", clip_norm={need.clip_norm!r}"
    return f'update_mechanism("{entry.mechanism}", {{{parameters}}}, {options})'
