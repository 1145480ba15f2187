"""OPTM, the two-bin mechanism with the least mean absolute error under pure epsilon.

Everything inside is in units of clip. Derivation: `docs/theory/optm.md`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.channels.channel import Channel
from randquant.mechanisms.bins import bins_of, two_bins
from randquant.mechanisms.optm_programme import SelectionProblem, best
from randquant.mechanisms.record import CLIP, DENSITY, EPSILON, REACH, VALUES, MechanismRecord
from randquant.mechanisms.tuning import CoordinateFamily, Tuning, few_margins
from randquant.privacy.certificates.coordinate import certify

SLACKS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
"""Relative slacks below the target epsilon, tried in turn until the integers certify."""


def optm(
    clip: float,
    bins: int | Sequence[float] | np.ndarray,
    epsilon: float,
    density: Sequence[float] | np.ndarray | None = None,
    reach: float | None = None,
) -> Channel:
    """Optimal randomised quantisation: selection distributions of least mean absolute error.

    Args:
        clip: c, per-coordinate clipping threshold, within [1e-30, 1e30].
        bins: increasing values of the codes, beyond [-clip, clip] on both sides; or the number of
            bins, 2 to 16, whose positions are then searched too: symmetric unless density is given.
        epsilon: target pure epsilon per coordinate, in nats, > 0.
        density: samples of the input, over which the error is averaged (Theorem 4); by default the
            input is uniform. They are clipped to [-clip, clip].
        reach: largest magnitude of a bin, in the units of clip, if bins is a number.

    Returns:
        A two-bin Channel. Its error is the least of several local optima: the problem is bilinear
        in the left and the right selections. A channel of `design.optimal` on the same bins is at
        least as good, since it is not restricted to pairs of selections.

    Guarantees:
        The certified epsilon is at most the target. Unbiased up to rounding.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind, or no unbiased
            mechanism on these bins meets the target (the error names the least epsilon).

    References:
        The OPTM and ERM paper, section 4: Theorems 3 to 6, Algorithm 2.

    Example:
        >>> import randquant as rq
        >>> channel = optm(clip=1.0, bins=[-3, -0.5, 0.5, 3], epsilon=1.0)
        >>> round(rq.moments(channel).mae, 4), rq.certify(channel).epsilon.upper <= 1.0
        (1.8771, True)
    """
    clip = validate.real("clip", clip, low=1e-30, high=1e30)
    epsilon = validate.real("epsilon", epsilon, low=1e-12, high=40)
    samples = None if density is None else _samples(density, clip)
    plain = validate.number(bins)
    if isinstance(plain, int):
        count = validate.whole("bins", plain, low=2, high=16)
        return _on_searched_bins(clip, count, epsilon, samples, _reach(reach, clip))
    if reach is not None:
        raise ValueError("Expected reach only where bins is a number of bins to search for.")
    grid = tuple(float(value) for value in bins_of(plain, clip) / clip)
    return _on_bins(clip, grid, epsilon, samples)


@functools.lru_cache(maxsize=64)
def _on_bins(
    clip: float,
    bins: tuple[float, ...],
    epsilon: float,
    samples: tuple[float, ...] | None,
) -> Channel:
    """The channel on given bins: lower the aim until the integers certify."""
    from randquant.mechanisms.design.constraints import Pure
    from randquant.mechanisms.design.solver import least_epsilon

    least = least_epsilon(1.0, bins, Pure(epsilon))
    if epsilon <= least * (1 + 1e-6):
        raise ValueError(
            f"Expected epsilon above {round_up(least)}, the least of any unbiased mechanism on "
            f"these bins, got epsilon={epsilon}: raise it, or move the outermost bins outward."
        )
    problem = SelectionProblem.of(np.array(bins), samples)
    for slack in SLACKS:
        selections = best(problem, epsilon * (1 - slack))
        if selections is None:
            raise ValueError(
                f"Expected epsilon further above {round_up(least)}, the least of any unbiased "
                f"mechanism on these bins, got epsilon={epsilon}: no start of the search met it; "
                "raise it, or move the outermost bins outward."
            )
        ratio = math.exp(epsilon * (1 - slack / 2))
        repaired = problem.one_side(problem.present(selections), ratio, math.inf)
        if repaired is None:
            continue
        channel = two_bins(clip, clip * problem.bins, *problem.everywhere(repaired))
        if certify(channel).epsilon.upper <= epsilon:
            return channel
    raise ValueError(
        f"Expected a target that integers of 62 bits can meet, got epsilon={epsilon}: move the "
        "outermost bins outward, or raise it."
    )


@functools.lru_cache(maxsize=16)
def _on_searched_bins(
    clip: float,
    count: int,
    epsilon: float,
    samples: tuple[float, ...] | None,
    reach: float,
) -> Channel:
    """The channel on the best bins found: a simplex search from a few spacings."""
    from scipy.optimize import minimize

    least = 1 / math.tanh(epsilon / 2)
    if reach <= least * (1 + 1e-3):
        raise ValueError(
            f"Expected reach above {least * (1 + 1e-3):.6g} clip, near the least with which any "
            f"unbiased mechanism has this epsilon, got {reach:.6g} clip: raise reach or epsilon."
        )
    half = count // 2
    symmetric = samples is None

    def place(free: np.ndarray) -> np.ndarray:
        if not symmetric:
            return np.sort(np.clip(free, -reach, reach))
        upper = np.sort(np.clip(np.abs(free), 0, reach))
        return np.concatenate([-upper[::-1], [0.0] * (count % 2), upper])

    def error(free: np.ndarray) -> float:
        bins = place(free)
        if min(np.diff(bins)) < 1e-3 or min(-bins[0], bins[-1]) < least * (1 + 1e-3):
            return 1e6
        problem = SelectionProblem.of(bins, samples)
        selections = best(problem, epsilon, starts=2)
        return 1e6 if selections is None else problem.error(selections)

    optimum = None
    for outer in sorted({reach, min(reach, 1.15 * least), min(reach, 1.5 * least)}):
        start = np.linspace(-outer, outer, count)
        if symmetric:
            start = start[count - half :]
        else:  # inner bins start at quantiles of the input
            start[1:-1] = np.quantile(samples, np.arange(1, count - 1) / (count - 1))
        solved = minimize(error, start, method="Nelder-Mead", options={"maxfev": 50 * half})
        if optimum is None or solved.fun < optimum.fun:
            optimum = solved
    return _on_bins(clip, tuple(place(optimum.x)), epsilon, samples)  # type: ignore[union-attr]


def _samples(density: Any, clip: float) -> tuple[float, ...]:
    samples = validate.array("density", density).reshape(-1)
    if samples.size == 0 or not np.isfinite(samples).all():
        raise ValueError("Expected density to hold finite samples of the input, at least one.")
    return tuple(np.clip(samples / clip, -1, 1).tolist())


def _reach(reach: float | None, clip: float) -> float:
    if reach is None:
        raise ValueError(
            "Expected a reach, the largest magnitude of a bin: without one the best mean absolute "
            "error sends a bin to infinity."
        )
    return validate.real("reach", reach, above=clip) / clip


RECORDS = (
    MechanismRecord(
        "optm",
        optm,
        help={
            "clip": CLIP,
            "bins": f"{VALUES}, or how many to search for",
            "epsilon": EPSILON,
            "density": DENSITY,
            "reach": REACH,
        },
        example={"clip": 1.5, "bins": [-3.0, -1.0, 1.0, 3.0], "epsilon": 1.5},
        tuning=Tuning(
            coordinate=CoordinateFamily(
                lambda target: {"margin": few_margins(target)},
                lambda target, at: {
                    "clip": target.clip,
                    "bins": target.even_values(at["margin"]),
                    "epsilon": target.epsilon,
                },
            ),
            slow=("coordinate",),
        ),
        place=4,
    ),
)
