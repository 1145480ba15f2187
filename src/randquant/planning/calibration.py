"""Calibration: the least noise with which a mechanism with one free number meets a target.

The accountant checks the result at exactly the parameter that is returned; `gaussian_noise` and
`gaussian_multiplier`, from which searches start, are estimates and certify nothing. The other
parameters of a mechanism for whole updates follow from that number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import searching
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, update_mechanism
from randquant.mechanisms.registry import UpdateFamily, UpdateSetting
from randquant.privacy.accounting.accountant import account, account_at, gaussian_order
from randquant.privacy.accounting.gaussian import gaussian_epsilon, gaussian_noise
from randquant.privacy.accounting.release_protocol import Release, Releasing, check_examples
from randquant.privacy.accounting.sampling import HiddenCohorts, run_release
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring

# The search for a noise level that meets a target: by a bracket on a logarithmic scale.

TOLERANCE = 1e-3
"""The search ends if epsilon is within this relative distance below the target."""

STEPS = 48
"""Most points that one stage of the search evaluates."""

EDGE_TOLERANCE = 1e-3
"""Relative distance up to which the search approaches noise that cannot be built or proves
nothing. Half of it takes one more step, which may take seconds; twice of it leaves more noise."""

MAX_SECANT_RATIO = 100.0
"""Largest ratio of two epsilons that a secant joins; between others the search bisects. Secants
across larger jumps point far off, and with half of it some steps would be bisected for nothing."""


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
        grid = [six_digits(self.low * math.exp(span * k / STEPS)) for k in range(STEPS + 1)]
        points = [start, *sorted(grid, key=lambda noise: abs(math.log(noise / start)))]
        return next((noise for noise in points if self.at(noise) is not None), None)

    def walk(self, first: float, *, down: bool) -> tuple[float, float]:
        """(last noise on the side of `first`, next one), by growing steps across the target.

        They are equal at an end of the range. There may be no mechanism at the next one.
        """
        side, last, factor = self.enough(first), first, 1.0
        next_noise = self.guess(first)
        for _ in range(STEPS):
            # A tight noise ends the walk on either side: it is good enough.
            if (
                self.at(next_noise) is None
                or self.enough(next_noise) != side
                or self.tight(next_noise)
            ):
                break
            last = next_noise
            if next_noise == (self.low if down else self.high):
                break
            # The second guess is mostly right. Then steps grow as 1.05, 1.05**2, 1.05**4, …: about
            # ten of them cross the range.
            guess = self.guess(next_noise)
            next_noise = (
                min(guess, self.clamp(next_noise / factor))
                if down
                else max(guess, self.clamp(next_noise * factor))
            )
            factor = max(factor * factor, 1.05)
        return last, next_noise

    def guess(self, noise: float) -> float:
        """A guess of the noise at the target: as if it were what is much like it."""
        epsilon = self.at(noise)
        if not epsilon or math.isinf(epsilon):
            return noise
        return self.clamp(noise * self.target_noise / self.alike(epsilon))

    @property
    def target_noise(self) -> float:
        # At the middle of the tolerated range below the target, as `alike` gives it.
        return self.alike(self.target * (1 - TOLERANCE / 2))

    def narrow(self, good: float, bad: float) -> float:
        """Narrow the bracket, by a secant in logarithms or by bisection."""
        for step in range(STEPS):
            upper, lower = self.at(bad), self.at(good)
            if good == bad or self.tight(good):
                break
            # A step may take seconds, and no curve leads across such an edge.
            edge = upper is None or math.isinf(upper)
            if edge and abs(math.log(bad / good)) < EDGE_TOLERANCE:
                break
            # Every fourth step bisects, so that a sharply bent curve cannot stall the secant, and
            # every step where it jumps.
            part = 0.5
            if upper is not None and lower and upper < MAX_SECANT_RATIO * lower and step % 4 != 3:
                most, least = self.alike(lower), self.alike(upper)
                part = math.log(most / self.target_noise) / math.log(most / least)
            # Between the ends, and never at one: a secant that leaves the bracket would lose the
            # target.
            middle = six_digits(good * (bad / good) ** min(max(part, 1e-3), 1 - 1e-3))
            if middle in (good, bad):
                middle = six_digits((good + bad) / 2)
            if middle in (good, bad):  # six digits show no number in between
                break
            good, bad = (middle, bad) if self.enough(middle) else (good, middle)
        return good

    def inside(self, start: float, end: float) -> tuple[float, float] | None:
        """A bracket (too little, enough) between two noises that both miss the target."""
        if self.at(end) is None:  # bisect for the largest noise that can be built
            for _ in range(STEPS // 2):
                middle = six_digits(math.sqrt(start * end))
                if middle in (start, end):
                    break
                if self.enough(middle):
                    return start, middle
                start, end = (start, middle) if self.at(middle) is None else (middle, end)
        # Without a finite epsilon there is no minimum to look for.
        if all(epsilon is None or math.isinf(epsilon) for epsilon in self.tried.values()):
            return None
        # Epsilon may have a minimum in between.
        # Twelve steps, each of which halves the distances from the least one to its neighbours.
        for _ in range(STEPS // 4):
            noises = sorted(noise for noise, epsilon in self.tried.items() if epsilon is not None)
            least = min(noises, key=lambda noise: self.tried[noise] or math.inf)
            place = noises.index(least)
            sides = noises[max(place - 1, 0) : place + 2]
            for left, right in itertools.pairwise(sides):
                middle = six_digits(math.sqrt(left * right))
                if self.enough(middle):
                    return sides[0], middle
        return None

    def clamp(self, noise: float) -> float:
        """The nearest noise within reach, of six digits."""
        return six_digits(min(max(noise, self.low), self.high))

    def out_of_reach(self, delta: float, rounds: int) -> OutOfReach:
        """The error to raise if no noise meets the target."""
        epsilons = {noise: value for noise, value in self.tried.items() if value is not None}
        # The message names the least epsilon found, and why larger noise was not possible.
        target = repr(float(self.target)).removesuffix(".0")
        start = f"epsilon <= {target} at delta = {delta} over {rounds} rounds is out of reach"
        if not epsilons:
            reason = next(iter(self.reasons.values()))
            return OutOfReach(f"{start}: no noise can be built. {reason}", math.inf, None)
        # Of equal epsilons that of the largest noise: what failed beyond it is the reason to state.
        noise = min(epsilons, key=lambda candidate: (epsilons[candidate], -candidate))
        beyond = [candidate for candidate in self.reasons if candidate > noise]
        why = self.reasons[min(beyond)] if beyond else f"Noise above {self.high:g} is not tried."
        if math.isinf(epsilons[noise]):
            return OutOfReach(f"{start}: epsilon is infinite for any noise.", math.inf, noise)
        nearest = round_up(epsilons[noise])
        text = f"{start}: the least epsilon found is {nearest}, at noise = {noise:g}. {why}"
        return OutOfReach(text, float(nearest), noise)


def six_digits(value: float) -> float:
    # So that the printed number is exactly the one checked.
    return float(f"{value:.6g}")


M = TypeVar("M", bound=Releasing)


NOISE_LIMITS = (1e-6, 1e12)
"""Default range of noise to search."""

MAX_GAUSSIAN_RATIO = 1.05
"""Largest ratio of epsilons at which a mechanism is taken to be much like Gaussian noise. It
chooses the rough figure that leads the search; the result rests on the accountant alone."""


@dataclass(frozen=True, slots=True)
class Calibration(Generic[M]):
    """The least noise found to meet a target.

    Attributes:
        noise: the free number, with at most six significant digits; larger is more private.
        mechanism: what `build` returns for it.
        guarantee: the accountant's guarantee of the mechanism; its epsilon is at most the target.
        tight: whether epsilon is within TOLERANCE of the target. If not, smaller noise is out of
            range, cannot be built, or raises epsilon above the target.
        calls: how many mechanisms were accounted, roughly or in full.
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
    reach: tuple[float, float] = NOISE_LIMITS,
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
        within EDGE_TOLERANCE of noise of which that is so. If epsilon does not fall, the result
        still meets the target.

    Raises:
        OutOfReach: no noise that was tried meets the target; it names the least epsilon found.
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> from randquant.aggregation.baselines import LocalGaussian
        >>> from randquant.planning.calibration import OutOfReach
        >>> found = calibrate(lambda z: LocalGaussian(1.0, z), 8.0, 1e-6, 1000, rounds=5)
        >>> round(found.noise, 3), 7.99 < found.guarantee.epsilon <= 8
        (2.921, True)
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
    ends = validate.listed("reach", reach)
    if len(ends) != 2:
        raise ValueError(f"Expected reach to be (least, largest) noise, got {len(ends)} numbers.")
    low = six_digits(validate.real("the least noise", ends[0], above=0))
    high = six_digits(validate.real("the largest noise", ends[1], low=low))
    start = six_digits(min(max(validate.real("start", start, above=0), low), high))

    def released(noise: float) -> tuple[M, Release]:
        mechanism = build(noise)
        release = run_release(
            mechanism, dimension, rounds, neighboring, examples=examples, cohorts=cohorts
        )
        if release is None:
            name = type(mechanism).__name__
            raise TypeError(
                f"Expected a mechanism that protects, got {name}, which has no guarantee."
            )
        return mechanism, release

    # The best order of hidden cohorts is another than Gaussian noise's.
    start_order = gaussian_order(epsilon, delta) if delta > 0 and cohorts is None else None
    measured = _Accounted(delta, start_order)
    start, low, calls = _roughly(released, epsilon, measured, start, (low, high))
    search = NoiseSearch(lambda z: released(z)[1], measured, epsilon, measured.alike, low, high)
    noise = search.run(start)
    if noise is None:
        raise search.out_of_reach(delta, rounds)
    # Accounted again: the result rests on the accountant, not on the search.
    mechanism, release = released(noise)
    guarantee = measured.guarantee(release)
    if not guarantee.epsilon <= epsilon:
        raise ArithmeticError(f"noise = {noise:g} gives {guarantee}, and gave less before.")
    tight = guarantee.epsilon >= epsilon * (1 - TOLERANCE)
    return Calibration(noise, mechanism, guarantee, tight, calls + len(search.tried))


@dataclass(frozen=True, slots=True)
class _Accounted:
    """Epsilon by the accountant, which begins at the order that is good near the target."""

    delta: float
    start_order: float | None

    def __call__(self, release: Release) -> float:
        return self.guarantee(release).epsilon

    def alike(self, epsilon: float) -> float:
        """The noise at this epsilon, up to a factor, of what is like Gaussian noise."""
        return gaussian_noise(epsilon, self.delta)

    def guarantee(self, release: Release) -> Guarantee:
        """The accountant's."""
        # Other bounds than Rényi's may be the best for a channel on each coordinate.
        order = self.start_order if release.coordinate_channel is None else None
        return account([release], self.delta, start_order=order)


def _roughly(
    released: Callable[[float], tuple[Releasing, Release]],
    epsilon: float,
    measured: _Accounted,
    start: float,
    reach: tuple[float, float],
) -> tuple[float, float, int]:
    """(noise, low, calls): about the noise that meets the target, by one figure of each release.

    This takes a fraction of the accountant's time. The start, where other bounds count. No noise
    below `low` is worth trying.
    """
    if measured.start_order is None:
        return start, reach[0], 0
    rough = _Rough(measured.delta, measured.start_order, epsilon)
    search = NoiseSearch(lambda noise: released(noise)[1], rough, epsilon, rough.alike, *reach)
    if search.buildable(start) is None or rough.figure == "coordinates":
        return start, reach[0], len(search.tried)
    noise = search.run(start)
    if noise is None:  # nothing is known of where the target is
        return start, reach[0], len(search.tried)
    missing = [each for each, value in search.tried.items() if value is None and each < noise]
    return noise, max(missing, default=reach[0]), len(search.tried)


class _Rough:
    """Epsilon by one figure of a release; the first one decides which figure that is."""

    def __init__(self, delta: float, order: float, target: float) -> None:
        self.delta, self.order, self.target = delta, order, target
        self.figure: Literal["coordinates", "energy", "noise", "order"] | None = None

    def __call__(self, release: Release) -> float:
        # What differs from noise to noise would be no curve to search on.
        if self.figure is None:
            self.figure = self._chosen(release)
        if self.figure == "energy":
            # What is compared with Gaussian noise is hardly worse than noise of its energy.
            return gaussian_epsilon(math.sqrt(release.renyi(2.0)), self.delta)
        if self.figure == "noise":
            return self._gaussian_comparison(release)
        return account_at([release], self.delta, self.order)

    def alike(self, epsilon: float) -> float:
        """The noise at this epsilon, up to a factor, of what is like Gaussian noise."""
        if self.figure != "order":
            return gaussian_noise(epsilon, self.delta)
        # theory/accounting.md, Proposition 2: at one order epsilon is this and a divergence, which
        # falls about as the noise's square.
        order = self.order
        least = math.log1p(-1 / order) - math.log(self.delta * order) / (order - 1)
        return max(epsilon - least, 1e-9 * epsilon) ** -0.5

    def _chosen(self, release: Release) -> Literal["coordinates", "energy", "noise", "order"]:
        # Codes of one coordinate have bounds of their own, which are the accountant's to compare.
        if release.coordinate_channel is not None:
            return "coordinates"
        # theory/martingale.md: the accountant then finds hardly more than Gaussian noise's epsilon.
        if release.round_loss is not None:
            return "energy"
        # Very many clients are not all counted beside Gaussian noise. Searches start where that
        # meets the target: what nearly does is hardly bounded better, which would take longer.
        compared = self._gaussian_comparison(release)
        nearer = compared <= MAX_GAUSSIAN_RATIO * self.target
        nearer = nearer or compared <= MAX_GAUSSIAN_RATIO * account_at(
            [release], self.delta, self.order
        )
        return "noise" if nearer else "order"

    def _gaussian_comparison(self, release: Release) -> float:
        square = release.squared_mu
        return math.inf if square is None else gaussian_epsilon(math.sqrt(square), self.delta)


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
        # A channel of three codes cannot be built with one bit.
        return 1 if error(1) == 0 else 2
    # All of them, since the least error of any number of bits is the measure; an expected error
    # takes no account, and so hardly any time.
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
