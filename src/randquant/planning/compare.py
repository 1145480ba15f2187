"""Mechanisms side by side, privacy against error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import report, step, waiting
from randquant.channels.channel import Channel, Moments, moments
from randquant.mechanisms.registry import AverageError, CoordinateTarget, build
from randquant.planning.tuning import (
    Unreachable,
    quick_coordinate_mechanisms,
    tunable_mechanisms,
    tune_coordinate,
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
