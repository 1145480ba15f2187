"""A privacy claim: how updates are clipped, noised and sampled, and the epsilon that is stated.

Derivations: `papers/docs/claims.md`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Literal

from msgspec import Meta, Struct

import randquant as rq
from randquant_papers.claims.lower_ends import gaussian_lower, sampled_lower

Neighboring = Literal["replace_one", "zero_out"]
NEIGHBORINGS: tuple[Neighboring, ...] = ("replace_one", "zero_out")

Size = Annotated[float, Meta(ge=1e-30, le=1e30)]
Deviation = Annotated[float, Meta(ge=0, le=1e30)]
Count = Annotated[int, Meta(ge=1, le=2**53)]

UNIT = 2.0**-53
"""Unit roundoff of a float."""


class PrivacyClaim(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a mechanism with Gaussian noise, and the figure that is stated for it.

    Attributes:
        clip_norm: L2 threshold of what one client (or one example) adds to a sum; None if it is not
            clipped.
        clip: threshold of each coordinate instead, with `dimension`.
        noise_multiplier: deviation of the noise over clip_norm.
        sigma: deviation of the noise itself, where it is added: to a sum, or to one update.
        sensitivity: what the noise was scaled to, if that is not clip_norm.
        epsilon: stated, in nats.
        delta: of the stated figure.
        rounds: of the run; steps, for examples.
        sampling: none (all take part in all rounds), poisson or fixed.
        rate: probability of taking part in a round, for poisson and fixed.
        dimension: coordinates of an update.
        unit: what is clipped: a client's update, or one example's gradient.
        trust: who adds the noise: central (a trusted server, to a sum) or local (each client).
    """

    clip_norm: Size | None = None
    clip: Size | None = None
    noise_multiplier: Deviation | None = None
    sigma: Deviation | None = None
    sensitivity: Size | None = None
    epsilon: Deviation | None = None
    delta: Annotated[float, Meta(ge=0, lt=1)] = 1e-5
    rounds: Count = 1
    sampling: Literal["none", "poisson", "fixed"] = "none"
    rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    dimension: Count | None = None
    unit: Literal["client", "example"] = "client"
    trust: Literal["central", "local"] = "central"

    def __post_init__(self) -> None:
        relative = self.noise_multiplier is not None
        for holds, expected in (
            ((self.sigma is None) == relative, "sigma or noise_multiplier, and not both"),
            (self.clip_norm is None or self.clip is None, "clip_norm or clip, and not both"),
            (self.clip is None or not relative, "sigma with clip, as a multiplier is of clip_norm"),
            (self.clip is None or self.dimension, "dimension with clip, for the whole norm"),
            ((self.sampling == "none") == (self.rate is None), "rate with sampling, or neither"),
        ):
            if not holds:
                raise ValueError(f"Expected {expected}: see papers/docs/check.md.")

    @property
    def norm(self) -> float:
        """Largest L2 norm of what one client or example adds; infinite if it is not clipped."""
        if self.clip is not None:
            # docs/claims.md, Proposition 1: two roundings.
            return self.clip * math.sqrt(self.dimension or 1) * (1 + 4 * UNIT)
        # A multiplier is relative to the threshold, whatever that is.
        return self.clip_norm or (math.inf if self.noise_multiplier is None else 1.0)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise."""
        return self.sigma if self.sigma is not None else (self.noise_multiplier or 0) * self.norm

    def apart(self, neighboring: Neighboring) -> float:
        """Largest distance of neighbouring sums, or updates, in L2."""
        # docs/claims.md, Proposition 1.
        return 2 * self.norm if neighboring == "replace_one" else self.norm

    def guarantee(
        self, neighboring: Neighboring, *, distance: float | None = None, once: bool = False,
        seen: bool = False,
    ) -> rq.Guarantee:  # fmt: skip
        """What holds for one client or example in the run.

        Args:
            neighboring: which worlds are told apart.
            distance: of neighbours, of either kind, instead of what the clipping ensures.
            once: count one round only, in which it takes part.
            seen: somebody sees in which rounds it takes part; it may do so in all of them.
        """
        delta, rounds = self.delta, 1 if once else self.rounds
        if self.deviation == 0 or (distance is None and math.isinf(self.norm)):
            return rq.Guarantee(
                math.inf, delta, neighboring, self.trust, math.inf, 0, unit=self.unit
            )
        hidden = self.rate is not None and self.trust == "central" and not seen

        def gaussian(worlds: Neighboring, rounds: int) -> rq.GaussianRelease:
            apart = self.apart(worlds) if distance is None else distance
            # Two roundings and a quotient: less noise is safe.
            multiplier = self.deviation / apart * (1 - 8 * UNIT)
            return rq.GaussianRelease(multiplier, self.dimension or 1, rounds, self.trust, worlds)

        def release(worlds: Neighboring) -> rq.GaussianRelease | rq.Sampled:
            # docs/claims.md, Proposition 2.
            if self.rate is None or self.sampling == "none" or not hidden:
                return gaussian(worlds, rounds)
            # Absence is the other kind of neighbour, unless zeros take an absent client's place.
            other: Neighboring = "zero_out" if worlds == "replace_one" else "replace_one"
            needed = (self.sampling == "fixed") == (worlds == "zero_out")
            absent = gaussian(other, 1) if needed else None
            one = gaussian(worlds, 1)
            return rq.Sampled(one, self.rate, rounds, self.sampling, absent=absent)

        # docs/claims.md, Proposition 2: all distances are the same.
        alike = distance is not None and hidden
        worlds: Neighboring = "replace_one" if alike and self.sampling == "fixed" else neighboring
        guarantee = rq.account([release(worlds)], delta)
        return dataclasses.replace(guarantee, neighboring=neighboring, unit=self.unit)

    def lower_end(
        self, neighboring: Neighboring, *, distance: float | None = None, once: bool = False,
        seen: bool = False,
    ) -> float:  # fmt: skip
        """Return a proven lower end of epsilon: what `guarantee` bounds from above is no less.

        Args:
            neighboring, distance, once, seen: as for `guarantee`.
        """
        delta, rounds = self.delta, 1 if once else self.rounds
        if self.deviation == 0 or (distance is None and math.isinf(self.norm)):
            return math.inf
        if delta == 0:
            return math.inf  # normal laws have unbounded ratios
        # Two roundings and a quotient: with more noise less is lost.
        assumed = self.apart(neighboring) if distance is None else distance
        apart = assumed / self.deviation * (1 - 8 * UNIT)
        if self.rate is None or self.trust != "central" or seen:
            if self.rate is not None and not once:
                # docs/claims.md, Proposition 4: in half of all runs it takes part at least so
                # often.
                rounds = math.floor(rounds * self.rate * (1 - 4 * UNIT))
                delta *= 2
            if not rounds or delta >= 1:
                return 0.0
            return gaussian_lower(apart * math.sqrt(rounds) * (1 - 4 * UNIT), delta)
        # docs/claims.md, Proposition 3: the means of an outcome, relative to absence.
        places = [(apart, 0.0)]
        if distance is None and neighboring == "zero_out" and self.sampling == "fixed":
            places.append((2 * apart, apart))
        if distance is None and neighboring == "replace_one" and self.sampling == "poisson":
            places = [(apart / 2, -apart / 2)]
        return max(sampled_lower(each, self.rate, rounds, delta) for each in places)
