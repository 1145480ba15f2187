"""The class that mechanisms derive from: default answers, and checks of the payloads of a sum."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from randquant._internal import validate
from randquant.aggregation.layout import Update, as_vector
from randquant.aggregation.mechanism import CoordinateError, UpdateMechanism, normal_coordinate
from randquant.aggregation.rotation import Projection, check_coordinates, check_seed
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release, Releasing
from randquant.privacy.guarantee import Neighboring

AUDIT_SCALE = 1024.0
"""Audit inputs are this many times the clipping threshold, so that missing clipping shows."""

MAX_COORDINATES = 2**40
"""Most coordinates of an update; a larger number is a mistake, not an update."""

MAX_LOG_COLLISION = -40 * math.log(2)
"""Equal payloads whose log probability is below this are taken for duplicates: of 2**40 calls of
`mean` with payloads of different clients, at most one is refused by chance."""


class MechanismDefaults(Releasing):
    """Default answers of a mechanism, from its own properties, `encode`, `mean` and the rest.

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


class ProjectedUpdates:
    """The part of mechanisms that clip and rotate whole updates, and send all or some coordinates.

    A mechanism names it before `MechanismDefaults`; the fields are those of `VectorMechanism`.
    """

    __slots__ = ()

    clip_norm: float
    rotation_seed: int
    coordinates: int | None
    subset_seed: int | None

    def _check_projection(self) -> None:
        validate.whole("rotation_seed", self.rotation_seed, low=0, high=2**64 - 1)
        check_coordinates(self.coordinates)
        check_seed(self.subset_seed)

    def in_round(self: Any, seed: int) -> Any:
        check_seed(seed)
        return self if self.coordinates is None else replace(self, subset_seed=seed)

    def projection(self, dimension: int) -> Projection:
        return Projection(
            dimension, self.clip_norm, self.rotation_seed, self.coordinates, self.subset_seed
        )

    def size(self, dimension: int) -> int:
        return self.projection(dimension).size

    def expected_error(self: Any, dimension: int) -> CoordinateError:
        projection = self.projection(dimension)
        return projection.error(mean_error(self, dimension, projection.rotated))


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
    copies = len(payloads) - len(set(payloads))
    if copies and log_equal + math.log(math.comb(len(payloads), 2)) < MAX_LOG_COLLISION:
        first: dict[bytes, int] = {}
        index = next(i for i, p in enumerate(payloads) if first.setdefault(p, i) != i)
        raise ValueError(
            f"Expected each client's payload once in a sum, got {copies} duplicates among "
            f"{len(payloads)}, payload {index} is payload {first[payloads[index]]} again: a "
            "duplicate counts its client twice and adds no noise of its own."
        )
