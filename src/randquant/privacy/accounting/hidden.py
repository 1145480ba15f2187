"""How hidden cohorts are drawn, and what is refused of them.

When participation is hidden: `docs/theory/sampling.md`, Propositions 1 and 18.
"""

from __future__ import annotations

import math
from typing import Literal

from randquant.privacy.accounting.release import Release, check_release
from randquant.privacy.guarantee import rounded_up

Draw = Literal["fixed", "poisson"]
"""How cohorts are drawn. `fixed`: of one size, every cohort equally likely. `poisson`: each client
takes part in each round independently."""

DRAWS: tuple[Draw, ...] = ("fixed", "poisson")


def rate_of(cohort: int, population: int) -> float:
    """Return the probability of taking part in a round, rounded up.

    Example:
        >>> rate_of(200, 200)
        1.0
    """
    # theory/sampling.md, Proposition 1: a rate that is rounded up covers the true one.
    return 1.0 if cohort == population else math.nextafter(cohort / population, 1.0)


def distance_of(release: Release | None) -> float | None:
    """How far apart Gaussian noise keeps neighbours that hides no more; None if unknown.

    Args:
        release: of one round.

    Returns:
        A distance in standard deviations, rounded up.
    """
    square = None if release is None else release.squared_mu
    # theory/rounding.md, Proposition 8.
    return rounded_up(math.sqrt(square)) if square else None


def check_one_round(name: str, release: Release) -> None:
    """Refuse what is sampled already, or of many rounds."""
    check_release(name, release)
    if release.sampled:
        raise ValueError("Expected a release that is not sampled yet: multiply the rates instead.")
    if release.rounds != 1:
        raise ValueError(
            f"Expected a release of one round, got rounds={release.rounds}: build it with "
            "rounds=1, each round is sampled by itself."
        )
    # theory/sampling.md, Proposition 1: absence is far from both neighbours.
    if release.unit != "client":
        raise ValueError(
            f"Expected {name} to be of whole clients, got one of single examples: a client that is "
            "absent differs from one that is there by all its examples, so nothing is amplified."
        )


def check_unseen(release: Release, draw: Draw, hidden: bool, models: bool) -> None:
    """Refuse rounds in which the adversary sees who takes part."""
    # theory/sampling.md, Proposition 1: an adversary who knows the others counts them.
    if draw == "fixed" and hidden:
        raise ValueError(
            "Expected scheme='poisson' for hidden participation, got 'fixed': whoever knows the "
            "other members of a cohort of a known size knows whether a client is in it."
        )
    if release.trust == "central" or hidden:
        return
    # theory/sampling.md, Proposition 18: without the client its noise is missing from the sum.
    if models and draw != "fixed":
        raise ValueError(
            f"Expected hidden participation (hidden=True) where clients add the noise, got a "
            f"release under {release.trust} trust: the noise of absent clients would be missing; "
            "let every client send, or draw cohorts of a fixed size."
        )
    # theory/sampling.md, Proposition 1: the participation must be unknown to whoever sees the
    # release.
    if not models:
        raise ValueError(
            f"Expected central trust or hidden participation, got {release.trust} trust: a server "
            "that sees who takes part gains nothing from sampling; account for the rounds that "
            "the client takes part in, or let every client send (hidden=True, poisson)."
        )


def check_absent(absent: Release | None, release: Release, scheme: Draw) -> None:
    """Refuse a release that is not between a client and its absence."""
    zeroed = release.neighboring == "zero_out"
    if absent is None:
        if zeroed and scheme == "fixed":
            raise ValueError(
                "Expected absent for a zero_out release and cohorts of a fixed size, got none: "
                "where a client is left out another takes its place, so give the same release for "
                "replace_one neighbours."
            )
        return
    check_one_round("absent", absent)
    fits = zeroed == (scheme == "fixed") and absent.neighboring != release.neighboring
    if not fits or absent.trust != release.trust:
        raise ValueError(
            "Expected absent under the release's own trust, zero_out for a replace_one release "
            "that is sampled by poisson, or replace_one for a zero_out release of a fixed size; "
            f"got {absent.neighboring} under {absent.trust} trust for a {release.neighboring} "
            f"release under {release.trust} trust that is sampled by {scheme}."
        )
