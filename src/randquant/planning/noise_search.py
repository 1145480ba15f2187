"""The search for a noise level that meets a target: by a bracket on a logarithmic scale."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

from randquant._internal.progress import searching
from randquant._internal.rounding import round_up
from randquant.privacy.accounting.release import Release

TOLERANCE = 1e-3
"""The search ends if epsilon is within this relative distance below the target."""

STEPS = 48
"""Most points that one stage of the search evaluates."""

EDGE = 1e-3
"""How near, relatively, noise that cannot be built or proves nothing is looked for."""

JUMP = 100.0
"""Two epsilons that differ by more are not joined by a curve worth a secant."""


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
    """A search for the noise, on a logarithmic scale, by a bracket around the target."""

    def __init__(
        self,
        release: Callable[[float], Release],
        measure: Callable[[Release], float],
        target: float,
        alike: Callable[[float], float],
        low: float,
        high: float,
    ) -> None:
        """`alike` is the noise at an epsilon, up to a factor, of what is much like this."""
        self.release, self.measure, self.alike = release, measure, alike
        self.target, self.low, self.high = target, low, high
        self.tried: dict[float, float | None] = {}  # epsilon; None if no mechanism could be built
        self.reasons: dict[float, str] = {}

    def at(self, noise: float) -> float | None:
        """Epsilon at this noise; None if there is no mechanism."""
        if noise not in self.tried:
            try:
                with searching(f"noise {noise:g}", len(self.tried)):
                    self.tried[noise] = self.measure(self.release(noise))
            except (ValueError, ArithmeticError) as error:
                # Errors tell where mechanisms can be built; their messages go into the final one.
                self.tried[noise], self.reasons[noise] = None, str(error)
        return self.tried[noise]

    def enough(self, noise: float) -> bool:
        """Whether this noise meets the target."""
        epsilon = self.at(noise)
        return epsilon is not None and epsilon <= self.target  # NaN is not enough

    def tight(self, noise: float) -> bool:
        """Whether this noise meets the target with epsilon within TOLERANCE of it."""
        epsilon = self.at(noise)
        return epsilon is not None and self.target * (1 - TOLERANCE) <= epsilon <= self.target

    def run(self, start: float) -> float | None:
        """The least noise found that meets the target; None if none does."""
        first = self.buildable(start)
        if first is None:
            return None
        # Epsilon need not be monotone: a bracket is two noises that were evaluated and lie on
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

    def buildable(self, start: float) -> float | None:
        """A noise near the start at which a mechanism can be built."""
        # A logarithmic grid, nearest to the start first: the range spans 18 decades.
        span = math.log(self.high / self.low)
        grid = [six(self.low * math.exp(span * k / STEPS)) for k in range(STEPS + 1)]
        points = [start, *sorted(grid, key=lambda noise: abs(math.log(noise / start)))]
        return next((noise for noise in points if self.at(noise) is not None), None)

    def walk(self, first: float, *, down: bool) -> tuple[float, float]:
        """(last noise on the side of `first`, next one), by growing steps across the target.

        They are equal at an end of the range. There may be no mechanism at the next one.
        """
        side, here, factor = self.enough(first), first, 1.0
        there = self.guess(first)
        for _ in range(STEPS):
            # A tight noise ends the walk on either side: it is good enough.
            if self.at(there) is None or self.enough(there) != side or self.tight(there):
                break
            here = there
            if there == (self.low if down else self.high):
                break
            # The second guess is mostly right. Then steps grow as 1.05, 1.05**2, 1.05**4, …: about
            # ten of them cross the range.
            guess = self.guess(there)
            there = (
                min(guess, self.clamp(there / factor))
                if down
                else max(guess, self.clamp(there * factor))
            )
            factor = max(factor * factor, 1.05)
        return here, there

    def guess(self, noise: float) -> float:
        """A guess of the noise at the target: as if it were what is much like it."""
        epsilon = self.at(noise)
        if not epsilon or math.isinf(epsilon):
            return noise
        return self.clamp(noise * self.aim / self.alike(epsilon))

    @property
    def aim(self) -> float:
        """Noise at the middle of the tolerated range below the target, as `alike` gives it."""
        return self.alike(self.target * (1 - TOLERANCE / 2))

    def narrow(self, good: float, bad: float) -> float:
        """Narrow the bracket, by a secant in logarithms or by bisection."""
        for step in range(STEPS):
            upper, lower = self.at(bad), self.at(good)
            if good == bad or self.tight(good):
                break
            # A step may take seconds, and no curve leads across such an edge.
            edge = upper is None or math.isinf(upper)
            if edge and abs(math.log(bad / good)) < EDGE:
                break
            # Every fourth step bisects, so that a sharply bent curve cannot stall the secant, and
            # every step where it jumps.
            part = 0.5
            if upper is not None and lower and upper < JUMP * lower and step % 4 != 3:
                most, least = self.alike(lower), self.alike(upper)
                part = math.log(most / self.aim) / math.log(most / least)
            middle = six(good * (bad / good) ** min(max(part, 1e-3), 1 - 1e-3))
            if middle in (good, bad):
                middle = six((good + bad) / 2)
            if middle in (good, bad):  # six digits show no number in between
                break
            good, bad = (middle, bad) if self.enough(middle) else (good, middle)
        return good

    def inside(self, here: float, end: float) -> tuple[float, float] | None:
        """A bracket (too little, enough) between two noises that both miss the target."""
        if self.at(end) is None:  # bisect for the largest noise that can be built
            for _ in range(STEPS // 2):
                middle = six(math.sqrt(here * end))
                if middle in (here, end):
                    break
                if self.enough(middle):
                    return here, middle
                here, end = (here, middle) if self.at(middle) is None else (middle, end)
        # Without a finite epsilon there is no minimum to look for.
        if all(epsilon is None or math.isinf(epsilon) for epsilon in self.tried.values()):
            return None
        # Epsilon may have a minimum in between.
        for _ in range(STEPS // 4):
            noises = sorted(noise for noise, epsilon in self.tried.items() if epsilon is not None)
            least = min(noises, key=lambda noise: self.tried[noise] or math.inf)
            place = noises.index(least)
            sides = noises[max(place - 1, 0) : place + 2]
            for left, right in itertools.pairwise(sides):
                middle = six(math.sqrt(left * right))
                if self.enough(middle):
                    return sides[0], middle
        return None

    def clamp(self, noise: float) -> float:
        """The nearest noise within reach, of six digits."""
        return six(min(max(noise, self.low), self.high))

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
