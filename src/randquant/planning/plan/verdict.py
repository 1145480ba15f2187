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
    least = min((_size(need, limit.noise) for limit in limits), default=math.inf)
    obstacle = _obstacle(need, least) if least <= USEFUL else []
    if best is None or best.noise is None:
        first = "No mechanism gives useful accuracy: none meets this target, see the reasons."
        return "hopeless", [first, *obstacle]
    noise, size = best.noise, _size(need, best.noise)
    known = [*_meaning(need, noise), *filter(None, [coarse(need, best)])]
    hopes = [*_gain(need, noise), *_no_more(need, best)]
    if size <= USEFUL:
        return "useful", [
            f"Useful accuracy is to be expected with {best.mechanism}.",
            *known,
            *hopes,
        ]
    verdict: Verdict = "hopeless" if size * _narrowest(need) >= LONG else "doubtful"
    return verdict, [
        _outlook(need, noise),
        *known,
        _remedies(need, size / USEFUL),
        *obstacle,
        *hopes,
    ]


def warning(need: Need, best: Candidate) -> str:
    """What to know before a run begins: much noise, or codes that are too coarse; else empty."""
    if best.noise is None:
        return ""
    size, said = _size(need, best.noise), [coarse(need, best)]
    if size >= LONG:
        said = [_outlook(need, best.noise), _remedies(need, size / USEFUL), *said]
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
    size = _size(need, noise)
    narrow = size * _narrowest(need)
    where = "" if need.effective_rank is None else ", as far as the loss feels it"
    if narrow >= LONG:
        along = "even along a single direction " if need.effective_rank is None else ""
        return (
            f"Hardly anything can be learnt at this target: {along}the noise of the whole run is "
            f"{narrow:.3g} times as long as the sum of the means can be{where}."
        )
    if size >= LONG:
        return (
            "It depends on the task whether anything is learnt at this target: the noise of the "
            f"whole run is {size:.3g} times as long as the sum of the means can be (in runs "
            "measured at 1 and at 3 the accuracy was 0.41 and 0.21 for ten classes, 0.90 and 0.84 "
            "for two)."
        )
    return "Useful accuracy is doubtful at this target, with the best mechanism as with the rest."


def _narrowest(need: Need) -> float:
    """The least part of the size that may count: noise along one direction, if that is not known.

    theory/plan.md, Proposition 2, with an effective rank of 1.
    """
    return 1.0 if need.effective_rank is not None else 1 / math.sqrt(need.dimension)


def _size(need: Need, noise: DecodedError) -> float:
    """What the verdict is about: the share, or the same of means as they are and noise as felt."""
    felt = None if need.effective_rank is None else need.felt(noise)
    return noise.share if felt is None else felt / math.sqrt(need.rounds)


def _meaning(need: Need, noise: DecodedError) -> list[str]:
    said = (
        f"The norm of the noise in a round's mean is {noise.length:.3g} times the largest "
        "possible norm of the mean; over the whole run the norm of the noise is "
        f"{noise.share:.3g} times the largest possible norm of the sum of the means."
    )
    if need.effective_rank is None:
        return [said]
    felt = (
        "The verdict is about the noise that the loss feels: over the whole run "
        f"{_size(need, noise):.3g} times the norm of the sum of means of norm "
        f"{need.mean_norm:.3g}, with a Hessian of effective rank {need.effective_rank:,.4g}."
    )
    return [felt, said]


def _gain(need: Need, noise: DecodedError) -> list[str]:
    """How much of a round's gain is left, where the length of means is known.

    theory/plan.md, Propositions 1 and 2: 1/(1 + r²) for noise r times as long as the mean; r falls
    like the remedies' share with more clients.
    """
    ratio = need.felt(noise)
    if ratio is None or not need.mean_norm:
        return []
    longer = noise.length * need.clip_norm / need.mean_norm
    left, known = kept_of(ratio), need.effective_rank is not None
    said = f"Of means of norm {need.mean_norm:.3g} the noise is {longer:.3g} times as long"
    said += f", felt like noise {ratio:.3g} times as long" if known else ""
    said += ": with the step size that is best for it, a round keeps "
    said += (
        f"at most {100 * left:.2g} % of the decrease of the loss that it has without noise."
        if known
        else f"{100 * left:.2g} % of the decrease of the loss that it could be sure of without "
        "noise."
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
    """Single changes that would divide what the verdict is about by `excess`, or help most.

    The share grows with the square root of the dimension. With k times as many clients, both in
    all and in a round, it falls by a factor of k if the cohort shares the noise, else by sqrt(k).
    """
    ways, most = _clients(need, excess), int(need.dimension / excess**2)
    # Of a known Hessian nobody knows what fewer parameters would leave; and a few are no model.
    if need.effective_rank is None and most >= FEWEST:
        ways += f", or at most {formatting.count(most, 'parameter')}"
    return (
        "If single records of a client are to be protected and not all that it holds, "
        'unit="example" of randquant.train takes far less noise where each client holds many. '
        f"Else it would take {ways}."
    )


def _clients(need: Need, excess: float) -> str:
    """How many clients would divide the noise by `excess`."""
    more = excess if need.trust != "local" else excess**2
    population, cohort = math.ceil(more * need.population), math.floor(more * need.cohort)
    if need.cohort == need.population:
        return f"about {population:,} clients, all of them in each round"
    return f"about {population:,} clients and {cohort:,} a round"
