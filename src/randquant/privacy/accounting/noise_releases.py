"""Releases of integer and of Laplace noise."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from scipy.special import ndtri_exp

from randquant._internal import validate
from randquant.privacy.accounting.gaussian import SPECIAL, step_square
from randquant.privacy.accounting.release import Rounds, check_cohort, check_size, hiding
from randquant.privacy.certificates.noise import Noise, shift_divergence
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust, Unit, rounded_up

# Releases of sums of integer updates with integer noise. Derivation: `docs/theory/additive.md`.


@dataclass(frozen=True, slots=True)
class NoiseRelease(Rounds):
    """Sums over a cohort of integer updates with integer noise; the server sees the sums only.

    Attributes:
        noise: each client's noise on each coordinate.
        cohort: fewest clients whose noise is in a sum.
        squared_distance: largest squared L2 distance between two updates of one client.
        dimension: coordinates of a sum.
        rounds: rounds that the client takes part in.
        neighboring: the neighbouring relation of that distance.
        trust: `aggregate`; or, of noise that relies on nobody else's, `local` if the server sees
            each client's noisy numbers, `central` if it adds the noise itself.
        one_example: whether neighbours differ in one example of a client.

    Do not count clients that collude with the server in `cohort`: they know their own noise.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    noise: Noise
    cohort: int
    squared_distance: int
    dimension: int
    rounds: int
    neighboring: Neighboring = "replace_one"
    trust: Trust = "aggregate"
    one_example: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.choice("trust", self.trust, ("aggregate", "local", "central"))
        check_cohort(self.cohort, "aggregate" if self.trust == "aggregate" else "local")
        validate.whole("squared_distance", self.squared_distance, low=0)
        check_size(self.dimension, self.rounds)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)
        validate.flag("one_example", self.one_example)

    @property
    def unit(self) -> Unit:
        """An example if `one_example`."""
        return "example" if self.one_example else "client"

    @property
    def distance(self) -> float:
        """Sum of the total variation distances of all coordinates and rounds."""
        # theory/accounting.md, Proposition 4: distances of independent draws add up.
        return rounded_up(self.releases * self.noise.distance(self.cohort))

    def renyi(self, order: float) -> float:
        """Sum of the divergences of all rounds (`shift_divergence`)."""
        order = validate.renyi_order(order)
        if self.rounds == 0:  # also at order infinity, where shifts cost infinitely much
            return 0.0
        curvature = _curvature(self.noise, self.cohort)
        spread = self.noise.spread(self.cohort)
        # theory/additive.md, Proposition 1; rounds add up by theory/accounting.md, Proposition 1.
        per_round = shift_divergence(curvature, spread, self.squared_distance, order)
        return rounded_up(self.rounds * per_round)

    @property
    def squared_mu(self) -> float | None:
        """Squared distance of all rounds times that of a unit step, `step_square`."""
        # theory/gaussian.md, Proposition 4; `rounded_up` pays for both products.
        step = step_square(_curvature(self.noise, self.cohort))
        if math.isinf(step):  # a law too narrow to compare
            return None
        return rounded_up(self.rounds * self.squared_distance * step)

    def under(self, trust: Trust) -> NoiseRelease:
        """A client's own numbers are a sum over one client, with its own noise."""
        return replace(self, trust=trust, cohort=hiding(trust, self.cohort))


@functools.lru_cache(maxsize=64)
def _curvature(noise: Noise, cohort: int) -> float:
    return noise.curvature(cohort)


# Releases of sums of integer vectors with discrete Laplace noise.
#
# Derivations: `docs/theory/statistics.md`.


@dataclass(frozen=True, slots=True)
class LaplaceRelease(Rounds):
    """Sums of integer vectors with discrete Laplace noise, pure in every round.

    Attributes:
        scale: of the noise in a sum, in steps: P(k) is proportional to exp(-|k| / scale); 0 where
            none is known.
        l1_distance: largest L1 distance between two vectors of one client, in steps.
        drawn: upper bound of the total variation distance between the noise of one coordinate as it
            is drawn and that law.
        cohort: fewest clients whose shares add up to the noise (`aggregate` only).
        dimension: coordinates of a sum.
        rounds: rounds that the client takes part in.
        neighboring: the neighbouring relation of that distance.
        trust, one_example: as for `NoiseRelease`.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Dwork et al. 2006; Ghosh, Roughgarden and Sundararajan 2009.

    Example:
        >>> release = LaplaceRelease(10.0, 5, 0.0, cohort=1, dimension=3, rounds=1)
        >>> round(release.renyi(math.inf), 9), round(release.squared_mu**0.5, 3)
        (0.5, 0.624)
    """

    scale: float
    l1_distance: int
    drawn: float
    cohort: int
    dimension: int
    rounds: int
    neighboring: Neighboring = "replace_one"
    trust: Trust = "aggregate"
    one_example: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.real("scale", self.scale, low=0)
        validate.whole("l1_distance", self.l1_distance, low=0)
        validate.real("drawn", self.drawn, low=0, high=1)
        validate.choice("trust", self.trust, ("aggregate", "local", "central"))
        check_cohort(self.cohort, "aggregate" if self.trust == "aggregate" else "local")
        check_size(self.dimension, self.rounds)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)
        validate.flag("one_example", self.one_example)

    @property
    def unit(self) -> Unit:
        """An example if `one_example`."""
        return "example" if self.one_example else "client"

    def under(self, trust: Trust) -> LaplaceRelease:
        """The same; of one client's share of the noise alone nothing is claimed."""
        # A share is mostly zero, so that neighbours' ratios grow with the clients it is shared by.
        alone = hiding(trust, self.cohort) < self.cohort
        return replace(self, trust=trust, **({"cohort": 1, "scale": 0.0} if alone else {}))

    @property
    def epsilon(self) -> float:
        """Pure epsilon of one round, rounded up."""
        # theory/statistics.md, Proposition 2.
        return rounded_up(self.l1_distance / self.scale) if self.scale else math.inf

    @property
    def distance(self) -> float:
        """Sum of the total variation distances of all coordinates and rounds."""
        # theory/accounting.md, Proposition 4: distances of independent draws add up.
        return rounded_up(self.releases * self.drawn)

    def renyi(self, order: float) -> float:
        """At most epsilon, and at most order · epsilon^2 / 2, in each round."""
        order = validate.renyi_order(order)
        if self.rounds == 0:
            return 0.0
        # Bun and Steinke 2016, Proposition 3.3.
        least = self.epsilon if math.isinf(order) else min(1.0, order * self.epsilon / 2)
        return rounded_up(self.rounds * (least if math.isinf(order) else self.epsilon * least))

    @property
    def squared_mu(self) -> float:
        """Of Gaussian noise that hides no more than randomised response of this epsilon."""
        if self.rounds == 0:
            return 0.0
        # theory/statistics.md, Proposition 3; the allowances pay for the inverse and its argument.
        log = -self.epsilon - math.log1p(math.exp(-self.epsilon))
        mu = -2 * float(ndtri_exp(log)) * (1 + 16 * SPECIAL) + 16 * SPECIAL
        return rounded_up(self.rounds * mu * mu)
