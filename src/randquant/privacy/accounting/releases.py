"""Records of what one client's data was released through, for accounting to compose.

A release bounds the Rényi divergence between the two worlds of a neighbouring relation, under one
trust. Derivations: `docs/theory/accounting.md`, `vector.md`, `sums.md`, for noise `additive.md`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Literal

from randquant._internal import validate
from randquant.channels.channel import Channel
from randquant.privacy.accounting.examples import check_examples, share
from randquant.privacy.accounting.release import ReleaseDefaults
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.certificates.metric import certify_metric
from randquant.privacy.certificates.noise import Noise, shift_divergence
from randquant.privacy.certificates.sums.certify_sum import certify_sum
from randquant.privacy.certificates.sums.kappa_sum import kappa_sum
from randquant.privacy.certificates.vector import squared_distance
from randquant.privacy.divergence import LARGEST_ORDER, UNIT
from randquant.privacy.guarantee import LARGEST_COHORT, NEIGHBORINGS, Neighboring, Trust, rounded_up

LADDER = (2.0, 16.0, 128.0, 1024.0)
"""Orders at which kappa is checked before it is bounded at a larger one."""

Norm = Literal["l1", "l2"]
"""How the length of a whole update is measured when it is clipped."""


@dataclass(frozen=True, slots=True)
class ChannelRelease(ReleaseDefaults):
    """One client's coordinates sent through a channel, each clipped by itself.

    Attributes:
        channel: the channel of every coordinate.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `local`, or `aggregate` where the server sees sums of codes only.
        neighboring: `replace_one`, or `zero_out`: the update against one of zeros.
        cohort: clients in every sum, at least (`aggregate` only); 1 counts on nobody else.

    Raises:
        ValueError, TypeError: dimension or rounds is not a whole number within 1 (0) and 2**53, or
            trust or neighboring is another word.
    """

    channel: Channel
    dimension: int
    rounds: int
    trust: Trust = "local"
    neighboring: Neighboring = "replace_one"
    cohort: int = 1

    def __post_init__(self) -> None:
        _check_size(self.dimension, self.rounds)
        _check_words(self.trust, self.neighboring, ("local", "aggregate"))
        _check_cohort(self.cohort, self.trust)

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """None: codes are drawn from exactly the certified integers."""
        return 0.0

    def renyi(self, order: float) -> float:
        """Upper bound of the Rényi divergence of all releases: they are independent, so it adds."""
        if self.releases == 0:
            return 0.0
        # theory/accounting.md, Proposition 1; in a sum theory/sums.md, Proposition 1.
        per_coordinate = _epsilon(self.channel, order, self.neighboring, self.cohort)
        return rounded_up(self.releases * per_coordinate)

    @property
    def coordinate_channel(self) -> Channel:
        """The channel."""
        return self.channel

    def zeroed(self) -> ChannelRelease:
        """For `zero_out` neighbours."""
        return replace(self, neighboring="zero_out")

    def repeated(self, times: int) -> ChannelRelease:
        """In so many times the rounds."""
        return replace(self, rounds=self.rounds * times)

    def under(self, trust: Trust) -> ChannelRelease:
        """Codes that a server sees one by one are also a sum of one."""
        return replace(self, trust=trust)


@dataclass(frozen=True, slots=True)
class VectorRelease(ReleaseDefaults):
    """Whole updates, clipped in norm, sent coordinate by coordinate through one channel.

    Attributes:
        channel: the channel of every coordinate.
        clip_norm: clipping threshold of a whole update's norm.
        dimension: coordinates that are sent (after padding and rotation, if there is one).
        rounds: rounds that the client takes part in.
        trust: `local`, or `aggregate` where the server sees sums of codes only.
        neighboring: two updates differ by at most 2 · clip_norm under `replace_one`, by at most
            clip_norm under `zero_out`.
        cohort: clients in every sum, at least (`aggregate` only); 1 counts on nobody else.
        norm: `l2` or `l1`.
        examples: how many examples' clipped gradients an update is the mean of, at least, where
            neighbours differ in one of them: they are then that many times closer. None where they
            differ in the whole update.

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
    norm: Norm = "l2"
    examples: int | None = None

    def __post_init__(self) -> None:
        validate.kind("channel", self.channel, Channel)
        validate.real("clip_norm", self.clip_norm, low=1e-30, high=1e30)
        _check_size(self.dimension, self.rounds)
        _check_words(self.trust, self.neighboring, ("local", "aggregate"))
        _check_cohort(self.cohort, self.trust)
        validate.choice("norm", self.norm, ("l1", "l2"))
        if self.examples is not None:
            check_examples(self.examples)
            if self.norm != "l2":
                raise ValueError(
                    f"Expected norm='l2' with examples, got {self.norm!r}: examples are clipped "
                    "in L2."
                )

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """None: codes are drawn from exactly the certified integers."""
        return 0.0

    def renyi(self, order: float) -> float:
        """Least of what bounds it: kappa · ||x - x'||^2, lipschitz · ||x - x'||_1, d · epsilon."""
        if self.releases == 0:
            return 0.0
        worlds = 2 if self.neighboring == "replace_one" else 1
        # theory/accounting.md, Proposition 6; with examples theory/vector.md, Proposition 16.
        apart = worlds * self.clip_norm * share(self.examples)
        spread = 1.0 if self.norm == "l1" else math.sqrt(self.dimension)
        # In L1 the encoder moves every coordinate, each as far as one coordinate may be moved.
        # theory/vector.md, Proposition 14.
        moved = math.sqrt(squared_distance(self.channel, 0.0, 1)) * self.dimension
        least = min(
            # theory/accounting.md, Proposition 6: pure epsilon of d coordinates, and the L1 bound;
            # both hold at every order. An L1 norm of at most N is an L2 norm of at most N, sqrt(d)
            # N bounds the L1 norm of an L2 norm N.
            self.dimension * _epsilon(self.channel, math.inf, self.neighboring, 1),
            _lipschitz(self.channel) * (apart * spread + moved),
        )
        if order <= LARGEST_ORDER:
            # theory/vector.md, Proposition 2: D <= kappa · squared distance; of sums,
            # theory/vector-sums.md.
            square = squared_distance(self.channel, apart, self.dimension)
            # Kappa grows with the order and takes ever longer: once too large, it is left out.
            below = [step for step in LADDER if step < order]
            # theory/vector.md, Proposition 9: the bound of an order below is not above that of this
            # one.
            if all(self._kappa(step) * square < least for step in below):
                least = min(least, self._kappa(order) * square)
        # theory/rounding.md, Proposition 8; `apart`, `spread` and `moved` have some more roundings:
        # twice.
        return rounded_up(rounded_up(self.rounds * least))

    def _kappa(self, order: float) -> float:
        return kappa_sum(self.channel, self.cohort, order).upper

    def zeroed(self) -> VectorRelease:
        """For `zero_out` neighbours."""
        return replace(self, neighboring="zero_out")

    def repeated(self, times: int) -> VectorRelease:
        """In so many times the rounds."""
        return replace(self, rounds=self.rounds * times)

    def under(self, trust: Trust) -> VectorRelease:
        """Codes that a server sees one by one are also a sum of one."""
        return replace(self, trust=trust)

    def of_one_example(self, examples: int) -> VectorRelease:
        """So many times closer, see `examples`."""
        return replace(self, examples=examples)


@dataclass(frozen=True, slots=True)
class GaussianRelease(ReleaseDefaults):
    """Whole updates, or sums of them, released with Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation over the L2 distance between neighbouring sums, or
            between two updates of one client.
        dimension: coordinates of one update.
        rounds: rounds that the client takes part in.
        trust: `central` where a trusted server adds the noise to a sum, `local` where each client
            adds it to its update.
        neighboring: which neighbours the distance is between.

    The bound is the real Gaussian's. Sampled in floating point, as baselines do, it is not exact.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    noise_multiplier: float
    dimension: int
    rounds: int
    trust: Trust = "central"
    neighboring: Neighboring = "replace_one"

    def __post_init__(self) -> None:
        _check_words(self.trust, self.neighboring, ("local", "central"))
        # Squares of anything beyond would overflow or vanish.
        validate.real("noise_multiplier", self.noise_multiplier, low=1e-100, high=1e101)
        _check_size(self.dimension, self.rounds)

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """None is counted: the bound is the real Gaussian's."""
        return 0.0

    def renyi(self, order: float) -> float:
        """rounds · order / (2 · noise_multiplier^2) (Mironov 2017, Proposition 7)."""
        if self.rounds == 0:
            return 0.0
        # theory/accounting.md, Proposition 7. Four roundings.
        return rounded_up(self.rounds * order / (2 * self.noise_multiplier**2))

    @property
    def gaussian_multiplier(self) -> float:
        """The noise multiplier."""
        return self.noise_multiplier

    def repeated(self, times: int) -> GaussianRelease:
        """In so many times the rounds."""
        return replace(self, rounds=self.rounds * times)

    def of_one_example(self, examples: int) -> GaussianRelease:
        """More noise over a distance that is so many times smaller."""
        # Two quotients, a sum and a product: 4 units, and less noise is the safe side.
        multiplier = self.noise_multiplier / share(examples) * (1 - 4 * UNIT)
        return replace(self, noise_multiplier=multiplier)


@dataclass(frozen=True, slots=True)
class NoiseRelease(ReleaseDefaults):
    """Sums over a cohort of integer updates with integer noise, seen as sums only.

    Attributes:
        noise: each client's noise on each coordinate.
        cohort: how many clients' noise is in every sum, at least.
        squared_distance: squared L2 distance, at most, between two updates of one client.
        dimension: coordinates of a sum.
        rounds: rounds that the client takes part in.
        neighboring: which neighbours the distance is between.

    The noise of clients that collude with the server does not count: cohort is what remains.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    noise: Noise
    cohort: int
    squared_distance: int
    dimension: int
    rounds: int
    neighboring: Neighboring = "replace_one"

    def __post_init__(self) -> None:
        validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        validate.whole("squared_distance", self.squared_distance, low=0)
        _check_size(self.dimension, self.rounds)
        validate.choice("neighboring", self.neighboring, NEIGHBORINGS)

    @property
    def trust(self) -> Trust:
        """The server sees the sum of a cohort's codes."""
        return "aggregate"

    @property
    def releases(self) -> int:
        """Single-coordinate releases."""
        return self.dimension * self.rounds

    @property
    def distance(self) -> float:
        """Total variation distance of all coordinates and rounds: single distances add up."""
        # theory/accounting.md, Proposition 4: distances of independent draws add up.
        return rounded_up(self.releases * self.noise.distance(self.cohort))

    def renyi(self, order: float) -> float:
        """Divergences of the rounds add up (`noise.shift_divergence`)."""
        if self.rounds == 0:
            return 0.0
        curvature = _curvature(self.noise, self.cohort)
        spread = self.noise.spread(self.cohort)
        # theory/additive.md, Proposition 1; rounds add up by theory/accounting.md, Proposition 1.
        per_round = shift_divergence(curvature, spread, self.squared_distance, order)
        return rounded_up(self.rounds * per_round)

    def repeated(self, times: int) -> NoiseRelease:
        """In so many times the rounds."""
        return replace(self, rounds=self.rounds * times)


def _check_size(dimension: int, rounds: int) -> None:
    validate.whole("dimension", dimension, low=1, high=2**53)
    validate.whole("rounds", rounds, low=0, high=2**53)


def _check_words(trust: str, neighboring: str, trusts: tuple[str, ...]) -> None:
    validate.choice("trust", trust, trusts)
    validate.choice("neighboring", neighboring, NEIGHBORINGS)


def _check_cohort(cohort: int, trust: str) -> None:
    validate.whole("cohort", cohort, low=1, high=LARGEST_COHORT)
    if trust == "local" and cohort != 1:
        raise ValueError(
            f"Expected cohort=1 under local trust, got {cohort}: a server that sees each client's "
            "codes is not kept from anything by the others."
        )


@functools.lru_cache(maxsize=4096)
def _epsilon(channel: Channel, order: float, neighboring: Neighboring, cohort: int) -> float:
    """Of one coordinate of a sum of `cohort` codes."""
    if cohort == 1:
        return certify(channel, order, neighboring).epsilon.upper
    return certify_sum(channel, cohort, order, neighboring).epsilon.upper


@functools.lru_cache(maxsize=256)
def _lipschitz(channel: Channel) -> float:
    """By how many nats any code's log-likelihood may change per unit of a coordinate."""
    # theory/accounting.md, Proposition 6: log-likelihoods are piecewise as steep as at vertices.
    return rounded_up(certify_metric(channel, "l1").epsilon.upper / channel.clip)


@functools.lru_cache(maxsize=64)
def _curvature(noise: Noise, cohort: int) -> float:
    return noise.curvature(cohort)
