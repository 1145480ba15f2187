"""Whether the noise of a plan leaves something to learn: a judgement, with its reasons.

The thresholds are measured: `docs/theory/plan.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from randquant.planning.limits import gaussian_multiplier
from randquant.planning.plan.record import Candidate, Limit, Need, Verdict

USEFUL = 0.3
"""Share of a run that noise may be, at most, for useful accuracy to be expected."""

HOPELESS = 1.0
"""Share of a run from which on no mechanism is called useful."""


def judge(need: Need, best: Candidate | None, limits: Sequence[Limit]) -> tuple[Verdict, list[str]]:
    """A verdict, and what it means, in sentences.

    Args:
        need: what was asked for.
        best: the mechanism of least error; None where none meets the target.
        limits: what the best possible mechanisms would do.
    """
    least = min((limit.noise.share for limit in limits), default=math.inf)
    if best is None or best.noise is None:
        first = "No mechanism gives useful accuracy at this target: none meets it, see the reasons."
        return "hopeless", [first, *_short_of(need, least)]
    share = best.noise.share
    meaning = (
        f"The noise in a round's mean is {best.noise.length:.3g} times as long as the longest "
        f"mean there can be; the whole run's noise is {share:.3g} times as long as the longest "
        "way that its means can go."
    )
    if share <= USEFUL:
        return "useful", [f"Useful accuracy is to be expected with {best.mechanism}.", meaning]
    hopeless = share >= HOPELESS
    first = (
        "No mechanism gives useful accuracy at this target."
        if hopeless
        else f"Useful accuracy is doubtful at this target, with {best.mechanism} as with the rest."
    )
    verdict: Verdict = "hopeless" if hopeless else "doubtful"
    return verdict, [first, meaning, _help(need, share / USEFUL), *_short_of(need, least)]


def _short_of(need: Need, least: float) -> list[str]:
    """A sentence where something other than the target stands in the way."""
    if least > USEFUL:
        return []
    return [
        f"The best possible mechanism would do ({least:.3g}): it is the {need.bits} bits, or what "
        "can be proven of codes, that stand in the way; try --bits 16."
    ]


def _help(need: Need, excess: float) -> str:
    """What would bring the share of a run down to USEFUL, one thing at a time.

    The share grows with the root of the dimension and with the noise multiplier. With k times as
    many clients, in all and in a round, it falls with k where noise is shared, else with its root.
    """
    more = excess if need.trust == "aggregate" else excess**2
    ways = [
        f"at most {max(int(need.dimension / excess**2), 1):,} parameters",
        f"about {math.ceil(more * need.population):,} clients and "
        f"{math.floor(more * need.cohort):,} a round",
    ]
    multiplier = gaussian_multiplier(need.epsilon, need.delta, 1)
    if math.isfinite(multiplier):
        low, high = math.log(need.epsilon), math.log(1e9)
        for _ in range(60):
            middle = (low + high) / 2
            small = gaussian_multiplier(math.exp(middle), need.delta, 1) <= multiplier / excess
            low, high = (low, middle) if small else (middle, high)
        ways.append(f"an epsilon of about {math.exp(high):.3g}")
    return f"It would take {', or '.join(ways)}."
