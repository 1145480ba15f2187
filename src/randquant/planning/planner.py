"""Which mechanism and parameters meet a target, ranked by error, or chosen before data is seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant._internal.progress import report, step, waiting
from randquant.aggregation.additive import HELPER_NOISE
from randquant.aggregation.baselines import LocalGaussian
from randquant.aggregation.layout import update_dimension
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms, known_name
from randquant.mechanisms.noise import NOISES
from randquant.planning.calibration import (
    OutOfReach,
    TunedUpdate,
    calibrate,
    fewest_bits,
    protecting_mechanisms,
    quick_update_mechanisms,
    tune_update,
    tuned_mechanism,
    update_family,
)
from randquant.planning.plans import (
    ONE_BIT,
    ONE_BIT_ERROR_RATIO,
    Candidate,
    DecodedError,
    Limit,
    Need,
    Plan,
    Privacy,
    coarse,
    gaussian_multiplier,
    judge,
    refuse_spent,
    warning,
)
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.privacy.guarantee import DEFAULT_DELTA

# How many coordinates to send: the fewest whose error is near that of sending all.
#
# Derivation: `docs/theory/subsets.md`.

SIZE_DIVISORS = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The numbers of coordinates tried are the rotated size over these: three a decade."""

TOLERATED = 1.05
"""Error of what is sent, at most, over that of all coordinates: an error that is 5 % larger costs
about as much accuracy as 5 % less epsilon."""

MAX_ERROR_RATIO = 1.5
"""The table of fewer coordinates ends at this error over that of all coordinates. A larger ratio
calibrates parts that are never recommended, which takes time."""


def parts(
    need: Need, name: str, least: float, calibrated: Callable[[str, Need], Candidate]
) -> Iterator[Candidate]:
    """A mechanism that sends fewer and fewer coordinates, each calibrated to the same target.

    Args:
        need: the target; its `mean_norm` is assumed.
        name: the mechanism. Where it cannot send all coordinates it may send fewer: integer noise
            on fewer of them takes fewer bits of a code.
        least: deviation of the best mechanism that sends all coordinates.
        calibrated: calibrates a mechanism, by its name.
    """
    if need.mean_norm is None:
        return
    for divisor in SIZE_DIVISORS:
        count = need.setting.size // divisor
        if not count:
            return
        part = calibrated(name, need.sending(count))
        # Out of reach with these coordinates, and perhaps not with fewer: integer noise on fewer of
        # them fits in fewer bits, so the search goes on.
        if part.noise is None:
            continue
        # With fewer coordinates the error grows: the rest is not tried.
        if part.noise.deviation > MAX_ERROR_RATIO * least:
            return
        yield part


def smallest_upload(whole: Candidate, smaller: list[Candidate]) -> Candidate:
    """The one with the smallest upload whose error is within TOLERATED of that of all coordinates.

    Example:
        >>> from randquant.planning.plans import DecodedError
        >>> def sending(count, error):
        ...     noise = DecodedError(error, None, 0.0, 0.0)
        ...     return Candidate("a", {}, noise=noise, bytes_up=count, coordinates=count)
        >>> whole = sending(100, 1.0)
        >>> smallest_upload(whole, [sending(50, 1.01), sending(10, 1.04), sending(5, 1.2)]).bytes_up
        10
    """
    assert whole.noise is not None
    most = TOLERATED * whole.noise.deviation
    accurate = [part for part in smaller if part.noise and part.noise.deviation <= most]
    return min([whole, *accurate], key=lambda part: part.bytes_up)


# Which mechanism meets a target with the least error, and whether that error is small enough.


def plan(
    dimension: Any,
    population: int,
    cohort: int,
    rounds: int,
    epsilon: float,
    delta: float = DEFAULT_DELTA,
    *,
    trust: Literal["local", "aggregate", "model"] = "aggregate",
    privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
    mechanisms: Sequence[str] | str | None = None,
    mean_norm: float | None = None,
) -> Plan:
    """Calibrate every mechanism to one guarantee, and rank them by the error of the decoded mean.

    Args:
        dimension: coordinates of an update, 1 to 2**30; or what has them: a model with
            `parameters()`, of which those that are trained count, or a state dict (`StateLayout`).
        population: how many clients there are.
        cohort: how many take part in a round.
        rounds: how many rounds.
        epsilon, delta: target for one client's whole participation.
        trust: `local`, `aggregate`, or `model`, if the adversary sees the published models only and
            nobody learns who takes part: `docs/sampling.md` says when that may be claimed.
        privacy: how updates are clipped and sent, see `Privacy`. Bits of `auto` are as few as each
            mechanism needs (`fewest_bits`), and under secure sums the fewest bytes with an error
            of at most ONE_BIT_ERROR_RATIO times the least: one bit, or a masked sum of integer
            noise. By default a client takes part in as few rounds as there can be, rounds · cohort
            / population rounded up, which a balanced sampler keeps to. Numbers sent with an update
            count as coordinates. A `sampling` that is not fixed is for `model` trust only; all
            clients then send in all rounds.
        mechanisms: names, or `all`; by default those that are calibrated within seconds. Under
            secure sums these are one bit, sparse ternary codes and integer noise.
        mean_norm: typical length of a mean of clipped updates, at most clip_norm, to choose how
            many coordinates to send: the error of a subset grows with it. By default all are sent.

    Returns:
        A Plan.

    Guarantees:
        Every guarantee in it is the accountant's, and at most the target. Errors are expectations
        (see `deviation`), and the verdict is a judgement: `docs/theory/plan.md`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    Example:
        >>> wide = Privacy(bits=16)
        >>> ranked = plan(650, 200, 200, 50, 8.0, privacy=wide, mechanisms=["skellam"])
        >>> ranked.verdict, ranked.entries[0].guarantee.epsilon <= 8, ranked.mechanism.bits
        ('useful', True, 16)
    """
    validate.kind("privacy", privacy, Privacy)
    refuse_spent(privacy, epsilon, delta)
    need = _checked(
        Need(
            update_dimension(dimension) + len(privacy.numbers), population, cohort, rounds, epsilon,
            delta, trust, privacy, mean_norm=mean_norm,
        )
    )  # fmt: skip
    chosen = _chosen(mechanisms, need)
    entries = []
    with waiting():
        with step("Gaussian noise", 0, len(chosen)):
            # First, since the searches of all mechanisms start from it.
            multiplier = _accounted(need)
        for done, name in enumerate(chosen):
            with step(name, done, len(chosen)):
                entries.append(_entry(name, need, multiplier))
        with step("limits", len(chosen), len(chosen)):
            limits = _limits(need)
        best = _recommended(need, entries)
        with step("fewer coordinates", len(chosen), len(chosen)):
            parts = _parts(need, best, chosen, lambda n, part: _entry(n, part, multiplier))
        report("", len(chosen), len(chosen))
    entries.sort(key=_rank)
    # The verdict is on what is recommended, and so on as many coordinates as that sends.
    judged_need = need
    if best is not None:
        best = smallest_upload(best, parts)
        judged_need = need.sending(best.coordinates)
    verdict, advice = judge(judged_need, best, limits)
    unasked = mechanisms is None and privacy.noise == "clients"
    rest = [name for name in protecting_mechanisms(need.setting) if name not in chosen]
    return Plan(need, entries, limits, verdict, advice, best, rest if unasked else (), parts)


def _chosen(mechanisms: Sequence[str] | str | None, need: Need) -> list[str]:
    setting = need.setting
    helped = need.privacy.noise != "clients"
    if mechanisms is None and helped:
        return [HELPER_NOISE, ONE_BIT]  # the second for its bytes and error: never recommended
    if mechanisms is None:
        quick = quick_update_mechanisms(setting)
        if need.cohorts is None or need.privacy.bits in (1, "auto"):
            return quick
        # Hidden cohorts ask for bounds at thirty orders, each of seconds for many levels.
        return [name for name in quick if all_mechanisms()[name].whole_update]
    named = [mechanisms] if isinstance(mechanisms, str) else mechanisms
    named = validate.listed("mechanisms", named)
    if len(named) == 1 and isinstance(named[0], str) and named[0] == "all":
        return protecting_mechanisms(setting)
    chosen = named
    for name in chosen:
        known_name(name, [*all_mechanisms(), "all"])
        if all_mechanisms()[name].helper_noise and not helped:
            raise ValueError(
                f"Expected noise='helper' or noise='parties' in privacy with {name}, got "
                f"{need.privacy.noise!r}: say whether the server adds noise as well."
            )
    return chosen


def _recommended(need: Need, entries: Sequence[Candidate]) -> Candidate | None:
    helped, known = need.privacy.noise != "clients", all_mechanisms()
    # Baselines are ranked but never recommended: they sample in floating point, so their guarantee
    # is not of what is sent. With a helper's noise only mechanisms that use it qualify: what rests
    # on other clients' noise would break the promise that such a plan makes.
    deployable = [
        (e.noise.deviation, e)
        for e in entries
        if e.noise and not e.baseline and known[e.mechanism].helper_noise == helped
    ]
    least = min((error for error, _ in deployable), default=0.0)
    # Among errors within `tolerated` the fewest bytes decide, and of equal bytes the least
    # error.
    alike = [(e.bytes_up, error, e) for error, e in deployable if error <= least * need.tolerated]
    return min(alike, key=lambda each: each[:2], default=(0, 0.0, None))[2]


def _parts(
    need: Need,
    best: Candidate | None,
    chosen: Sequence[str],
    calibrated: Callable[[str, Need], Candidate],
) -> list[Candidate]:
    """The best mechanism and integer noise with fewer coordinates, if it is asked how many."""
    if best is None or best.noise is None or need.privacy.coordinates is not None:
        return []
    # Integer noise is tried even where another is best on all coordinates: with fewer it takes
    # fewer bits of a code, and may overtake. The dict keeps the order and drops repetitions.
    names = dict.fromkeys([best.mechanism, *(name for name in NOISES if name in chosen)])
    least = best.noise.deviation
    return [part for name in names for part in parts(need, name, least, calibrated)]


def _checked(need: Need) -> Need:
    """The need with its participations, or ValueError."""
    privacy, most = need.privacy, need.privacy.max_participations
    if privacy.unit != "client":
        raise ValueError(
            f"Expected unit='client' in a plan, got {privacy.unit!r}: plans are for whole clients' "
            "updates; randquant.train takes others."
        )
    validate.whole("population", need.population, low=1, high=2**53)
    validate.whole("cohort", need.cohort, low=1, high=need.population)
    validate.whole("rounds", need.rounds, low=1, high=2**40)
    validate.real("epsilon", need.epsilon, above=0, high=1e6)
    validate.real("delta", need.delta, low=0, below=1)
    validate.choice("trust", need.trust, ("local", "aggregate", "model"))
    need = replace(need, cohorts=_cohorts(need))
    if need.mean_norm is not None:
        validate.real("mean_norm", need.mean_norm, low=0, high=need.clip_norm)
    least = need.balanced
    if most is not None:
        most = validate.whole(
            "max_participations", most, low=least, high=need.rounds,
            why=f"with {need.cohort} of {need.population} clients in each of {need.rounds} rounds, "
            f"some client takes part {least} times or more",
        )  # fmt: skip
    return replace(need, participations=least if most is None else most)


def _cohorts(need: Need) -> HiddenCohorts | None:
    """Return how clients take part if nobody sees it; raise ValueError where cohorts are seen."""
    sampling = need.privacy.sampling
    if need.trust == "model":
        if need.privacy.max_participations is not None:
            raise ValueError(
                "Expected no max_participations under model trust, got "
                f"{need.privacy.max_participations}: a cap makes rounds depend on each other, so "
                "nothing would be amplified; leave it out."
            )
        return HiddenCohorts(sampling, need.population, need.cohort, need.rounds)
    if sampling != "fixed":
        raise ValueError(
            f"Expected trust='model' with sampling={sampling!r}, got {need.trust!r}: who takes "
            "part hides a client only from those who do not see it."
        )
    return None


def _entry(name: str, need: Need, multiplier: float) -> Candidate:
    baseline = all_mechanisms()[name].baseline
    # A client's part of the noise: the variances of all that share it add up to what the target
    # asks.
    gaussian, setting = (
        multiplier * 2 * need.clip_norm / math.sqrt(need.setting.sharing),
        need.setting,
    )
    if need.privacy.bits == "auto":
        # By expected errors at Gaussian noise's deviation, which needs no account: to calibrate
        # with every number of bits would take a search for each.
        setting = replace(setting, bits=fewest_bits(name, setting, gaussian))
    try:
        tuned = tune_update(
            name, setting, need.epsilon, need.delta,
            # A hidden client's release is that of the whole run, since nobody sees which rounds
            # were its own.
            need.participations if need.cohorts is None else need.rounds,
            deviation=gaussian, cohorts=need.cohorts,
        )  # fmt: skip
    except (OutOfReach, ValueError) as error:
        # A row with a reason and not an error: other mechanisms may meet the target.
        return Candidate(name, {}, baseline=baseline, remark=str(error))
    calibration = tuned.calibration
    mechanism = calibration.mechanism
    deviation = need.deviation(mechanism)
    # With hidden cohorts those whose zeros are in the sum upload as well.
    senders = need.cohort if need.cohorts is None else need.setting.cohort
    upload_bytes = mechanism.upload_bytes(need.dimension, senders)
    remark = "" if calibration.tight else "no smaller noise is available"
    return Candidate(
        name,
        tuned.parameters,
        calibration.guarantee,
        need.noise(deviation),
        upload_bytes,
        upload_bytes * senders * need.rounds,
        mechanism.payload_bytes(need.dimension),
        baseline,
        remark,
        need.privacy.coordinates,
    )


def _accounted(need: Need) -> float:
    """Relative deviation of Gaussian noise under our accountant, where the searches start."""
    if need.cohorts is not None:
        return need.cohorts.gaussian_multiplier(need.epsilon, need.delta, need.privacy.neighboring)
    try:
        # Relative to the distance of two updates, twice the clip norm.
        return calibrate(
            lambda relative: LocalGaussian(need.clip_norm, 2 * relative),
            need.epsilon,
            need.delta,
            need.dimension,
            need.participations,
            neighboring=need.privacy.neighboring,
            reach=(1e-9, 1e15),
        ).noise * (1 + 2e-4)
    except OutOfReach:  # pure privacy: an equal share of epsilon for each coordinate and round
        return need.participations * need.setting.clip * need.setting.size / need.epsilon


def _limits(need: Need) -> list[Limit]:
    # At delta = 0 Gaussian noise has no finite epsilon, so there is nothing to compare with.
    if not math.isfinite(need.multiplier):
        return []
    where = "on each update" if need.trust == "local" else "on the sum"
    name = f"Gaussian noise {where}, accounted exactly"
    return [Limit(name, need.noise(need.gaussian))]


def _rank(entry: Candidate) -> tuple:
    # Those out of reach come last, and of equal errors the smaller upload comes first.
    noise = entry.noise
    return (noise is None, noise.deviation if noise else 0.0, entry.bytes_up)


FEW_BITS, INTEGER_NOISE = "pbm", "skellam"
"""The mechanisms of up to MAX_SUMMED_BITS a coordinate, and of more in a sum."""

SINGLE_COORDINATE_BITS, MAX_SUMMED_BITS, FINE_BITS = 5, 8, 20
"""Bits of a code: of a lone coordinate, where one bit is too coarse; the most of a sum of bits; and
of integers so fine that rounding adds little to the noise that hides one example."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A mechanism by name, as a configuration has it.

    Attributes:
        mechanism: its name.
        parameters: its own parameters.
        clip_norm: threshold of a channel's updates; None if it is among the parameters.
        warning: that it depends on the task whether anything is learnt, or that codes are too
            coarse for the target; empty if neither.
    """

    mechanism: str
    parameters: dict[str, Any]
    clip_norm: float | None
    warning: str = ""


def choose(need: Need, *, examples: int | None = None) -> Calibrated:
    """Calibrate a mechanism to a target.

    In a secure sum, and for examples, this is one bit: stochastic rounding of the rotated update to
    two levels. Where that has over ONE_BIT_ERROR_RATIO times the error of Gaussian noise it is what
    `planning.plan` recommends of integer noise and one bit; in all other cases what it recommends
    of all that it calibrates unasked; for examples integer noise. With the helper's noise it is
    `HelperNoise`, with as few bits as raise its error by little, and for examples with many.

    Args:
        need: the target, with the most rounds that any client takes part in.
        examples: for example-level privacy, the fewest examples that an update is the mean of.

    Guarantees:
        The accountant's guarantee of the mechanism for that many participations is at most the
        target. Nothing depends on data.

    Raises:
        ValueError: the target is out of reach; the message says what would be needed.

    Example:
        >>> choose(Need(650, 200, 200, 20, 8, 1e-5, "aggregate", participations=20))
        Calibrated(mechanism='stochastic-rounding', parameters={...}, clip_norm=1.0, warning='')
    """
    validate.real("epsilon", need.epsilon, above=0, high=1e6)
    validate.real("delta", need.delta, low=0, below=1)
    if need.privacy.coordinates is not None:  # the verdict is on the noise, not on what is left out
        need = replace(need, mean_norm=0.0)
    if examples is not None:
        return _choose_for_examples(need, examples)
    names = None
    if need.privacy.noise != "clients":
        names = [HELPER_NOISE]
    elif need.trust != "local" and need.privacy.bits in (1, "auto"):
        one = need.with_bits(1)
        quick = quick_update_mechanisms(need.setting)
        names = [name for name in quick if all_mechanisms()[name].whole_update]
        # Where one bit's own randomness is too much, its calibration takes seconds for nothing.
        if need.privacy.bits == 1 or not _too_coarse(one):
            candidate = _measured(ONE_BIT, one, None)
            assert candidate.noise is not None
            if need.privacy.bits == 1 or (candidate.noise.relative or 0.0) <= ONE_BIT_ERROR_RATIO:
                return _calibrated(one, candidate, None)
            names.append(ONE_BIT)
    candidate = _planned(need, names)
    if candidate is None and names is not None and need.privacy.noise == "clients":
        # Before the target is refused, all that is quick is tried, channels of several bits too.
        candidate = _planned(need, None)
    if candidate is None:
        raise _out_of_reach(need, "")
    return _calibrated(need, candidate, None)


def _too_coarse(need: Need, examples: int | None = None) -> bool:
    """Tell if one bit's own randomness is far too much even without a privacy target."""
    family = update_family(ONE_BIT, need.setting)
    mechanism = tuned_mechanism(ONE_BIT, need.setting, family.parameters(family.reach[0]))
    # Noise that meets a target is no smaller than the family's least. The ratio is squared to be on
    # the safe side: what lies between is calibrated, and its own error decides.
    return (_error(need, mechanism, examples).relative or 0.0) > ONE_BIT_ERROR_RATIO**2


def _error(need: Need, mechanism: UpdateMechanism, examples: int | None) -> DecodedError:
    noise = need.noise(need.deviation(mechanism))
    if noise.relative is None:
        return noise
    # Neighbours are as many times closer.
    return replace(noise, relative=noise.relative * (examples or 1))


def _planned(need: Need, names: list[str] | None) -> Candidate | None:
    """Return what a plan of these mechanisms recommends; names=None plans all that are quick."""
    most = None
    if need.cohorts is None:
        # `plan` refuses a cap below an equal share of the rounds; with more rounds than a client
        # takes part in the noise is larger than needed, never smaller.
        most = max(need.participations, need.balanced)
    # The need's dimension counts the numbers already, and its target is what earlier releases left.
    privacy = replace(need.privacy, max_participations=most, numbers=(), weighted_by=None,
                      spent=None)  # fmt: skip
    return plan(
        need.dimension, need.population, need.cohort, need.rounds, need.epsilon, need.delta,
        trust=need.trust, privacy=privacy, mean_norm=need.mean_norm, mechanisms=names,
    ).recommended  # fmt: skip


def _choose_for_examples(need: Need, examples: int) -> Calibrated:
    """One bit; where more lower the error, integer noise in a sum, and sums of bits by itself."""
    bits = need.privacy.bits
    if need.privacy.noise != "clients":
        fine = need.with_bits(FINE_BITS if bits == "auto" else bits)
        return _calibrated(need, _measured(HELPER_NOISE, fine, examples), examples)
    few = need.trust == "local" or (bits != "auto" and bits <= MAX_SUMMED_BITS)
    name = FEW_BITS if few else INTEGER_NOISE
    one, candidates = need.with_bits(1), []
    if bits == 1 or (bits == "auto" and not _too_coarse(one, examples)):
        candidates.append(_measured(ONE_BIT, one, examples))
    accurate = [
        each
        for each in candidates
        if each.noise and (each.noise.relative or 0.0) <= ONE_BIT_ERROR_RATIO
    ]
    if bits != 1 and not accurate:
        bits = bits if bits != "auto" else SINGLE_COORDINATE_BITS if few else FINE_BITS
        candidates.append(_measured(name, need.with_bits(bits), examples))
    # One bit that is not accurate enough stays a candidate: finer codes may be worse still.
    best = min(candidates, key=lambda each: each.noise.deviation if each.noise else math.inf)
    return _calibrated(need, best, examples)


def _measured(name: str, need: Need, examples: int | None) -> Candidate:
    tuned = _tuned(name, need, examples)
    noise = _error(need, tuned.calibration.mechanism, examples)
    return Candidate(name, tuned.parameters, tuned.calibration.guarantee, noise)


def _calibrated(need: Need, candidate: Candidate, examples: int | None) -> Calibrated:
    whole = all_mechanisms()[candidate.mechanism].whole_update
    # The verdict's thresholds were measured for updates of whole clients.
    said = warning(need, candidate) if examples is None else coarse(need, candidate)
    return Calibrated(
        candidate.mechanism, candidate.parameters, None if whole else need.clip_norm, said
    )


def _tuned(
    name: str, need: Need, examples: int | None = None, participations: int | None = None
) -> TunedUpdate:
    rounds = participations or need.participations
    hidden = need.cohorts
    if hidden is None:
        multiplier = gaussian_multiplier(need.epsilon, need.delta, rounds)
    else:
        rounds = hidden.rounds
        multiplier = hidden.gaussian_multiplier(need.epsilon, need.delta, need.privacy.neighboring)
    share = math.sqrt(need.setting.sharing)
    # At delta = 0 epsilon adds up over rounds and coordinates, so each gets an equal part of it.
    start = multiplier if math.isfinite(multiplier) else rounds * need.dimension / need.epsilon
    distance = 2.0 if examples is None else 2.0 / examples
    try:
        return tune_update(
            name, need.setting, need.epsilon, need.delta, rounds,
            deviation=start * distance * need.clip_norm / share, examples=examples, cohorts=hidden,
        )  # fmt: skip
    except OutOfReach as error:
        if participations is not None:
            raise
        if hidden is not None:
            raise _out_of_reach(need, "", error.nearest) from error
        raise _out_of_reach(need, _possible(name, need, examples), error.nearest) from error


def _possible(name: str, need: Need, examples: int | None) -> str:
    """Say the number of rounds that the target allows, if fewer than asked for meet it."""
    # Each try is a whole calibration, so the number is halved: the message says "at most about".
    fewer = need.participations // 2
    while fewer:
        try:
            _tuned(name, need, examples, fewer)
        except OutOfReach:
            fewer //= 2
        else:
            rounds = fewer * need.population // need.cohort
            return f"at most about {max(rounds, 1)} rounds, "
    return ""


def _out_of_reach(need: Need, fewer: str, nearest: float = math.inf) -> OutOfReach:
    larger = f"epsilon >= {round_up(nearest)}, " if math.isfinite(nearest) else ""
    wider = ""
    if need.cohort < need.population and need.trust != "local":
        wider = f"a cohort larger than {need.cohort}, "
    looser = "delta > 0, " if need.delta == 0 else ""
    return OutOfReach(
        f"Expected a target that {need.participations} rounds of a client can meet, got "
        f"epsilon={need.epsilon} at delta={need.delta}: it would need {larger}{looser}{fewer}"
        f"{wider}or secure sums (trust='aggregate') of more clients.",
        nearest,
        None,
    )
