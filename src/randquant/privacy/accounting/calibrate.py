"""From a target guarantee to the least noise that meets it, for a mechanism with one free number.

What is returned has been checked by the accountant at the very parameter that is returned.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from randquant._internal import validate
from randquant._internal.rounding import round_up
from randquant.privacy.accounting.account import account
from randquant.privacy.accounting.examples import of_one_example
from randquant.privacy.accounting.release import Releasing
from randquant.privacy.guarantee import Guarantee, Neighboring

M = TypeVar("M", bound=Releasing)


TOLERANCE = 1e-3
"""How far below the target epsilon may stay, relatively, for the search to end."""

REACH = (1e-6, 1e12)
"""Range of noise that is searched unless another one is given."""

STEPS = 48
"""Most points that one stage of the search evaluates."""


@dataclass(frozen=True, slots=True)
class Calibration(Generic[M]):
    """The least noise that was found to meet a target.

    Attributes:
        noise: the free number, of six significant digits at most; more of it is more private.
        mechanism: what `build` made of it.
        guarantee: what the accountant says of the mechanism; its epsilon is at most the target.
        tight: whether epsilon is within TOLERANCE of the target. Else less noise is out of range,
            cannot be built, or brings epsilon above the target at once.
        calls: how many times the accountant was called.
    """

    noise: float
    mechanism: M
    guarantee: Guarantee
    tight: bool
    calls: int


class OutOfReach(ValueError):
    """No noise in range meets the target.

    Attributes:
        nearest: least epsilon that was found, rounded up; infinity where none is finite.
        noise: where it was found; None where nothing could be built.
    """

    def __init__(self, message: str, nearest: float, noise: float | None) -> None:
        super().__init__(message)
        self.nearest, self.noise = nearest, noise


def calibrate(
    build: Callable[[float], M],
    epsilon: float,
    delta: float,
    dimension: int,
    rounds: int,
    *,
    neighboring: Neighboring = "replace_one",
    examples: int | None = None,
    start: float = 1.0,
    reach: tuple[float, float] = REACH,
) -> Calibration[M]:
    """Find the least noise with which a mechanism meets (epsilon, delta) for a whole run.

    Args:
        build: from the free number, > 0, to the mechanism; more of it must mean more privacy.
            ValueError where there is no mechanism.
        epsilon: target, in nats, > 0.
        delta: target, in [0, 1).
        dimension: coordinates of an update.
        rounds: rounds that the client takes part in.
        neighboring: what an adversary tries to tell apart.
        examples: of how many clipped examples an update is the mean, at least, where neighbours
            differ in one example; None where they differ in everything of one client.
        start: where the search begins: a good guess saves time.
        reach: least and largest noise that is tried.

    Returns:
        A Calibration.

    Guarantees:
        The returned guarantee is the accountant's own for the returned mechanism, built again from
        the returned number, and its epsilon is at most the target. Where epsilon falls as noise
        grows, no number that is smaller by more than six digits show, or by more than TOLERANCE
        in epsilon, meets the target. Where it does not fall, what is returned still meets it.

    Raises:
        OutOfReach: no noise that was tried meets the target; it names the nearest epsilon.
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> from randquant.aggregation.baselines import LocalGaussian
        >>> found = calibrate(lambda z: LocalGaussian(1.0, z), 8.0, 1e-6, 1000, rounds=5)
        >>> found.noise, 7.99 < found.guarantee.epsilon <= 8
        (1.54276, True)
        >>> try:
        ...     calibrate(lambda z: LocalGaussian(1.0, z), 8.0, 0.0, 1000, rounds=5)
        ... except OutOfReach as error:
        ...     print(error.nearest)
        inf
    """
    epsilon = validate.real("epsilon", epsilon, above=0)
    low = _six(validate.real("the least noise", reach[0], above=0))
    high = _six(validate.real("the largest noise", reach[1], low=low))
    start = _six(min(max(validate.real("start", start, above=0), low), high))

    def check(noise: float) -> tuple[M, Guarantee]:
        mechanism = build(noise)
        release = mechanism.release(dimension, rounds, neighboring)
        if release is None:
            raise TypeError("Expected a mechanism that protects, got one without a guarantee.")
        if examples is not None:
            # theory/vector.md, Proposition 16.
            release = of_one_example(release, examples)
            assert release is not None
        return mechanism, account([release], delta)

    search = _NoiseSearch(check, epsilon, low, high)
    noise = search.run(start)
    if noise is None:
        raise search.out_of_reach(delta, rounds)
    # Asked again: what is returned rests on the accountant, not on the search.
    mechanism, guarantee = check(noise)
    if not guarantee.epsilon <= epsilon:
        raise ArithmeticError(f"noise = {noise:g} gives {guarantee}, and gave less before.")
    tight = guarantee.epsilon >= epsilon * (1 - TOLERANCE)
    return Calibration(noise, mechanism, guarantee, tight, len(search.tried))


class _NoiseSearch:
    """A bracket in the logarithm of the noise: too little on one side, enough on the other."""

    def __init__(
        self,
        check: Callable[[float], tuple[Releasing, Guarantee]],
        target: float,
        low: float,
        high: float,
    ) -> None:
        self.check, self.target, self.low, self.high = check, target, low, high
        self.tried: dict[float, float | None] = {}  # epsilon; None where nothing could be built
        self.reasons: dict[float, str] = {}

    def at(self, noise: float) -> float | None:
        """Epsilon at this noise; None where there is no mechanism."""
        if noise not in self.tried:
            try:
                self.tried[noise] = self.check(noise)[1].epsilon
            except (ValueError, ArithmeticError) as error:
                # The edge of what can be built is found by refusals; their reasons are for the
                # message.
                self.tried[noise], self.reasons[noise] = None, str(error)
        return self.tried[noise]

    def enough(self, noise: float) -> bool:
        epsilon = self.at(noise)
        return epsilon is not None and epsilon <= self.target  # NaN is not enough

    def tight(self, noise: float) -> bool:
        """Whether it is enough, and hardly more than that."""
        epsilon = self.at(noise)
        return epsilon is not None and self.target * (1 - TOLERANCE) <= epsilon <= self.target

    def run(self, start: float) -> float | None:
        """The least noise found that is enough; None where none is."""
        first = self.something(start)
        if first is None:
            return None
        # Epsilon need not fall everywhere: a bracket is two noises that were evaluated, on
        # different sides of the target.
        if self.tight(first):
            return first
        if self.enough(first):
            return self.narrow(*self.walk(first, down=True))
        bad, good = self.walk(first, down=False)
        if not self.enough(good):
            inside = self.inside(bad, good)
            if inside is None:
                return None
            bad, good = inside
        return self.narrow(good, bad)

    def something(self, start: float) -> float | None:
        """A noise near the start at which a mechanism can be built."""
        # Evenly in the logarithm, nearest to the start first: the range spans 18 decades.
        span = math.log(self.high / self.low)
        grid = [_six(self.low * math.exp(span * k / STEPS)) for k in range(STEPS + 1)]
        points = [start, *sorted(grid, key=lambda noise: abs(math.log(noise / start)))]
        return next((noise for noise in points if self.at(noise) is not None), None)

    def walk(self, first: float, *, down: bool) -> tuple[float, float]:
        """(last noise on the side of `first`, next one): growing steps until sides change.

        They are the same at an end of the range. `next` may be one without a mechanism.
        """
        side, here, factor = self.enough(first), first, 1.05
        there = self.guess(first)
        for _ in range(STEPS):
            # A tight noise ends the walk on either side: nothing better is asked for.
            if self.at(there) is None or self.enough(there) != side or self.tight(there):
                break
            here = there
            if there == (self.low if down else self.high):
                break
            there = self.clamp(there / factor if down else there * factor)
            # Steps grow as 1.05, 1.05**2, 1.05**4, …: some ten of them cross the range.
            factor *= factor
        return here, there

    def guess(self, noise: float) -> float:
        """Where the target might be: epsilon falls about like noise to the power of -1.5."""
        epsilon = self.at(noise)
        if not epsilon or math.isinf(epsilon):
            return noise
        return self.clamp(noise * (epsilon / self.aim) ** (1 / 1.5))

    @property
    def aim(self) -> float:
        """Between what is tight and the target itself."""
        return self.target * (1 - TOLERANCE / 2)

    def narrow(self, good: float, bad: float) -> float:
        """Draw the bracket closer: by a secant in logarithms, or its middle."""
        for step in range(STEPS):
            upper, lower = self.at(bad), self.at(good)
            if good == bad or self.tight(good):
                break
            # Every fourth step halves the bracket, so a curve that bends sharply cannot stall a
            # secant.
            part = 0.5
            if upper is not None and lower and not math.isinf(upper) and step % 4 != 3:
                part = math.log(self.aim / lower) / math.log(upper / lower)
            middle = _six(good * (bad / good) ** min(max(part, 1e-3), 1 - 1e-3))
            if middle in (good, bad):
                middle = _six((good + bad) / 2)
            if middle in (good, bad):  # six digits show no number in between
                break
            good, bad = (middle, bad) if self.enough(middle) else (good, middle)
        return good

    def inside(self, here: float, end: float) -> tuple[float, float] | None:
        """(too little, enough) where the end of the range, or of what can be built, is neither."""
        if self.at(end) is None:  # find the edge of what can be built
            for _ in range(STEPS // 2):
                middle = _six(math.sqrt(here * end))
                if middle in (here, end):
                    break
                if self.enough(middle):
                    return here, middle
                here, end = (here, middle) if self.at(middle) is None else (middle, end)
        # With no finite epsilon anywhere there is nothing to go down from.
        if all(epsilon is None or math.isinf(epsilon) for epsilon in self.tried.values()):
            return None
        # Epsilon may be least somewhere in between.
        for _ in range(STEPS // 4):
            noises = sorted(noise for noise, epsilon in self.tried.items() if epsilon is not None)
            least = min(noises, key=lambda noise: self.tried[noise] or math.inf)
            place = noises.index(least)
            sides = noises[max(place - 1, 0) : place + 2]
            for left, right in itertools.pairwise(sides):
                middle = _six(math.sqrt(left * right))
                if self.enough(middle):
                    return sides[0], middle
        return None

    def clamp(self, noise: float) -> float:
        return _six(min(max(noise, self.low), self.high))

    def out_of_reach(self, delta: float, rounds: int) -> OutOfReach:
        """What to say where no noise is enough."""
        epsilons = {noise: value for noise, value in self.tried.items() if value is not None}
        # The message names what stopped the search: the nearest epsilon, and why no further noise.
        target = repr(float(self.target)).removesuffix(".0")
        start = f"epsilon <= {target} at delta = {delta} over {rounds} rounds is out of reach"
        if not epsilons:
            reason = next(iter(self.reasons.values()))
            return OutOfReach(f"{start}: no noise can be built. {reason}", math.inf, None)
        noise = min(epsilons, key=lambda candidate: (epsilons[candidate], -candidate))
        beyond = [candidate for candidate in self.reasons if candidate > noise]
        why = self.reasons[min(beyond)] if beyond else f"More than {self.high:g} is not looked at."
        if math.isinf(epsilons[noise]):
            return OutOfReach(f"{start}: epsilon is infinite whatever the noise.", math.inf, noise)
        nearest = round_up(epsilons[noise])
        text = f"{start}: the nearest in reach is epsilon = {nearest}, at noise = {noise:g}. {why}"
        return OutOfReach(text, float(nearest), noise)


def _six(value: float) -> float:
    """Six significant digits: what is printed is what was checked."""
    return float(f"{value:.6g}")
