"""Releases of one client's data through the mechanisms, for accounting to compose.

A release bounds the Rényi divergence between the output distributions of two neighbouring inputs,
under one trust. Derivations: `docs/theory/accounting.md`, `vector.md`, `sums.md`,
`additive.md` (integer noise), `statistics.md` (Laplace noise).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, cast

from scipy.special import ndtri_exp

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.accounting.gaussian import (
    SPECIAL_ERROR,
    RoundLoss,
    spared_cost,
    step_square,
    sum_round_loss,
    unit_squared_mu,
)
from randquant.privacy.accounting.release_protocol import (
    Release,
    Rounds,
    check_cohort,
    check_examples,
    check_size,
    check_words,
    hiding,
    update_distance,
)
from randquant.privacy.certificates.coordinate import (
    certify,
    certify_metric,
)
from randquant.privacy.certificates.sum_certificate import certify_sum
from randquant.privacy.certificates.sum_curvature import kappa_sum
from randquant.privacy.certificates.vector import squared_distance
from randquant.privacy.divergence import LARGEST_ORDER, Noise, shift_divergence
from randquant.privacy.guarantee import Neighboring, Trust, Unit, rounded_up

CHECKED_ORDERS = (2.0, 16.0, 128.0, 1024.0)
"""Orders at which kappa is checked before it is computed at a larger one: its cost grows with the
order, and once another bound is smaller, it stays smaller."""


MIN_SPARED = 1e-190
"""Rarer tests are not left out: sums are known down to 1e-250 only."""


def _under(release: Any, trust: Trust) -> Any:
    # What one client sends is a sum over one client: seen alone, nobody else hides it.
    return replace(release, trust=trust, cohort=hiding(trust, release.cohort))


class _Codes(Rounds):
    """Base of releases of a channel's codes."""

    __slots__ = ()

    trust: Trust
    neighboring: Neighboring
    cohort: int

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        check_size(self.dimension, self.rounds)
        check_words(self.trust, self.neighboring, ("local", "aggregate"))
        check_cohort(self.cohort, self.trust)

    @property
    def distance(self) -> float:
        # Codes are drawn from exactly the certified integers.
        return 0.0

    def zeroed(self) -> Release:
        return cast(Any, replace)(self, neighboring="zero_out")

    def under(self, trust: Trust) -> Release:
        return _under(self, trust)


@dataclass(frozen=True, slots=True)
class ChannelRelease(_Codes):
    """One client's coordinates through a channel, each coordinate clipped by itself.

    Attributes:
        channel: the channel of every coordinate.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `local`, or `aggregate` if the server sees sums of codes only.
        neighboring: `replace_one`, or `zero_out`: an update against the zero update.
        cohort: fewest clients in a sum (`aggregate` only); 1 relies on nobody else.

    Raises:
        ValueError, TypeError: dimension or rounds is not a whole number within 1 (0) and 2**53, or
            trust or neighboring is unknown.
    """

    channel: Channel
    dimension: int
    rounds: int
    trust: Trust = "local"
    neighboring: Neighboring = "replace_one"
    cohort: int = 1

    def renyi(self, order: float) -> float:
        """Sum of the Rényi divergences of all releases, which are independent; an upper bound."""
        order = validate.renyi_order(order)
        if self.releases == 0:
            return 0.0
        # theory/accounting.md, Proposition 1; in a sum theory/sums.md, Proposition 1.
        per_coordinate = _epsilon(self.channel, order, self.neighboring, self.cohort)
        return rounded_up(self.releases * per_coordinate)

    @property
    def coordinate_channel(self) -> Channel:
        return self.channel


@dataclass(frozen=True, slots=True)
class VectorRelease(_Codes):
    """Whole updates of clipped norm, sent coordinate by coordinate through one channel.

    `account` chooses among three bounds. For any number of bits: `renyi`, of a sum by
    `kappa_sum` (theory/vector-sums.md). Of one bit, and of channels with two vertices, also
    `round_loss` (theory/martingale.md); of one bit also `squared_mu` (theory/vector-sums.md,
    Proposition 17).

    Attributes:
        channel: the channel of every coordinate.
        clip_norm: clipping threshold of a whole update's L2 norm.
        dimension: coordinates that are sent (after padding and rotation, if there is one).
        rounds: rounds that the client takes part in.
        trust: `local`, or `aggregate` if the server sees sums of codes only.
        neighboring: updates of neighbours differ by at most 2 · clip_norm under `replace_one`, by
            at most clip_norm under `zero_out`, where one of them is zero in every coordinate that
            is encoded: a mechanism that shifts updates first has a bound for `replace_one` only.
        cohort: fewest clients in a sum (`aggregate` only); 1 relies on nobody else.
        examples: for example-level privacy, the fewest examples whose clipped gradients an update
            is the mean of: neighbours are that many times closer. None for client-level privacy.
        whole_norm: threshold of the update of which only a part, clipped to clip_norm, is sent.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    channel: Channel
    clip_norm: float
    dimension: int
    rounds: int
    trust: Trust = "local"
    neighboring: Neighboring = "replace_one"
    cohort: int = 1
    examples: int | None = None
    whole_norm: float | None = None

    def __post_init__(self) -> None:
        _Codes.__post_init__(self)
        validate.kind("channel", self.channel, Channel)
        validate.real("clip_norm", self.clip_norm, low=1e-30, high=1e30)
        if self.examples is not None:
            check_examples(self.examples)

    @property
    def unit(self) -> Unit:
        return "client" if self.examples is None else "example"

    def renyi(self, order: float) -> float:
        """Return the least of kappa · ||x - x'||^2, lipschitz · ||x - x'||_1 and d · epsilon."""
        order = validate.renyi_order(order)
        if self.releases == 0:
            return 0.0
        # In L1 the encoder's rounding moves every coordinate by at most what it moves one:
        # theory/vector.md, Proposition 14.
        moved = math.sqrt(squared_distance(self.channel, 0.0, 1)) * self.dimension
        least = min(
            # theory/accounting.md, Proposition 6: pure epsilon of d coordinates, and the L1 bound;
            # both hold at every order. An L1 norm is at most sqrt(d) times an L2 norm.
            self.dimension * _epsilon(self.channel, math.inf, self._pairs, 1),
            _lipschitz(self.channel) * (self.sensitivity * math.sqrt(self.dimension) + moved),
        )
        if order <= LARGEST_ORDER:
            # theory/vector.md, Proposition 2: D <= kappa · squared distance; of sums,
            # theory/vector-sums.md.
            square = self._square
            # Kappa grows with the order, as does its cost: once it is too large, it is skipped.
            below = [step for step in CHECKED_ORDERS if 8 * step <= order]
            # theory/vector.md, Proposition 9: the bound at a smaller order is not larger.
            if all(self._kappa(step) * square < least for step in below):
                least = min(least, self._kappa(order) * square)
        # theory/rounding.md, Proposition 8; twice: apart, spread and moved are rounded too.
        return rounded_up(rounded_up(self.rounds * least))

    @property
    def round_loss(self) -> RoundLoss | None:
        """Bound one step for each coordinate and round; None without moments of the channel."""
        square, farthest = self._square, self._coordinate_distance
        return sum_round_loss(self.channel, self.cohort, square, farthest, self.rounds)

    @property
    def squared_mu(self) -> float | None:
        """Multiply all rounds' squared distance by that of a unit step; None for several bits."""
        return self.squared_mu_except(0.0)

    def squared_mu_except(self, spared: float) -> float | None:
        # theory/vector-sums.md, Proposition 22; a power of two is asked for again, being kept.
        share = spared / (spared_cost(self.channel) * max(self.releases, 1))
        rare = 2.0 ** math.floor(math.log2(share)) if share > MIN_SPARED else 0.0
        # theory/vector-sums.md, Proposition 17; `rounded_up` pays for both products.
        step = unit_squared_mu(self.channel, self.cohort, rare)
        return None if math.isinf(step) else rounded_up(self.rounds * self._square * step)

    @property
    def _whole(self) -> float:
        return self.clip_norm if self.whole_norm is None else self.whole_norm

    @property
    def sensitivity(self) -> float:
        # The largest L2 distance of neighbours' updates, before codes are drawn.
        return update_distance(
            self._whole, self.neighboring, examples=self.examples, norm_sent=self.clip_norm
        )

    @property
    def _pairs(self) -> Neighboring:
        # A mean in which one example's gradient is zero is not zero itself.
        return "replace_one" if self.examples else self.neighboring

    @property
    def _coordinate_distance(self) -> float:
        # The largest distance of a coordinate's two inputs, as their rows are mixed.
        # theory/vector.md, Propositions 17 and 19.
        ends = 2 * self.channel.clip
        if self._pairs == "zero_out":
            ends = self.channel.clip + math.sqrt(squared_distance(self.channel, 0.0, 1))
        return min(math.sqrt(squared_distance(self.channel, self.sensitivity, 1)), ends)

    @property
    def _square(self) -> float:
        # The largest squared distance of two vectors, as their rows are mixed.
        # theory/vector.md, Propositions 14 and 19.
        whole = squared_distance(self.channel, self.sensitivity, self.dimension)
        return min(whole, rounded_up(self.dimension * self._coordinate_distance**2))

    def _kappa(self, order: float) -> float:
        # theory/vector.md, Propositions 17 and 18; theory/vector-sums.md, Proposition 23.
        farthest = self._coordinate_distance
        return kappa_sum(self.channel, self.cohort, order, self._pairs, farthest).upper


class _Sums(Rounds):
    """Base of releases of sums with noise; neighbours differ in a client, or in one example."""

    __slots__ = ()

    one_example: bool

    @property
    def unit(self) -> Unit:
        return "example" if self.one_example else "client"


@dataclass(frozen=True, slots=True)
class GaussianRelease(_Sums):
    """Whole updates, or sums of them, released with Gaussian noise.

    Attributes:
        relative_deviation: the noise's standard deviation over the sensitivity, the largest L2
            distance between neighbouring sums or between two updates of one client. It is no
            noise multiplier, which is over clip_norm: two updates may be 2 · clip_norm apart.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `central` if a trusted server adds the noise to a sum, `local` if each client adds
            it to its update.
        neighboring: the neighbouring relation of that distance.
        one_example: whether neighbours differ in one example of a client, not in all its data.

    The bound is that of real-valued noise; for noise sampled in floating point it is not exact.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    relative_deviation: float
    dimension: int
    rounds: int
    trust: Trust = "central"
    neighboring: Neighboring = "replace_one"
    one_example: bool = False

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        check_words(self.trust, self.neighboring, ("local", "central"))
        validate.flag("one_example", self.one_example)
        # Squares of numbers outside these bounds would overflow or underflow.
        validate.real("relative_deviation", self.relative_deviation, low=1e-100, high=1e101)
        check_size(self.dimension, self.rounds)

    @property
    def distance(self) -> float:
        # An assumption: the bound is that of real-valued noise, not of the floats that are sent.
        return 0.0

    def renyi(self, order: float) -> float:
        """Return rounds · order / (2 · relative_deviation^2) (Mironov 2017, Proposition 7)."""
        order = validate.renyi_order(order)
        if self.rounds == 0:
            return 0.0
        # theory/accounting.md, Proposition 7. Four roundings.
        return rounded_up(self.rounds * order / (2 * self.relative_deviation**2))

    @property
    def gaussian_multiplier(self) -> float:
        return self.relative_deviation

    @property
    def squared_mu(self) -> float:
        # Many Gaussian releases are one: theory/gaussian.md, Proposition 1; two roundings.
        return rounded_up(self.rounds / self.relative_deviation**2)


@functools.lru_cache(maxsize=4096)
def _epsilon(channel: Channel, order: float, neighboring: Neighboring, cohort: int) -> float:
    if cohort == 1:
        return certify(channel, order, neighboring).epsilon.upper
    return certify_sum(channel, cohort, order, neighboring).epsilon.upper


@functools.lru_cache(maxsize=256)
def _lipschitz(channel: Channel) -> float:
    # The largest change of a code's log-likelihood, in nats, per unit of a coordinate.
    # theory/accounting.md, Proposition 6: log-likelihoods are steepest at vertices.
    return rounded_up(certify_metric(channel, "l1").epsilon.upper / channel.clip)


# Releases of sums of integer updates with integer noise. Derivation: `docs/theory/additive.md`.


def _check_sums(release: NoiseRelease | LaplaceRelease) -> None:
    check_words(release.trust, release.neighboring, ("aggregate", "local", "central"))
    check_cohort(release.cohort, "aggregate" if release.trust == "aggregate" else "local")
    check_size(release.dimension, release.rounds)
    validate.flag("one_example", release.one_example)


@dataclass(frozen=True, slots=True)
class NoiseRelease(_Sums):
    """Sums over a cohort of integer updates with integer noise; the server sees the sums only.

    Attributes:
        noise: each client's noise on each coordinate.
        cohort: fewest clients whose noise is in a sum, after all that drop out: more of them do no
            harm (theory/additive.md, Proposition 1).
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
        _check_sums(self)
        validate.whole("squared_distance", self.squared_distance, low=0)

    @property
    def distance(self) -> float:
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
        """Multiply all rounds' squared distance by that of a unit step, `step_square`."""
        # theory/gaussian.md, Proposition 4; `rounded_up` pays for both products.
        step = step_square(_curvature(self.noise, self.cohort))
        if math.isinf(step):  # a law too narrow to compare
            return None
        return rounded_up(self.rounds * self.squared_distance * step)

    def under(self, trust: Trust) -> NoiseRelease:
        # Of one client, a sum has that client's noise alone.
        return _under(self, trust)


@functools.lru_cache(maxsize=64)
def _curvature(noise: Noise, cohort: int) -> float:
    return noise.curvature(cohort)


# Releases of sums of integer vectors with discrete Laplace noise.
#
# Derivations: `docs/theory/statistics.md`.


@dataclass(frozen=True, slots=True)
class LaplaceRelease(_Sums):
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
        _check_sums(self)

    def under(self, trust: Trust) -> LaplaceRelease:
        """Return this release under another trust; of one client's share of the noise, no bound."""
        # One client's share is mostly zero: the more clients share the noise, the larger the ratio
        # of neighbours' laws, so no scale may be claimed for it.
        noise_shared = hiding(trust, self.cohort) < self.cohort
        return replace(self, trust=trust, **({"cohort": 1, "scale": 0.0} if noise_shared else {}))

    @property
    def epsilon(self) -> float:
        # Pure epsilon of one round, rounded up.
        # theory/statistics.md, Proposition 2.
        return rounded_up(self.l1_distance / self.scale) if self.scale else math.inf

    @property
    def distance(self) -> float:
        # theory/accounting.md, Proposition 4: distances of independent draws add up.
        return rounded_up(self.releases * self.drawn)

    def renyi(self, order: float) -> float:
        """Bound each round by epsilon and by order · epsilon^2 / 2, whichever is less."""
        order = validate.renyi_order(order)
        if self.rounds == 0:
            return 0.0
        # Bun and Steinke 2016, Proposition 3.3.
        least = self.epsilon if math.isinf(order) else min(1.0, order * self.epsilon / 2)
        return rounded_up(self.rounds * (least if math.isinf(order) else self.epsilon * least))

    @property
    def squared_mu(self) -> float:
        """Return mu^2 of Gaussian noise that dominates randomised response of this epsilon."""
        if self.rounds == 0:
            return 0.0
        # theory/statistics.md, Proposition 3; the allowances pay for the inverse and its argument.
        log = -self.epsilon - math.log1p(math.exp(-self.epsilon))
        mu = -2 * float(ndtri_exp(log)) * (1 + 16 * SPECIAL_ERROR) + 16 * SPECIAL_ERROR
        return rounded_up(self.rounds * mu * mu)
