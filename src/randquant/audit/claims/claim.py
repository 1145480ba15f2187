"""A privacy claim: how updates are clipped, noised and sampled, and the epsilon that is stated.

Derivations: `docs/theory/claims.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from randquant._internal import declared, validate
from randquant._internal.declared import Count, Data, Mechanism, Privacy, Server
from randquant.privacy.accounting.release import Release
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.accounting.sampled import Sampled
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import Neighboring, Unit

Sampling = Literal["none", "poisson", "fixed"]
"""Who takes part in a round: everybody, each independently, or a cohort of a fixed size."""

Noised = Literal["central", "local"]
"""Who adds the noise: a trusted server to a sum, or each client to its own update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyClaim:
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

    Raises:
        ValueError, TypeError: a value is out of bounds or of the wrong kind, or they do not go
            together.
    """

    clip_norm: Mechanism[float | None] = None
    clip: Mechanism[float | None] = None
    noise_multiplier: Mechanism[float | None] = None
    sigma: Mechanism[float | None] = None
    sensitivity: Mechanism[float | None] = None
    epsilon: Privacy[float | None] = None
    delta: Privacy[float] = 1e-5
    rounds: Server[Count] = 1
    sampling: Server[Sampling] = "none"
    rate: Server[float | None] = None
    dimension: Data[Count | None] = None
    unit: Privacy[Unit] = "client"
    trust: Privacy[Noised] = "central"

    def __post_init__(self) -> None:
        declared.checked(self)
        for name in ("clip_norm", "clip", "sensitivity"):
            if getattr(self, name) is not None:
                validate.real(name, getattr(self, name), low=1e-30, high=1e30)
        for name in ("noise_multiplier", "sigma"):
            if getattr(self, name) is not None:
                validate.real(name, getattr(self, name), low=0, high=1e30)
        if self.epsilon is not None:
            validate.real("epsilon", self.epsilon, low=0)
        validate.real("delta", self.delta, low=0, below=1)
        if (self.sigma is None) == (self.noise_multiplier is None):
            got = "neither" if self.sigma is None else "both"
            raise ValueError(
                f"Expected sigma or noise_multiplier, got {got}: the noise's deviation, or that "
                "over clip_norm."
            )
        if self.clip_norm is not None and self.clip is not None:
            raise ValueError(
                "Expected clip_norm or clip, got both: a whole update's norm is bounded, or each "
                "coordinate."
            )
        if self.clip is not None and self.dimension is None:
            raise ValueError(
                "Expected dimension with clip, got none: the norm of an update of d coordinates, "
                "each clipped by itself, is up to sqrt(d) times clip."
            )
        if (self.sampling == "none") != (self.rate is None):
            raise ValueError(
                f"Expected rate with sampling poisson or fixed, got sampling {self.sampling} and "
                f"rate {self.rate}: rate is the probability of taking part in a round."
            )
        if self.rate is not None:
            validate.real("rate", self.rate, above=0, high=1, why="it is a probability")
        if self.clip is not None and self.noise_multiplier is not None:
            raise ValueError(
                "Expected sigma with clip, got noise_multiplier: it is relative to clip_norm."
            )

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise."""
        if self.sigma is not None:
            return self.sigma
        return (self.noise_multiplier or 0.0) * self.norm

    @property
    def norm(self) -> float:
        """Largest L2 norm of what one client or example adds; infinite if it is not clipped."""
        if self.clip_norm is not None:
            return self.clip_norm
        if self.clip is not None and self.dimension is not None:
            # theory/claims.md, Proposition 1: two roundings.
            return self.clip * math.sqrt(self.dimension) * (1 + 4 * UNIT)
        # A multiplier is relative to the threshold, whatever that is.
        return math.inf if self.noise_multiplier is None else 1.0

    def apart(self, neighboring: Neighboring) -> float:
        """Largest distance of neighbouring sums, or updates, in L2.

        Example:
            >>> claim = PrivacyClaim(clip_norm=1.0, sigma=2.0)
            >>> claim.apart("zero_out"), claim.apart("replace_one")
            (1.0, 2.0)
        """
        # theory/claims.md, Proposition 1.
        return 2 * self.norm if neighboring == "replace_one" else self.norm


def release_of(
    claim: PrivacyClaim, neighboring: Neighboring, *, distance: float | None = None,
    rounds: int | None = None, seen: bool = False,
) -> Release | None:  # fmt: skip
    """The release of one client or example in a whole run; None where nothing is promised.

    Args:
        claim: what is claimed.
        neighboring: which worlds are told apart.
        distance: of neighbours, of either kind, instead of what the clipping ensures.
        rounds: instead of the run's.
        seen: whether somebody sees in which rounds it takes part; it may do so in all of them.

    Guarantees:
        With real-valued noise its bounds hold for whoever sees what is published, and with `seen`
        or local noise for whoever sees each round's members too.
    """
    rounds = claim.rounds if rounds is None else rounds

    def one(worlds: Neighboring, rounds: int) -> GaussianRelease | None:
        apart = claim.apart(worlds) if distance is None else distance
        if math.isinf(apart) or claim.deviation == 0:
            return None
        # Two roundings and a quotient: less noise is the safe side.
        multiplier = claim.deviation / apart * (1 - 8 * UNIT)
        return GaussianRelease(multiplier, claim.dimension or 1, rounds, claim.trust, worlds)

    single = one(neighboring, 1)
    if single is None:
        return None
    if claim.rate is None or seen or claim.trust == "local":
        # theory/claims.md, Proposition 2.
        return one(neighboring, rounds)
    other: Neighboring = "zero_out" if neighboring == "replace_one" else "replace_one"
    needed = (claim.sampling == "fixed") == (neighboring == "zero_out")
    absent = one(other, 1) if needed else None
    scheme = "fixed" if claim.sampling == "fixed" else "poisson"
    return Sampled(single, claim.rate, rounds, scheme, absent=absent)
