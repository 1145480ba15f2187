"""A mechanism for whole updates: its protocol, and the class with default answers to derive from.

Planning, accounting, audit, training and engines use the protocol only, never the class.
"""

from __future__ import annotations

import contextlib
import functools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar, Protocol

import numpy as np

from randquant._internal import validate
from randquant._internal.formatting import round_up
from randquant.aggregation.layout import Update, as_vector
from randquant.channels import wire
from randquant.channels.channel import Channel
from randquant.channels.keys import Key
from randquant.privacy.accounting.release_protocol import Release, Releasing
from randquant.privacy.guarantee import Neighboring, Trust

# Expected error of a decoded mean, per coordinate.
#
# An expectation and not a guarantee. Derivation: `docs/theory/plan.md`.

# Beyond 8 deviations a normal law has 1.2e-15 of its mass. There are 250 points a deviation, since
# variances have corners at a channel's vertices.
GRID = np.linspace(-8, 8, 4001)
"""Points, in standard deviations, at which a normal coordinate is evaluated."""


@dataclass(frozen=True, slots=True)
class CoordinateError:
    """Error of one client's decoded coordinate x: decoded / gain = x + bias + noise.

    Attributes:
        variance: of the decoded coordinate, averaged over x.
        bias: mean square of the bias that is not proportional to x.
        gain: E[x · decoded] / E[x^2], the factor by which a decoded update is scaled.
        sum_noise: standard deviation of noise that is added once, to the sum of a cohort.
        omitted: squared error per squared length of the mean, because only a subset of the
            coordinates is sent.
        longest: largest length of the mean.
    """

    variance: float
    bias: float = 0.0
    gain: float = 1.0
    sum_noise: float = 0.0
    omitted: float = 0.0
    longest: float = 0.0

    @classmethod
    def from_points(
        cls, x: np.ndarray, weights: np.ndarray, variance: np.ndarray, bias: np.ndarray
    ) -> CoordinateError:
        """Average over points x, given their weights, and the variance and bias at each of them."""
        square, bias_product = float(weights @ x**2), float(weights @ (bias * x))
        # A bias in proportion to x is a gain, which the server divides by; the rest stays a bias.
        rest = float(weights @ bias**2) - bias_product**2 / square
        # Cauchy and Schwarz keep the rest from being negative, rounding does not.
        return cls(float(weights @ variance), max(rest, 0.0), 1 + bias_product / square)

    def deviation(self, cohort: int, mean_norm: float | None = None) -> float:
        """Return the root mean squared error of a coordinate of the decoded mean of a cohort.

        Args:
            cohort: how many clients send an update.
            mean_norm: length of the mean of their clipped updates, which matters if only a subset
                of coordinates is sent; by default `longest`, as if all updates were the same.

        Returns:
            sqrt(E|decoded mean / gain - mean of clipped updates|^2 / dimension). The gain is 1 if
            the mechanism is unbiased; otherwise the mean is rescaled first, as a step size would:
            without it, a mechanism that sends nothing would have a small error.
            Variances average out over clients; the remaining bias is counted as if all clients had
            the same update, the worst case.

        Example:
            >>> CoordinateError(variance=16.0).deviation(cohort=16)
            1.0
        """
        cohort = validate.whole("cohort", cohort, low=1)
        # No positive step size brings such a decoded mean nearer to the mean.
        if self.gain <= 0:
            return math.inf
        added = (self.sum_noise / cohort) ** 2
        noise = (self.variance / cohort + added + self.bias) / self.gain**2
        length = self.longest
        if mean_norm is not None:
            length = validate.real("mean_norm", mean_norm, low=0)
        return math.sqrt(noise + self.omitted * length**2)

    def mean_norm(self, means: Sequence[np.ndarray], cohort: int) -> float:
        """Estimate the length of a mean of clipped updates from means that were decoded.

        It costs no privacy: these means have been released.

        Args:
            means: (d,) floats each, decoded means of rounds of the same mechanism.
            cohort: how many clients' updates are in each.

        Returns:
            Root mean square of the length over these rounds, of which the expected errors are
            subtracted; 0 if nothing is seen above the noise.

        Example:
            >>> CoordinateError(variance=16.0).mean_norm([np.array([3.0, 4.0, 3.0])], cohort=16)
            5.5677...
        """
        squares = []
        for mean in validate.listed("means", means):
            decoded = np.asarray(mean, dtype=np.float64)
            # theory/subsets.md, Proposition 4: E|decoded/g|^2 = |m|^2 + d·(noise + omitted·|m|^2).
            seen = float(decoded @ decoded) / self.gain**2
            noise = decoded.size * self.deviation(cohort, 0.0) ** 2
            squares.append((seen - noise) / (1 + decoded.size * self.omitted))
        if not squares:
            raise ValueError("Expected a decoded mean of at least one round, got 0 means.")
        # Squares are averaged before the root: where noise is longer than the mean single ones are
        # negative, and to cut each off at 0 would leave a mean where there is none.
        return math.sqrt(max(math.fsum(squares) / len(squares), 0.0))


def normal_coordinate(norm: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points and weights of a normal coordinate of a vector of this norm.

    No coordinate exceeds the norm; a vector's only coordinate equals it up to its sign.

    Args:
        norm: L2 norm of the vector.
        size: its coordinates.

    Returns:
        (points, weights), (k,) float64 each; the weights sum to 1.

    Example:
        >>> normal_coordinate(2.0, 1)
        (array([-2.,  2.]), array([0.5, 0.5]))
    """
    size = validate.whole("size", size, low=1)
    if size == 1:
        return np.array([-norm, norm]), np.array([0.5, 0.5])
    return np.clip(GRID * (norm / math.sqrt(size)), -norm, norm), _weights()


@functools.cache
def _weights() -> np.ndarray:
    density = np.exp(-(GRID**2) / 2)
    return density / density.sum()


class UpdateMechanism(Releasing, Protocol):
    """A mechanism for whole updates: clients encode payloads, the server decodes their mean.

    A mechanism of your own derives from `MechanismDefaults`, which says what it must define.
    """

    @property
    def trust(self) -> Trust | None:
        """Trust model: `local`, `aggregate` or `central`; None without protection."""
        ...

    @property
    def cohort(self) -> int:
        """Fewest clients whose noise the guarantee of a sum relies on; 1: a client's own only."""
        ...

    @property
    def clip_norm(self) -> float | None:
        """Clipping threshold of a whole update's norm; None if coordinates are clipped instead."""
        ...

    from_zero: ClassVar[bool]
    """Whether updates are answers of their own, not differences from a model, which is zeros."""

    @property
    def helper_noise(self) -> bool:
        """True if the helper of a secure sum adds the noise; then clients add none of their own."""
        ...

    @property
    def channel(self) -> Channel | None:
        """The channel that the codes of a payload are drawn from; None if there is none."""
        ...

    def encode(self, update: Update, key: Key) -> bytes:
        """Encode an update as a payload, on a client.

        Args:
            update: (d,) floats of 16, 32 or 64 bits, of NumPy or torch on any device, or a state
                dict's difference, which `StateLayout` flattens.
            key: used for this one encoding only.

        Raises:
            ValueError: a number is NaN or infinite (the error names it), or the update is not a
                vector, or the key was used before.
            TypeError: the update is no dense array of floats.
        """
        ...

    def mean(
        self,
        payloads: Iterable[bytes],
        dimension: int | None = None,
        key: Key | None = None,
    ) -> np.ndarray:
        """Estimate the mean of the clipped updates, on the server.

        Args:
            payloads: one of each client.
            dimension: coordinates of an update; None to read it from the payloads.
            key: for a server that adds noise of its own (`central` trust); others need none.

        Returns:
            (d,) float32.

        Guarantees:
            The same payload twice is refused where n different clients' payloads would hold an
            equal pair with a probability below 2**-40.

        Raises:
            ValueError: a payload is damaged, of another channel or dimension, or a duplicate (the
                error names it by its index); or there are too few payloads. (A payload does not
                state the threshold and the rotation that its client used.)
            TypeError: a payload is not bytes, or a key or the dimension is needed and missing.
        """
        ...

    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """Return the bytes that a client sends for one update, header and padding included.

        Under `aggregate` trust this is a vector masked for a sum over `clients` (by default over
        `cohort`); the other messages of secure aggregation are not included.
        """
        ...

    def sum_bits(self, dimension: int, clients: int) -> int:
        """Return the bits of the modulus of a masked sum over `clients` clients.

        `decode` undoes the wrapping around, for as many clients or fewer
        (`docs/theory/narrow-sums.md`).

        Raises:
            ValueError: the mechanism's payloads are not summed.
        """
        ...

    def payload_bytes(self, dimension: int) -> int:
        """Return the bytes of `encode`'s payload, as a client sends it without secure
        aggregation."""
        ...

    def payload_dimension(self, payload: bytes) -> int:
        """Return the number of coordinates of the update that a payload was made of.

        Raises:
            ValueError: it is not a payload of this mechanism.
            TypeError: payloads do not state it.
        """
        ...

    def log_equal(self, dimension: int) -> float:
        """Bound the log probability that two clients send equal payloads.

        Over all updates; 0 if nothing better is known. `mean` refuses duplicates by it.
        """
        ...

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Estimate the mean from payloads that `mean` has checked for copies."""
        ...

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        """Encode the updates (n, d) of several simulated clients at once: one payload a row.

        Guarantees:
            Payload i is encode(updates[i], keys[i]).
        """
        ...

    @property
    def coding(self) -> wire.Coding | None:
        """Facts on the codes that a payload's header states; None if there are no codes.

        They are the channel, and which coordinates are sent if not all are.
        """
        ...

    def in_round(self, seed: int) -> UpdateMechanism:
        """Return the mechanism of one round, for its clients and the server.

        Args:
            seed: public whole number below 2**64, the same for all of them and another one in each
                round. It chooses which coordinates are sent, if not all are.

        Guarantees:
            The guarantee holds for any seed, also an attacker's: `release` is the same.

        Raises:
            ValueError, TypeError: it is no such number.
        """
        ...

    def size(self, dimension: int) -> int:
        """Count the codes or numbers that an update is sent as, padding included."""
        ...

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        """Decode the mean update, (dimension,) float32, from a cohort's sum of codes.

        Args:
            totals: (size(dimension),) integers, the summed codes, or their remainders modulo
                2**bits; of integer noise, which sends remainders itself, only the latter.
            clients: how many clients are in the sum.
            dimension: coordinates of an update.
            bits: of the modulus; `sum_bits(dimension, clients)` by default, and no fewer.

        Raises:
            ValueError: there are too few clients, a total is out of range, or the mechanism cannot
                decode sums of codes.
        """
        ...

    def influence(self, dimension: int, clients: int) -> float:
        """Bound how far one client moves the decoded mean by valid codes of its choice, in l2.

        Args:
            dimension: coordinates of an update.
            clients: how many are in the mean.

        Guarantees:
            Two exact sums of codes that differ in one client's decode to means at most so far
            apart, before they are rounded (`docs/theory/helper-sums.md`, Proposition 10). In a sum
            without proofs a client is not kept to valid codes.

        Raises:
            TypeError: no bound is known.
        """
        ...

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of one client's decoded coordinate, given its value x.

        Args:
            x: (k,) float64, coordinates of an update after clipping the norm, and after rotation
                if the mechanism rotates.
            dimension: coordinates of an update.

        Returns:
            (mean, variance), (k,) float64 each, without the noise that a server adds.
        """
        ...

    def expected_error(self, dimension: int) -> CoordinateError:
        """Return the expected error of a coordinate of the decoded mean.

        It assumes updates of norm clip_norm with normally distributed coordinates, which a random
        rotation nearly makes them unless an update was chosen to defeat it. An expectation and
        not a guarantee (`docs/theory/plan.md`).

        Raises:
            TypeError: updates are not clipped in L2 as a whole.
        """
        ...

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        """Return the value of all coordinates of an update, and that of its neighbour, for an
        audit.

        The pair should be the hardest for the mechanism to hide. It lies beyond the clipping
        threshold, so that missing clipping shows.
        """
        ...

    def record(self) -> dict[str, Any]:
        """Return JSON data from which `registry.from_record` makes an equal mechanism.

        Raises:
            TypeError: the mechanism cannot be saved.
        """
        ...


AUDIT_SCALE = 1024.0
"""Audit inputs are this many times the clipping threshold, so that missing clipping shows."""

MAX_COORDINATES = 2**40
"""Most coordinates of an update; a larger number is a mistake, not an update."""

MAX_LOG_COLLISION = -40 * math.log(2)
"""Equal payloads whose log probability is below this are taken for duplicates: of 2**40 calls of
`mean` with payloads of different clients, at most one is refused by chance."""


class MechanismDefaults(Releasing):
    """The class that a mechanism of your own derives from: default answers to the rest.

    A mechanism defines `trust`, `cohort`, `clip_norm` and `channel`, as properties, fields or
    attributes of the class, and the methods `encode_vector`, `mean_vector` and `release`. Nothing
    but `audit` can check that `release` bounds what `encode_vector` sends.
    `decode`, `influence`, `decoded` and `record` raise an error unless a mechanism defines them.
    A mechanism derives from this class and is final: its statements hold for its own `encode`
    only. To add a step before or after another mechanism, hold that mechanism and call it.

    Raises:
        TypeError: a class derives from a mechanism instead of from this.
    """

    __slots__ = ()

    from_zero: ClassVar[bool] = False
    helper_noise = False

    def __init_subclass__(cls, **options: Any) -> None:
        for parent in cls.__bases__:
            if parent is not MechanismDefaults and issubclass(parent, MechanismDefaults):
                raise TypeError(
                    f"Expected no class derived from {parent.__name__}, got {cls.__name__}: a "
                    "mechanism's guarantee holds for its own encode only; hold one and call it "
                    "instead."
                )
        super().__init_subclass__(**options)

    @abstractmethod
    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        """Encode a vector (d,) float32 or float64 as a payload; `encode` converts to it."""

    @abstractmethod
    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        """Estimate the mean, (d,) float32, from at least one payload; `mean` checks for copies.

        `for_each_payload` names a bad payload by its index.
        """

    @abstractmethod
    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """See `UpdateMechanism`."""

    def encode(self, update: Update, key: Key) -> bytes:
        """Convert the update to a vector (`layout.as_vector`) and encode that."""
        validate.kind("key", key, Key)
        return self.encode_vector(as_vector(update), key)

    def mean(
        self: UpdateMechanism,
        payloads: Iterable[bytes],
        dimension: int | None = None,
        key: Key | None = None,
    ) -> np.ndarray:
        """Check that there are enough payloads, each once, and estimate the mean."""
        listed = _as_payloads(payloads)
        if dimension is None:
            dimension = _first_dimension(self, listed[0])
        dimension = validate.whole("dimension", dimension, low=1, high=MAX_COORDINATES)
        if key is not None:
            validate.kind("key", key, Key)
        _check_payloads(listed, self.cohort, self.log_equal(dimension))
        return self.mean_vector(listed, dimension, key)

    def payload_dimension(self: UpdateMechanism, payload: bytes) -> int:
        """Read the dimension from a header of codes; raise TypeError if there is no such header."""
        if self.coding is not None:
            return wire.stated_dimension(self.coding, payload)
        raise TypeError(
            f"Expected the dimension, which payloads of a {type(self).__name__} do not state: give "
            "it as mean(payloads, dimension)."
        )

    def log_equal(self, dimension: int) -> float:
        # Payloads may be equal by chance, so copies are not noticed.
        return 0.0

    def sum_bits(self: UpdateMechanism, dimension: int, clients: int) -> int:
        """Return the bits that any sum of the channel's codes needs."""
        if self.channel is None:
            raise ValueError(
                f"Expected a mechanism that sends codes to sum, got a {type(self).__name__}."
            )
        return wire.sum_bits(self.channel.levels, clients)

    def payload_bytes(self, dimension: int) -> int:
        # Measured: every update of this dimension is encoded in as many bytes as zeros.
        return len(self.encode_vector(np.zeros(dimension, np.float32), Key.from_seed(0)))

    def upload_bytes(self: UpdateMechanism, dimension: int, clients: int | None = None) -> int:
        """Return the bytes of a payload, or under `aggregate` trust of a masked vector."""
        if self.trust != "aggregate":
            return self.payload_bytes(dimension)
        bits = self.sum_bits(dimension, self.cohort if clients is None else clients)
        return wire.masked(self.size(dimension), bits)

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        """Encode one update after the other."""
        rows, each_key = validate.listed("updates", updates), validate.listed("keys", keys)
        if len(rows) != len(each_key):
            raise ValueError(
                f"Expected a key for each of {len(rows)} updates, got {len(each_key)}: give every "
                "client a key of its own."
            )
        return [self.encode(update, key) for update, key in zip(rows, each_key, strict=True)]

    @property
    def coding(self: UpdateMechanism) -> wire.Coding | None:
        return self.channel

    def in_round(self: UpdateMechanism, seed: int) -> UpdateMechanism:
        """Return this mechanism: it is the same in each round."""
        check_seed(seed)
        return self

    def size(self, dimension: int) -> int:
        return validate.whole("dimension", dimension, low=1)

    def decode(
        self, totals: np.ndarray, clients: int, dimension: int, bits: int | None = None
    ) -> np.ndarray:
        raise ValueError(
            f"Expected a mechanism that decodes sums of codes, got a {type(self).__name__}: give "
            "payloads to its mean."
        )

    def certified(self, dimension: int) -> dict[str, Any]:
        """Return what `release` is of, as a certificate file states it: `docs/certificate-file.md`.

        Raises:
            ValueError: its format cannot state this mechanism, as by default.
        """
        raise ValueError(
            f"Expected a mechanism that a certificate file can state, got {type(self).__name__}: "
            "version 1 of its format has no such release."
        )

    def influence(self, dimension: int, clients: int) -> float:
        raise TypeError(
            f"Expected a mechanism whose sums of codes decode evenly, got a {type(self).__name__}: "
            "no bound of one client's influence is known."
        )

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        raise error_unknown(self)

    def expected_error(self: UpdateMechanism, dimension: int) -> CoordinateError:
        return mean_error(self, dimension)

    def audit_inputs(
        self: UpdateMechanism, neighboring: Neighboring = "replace_one"
    ) -> tuple[float, float]:
        """Return inputs far beyond ±clip_norm; under `zero_out` one far beyond it, and zero."""
        if self.clip_norm is None:
            raise ValueError(
                f"Expected a mechanism with clip_norm, clip or channel, got {self!r}: say which "
                "updates to audit it with."
            )
        return unclipped_pair(self.clip_norm, neighboring)

    def record(self) -> dict[str, Any]:
        raise TypeError(
            f"Expected a mechanism of this package, got a {type(self).__name__}: it cannot be "
            "saved or sent."
        )


def _first_dimension(mechanism: UpdateMechanism, payload: bytes) -> int:
    try:
        return mechanism.payload_dimension(payload)
    except ValueError as error:
        raise ValueError(f"payload 0: {error}") from error


def mean_error(
    mechanism: UpdateMechanism, dimension: int, rotated: int | None = None
) -> CoordinateError:
    """Average the error of a decoded mean over normally distributed coordinates, from `decoded`.

    Args:
        mechanism: the mechanism.
        dimension: coordinates of an update.
        rotated: over how many coordinates its norm is spread; by default as many as are sent.

    Raises:
        TypeError: updates are not clipped as a whole, or `decoded` is not known.
    """
    if mechanism.clip_norm is None:
        raise error_unknown(mechanism)
    x, weights = normal_coordinate(mechanism.clip_norm, rotated or mechanism.size(dimension))
    mean, variance = mechanism.decoded(x, dimension)
    return CoordinateError.from_points(x, weights, variance, mean - x)


def check_seed(seed: int | None) -> None:
    if seed is not None:
        validate.whole("subset_seed", seed, low=0, high=2**64 - 1, why="it is 8 bytes")


def unclipped_pair(threshold: float, neighboring: Neighboring) -> tuple[float, float]:
    # Of opposite signs, or one of them zero: the pair that missing clipping would tell apart best.
    return AUDIT_SCALE * threshold, 0.0 if neighboring == "zero_out" else -AUDIT_SCALE * threshold


def error_unknown(mechanism: object) -> TypeError:
    return TypeError(
        f"Expected a mechanism for whole updates clipped in l2, got {mechanism!r}: the expected "
        "error is known for those only."
    )


def _as_payloads(payloads: Iterable[bytes]) -> list[bytes]:
    """Return the payloads as a list of bytes.

    Raises:
        ValueError: the list is empty.
        TypeError: it is not a list of payloads, or one of them is not bytes; the error names it.
    """
    # A lone payload is iterable too: without this the error would be about its first byte.
    if isinstance(payloads, bytes | bytearray | memoryview | str):
        raise TypeError(
            f"Expected a list of payloads, got {type(payloads).__name__}: put it in []."
        )
    listed = validate.listed("payloads", payloads)
    if not listed:
        raise ValueError("Expected at least one payload to aggregate, got 0 payloads.")
    for index, payload in enumerate(listed):
        if not isinstance(payload, bytes | bytearray | memoryview):
            raise TypeError(
                f"payload {index}: Expected bytes from encode, got {type(payload).__name__}."
            )
    return [bytes(payload) for payload in listed]


def for_each_payload(payloads: Sequence[bytes], use: Callable[[bytes], object]) -> None:
    """Call `use` with each payload, in order.

    Raises:
        ValueError: `use` raised one; the error names the payload by its index.
    """
    for index, payload in enumerate(payloads):
        try:
            use(payload)
        except ValueError as error:
            raise ValueError(f"payload {index}: {error}") from error


def check_cohort_size(clients: int, cohort: int) -> None:
    if clients < cohort:
        raise ValueError(
            f"Expected at least {cohort} payloads in a sum, got {clients}: with the noise of "
            "fewer clients the guarantee does not hold."
        )


def centred_sums(totals: np.ndarray, bits: int) -> np.ndarray:
    """Return the sums in [-2**(bits - 1), 2**(bits - 1)) that have these remainders.

    Args:
        totals: integers in [0, 2**bits), of any dtype.
        bits: of the modulus.

    Returns:
        Their shape, int64.

    Raises:
        TypeError: they are no integers.
        ValueError: one is out of range.

    Example:
        >>> centred_sums(np.array([0, 127, 128, 255], np.uint8), 8)
        array([   0,  127, -128,   -1])
    """
    totals, half = np.asarray(totals), 1 << (bits - 1)
    if totals.dtype.kind not in "iu":
        raise TypeError(f"Expected sums of codes, which are integers, got {totals.dtype}.")
    # theory/additive.md, Proposition 10: a sum of another modulus may reveal single clients, though
    # its remainders would be the same.
    beyond = totals[(totals < 0) | (totals >= 2 * half)]
    if beyond.size:
        raise ValueError(
            f"Expected sums modulo 2**{bits}, from 0 to {2 * half - 1}, got {beyond.flat[0]}: give "
            "secure sums this modulus (mechanism.sum_bits), since wider ones reveal more than is "
            f"counted, and reduce sums of your own, totals % 2**{bits}."
        )
    # Signed before anything is subtracted: secure sums come as unsigned integers.
    totals = totals.astype(np.int64)
    return np.where(totals < half, totals, totals - 2 * half)


def _check_payloads(payloads: Sequence[bytes], cohort: int, log_equal: float) -> None:
    """Check that enough different clients sent the payloads of a sum.

    A duplicate adds no noise of its own, and its client would count twice. Duplicates are
    recognised by their bytes, and so only if two clients hardly ever send equal payloads: n
    payloads hold an equal pair by chance with a probability of at most n (n - 1) / 2 times that of
    one pair (`docs/theory/encoding.md`), which must be below 2**-40.

    Args:
        payloads: of one sum.
        cohort: how many clients the guarantee relies on; 1 relies on nobody else.
        log_equal: upper bound of the log probability that two clients send equal payloads, over
            all updates.

    Raises:
        ValueError: there are fewer than `cohort`; or one is a duplicate, although any two would be
            equal with a log probability below MAX_LOG_COLLISION.
    """
    check_cohort_size(len(payloads), cohort)
    # A lone payload has no copy, so that the logarithm below is never that of zero pairs.
    copies = len(payloads) - len(set(payloads))
    if copies and log_equal + math.log(math.comb(len(payloads), 2)) < MAX_LOG_COLLISION:
        first: dict[bytes, int] = {}
        index = next(i for i, p in enumerate(payloads) if first.setdefault(p, i) != i)
        raise ValueError(
            f"Expected each client's payload once in a sum, got {copies} duplicates among "
            f"{len(payloads)}, payload {index} is payload {first[payloads[index]]} again: a "
            "duplicate counts its client twice and adds no noise of its own."
        )


def describe_influence(
    mechanism: UpdateMechanism, dimension: int, clients: int, divisor: int | None = None
) -> str:
    """Bound how far one client moves a secure sum's mean: by codes, by any vector, by its update.

    Args:
        mechanism: of the round.
        dimension: coordinates of an update.
        clients: how many are in the sum, those that send zeros included.
        divisor: the number that the sum is divided by; `clients` by default.

    Returns:
        One line, its bounds rounded up; empty where sums are not of codes.

    Guarantees:
        No valid codes move the decoded mean further, before it is rounded, and no vector moves a
        sum that is not refused further (`docs/theory/helper-sums.md`, Proposition 10).

    Example:
        >>> import randquant as rq
        >>> bit = rq.stochastic_rounding(clip=0.125, levels=2, margin=0.526)
        >>> describe_influence(rq.VectorMechanism(bit, 1.0, "aggregate", 60), 650, 100)
        'one hostile client of 100 moves the mean by at most 0.417 (l2) by valid codes, 41.7 by \
any vector where codes are not proven; an honest client that replaces its update moves the exact \
mean by at most 0.02; with proofs a client sends 12,620 bytes'
    """
    # Only here: most of what imports mechanisms needs no proofs.
    from randquant.secure_sums.helper.proven import proven_bytes

    channel = mechanism.channel
    if mechanism.trust != "aggregate" or channel is None or not clients:
        return ""
    divisor = clients if divisor is None else divisor
    try:
        valid = mechanism.influence(dimension, clients) * clients / divisor
    except TypeError:  # a user's own mechanism, for which no bound is known
        return ""
    largest = channel.levels - 1
    # What is sent counts modulo a power of two, and no sum is above that of all clients' largest
    # codes.
    most = min(2 ** mechanism.sum_bits(dimension, clients) - 1, clients * largest)
    line = (
        f"one hostile client of {clients:,} moves the mean by at most {round_up(valid, 3)} (l2) by "
        f"valid codes, {round_up(valid * most / largest, 3)} by any vector where codes are not "
        "proven"
    )
    if mechanism.clip_norm is not None:
        # In decimals: a float's last bit would make 0.0201 of 2 / 100.
        by_update = Decimal(2 * mechanism.clip_norm) / divisor
        line += (
            "; an honest client that replaces its update moves the exact mean by at most "
            f"{round_up(by_update, 3)}"
        )
    with contextlib.suppress(ValueError):  # of more codes than can be proven
        upload_bytes = proven_bytes(mechanism.size(dimension), largest)
        line += f"; with proofs a client sends {upload_bytes:,} bytes"
    return line
