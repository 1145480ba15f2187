"""How a mechanism is tuned: what is asked of its parameters, and which numbers are searched.

A mechanism is tuned in one of two ways, or in both. For one coordinate one or two numbers are
searched for the least error at a target epsilon (`CoordinateFamily`). For a whole update one number
says how noisy it is, and everything else is chosen (`UpdateFamily`; what is chosen, and why, is in
`docs/theory/plan.md`). A mechanism's record holds both families; the searches are elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from randquant._internal import validate
from randquant.privacy.guarantee import LARGEST_COHORT, Neighboring

AverageError = Literal["mae", "mse"]
"""Mean absolute or mean squared error, for an input that is uniform on [-clip, clip]."""

Point = dict[str, float]
"""Numbers that are searched, by name."""

Grid = Sequence[float] | np.ndarray

SHARES = [0.0, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0]
"""A grid of probabilities."""

SPREAD = 4.0
"""Threshold of a rotated coordinate, in units of clip_norm / sqrt(coordinates)."""


@dataclass(frozen=True, slots=True)
class CoordinateTarget:
    """What is asked of a mechanism for one coordinate.

    Attributes:
        clip: per-coordinate clipping threshold.
        levels: how many codes.
        epsilon: largest pure epsilon of one coordinate, in nats.
        objective: the error to make small, `mae` or `mse`, input uniform on [-clip, clip].
    """

    clip: float
    levels: int
    epsilon: float
    objective: AverageError

    def sized(self, **numbers: float) -> dict[str, Any]:
        """Parameters `clip` and `levels`, and numbers of six significant digits."""
        rounded = {name: six_digits(value) for name, value in numbers.items()}
        return {"clip": self.clip, "levels": self.levels, **rounded}

    def even_values(self, margin: float) -> list[float]:
        """As many evenly spaced values as levels, up to a margin (in units of clip) beyond clip."""
        return even_values(self.clip * (1 + margin), self.levels)


@dataclass(frozen=True, slots=True)
class CoordinateFamily:
    """The numbers that are searched for one coordinate's epsilon.

    Attributes:
        axes: from the target to one or two numbers that are searched, by name, with a grid each.
            Along the last one the edge of enough privacy is found by bisection.
        parameters: from the target and a point to the mechanism's parameters.
    """

    axes: Callable[[CoordinateTarget], Mapping[str, Grid]]
    parameters: Callable[[CoordinateTarget, Point], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class UpdateSetting:
    """What a mechanism has to work with where it protects whole updates.

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
        validate.whole("dimension", self.dimension, low=1, high=2**30)
        validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        validate.whole("bits", self.bits, low=1, high=24)
        validate.choice("trust", self.trust, ("local", "aggregate"))
        validate.real("clip_norm", self.clip_norm, low=1e-25, high=1e12)
        validate.choice("neighboring", self.neighboring, ("replace_one", "zero_out"))

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
        return six_digits(min(SPREAD / math.sqrt(self.size), 1.0) * self.clip_norm)

    @property
    def distance(self) -> float:
        """L2 distance, at most, between two neighbouring updates."""
        return (2 if self.neighboring == "replace_one" else 1) * self.clip_norm


@dataclass(frozen=True, slots=True)
class UpdateFamily:
    """A mechanism with one free number, for whole updates: more of it is more private.

    Attributes:
        parameters: from the free number to the mechanism's parameters, six digits each.
        reach: least and largest free number that makes sense.
        start: from the deviation that Gaussian noise would need, on each update (`local`) or a
            cohort's share of it (`aggregate`), to a first guess.
    """

    parameters: Callable[[float], dict[str, Any]]
    reach: tuple[float, float]
    start: Callable[[float], float]


def noise_family(
    setting: UpdateSetting,
    clients: int,
    reach: tuple[float, float],
    **fixed: Any,
) -> UpdateFamily:
    """The family of a mechanism that adds noise and is told so by `noise_multiplier`.

    Args:
        setting: what it has to work with.
        clients: how many share the noise out.
        reach: least and largest noise multiplier.
        fixed: its other parameters, but for `clip_norm`.
    """
    own = {"clip_norm": setting.clip_norm, **fixed}
    distance = 2 * setting.clip_norm
    return UpdateFamily(
        lambda t: {**own, "noise_multiplier": six_digits(t)},
        reach,
        lambda deviation: deviation * math.sqrt(clients) / distance,
    )


def six_digits(value: float) -> float:
    """Round to six significant digits: what is printed is what was certified."""
    return float(f"{value:.6g}")


def even_values(reach: float, levels: int) -> list[float]:
    """Evenly spaced values from -reach to reach, the reach rounded to six digits."""
    reach = six_digits(reach)
    return [float(value) for value in np.linspace(-reach, reach, levels)]


def margins(target: CoordinateTarget) -> np.ndarray:
    """A grid of margins, in units of clip, around the least that meets the target."""
    count = 41 if target.levels <= 4 else 21 if target.levels <= 16 else 11
    grid, least = np.geomspace(0.01, 100, count), _least_margin(target)
    return np.array([0.9 * least, least, 1.5 * least, *grid[grid > 1.6 * least]])


def few_margins(target: CoordinateTarget) -> np.ndarray:
    """Likewise, for channels that are slow to make."""
    least = _least_margin(target)
    return np.geomspace(least, max(16 * least, 4.0), 10 if target.levels <= 16 else 6)


def _least_margin(target: CoordinateTarget) -> float:
    """Margin over clip below which no unbiased channel meets the target, and a little more."""
    return 2 / math.expm1(target.epsilon) * (1 + 1e-5)
