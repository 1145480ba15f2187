"""A plan's target and its results, as frozen data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.mechanisms.registry import channel_mechanisms
from randquant.mechanisms.tuning import UpdateSetting
from randquant.planning.limits import gaussian_multiplier
from randquant.planning.privacy import Privacy
from randquant.planning.tuning.update import tuned_mechanism
from randquant.privacy.accounting.cohorts import HiddenCohorts
from randquant.privacy.guarantee import Guarantee

Verdict = Literal["useful", "doubtful", "hopeless"]
"""Whether training is likely to learn something with this noise."""


ENOUGH = 1.25
"""One bit is enough where its error is at most this factor above Gaussian noise's."""

ALIKE = 1.01
"""Errors that differ by less than this factor count as equal."""


@dataclass(frozen=True, slots=True)
class Need:
    """The target and the setting of a plan.

    Attributes:
        dimension: coordinates of what a client sends: of its update, and numbers beside it.
        population, cohort, rounds: clients, clients a round, rounds.
        epsilon, delta: target for one client's whole participation.
        trust: `local`: the server sees each client's codes; `aggregate`: only their sum; `model`:
            the adversary sees the models only.
        privacy: what is protected, and how updates are clipped and sent.
        participations: most rounds that a client takes part in.
        cohorts: how clients take part under `model` trust; else None.
        mean_norm: length of a mean of clipped updates, which a subset's error depends on; None for
            the largest possible, clip_norm.
    """

    dimension: int
    population: int
    cohort: int
    rounds: int
    epsilon: float
    delta: float
    trust: Literal["local", "aggregate", "model"]
    privacy: Privacy = Privacy()  # noqa: RUF009 - it is frozen
    participations: int = 0
    cohorts: HiddenCohorts | None = None
    mean_norm: float | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)

    @property
    def clip_norm(self) -> float:
        """The threshold of a whole update's norm."""
        if self.privacy.clip_norm is None:
            raise ValueError(
                "Expected a clip_norm with a target for a whole run, got none: coordinates that "
                "are clipped one by one are planned by the parameters of a mechanism."
            )
        return self.privacy.clip_norm

    @property
    def setting(self) -> UpdateSetting:
        """The part of it that mechanisms are tuned to: under `model` trust sums of all payloads."""
        trust = "local" if self.trust == "local" else "aggregate"
        clients = self.cohort if self.cohorts is None else self.cohorts.summands(None)
        bits = self.privacy.bits
        return UpdateSetting(
            self.dimension, clients, 1 if bits == "auto" else bits, trust, self.clip_norm,
            self.privacy.neighboring, self.privacy.coordinates,
        )  # fmt: skip

    def of_bits(self, bits: int) -> Need:
        """The same with codes of at most so many bits."""
        return replace(self, privacy=replace(self.privacy, bits=bits))

    def sending(self, coordinates: int | None) -> Need:
        """The same with so many coordinates sent; None for all."""
        return replace(self, privacy=replace(self.privacy, coordinates=coordinates))

    @property
    def multiplier(self) -> float:
        """About the noise multiplier of Gaussian noise that meets the target."""
        if self.cohorts is None:
            return gaussian_multiplier(self.epsilon, self.delta, self.participations)
        multiplier = self.cohorts.gaussian_multiplier(
            self.epsilon, self.delta, self.privacy.neighboring
        )
        # Relative to the distance of neighbours, as the other.
        return multiplier if self.privacy.neighboring == "replace_one" else 2 * multiplier

    def deviation(self, mechanism: UpdateMechanism) -> float:
        """Root mean squared error of one coordinate of a round's decoded mean."""
        error = mechanism.expected_error(self.dimension)
        if self.cohorts is None or self.trust == "local":
            return error.deviation(self.cohort, self.mean_norm)
        clients = self.setting.cohort
        # Of all who send, as many as are summed are not zeros.
        part = self.cohorts.cohort / clients
        length = self.clip_norm if self.mean_norm is None else self.mean_norm
        return error.deviation(clients, part * length) / part

    @property
    def tolerated(self) -> float:
        """Of errors at most this factor above the least the one with the fewest bytes is best."""
        return ENOUGH if self.privacy.bits == "auto" and self.trust != "local" else ALIKE

    @property
    def gaussian(self) -> float:
        """Deviation of a coordinate of the mean with Gaussian noise that meets the target."""
        noise = self.multiplier * self.setting.distance
        if self.cohorts is not None:
            return noise / self.cohorts.cohort
        return noise / (self.cohort if self.trust == "aggregate" else math.sqrt(self.cohort))

    def noise(self, deviation: float) -> DecodedError:
        """What an error of this deviation is of means and of Gaussian noise."""
        gaussian = self.gaussian
        length = deviation * math.sqrt(self.dimension) / self.clip_norm
        relative = deviation / gaussian if math.isfinite(gaussian) else None
        return DecodedError(deviation, relative, length, length / math.sqrt(self.rounds))

    def times_mean(self, noise: DecodedError) -> float | None:
        """How many times as long as a mean the noise is; None if no length of means is known."""
        return noise.length * self.clip_norm / self.mean_norm if self.mean_norm else None

    @property
    def balanced(self) -> int:
        """Rounds that a client takes part in if all do equally often."""
        return -(-self.rounds * self.cohort // self.population)


@dataclass(frozen=True, slots=True)
class DecodedError:
    """How large the error of a decoded mean is.

    Attributes:
        deviation: root mean squared error of one coordinate of the mean.
        relative: deviation over that of the Gaussian limit; None without one.
        length: norm of the whole error over clip_norm, the largest norm of the mean.
        share: for the whole run: norm of the sum of all rounds' errors over the largest norm of
            the sum of their means.
    """

    deviation: float
    relative: float | None
    length: float
    share: float


def kept_of(ratio: float) -> float:
    """What is kept of a sure decrease, at the best step size, if noise is `ratio` times the mean.

    theory/plan.md, Proposition 1.
    """
    return 1 / (1 + ratio**2)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One mechanism.

    Attributes:
        mechanism: its name.
        parameters: its parameters; empty if the target is out of reach.
        guarantee: the accountant's guarantee; None if the target is out of reach.
        noise: its error; None likewise.
        bytes_up: what one client uploads in one round, header included; under `aggregate` trust a
            vector masked for a sum of the cohort.
        bytes_run: what all clients upload in all rounds.
        bytes_plain: what one client would upload as plain codes, header included: the same under
            `local` trust, less where codes are masked for a sum.
        baseline: whether it samples in floating point: for comparison, not for deployment.
        remark: why the target is out of reach, or what else to know.
        coordinates: how many coordinates of a rotated update are sent; None for all.
        once: how many clients take part in a round if each of them does in one round only, by a
            list that does not look at data; None where cohorts are those of the plan.
    """

    mechanism: str
    parameters: dict[str, Any]
    guarantee: Guarantee | None = None
    noise: DecodedError | None = None
    bytes_up: int = 0
    bytes_run: int = 0
    bytes_plain: int = 0
    baseline: bool = False
    remark: str = ""
    coordinates: int | None = None
    once: int | None = None

    @property
    def label(self) -> str:
        """Its name among other candidates."""
        return self.mechanism if self.once is None else f"{self.mechanism}, one round each"


@dataclass(frozen=True, slots=True)
class Limit:
    """An error that no quantiser can be expected to beat."""

    name: str
    noise: DecodedError


@dataclass(frozen=True, slots=True)
class Plan:
    """Mechanisms by error, limits, and the verdict.

    Attributes:
        need: the target and the setting.
        entries: least error first; mechanisms out of reach last.
        limits: for comparison.
        verdict: `useful`, `doubtful` or `hopeless`.
        advice: the verdict in sentences.
        recommended: among the mechanisms whose error is within a factor of the least (ALIKE, or
            ENOUGH for bits of `auto` in secure sums), the one with the smallest upload; never a
            baseline; None if there is none. If the length of the mean is given, it sends as few
            coordinates as raise its error by 5 % at most.
        left_out: mechanisms that were not calibrated since they take longer, and nobody asked for
            them.
        parts: the best mechanism with fewer and fewer coordinates, and integer noise, if the length
            of the mean is given.
    """

    need: Need
    entries: Sequence[Candidate]
    limits: Sequence[Limit]
    verdict: Verdict
    advice: Sequence[str]
    recommended: Candidate | None
    left_out: Sequence[str] = ()
    parts: Sequence[Candidate] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.verdict}.", *self.advice])

    @property
    def kept(self) -> float | None:
        """What the recommended mechanism keeps of a round's decrease of the loss, 0 to 1.

        Of the decrease that is sure without noise, with the step size that is best for its noise.
        None if no mechanism is recommended, or no mean_norm known.
        """
        best = None if self.recommended is None else self.recommended.noise
        ratio = None if best is None else self.need.times_mean(best)
        return None if ratio is None else kept_of(ratio)

    @property
    def mechanism(self) -> UpdateMechanism:
        """The recommended mechanism, to encode and average updates with.

        Raises:
            ValueError: no mechanism meets the target; the error says what would be needed.
        """
        if self.recommended is None:
            raise ValueError(
                f"Expected a target that can be met, got none: {' '.join(self.advice)}"
            )
        return built(self.recommended, self.need)


def built(entry: Candidate, need: Need) -> UpdateMechanism:
    """An entry's mechanism, from its parameters; of an entry that meets the target."""
    setting = need.sending(entry.coordinates).setting
    return tuned_mechanism(entry.mechanism, setting, entry.parameters)


def code(entry: Candidate, need: Need) -> str:
    """One line of Python that makes an entry's mechanism; it wants `update_mechanism`."""
    parameters = ", ".join(f"{name!r}: {value!r}" for name, value in entry.parameters.items())
    setting = need.setting
    options = f'trust="{setting.trust}"'
    if setting.trust == "aggregate":
        options += f", cohort={setting.cohort}"
    if entry.mechanism in channel_mechanisms():
        options += f", clip_norm={need.clip_norm!r}"
    if entry.coordinates is not None:
        options += f", coordinates={entry.coordinates}"
    return f'update_mechanism("{entry.mechanism}", {{{parameters}}}, {options})'
