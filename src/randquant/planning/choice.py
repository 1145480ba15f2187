"""A mechanism that meets a run's target (epsilon, delta), calibrated before data is seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.aggregation.helper_noise import HELPER_NOISE
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms
from randquant.planning.calibration import OutOfReach
from randquant.planning.planner import plan
from randquant.planning.plans import (
    ONE_BIT,
    ONE_BIT_ERROR_RATIO,
    Candidate,
    DecodedError,
    Need,
    coarse,
    gaussian_multiplier,
    warning,
)
from randquant.planning.tuning import (
    TunedUpdate,
    quick_update_mechanisms,
    tune_update,
    tuned_mechanism,
    update_family,
)

FEW_BITS, INTEGER_NOISE = "pbm", "skellam"
"""The mechanisms of up to MAX_SUMMED_BITS a coordinate, and of more in a sum."""

SINGLE_COORDINATE_BITS, MAX_SUMMED_BITS, FINE_BITS = 5, 8, 20
"""Bits of a code: of a lone coordinate, where one bit is too coarse; the most of a sum of bits; and
of integers so fine that rounding adds little to the noise that hides one example."""


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


def choose(need: Need, *, examples: int | None = None) -> Calibrated:
    """Calibrate a mechanism to a target.

    In a secure sum, and for examples, this is one bit: stochastic rounding of the rotated update to
    two levels. Where that has over ONE_BIT_ERROR_RATIO times the error of Gaussian noise it is what
    `planning.plan` recommends of integer noise and one bit; in all other cases what it recommends
    of all that it calibrates unasked; for examples integer noise. With the helper's noise it is
    `HelperNoise`, with as few bits as raise its error by little, and for examples with many.

    Args:
        need: the target, with the most rounds that any client takes part in.
        examples: for example-level privacy, the fewest examples that an update is the mean of.

    Guarantees:
        The accountant's guarantee of the mechanism for that many participations is at most the
        target. Nothing depends on data.

    Raises:
        ValueError: the target is out of reach; the message says what would be needed.

    Example:
        >>> choose(Need(650, 200, 200, 20, 8, 1e-5, "aggregate", participations=20))
        Calibrated(mechanism='stochastic-rounding', parameters={...}, clip_norm=1.0, warning='')
    """
    validate.real("epsilon", need.epsilon, above=0, high=1e6)
    validate.real("delta", need.delta, low=0, below=1)
    if need.privacy.coordinates is not None:  # the verdict is on the noise, not on what is left out
        need = replace(need, mean_norm=0.0)
    if examples is not None:
        return _choose_for_examples(need, examples)
    names = None
    if need.privacy.noise != "clients":
        names = [HELPER_NOISE]
    elif need.trust != "local" and need.privacy.bits in (1, "auto"):
        one = need.with_bits(1)
        quick = quick_update_mechanisms(need.setting)
        names = [name for name in quick if all_mechanisms()[name].whole_update]
        # Where one bit's own randomness is too much, its calibration takes seconds for nothing.
        if need.privacy.bits == 1 or not _too_coarse(one):
            candidate = _measured(ONE_BIT, one, None)
            assert candidate.noise is not None
            if need.privacy.bits == 1 or (candidate.noise.relative or 0.0) <= ONE_BIT_ERROR_RATIO:
                return _calibrated(one, candidate, None)
            names.append(ONE_BIT)
    candidate = _planned(need, names)
    if candidate is None and names is not None and need.privacy.noise == "clients":
        candidate = _planned(need, None)
    if candidate is None:
        raise _out_of_reach(need, "")
    return _calibrated(need, candidate, None)


def _too_coarse(need: Need, examples: int | None = None) -> bool:
    """Tell if one bit's own randomness is far too much even without a privacy target."""
    family = update_family(ONE_BIT, need.setting)
    mechanism = tuned_mechanism(ONE_BIT, need.setting, family.parameters(family.reach[0]))
    return (_error(need, mechanism, examples).relative or 0.0) > ONE_BIT_ERROR_RATIO**2


def _error(need: Need, mechanism: UpdateMechanism, examples: int | None) -> DecodedError:
    noise = need.noise(need.deviation(mechanism))
    if noise.relative is None:
        return noise
    # Neighbours are as many times closer.
    return replace(noise, relative=noise.relative * (examples or 1))


def _planned(need: Need, names: list[str] | None) -> Candidate | None:
    """Return what a plan of these mechanisms recommends; names=None plans all that are quick."""
    most = None
    if need.cohorts is None:
        most = max(need.participations, need.balanced)
    privacy = replace(need.privacy, max_participations=most, numbers=(), weighted_by=None,
                      spent=None)  # fmt: skip
    return plan(
        need.dimension, need.population, need.cohort, need.rounds, need.epsilon, need.delta,
        trust=need.trust, privacy=privacy, mean_norm=need.mean_norm, mechanisms=names,
    ).recommended  # fmt: skip


def _choose_for_examples(need: Need, examples: int) -> Calibrated:
    """One bit; where more lower the error, integer noise in a sum, and sums of bits by itself."""
    bits = need.privacy.bits
    if need.privacy.noise != "clients":
        fine = need.with_bits(FINE_BITS if bits == "auto" else bits)
        return _calibrated(need, _measured(HELPER_NOISE, fine, examples), examples)
    few = need.trust == "local" or (bits != "auto" and bits <= MAX_SUMMED_BITS)
    name = FEW_BITS if few else INTEGER_NOISE
    one, candidates = need.with_bits(1), []
    if bits == 1 or (bits == "auto" and not _too_coarse(one, examples)):
        candidates.append(_measured(ONE_BIT, one, examples))
    accurate = [
        each
        for each in candidates
        if each.noise and (each.noise.relative or 0.0) <= ONE_BIT_ERROR_RATIO
    ]
    if bits != 1 and not accurate:
        bits = bits if bits != "auto" else SINGLE_COORDINATE_BITS if few else FINE_BITS
        candidates.append(_measured(name, need.with_bits(bits), examples))
    best = min(candidates, key=lambda each: each.noise.deviation if each.noise else math.inf)
    return _calibrated(need, best, examples)


def _measured(name: str, need: Need, examples: int | None) -> Candidate:
    tuned = _tuned(name, need, examples)
    noise = _error(need, tuned.calibration.mechanism, examples)
    return Candidate(name, tuned.parameters, tuned.calibration.guarantee, noise)


def _calibrated(need: Need, candidate: Candidate, examples: int | None) -> Calibrated:
    whole = all_mechanisms()[candidate.mechanism].whole_update
    # The verdict's thresholds were measured for updates of whole clients.
    said = warning(need, candidate) if examples is None else coarse(need, candidate)
    return Calibrated(
        candidate.mechanism, candidate.parameters, None if whole else need.clip_norm, said
    )


def _tuned(
    name: str, need: Need, examples: int | None = None, participations: int | None = None
) -> TunedUpdate:
    rounds = participations or need.participations
    hidden = need.cohorts
    if hidden is None:
        multiplier = gaussian_multiplier(need.epsilon, need.delta, rounds)
    else:
        rounds = hidden.rounds
        multiplier = hidden.gaussian_multiplier(need.epsilon, need.delta, need.privacy.neighboring)
    share = math.sqrt(need.setting.sharing)
    start = multiplier if math.isfinite(multiplier) else rounds * need.dimension / need.epsilon
    distance = 2.0 if examples is None else 2.0 / examples
    try:
        return tune_update(
            name, need.setting, need.epsilon, need.delta, rounds,
            deviation=start * distance * need.clip_norm / share, examples=examples, cohorts=hidden,
        )  # fmt: skip
    except OutOfReach as error:
        if participations is not None:
            raise
        if hidden is not None:
            raise _out_of_reach(need, "", error.nearest) from error
        raise _out_of_reach(need, _possible(name, need, examples), error.nearest) from error


def _possible(name: str, need: Need, examples: int | None) -> str:
    """Say the number of rounds that the target allows, if fewer than asked for meet it."""
    fewer = need.participations // 2
    while fewer:
        try:
            _tuned(name, need, examples, fewer)
        except OutOfReach:
            fewer //= 2
        else:
            rounds = fewer * need.population // need.cohort
            return f"at most about {max(rounds, 1)} rounds, "
    return ""


def _out_of_reach(need: Need, fewer: str, nearest: float = math.inf) -> OutOfReach:
    larger = f"epsilon >= {round_up(nearest)}, " if math.isfinite(nearest) else ""
    wider = ""
    if need.cohort < need.population and need.trust != "local":
        wider = f"a cohort larger than {need.cohort}, "
    looser = "delta > 0, " if need.delta == 0 else ""
    return OutOfReach(
        f"Expected a target that {need.participations} rounds of a client can meet, got "
        f"epsilon={need.epsilon} at delta={need.delta}: it would need {larger}{looser}{fewer}"
        f"{wider}or secure sums (trust='aggregate') of more clients.",
        nearest,
        None,
    )
