"""From a target epsilon of one coordinate to a mechanism's parameters: the least error found.

What is searched is the mechanism's own `CoordinateFamily`; one without it gets a family from its
signature.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.channels.channel import Channel
from randquant.channels.moments import moments
from randquant.mechanisms.record import MechanismRecord
from randquant.mechanisms.registry import build, channel_mechanisms
from randquant.mechanisms.tuning import (
    AverageError,
    CoordinateFamily,
    CoordinateTarget,
    Grid,
    Point,
)
from randquant.privacy.certificates.coordinate import Certificate, certify

GAIN = 1e-9
"""Relative improvement of the error below which a point is not worth changing for."""


@dataclass(frozen=True, slots=True)
class TunedCoordinate:
    """What was found: parameters, their channel, its pure certificate and its average error."""

    parameters: dict[str, Any]
    channel: Channel
    certificate: Certificate
    error: float


class Unreachable(ValueError):
    """No parameters were found; the message says why."""


def tune_coordinate(
    name: str,
    target: CoordinateTarget,
    memory: dict[str, Any] | None = None,
    zooms: int | None = None,
) -> TunedCoordinate:
    """Search the parameters with the least error among those that certify the target.

    Args:
        name: a mechanism's name.
        target: clip, levels, epsilon and objective.
        memory: channels of earlier searches, reused and extended; the result is the same.
        zooms: how often the grids are drawn closer around the best point; by default 3 times, and
            once above 16 levels.

    Returns:
        TunedCoordinate; where epsilon can be steered exactly it is just below the target.

    Guarantees:
        The certified epsilon is at most the target.
        The error is the least that was found: a search on grids drawn closer around the best
        point, no proof that nothing is better.

    Raises:
        Unreachable: no parameters were found, with the least epsilon that was.
        ValueError: the name or an argument is out of bounds.

    Example:
        >>> target = CoordinateTarget(clip=1.0, levels=4, epsilon=1.0, objective="mae")
        >>> tuned = tune_coordinate("rqm", target)
        >>> 0.99999 < tuned.certificate.epsilon.upper <= 1.0, round(tuned.error, 2)
        (True, 1.99)
    """
    validate.real("clip", target.clip, low=1e-30, high=1e30)
    validate.whole("levels", target.levels, low=2, high=256)
    validate.real("epsilon", target.epsilon, above=0, high=40)
    validate.choice("objective", target.objective, ("mae", "mse"))
    validate.choice("mechanism", name, tunable_mechanisms())
    record = channel_mechanisms()[name]
    family = record.coordinate or _from_signature(record)
    search = _Search(name, family, target, {} if memory is None else memory)
    best = search.run((3 if target.levels <= 16 else 1) if zooms is None else zooms)
    if best is None:
        raise Unreachable(search.least())
    certificate = certify(best.channel)
    if certificate.epsilon.upper > target.epsilon:
        raise ArithmeticError(f"{best.parameters} certifies {certificate}, above the target.")
    return TunedCoordinate(best.parameters, best.channel, certificate, best.error(target.objective))


def tunable_mechanisms() -> list[str]:
    """Every channel mechanism but those that are given as they are."""
    return [name for name, record in channel_mechanisms().items() if record.tunable]


@dataclass(frozen=True)
class _Tried:
    """One channel of a search."""

    parameters: dict[str, Any]
    channel: Channel
    errors: dict[str, float] = field(default_factory=dict)

    @cached_property
    def epsilon(self) -> float:
        """Pure epsilon, code by code: the largest over the least weight of any vertex."""
        high, low = self.channel.weights.max(axis=0), self.channel.weights.min(axis=0)
        used = high > 0
        if (low[used] == 0).any():
            return math.inf
        return float(np.log1p((high - low)[used] / low[used]).max())

    def error(self, objective: AverageError) -> float:
        if objective not in self.errors:
            self.errors[objective] = getattr(moments(self.channel), objective)
        return self.errors[objective]


class _Search:
    """A search over one or two axes of a family."""

    def __init__(
        self,
        name: str,
        family: CoordinateFamily,
        target: CoordinateTarget,
        memory: dict[str, Any],
    ) -> None:
        self.name, self.family, self.target, self.memory = name, family, target, memory
        self.limit = target.epsilon * (1 - 1e-12)  # the certificate is rounded outward
        self.best: Point | None = None

    def run(self, zooms: int) -> _Tried | None:
        axes = self.family.axes(self.target)
        grids = {axis: np.asarray(grid, dtype=float) for axis, grid in axes.items()}
        full, inner = dict(grids), list(grids)[-1]
        for _ in range(1 + zooms):
            self.scan(grids)
            if self.best is None:
                return None
            grids = {axis: _around(grid, self.best[axis]) for axis, grid in grids.items()}
            if len(grids) > 1:  # the edge moves along the last axis as the first one changes
                grids[inner] = full[inner]
        self.polish(full)
        self.polish(grids)
        return None if self.best is None else self.at(self.best)

    def scan(self, grids: Mapping[str, np.ndarray]) -> None:
        """Try every point of the grids, and the edges along the last axis."""
        *outer, inner = grids.values()
        axis = list(grids)[-1]
        for fixed in itertools.product(*outer):
            line = [dict(zip(grids, (*map(float, fixed), float(v)), strict=True)) for v in inner]
            for point in line:
                self.offer(point)
            for one, other in itertools.pairwise(line):
                self.try_edge(one, other, axis, steps=10)

    def polish(self, grids: Mapping[str, np.ndarray]) -> None:
        """Go from the best point along each axis as far as the target allows."""
        for axis, grid in reversed(list(grids.items())):
            best = self.best or {}
            for neighbour in _around(grid, best[axis])[[0, -1]]:
                self.try_edge(best, {**best, axis: float(neighbour)}, axis, steps=60)

    def try_edge(self, one: Point, other: Point, axis: str, steps: int) -> None:
        """Halve the gap between a point that is private enough and one that is not."""
        if self.private(one) == self.private(other):
            return
        good, bad = (one, other) if self.private(one) else (other, one)
        # Errors fall towards less privacy: what is worse there need not be looked at.
        if self.best is not None and self.error(bad) >= self.error(self.best):
            return
        for _ in range(steps if self.at(bad) else 10):
            middle = {**good, axis: (good[axis] + bad[axis]) / 2}
            good, bad = (middle, bad) if self.private(middle) else (good, middle)
        self.offer(good)

    def offer(self, point: Point) -> None:
        if not self.private(point):
            return
        if self.best is None or self.error(point) < self.error(self.best) * (1 - GAIN):
            self.best = point

    def private(self, point: Point) -> bool:
        tried = self.at(point)
        return tried is not None and tried.epsilon <= self.limit

    def error(self, point: Point) -> float:
        """Of a channel; below all others where there is none."""
        tried = self.at(point)
        return -math.inf if tried is None else tried.error(self.target.objective)

    def at(self, point: Point) -> _Tried | None:
        parameters = self.family.parameters(self.target, point)
        key = repr(parameters)
        if key not in self.memory:
            try:
                with np.errstate(all="ignore"):  # a constructor may meet its poles
                    self.memory[key] = _Tried(parameters, build(self.name, parameters))
            except (ValueError, ArithmeticError):
                self.memory[key] = None
        return self.memory[key]

    def least(self) -> str:
        """Why nothing was found."""
        tried = [each for each in self.memory.values() if each is not None]
        least = min((each.epsilon for each in tried), default=math.inf)
        if math.isinf(least):
            return "no parameters: epsilon is infinite wherever it was looked for"
        return f"no parameters: the least epsilon found is {round_up(least)}"


def _around(grid: np.ndarray, value: float) -> np.ndarray:
    """Seven points between the grid's neighbours of a value."""
    below, above = grid[grid < value], grid[grid > value]
    low = below[-1] if below.size else value
    high = above[0] if above.size else value
    return np.unique([*np.linspace(low, value, 4), *np.linspace(value, high, 4)])


def _from_signature(record: MechanismRecord) -> CoordinateFamily:
    """A family from a signature: clip, levels (or trials), a target epsilon, one or two numbers."""
    accepted = record.signature
    free = []
    for parameter in accepted.values():
        known = parameter.name in ("clip", "levels", "trials", "epsilon")
        if known or parameter.default is not parameter.empty:
            continue
        if parameter.annotation not in ("float", float):
            raise Unreachable(f"not calibrated: give it {', '.join(accepted)} with --channel")
        free.append(parameter.name)
    sized = "levels" in accepted or "trials" in accepted
    if not sized or len(free) > 2 or (not free and "epsilon" not in accepted):
        raise Unreachable(f"not calibrated: give it {', '.join(accepted)} with --channel")
    decades = np.geomspace(1e-6, 1e6, 37 if len(free) < 2 else 19)
    near_one = 1 - 10.0 ** -np.arange(2, 7)
    grid = np.unique([*decades, *np.linspace(0.05, 0.95, 10), *near_one])

    def parameters(target: CoordinateTarget, at: Point) -> dict[str, Any]:
        every = {**target.sized(**at), "trials": target.levels - 1, "epsilon": target.epsilon}
        return {name: value for name, value in every.items() if name in accepted}

    axes: dict[str, Grid] = dict.fromkeys(free, grid) or {"": [0.0]}
    return CoordinateFamily(lambda _: axes, parameters)
