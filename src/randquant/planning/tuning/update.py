"""Mechanisms for whole updates with one free number: how noisy they are, the rest being chosen.

What is chosen is the mechanism's own `UpdateFamily`; here its number is searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from randquant._internal import validate
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.mechanisms.tuning import UpdateFamily, UpdateSetting
from randquant.privacy.accounting.calibrate import Calibration, calibrate


@dataclass(frozen=True, slots=True)
class TunedUpdate:
    """A mechanism with the least noise that was found to meet a target.

    Attributes:
        parameters: what it is built from.
        calibration: the mechanism, its guarantee and how the search went.
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
) -> TunedUpdate:
    """Find the least noise with which a mechanism meets (epsilon, delta) for a whole run.

    Args:
        name: a mechanism's name.
        setting: what it has to work with.
        epsilon, delta, rounds, examples: as `calibrate`.
        deviation: where the search begins: that of Gaussian noise that would do, on each update
            (`local`) or a cohort's share of it (`aggregate`).

    Returns:
        A TunedUpdate.

    Guarantees:
        Those of `calibrate`: the guarantee is the accountant's own for the returned mechanism.

    Raises:
        OutOfReach: nothing that was looked at meets the target.
        ValueError: the mechanism has no family in this setting; the message says why.

    Example:
        >>> setting = UpdateSetting(dimension=100, cohort=10, bits=1)
        >>> tuned = tune_update("local-gaussian", setting, 8.0, 1e-5, 1, deviation=1.0)
        >>> tuned.parameters["clip_norm"], tuned.calibration.guarantee.epsilon <= 8
        (1.0, True)
    """
    family = update_family(name, setting)
    calibration = calibrate(
        lambda noise: tuned_mechanism(name, setting, family.parameters(noise)),
        epsilon,
        delta,
        setting.dimension,
        rounds,
        neighboring=setting.neighboring,
        examples=examples,
        start=family.start(deviation),
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
        {'clip': 0.353553, 'levels': 2, 'margin': 0.353553}
    """
    known = all_mechanisms()
    record = known[validate.choice("mechanism", name, known)]
    if record.update is None:
        raise ValueError(
            f"protects nothing under {setting.trust} trust"
            if record.whole_update
            else "made for one coordinate's epsilon: it has no family for whole updates"
        )
    if setting.trust not in record.trusts:
        raise ValueError(f"works under {' or '.join(record.trusts)} trust only")
    return record.update(setting)


def protecting_mechanisms(setting: UpdateSetting) -> list[str]:
    """Every mechanism that protects whole updates under a trust."""
    known = all_mechanisms().items()
    return [name for name, each in known if each.tunable and setting.trust in each.trusts]


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
    )
