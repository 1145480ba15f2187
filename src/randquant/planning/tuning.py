"""The parameters of a mechanism that meet a target with the least error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import report
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.channels.channel import Channel, moments
from randquant.mechanisms.registry import (
    AverageError,
    CoordinateFamily,
    CoordinateTarget,
    Grid,
    MechanismRecord,
    Point,
    UpdateFamily,
    UpdateSetting,
    build,
    channel_mechanisms,
)
from randquant.planning.calibration import Calibration, calibrate
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.privacy.certificates.coordinate import Certificate, certify

# From a target epsilon of one coordinate to the parameters with the least error found.
#
# The search is over the mechanism's `CoordinateFamily`, by default derived from its signature.

MIN_ERROR_GAIN = 1e-9
"""Smallest relative improvement of the error for which the search moves to another point."""


@dataclass(frozen=True, slots=True)
class TunedCoordinate:
    """The result: parameters, their channel, its pure certificate and its average error."""

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
    """Search for the parameters with the least error whose channel certifies the target.

    Args:
        name: a mechanism's name.
        target: clip, levels, epsilon and objective.
        memory: channels of earlier searches, reused and extended; it does not change the result.
        zooms: how often the grids are refined around the best point; by default 3 times, and once
            above 16 levels.

    Returns:
        TunedCoordinate; if a parameter changes epsilon continuously, epsilon is just below the
        target.

    Guarantees:
        The certified epsilon is at most the target.
        The error is the least one found by a search on grids that are refined around the best
        point; it is not proven to be optimal.

    Raises:
        Unreachable: no parameters meet the target; it names the least epsilon found.
        ValueError: the name is unknown, or an argument is out of bounds.

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
    zooms = (3 if target.levels <= 16 else 1) if zooms is None else zooms
    family = record.tuning.coordinate or _from_signature(record)
    search = _Search(name, family, target, {} if memory is None else memory)
    best = search.run(zooms)
    if best is None:
        raise Unreachable(search.reason())
    certificate = certify(best.channel)
    if certificate.epsilon.upper > target.epsilon:
        raise ArithmeticError(f"{best.parameters} certifies {certificate}, above the target.")
    return TunedCoordinate(best.parameters, best.channel, certificate, best.error(target.objective))


def quick_coordinate_mechanisms() -> list[str]:
    """Those of `tunable_mechanisms` that are tuned within seconds."""
    records = channel_mechanisms()
    return [name for name in tunable_mechanisms() if "coordinate" not in records[name].tuning.slow]


def tunable_mechanisms() -> list[str]:
    """Every channel mechanism except fixed channels."""
    return [name for name, record in channel_mechanisms().items() if record.tuning.possible]


@dataclass(frozen=True)
class _Candidate:
    """One channel of a search."""

    parameters: dict[str, Any]
    channel: Channel
    errors: dict[str, float] = field(default_factory=dict)

    @cached_property
    def epsilon(self) -> float:
        """Pure epsilon: per code, the largest over the smallest weight among the vertices."""
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

    def run(self, zooms: int) -> _Candidate | None:
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
        points = list(itertools.product(*outer))
        for done, fixed in enumerate(points):
            report("grid of parameters", done, len(points))
            line = [dict(zip(grids, (*map(float, fixed), float(v)), strict=True)) for v in inner]
            for point in line:
                self.offer(point)
            for left, right in itertools.pairwise(line):
                self.try_edge(left, right, axis, steps=10)

    def polish(self, grids: Mapping[str, np.ndarray]) -> None:
        """Move from the best point along each axis as far as the target allows."""
        for axis, grid in reversed(list(grids.items())):
            best = self.best or {}
            for neighbour in _around(grid, best[axis])[[0, -1]]:
                self.try_edge(best, {**best, axis: float(neighbour)}, axis, steps=60)

    def try_edge(self, left: Point, right: Point, axis: str, steps: int) -> None:
        """Bisect between a point that meets the target and one that does not."""
        if self.private(left) == self.private(right):
            return
        good, bad = (left, right) if self.private(left) else (right, left)
        # The error falls with less privacy: if the bad end is worse, nothing here improves.
        if self.best is not None and self.error(bad) >= self.error(self.best):
            return
        for _ in range(steps if self.at(bad) else 10):
            middle = {**good, axis: (good[axis] + bad[axis]) / 2}
            good, bad = (middle, bad) if self.private(middle) else (good, middle)
        self.offer(good)

    def offer(self, point: Point) -> None:
        if not self.private(point):
            return
        if self.best is None or self.error(point) < self.error(self.best) * (1 - MIN_ERROR_GAIN):
            self.best = point

    def private(self, point: Point) -> bool:
        candidate = self.at(point)
        return candidate is not None and candidate.epsilon <= self.limit

    def error(self, point: Point) -> float:
        """Error of a point's channel; minus infinity if there is no channel."""
        candidate = self.at(point)
        return -math.inf if candidate is None else candidate.error(self.target.objective)

    def at(self, point: Point) -> _Candidate | None:
        parameters = self.family.parameters(self.target, point)
        key = repr(parameters)
        if key not in self.memory:
            try:
                with np.errstate(all="ignore"):  # a constructor may divide by zero at its poles
                    self.memory[key] = _Candidate(parameters, build(self.name, parameters))
            except (ValueError, ArithmeticError):
                self.memory[key] = None
        return self.memory[key]

    def reason(self) -> str:
        """Why no parameters were found."""
        candidates = [candidate for candidate in self.memory.values() if candidate is not None]
        least = min((candidate.epsilon for candidate in candidates), default=math.inf)
        if math.isinf(least):
            return "no parameters: epsilon is infinite at every point of the search"
        return f"no parameters: the least epsilon found is {round_up(least)}"


def _around(grid: np.ndarray, value: float) -> np.ndarray:
    """Seven points between a value's neighbours in the grid."""
    below, above = grid[grid < value], grid[grid > value]
    low = below[-1] if below.size else value
    high = above[0] if above.size else value
    return np.unique([*np.linspace(low, value, 4), *np.linspace(value, high, 4)])


def _from_signature(record: MechanismRecord) -> CoordinateFamily:
    """A family from a signature with clip, levels or trials, epsilon, and one or two numbers."""
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
        possible = {**target.sized(**at), "trials": target.levels - 1, "epsilon": target.epsilon}
        return {name: value for name, value in possible.items() if name in accepted}

    axes: dict[str, Grid] = dict.fromkeys(free, grid) or {"": [0.0]}
    return CoordinateFamily(lambda _: axes, parameters)


# Tuning of whole-update mechanisms: a search for the noise level that meets a target.
#
# A mechanism's `UpdateFamily` fixes all its parameters given one number, the noise level.

MAX_BITS_ERROR_RATIO, MAX_HELPER_BITS_ERROR_RATIO = 1.05, 1.02
"""Integer noise gets as few bits as raise its error by at most this factor. That of a helper gets a
smaller one: it has to be drawn once, so that its error can be Gaussian noise's, and a bit more adds
a smaller part to a client's message, which has a sealed seed of 1,168 bytes too."""

MAX_NOISE_BITS = 24
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
    """Every mechanism that protects whole updates under the setting's trust, without a helper's
    noise."""
    records = all_mechanisms().values()
    return [
        r.name
        for r in records
        if r.tuning.possible and setting.trust in r.trusts and not r.helper_noise
    ]


def quick_update_mechanisms(setting: UpdateSetting) -> list[str]:
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
        error is at most MAX_BITS_ERROR_RATIO times the least with up to MAX_NOISE_BITS bits
        (MAX_HELPER_BITS_ERROR_RATIO if a helper draws it).

    Example:
        >>> setting = UpdateSetting(11, cohort=350, bits=1, trust="aggregate")
        >>> [fewest_bits(name, setting, 0.3) for name in ("stochastic-rounding", "skellam")]
        [1, 14]
    """

    start, noisy = deviation * setting.part, "bits" in all_mechanisms()[name].parameters

    def error(bits: int) -> float:
        """Return the error of integer noise; infinite if no mechanism can be built."""
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
    errors = {bits: error(bits) for bits in range(2, MAX_NOISE_BITS + 1)}
    helped = all_mechanisms()[name].helper_noise
    most = min(errors.values()) * (MAX_HELPER_BITS_ERROR_RATIO if helped else MAX_BITS_ERROR_RATIO)
    return next(bits for bits, each in errors.items() if each <= most)


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
