"""Tuning of whole-update mechanisms: a search for the noise level that meets a target.

A mechanism's `UpdateFamily` fixes all its parameters given one number, the noise level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.mechanisms.tuning import UpdateFamily, UpdateSetting
from randquant.planning.calibration import Calibration, calibrate
from randquant.privacy.accounting.cohorts import HiddenCohorts

FINE = 1.05
"""Integer noise gets as few bits as raise its error by at most this factor."""

MOST = 24
"""Most bits of integer noise."""


@dataclass(frozen=True, slots=True)
class TunedUpdate:
    """A mechanism with the least noise found to meet a target.

    Attributes:
        parameters: its parameters.
        calibration: the mechanism, its guarantee and facts about the search.
    """

    parameters: dict[str, Any]
    calibration: Calibration


def tune_update(
    name: str,
    setting: UpdateSetting,
    epsilon: float,
    delta: float,
    rounds: int,
    *,
    deviation: float,
    examples: int | None = None,
    cohorts: HiddenCohorts | None = None,
) -> TunedUpdate:
    """Find the least noise with which a mechanism meets (epsilon, delta) for a whole run.

    Args:
        name: a mechanism's name.
        setting: dimension, cohort, bits, trust and clipping threshold.
        epsilon, delta, rounds, examples, cohorts: as in `calibrate`.
        deviation: starting point of the search: the standard deviation of Gaussian noise that
            meets the target, on each update (`local`) or a client's share of it (`aggregate`).

    Returns:
        A TunedUpdate.

    Guarantees:
        Those of `calibrate`: the guarantee is the accountant's own for the returned mechanism.

    Raises:
        OutOfReach: no noise level that was tried meets the target.
        ValueError: the mechanism has no family in this setting; the message says why.

    Example:
        >>> setting = UpdateSetting(dimension=100, cohort=10, bits=1)
        >>> tuned = tune_update("local-gaussian", setting, 8.0, 1e-5, 1, deviation=1.0)
        >>> tuned.parameters["clip_norm"], tuned.calibration.guarantee.epsilon <= 8
        (1.0, True)
    """
    deviation = validate.number(deviation)
    family = update_family(name, setting)
    calibration = calibrate(
        lambda noise: tuned_mechanism(name, setting, family.parameters(noise)),
        epsilon,
        delta,
        setting.dimension,
        rounds,
        neighboring=setting.neighboring,
        examples=examples,
        cohorts=cohorts,
        # Where a part is sent, as much less noise hides it.
        start=family.start(deviation * setting.part),
        reach=family.reach,
    )
    return TunedUpdate(family.parameters(calibration.noise), calibration)


def update_family(name: str, setting: UpdateSetting) -> UpdateFamily:
    """Return the one-number family of a mechanism.

    Raises:
        ValueError: there is none in this setting; the message says why.

    Example:
        >>> setting = UpdateSetting(dimension=100, cohort=10, bits=1)
        >>> update_family("stochastic-rounding", setting).parameters(2.0)
        {'clip': 0.265165, 'levels': 2, 'margin': 0.441941}
    """
    known = all_mechanisms()
    record = known[validate.choice("mechanism", name, known)]
    if record.tuning.update is None:
        raise ValueError(
            f"protects nothing under {setting.trust} trust"
            if record.whole_update
            else "tuned to one coordinate's epsilon only: it has no family for whole updates"
        )
    if setting.trust not in record.trusts:
        raise ValueError(f"works under {' or '.join(record.trusts)} trust only")
    return record.tuning.update(setting)


def protecting_mechanisms(setting: UpdateSetting) -> list[str]:
    """Every mechanism that protects whole updates under the setting's trust."""
    records = all_mechanisms().values()
    return [r.name for r in records if r.tuning.possible and setting.trust in r.trusts]


def quick_mechanisms(setting: UpdateSetting) -> list[str]:
    """Those of `protecting_mechanisms` that are tuned within seconds."""
    known = all_mechanisms()
    return [n for n in protecting_mechanisms(setting) if setting.trust not in known[n].tuning.slow]


def fewest_bits(name: str, setting: UpdateSetting, deviation: float) -> int:
    """Bits that a mechanism gets by itself: `bits` of "auto".

    Args:
        name: of the mechanism.
        setting: its bits do not matter.
        deviation: as for `tune_update`.

    Returns:
        For a channel the fewest that it can be built with, 1 or 2: what it could win with more is
        in `docs/theory/plan.md`. For integer noise of this deviation the fewest with which the
        error is at most FINE times the least with up to MOST bits.

    Example:
        >>> setting = UpdateSetting(11, cohort=350, bits=1, trust="aggregate")
        >>> [fewest_bits(name, setting, 0.3) for name in ("stochastic-rounding", "skellam")]
        [1, 14]
    """

    start, noisy = deviation * setting.part, "bits" in all_mechanisms()[name].parameters

    def error(bits: int) -> float:
        """Of integer noise; infinite without a mechanism."""
        sized = replace(setting, bits=bits)
        try:
            family = update_family(name, sized)
            if not noisy:
                return 0.0
            tuned = tuned_mechanism(name, sized, family.parameters(family.start(start)))
            return tuned.expected_error(setting.dimension).deviation(setting.cohort, 0.0)
        except ValueError:
            return math.inf

    if not noisy:
        return 1 if error(1) == 0 else 2
    errors = {bits: error(bits) for bits in range(2, MOST + 1)}
    least = min(errors.values())
    return next(bits for bits, each in errors.items() if each <= FINE * least)


def tuned_mechanism(
    name: str, setting: UpdateSetting, parameters: Mapping[str, Any]
) -> UpdateMechanism:
    """Build a mechanism for whole updates from its parameters."""
    whole = all_mechanisms()[name].whole_update
    return update_mechanism(
        name,
        parameters,
        trust=setting.trust,
        cohort=setting.cohort,
        clip_norm=None if whole else setting.clip_norm,
        coordinates=setting.coordinates,
    )
