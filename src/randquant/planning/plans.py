"""What is asked of a plan, what it found, and what it says of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from scipy.special import ndtr

from randquant._internal import declared, formatting, validate
from randquant._internal.declared import setting
from randquant._internal.formatting import from_json, round_up
from randquant.aggregation.additive import describe_parties
from randquant.aggregation.auxiliary_numbers import Number
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.mechanisms.registry import (
    CLIP_RMS_UNITS,
    CLOSE_CLIP_RMS_UNITS,
    UpdateSetting,
    channel_mechanisms,
)
from randquant.planning.calibration import tuned_mechanism
from randquant.privacy.accounting.accountant import by_relation, under_other_relation
from randquant.privacy.accounting.gaussian import gaussian_noise
from randquant.privacy.accounting.sampling import Draw, HiddenCohorts, run_release
from randquant.privacy.guarantee import Guarantee, Neighboring

NoiseSource = Literal["clients", "helper", "parties"]
"""Who adds the noise of a secure sum: see `Privacy`."""

CLIP_NORM = 1.0
"""`clip_norm` where it is left out."""


@dataclass(frozen=True, slots=True)
class Privacy:
    """The protected unit, the clipping of updates, and the numbers sent with them.

    Attributes:
        unit: what the guarantee hides: a whole client, or one example of a client's, whose gradient
            is then clipped to clip_norm.
        neighboring: neighbours: replace_one (another update) or zero_out (the zero update).
        bits: most bits of one code; auto for one, or more if that lowers the error by a fifth.
        clip_norm: L2 threshold of a whole update, for every channel; none clips each coordinate
            alone.
        coordinates: how many coordinates of a rotated update are sent, a public random subset that
            is drawn anew in each round; by default all.
        noise: who adds the noise of a secure sum: clients, each its share; helper, who adds up the
            masks, against a server alone; or parties, helper and server each as much, against both.
            Noise of the last two kinds protects a client without counting on any other client.
        sampling: cohorts: fixed in size, or each client in each round by itself (poisson).
        max_participations: most rounds that one client takes part in: `train` draws cohorts so. An
            engine takes its noise from it; there each client enforces its `ClientLimits.epsilon`.
        numbers: what clients send with their updates, in the same noisy sum and the same account:
            accuracy, loss, num-examples, each as NAME:LOW:HIGH with public bounds (NAME alone for 0
            to 1); by default nothing.
        weighted_by: weight updates by this one of the numbers, up to its bound; by default all
            count alike.
        spent: the guarantee of what the same people's data have been asked before: of a table of
            `randquant.statistics`, of an earlier run, or a sum of both. It counts in the target
            and in the run's guarantee, so that training has what is left; by default nothing.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Privacy(numbers=[Number("accuracy")]).read_numbers
        (Number(name='accuracy', low=0.0, high=1.0, share=0.2),)
    """

    unit: Literal["client", "example"] = setting("client", "privacy")
    neighboring: Neighboring = setting("replace_one", "privacy")
    bits: int | Literal["auto"] = setting("auto", "", ge=1, le=24)
    clip_norm: float | None = setting(CLIP_NORM, "mechanism")
    coordinates: int | None = setting(None, "mechanism", ge=1, le=2**30)
    noise: NoiseSource = setting("clients", "privacy")
    sampling: Draw = setting("fixed", "clients")
    max_participations: int | None = setting(None, "privacy", ge=1, le=2**40)
    numbers: Sequence[str | Number] = setting((), "clients")
    weighted_by: str | None = setting(None, "clients")
    spent: Guarantee | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", _texts(self.numbers))
        if isinstance(self.spent, dict):  # from a record
            object.__setattr__(self, "spent", from_json(Guarantee, self.spent))
        # A bare epsilon says nothing of delta, neighbours or trust, so no sum with it would hold.
        elif not isinstance(self.spent, Guarantee | None):
            raise TypeError(
                "Expected spent to be a guarantee, such as table.guarantee or run.guarantee, got "
                f"{validate.shown(self.spent)}."
            )
        declared.checked(self)

    @property
    def read_numbers(self) -> tuple[Number, ...]:
        """The numbers as values."""
        return tuple(map(Number.read, map(str, self.numbers)))


def refuse_spent(privacy: Privacy, epsilon: float | None, delta: float) -> None:
    """Refuse what was spent before, where nobody would count it.

    Raises:
        ValueError: something was spent; the message says what is left of the target.
    """
    if privacy.spent is not None:
        # No silent subtraction: who plans must see which part of the target is left, and state the
        # sum.
        left = privacy.spent.remaining(math.inf if epsilon is None else epsilon, delta)
        raise ValueError(
            f"Expected no spent but in randquant.train, got {privacy.spent}: give what is left, "
            f"epsilon={left[0]} and delta={left[1]}, and add the two guarantees."
        )


def _texts(numbers: Any) -> tuple[str, ...]:
    """Numbers as a record has them, `Number.text` or as they were written; TypeError for others."""
    entries = validate.listed("numbers", () if numbers is None else numbers)
    return tuple(each if isinstance(each, str) else _text(each) for each in entries)


def _text(number: Any) -> str:
    validate.kind("numbers", number, Number)
    return number.text


# What quantisers are compared with: Gaussian noise.
#
# Figures for comparison, in float64; guarantees come from `account`. Derivation:
# `docs/theory/plan.md`.


def gaussian_multiplier(epsilon: float, delta: float, rounds: int) -> float:
    """Smallest deviation of Gaussian noise, over the sensitivity, that meets a target.

    Args:
        epsilon: in nats, > 0.
        delta: in [0, 1).
        rounds: number of releases; a client takes part in each.

    Returns:
        Standard deviation over sensitivity (which is 2 · clip_norm under `replace_one`), from the
        exact (epsilon, delta) of a Gaussian: `rounds` releases are equivalent to one with
        sqrt(rounds) times the sensitivity. Infinity for delta = 0.

    References:
        Balle and Wang 2018, Theorem 8.

    Example:
        >>> round(gaussian_multiplier(8.0, 1e-6, 5), 4)
        1.46
    """
    epsilon = validate.real("epsilon", epsilon, above=0)
    delta = validate.real("delta", delta, low=0, below=1)
    rounds = validate.whole("rounds", rounds, low=1)
    return gaussian_noise(epsilon, delta) * math.sqrt(rounds) if delta else math.inf


def one_bit_excess(size: int, sharing: int, multiplier: float, distance: float = 2.0) -> float:
    """Estimate the variance that one bit a coordinate needs in excess of Gaussian noise.

    Args:
        size: coordinates of a rotated update.
        sharing: how many clients share the noise: the cohort under a secure sum, else 1.
        multiplier: the Gaussian's deviation over the sensitivity at the same guarantee.
        distance: largest distance of neighbouring updates, in units of clip_norm.

    Returns:
        The excess over 1. Sums of t bits a client have about 1/t of it: it is the most that more
        bits could win back. Derivation: `docs/theory/plan.md`.

    Example:
        >>> round(one_bit_excess(1024, 200, 4.24), 4)
        0.0271
    """
    share = sharing / (size * (multiplier * distance) ** 2)
    # The first term is what a wider clip costs in noise, the second what a closer one cuts off.
    return min(
        # Clipping at k deviations shortens a mean by 2 Phi(-k), and a step size that makes up for
        # it raises the variance by twice that.
        (k**2 - 1) * share + 4 * float(ndtr(-k))
        for k in (CLOSE_CLIP_RMS_UNITS, CLIP_RMS_UNITS)
    )


# A plan's target and its results, as frozen data.

Verdict = Literal["useful", "doubtful", "hopeless"]
"""Whether training is likely to learn something with this noise."""


ONE_BIT = "stochastic-rounding"
"""The mechanism of one bit a coordinate."""

ONE_BIT_ERROR_RATIO = 1.25
"""One bit is enough where its error is at most this factor above Gaussian noise's."""

EQUAL_ERROR_RATIO = 1.01
"""Errors that differ by less than this factor count as equal."""


@dataclass(frozen=True, slots=True)
class Need:
    """The target and the setting of a plan.

    Attributes:
        dimension: coordinates of what a client sends: of its update, and numbers sent with it.
        population, cohort, rounds: clients, clients a round, rounds.
        epsilon, delta: target for one client's whole participation.
        trust: `local`: the server sees each client's codes; `aggregate`: only their sum; `model`:
            the adversary sees the models only.
        privacy: what is protected, and how updates are clipped and sent.
        participations: most rounds that a client takes part in.
        cohorts: how clients take part under `model` trust; else None.
        mean_norm: length of a mean of clipped updates, which a subset's error depends on; None for
            the largest possible, clip_norm.
    """

    dimension: int
    population: int
    cohort: int
    rounds: int
    epsilon: float
    delta: float
    trust: Literal["local", "aggregate", "model"]
    privacy: Privacy = Privacy()
    participations: int = 0
    cohorts: HiddenCohorts | None = None
    mean_norm: float | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        if self.privacy.noise != "clients" and self.trust != "aggregate":
            raise ValueError(
                f"Expected trust='aggregate' with noise={self.privacy.noise!r}, got "
                f"{self.trust!r}: the helper of a secure sum adds it."
            )

    @property
    def clip_norm(self) -> float:
        """The threshold of a whole update's norm."""
        if self.privacy.clip_norm is None:
            raise ValueError(
                "Expected a clip_norm with a target for a whole run, got clip_norm=None: "
                "coordinates that are clipped one by one are planned by the parameters of a "
                "mechanism."
            )
        return self.privacy.clip_norm

    @property
    def setting(self) -> UpdateSetting:
        """The part of it that mechanisms are tuned to: under `model` trust sums of all payloads."""
        trust = "local" if self.trust == "local" else "aggregate"
        clients = self.cohort if self.cohorts is None else self.cohorts.summands(None)
        # `auto` begins with one bit; a mechanism that needs more gets as few as it can do with.
        bits = self.privacy.bits
        return UpdateSetting(
            self.dimension, clients, 1 if bits == "auto" else bits, trust, self.clip_norm,
            self.privacy.neighboring, self.privacy.coordinates, self.privacy.noise == "parties",
        )  # fmt: skip

    def with_bits(self, bits: int) -> Need:
        """Return this need with codes of at most `bits` bits."""
        return replace(self, privacy=replace(self.privacy, bits=bits))

    def sending(self, coordinates: int | None) -> Need:
        """Return this need with a number of coordinates to send; None for all."""
        return replace(self, privacy=replace(self.privacy, coordinates=coordinates))

    @property
    def multiplier(self) -> float:
        """About the deviation over the sensitivity of Gaussian noise that meets the target."""
        if self.cohorts is None:
            return gaussian_multiplier(self.epsilon, self.delta, self.participations)
        multiplier = self.cohorts.gaussian_multiplier(
            self.epsilon, self.delta, self.privacy.neighboring
        )
        # Relative to the distance of neighbours, as the other.
        return multiplier if self.privacy.neighboring == "replace_one" else 2 * multiplier

    def deviation(self, mechanism: UpdateMechanism) -> float:
        """Root mean squared error of one coordinate of a round's decoded mean."""
        error = mechanism.expected_error(self.dimension)
        if self.cohorts is None or self.trust == "local":
            return error.deviation(self.cohort, self.mean_norm)
        clients = self.setting.cohort
        # Everyone sends, but only the cohort's updates are non-zero.
        part = self.cohorts.cohort / clients
        length = self.clip_norm if self.mean_norm is None else self.mean_norm
        return error.deviation(clients, part * length) / part

    @property
    def tolerated(self) -> float:
        """The factor above the least error within which the fewest bytes are best."""
        return (
            ONE_BIT_ERROR_RATIO
            if self.privacy.bits == "auto" and self.trust != "local"
            else EQUAL_ERROR_RATIO
        )

    @property
    def gaussian(self) -> float:
        """Deviation of a coordinate of the mean with Gaussian noise that meets the target."""
        noise = self.multiplier * self.setting.distance
        if self.cohorts is not None:
            # The mean is divided by the cohort, however many others send zeros into the sum.
            return noise / self.cohorts.cohort
        # The sum's noise is there once; under local trust each client's own is, and their mean
        # falls with the square root of the cohort only.
        return noise / (self.cohort if self.trust == "aggregate" else math.sqrt(self.cohort))

    def noise(self, deviation: float) -> DecodedError:
        """Compare an error of this deviation with means and with Gaussian noise."""
        gaussian = self.gaussian
        length = deviation * math.sqrt(self.dimension) / self.clip_norm
        relative = deviation / gaussian if math.isfinite(gaussian) else None
        # Errors of rounds are independent, and the means may all point one way: in the sum of T
        # rounds the errors' share is smaller by the square root of T.
        return DecodedError(deviation, relative, length, length / math.sqrt(self.rounds))

    def times_mean(self, noise: DecodedError) -> float | None:
        """Return the norm of the noise over that of a mean; None if that norm is unknown."""
        # A norm of 0 counts as unknown: `choose` assumes it for a subset, to judge its noise alone.
        return noise.length * self.clip_norm / self.mean_norm if self.mean_norm else None

    @property
    def balanced(self) -> int:
        """Rounds that a client takes part in if all do equally often."""
        return -(-self.rounds * self.cohort // self.population)


@dataclass(frozen=True, slots=True)
class DecodedError:
    """The error of a decoded mean.

    Attributes:
        deviation: root mean squared error of one coordinate of the mean.
        relative: deviation over that of the Gaussian limit; None without one.
        length: norm of the whole error over clip_norm, the largest norm of the mean.
        share: for the whole run: norm of the sum of all rounds' errors over the largest norm of
            the sum of their means.
    """

    deviation: float
    relative: float | None
    length: float
    share: float


def kept_share(ratio: float) -> float:
    """Return the part of a sure decrease that is kept if noise is `ratio` times the mean.

    At the best step size:

    theory/plan.md, Proposition 1.
    """
    return 1 / (1 + ratio**2)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One mechanism.

    Attributes:
        mechanism: its name.
        parameters: its parameters; empty if the target is out of reach.
        guarantee: the accountant's guarantee; None if the target is out of reach.
        noise: its error; None likewise.
        bytes_up: what one client uploads in one round, header included; under `aggregate` trust a
            vector masked for a sum of the cohort. It is `upload_bytes` of the mechanism; users and
            the JSON of plans have it by this name.
        bytes_run: what all clients upload in all rounds.
        bytes_plain: what one client would upload as plain codes, header included: the same under
            `local` trust, less where codes are masked for a sum.
        baseline: whether it samples in floating point: for comparison, not for deployment.
        remark: why the target is out of reach, or what else to know.
        coordinates: how many coordinates of a rotated update are sent; None for all.
    """

    mechanism: str
    parameters: dict[str, Any]
    guarantee: Guarantee | None = None
    noise: DecodedError | None = None
    bytes_up: int = 0
    bytes_run: int = 0
    bytes_plain: int = 0
    baseline: bool = False
    remark: str = ""
    coordinates: int | None = None


@dataclass(frozen=True, slots=True)
class Limit:
    """An error that no quantiser can be expected to beat."""

    name: str
    noise: DecodedError


@dataclass(frozen=True, slots=True)
class Plan:
    """Mechanisms by error, limits, and the verdict.

    Attributes:
        need: the target and the setting.
        entries: least error first; mechanisms out of reach last.
        limits: for comparison.
        verdict: `useful`, `doubtful` or `hopeless`.
        advice: the verdict in sentences.
        recommended: among the mechanisms whose error is within a factor of the least
            (EQUAL_ERROR_RATIO, or ONE_BIT_ERROR_RATIO for bits of `auto` in secure sums), the one
            with the smallest upload; never a baseline; None if there is none. If the length of the
            mean is given, it sends as few coordinates as raise its error by 5 % at most.
        left_out: mechanisms that were not calibrated since they take longer, and nobody asked for
            them.
        parts: the best mechanism with fewer and fewer coordinates, and integer noise, if the length
            of the mean is given.
    """

    need: Need
    entries: Sequence[Candidate]
    limits: Sequence[Limit]
    verdict: Verdict
    advice: Sequence[str]
    recommended: Candidate | None
    left_out: Sequence[str] = ()
    parts: Sequence[Candidate] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.verdict}.", *self.advice])

    @property
    def kept(self) -> float | None:
        """The part of a round's decrease of the loss that the recommended mechanism keeps, 0 to 1.

        Of the decrease that is sure without noise, with the step size that is best for its noise.
        None if no mechanism is recommended, or no mean_norm known.
        """
        best = None if self.recommended is None else self.recommended.noise
        ratio = None if best is None else self.need.times_mean(best)
        return None if ratio is None else kept_share(ratio)

    @property
    def guarantees(self) -> Mapping[Neighboring, Guarantee]:
        """The recommended mechanism's guarantee by neighbouring relation; empty without one."""
        stated = None if self.recommended is None else self.recommended.guarantee
        return by_relation(stated, self.other_relation)

    @property
    def other_relation(self) -> Guarantee | None:
        """The recommended mechanism's guarantee under the relation that the plan is not for."""
        return None if self.recommended is None else other_guarantee(self.recommended, self.need)

    @property
    def mechanism(self) -> UpdateMechanism:
        """The recommended mechanism, to encode and average updates with.

        Raises:
            ValueError: no mechanism meets the target; the error says what would be needed.
        """
        if self.recommended is None:
            raise ValueError(
                f"Expected a target that can be met, got epsilon={self.need.epsilon} at "
                f"delta={self.need.delta}: {' '.join(self.advice)}"
            )
        return built(self.recommended, self.need)


def built(entry: Candidate, need: Need) -> UpdateMechanism:
    """An entry's mechanism, from its parameters; of an entry that meets the target."""
    setting = need.sending(entry.coordinates).setting
    return tuned_mechanism(entry.mechanism, setting, entry.parameters)


def other_guarantee(entry: Candidate, need: Need) -> Guarantee | None:
    """An entry's guarantee under the relation that the plan is not for; None without one."""
    if entry.guarantee is None:
        return None
    mechanism = built(entry, need)
    rounds = need.participations if need.cohorts is None else need.rounds
    return under_other_relation(
        entry.guarantee,
        lambda each: run_release(mechanism, need.dimension, rounds, each, cohorts=need.cohorts),
    )


def code(entry: Candidate, need: Need) -> str:
    """One line of Python that makes an entry's mechanism; it wants `update_mechanism`."""
    # With every digit: a rounded parameter would be another mechanism, with another guarantee.
    parameters = ", ".join(f"{name!r}: {value!r}" for name, value in entry.parameters.items())
    setting = need.setting
    options = f'trust="{setting.trust}"'
    if setting.trust == "aggregate":
        options += f", cohort={setting.cohort}"
    if entry.mechanism in channel_mechanisms():
        options += f", clip_norm={need.clip_norm!r}"
    if entry.coordinates is not None:
        options += f", coordinates={entry.coordinates}"
    return f'update_mechanism("{entry.mechanism}", {{{parameters}}}, {options})'


# Whether the noise of a plan leaves a useful signal: a judgement, with its reasons.
#
# The thresholds are measured: `docs/theory/plan.md`.

USEFUL_SHARE = 0.3
"""Largest share (`DecodedError.share`) at which useful accuracy is to be expected."""

KEPT_SHARE = 0.9
"""Share of a round's gain without noise that is asked for where the length of means is known."""

LONG_NOISE_SHARE = 1.0
"""Smallest share at which it depends on the task whether anything is learnt."""

SPENT_SHARE = 0.95
"""A target is spent where at least this part of its epsilon is."""

MIN_PARAMETER_COUNT = 10
"""Fewer parameters are not advised."""


def judge(need: Need, best: Candidate | None, limits: Sequence[Limit]) -> tuple[Verdict, list[str]]:
    """Give a verdict, and its reasons as sentences.

    Args:
        need: the target and the setting.
        best: the mechanism of least error; None if none meets the target.
        limits: the errors of the best possible mechanisms.
    """
    least = min((limit.noise.share for limit in limits), default=math.inf)
    obstacle = _obstacle(need, least) if least <= USEFUL_SHARE else []
    if best is None or best.noise is None:
        first = "No mechanism gives useful accuracy: none meets this target, see the reasons."
        return "hopeless", [first, *obstacle]
    noise = best.noise
    known = [_meaning(noise), *filter(None, [coarse(need, best)])]
    if need.privacy.noise != "clients":
        known.append(describe_parties(need.privacy.noise == "parties"))
    hopes = [*_gain(need, noise), *_no_more(need, best)]
    if noise.share <= USEFUL_SHARE:
        return "useful", [
            f"Useful accuracy is to be expected with {best.mechanism}.",
            *known,
            *hopes,
        ]
    # A task may need few directions only. Hopeless is what fails along a single one, for any task
    # (theory/plan.md, "Useful or not").
    verdict: Verdict = "hopeless" if _narrow(need, noise) >= LONG_NOISE_SHARE else "doubtful"
    return verdict, [
        _outlook(need, noise),
        *known,
        _remedies(need, noise.share / USEFUL_SHARE),
        *obstacle,
        *hopes,
    ]


def warning(need: Need, best: Candidate) -> str:
    """Warn before a run begins of much noise, or of codes that are too coarse; else empty."""
    if best.noise is None:
        return ""
    share, said = best.noise.share, [coarse(need, best)]
    if share >= LONG_NOISE_SHARE:
        said = [_outlook(need, best.noise), _remedies(need, share / USEFUL_SHARE), *said]
    return " ".join(filter(None, said))


def coarse(need: Need, best: Candidate) -> str:
    """One sentence on codes that are more random than the target asks for; else empty."""
    relative = None if best.noise is None else best.noise.relative
    if (
        need.trust == "local"
        or best.guarantee is None
        or not relative
        or relative <= ONE_BIT_ERROR_RATIO
    ):
        return ""
    spent, instead = best.guarantee.epsilon, "; bits='auto' may have less"
    if need.privacy.bits == "auto":
        if spent >= SPENT_SHARE * need.epsilon:
            return ""
        instead = ""
    if spent >= SPENT_SHARE * need.epsilon:
        said = "Codes of so few bits need more noise at this target:"
    else:
        said = (
            "Codes of so few bits are more random than this target asks for: epsilon "
            f"{round_up(spent)} of {formatting.exact(need.epsilon)} is spent, and"
        )
    return f"{said} the error is {relative:.3g} times that of Gaussian noise{instead}."


def _outlook(need: Need, noise: DecodedError) -> str:
    """The first sentence where useful accuracy is not to be expected."""
    narrow = _narrow(need, noise)
    if narrow >= LONG_NOISE_SHARE:
        return (
            "Hardly anything can be learnt at this target: even along a single direction the noise "
            f"of the whole run is {narrow:.3g} times as long as the sum of the means can be."
        )
    if noise.share >= LONG_NOISE_SHARE:
        return (
            "It depends on the task whether anything is learnt at this target: the noise of the "
            f"whole run is {noise.share:.3g} times as long as the sum of the means can be (in runs "
            "measured at 1 and at 3 the accuracy was 0.41 and 0.21 for ten classes, 0.90 and 0.84 "
            "for two)."
        )
    return "Useful accuracy is doubtful at this target, with the best mechanism as with the rest."


def _narrow(need: Need, noise: DecodedError) -> float:
    """The share of the noise along a single direction: the least that may count for a task."""
    return noise.share / math.sqrt(need.dimension)


def _meaning(noise: DecodedError) -> str:
    return (
        f"The norm of the noise in a round's mean is {noise.length:.3g} times the largest "
        "possible norm of the mean; over the whole run the norm of the noise is "
        f"{noise.share:.3g} times the largest possible norm of the sum of the means."
    )


def _gain(need: Need, noise: DecodedError) -> list[str]:
    """State the part of a round's gain that is left, where the length of means is known.

    With more clients the noise falls as the share of the remedies does.
    """
    ratio = need.times_mean(noise)
    if ratio is None:
        return []
    left = kept_share(ratio)
    said = (
        f"Of means of norm {need.mean_norm:.3g} the noise is {ratio:.3g} times as long: with the "
        f"step size that is best for it, a round keeps {100 * left:.2g} % of the decrease of the "
        "loss that it could be sure of without noise."
    )
    if left < KEPT_SHARE:
        # Proposition 1 of theory/plan.md solved for the ratio: nine tenths are kept at a third.
        excess = ratio / math.sqrt(1 / KEPT_SHARE - 1)
        said += f" To keep {100 * KEPT_SHARE:.0f} % would take {_clients(need, excess)}."
    return [said]


def _no_more(need: Need, best: Candidate) -> list[str]:
    """State the most that more bits, or more clients a round, could win."""
    multiplier = need.multiplier
    if not math.isfinite(multiplier):
        return []
    distance = need.setting.distance / need.clip_norm
    codes = need.privacy.coordinates or need.setting.size
    excess = one_bit_excess(codes, need.setting.sharing, multiplier, distance)
    factor, sentences = math.sqrt(1 + excess), []
    # Where codes are coarse, their bounds are loose too: more bits win back more than this.
    if factor <= ONE_BIT_ERROR_RATIO and not coarse(need, best):
        sentences.append(
            f"Bounds aside, one bit a coordinate needs about {100 * (factor - 1):.2g} % more noise "
            "than Gaussian noise would: more bits a coordinate can win back no more than that."
        )
    # theory/plan.md, "More clients a round", has the bound for noise that is correlated in bands.
    if need.trust == "aggregate" and need.cohort < need.population:
        sentences.append(
            "w times the clients a round lower the noise of a mean by a factor of sqrt(w), at w "
            "times the uploads; noise correlated over w rounds could give no more."
        )
    return sentences


def _obstacle(need: Need, least: float) -> list[str]:
    """Name the obstacle if the best possible mechanism would be good enough."""
    bits = need.privacy.bits
    few = "" if bits == "auto" else f"the limit of {formatting.count(bits, 'bit')}, or "
    return [
        f"The best possible mechanism would be good enough (noise {least:.3g}): the obstacle is "
        f"{few}the tightness of the bounds for codes{'; try --bits auto' if few else ''}."
    ]


def _remedies(need: Need, excess: float) -> str:
    """Single changes that would divide the share by `excess`, or help most.

    It grows with the square root of the dimension. With k times as many clients, both in
    all and in a round, it falls by a factor of k if the cohort shares the noise, else by sqrt(k).
    """
    remedies, most = _clients(need, excess), int(need.dimension / excess**2)
    if most >= MIN_PARAMETER_COUNT:
        remedies += f", or at most {formatting.count(most, 'parameter')}"
    return (
        "If single records of a client are to be protected and not all that it holds, "
        "far less noise will do where each client holds many "
        '(unit="example" in randquant.train, examples on Flower and NVFlare). '
        f"Else it would take {remedies}."
    )


def _clients(need: Need, excess: float) -> str:
    """State the numbers of clients that would divide the noise by `excess`."""
    more = excess if need.trust != "local" else excess**2
    # Rounded apart, so that no client takes part in a larger share of the rounds than now.
    population, cohort = math.ceil(more * need.population), math.floor(more * need.cohort)
    if need.cohort == need.population:
        return f"about {population:,} clients, all of them in each round"
    return f"about {population:,} clients and {cohort:,} a round"
