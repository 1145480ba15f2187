"""Whether the noise of a plan leaves a useful signal: a judgement, with its reasons.

The thresholds are measured: `docs/theory/plan.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from randquant.planning.limits import gaussian_multiplier, one_bit_excess
from randquant.planning.plan.record import Candidate, DecodedError, Limit, Need, Verdict, kept_of
from randquant.reports import formatting

USEFUL = 0.3
"""Largest share (`DecodedError.share`) at which useful accuracy is to be expected."""

SURE = 0.9
"""Share of a round's gain without noise that is asked for where the length of means is known."""

HOPELESS = 1.0
"""Smallest share at which no mechanism is called useful."""


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
    meaning = _meaning(need, noise)
    if size <= USEFUL:
        first = f"Useful accuracy is to be expected with {best.mechanism}."
        return "useful", [first, *meaning, *_gain(need, noise), *_no_more(need)]
    verdict: Verdict = "hopeless" if size >= HOPELESS else "doubtful"
    first = (
        "No mechanism gives useful accuracy at this target."
        if verdict == "hopeless"
        else f"Useful accuracy is doubtful at this target, with {best.mechanism} as with the rest."
    )
    remedies = [_remedies(need, size / USEFUL), *obstacle]
    return verdict, [first, *meaning, *remedies, *_gain(need, noise), *_no_more(need)]


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


def _no_more(need: Need) -> list[str]:
    """What more bits, or more clients a round, could win: so that nobody hopes for more."""
    multiplier = need.multiplier
    if not math.isfinite(multiplier):
        return []
    distance = need.setting.distance / need.clip_norm
    codes = need.coordinates or need.setting.size
    excess = one_bit_excess(codes, need.setting.sharing, multiplier, distance)
    percent = 100 * (math.sqrt(1 + excess) - 1)
    sentences = [
        f"Bounds aside, one bit a coordinate needs about {percent:.2g} % more noise than Gaussian "
        "noise would: more bits a coordinate can win back no more than that."
    ]
    if need.trust == "aggregate" and need.cohort < need.population:
        sentences.append(
            "w times the clients a round lower the noise of a mean by a factor of sqrt(w), at w "
            "times the uploads; noise correlated over w rounds could give no more."
        )
    return sentences


def _obstacle(need: Need, least: float) -> list[str]:
    """What stands in the way where the best possible mechanism would do."""
    return [
        f"The best possible mechanism would be good enough (noise {least:.3g}): the obstacle is "
        f"the limit of {need.bits} bits, or the tightness of the bounds for codes; try --bits 16."
    ]


def _remedies(need: Need, excess: float) -> str:
    """Single changes that would divide what the verdict is about by `excess`.

    It grows with the noise multiplier, and the share with the square root of the dimension. With k
    times as many clients, both in all and in a round, it falls by a factor of k if the cohort
    shares the noise, else by sqrt(k).
    """
    ways = [_clients(need, excess)]
    most = int(need.dimension / excess**2)
    # Of a known Hessian nobody knows what fewer parameters would leave; and one may be too many.
    if need.effective_rank is None and most >= 1:
        ways.insert(0, f"at most {formatting.count(most, 'parameter')}")
    multiplier = gaussian_multiplier(need.epsilon, need.delta, 1)
    if math.isfinite(multiplier):
        low, high = math.log(need.epsilon), math.log(1e9)
        for _ in range(60):
            middle = (low + high) / 2
            small = gaussian_multiplier(math.exp(middle), need.delta, 1) <= multiplier / excess
            low, high = (low, middle) if small else (middle, high)
        ways.append(f"an epsilon of about {math.exp(high):.3g}")
    return f"It would take {', or '.join(ways)}."


def _clients(need: Need, excess: float) -> str:
    """How many clients would divide the noise by `excess`."""
    more = excess if need.trust != "local" else excess**2
    population, cohort = math.ceil(more * need.population), math.floor(more * need.cohort)
    if need.cohort == need.population:
        return f"about {population:,} clients, all of them in each round"
    return f"about {population:,} clients and {cohort:,} a round"
