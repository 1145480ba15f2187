"""Whether the noise of a plan leaves a useful signal: a judgement, with its reasons.

The thresholds are measured: `docs/theory/plan.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from randquant._internal import formatting
from randquant._internal.rounding import round_up
from randquant.planning.limits import one_bit_excess
from randquant.planning.plan.record import (
    ENOUGH,
    Candidate,
    DecodedError,
    Limit,
    Need,
    Verdict,
    kept_of,
)

USEFUL = 0.3
"""Largest share (`DecodedError.share`) at which useful accuracy is to be expected."""

SURE = 0.9
"""Share of a round's gain without noise that is asked for where the length of means is known."""

LONG = 1.0
"""Smallest share at which it depends on the task whether anything is learnt."""

SPENT = 0.95
"""A target is spent where at least this part of its epsilon is."""

FEWEST = 10
"""Fewer parameters are not advised."""


def judge(need: Need, best: Candidate | None, limits: Sequence[Limit]) -> tuple[Verdict, list[str]]:
    """Give a verdict, and its reasons as sentences.

    Args:
        need: the target and the setting.
        best: the mechanism of least error; None if none meets the target.
        limits: the errors of the best possible mechanisms.
    """
    least = min((limit.noise.share for limit in limits), default=math.inf)
    obstacle = _obstacle(need, least) if least <= USEFUL else []
    if best is None or best.noise is None:
        first = "No mechanism gives useful accuracy: none meets this target, see the reasons."
        return "hopeless", [first, *obstacle]
    noise = best.noise
    known = [_meaning(noise), *filter(None, [coarse(need, best)])]
    hopes = [*_gain(need, noise), *_no_more(need, best)]
    if noise.share <= USEFUL:
        return "useful", [
            f"Useful accuracy is to be expected with {best.mechanism}.",
            *known,
            *hopes,
        ]
    verdict: Verdict = "hopeless" if _narrow(need, noise) >= LONG else "doubtful"
    return verdict, [
        _outlook(need, noise),
        *known,
        _remedies(need, noise.share / USEFUL),
        *obstacle,
        *hopes,
    ]


def warning(need: Need, best: Candidate) -> str:
    """What to know before a run begins: much noise, or codes that are too coarse; else empty."""
    if best.noise is None:
        return ""
    share, said = best.noise.share, [coarse(need, best)]
    if share >= LONG:
        said = [_outlook(need, best.noise), _remedies(need, share / USEFUL), *said]
    return " ".join(filter(None, said))


def coarse(need: Need, best: Candidate) -> str:
    """One sentence on codes that are more random than the target asks for; else empty."""
    relative = None if best.noise is None else best.noise.relative
    if need.trust == "local" or best.guarantee is None or not relative or relative <= ENOUGH:
        return ""
    spent, instead = best.guarantee.epsilon, "; bits='auto' may have less"
    if need.privacy.bits == "auto":
        if spent >= SPENT * need.epsilon:
            return ""
        instead = ""
    if spent >= SPENT * need.epsilon:
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
    if narrow >= LONG:
        return (
            "Hardly anything can be learnt at this target: even along a single direction the noise "
            f"of the whole run is {narrow:.3g} times as long as the sum of the means can be."
        )
    if noise.share >= LONG:
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
    """How much of a round's gain is left, where the length of means is known.

    With more clients the noise falls as the share of the remedies does.
    """
    ratio = need.times_mean(noise)
    if ratio is None:
        return []
    left = kept_of(ratio)
    said = (
        f"Of means of norm {need.mean_norm:.3g} the noise is {ratio:.3g} times as long: with the "
        f"step size that is best for it, a round keeps {100 * left:.2g} % of the decrease of the "
        "loss that it could be sure of without noise."
    )
    if left < SURE:
        excess = ratio / math.sqrt(1 / SURE - 1)
        said += f" To keep {100 * SURE:.0f} % would take {_clients(need, excess)}."
    return [said]


def _no_more(need: Need, best: Candidate) -> list[str]:
    """What more bits, or more clients a round, could win: so that nobody hopes for more."""
    multiplier = need.multiplier
    if not math.isfinite(multiplier):
        return []
    distance = need.setting.distance / need.clip_norm
    codes = need.privacy.coordinates or need.setting.size
    excess = one_bit_excess(codes, need.setting.sharing, multiplier, distance)
    factor, sentences = math.sqrt(1 + excess), []
    # Where codes are coarse, their bounds are loose too: more bits win back more than this.
    if factor <= ENOUGH and not coarse(need, best):
        sentences.append(
            f"Bounds aside, one bit a coordinate needs about {100 * (factor - 1):.2g} % more noise "
            "than Gaussian noise would: more bits a coordinate can win back no more than that."
        )
    if need.trust == "aggregate" and need.cohort < need.population:
        sentences.append(
            "w times the clients a round lower the noise of a mean by a factor of sqrt(w), at w "
            "times the uploads; noise correlated over w rounds could give no more."
        )
    return sentences


def _obstacle(need: Need, least: float) -> list[str]:
    """What stands in the way where the best possible mechanism would do."""
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
    ways, most = _clients(need, excess), int(need.dimension / excess**2)
    if most >= FEWEST:
        ways += f", or at most {formatting.count(most, 'parameter')}"
    return (
        "If single records of a client are to be protected and not all that it holds, "
        "far less noise will do where each client holds many: randquant.train and NVFlare count "
        'so (unit="example", examples), Flower does not. '
        f"Else it would take {ways}."
    )


def _clients(need: Need, excess: float) -> str:
    """How many clients would divide the noise by `excess`."""
    more = excess if need.trust != "local" else excess**2
    population, cohort = math.ceil(more * need.population), math.floor(more * need.cohort)
    if need.cohort == need.population:
        return f"about {population:,} clients, all of them in each round"
    return f"about {population:,} clients and {cohort:,} a round"
