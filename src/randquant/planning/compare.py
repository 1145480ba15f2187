"""Channels side by side, privacy against error: as given, or tuned to the same epsilon."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import report, step, waiting
from randquant.channels.channel import Channel, Moments, moments
from randquant.mechanisms.registry import (
    AverageError,
    CoordinateFamily,
    CoordinateTarget,
    Grid,
    MechanismRecord,
    Point,
    build,
    channel_mechanisms,
)
from randquant.privacy.certificates.coordinate import Certificate, certify

__all__ = [
    "CURVE_EPSILONS",
    "Comparison",
    "Entry",
    "Measured",
    "at_equal_epsilon",
    "compare_channels",
    "make_entry",
    "tradeoffs",
]


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
    # Weights are integers of at most 2**62, so that no ratio of two positive ones exceeds e^43: a
    # target above that would bind no channel.
    validate.real("epsilon", target.epsilon, above=0, high=40)
    validate.choice("objective", target.objective, ("mae", "mse"))
    validate.choice("mechanism", name, tunable_mechanisms())
    record = channel_mechanisms()[name]
    # The table of a channel grows about with the square of its levels, so that above 16 levels
    # every point is slow, and refining once must do.
    zooms = (3 if target.levels <= 16 else 1) if zooms is None else zooms
    family = record.tuning.coordinate or _from_signature(record)
    search = _Search(name, family, target, {} if memory is None else memory)
    best = search.run(zooms)
    if best is None:
        raise Unreachable(search.reason())
    # The search compares floats. What is returned rests on the certificate, which is rounded
    # outward, and a result above the target is a fault of the search: it must not pass as a
    # warning.
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
        # Vertices suffice: between two of them the row is their mix, whose ratios are no larger.
        # Weights are integers, so the difference is exact, and log1p keeps the digits of a small
        # epsilon.
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
        # The coarse grid first: both neighbours in the refined one may meet the target, and between
        # them there is no edge to find.
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
                # Ten halvings place an edge to a thousandth of the grid's step, enough to compare
                # points; only the best one is worth the sixty of `polish`.
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
        # Where the bad end has no channel, the edge is that of what can be built: a thousandth of
        # the way is near enough.
        for _ in range(steps if self.at(bad) else 10):
            middle = {**good, axis: (good[axis] + bad[axis]) / 2}
            good, bad = (middle, bad) if self.private(middle) else (good, middle)
        self.offer(good)

    def offer(self, point: Point) -> None:
        if not self.private(point):
            return
        # Of points with equal errors the first one stays: rounding, which differs between machines,
        # must not choose.
        if self.best is None or self.error(point) < self.error(self.best) * (1 - MIN_ERROR_GAIN):
            self.best = point

    def private(self, point: Point) -> bool:
        candidate = self.at(point)
        return candidate is not None and candidate.epsilon <= self.limit

    def error(self, point: Point) -> float:
        """Error of a point's channel; minus infinity if there is no channel."""
        candidate = self.at(point)
        # Not plus infinity: `try_edge` gives up where the bad end is worse than the best point, and
        # what can be built just before a point that cannot may be better.
        return -math.inf if candidate is None else candidate.error(self.target.objective)

    def at(self, point: Point) -> _Candidate | None:
        parameters = self.family.parameters(self.target, point)
        # A text, since lists are no keys of a dict; repr shows every digit of a float, so that no
        # two points share an entry. It names no mechanism: a memory serves the search of one
        # mechanism.
        key = repr(parameters)
        if key not in self.memory:
            try:
                with np.errstate(all="ignore"):  # a constructor may divide by zero at its poles
                    self.memory[key] = _Candidate(parameters, build(self.name, parameters))
            # Remembered like a channel: every zoom meets the same point again.
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
    # Two parameters are tried in all pairs, so each has half the points.
    decades = np.geomspace(1e-6, 1e6, 37 if len(free) < 2 else 19)
    near_one = 1 - 10.0 ** -np.arange(2, 7)
    grid = np.unique([*decades, *np.linspace(0.05, 0.95, 10), *near_one])

    def parameters(target: CoordinateTarget, at: Point) -> dict[str, Any]:
        possible = {**target.sized(**at), "trials": target.levels - 1, "epsilon": target.epsilon}
        return {name: value for name, value in possible.items() if name in accepted}

    # A search needs an axis: without free parameters it has one point, whose name no parameter has.
    axes: dict[str, Grid] = dict.fromkeys(free, grid) or {"": [0.0]}
    return CoordinateFamily(lambda _: axes, parameters)


# Curves of privacy against error: the least error at each of several epsilons.

CURVE_EPSILONS = (0.5, 1.0, 2.0, 3.0, 5.0, 8.0)
"""Targets at which the curves of privacy against error are computed."""


def tradeoffs(
    clip: float,
    bits: Sequence[int],
    mechanisms: Sequence[str] | str | None = None,
) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """Least mean squared error found at each of `CURVE_EPSILONS`.

    Args:
        clip: per-coordinate clipping threshold, > 0.
        bits: bits per coordinate, each 1 to 8.
        mechanisms: names, or `all`; by default those that are tuned within seconds.

    Returns:
        By (levels, mechanism): points (certified pure epsilon in nats, MSE), each of a channel
        that was built and certified. A target that a mechanism cannot meet has no point.
    """
    curves: dict[tuple[int, str], list[tuple[float, float]]] = {}
    counts, chosen = checked_bits(bits), chosen_names(mechanisms)
    total = len(counts) * len(chosen)
    with waiting():
        for count in counts:
            for name in chosen:
                with step(f"curve of {name}, {count} bits", len(curves), total):
                    curves[2**count, name] = _curve(clip, 2**count, name)
        report("", total, total)
    return curves


def _curve(clip: float, levels: int, name: str) -> list[tuple[float, float]]:
    # For all targets: a channel is built and certified once, whatever epsilon it is compared at.
    memory: dict[str, Any] = {}
    points = []
    for done, epsilon in enumerate(CURVE_EPSILONS):
        report(f"epsilon {epsilon}", done, len(CURVE_EPSILONS))
        target = CoordinateTarget(clip, levels, epsilon, "mse")
        try:
            tuned = tune_coordinate(name, target, memory, zooms=0)
        except Unreachable:
            continue
        points.append((tuned.certificate.epsilon.upper, tuned.error))
    return points


def chosen_names(mechanisms: Sequence[str] | str | None) -> list[str]:
    """The mechanisms to tune: those named, or `all`, or those that are tuned within seconds."""
    known = tunable_mechanisms()
    if mechanisms is None:
        return quick_coordinate_mechanisms()
    named = [mechanisms] if isinstance(mechanisms, str) else mechanisms
    chosen = validate.listed("mechanisms", named)
    if len(chosen) == 1 and isinstance(chosen[0], str) and chosen[0] == "all":
        return known
    for name in chosen:
        validate.choice("mechanism", name, [*known, "all"])
    return chosen


def checked_bits(bits: Sequence[int] | int) -> list[int]:
    """One or several numbers of bits as a list; ValueError unless each is 1 to 8."""
    bits = validate.number(bits)
    bits = [bits] if isinstance(bits, int) else validate.listed("bits", bits)
    if not bits:
        raise ValueError("Expected at least one number of bits, got an empty list.")
    return [validate.whole("bits", count, low=1, high=8) for count in bits]


# Mechanisms side by side: at equal bits and equal certified epsilon, or given channels.


@dataclass(frozen=True, slots=True)
class Measured:
    """A channel with its certificates and moments.

    Attributes:
        channel: the channel.
        certificate: pure epsilon of one coordinate, over all pairs of inputs.
        renyi: the same at the comparison's Rényi order.
        moments: bias and errors, exact.
    """

    channel: Channel
    certificate: Certificate
    renyi: Certificate
    moments: Moments


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a comparison.

    Attributes:
        mechanism: its name.
        parameters: its parameters; empty if none were found.
        levels: how many codes.
        measured: None if there is no channel.
        remark: why there is none, or what to know about it; may be empty.
    """

    mechanism: str
    parameters: Mapping[str, Any]
    levels: int
    measured: Measured | None
    remark: str = ""

    def __str__(self) -> str:
        if self.measured is None:
            return f"{self.mechanism}, {self.levels} codes: {self.remark}"
        epsilon, mse = self.measured.certificate.epsilon.upper, self.measured.moments.mse
        return (
            f"{self.mechanism}, {self.levels} codes: epsilon <= {round_up(epsilon, 6)} per "
            f"coordinate, MSE {mse:.5g}"
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mechanisms side by side.

    Attributes:
        entries: best first if mechanisms were calibrated, else in the order given.
        order: Rényi order of the second privacy column.
        target: the epsilon that mechanisms were calibrated to; None for given channels.
        objective: the error that calibration minimised; None likewise.
        tradeoff: by (levels, mechanism), points (certified epsilon, MSE); filled by `tradeoffs`.
        left_out: mechanisms that were not tuned since that takes longer, and nobody asked for them.
    """

    entries: Sequence[Entry]
    order: float
    target: float | None = None
    objective: AverageError | None = None
    tradeoff: Mapping[tuple[int, str], Sequence[tuple[float, float]]] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    def __post_init__(self) -> None:
        validate.convert_numbers(self)

    def __str__(self) -> str:
        return "\n".join(map(str, self.entries))


def at_equal_epsilon(
    clip: float,
    bits: Sequence[int] | int,
    epsilon: float,
    objective: AverageError = "mae",
    order: float = 2.0,
    mechanisms: Sequence[str] | str | None = None,
) -> Comparison:
    """Compare mechanisms at equal bits and equal certified pure epsilon.

    Args:
        clip: per-coordinate clipping threshold, > 0.
        bits: bits per coordinate, one or several, each 1 to 8; a mechanism gets 2**bits codes.
        epsilon: largest pure epsilon of one coordinate, in nats.
        objective: the error to minimise, `mae` or `mse`, input uniform on [-clip, clip].
        order: Rényi order in (1, inf] of the second privacy column.
        mechanisms: names, or `all`; by default those that are tuned within seconds.

    Returns:
        A Comparison: for each number of bits unbiased mechanisms by error, then biased ones (their
        error does not average out over clients), then those that cannot meet the target.

    Guarantees:
        Every certified epsilon is at most the target.

    Raises:
        ValueError: an argument is out of bounds or a name is unknown.

    Example:
        >>> comparison = at_equal_epsilon(1.0, [2], 1.0, mechanisms=["rqm", "pbm", "qmgeo"])
        >>> [entry.mechanism for entry in comparison.entries], comparison.entries[2].remark
        (['rqm', 'pbm', 'qmgeo'], 'no parameters: the least epsilon found is 1.09962')
    """
    chosen = chosen_names(mechanisms)
    order = validate.renyi_order(order)
    counts, entries = checked_bits(bits), []
    total = len(counts) * len(chosen)
    with waiting():
        for count in counts:
            target = CoordinateTarget(clip, 2**count, epsilon, objective)
            tuned: list[Entry] = []
            for name in chosen:
                with step(f"{name}, {count} bits", len(entries) + len(tuned), total):
                    tuned.append(_tuned(name, target, order))
            entries += sorted(tuned, key=lambda entry: _rank(entry, objective))
        report("", total, total)
    rest = () if mechanisms is not None else [n for n in tunable_mechanisms() if n not in chosen]
    return Comparison(entries, order, epsilon, objective, left_out=rest)


def compare_channels(
    channels: Sequence[tuple[str, Mapping[str, Any]]], order: float = 2.0
) -> Comparison:
    """Compare channels of given parameters.

    Args:
        channels: (mechanism, parameters) of each.
        order: Rényi order in (1, inf] of the second privacy column.

    Raises:
        ValueError: the list is empty, or a mechanism or parameter is unknown or out of bounds.

    Example:
        >>> rows = [("pbm", {"clip": 1.0, "theta": 0.25, "trials": 15})]
        >>> round(compare_channels(rows).entries[0].measured.moments.mse, 4)
        0.2446
    """
    channels = validate.listed("channels", channels)
    if not channels:
        raise ValueError("Expected at least one channel to compare, got an empty list.")
    order = validate.renyi_order(order)
    entries = []
    for each in channels:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise TypeError(
                f"Expected (mechanism, parameters) for each channel, got {validate.shown(each)}."
            )
        name, parameters = each
        entries.append(make_entry(name, build(name, parameters), parameters, order))
    return Comparison(entries, order)


def make_entry(
    name: str, channel: Channel, parameters: Mapping[str, Any] | None = None, order: float = 2.0
) -> Entry:
    """The line of one channel: its parameters, if known, its certificates and moments."""
    measured = _measure(channel, order)
    parameters = {} if parameters is None else parameters
    validate.check_parameters(name, parameters)
    parameters = {name: validate.number(value) for name, value in parameters.items()}
    return Entry(name, parameters, channel.levels, measured, _remark(measured))


def _tuned(name: str, target: CoordinateTarget, order: float) -> Entry:
    try:
        tuned = tune_coordinate(name, target)
    except Unreachable as reason:
        return Entry(name, {}, target.levels, None, str(reason))
    return make_entry(name, tuned.channel, tuned.parameters, order)


def _measure(channel: Channel, order: float) -> Measured:
    return Measured(channel, certify(channel), certify(channel, order), moments(channel))


def _biased(measured: Measured) -> bool:
    # Rounding alone leaves at most 1e-9 of the clip (`two_bins`). A thousand times as much is
    # meant.
    return measured.moments.bias_max > 1e-6 * measured.channel.clip


def _remark(measured: Measured) -> str:
    remarks = []
    used = int((measured.channel.weights > 0).any(axis=0).sum())
    if used < measured.channel.levels:
        remarks.append(f"only {used} of its {measured.channel.levels} codes are ever sent")
    if _biased(measured):
        remarks.append("biased: its error does not average out over clients")
    return "; ".join(remarks)


def _rank(entry: Entry, objective: AverageError) -> tuple[bool, bool, float]:
    if entry.measured is None:
        return True, False, 0.0
    return False, _biased(entry.measured), getattr(entry.measured.moments, objective)
