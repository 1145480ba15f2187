"""Which mechanism meets a target with the least error, and whether that error is small enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from randquant import _validate, schemes
from randquant.aggregate import BASELINES, ChannelMechanism, LocalGaussian, VectorMechanism
from randquant.calibrate import OutOfReach, calibrate
from randquant.deviation import deviation
from randquant.limits import gaussian_multiplier, privunit
from randquant.mechanisms import MECHANISMS, stochastic_rounding
from randquant.mechanisms.noise import NOISES
from randquant.privacy import Guarantee, Neighboring, round_up
from randquant.schemes import Setting
from randquant.wire import HEADER_BYTES

USEFUL = 0.3
"""Largest share of a run that noise may be: below it training loses little."""

HOPELESS = 1.0
"""Share of a run from which on no mechanism is called useful."""


ALIKE = 1.01
"""Errors that differ by less than this factor are as good as the same."""


@dataclass(frozen=True, slots=True)
class Need:
    """What is asked for.

    Attributes:
        dimension: coordinates of an update.
        population, cohort, rounds: clients, clients a round, rounds.
        bits: most bits of one code, 1 to 24; channels have 256 codes at most.
        trust: `local`: the server sees each client's codes; `aggregate`: only their sum.
        clip_norm: L2 clipping threshold of a whole update.
        epsilon, delta: the guarantee of one client's whole participation.
        neighboring: what an adversary tries to tell apart.
        participations: most rounds that a client takes part in.
    """

    dimension: int
    population: int
    cohort: int
    rounds: int
    bits: int
    trust: Literal["local", "aggregate"]
    clip_norm: float
    epsilon: float
    delta: float
    neighboring: Neighboring
    participations: int

    @property
    def setting(self) -> Setting:
        """What mechanisms need to know of it."""
        return Setting(
            self.dimension, self.cohort, self.bits, self.trust, self.clip_norm, self.neighboring
        )

    @property
    def balanced(self) -> int:
        """Rounds that a client takes part in when all do equally often."""
        return -(-self.rounds * self.cohort // self.population)


@dataclass(frozen=True, slots=True)
class Noise:
    """How large the error of a decoded mean is.

    Attributes:
        deviation: root mean square error of one coordinate of the mean.
        relative: over the Gaussian limit's; None where there is none.
        length: of the whole error vector, over clip_norm: the longest that the mean can be.
        share: of the run: the errors of all rounds added up, over the longest that all means can
            add up to.
    """

    deviation: float
    relative: float | None
    length: float
    share: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One mechanism.

    Attributes:
        mechanism: its name.
        parameters: what it is built from; empty where the target is out of reach.
        guarantee: what the accountant says of it; None likewise, as the rest.
        noise: its error.
        bytes_up: what one client uploads in one round, header included.
        bytes_run: what all clients upload in all rounds.
        summed_bits: bits of a coordinate in a secure sum of the cohort (`aggregate` only).
        baseline: samples in floating point: to compare with, not to deploy.
        remark: why there is nothing, or what to know.
    """

    mechanism: str
    parameters: dict[str, Any]
    guarantee: Guarantee | None = None
    noise: Noise | None = None
    bytes_up: int = 0
    bytes_run: int = 0
    summed_bits: int | None = None
    baseline: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    """What no quantiser can be expected to beat."""

    name: str
    noise: Noise


@dataclass(frozen=True, slots=True)
class Plan:
    """Mechanisms by error, limits, and what follows.

    Attributes:
        need: what was asked for.
        entries: least error first; those out of reach last.
        limits: for comparison.
        verdict: `useful`, `doubtful` or `hopeless`.
        advice: the verdict in sentences.
        recommended: of the mechanisms whose error is within ALIKE of the least, the one with the
            shortest upload; None where there is none. Baselines are not.
    """

    need: Need
    entries: Sequence[Entry]
    limits: Sequence[Limit]
    verdict: Literal["useful", "doubtful", "hopeless"]
    advice: Sequence[str]
    recommended: Entry | None


def plan(
    dimension: int,
    population: int,
    cohort: int,
    rounds: int,
    epsilon: float,
    delta: float,
    *,
    bits: int = 4,
    trust: Literal["local", "aggregate"] = "aggregate",
    clip_norm: float = 1.0,
    neighboring: Neighboring = "replace_one",
    max_participations: int | None = None,
    mechanisms: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda name: None,
) -> Plan:
    """Calibrate every mechanism to one guarantee, and rank them by the error of the decoded mean.

    Args:
        dimension: coordinates of an update, 1 to 2**30.
        population: how many clients there are.
        cohort: how many take part in a round.
        rounds: how many rounds.
        epsilon, delta: target for one client's whole participation.
        bits: most bits of one code, 1 to 24; channels have 256 codes at most.
        trust: `local` or `aggregate`.
        clip_norm: L2 clipping threshold of a whole update. Errors are proportional to it.
        neighboring: what an adversary tries to tell apart.
        max_participations: most rounds that a client takes part in; by default as few as there
            can be, rounds · cohort / population rounded up, which a balanced sampler keeps to.
        mechanisms: names; all by default.
        say: told each mechanism's name before it is calibrated.

    Returns:
        A Plan.

    Guarantees:
        Every guarantee in it is the accountant's, and at most the target. Errors are expectations
        (see `deviation`), and the verdict is a judgement: `docs/theory/plan.md`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> found = plan(650, 200, 200, 50, 8.0, 1e-5, mechanisms=["stochastic-rounding"])
        >>> found.verdict, found.entries[0].guarantee.epsilon <= 8
        ('useful', True)
    """
    need = _checked(
        Need(
            dimension, population, cohort, rounds, bits, trust, clip_norm, epsilon, delta,
            neighboring, 0,
        ),
        max_participations,
    )  # fmt: skip
    known = schemes.names(need.setting)
    chosen = known if mechanisms is None else list(mechanisms)
    for name in chosen:
        _validate.choice("mechanism", name, [*MECHANISMS, *BASELINES])
    multiplier = gaussian_multiplier(epsilon, delta, need.participations)
    near = _accounted(need)
    entries = []
    for name in chosen:
        say(name)
        entries.append(_entry(name, need, multiplier, near))
    entries.sort(key=_rank)
    limits = _limits(need, multiplier)
    best = _recommended(entries)
    verdict, advice = _judged(need, best)
    return Plan(need, entries, limits, verdict, advice, best)


def code(entry: Entry, need: Need) -> str:
    """One line of Python that makes an entry's mechanism (imports aside)."""
    parameters = ", ".join(f"{name!r}: {value!r}" for name, value in entry.parameters.items())
    options = f'trust="{need.trust}"'
    if need.trust == "aggregate":
        options += f", cohort={need.cohort}"
    if entry.mechanism in MECHANISMS:
        options += f", clip_norm={need.clip_norm!r}"
    return f'update_mechanism("{entry.mechanism}", {{{parameters}}}, {options})'


def _recommended(entries: Sequence[Entry]) -> Entry | None:
    found = [(e.noise.deviation, e) for e in entries if e.noise and not e.baseline]
    least = min((error for error, _ in found), default=0.0)
    alike = [entry for error, entry in found if error <= least * ALIKE]
    return min(alike, key=lambda entry: entry.bytes_up, default=None)


def _checked(need: Need, most: int | None) -> Need:
    """The need with its participations, or ValueError."""
    from dataclasses import replace

    _validate.whole("population", need.population, low=1, high=2**53)
    _validate.whole("cohort", need.cohort, low=1, high=need.population, why="it is of them")
    _validate.whole("rounds", need.rounds, low=1, high=2**40)
    _validate.real("epsilon", need.epsilon, above=0, high=1e6)
    _validate.real("delta", need.delta, low=0, below=1)
    need.setting  # noqa: B018
    least = need.balanced
    if most is not None:
        _validate.whole(
            "max_participations", most, low=least, high=need.rounds,
            why=f"{need.cohort} of {need.population} clients in {need.rounds} rounds take part "
            f"{least} times at least, the busiest of them",
        )  # fmt: skip
    return replace(need, participations=least if most is None else most)


def _entry(name: str, need: Need, multiplier: float, near: float) -> Entry:
    """Calibrate one mechanism and measure it."""
    setting, baseline = need.setting, name in BASELINES and name not in NOISES
    many = need.cohort if need.trust == "aggregate" else 1
    try:
        scheme = schemes.scheme(name, setting)
        start = scheme.start(near * 2 * need.clip_norm / math.sqrt(many))
        found = calibrate(
            lambda noise: schemes.mechanism(name, setting, scheme.parameters(noise)),
            need.epsilon,
            need.delta,
            need.dimension,
            need.participations,
            neighboring=need.neighboring,
            start=start,
            reach=scheme.reach,
        )
    except (OutOfReach, ValueError) as error:
        return Entry(name, {}, baseline=baseline, remark=str(error))
    mechanism = found.mechanism
    each = deviation(mechanism, need.dimension, need.cohort)
    size, levels, summed = setting.size, 0, None
    if isinstance(mechanism, VectorMechanism):
        levels, width = mechanism.channel.levels, mechanism.channel.bits
        summed = (need.cohort * (levels - 1)).bit_length()
    elif name in NOISES:
        width = summed = found.mechanism.bits  # type: ignore[attr-defined]
    else:
        size, width = need.dimension, 1 if name == "sign-sgd" else 32
    upload = (size * width + 7) // 8 + (0 if width == 32 else HEADER_BYTES)
    remark = "" if found.tight else "less noise is not to be had"
    return Entry(
        name,
        scheme.parameters(found.noise),
        found.guarantee,
        _noise(need, each, multiplier),
        upload,
        upload * need.cohort * need.rounds,
        summed if need.trust == "aggregate" else None,
        baseline,
        remark,
    )


def _accounted(need: Need) -> float:
    """Noise multiplier of Gaussian noise under our accountant: where searches begin."""
    try:
        return calibrate(
            lambda noise: LocalGaussian(need.clip_norm, noise), need.epsilon, need.delta,
            need.dimension, need.participations, neighboring=need.neighboring, reach=(1e-9, 1e15),
        ).noise * (1 + 2e-4)  # fmt: skip
    except OutOfReach:  # pure privacy: what each coordinate of each round may cost
        return need.participations * need.setting.clip * need.setting.size / need.epsilon


def _noise(need: Need, each: float, multiplier: float) -> Noise:
    gaussian = _gaussian(need, multiplier)
    length = each * math.sqrt(need.dimension) / need.clip_norm
    relative = each / gaussian if math.isfinite(gaussian) else None
    return Noise(each, relative, length, length / math.sqrt(need.rounds))


def _gaussian(need: Need, multiplier: float) -> float:
    """Deviation of a coordinate of the mean with Gaussian noise."""
    noise = multiplier * need.setting.distance
    return noise / (need.cohort if need.trust == "aggregate" else math.sqrt(need.cohort))


def _limits(need: Need, multiplier: float) -> list[Limit]:
    found = []
    if math.isfinite(multiplier):
        where = "on the sum" if need.trust == "aggregate" else "on each update"
        noise = _noise(need, _gaussian(need, multiplier), multiplier)
        found.append(Limit(f"Gaussian noise {where}, accounted exactly", noise))
    if need.trust == "aggregate" or need.neighboring != "replace_one":
        return found

    def unit(epsilon: float) -> Noise:
        each = privunit(need.dimension, epsilon).deviation * need.clip_norm
        return _noise(need, each / math.sqrt(need.cohort), multiplier)

    each = need.epsilon / need.participations
    if each >= 1e-9:
        found.append(Limit(f"PrivUnit, pure epsilon {round_up(each)} a round", unit(each)))
    if need.delta > 0 and need.participations > 1:
        composed = _pure_epsilon(need)
        if composed is not None and composed > each:
            name = f"PrivUnit, pure epsilon {composed:.6g} a round, composed at delta"
            found.append(Limit(name, unit(composed)))
    return found


def _pure_epsilon(need: Need) -> float | None:
    """Pure epsilon of a round of which all rounds compose to the target.

    Of all mechanisms of a pure epsilon, randomised response is the worst to compose.
    """

    def response(noise: float) -> ChannelMechanism:
        margin = 2 / math.expm1(1 / noise)
        return ChannelMechanism(stochastic_rounding(1.0, 2, margin))

    start = max(need.participations, 1) / need.epsilon
    try:
        found = calibrate(
            response, need.epsilon, need.delta, 1, need.participations,
            start=start, reach=(0.025, 1e9),
        )  # fmt: skip
    except OutOfReach:
        return None
    return 1 / found.noise


def _rank(entry: Entry) -> tuple:
    noise = entry.noise
    return (noise is None, noise.deviation if noise else 0.0, entry.bytes_up)


def _judged(
    need: Need, best: Entry | None
) -> tuple[Literal["useful", "doubtful", "hopeless"], list[str]]:
    """A verdict, and what it means."""
    if best is None or best.noise is None:
        return "hopeless", [
            f"No mechanism gives useful accuracy at this target: none meets epsilon "
            f"{need.epsilon:g} at delta {need.delta:g}. See the reasons below."
        ]
    noise = best.noise
    meaning = (
        f"The noise in a round's mean is {noise.length:.3g} times as long as the longest possible "
        f"mean, and over the run the noises add up to {noise.share:.3g} of the longest way that "
        "all means can go together."
    )
    if noise.share < USEFUL:
        return "useful", [f"Useful accuracy is to be expected with {best.mechanism}.", meaning]
    verdict = "hopeless" if noise.share >= HOPELESS else "doubtful"
    first = (
        "No mechanism gives useful accuracy at this target."
        if verdict == "hopeless"
        else f"Useful accuracy is doubtful at this target, with {best.mechanism} as with any other."
    )
    return verdict, [first, meaning, _help(need, noise.share / USEFUL)]


def _help(need: Need, excess: float) -> str:
    """What would bring the share of a run down to USEFUL, one thing at a time."""
    ways = [f"at most {max(int(need.dimension / excess**2), 1):,} parameters"]
    more = math.ceil(need.population * excess**2)
    if need.participations == need.balanced:
        ways.append(f"about {more:,} clients, in cohorts as large as now")
        if need.trust == "aggregate":
            both = math.ceil(excess * need.cohort)
            ways.append(
                f"about {math.ceil(excess * need.population):,} clients and {both:,} a round"
            )
    multiplier = gaussian_multiplier(need.epsilon, need.delta, 1) if need.delta > 0 else math.inf
    if math.isfinite(multiplier):
        low, high = math.log(need.epsilon), math.log(1e6)
        for _ in range(60):
            middle = (low + high) / 2
            small = gaussian_multiplier(math.exp(middle), need.delta, 1) <= multiplier / excess
            low, high = (low, middle) if small else (middle, high)
        ways.append(f"epsilon of about {math.exp(high):.3g}")
    return f"It would take one of: {'; '.join(ways)}."
