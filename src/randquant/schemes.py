"""Mechanisms for whole updates with one free number: how noisy they are, the rest being chosen.

What is chosen, and why, is in `docs/theory/plan.md`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from randquant import _validate
from randquant.aggregate import UpdateMechanism, update_mechanism
from randquant.mechanisms import MECHANISMS
from randquant.privacy import Neighboring
from randquant.releases import LARGEST_COHORT

SPREAD = 4.0
"""Threshold of a rotated coordinate, in units of clip_norm / sqrt(coordinates)."""

ENOUGH = 16.0
"""Deviation of a coordinate's noise over its threshold from which two levels are within 0.2 % of
the least noise that any unbiased channel can have."""

KEEP = 0.42
"""RQM's probability to keep a level, as in its paper."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a mechanism has to work with.

    Attributes:
        dimension: coordinates of an update, 1 to 2**30.
        cohort: clients in a round.
        bits: most bits that a code may take, 1 to 24; channels take 8 at most.
        trust: `local` or `aggregate`.
        clip_norm: L2 clipping threshold of a whole update.
        neighboring: what an adversary tries to tell apart.
    """

    dimension: int
    cohort: int
    bits: int
    trust: Literal["local", "aggregate"] = "local"
    clip_norm: float = 1.0
    neighboring: Neighboring = "replace_one"

    def __post_init__(self) -> None:
        _validate.whole("dimension", self.dimension, low=1, high=2**30)
        _validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        _validate.whole("bits", self.bits, low=1, high=24)
        _validate.choice("trust", self.trust, ("local", "aggregate"))
        _validate.real("clip_norm", self.clip_norm, low=1e-25, high=1e12)
        _validate.choice("neighboring", self.neighboring, ("replace_one", "zero_out"))

    @property
    def size(self) -> int:
        """Coordinates of a rotated update: filled up to a power of two."""
        return 1 << (self.dimension - 1).bit_length()

    @property
    def levels(self) -> int:
        """Most codes of a channel."""
        return 2 ** min(self.bits, 8)

    @property
    def clip(self) -> float:
        """Threshold of a rotated coordinate: no coordinate is longer than the update."""
        return _six(min(SPREAD / math.sqrt(self.size), 1.0) * self.clip_norm)

    @property
    def distance(self) -> float:
        """L2 distance, at most, between two neighbouring updates."""
        return (2 if self.neighboring == "replace_one" else 1) * self.clip_norm


@dataclass(frozen=True, slots=True)
class Scheme:
    """One mechanism with one free number.

    Attributes:
        name: the mechanism's.
        parameters: from the free number to the mechanism's parameters, six digits each.
        reach: least and largest free number that makes sense.
        start: from the deviation that Gaussian noise would need, on each update (`local`) or a
            cohort's share of it (`aggregate`), to a first guess.
    """

    name: str
    parameters: Callable[[float], dict[str, Any]]
    reach: tuple[float, float]
    start: Callable[[float], float]


def scheme(name: str, setting: Setting) -> Scheme:
    """Return the one-number family of a mechanism.

    Raises:
        ValueError: there is none in this setting; the message says why.

    Example:
        >>> scheme("stochastic-rounding", Setting(100, 10, 1)).parameters(2.0)
        {'clip': 0.353553, 'levels': 2, 'margin': 0.353553}
    """
    if name in _ADDITIVE:
        return _additive(name, setting)
    if name in _CHANNELS:
        return Scheme(name, *_CHANNELS[name](setting))
    if name in MECHANISMS:
        raise ValueError("made for one coordinate's epsilon: it has no family for whole updates")
    raise ValueError(f"protects nothing under {setting.trust} trust")


def names(setting: Setting) -> list[str]:
    """Every mechanism that protects whole updates under a trust."""
    channels = [name for name in MECHANISMS if name != "channel-file"]
    return [*channels, *(name for name, trust in _ADDITIVE.items() if trust == setting.trust)]


def mechanism(name: str, setting: Setting, parameters: dict[str, Any]) -> UpdateMechanism:
    """Build a mechanism for whole updates from its parameters."""
    if name in _ADDITIVE:
        cohort = setting.cohort if setting.trust == "aggregate" else None
        return update_mechanism(name, parameters, trust=setting.trust, cohort=cohort)
    return update_mechanism(
        name, parameters, trust=setting.trust, cohort=setting.cohort, clip_norm=setting.clip_norm
    )


_Family = tuple[Callable[[float], dict[str, Any]], tuple[float, float], Callable[[float], float]]


def _rounding(s: Setting) -> _Family:
    """One bit: more levels protect nothing unless they are never sent."""
    return (
        lambda t: {"clip": s.clip, "levels": 2, "margin": _six(s.clip * (t - 1))},
        (1.05, 1e12),
        lambda deviation: deviation / s.clip,
    )


def _rqm(s: Setting) -> _Family:
    return (
        lambda t: {
            "clip": s.clip, "margin": _six(s.clip * (t - 1)), "levels": s.levels, "keep": KEEP,
        },
        (1.01, 1e12),
        lambda deviation: 4 * deviation / s.clip,
    )  # fmt: skip


def _pbm(s: Setting) -> _Family:
    trials = s.levels - 1
    return (
        lambda t: {"clip": s.clip, "theta": _six(0.5 / t), "trials": trials, "inputs": 17},
        (1.05, 1e12),
        lambda deviation: math.sqrt(trials) * deviation / s.clip,
    )


def _imvu(s: Setting) -> _Family:
    levels = min(s.levels, 16)
    return (
        lambda t: {"clip_norm": s.clip, "levels": levels, "epsilon": _six(2 / t)},
        (0.1, 2e6),
        lambda deviation: deviation / s.clip / math.sqrt(levels - 1),
    )


def _mvu(s: Setting) -> _Family:
    """Two levels: with more, all but two come to coincide when there is much noise."""
    return (
        lambda t: {"clip": s.clip, "levels": 2, "epsilon": _six(2 / t)},
        (0.1, 1e6),
        lambda deviation: deviation / s.clip,
    )


def _optimal(s: Setting) -> _Family:
    return _least_information(s) if s.trust == "local" else _least_ratio(s)


def _least_information(s: Setting) -> _Family:
    """At most 1/t^2 of Fisher information about x/clip: what a whole update's L2 norm pays for.

    No unbiased channel has less noise than t·clip then; four levels nearly reach that. Where there
    is much noise two levels do, which need no programme.
    """

    def parameters(t: float) -> dict[str, Any]:
        two = s.levels == 2 or t >= ENOUGH
        reach = math.sqrt(1 + t**2) * (1 + 1e-5) if two else 1 + 1.5 * t
        return {
            "clip": s.clip, "epsilon": _six(t**-2), "constraint": "fisher",
            "values": _spread(s.clip * reach, 2 if two else 4), "inputs": 9,
        }  # fmt: skip

    return parameters, (0.1, 1e6), lambda deviation: deviation / s.clip


def _least_ratio(s: Setting) -> _Family:
    """Pure epsilon, evenly spaced values, the outermost further than an unbiased channel needs.

    Under aggregate trust a sum is bounded by what the others' codes share with every row, which
    small ratios of chances make large.
    """
    further = 1.5 if s.levels > 2 else 1 + 1e-5

    def parameters(t: float) -> dict[str, Any]:
        epsilon = _six(2 / t)
        values = _spread(s.clip * (1 + 2 / math.expm1(epsilon)) * further, s.levels)
        return {"clip": s.clip, "epsilon": epsilon, "values": values, "inputs": 17}

    return parameters, (0.1, 1e6), lambda deviation: 1.5 * deviation / s.clip


def _erm(s: Setting) -> _Family:
    return (
        lambda t: {"clip": s.clip, "bins": _spread(s.clip * t, s.levels), "gamma": 1.0},
        (1.01, 1e12),
        lambda deviation: 2 * deviation / s.clip,
    )


def _qmgeo(s: Setting) -> _Family:
    return (
        lambda t: {
            "clip": s.clip, "levels": s.levels, "p": 0.1, "mixing": _six(0.5 * t / (1 + t)),
        },
        (1e-9, 1e6),
        lambda deviation: 1.0,
    )  # fmt: skip


_CHANNELS: dict[str, Callable[[Setting], _Family]] = {
    "stochastic-rounding": _rounding,
    "rqm": _rqm,
    "pbm": _pbm,
    "imvu": _imvu,
    "mvu": _mvu,
    "optimal": _optimal,
    "erm": _erm,
    "qmgeo": _qmgeo,
}

_ADDITIVE = {
    "skellam": "aggregate",
    "discrete-gaussian": "aggregate",
    "binomial": "aggregate",
    "local-gaussian": "local",
    "sign-sgd": "local",
}
"""Mechanisms that add noise to whole updates, with the trust they work under."""


def _additive(name: str, setting: Setting) -> Scheme:
    if _ADDITIVE[name] != setting.trust:
        raise ValueError(f"works under {_ADDITIVE[name]} trust only")
    fixed: dict[str, Any] = {"clip_norm": setting.clip_norm}
    many = 1
    if setting.trust == "aggregate":
        # Fewer than 2 bits hold no noise: it is then said how many would.
        fixed["bits"], many = max(setting.bits, 2), setting.cohort
    distance = 2 * setting.clip_norm
    return Scheme(
        name,
        lambda t: {**fixed, "noise_multiplier": _six(t)},
        (1e-6, 1e6) if setting.trust == "aggregate" else (1e-12, 1e12),
        lambda deviation: deviation * math.sqrt(many) / distance,
    )


def _spread(reach: float, levels: int) -> list[float]:
    return [float(value) for value in np.linspace(-_six(reach), _six(reach), levels)]


def _six(value: float) -> float:
    """Six significant digits: what is printed is what was certified."""
    return float(f"{value:.6g}")
