"""What a stated epsilon is worth: the guarantee as configured, and which assumption would save it.

Derivations: `papers/docs/claims.md`.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

import randquant as rq
from randquant.privacy import round_down, round_up
from randquant_papers.claims.claim import NEIGHBORINGS, Neighboring, PrivacyClaim
from randquant_papers.claims.configurations import read

Verdict = Literal["true", "false", "not proven"]
"""Of a stated epsilon: proven, refuted, or between the two bounds that are known."""

CLOSE = 1e-3
"""Relative difference at which a deviation is taken to come from the classical formula."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The guarantee of a configuration if some assumptions hold.

    Attributes:
        assumptions: what is assumed beyond the configuration; empty for the configuration itself.
        guarantees: the proven guarantee for replace_one and zero_out neighbours.
        lower_ends: epsilons below which no true figure lies, for the same neighbours.
    """

    assumptions: tuple[str, ...]
    guarantees: tuple[rq.Guarantee, ...]
    lower_ends: tuple[float, ...]

    def of(self, neighboring: Neighboring) -> rq.Guarantee:
        """The guarantee for one kind of neighbours."""
        return self.guarantees[NEIGHBORINGS.index(neighboring)]

    def verdicts(self, epsilon: float) -> dict[Neighboring, Verdict]:
        """Whether a stated epsilon is true under these assumptions, by neighbours."""
        return {
            each.neighboring: "true" if each.epsilon <= epsilon
            else "false" if lower > epsilon else "not proven"
            for each, lower in zip(self.guarantees, self.lower_ends, strict=True)
        }  # fmt: skip


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
    def guarantees(self) -> tuple[rq.Guarantee, ...]:
        """What holds as configured: for replace_one, and for zero_out neighbours."""
        return self.readings[0].guarantees

    @property
    def verdicts(self) -> dict[Neighboring, Verdict]:
        """Whether the stated epsilon is true as configured, by neighbours; empty if none is."""
        stated = self.claim.epsilon
        return {} if stated is None else self.readings[0].verdicts(stated)

    @property
    def saving(self) -> tuple[tuple[str, ...], ...]:
        """The least sets of assumptions under which the stated epsilon is true.

        Each may hold the neighbours it is true for, last; empty where none makes it true.
        """
        least: dict[tuple[str, ...], list[str]] = {}
        for reading in self.readings if self.claim.epsilon is not None else ():
            verdicts = reading.verdicts(self.claim.epsilon or 0.0)
            true = [each for each, verdict in verdicts.items() if verdict == "true"]
            if true and not any(set(kept) <= set(reading.assumptions) for kept in least):
                least[reading.assumptions] = true
        return tuple(
            (*assumed, *(f"neighbours are {each} only" for each in true * (len(true) == 1)))
            for assumed, true in least.items()
        )

    def lines(self) -> list[str]:
        """What is printed: the figures of all readings, the verdict and the notes."""
        claim = self.claim
        times = "1 round" if claim.rounds == 1 else f"{claim.rounds} rounds"
        lines = [f"one {claim.unit}, {times}, delta = {claim.delta:g}, {claim.trust} noise:"]
        for reading in self.readings:
            assumed = " and ".join(reading.assumptions)
            figures = ", ".join(
                f"{each.neighboring} {_figure(each, lower)}"
                for each, lower in zip(reading.guarantees, reading.lower_ends, strict=True)
            )
            lines.append(f"  {f'if {assumed}' if assumed else 'as configured'}: {figures}")
        return [*lines, *self._verdict(), *(f"note: {note}" for note in self.notes)]

    def _verdict(self) -> Iterator[str]:
        stated = self.claim.epsilon  # as whoever stated it has rounded it
        for verdict in sorted(set(self.verdicts.values())):
            whom = " and ".join(each for each, its in self.verdicts.items() if its == verdict)
            yield f"stated epsilon {stated:g} is {verdict} for {whom} neighbours"
        if self.verdicts.get("replace_one", "true") == "true":
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
        configuration: a file to read the settings from, of Flower, NVFlare, pfl or Opacus: JSON, or
            Python that calls one of their classes; what is given here wins.
        stated: the attributes of `PrivacyClaim` that are known, by name, such as clip_norm, sigma
            or noise_multiplier, epsilon, rounds, sampling and rate; None is for: not given.

    Returns:
        A ClaimCheck, which prints.

    Guarantees:
        With Gaussian noise of that deviation every figure is a proven upper bound for the whole
        run, and every lower end a proven lower one, both under the assumptions that it is printed
        with.

    Raises:
        ValueError: a value is out of bounds, missing or of the wrong kind, or values of a
            configuration contradict each other.
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
    fields, notes = ({}, ()) if configuration is None else read(Path(configuration), given)
    try:
        claim = msgspec.convert({**fields, **given}, PrivacyClaim, strict=False)
    except msgspec.ValidationError as error:
        reason = re.sub(r"^Expected (.*) - at `\$\.(\w+)`", r"Expected \2 to be \1", str(error))
        reason = re.sub(r"^Object", "Expected attributes of PrivacyClaim, it", reason)
        raise ValueError(f"{reason.removesuffix('.')}.") from None
    return ClaimCheck(claim, tuple(_readings(claim)), (*notes, *_notes(claim)))


def _readings(claim: PrivacyClaim) -> Iterator[Reading]:
    """The configuration under every set of assumptions that changes its figures."""
    assumptions: list[tuple[str, dict[str, Any]]] = []
    if claim.sensitivity is not None and claim.sensitivity < claim.apart("replace_one"):
        text = f"neighbours are at most {claim.sensitivity:g} apart"
        assumptions.append((text, {"distance": claim.sensitivity}))
    if claim.rounds > 1:
        assumptions.append(("only one round counts", {"once": True}))
    if claim.rate is not None and claim.trust == "central":
        assumptions.append(("somebody sees who takes part", {"seen": True}))
    for count in range(len(assumptions) + 1):
        for chosen in itertools.combinations(assumptions, count):
            settings = {key: value for _, each in chosen for key, value in each.items()}
            guarantees = tuple(claim.guarantee(each, **settings) for each in NEIGHBORINGS)
            lower_ends = tuple(claim.lower_end(each, **settings) for each in NEIGHBORINGS)
            yield Reading(tuple(text for text, _ in chosen), guarantees, lower_ends)


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
    if sensitivity is not None and stated and stated >= 1 and claim.delta > 0:
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


def _figure(guarantee: rq.Guarantee, low: float) -> str:
    if math.isinf(guarantee.epsilon):
        return "no guarantee"
    least = f" (>= {round_down(low, 4)})" if 0 < low < 0.999 * guarantee.epsilon else ""
    return f"epsilon <= {round_up(guarantee.epsilon, 4)}{least}"
