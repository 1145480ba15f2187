"""The protocol of a mechanism for whole updates, and answers that most mechanisms share.

Plan, accounting, audit, training and engines ask a mechanism; none of them looks at its class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from randquant.aggregation.error import CoordinateError, normal_coordinate
from randquant.channels.channel import Channel
from randquant.channels.keys import Key
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Neighboring, Trust

BEYOND = 1024.0
"""How many times its threshold an audit's inputs lie beyond it, so that a missing clip shows."""


class UpdateMechanism(Protocol):
    """How a cohort's updates become bytes and those bytes a mean.

    A mechanism of your own derives from `MechanismDefaults`, which answers what is below
    `release`; the four facts and four methods above are its own.
    """

    @property
    def trust(self) -> Trust | None:
        """Against whom it protects; None where nothing is protected."""
        ...

    @property
    def cohort(self) -> int:
        """How many clients' randomness the guarantee counts on in a sum; 1 counts on nobody."""
        ...

    @property
    def clip_norm(self) -> float | None:
        """Threshold of a whole update's norm; None where each coordinate is clipped alone."""
        ...

    @property
    def channel(self) -> Channel | None:
        """The channel that the codes of a payload are drawn from; None where there is none."""
        ...

    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """On a client: an update (d,) float32 to a payload, with a key of its own."""
        ...

    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """On the server: payloads to an estimate of the clipped updates' mean, (d,) float32."""
        ...

    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """Bytes that a client sends for one update, header and padding included.

        Under `aggregate` trust that is a vector masked for a sum over `clients`, or over the cohort
        that the guarantee counts on; what a secure sum sends besides is not included.
        """
        ...

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """The record that accounting needs; None where nothing is protected."""
        ...

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        """What clients that are simulated side by side send: the payload of each row (n, d).

        Guarantees:
            Payload i is encode(updates[i], keys[i]).
        """
        ...

    @property
    def coordinate_channel(self) -> Channel | None:
        """The channel that draws a code of each coordinate of an update as it stands.

        None where something comes before it, as a rotation. Codes that are drawn elsewhere and
        added up may be given to `decode`, if the channel's values are evenly spaced.
        """
        ...

    def size(self, dimension: int) -> int:
        """How many numbers an update of so many coordinates is sent as, padding included."""
        ...

    def decode(self, totals: np.ndarray, clients: int, dimension: int) -> np.ndarray:
        """The mean update, (dimension,) float32, from the sum of the codes of so many clients.

        Args:
            totals: (size(dimension),) int64, the codes of a secure sum.
            clients: how many are summed.
            dimension: coordinates of an update.

        Raises:
            ValueError: there are too few clients, or sums of codes do not decode.
        """
        ...

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of what coordinates x of one update, as sent, are decoded as.

        Args:
            x: (k,) float64, coordinates of an update after the norm was clipped, rotated if the
                mechanism rotates.
            dimension: coordinates of an update.

        Returns:
            (mean, variance), (k,) float64 each; noise that a server adds is not in them.
        """
        ...

    def expected_error(self, dimension: int) -> CoordinateError:
        """How far a coordinate of a decoded mean is from that of the updates' mean.

        The updates are as long as clip_norm, their coordinates as sent are normal, as those of a
        rotated vector that was not chosen with the rotation in mind nearly are. An expectation and
        not a guarantee (`docs/theory/plan.md`).

        Raises:
            TypeError: updates are not clipped in L2 as a whole.
        """
        ...

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        """What all coordinates of an update and of its neighbour should be in an audit.

        They are the pair that the mechanism should have most trouble to hide, and lie beyond its
        threshold, so that a missing clip shows.
        """
        ...

    def record(self) -> dict[str, Any]:
        """JSON data from which `saved.from_record` makes an equal mechanism.

        Raises:
            TypeError: the mechanism cannot be saved.
        """
        ...


class MechanismDefaults(ABC):
    """What a mechanism answers alike, given its facts and its own `encode`, `mean` and the rest.

    It is derived from once: a mechanism is final, for what it answers holds for its own `encode`
    only. To do something before or after another mechanism, hold that one and call it.

    Raises:
        TypeError: a class derives from a mechanism instead of from this.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        for parent in cls.__bases__:
            if parent is not MechanismDefaults and issubclass(parent, MechanismDefaults):
                raise TypeError(
                    f"Expected no class derived from {parent.__name__}, got {cls.__name__}: what a "
                    "mechanism states holds for its own encode only; hold one and call it instead."
                )
        super().__init_subclass__(**options)

    @abstractmethod
    def encode(self, update: np.ndarray, key: Key) -> bytes:
        """See `UpdateMechanism`."""

    @abstractmethod
    def mean(self, payloads: Sequence[bytes], dimension: int, key: Key) -> np.ndarray:
        """See `UpdateMechanism`."""

    @abstractmethod
    def upload_bytes(self, dimension: int, clients: int | None = None) -> int:
        """See `UpdateMechanism`."""

    @abstractmethod
    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release | None:
        """See `UpdateMechanism`."""

    def encode_many(self, updates: np.ndarray, keys: Sequence[Key]) -> list[bytes]:
        """One after the other."""
        return [self.encode(update, key) for update, key in zip(updates, keys, strict=True)]

    @property
    def coordinate_channel(self) -> Channel | None:
        """None: only `encode` makes payloads."""
        return None

    def size(self, dimension: int) -> int:
        """A number for each coordinate."""
        return dimension

    def decode(self, totals: np.ndarray, clients: int, dimension: int) -> np.ndarray:
        """Refused: sums of codes do not decode."""
        raise ValueError(
            f"Expected a mechanism whose sums of codes decode, got a {type(self).__name__}: give "
            "payloads to its mean."
        )

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        """Refused: not known."""
        raise no_error(self)

    def expected_error(self: UpdateMechanism, dimension: int) -> CoordinateError:
        """From `decoded`, at coordinates of a vector as long as clip_norm."""
        return error_of(self, dimension)

    def audit_inputs(
        self: UpdateMechanism, neighboring: Neighboring = "replace_one"
    ) -> tuple[float, float]:
        """On either side of zero, far beyond clip_norm; or beyond it and zero."""
        if self.clip_norm is None:
            raise ValueError(
                f"Expected a mechanism with clip_norm, clip or channel, got {self!r}: say which "
                "updates to audit it with."
            )
        return beyond(self.clip_norm, neighboring)

    def record(self) -> dict[str, Any]:
        """Refused: a class that is not of this package cannot be found again."""
        raise TypeError(
            f"Expected a mechanism of this package, got a {type(self).__name__}: it cannot be "
            "saved or sent."
        )


def error_of(mechanism: UpdateMechanism, dimension: int) -> CoordinateError:
    """The error of a decoded mean, from what a mechanism decodes normal coordinates as.

    Raises:
        TypeError: updates are not clipped as a whole, or how they are decoded is not known.
    """
    if mechanism.clip_norm is None:
        raise no_error(mechanism)
    x, weights = normal_coordinate(mechanism.clip_norm, mechanism.size(dimension))
    mean, variance = mechanism.decoded(x, dimension)
    return CoordinateError.of(x, weights, variance, mean - x)


def beyond(threshold: float, neighboring: Neighboring) -> tuple[float, float]:
    """Two inputs of an audit, far beyond a threshold of clipping, on either side of zero."""
    return BEYOND * threshold, 0.0 if neighboring == "zero_out" else -BEYOND * threshold


def no_error(mechanism: object) -> TypeError:
    """What to raise where the error of a decoded mean is not known."""
    return TypeError(
        f"Expected a mechanism for whole updates clipped in l2, got {mechanism!r}: its error is "
        "known for no other."
    )
