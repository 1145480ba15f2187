"""Curves of privacy against error: the least error at each of several epsilons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from randquant._internal import validate
from randquant._internal.bars import waiting
from randquant._internal.progress import report, step
from randquant.mechanisms.tuning import CoordinateTarget
from randquant.planning.tuning.families import (
    Unreachable,
    quick_mechanisms,
    tunable_mechanisms,
    tune_coordinate,
)

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
        return quick_mechanisms()
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
        raise ValueError("Expected at least one number of bits, got none.")
    return [validate.whole("bits", count, low=1, high=8) for count in bits]
