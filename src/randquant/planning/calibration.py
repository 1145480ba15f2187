"""Calibration: the least noise with which a mechanism with one free number meets a target.

The accountant checks the result at exactly the parameter that is returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from scipy.optimize import brentq

from randquant._internal import validate
from randquant._internal.progress import searching
from randquant._internal.rounding import round_up
from randquant.privacy.accounting.accountant import account, gaussian_order
from randquant.privacy.accounting.gaussian import gaussian_noise
from randquant.privacy.accounting.neighbours import check_examples
from randquant.privacy.accounting.release import Release, Releasing
from randquant.privacy.accounting.sampling import HiddenCohorts, release_of
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring

TOLERANCE = 1e-3
"""The search ends when epsilon is within this relative distance below the target.

Twice as much adds up to 0.1 % to the noise and saves hardly an account.
"""

EDGE_WIDTH = 1e-3
"""Relative width of the last bracket if epsilon is infinite at one end, or nothing can be built.

There each step only halves the bracket: at half of it a search takes one account more.
"""

EDGE_DISTANCE = 1.0
"""Distance from the target, in log(noise), assumed where epsilon is infinite or unknown."""

MAX_STEPS = 48
"""Most accounts that one stage of the search evaluates."""


class OutOfReach(ValueError):
    """No noise in range meets the target.

    Attributes:
        nearest: the least epsilon found, rounded up; infinity if none is finite.
        noise: the noise that gives it; None if no mechanism could be built.
    """

    def __init__(self, message: str, nearest: float, noise: float | None) -> None:
        super().__init__(message)
        self.nearest, self.noise = nearest, noise


class NoiseSearch:
    """A search for the least noise that meets a target: a bracket, then Brent's method.

    The search proposes noise levels; what it returns has been measured and meets the target.
    """

    def __init__(
        self,
        measure: Callable[[float], float],
        target: float,
        similar_noise: Callable[[float], float],
        low: float,
        high: float,
    ) -> None:
        """`measure` is from noise to epsilon; `similar_noise` is about its inverse, up to a factor.

        `measure` raises ValueError or ArithmeticError where no mechanism can be built.
        """
        self.measure, self.target, self.similar_noise = measure, target, similar_noise
        self.low, self.high = low, high
        self.tried: dict[float, float | None] = {}  # epsilon; None if no mechanism could be built
        self.reasons: dict[float, str] = {}
        # The middle of the tolerated range: a small error of the curve then costs no account.
        self.aim = similar_noise(target * (1 - TOLERANCE / 2))

    def at(self, noise: float) -> float | None:
        """Epsilon at this noise; None if there is no mechanism."""
        if noise not in self.tried:
            try:
                with searching(f"noise {noise:g}", len(self.tried)):
                    self.tried[noise] = self.measure(noise)
            except (ValueError, ArithmeticError) as error:
                # Errors tell where mechanisms can be built; their messages go into the final one.
                self.tried[noise], self.reasons[noise] = None, str(error)
        return self.tried[noise]

    def enough(self, noise: float) -> bool:
        epsilon = self.at(noise)
        return epsilon is not None and epsilon <= self.target  # NaN is not enough

    def missing(self, log_noise: float) -> float:
        """Estimate what log(noise) lacks to meet the target; 0 if epsilon is within TOLERANCE.

        For Gaussian noise this is a straight line, and it is nearly one for most mechanisms: a
        secant needs one or two accounts.
        """
        epsilon = self.at(self.rounded(log_noise))
        if epsilon is None or not math.isfinite(epsilon):
            return EDGE_DISTANCE
        if self.target * (1 - TOLERANCE) <= epsilon <= self.target:
            return 0.0
        distance = math.log(self.aim / self.similar_noise(epsilon)) if epsilon > 0 else -1.0
        # The bracket rests on the sign, which rounding may lose where the curve is flat.
        return max(distance, 1e-9) if epsilon > self.target else min(distance, -1e-9)

    def rounded(self, log_noise: float) -> float:
        """The nearest noise within reach, of six digits."""
        return six(min(max(math.exp(log_noise), self.low), self.high))

    def run(self, start: float) -> float | None:
        """The least noise found that meets the target; None if none does."""
        ends = self.bracket(start)
        if ends is not None and ends[0] != ends[1]:
            # No curve leads across an edge, where each account may take seconds.
            edge = any(self.missing(end) == EDGE_DISTANCE for end in ends)
            width = EDGE_WIDTH if edge else 1e-6
            brentq(self.missing, *ends, xtol=width, maxiter=MAX_STEPS, disp=False)
        # Epsilon may jump at the root, so the root itself may miss the target.
        return min(filter(self.enough, self.tried), default=None)

    def bracket(self, start: float) -> tuple[float, float] | None:
        """log(noise) on both sides of the target, or twice the same; None if there is none."""
        first = self.buildable(start)
        if first is None:
            return None
        here, growth = math.log(first), EDGE_WIDTH / 10
        sign = math.copysign(1.0, self.missing(here))
        for _ in range(MAX_STEPS):
            # The first step is mostly right. Then steps grow, so that about ten cross the range.
            step = sign * max(sign * self.missing(here), growth)
            there = math.log(self.rounded(here + step))
            if there == here and sign < 0:
                return here, here
            if sign > 0 and (there == here or self.at(self.rounded(there)) is None):
                return self.inside()
            if sign * self.missing(there) <= 0:
                return here, there
            here, growth = there, max(2 * growth, 0.05)
        return None

    def buildable(self, start: float) -> float | None:
        """A noise near the start at which a mechanism can be built."""
        # A logarithmic grid, nearest to the start first: the range spans 18 decades.
        grid = np.geomspace(self.low, self.high, MAX_STEPS + 1)
        points = [start, *sorted(map(six, grid), key=lambda noise: abs(math.log(noise / start)))]
        return next((noise for noise in points if self.at(noise) is not None), None)

    def inside(self) -> tuple[float, float] | None:
        """log(noise) on both sides of the target, near the least epsilon; None if that misses it.

        Noise that cannot be built counts as noise of infinite epsilon.
        """
        for _ in range(MAX_STEPS // 2):
            noises = sorted(self.tried)
            epsilons = [math.inf if (e := self.tried[z]) is None else e for z in noises]
            place = min(range(len(noises)), key=epsilons.__getitem__)
            gaps = list(itertools.pairwise(noises[max(place - 1, 0) : place + 2]))
            if math.isinf(epsilons[place]) or not gaps:
                return None
            left, right = max(gaps, key=lambda gap: gap[1] / gap[0])
            middle = six(math.sqrt(left * right))
            if right < left * (1 + EDGE_WIDTH) or middle in (left, right):
                return None
            if self.enough(middle):
                return math.log(left), math.log(middle)
        return None

    def out_of_reach(self, delta: float, rounds: int) -> OutOfReach:
        """The error to raise if no noise meets the target."""
        epsilons = {noise: value for noise, value in self.tried.items() if value is not None}
        # The message names the least epsilon found, and why larger noise was not possible.
        target = repr(float(self.target)).removesuffix(".0")
        start = f"epsilon <= {target} at delta = {delta} over {rounds} rounds is out of reach"
        if not epsilons:
            reason = next(iter(self.reasons.values()))
            return OutOfReach(f"{start}: no noise can be built. {reason}", math.inf, None)
        noise = min(epsilons, key=lambda candidate: (epsilons[candidate], -candidate))
        beyond = [candidate for candidate in self.reasons if candidate > noise]
        why = self.reasons[min(beyond)] if beyond else f"Noise above {self.high:g} is not tried."
        if math.isinf(epsilons[noise]):
            return OutOfReach(f"{start}: epsilon is infinite for any noise.", math.inf, noise)
        nearest = round_up(epsilons[noise])
        text = f"{start}: the least epsilon found is {nearest}, at noise = {noise:g}. {why}"
        return OutOfReach(text, float(nearest), noise)


def six(value: float) -> float:
    """Six significant digits, so that the printed number is exactly the one checked."""
    return float(f"{value:.6g}")


M = TypeVar("M", bound=Releasing)


REACH = (1e-6, 1e12)
"""Default range of noise to search."""


@dataclass(frozen=True, slots=True)
class Calibration(Generic[M]):
    """The least noise found to meet a target.

    Attributes:
        noise: the free number, with at most six significant digits; larger is more private.
        mechanism: what `build` returns for it.
        guarantee: the accountant's guarantee of the mechanism; its epsilon is at most the target.
        tight: whether epsilon is within TOLERANCE of the target. If not, smaller noise is out of
            range, cannot be built, or raises epsilon above the target.
        calls: how many mechanisms the search accounted.
    """

    noise: float
    mechanism: M
    guarantee: Guarantee
    tight: bool
    calls: int


def calibrate(
    build: Callable[[float], M],
    epsilon: float,
    delta: float,
    dimension: int,
    rounds: int,
    *,
    neighboring: Neighboring = "replace_one",
    examples: int | None = None,
    cohorts: HiddenCohorts | None = None,
    start: float = 1.0,
    reach: tuple[float, float] = REACH,
) -> Calibration[M]:
    """Find the least noise with which a mechanism meets (epsilon, delta) for a whole run.

    Args:
        build: from the free number, > 0, to the mechanism; a larger number should be more private.
            It raises ValueError if there is no mechanism.
        epsilon: target, in nats, > 0.
        delta: target, in [0, 1).
        dimension: coordinates of an update.
        rounds: rounds that the client takes part in.
        neighboring: the neighbouring relation.
        examples: for example-level privacy, the fewest clipped examples that an update is the mean
            of; None for client-level privacy.
        cohorts: how clients take part, if nobody sees which of them do; `rounds` is then how many
            the run has. None if it is seen.
        start: where the search starts; a good guess saves time.
        reach: smallest and largest noise to try.

    Returns:
        A Calibration.

    Guarantees:
        The returned guarantee is the accountant's own for the returned mechanism, built again from
        the returned number, and its epsilon is at most the target. If epsilon falls as the noise
        grows, then smaller noise either misses the target, or differs by less than six digits show
        or by less than TOLERANCE in epsilon, or cannot be built or has no finite epsilon, or is
        within EDGE_WIDTH of noise of which that is so. If epsilon does not fall, the result still
        meets the target.

    Raises:
        OutOfReach: no noise that was tried meets the target; it names the least epsilon found.
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> from randquant.aggregation.baselines import LocalGaussian
        >>> from randquant.planning.calibration import OutOfReach
        >>> found = calibrate(lambda z: LocalGaussian(1.0, z), 8.0, 1e-6, 1000, rounds=5)
        >>> round(found.noise, 3), 7.99 < found.guarantee.epsilon <= 8
        (1.461, True)
        >>> try:
        ...     calibrate(lambda z: LocalGaussian(1.0, z), 8.0, 0.0, 1000, rounds=5)
        ... except OutOfReach as error:
        ...     print(error.nearest)
        inf
    """
    validate.answers("build", build, "a function from noise to a mechanism", "__call__")
    epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, low=0, below=1, why="delta is a small probability")
    dimension = validate.whole("dimension", dimension, low=1, high=2**53)
    rounds = validate.whole("rounds", rounds, low=0, high=2**53)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    if examples is not None:
        examples = check_examples(examples)
    low, start, high = _checked_reach(reach, start)

    def released(noise: float) -> tuple[M, Release]:
        mechanism = build(noise)
        release = release_of(
            mechanism, dimension, rounds, neighboring, examples=examples, cohorts=cohorts
        )
        if release is None:
            name = type(mechanism).__name__
            raise TypeError(
                f"Expected a mechanism that protects, got {name}, which has no guarantee."
            )
        return mechanism, release

    # The best order of hidden cohorts is another than Gaussian noise's.
    near = gaussian_order(epsilon, delta) if delta > 0 and cohorts is None else None

    def accounted(release: Release, attacked: bool) -> Guarantee:
        # Other bounds than Rényi's may be the best for a channel on each coordinate.
        order = near if release.coordinate_channel is None else None
        return account([release], delta, near=order, attacked=attacked)

    def measured(noise: float) -> float:
        return accounted(released(noise)[1], attacked=False).epsilon

    search = NoiseSearch(measured, epsilon, partial(gaussian_noise, delta=delta), low, high)
    noise = search.run(start)
    if noise is None:
        raise search.out_of_reach(delta, rounds)
    # Accounted again: the result rests on the accountant, not on the search.
    mechanism, release = released(noise)
    guarantee = accounted(release, attacked=True)
    if not guarantee.epsilon <= epsilon:
        raise ArithmeticError(f"noise = {noise:g} gives {guarantee}, and gave less before.")
    tight = guarantee.epsilon >= epsilon * (1 - TOLERANCE)
    return Calibration(noise, mechanism, guarantee, tight, len(search.tried))


def _checked_reach(reach: tuple[float, float], start: float) -> tuple[float, float, float]:
    """Return (least noise, start, largest noise), each of six digits and in this order."""
    ends = validate.listed("reach", reach)
    if len(ends) != 2:
        raise ValueError(f"Expected reach to be (least, largest) noise, got {len(ends)} numbers.")
    low = six(validate.real("the least noise", ends[0], above=0))
    high = six(validate.real("the largest noise", ends[1], low=low))
    start = six(min(max(validate.real("start", start, above=0), low), high))
    return low, start, high
