"""A mechanism that meets a run's target (epsilon, delta), calibrated before data is seen."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.aggregation.adaptive import AdaptiveMechanism
from randquant.aggregation.registry import all_mechanisms
from randquant.mechanisms.tuning import UpdateSetting
from randquant.planning.limits import gaussian_multiplier
from randquant.planning.plan.planner import plan
from randquant.planning.plan.record import ENOUGH, Candidate, Need
from randquant.planning.plan.verdict import coarse, warning
from randquant.planning.tuning.update import TunedUpdate, tune_update
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.cohorts import HiddenCohorts
from randquant.privacy.accounting.noise_search import OutOfReach
from randquant.privacy.guarantee import Neighboring

ONE_BIT, BITS = "stochastic-rounding", "pbm"
"""The mechanisms of one bit a coordinate, and of several that are summed."""

EXCESS = 0.2
"""Of variance over Gaussian noise's, that sums of bits are to have at most."""

QUICK = 400
"""So many bits of a whole cohort, at most, are calibrated within seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one client's whole participation may cost, and in which run.

    Attributes:
        epsilon, delta: the target.
        neighboring: the neighbouring relation.
        bits: most bits of a code, or `auto`: one, unless more lower the error by a fifth.
        trust: `aggregate`, `local` or `model`.
        clip_norm: L2 threshold of an update, or of an example's gradient.
        dimension: coordinates of an update.
        population, cohort, rounds: clients, clients a round, rounds.
        participations: rounds of the client called most often.
        cohorts: how clients take part if nobody sees which of them do; None if it is seen.
        examples: for example-level privacy, the fewest examples that an update is the mean of.
        coordinates: how many coordinates of a rotated update are sent; None for all.
        engine: whether it is for Flower, which sums codes of channels only.
    """

    epsilon: float
    delta: float
    neighboring: Neighboring
    bits: int | Literal["auto"]
    trust: Literal["aggregate", "local", "model"]
    clip_norm: float
    dimension: int
    population: int
    cohort: int
    rounds: int
    participations: int
    examples: int | None = None
    cohorts: HiddenCohorts | None = None
    coordinates: int | None = None
    engine: bool = False

    @property
    def balanced(self) -> int:
        """Rounds that a client takes part in if all do equally often."""
        return -(-self.rounds * self.cohort // self.population)

    @property
    def setting(self) -> UpdateSetting:
        """The part of it that mechanisms are tuned to."""
        need = self._need
        return need.setting

    @property
    def _need(self) -> Need:
        return Need(
            self.dimension, self.population, self.cohort, self.rounds, self.bits, self.trust,
            self.clip_norm, self.epsilon, self.delta, self.neighboring, self.participations,
            coordinates=self.coordinates, cohorts=self.cohorts, mean_norm=self._mean_norm,
        )  # fmt: skip

    @property
    def _mean_norm(self) -> float | None:
        """0: where a subset is asked for, the verdict is on the noise, not on what is left out."""
        return None if self.coordinates is None else 0.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A mechanism by name, as a configuration has it.

    Attributes:
        mechanism: its name.
        parameters: its own parameters.
        clip_norm: threshold of a channel's updates; None if it is among the parameters.
        warning: that it depends on the task whether anything is learnt, or that codes are too
            coarse for the target; empty if neither.
    """

    mechanism: str
    parameters: dict[str, Any]
    clip_norm: float | None
    warning: str = ""


def choose(target: Target) -> Calibrated:
    """Calibrate a mechanism to a target.

    In a secure sum, and for examples, this is one bit: stochastic rounding of the rotated update to
    two levels. Where that has over ENOUGH times the error of Gaussian noise, and in all other
    cases, it is what `planning.plan` recommends; for examples, and for an engine, codes that are
    sums of bits.

    Guarantees:
        The accountant's guarantee of the mechanism for so many participations is at most the
        target. Nothing depends on data.

    Raises:
        ValueError: the target is out of reach; the message says what would be needed.

    Example:
        >>> choose(Target(8, 1e-5, "replace_one", 1, "aggregate", 1.0, 650, 200, 200, 20, 20))
        Calibrated(mechanism='stochastic-rounding', parameters={...}, clip_norm=1.0, warning='')
    """
    validate.real("epsilon", target.epsilon, above=0, high=1e6)
    validate.real("delta", target.delta, low=0, below=1)
    if target.examples is not None or (target.engine and target.trust != "local"):
        return _of_bits(target)
    if target.trust != "local" and target.bits in (1, "auto"):
        found = _measured(ONE_BIT, replace(target, bits=1))
        assert found.noise is not None
        if target.bits == 1 or (found.noise.relative or 0.0) <= ENOUGH:
            return _calibrated(replace(target, bits=1), found)
    hidden = target.cohorts
    planned = plan(
        target.dimension, target.population, target.cohort, target.rounds, target.epsilon,
        target.delta, bits=target.bits, trust=target.trust, clip_norm=target.clip_norm,
        neighboring=target.neighboring, sampling="fixed" if hidden is None else hidden.draw,
        coordinates=target.coordinates, mean_norm=target._mean_norm,
        max_participations=max(target.participations, target.balanced) if hidden is None else None,
        progress=False,  # who waits shows how far it is
    )  # fmt: skip
    if planned.recommended is None:
        raise _out_of_reach(target, "")
    return _calibrated(target, planned.recommended)


def _of_bits(target: Target) -> Calibrated:
    """One bit, or of sums of bits as many as lower the error, if that does not take long."""
    one = _measured(ONE_BIT, replace(target, bits=1))
    assert one.noise is not None
    relative, several = one.noise.relative or 0.0, 1 if target.bits == "auto" else target.bits
    if target.bits == "auto" and relative > ENOUGH:
        # theory/plan.md: t bits have 1/t of one bit's excess of variance over Gaussian noise's.
        wanted = min((relative**2 - 1) / EXCESS, QUICK / target.setting.sharing)
        several = min(int(math.log2(wanted + 1)), 8)
    best = one
    if several > 1:
        with contextlib.suppress(OutOfReach):
            more = _measured(BITS, replace(target, bits=several))
            best = min(one, more, key=lambda each: each.noise.deviation if each.noise else math.inf)
    return _calibrated(target, best)


def _measured(name: str, target: Target) -> Candidate:
    """A mechanism with its guarantee and its error."""
    tuned = _tuned(name, target)
    examples = target.examples or 1
    noise = target._need.noise(target._need.deviation(tuned.calibration.mechanism))
    if noise.relative is not None:  # neighbours are as many times closer
        noise = replace(noise, relative=noise.relative * examples)
    return Candidate(name, tuned.parameters, tuned.calibration.guarantee, noise)


def _calibrated(target: Target, found: Candidate) -> Calibrated:
    whole, need = all_mechanisms()[found.mechanism].whole_update, target._need
    # The verdict's thresholds were measured for updates of whole clients.
    said = warning(need, found) if target.examples is None else coarse(need, found)
    return Calibrated(found.mechanism, found.parameters, None if whole else target.clip_norm, said)


PARTS = (1, 3, 10, 30, 100)
"""Of how many rotated coordinates one is sent, in the choices of an adaptive mechanism."""


def choose_adaptive(target: Target, name: str = "") -> AdaptiveMechanism:
    """Calibrate a mechanism that sends fewer or more coordinates from round to round.

    Args:
        target: what is to be met.
        name: of a mechanism; by default the one that `choose` takes.

    Guarantees:
        The accountant's guarantee for so many participations is at most the target, whatever is
        chosen in each round. Nothing depends on data.

    Raises:
        ValueError: the target is out of reach, or is for clients or examples that are hidden
            otherwise than by each round's noise.
    """
    if target.cohorts is not None or target.examples is not None:
        raise ValueError(
            "Expected trust='aggregate' or 'local' and unit='client' with coordinates='auto', got "
            "others: give the number of coordinates."
        )
    size = target.setting.size
    if not name:
        chosen = choose(target)
        name = chosen.mechanism
        target = replace(target, bits=chosen.parameters.get("bits", target.bits))
    counts = [None, *(size // part for part in PARTS[1:] if size // part)]
    aim = target.epsilon
    while True:
        tuned = [_tuned(name, replace(target, epsilon=aim, coordinates=k)) for k in counts]
        mechanism = AdaptiveMechanism(tuple(each.calibration.mechanism for each in tuned))
        release = mechanism.release(target.dimension, target.participations, target.neighboring)
        found = account([release], target.delta, attacked=False).epsilon
        if found <= target.epsilon:
            return mechanism
        aim *= target.epsilon / found * (1 - 1e-4)


def _tuned(name: str, target: Target, participations: int | None = None) -> TunedUpdate:
    rounds = participations or target.participations
    hidden = target.cohorts
    if hidden is None:
        multiplier = gaussian_multiplier(target.epsilon, target.delta, rounds)
    else:
        rounds = hidden.rounds
        multiplier = hidden.gaussian_multiplier(target.epsilon, target.delta, target.neighboring)
    share = math.sqrt(target.setting.sharing)
    start = multiplier if math.isfinite(multiplier) else rounds * target.dimension / target.epsilon
    distance = 2.0 if target.examples is None else 2.0 / target.examples
    try:
        return tune_update(
            name, target.setting, target.epsilon, target.delta, rounds,
            deviation=start * distance * target.clip_norm / share, examples=target.examples,
            cohorts=hidden,
        )  # fmt: skip
    except OutOfReach as error:
        if participations is not None:
            raise
        if hidden is not None:
            raise _out_of_reach(target, "", error.nearest) from error
        raise _out_of_reach(target, _possible(name, target), error.nearest) from error


def _possible(name: str, target: Target) -> str:
    """How many rounds the target allows, if fewer do."""
    fewer = target.participations // 2
    while fewer:
        try:
            _tuned(name, target, fewer)
        except OutOfReach:
            fewer //= 2
        else:
            rounds = fewer * target.population // target.cohort
            return f"at most about {max(rounds, 1)} rounds, "
    return ""


def _out_of_reach(target: Target, fewer: str, nearest: float = math.inf) -> OutOfReach:
    larger = f"epsilon >= {round_up(nearest)}, " if math.isfinite(nearest) else ""
    wider = ""
    if target.cohort < target.population and target.trust != "local":
        wider = f"a cohort larger than {target.cohort}, "
    looser = "delta > 0, " if target.delta == 0 else ""
    return OutOfReach(
        f"Expected a target that {target.participations} rounds of a client can meet, got "
        f"epsilon={target.epsilon} at delta={target.delta}: it would need {larger}{looser}{fewer}"
        f"{wider}or secure sums (trust='aggregate') of more clients.",
        nearest,
        None,
    )
