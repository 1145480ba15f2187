"""What a stated epsilon is worth: the guarantee as configured, and which assumption would save it.

Derivations: `docs/theory/claims.md`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from randquant._internal import validate
from randquant._internal.rounding import round_down, round_up
from randquant.audit.claims.claim import PrivacyClaim, release_of
from randquant.audit.claims.configurations import read
from randquant.privacy.accounting.accountant import account
from randquant.privacy.accounting.attacks import DrawnRound
from randquant.privacy.accounting.composition.rule import reached_epsilon
from randquant.privacy.accounting.gaussian import gaussian_epsilon_below
from randquant.privacy.accounting.rounds import NormalRound
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Guarantee, Neighboring

Verdict = Literal["true", "false", "not proven"]
"""Of a stated epsilon: proven, refuted, or between the two bounds that are known."""

CLOSE = 1e-3
"""Relative difference at which a deviation is taken to come from the classical formula."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The guarantee of a configuration if some assumptions hold.

    Attributes:
        assumptions: what is assumed beyond the configuration; empty for the configuration itself.
        guarantees: the proven guarantee for each kind of neighbours, with `lower`, below which
            no true figure lies.
    """

    assumptions: tuple[str, ...]
    guarantees: tuple[Guarantee, ...]

    def of(self, neighboring: Neighboring) -> Guarantee:
        """The guarantee for one kind of neighbours."""
        return self.guarantees[NEIGHBORINGS.index(neighboring)]

    def verdict(self, epsilon: float, neighboring: Neighboring) -> Verdict:
        """Whether a stated epsilon is true under these assumptions."""
        guarantee = self.of(neighboring)
        if guarantee.epsilon <= epsilon:
            return "true"
        return "false" if guarantee.lower > epsilon else "not proven"


@dataclass(frozen=True, slots=True)
class ClaimCheck:
    """A claim, and what holds.

    Attributes:
        claim: what was checked.
        readings: the configuration as it is, then under each assumption that changes the figure.
        notes: what the figures rest on, and what the configuration leaves open.
    """

    claim: PrivacyClaim
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """What holds as configured: for replace_one, and for zero_out neighbours."""
        return self.readings[0].guarantees

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Whether the stated epsilon is true as configured, by neighbours; empty if none is."""
        if (stated := self.claim.epsilon) is None:
            return {}
        return {each: self.readings[0].verdict(stated, each) for each in NEIGHBORINGS}

    @property
    def saving(self) -> tuple[tuple[str, ...], ...]:
        """The least sets of assumptions under which the stated epsilon is true.

        Each may hold the neighbours it is true for, last; empty where none makes it true.
        """
        savings: list[tuple[tuple[str, ...], list[Neighboring]]] = []
        if (stated := self.claim.epsilon) is None:
            return ()
        for reading in self.readings:
            true: list[Neighboring] = [
                each for each in NEIGHBORINGS if reading.verdict(stated, each) == "true"
            ]
            if true and not any(set(kept) <= set(reading.assumptions) for kept, _ in savings):
                savings.append((reading.assumptions, true))
        return tuple(
            (*assumed, *(f"neighbours are {each} only" for each in true * (len(true) == 1)))
            for assumed, true in savings
        )

    def lines(self) -> list[str]:
        """What is printed: the figures of all readings, the verdict and the notes."""
        claim = self.claim
        times = "1 round" if claim.rounds == 1 else f"{claim.rounds} rounds"
        lines = [f"one {claim.unit}, {times}, delta = {claim.delta:g}, {claim.trust} noise:"]
        for reading in self.readings:
            assumed = "as configured" if not reading.assumptions else "if " + " and ".join(
                reading.assumptions
            )  # fmt: skip
            figures = ", ".join(f"{g.neighboring} {_figure(g)}" for g in reading.guarantees)
            lines.append(f"  {assumed}: {figures}")
        return [*lines, *self._verdict(), *(f"note: {note}" for note in self.notes)]

    def _verdict(self) -> Iterator[str]:
        stated = self.claim.epsilon
        if stated is None:
            return
        for verdict in sorted(set(self.verdicts.values())):
            whom = " and ".join(each for each, its in self.verdicts.items() if its == verdict)
            yield f"stated epsilon {stated:g} is {verdict} for {whom} neighbours"
        if self.verdicts["replace_one"] == "true":
            return
        if not self.saving:
            yield "  no assumption above makes it true"
        for assumed in self.saving:
            yield "  it would be true if " + " and ".join(assumed)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def check(configuration: str | Path | None = None, **stated: Any) -> ClaimCheck:
    """Check what a stated privacy figure is worth.

    Args:
        configuration: a file to read the settings from, of Flower, NVFlare, pfl or Opacus: TOML,
            JSON, or Python that calls one of their classes; what is given here wins.
        stated: the attributes of `PrivacyClaim` that are known, by name, such as clip_norm, sigma
            or noise_multiplier, epsilon, rounds, sampling and rate; None is for: not given.

    Returns:
        A ClaimCheck, which prints.

    Guarantees:
        With Gaussian noise of that deviation every figure is a proven upper bound for the whole
        run, and `lower` of its guarantees a proven lower one, both under the assumptions that it
        is printed with.

    Raises:
        ValueError, TypeError: a value is out of bounds, missing or of the wrong kind, or values of
            a configuration contradict each other.
        OSError: the configuration cannot be read.

    References:
        Balle and Wang 2018, Theorem 8 (the exact figure); Dwork and Roth 2014, Theorem A.1 (the
        classical formula, for epsilon < 1).

    Example:
        >>> checked = check(clip_norm=1.0, sensitivity=1e-4, sigma=4.845e-5, epsilon=10)
        >>> checked.verdicts
        {'replace_one': 'false', 'zero_out': 'false'}
        >>> checked.readings[0].of("zero_out").epsilon > 2e8
        True
    """
    given = {name: value for name, value in stated.items() if value is not None}
    if unknown := given.keys() - {field.name for field in dataclasses.fields(PrivacyClaim)}:
        raise TypeError(f"Expected attributes of PrivacyClaim, got {', '.join(sorted(unknown))}.")
    written, notes = {}, ()
    if configuration is not None:
        written, notes = read(validate.path("configuration", configuration), given)
    claim = PrivacyClaim(**{**written, **given})
    return ClaimCheck(claim, tuple(_readings(claim)), (*notes, *_notes(claim)))


def _readings(claim: PrivacyClaim) -> Iterator[Reading]:
    """The configuration under every set of assumptions that changes its figures."""
    assumptions: list[tuple[str, dict[str, Any]]] = []
    if claim.sensitivity is not None and claim.sensitivity < claim.apart("replace_one"):
        text = f"neighbours are at most {claim.sensitivity:g} apart"
        assumptions.append((text, {"distance": claim.sensitivity}))
    if claim.rounds > 1:
        assumptions.append(("only one round counts", {"rounds": 1}))
    if claim.rate is not None and claim.trust == "central":
        assumptions.append(("somebody sees who takes part", {"seen": True}))
    for count in range(len(assumptions) + 1):
        for chosen in itertools.combinations(assumptions, count):
            settings = {key: value for _, each in chosen for key, value in each.items()}
            guarantees = tuple(_guarantee(claim, each, **settings) for each in NEIGHBORINGS)
            yield Reading(tuple(text for text, _ in chosen), guarantees)


def _guarantee(
    claim: PrivacyClaim, neighboring: Neighboring, *, distance: float | None = None,
    rounds: int | None = None, seen: bool = False,
) -> Guarantee:  # fmt: skip
    release = release_of(claim, neighboring, distance=distance, rounds=rounds, seen=seen)
    if release is None:
        return Guarantee(
            math.inf, claim.delta, neighboring, claim.trust, math.inf, 0, math.inf, unit=claim.unit
        )
    guarantee = account([release], claim.delta, attacked=False)
    apart = claim.apart(neighboring) if distance is None else distance
    # Three roundings: what is nearer shows less.
    apart = apart / claim.deviation * (1 - 8 * UNIT)
    several = claim.rounds if rounds is None else rounds
    if release.sampled:
        pair = _worlds(claim, neighboring, apart, distance is not None)
        lower = _drawn(pair, claim.rate or 1.0, several, claim.delta)
    elif claim.rate is None or rounds is not None:
        lower = gaussian_epsilon_below(apart * math.sqrt(several) * (1 - 4 * UNIT), claim.delta)
    else:
        lower = below_if_seen(apart, claim.rate, several, claim.delta)
    return dataclasses.replace(guarantee, lower=lower, unit=claim.unit)


def _drawn(pair: tuple[float, float], rate: float, rounds: int, delta: float) -> float:
    """Epsilon from below, of rounds with noise of deviation 1 that a client is in at random."""
    if delta == 0:
        return math.inf if pair[0] != pair[1] else 0.0
    # theory/claims.md, Proposition 3.
    attack = DrawnRound(NormalRound(*pair), rate)
    losses = [(loss, rounds) for loss in attack.attained()]
    losses += [(loss, 1) for loss in attack.together(rounds)]
    return max(reached_epsilon(loss, parts, delta) for loss, parts in losses)


def below_if_seen(apart: float, rate: float, rounds: int, delta: float) -> float:
    """Epsilon from below against whoever sees in which rounds the client takes part.

    Example:
        >>> below_if_seen(1.0, 0.5, 100, 1e-5) < gaussian_epsilon_below(50**0.5, 2e-5)
        True
    """
    # theory/claims.md, Proposition 4: in half of all runs it takes part at least so often.
    often = math.floor(rounds * rate * (1 - 4 * UNIT))
    if often == 0 or 2 * delta >= 1:
        return 0.0
    return gaussian_epsilon_below(apart * math.sqrt(often) * (1 - 4 * UNIT), 2 * delta)


def _worlds(
    claim: PrivacyClaim, neighboring: Neighboring, apart: float, assumed: bool
) -> tuple[float, float]:
    """Inputs of neighbours that can occur, in deviations from where the client is absent."""
    # theory/claims.md, Proposition 3: a stand-in is the origin of a cohort of a fixed size.
    zeroed = neighboring == "zero_out"
    if assumed or (claim.sampling == "fixed") != zeroed:
        return apart, 0.0
    return (2 * apart, apart) if zeroed else (apart / 2, -apart / 2)


def _notes(claim: PrivacyClaim) -> Iterator[str]:
    stated, sensitivity = claim.epsilon, claim.sensitivity
    if math.isinf(claim.norm):
        yield "nothing is clipped: no noise hides an update of any length"
    elif sensitivity is not None and sensitivity < claim.norm:
        yield (
            f"an update of norm {claim.norm:g} moves what is published by {claim.norm:g}, not by "
            f"the stated sensitivity of {sensitivity:g}, unless updates are clipped to that (for "
            "replace_one neighbours to half of it)"
        )
    if sensitivity is not None and stated and stated >= 1 and 0 < claim.delta < 1:
        classical = sensitivity * math.sqrt(2 * math.log(1.25 / claim.delta)) / stated
        if abs(claim.deviation - classical) <= CLOSE * classical:
            yield (
                "sigma is sensitivity * sqrt(2 log(1.25/delta)) / epsilon, which is proven for "
                f"epsilon < 1 only, not for {stated:g}"
            )
    if claim.sampling != "none" and claim.trust == "local":
        yield "a server that receives noisy updates sees who takes part: sampling gains nothing"
    if claim.unit == "example":
        yield "it protects one example: a client that holds several is protected less"
    without = (
        "zeros in its place (not removal: in a cohort of fixed size somebody else takes the place)"
        if claim.sampling == "fixed"
        else "the sum without it, over a public number (add or remove one)"
    )
    yield (
        f"noise is taken as real-valued, its deviation as stated; zero_out: {without}; "
        "replace_one: with any other in its place"
    )


def _figure(guarantee: Guarantee) -> str:
    if math.isinf(guarantee.epsilon):
        return "no guarantee"
    low = guarantee.lower
    least = f" (>= {round_down(low, 4)})" if 0 < low < 0.999 * guarantee.epsilon else ""
    return f"epsilon <= {round_up(guarantee.epsilon, 4)}{least}"
