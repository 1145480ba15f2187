"""Integer noise on whole updates that are summed securely, by the clients or by who opens the sum.

A client clips its update in L2, rotates it and rounds it at random to a grid. It adds Skellam,
discrete Gaussian or binomial noise and sends the result modulo 2**bits; or it adds none, and the
helper of the sum adds discrete Gaussian noise to the sum of the masks, and the server its own
before it decodes. Derivations: `docs/theory/additive.md`; with a helper
`docs/theory/helper-sums.md`, Propositions 13 to 15.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.mechanism import (
    CoordinateError,
    MechanismDefaults,
    centred_sums,
    check_cohort_size,
    for_each_payload,
    mean_error,
)
from randquant.aggregation.rotation import ProjectedUpdates, subset_coding, subset_fields
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.mechanisms.noise import LARGEST_VARIANCE, NOISES
from randquant.mechanisms.registry import (
    CLIP_NORM,
    NOISE_MULTIPLIER,
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    multiplier_in_payloads,
    noise_family,
    stored_parameters,
)
from randquant.privacy.accounting.release_protocol import (
    Release,
    squared_distance_on_grid,
    update_distance,
)
from randquant.privacy.accounting.releases import NoiseRelease
from randquant.privacy.divergence import Noise
from randquant.privacy.guarantee import LARGEST_COHORT, NEIGHBORINGS, Neighboring, Trust

MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 2e-6, 2e6
"""Smallest and largest noise_multiplier of integer noise, far beyond any use at either end: half or
twice of them would serve as well."""

LARGEST_STEP = 2**40
"""Largest coordinate that is rounded: above any norm that 24 bits and 2**30 coordinates allow."""


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Grid and noise that a mechanism's parameters give for updates of one dimension.

    Attributes:
        size: how many coordinates of it are sent.
        scale: grid steps in one unit of an update.
        bound: upper bound of a rounded update's squared L2 norm, in steps^2.
        longest: how far an update may reach along one coordinate, in whole steps.
        noise: each client's noise.
        deviation: upper bound of the standard deviation of a coordinate of the sum, in steps, when
            all clients send the same update of norm clip_norm (and the rotation spreads it).
    """

    size: int
    scale: float
    bound: int
    longest: int
    noise: Noise
    deviation: float


class IntegerUpdates(ProjectedUpdates):
    """The base of mechanisms that round whole updates to a grid of integers.

    Their fields are those of `AdditiveMechanism`, but for what says whose noise is in a sum.
    """

    __slots__ = ()

    noise_multiplier: float
    bits: int
    deviations: float

    channel = None

    noises: ClassVar[int] | property = 1
    """How many parties' noise a sum has, each as wide as the guarantee needs."""

    def _check_grid(self) -> None:
        validate.real("clip_norm", self.clip_norm, low=1e-30, high=1e30)
        validate.real(
            "noise_multiplier",
            self.noise_multiplier,
            low=MIN_NOISE_MULTIPLIER,
            high=MAX_NOISE_MULTIPLIER,
        )
        validate.whole("bits", self.bits, low=2, high=24)
        validate.real("deviations", self.deviations, low=1, high=1e3)
        self._check_projection()

    @property
    def trust(self) -> Trust:
        return "aggregate"

    @property
    def summands(self: Any) -> int:
        # Clients whose updates the range of a sum has room for.
        return self.cohort

    def plan(self: Any, dimension: int) -> NoisePlan:
        """Return the grid and the noise for updates of this dimension."""
        dimension = validate.whole("dimension", dimension, low=1)
        # The same plan in each round: it does not depend on the subset.
        return _plan(
            self if self.subset_seed is None else replace(self, subset_seed=None), dimension
        )

    def _rounded(self, vector: np.ndarray, key: Key) -> np.ndarray:
        # (size,) int64, whose norm is within the plan's bound: the distance that is charged.
        plan = self.plan(vector.size)
        steps = self.projection(vector.size).forward(vector) * plan.scale
        # Before anything is drawn: in the difference of two payloads of one key the noise cancels.
        key.claim()
        # Independent streams: the noise that is accounted for must not depend on the rounding.
        return round_within(steps, plan.bound, key.fold_in("round"))

    def _packed(self: Any, integers: np.ndarray, dimension: int) -> bytes:
        # Remainders add up to the remainder of the sum, which is all that is decoded.
        codes = self._remainders(integers)
        codes = codes.astype(np.uint8 if self.bits <= 8 else np.uint32)
        return wire.pack(self.coding, codes, codes.size - dimension)

    def _remainders(self: Any, integers: np.ndarray) -> np.ndarray:
        return integers & ((1 << self.bits) - 1)

    def _totals(self: Any, payloads: Sequence[bytes], dimension: int) -> np.ndarray:
        totals = np.zeros(self.size(dimension), dtype=np.int64)
        form, padding = self.coding, len(totals) - dimension
        for_each_payload(payloads, lambda payload: wire.add(form, payload, totals, padding))
        return totals

    def payload_bytes(self: Any, dimension: int) -> int:
        return self.upload_bytes(dimension)

    def decode(
        self: Any, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Lift remainders to [-2**(bits - 1), 2**(bits - 1)), unscale, rotate back.

        Codes are remainders themselves: the modulus is that of this mechanism, `sum_bits`.

        Raises:
            ValueError, TypeError: there are too few clients, or `totals` are not integers in
                [0, 2**bits).
        """
        check_cohort_size(clients, self.cohort)
        # A sum within the range is determined by its remainder; `deviations` says how rarely one
        # is not.
        centred = centred_sums(totals, self.bits)
        steps = self.plan(dimension).scale * clients
        return self.projection(dimension).inverse(centred / steps).astype(np.float32)

    def sum_bits(self, dimension: int, clients: int) -> int:
        return self.bits

    def release(
        self: Any, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> NoiseRelease:
        """Return one noisy sum a round; two rounded updates are at most twice the norm bound apart.

        Under `zero_out` the distance is the norm bound, since a zero update rounds to zero.
        """
        opposite = validate.choice("neighboring", neighboring, NEIGHBORINGS) == "replace_one"
        plan = self.plan(dimension)
        square = (4 if opposite else 1) * plan.bound
        return NoiseRelease(plan.noise, self.cohort, square, plan.size, rounds, neighboring)

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """Bound means of gradients, and their rounding to the grid."""
        whole, plan = self.release(dimension, rounds, neighboring), self.plan(dimension)
        apart = update_distance(
            self.clip_norm, neighboring, examples=examples,
            norm_sent=self.projection(dimension).norm_sent,
        )  # fmt: skip
        # theory/additive.md, Proposition 9: neither of the two is zero, whatever the relation.
        square = squared_distance_on_grid(plan.scale * apart, plan.size, 4 * plan.bound)
        return replace(whole, squared_distance=square, one_example=True)

    def certified(self, dimension: int) -> dict[str, Any]:
        plan = self.plan(dimension)
        grid = {"scale": plan.scale, "bound": plan.bound}
        update = self.projection(dimension).certified
        return {"kind": "integer noise", "grid": grid, "noise": plan.noise, "update": update}

    def _fields(self: Any) -> dict[str, Any]:
        # As a record has them.
        fields = asdict(self)
        some = subset_fields(fields.pop("coordinates"), fields.pop("subset_seed"))
        return {**fields, **some}

    def _rounding_variance(self, x: np.ndarray, scale: float) -> np.ndarray:
        # In steps^2, of one client's coordinates of these values.
        steps = x * scale
        fraction = steps - np.floor(steps)
        return fraction * (1 - fraction)


@final
@dataclass(frozen=True, slots=True)
class AdditiveMechanism(IntegerUpdates, MechanismDefaults):
    """Rounds whole updates and adds integer noise, for a server that sees only their sum.

    Args:
        kind: which noise: a key of NOISES.
        clip_norm: C, L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation of the noise in a sum, in units of clip_norm, as other
            libraries count it, within [2e-6, 2e6].
        cohort: n, fewest clients in a sum; each adds 1/n of the noise's variance.
        bits: per coordinate, 2 to 24: sums are taken modulo 2**bits.
        deviations: how many standard deviations of a sum's coordinate fit within half the range;
            fewer make the grid finer and overflow likelier.
        rotation_seed: public, the same for all clients and the server.
        coordinates, subset_seed: as for `VectorMechanism`: how many coordinates of a rotated update
            are sent, and the public seed of the round's subset.

    Guarantees:
        The bound of `release` holds for what is actually sent, against a server that sees the sum
        modulo 2**bits of at least `cohort` clients who all follow the protocol: the norm of the
        rounded update is checked in integers, so no earlier floating-point rounding matters, and
        the distance between the tables that noise is drawn from and its law is part of the release.
        `mean` refuses fewer payloads than `cohort`, and adds them itself, as a simulation may; a
        deployment must use secure aggregation modulo 2**bits.
        `mean` is unbiased for the mean of the clipped updates, up to two effects. Rounding is
        repeated until the norm is within its bound, which shifts a client's mean by at most
        1.55 · sqrt(size) steps in L2 (in practice by far less: few roundings are repeated). And a
        sum beyond ±2**(bits - 1) wraps around: `deviations` says how rarely.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind; once the
            dimension is known, also if the bits cannot hold the noise.

    References:
        Kairouz, Liu and Steinke 2021 (distributed discrete Gaussian), Algorithms 1 and 2;
        Agarwal, Kairouz and Liu 2021 (Skellam); Agarwal et al. 2018 (binomial, cpSGD).

    Example:
        >>> mechanism = AdditiveMechanism("skellam", clip_norm=1.0, noise_multiplier=4.0, cohort=2)
        >>> update, root = np.full(5, 0.1, dtype=np.float32), Key.from_seed(0)
        >>> payloads = [mechanism.encode(update, root.fold_in(client)) for client in range(2)]
        >>> mechanism.mean(payloads).shape, mechanism.release(5, 1).trust
        ((5,), 'aggregate')
    """

    kind: str
    clip_norm: float
    noise_multiplier: float
    cohort: int
    bits: int = 16
    deviations: float = 6.0
    rotation_seed: int = 0
    coordinates: int | None = None
    subset_seed: int | None = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.choice("kind", self.kind, NOISES)
        validate.whole("cohort", self.cohort, low=1, high=LARGEST_COHORT)
        self._check_grid()

    @property
    def coding(self) -> wire.Coding:
        whole = wire.Format.from_facts(
            1 << self.bits, self.kind, self.clip_norm,
            multiplier_in_payloads(self.noise_multiplier), self.cohort, self.deviations,
            self.rotation_seed,
        )  # fmt: skip
        return subset_coding(whole, self.coordinates, self.subset_seed)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Clip, rotate, restrict, round, add noise, reduce modulo 2**bits, pack."""
        plan = self.plan(vector.size)
        # In integers, after the rounding: no float is rounded any more once the noise is in.
        noisy = self._rounded(vector, key) + plan.noise.draw(plan.size, key.fold_in("noise"))
        return self._packed(noisy, vector.size)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        totals = self._remainders(self._totals(payloads, dimension))
        return self.decode(totals, len(payloads), dimension)

    def log_equal(self, dimension: int) -> float:
        return self.size(dimension) * self._log_equal(self.plan(dimension))

    def _log_equal(self, plan: NoisePlan) -> float:
        """Bound the log of the largest probability that two payloads agree in one coordinate.

        No integer has more mass than 2 / sqrt(1 + 4 · variance) under a log-concave law (Bobkov,
        Marsiglietti and Melbourne 2022, theorem 1.1); reduction modulo 2**bits merges at most two
        masses of that size and 2**-bits of the rest (`docs/theory/encoding.md`). The code uses 3
        instead of 4, since the discrete Gaussian's variance is a little below its parameter.
        """
        largest = 2 / math.sqrt(1 + 3 * plan.noise.variance)
        return min(math.log(2 * largest + 2.0**-self.bits), 0.0)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        # Unbiased; the variances are those of the noise and of rounding to the grid.
        plan = self.plan(dimension)
        return x, (plan.noise.variance + self._rounding_variance(x, plan.scale)) / plan.scale**2

    def record(self) -> dict[str, Any]:
        # The kind of noise is the mechanism's name.
        fields = self._fields()
        kind = fields.pop("kind")
        return {"mechanism": kind, **stored_parameters(kind, fields)}


def round_within(steps: np.ndarray, bound: int, key: Key) -> np.ndarray:
    """Round each coordinate at random to a neighbouring integer until the norm is within a bound.

    Args:
        steps: (size,) float64, within ±2**40.
        bound: largest squared L2 norm of the result; if it is at least `squared_bound` of the norm
            of steps, a rounding meets it with a probability of at least 1 - exp(-1/2).
        key: used for nothing else.

    Returns:
        (size,) int64 with a squared norm of at most bound; a rounding is unbiased (to 2**-53)
        before those beyond the bound are rejected.

    Raises:
        ValueError: a coordinate is beyond ±2**40, or a NaN.

    References:
        Kairouz, Liu and Steinke 2021, Proposition 22, with beta = exp(-1/2).

    Example:
        >>> round_within(np.array([2.0, -1.0, 0.0]), 5, Key.from_seed(0))
        array([ 2, -1,  0])
    """
    largest = float(np.abs(steps).max(initial=0.0))
    if not largest <= LARGEST_STEP:
        raise ValueError(
            f"Expected steps within ±2**40, got {largest:g}: the grid is too fine for this "
            "update; use fewer bits."
        )
    floors = np.floor(steps)
    # Just below an integer the difference rounds to 1: the threshold must still fit 64 bits.
    thresholds = (np.minimum(steps - floors, 1 - 2.0**-53) * 2.0**64).astype(np.uint64)
    floors = floors.astype(np.int64)
    # An attempt fails with a probability of at most exp(-1/2), and so thirty in a row with e^-15.
    attempt = 0
    while True:
        rounded = floors + (key.fold_in(attempt).words(steps.size) < thresholds)
        # In integers: the sensitivity that is accounted for holds whatever floats did before.
        if squared_norm(rounded) <= bound:
            return rounded
        attempt += 1


def squared_norm(values: np.ndarray) -> int:
    """Sum the squares of integers exactly, beyond 64 bits if need be.

    Args:
        values: (size,) int64, within ±(2**40 + 1).

    Returns:
        The sum, a Python integer.

    Example:
        >>> squared_norm(np.array([2**40, 1])) == 2**80 + 1
        True
    """
    total = 0
    for start in range(0, len(values), 1 << 20):
        part = values[start : start + (1 << 20)]
        # high and low lie within ±(2**20 + 1): a dot product of 2**20 of them is below 2**62.
        high, low = part >> 20, part & ((1 << 20) - 1)
        total += (int(high @ high) << 40) + (int(high @ low) << 21) + int(low @ low)
    return total


def squared_bound(norm: float, size: int) -> float:
    """Bound the squared L2 norm of a randomly rounded vector with probability 1 - exp(-1/2).

    Args:
        norm: L2 norm before rounding, in steps.
        size: coordinates.

    Returns:
        min{(norm + sqrt(size))^2, norm^2 + size/4 + norm + sqrt(size)/2}; the first always holds.

    References:
        Kairouz, Liu and Steinke 2021, Theorem 1, with sqrt(2 log(1/beta)) = 1.
    """
    root = math.sqrt(size)
    return min((norm + root) ** 2, norm * norm + size / 4 + norm + root / 2)


def most_bits(cohort: int, deviations: float = 6.0) -> int:
    """Return the most bits with which a cohort's noise is never too wide to draw, however private.

    Example:
        >>> most_bits(2), most_bits(100)
        (19, 21)
    """
    # Each client adds at most a cohort's share of the variance that a sum has room for.
    largest = deviations * math.sqrt(cohort * LARGEST_VARIANCE) * (1 - 2.0**-40)
    return 1 + math.floor(math.log2(largest))


@functools.lru_cache(maxsize=64)
def _plan(mechanism: Any, dimension: int) -> NoisePlan:
    projection = mechanism.projection(dimension)
    size, cohort, shares = projection.size, mechanism.summands, mechanism.cohort
    capacity = (2.0 ** (mechanism.bits - 1) / mechanism.deviations) ** 2

    def variance(norm: float) -> float:
        # Of a coordinate of the sum: signal, rounding, noise (DDG paper, Theorem 34).
        noise = mechanism.noise_multiplier**2 * squared_bound(norm, size)
        noise *= mechanism.noises
        return (cohort * norm) ** 2 / size + cohort / 4 + noise

    if variance(0.0) >= capacity:
        wanted = math.log2(mechanism.deviations * math.sqrt(variance(0.0))) + 1
        raise ValueError(
            f"Expected bits > {wanted:.1f} for noise on {size} coordinates, got "
            f"bits={mechanism.bits}: add bits, or lower noise_multiplier or deviations."
        )
    low, high = 0.0, 2.0**mechanism.bits * math.sqrt(size)
    for _ in range(100):  # the variance grows with the norm
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) <= capacity else (low, middle)
    scale = low / projection.norm_sent
    bound = math.floor(squared_bound(low, size))
    # The last factor is more than these roundings can take away: noise is never less than stated.
    local = mechanism.noise_multiplier**2 * bound / shares * (1 + 2.0**-48)
    if local > LARGEST_VARIANCE:
        fewer = most_bits(shares, mechanism.deviations)
        # With fewer bits than the noise alone takes, the grid has no step.
        holds = variance(0.0) < (2.0 ** (fewer - 1) / mechanism.deviations) ** 2
        raise ValueError(
            f"Expected each client's noise to have a variance <= 2**30 grid steps, got {local:.6g} "
            f"with bits={mechanism.bits} and cohort={shares}: "
            + (f"use {fewer} bits." if holds else "lower noise_multiplier, or raise cohort.")
        )
    noise = NOISES[mechanism.kind](local)
    longest = math.floor(low * (1 - 2.0**-20))  # its norm is not clipped for its rounding
    return NoisePlan(size, scale, bound, longest, noise, math.sqrt(variance(low)))


def _noisy_updates(setting: UpdateSetting) -> UpdateFamily:
    # With fewer than 2 bits the constructor's error says how many would hold the noise; more than
    # `most_bits` make the grid finer than the noise asks for.
    bits = min(max(setting.bits, 2), most_bits(setting.cohort))
    return noise_family(
        setting, setting.cohort, (MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER), bits=bits
    )


HELP = {
    "clip_norm": CLIP_NORM,
    "noise_multiplier": NOISE_MULTIPLIER,
    "bits": "bits per coordinate, 2 to 24 (default 16)",
    "deviations": "standard deviations of a sum that fit in half its range (default 6)",
    "rotation_seed": "public seed of the rotation (default 0)",
}
"""What the parameters mean, for every kind of noise."""


# Updates without noise of the client: those who open a secure sum add it.

HELPER_NOISE = "helper-noise"
"""Name of the mechanism, in files and on the wire."""


@final
@dataclass(frozen=True, slots=True)
class HelperNoise(IntegerUpdates, MechanismDefaults):
    """Rounds whole updates to integers; the helper of their sum adds the noise, and the server too.

    Args:
        clip_norm: C, L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation of each party's noise in a sum, in units of clip_norm,
            as other libraries count it, within [2e-6, 2e6].
        clients: most clients in a sum, for which its range has room. No guarantee relies on it.
        server_noise: True if the server adds as much noise of its own, which protects clients from
            the helper, who may see the published models; False for a helper that never sees them.
        bits: per coordinate, 2 to 24: sums are taken modulo 2**bits.
        deviations: how many standard deviations of a sum's coordinate fit within half the range.
        rotation_seed: public, the same for all clients and the server.
        coordinates, subset_seed: as for `VectorMechanism`.

    Guarantees:
        The bound of `release` holds for each client with any other clients, invented ones too, and
        any number of them in a sum: against a server that does not collude with the helper, if the
        helper adds its noise; with `server_noise` also against a helper that sees what the server
        publishes, if the server adds its noise; and against everybody else, if one of them does.
        Nothing is left against a server that colludes with the helper.
        `mean` adds the noise itself, from its key, as a simulation may.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind; once the
            dimension is known, also if the bits cannot hold the noise.

    References:
        Canonne, Kamath and Steinke 2020 (the noise); Kairouz, Liu and Steinke 2021 (the rounding);
        docs/theory/helper-sums.md, Propositions 13 to 15 (who is protected from whom).

    Example:
        >>> mechanism = HelperNoise(clip_norm=1.0, noise_multiplier=4.0, clients=2)
        >>> update, root = np.full(5, 0.1, dtype=np.float32), Key.from_seed(0)
        >>> payloads = [mechanism.encode(update, root.fold_in(client)) for client in range(2)]
        >>> mechanism.mean(payloads, key=root.fold_in("parties")).shape, mechanism.cohort
        ((5,), 1)
    """

    clip_norm: float
    noise_multiplier: float
    clients: int
    server_noise: bool = True
    bits: int = 16
    deviations: float = 6.0
    rotation_seed: int = 0
    coordinates: int | None = None
    subset_seed: int | None = None

    cohort = 1
    helper_noise = True
    kind = "discrete-gaussian"

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        validate.whole("clients", self.clients, low=1, high=LARGEST_COHORT)
        validate.flag("server_noise", self.server_noise)
        self._check_grid()

    @property
    def summands(self) -> int:
        return self.clients

    @property
    def noises(self) -> int:
        return 2 if self.server_noise else 1

    @property
    def coding(self) -> wire.Coding:
        whole = wire.Format.from_facts(
            1 << self.bits, HELPER_NOISE, self.clip_norm,
            multiplier_in_payloads(self.noise_multiplier), self.clients, self.server_noise,
            self.deviations, self.rotation_seed,
        )  # fmt: skip
        return subset_coding(whole, self.coordinates, self.subset_seed)

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        return self._packed(self._rounded(vector, key), vector.size)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        if key is None:
            raise TypeError(
                "Expected a key, got key=None: helper and server draw the noise, so give "
                "mean(payloads, key=rq.Key.generate())."
            )
        totals = self._totals(payloads, dimension)
        for party in range(self.noises):
            totals += self.party_noise(dimension, key.fold_in("party", party))
        return self.decode(self._remainders(totals), len(payloads), dimension)

    def party_variance(self, dimension: int) -> float:
        """Return the parameter of each party's discrete Gaussian noise, in squared steps."""
        return self.plan(dimension).noise.variance

    def party_noise(self, dimension: int, key: Key) -> np.ndarray:
        """Draw one party's noise on a sum: (size,) int64, with a key used for nothing else."""
        # The same noise on two sums would show their difference.
        key.claim()
        plan = self.plan(dimension)
        return plan.noise.draw(plan.size, key)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        # Unbiased; a client adds no more than the rounding to the grid.
        scale = self.plan(dimension).scale
        return x, self._rounding_variance(x, scale) / scale**2

    def expected_error(self, dimension: int) -> CoordinateError:
        projection, plan = self.projection(dimension), self.plan(dimension)
        each = mean_error(self, dimension, projection.rotated)
        noise = (self.noises * plan.noise.variance) ** 0.5 / plan.scale
        return projection.error(replace(each, sum_noise=noise))

    def certified(self, dimension: int) -> dict[str, Any]:
        parties = ["helper", "server"][: self.noises]
        fields = IntegerUpdates.certified(self, dimension)
        return {**fields, "kind": "party noise", "parties": parties}

    def record(self) -> dict[str, Any]:
        return {"mechanism": HELPER_NOISE, **stored_parameters(HELPER_NOISE, self._fields())}


def describe_parties(server_noise: bool) -> str:
    """Say in a sentence who adds the noise, and what the figure then relies on."""
    who = "the helper of each sum, and the server as much again" if server_noise else (
        "the helper of each sum alone, which must never see a model"
    )  # fmt: skip
    return (
        f"Clients add no noise: it is added by {who}. The figure counts on no other client; "
        "nothing holds against the server if the helper leaves out its noise "
        "or colludes with it."
    )


def parties_notes(name: str, parameters: Mapping[str, Any]) -> list[str]:
    """Return `describe_parties` for a mechanism by its name, or by its record; else nothing."""
    if HELPER_NOISE not in (name, parameters.get("mechanism")):
        return []
    return [describe_parties(bool(parameters.get("server_noise", True)))]


def _helped_updates(setting: UpdateSetting) -> UpdateFamily:
    # One party draws the whole noise, so its table limits the bits as that of one client does.
    bits = min(max(setting.bits, 2), most_bits(1))
    return noise_family(
        setting,
        setting.cohort,
        (MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER),
        bits=bits,
        server_noise=setting.server_noise,
    )


RECORDS = (
    *(
        MechanismRecord(
            kind,
            functools.partial(AdditiveMechanism, kind),
            HELP,
            example={"clip_norm": 1.0, "noise_multiplier": 2.0},
            tuning=Tuning(update=_noisy_updates),
            trusts=("aggregate",),
            whole_update=True,
            run_settings=("cohort", "coordinates", "subset_seed"),
            place=place,
        )
        for place, kind in enumerate(NOISES, 5)
    ),
    MechanismRecord(
        HELPER_NOISE,
        HelperNoise,
        {**HELP, "server_noise": "whether the server adds as much noise (default True)"},
        example={"clip_norm": 1.0, "noise_multiplier": 2.0},
        tuning=Tuning(update=_helped_updates),
        trusts=("aggregate",),
        whole_update=True,
        run_settings=("clients", "coordinates", "subset_seed"),
        helper_noise=True,
        place=8,
    ),
)
