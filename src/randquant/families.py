"""From a target epsilon to a mechanism's parameters: the least error found that stays below it.

Each mechanism has a family: a few numbers that are searched, and how they become its parameters.
A mechanism without one gets a family from its signature.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from randquant import _validate
from randquant.certify import Certificate, certify
from randquant.channel import Channel
from randquant.mechanisms import MECHANISMS, build
from randquant.moments import moments
from randquant.privacy import round_up

Objective = Literal["mae", "mse"]
Point = dict[str, float]
Grid = Sequence[float] | np.ndarray

GAIN = 1e-9
"""Relative improvement of the error below which a point is not worth changing for."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for.

    Attributes:
        clip: per-coordinate clipping threshold.
        levels: how many codes.
        epsilon: largest pure epsilon of one coordinate, in nats.
        objective: the error to make small, `mae` or `mse`, input uniform on [-clip, clip].
    """

    clip: float
    levels: int
    epsilon: float
    objective: Objective


@dataclass(frozen=True, slots=True)
class Family:
    """How a mechanism's parameters are searched.

    Attributes:
        axes: from the target to one or two numbers that are searched, by name, with a grid each.
            Along the last one the edge of enough privacy is found by bisection.
        parameters: from the target and a point to the parameters that `build` takes.
        build: from parameters to a channel; ValueError where there is none.
    """

    axes: Callable[[Target], Mapping[str, Grid]]
    parameters: Callable[[Target, Point], dict[str, Any]]
    build: Callable[[dict[str, Any]], Channel]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What was found: parameters, their channel, its pure certificate and its average error."""

    parameters: dict[str, Any]
    channel: Channel
    certificate: Certificate
    error: float


class Unreachable(ValueError):
    """No parameters were found; the message says why."""


def calibrate(
    name: str, target: Target, memory: dict[str, Any] | None = None, zooms: int | None = None
) -> Calibrated:
    """Search the parameters with the least error among those that certify the target.

    Args:
        name: a mechanism's name.
        target: clip, levels, epsilon and objective.
        memory: channels of earlier searches, reused and extended; the result is the same.
        zooms: how often the grids are drawn closer around the best point; by default 3 times, and
            once above 16 levels.

    Returns:
        Calibrated; where epsilon can be steered exactly it is just below the target.

    Guarantees:
        The certified epsilon is at most the target.
        The error is the least that was found: a search on grids drawn closer around the best
        point, no proof that nothing is better.

    Raises:
        Unreachable: no parameters were found, with the least epsilon that was.
        ValueError: the name or an argument is out of bounds.

    Example:
        >>> found = calibrate("rqm", Target(clip=1.0, levels=4, epsilon=1.0, objective="mae"))
        >>> 0.99999 < found.certificate.epsilon.upper <= 1.0, round(found.error, 2)
        (True, 1.99)
    """
    _validate.real("clip", target.clip, low=1e-30, high=1e30)
    _validate.whole("levels", target.levels, low=2, high=256)
    _validate.real("epsilon", target.epsilon, above=0, high=40)
    _validate.choice("objective", target.objective, ("mae", "mse"))
    family = family_of(name)
    search = _Search(family, target, {} if memory is None else memory)
    found = search.run((3 if target.levels <= 16 else 1) if zooms is None else zooms)
    if found is None:
        raise Unreachable(search.least())
    certificate = certify(found.channel)
    if certificate.epsilon.upper > target.epsilon:
        raise ArithmeticError(f"{found.parameters} certifies {certificate}, above the target.")
    return Calibrated(found.parameters, found.channel, certificate, found.error(target.objective))


def names() -> list[str]:
    """Every mechanism but those that are given as they are."""
    return [name for name in MECHANISMS if name != "channel-file"]


def family_of(name: str) -> Family:
    """A mechanism's own family, or one made from its signature."""
    _validate.choice("mechanism", name, names())
    return FAMILIES[name] if name in FAMILIES else _generic(name)


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

    def error(self, objective: Objective) -> float:
        if objective not in self.errors:
            self.errors[objective] = getattr(moments(self.channel), objective)
        return self.errors[objective]


class _Search:
    """A search over one or two axes of a family."""

    def __init__(self, family: Family, target: Target, memory: dict[str, Any]) -> None:
        self.family, self.target, self.memory = family, target, memory
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
                    self.memory[key] = _Tried(parameters, self.family.build(parameters))
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


def _least(target: Target) -> float:
    """Margin over clip below which no unbiased channel meets the target, and a little more."""
    return 2 / math.expm1(target.epsilon) * (1 + 1e-5)


def _margins(target: Target) -> np.ndarray:
    """In units of clip."""
    count = 41 if target.levels <= 4 else 21 if target.levels <= 16 else 11
    grid, least = np.geomspace(0.01, 100, count), _least(target)
    return np.array([0.9 * least, least, 1.5 * least, *grid[grid > 1.6 * least]])


def _few_margins(target: Target) -> np.ndarray:
    """Likewise, for channels that are slow to make."""
    least = _least(target)
    return np.geomspace(least, max(16 * least, 4.0), 10 if target.levels <= 16 else 6)


SHARES = [0.0, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0]
"""Probabilities."""


def _six(value: float) -> float:
    """Six significant digits: what is printed is what was certified."""
    return float(f"{value:.6g}")


def _sized(target: Target, **numbers: float) -> dict[str, Any]:
    rounded = {name: _six(value) for name, value in numbers.items()}
    return {"clip": target.clip, "levels": target.levels, **rounded}


def _spread(target: Target, margin: float) -> list[float]:
    reach = _six(target.clip * (1 + margin))
    return [float(value) for value in np.linspace(-reach, reach, target.levels)]


def _of(name: str) -> Callable[[dict[str, Any]], Channel]:
    return lambda parameters: build(name, parameters)


FAMILIES: dict[str, Family] = {
    "rqm": Family(
        lambda t: {"margin": _margins(t), "keep": SHARES},
        lambda t, at: _sized(t, margin=t.clip * at["margin"], keep=at["keep"]),
        _of("rqm"),
    ),
    "pbm": Family(
        lambda t: {"theta": np.geomspace(1e-5, 0.5, 25)},
        lambda t, at: {"clip": t.clip, "theta": _six(at["theta"]), "trials": t.levels - 1},
        _of("pbm"),
    ),
    "erm": Family(
        lambda t: {"margin": _margins(t), "gamma": [0.0, 1.0, 3.0, 10.0, 100.0]},
        lambda t, at: {
            "clip": t.clip,
            "bins": _spread(t, at["margin"]),
            "gamma": _six(at["gamma"]),
        },
        _of("erm"),
    ),
    "optm": Family(
        lambda t: {"margin": _few_margins(t)},
        lambda t, at: {
            "clip": t.clip,
            "bins": _spread(t, at["margin"]),
            "epsilon": t.epsilon,
        },
        _of("optm"),
    ),
    "qmgeo": Family(
        lambda t: {"p": [1e-3, *SHARES[4:-1], 0.999], "mixing": np.geomspace(1e-9, 0.5, 19)},
        lambda t, at: _sized(t, p=at["p"], mixing=at["mixing"]),
        _of("qmgeo"),
    ),
    "stochastic-rounding": Family(
        # Finite only when all inputs lie between the two middle levels: those are steered.
        lambda t: {"middle": _margins(t)},
        lambda t, at: _sized(t, margin=t.clip * ((t.levels - 1) * (1 + at["middle"]) - 1)),
        _of("stochastic-rounding"),
    ),
    "optimal": Family(
        lambda t: {"margin": _few_margins(t)},
        lambda t, at: {
            "clip": t.clip,
            "values": _spread(t, at["margin"]),
            "epsilon": t.epsilon,
            "objective": t.objective,
            "inputs": 33 if t.levels <= 16 else 17,
        },
        _of("optimal"),
    ),
    "imvu": Family(
        lambda t: {"": [0.0]},
        lambda t, at: {
            "clip_norm": t.clip,
            "levels": t.levels,
            "epsilon": _six(t.epsilon * (1 - 1e-5)),
        },
        _of("imvu"),
    ),
}
"""By mechanism; `optimal` on evenly spaced levels, so that summed codes decode."""


def _generic(name: str) -> Family:
    """A family from a signature: clip, levels (or trials), a target epsilon, one or two numbers."""
    accepted = inspect.signature(MECHANISMS[name]).parameters
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

    def parameters(target: Target, at: Point) -> dict[str, Any]:
        every = {**_sized(target, **at), "trials": target.levels - 1, "epsilon": target.epsilon}
        return {name: value for name, value in every.items() if name in accepted}

    axes: dict[str, Grid] = dict.fromkeys(free, grid) or {"": [0.0]}
    return Family(lambda _: axes, parameters, _of(name))
