"""Baselines: no privacy, Gaussian noise on the sum or on each update, signs of a noisy update.

All noise here is sampled in floating point: fit for comparison, not for deployment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from scipy.special import erf

from randquant._internal import validate
from randquant.aggregation.clipping import clip_to_norm, finite
from randquant.aggregation.layout import Update, as_vector
from randquant.aggregation.mechanism import (
    CoordinateError,
    MechanismDefaults,
    error_unknown,
    for_each_payload,
    unclipped_pair,
)
from randquant.aggregation.rotation import unrotated
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.mechanisms.registry import (
    CLIP,
    CLIP_NORM,
    NOISE_MULTIPLIER,
    STORED_MULTIPLIER,
    MechanismRecord,
    Tuning,
    multiplier_in_payloads,
    noise_family,
    stored_parameters,
)
from randquant.privacy.accounting.release_protocol import Release, update_distance
from randquant.privacy.accounting.releases import GaussianRelease
from randquant.privacy.divergence import UNIT
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust


class FloatPayloads:
    """Payloads of 32-bit floats, which need no secure sum, and their mean."""

    __slots__ = ()

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        return _mean_of_floats(payloads, dimension).astype(np.float32)

    def payload_dimension(self, payload: bytes) -> int:
        return _float_count(payload)

    def payload_bytes(self, dimension: int) -> int:
        return wire.floats(dimension)


UNPROTECTED = "clipped-sgd"
"""Name of the mechanism that clips updates and protects nothing."""


@final
@dataclass(frozen=True, slots=True)
class ClippedSGD(FloatPayloads, MechanismDefaults):
    """No privacy: clipped updates as 32-bit floats. The baseline that shows what privacy costs.

    Args:
        clip: per-coordinate clipping threshold; or
        clip_norm: clipping threshold of a whole update. Exactly one of the two.

    Raises:
        ValueError, TypeError: not exactly one threshold, or an argument is out of bounds.
    """

    clip: float | None = None
    clip_norm: float | None = None

    cohort = 1
    channel = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_thresholds(self.clip, self.clip_norm)

    @property
    def trust(self) -> None:
        return None

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        if self.clip_norm is not None:
            return clip_to_norm(vector, self.clip_norm).astype("<f4").tobytes()
        assert self.clip is not None
        limit = np.float32(self.clip)
        if float(limit) > self.clip:  # rounded up: what is sent must not exceed clip
            limit = np.nextafter(limit, np.float32(0))
        return np.clip(finite(vector), -limit, limit).astype("<f4").tobytes()

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> None:
        """Return None: there is no guarantee."""

    def expected_error(self, dimension: int) -> CoordinateError:
        if self.clip_norm is None:
            raise error_unknown(self)
        return CoordinateError(0.0)  # the mean of the clipped updates is sent exactly

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        threshold = self.clip if self.clip_norm is None else self.clip_norm
        assert threshold is not None
        return unclipped_pair(threshold, neighboring)

    def record(self) -> dict[str, Any]:
        return {"mechanism": UNPROTECTED, **asdict(self)}


@final
@dataclass(frozen=True, slots=True)
class CentralGaussian(FloatPayloads, MechanismDefaults):
    """A trusted server adds Gaussian noise to the exact sum of clipped updates.

    Args:
        clip: per-coordinate clipping threshold, or None; or
        noise_multiplier: standard deviation of the noise on the sum, in units of clip_norm, or of
            clip · sqrt(dimension), the norm of the longest clipped update: as other libraries
            count it, within [2e-100, 2e100].
        clip_norm: L2 clipping threshold of a whole update. Exactly one of clip and clip_norm.

    The noise is sampled in floating point: fit for comparison, not for deployment.

    Raises:
        ValueError, TypeError: not exactly one threshold, or an argument is out of bounds.
    """

    clip: float | None
    noise_multiplier: float
    clip_norm: float | None = None

    cohort = 1
    channel = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_thresholds(self.clip, self.clip_norm)
        _check_noise(self.noise_multiplier)

    @property
    def trust(self) -> Trust:
        return "central"

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        return ClippedSGD(self.clip, self.clip_norm).encode_vector(vector, key)

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        if key is None:
            raise TypeError(
                "Expected a key, got key=None: the server of a gaussian draws the noise, so give "
                "mean(payloads, key=rq.Key.generate())."
            )
        # The noise is that of the sum, however many answered: a mean of few has more of it.
        mean = _mean_of_floats(payloads, dimension)
        if self.clip_norm is not None:
            longest = self.clip_norm
        else:
            assert self.clip is not None
            longest = self.clip * math.sqrt(dimension)
        noise = self.noise_multiplier * longest / len(payloads) * _normals(dimension, key)
        return (mean + noise).astype(np.float32)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        multiplier = _multiplier(self.noise_multiplier, neighboring)
        return GaussianRelease(multiplier, dimension, rounds, "central", neighboring)

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """Return the release of the same noise at the distance of means of clipped gradients."""
        if self.clip_norm is None:
            return super(CentralGaussian, self).example_release(
                dimension, rounds, neighboring, examples
            )
        multiplier = _multiplier(self.noise_multiplier, neighboring, examples)
        return GaussianRelease(multiplier, dimension, rounds, "central", neighboring, True)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        # Noise is added to the sum only.
        return x, np.zeros_like(x)

    def expected_error(self, dimension: int) -> CoordinateError:
        if self.clip_norm is None:
            raise error_unknown(self)
        return CoordinateError(0.0, sum_noise=self.noise_multiplier * self.clip_norm)

    def audit_inputs(self, neighboring: Neighboring = "replace_one") -> tuple[float, float]:
        return ClippedSGD(self.clip, self.clip_norm).audit_inputs(neighboring)

    def certified(self, dimension: int) -> dict[str, Any]:
        multiplier, norm = float(self.noise_multiplier), self.clip_norm
        clip = "coordinates" if norm is None else "norm"
        update = unrotated(clip, norm or self.clip or 0.0, dimension)
        return {"kind": "gaussian noise", STORED_MULTIPLIER: multiplier, "update": update}

    def record(self) -> dict[str, Any]:
        return {"mechanism": "gaussian", **stored_parameters("gaussian", asdict(self))}


def gaussian(
    noise_multiplier: float, clip: float | None = None, clip_norm: float | None = None
) -> CentralGaussian:
    """Gaussian noise on the exact sum of clipped updates, in floating point: a baseline.

    Args:
        noise_multiplier, clip, clip_norm: see `CentralGaussian`; clip may be left out.
    """
    return CentralGaussian(clip, noise_multiplier, clip_norm)


@final
@dataclass(frozen=True, slots=True)
class LocalGaussian(FloatPayloads, MechanismDefaults):
    """Each client adds Gaussian noise to its own update, clipped in L2.

    Args:
        clip_norm: L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation of each client's noise, in units of clip_norm, as other
            libraries count it, within [2e-100, 2e100].

    The noise is sampled in floating point: fit for comparison, not for deployment.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.
    """

    clip_norm: float
    noise_multiplier: float

    cohort = 1
    channel = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        _check_thresholds(None, self.clip_norm)
        _check_noise(self.noise_multiplier)

    @property
    def deviation(self) -> float:
        return self.noise_multiplier * self.clip_norm

    def noisy(self, update: Update, key: Key) -> np.ndarray:
        """Add noise to the clipped update: (d,) float64."""
        update = as_vector(update)
        return clip_to_norm(update, self.clip_norm) + self.deviation * _normals(update.size, key)

    @property
    def trust(self) -> Trust:
        return "local"

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        # Rounded after the noise is added: what is computed from a protected vector costs nothing
        # more.
        return self.noisy(vector, key).astype("<f4").tobytes()

    def log_equal(self, dimension: int) -> float:
        """Bound log of the probability of equal floats, by the interval that rounds to one."""
        # Within 40 deviations, all but e^-800, a float of 32 bits is one of an interval of at most
        # 2**-23 · (clip_norm + 40 deviations); the density is below 1/(2 deviations).
        width = 2.0**-23 * (self.clip_norm / self.deviation + 40)
        return dimension * min(math.log(width), 0.0)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        multiplier = _multiplier(self.noise_multiplier, neighboring)
        return GaussianRelease(multiplier, dimension, rounds, "local", neighboring)

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        """Return the release of the same noise at the distance of means of gradients."""
        multiplier = _multiplier(self.noise_multiplier, neighboring, examples)
        return GaussianRelease(multiplier, dimension, rounds, "local", neighboring, True)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        return x, np.full_like(x, self.deviation**2)

    def certified(self, dimension: int) -> dict[str, Any]:
        multiplier = float(self.noise_multiplier)
        update = unrotated("norm", self.clip_norm, dimension)
        return {"kind": "gaussian noise", STORED_MULTIPLIER: multiplier, "update": update}

    def record(self) -> dict[str, Any]:
        return {"mechanism": "local-gaussian", **stored_parameters("local-gaussian", asdict(self))}


@final
@dataclass(frozen=True, slots=True)
class SignSGD(MechanismDefaults):
    """One bit a coordinate: the sign of the update, clipped in L2, plus Gaussian noise.

    Args:
        clip_norm: L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation of each client's noise, in units of clip_norm, as other
            libraries count it, within [2e-100, 2e100]; s below is the deviation itself.

    Guarantees:
        The signs are computed from the local Gaussian's noisy update, so its bound holds.
        A sign decodes to ±s · sqrt(pi/2). A coordinate x then decodes to a mean of
        s · sqrt(pi/2) · erf(x / (s · sqrt 2)), which lies between 0 and x, at most |x|^3 / (6 s^2)
        from x: the bias is towards zero, and small for large noise.

    The noise is sampled in floating point: fit for comparison, not for deployment.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of the wrong kind.

    References:
        Bernstein et al. 2018 (signSGD); Jin et al. 2020 (signs of a noisy update).
    """

    clip_norm: float
    noise_multiplier: float

    cohort = 1
    channel = None

    def __post_init__(self) -> None:
        validate.convert_numbers(self)
        # Made for its checks of both arguments only.
        LocalGaussian(self.clip_norm, self.noise_multiplier)

    @property
    def coding(self) -> wire.Format:
        multiplier = multiplier_in_payloads(self.noise_multiplier)
        return wire.Format.from_facts(2, "sign-sgd", self.clip_norm, multiplier)

    @property
    def value(self) -> float:
        # The sign + decodes to it, - to its negative.
        return self._noise.deviation * math.sqrt(math.pi / 2)

    @property
    def _noise(self) -> LocalGaussian:
        return LocalGaussian(self.clip_norm, self.noise_multiplier)

    @property
    def trust(self) -> Trust:
        return "local"

    def encode_vector(self, vector: np.ndarray, key: Key) -> bytes:
        signs = self._noise.noisy(vector, key) >= 0  # code 1 is +
        return wire.pack(self.coding, signs.astype(np.uint8))

    def mean_vector(self, payloads: Sequence[bytes], dimension: int, key: Key | None) -> np.ndarray:
        positive, form = np.zeros(dimension, dtype=np.int64), self.coding
        for_each_payload(payloads, lambda payload: wire.add(form, payload, positive))
        return (self.value * (2 * positive / len(payloads) - 1)).astype(np.float32)

    def log_equal(self, dimension: int) -> float:
        """Bound log of the probability of equal signs: each coordinate is ±clip_norm."""
        mean_sign = float(erf(self.clip_norm / (self._noise.deviation * math.sqrt(2))))
        # An upper bound: 1e-12 is far more than rounding of erf and log can be.
        return dimension * min(math.log((1 + mean_sign**2) / 2) + 1e-12, 0.0)

    def payload_bytes(self, dimension: int) -> int:
        return wire.coded(self.coding, dimension)

    def release(
        self, dimension: int, rounds: int, neighboring: Neighboring = "replace_one"
    ) -> Release:
        # Signs are a function of the noisy update: post-processing.
        return self._noise.release(dimension, rounds, neighboring)

    def example_release(
        self, dimension: int, rounds: int, neighboring: Neighboring, examples: int
    ) -> Release:
        return self._noise.example_release(dimension, rounds, neighboring, examples)

    def decoded(self, x: np.ndarray, dimension: int) -> tuple[np.ndarray, np.ndarray]:
        mean = self.value * erf(x / (self._noise.deviation * math.sqrt(2)))
        return mean, self.value**2 - mean**2

    def certified(self, dimension: int) -> dict[str, Any]:
        return self._noise.certified(dimension)

    def record(self) -> dict[str, Any]:
        return {"mechanism": "sign-sgd", **stored_parameters("sign-sgd", asdict(self))}


def _multiplier(
    noise_multiplier: float, neighboring: Neighboring, examples: int | None = None
) -> float:
    validate.choice("neighboring", neighboring, NEIGHBORINGS)
    # From the deviation in norms of the longest update to that in distances of two neighbours.
    multiplier = noise_multiplier * (1 / update_distance(1.0, neighboring, examples=examples))
    # Some roundings of an example's share; less noise is the safe side.
    return multiplier if examples is None else multiplier * (1 - 8 * UNIT)


def _normals(count: int, key: Key) -> np.ndarray:
    # The same noise on two updates would show their difference.
    key.claim()
    words = key.fold_in("noise").words(2)
    return np.random.Generator(np.random.Philox(key=words)).standard_normal(count)


def _check_noise(noise_multiplier: float) -> None:
    # Its square, and the inverse of that, are then finite and positive floats.
    validate.real("noise_multiplier", noise_multiplier, low=2e-100, high=2e100)


def _check_thresholds(clip: float | None, clip_norm: float | None) -> None:
    if (clip is None) == (clip_norm is None):
        raise ValueError(
            f"Expected one of clip and clip_norm, got {'neither' if clip is None else 'both'}: "
            "an update is clipped per coordinate or as a whole."
        )
    if clip is not None:
        validate.real("clip", clip, above=0)
    if clip_norm is not None:
        validate.real("clip_norm", clip_norm, low=1e-30, high=1e30)


def _mean_of_floats(payloads: Sequence[bytes], dimension: int) -> np.ndarray:
    total = np.zeros(dimension, dtype=np.float64)

    def use(payload: bytes) -> None:
        nonlocal total
        if len(payload) != 4 * dimension:
            raise ValueError(f"Expected a payload of {4 * dimension} bytes, got {len(payload)}.")
        # One client's NaN or infinity would be everybody's mean: it is refused, and named.
        total += finite(np.frombuffer(payload, dtype="<f4"))

    for_each_payload(payloads, use)
    return total / len(payloads)


def _float_count(payload: bytes) -> int:
    if len(payload) % 4 or not payload:
        raise ValueError(f"Expected a payload of 4 bytes a coordinate, got {len(payload)} bytes.")
    return len(payload) // 4


RECORDS = (
    MechanismRecord(
        UNPROTECTED,
        ClippedSGD,
        {"clip": CLIP, "clip_norm": CLIP_NORM},
        example={"clip_norm": 1.0},
        trusts=(),
        whole_update=True,
        baseline=True,
        place=1,
    ),
    MechanismRecord(
        "gaussian",
        gaussian,
        {"clip": CLIP, "clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER},
        example={"clip_norm": 1.0, "noise_multiplier": 2.0},
        trusts=("central",),
        whole_update=True,
        baseline=True,
        place=2,
    ),
    MechanismRecord(
        "local-gaussian",
        LocalGaussian,
        {"clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER},
        example={"clip_norm": 1.0, "noise_multiplier": 2.0},
        tuning=Tuning(update=noise_family),
        trusts=("local",),
        whole_update=True,
        baseline=True,
        place=3,
    ),
    MechanismRecord(
        "sign-sgd",
        SignSGD,
        {"clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER},
        example={"clip_norm": 1.0, "noise_multiplier": 1.0},
        tuning=Tuning(update=noise_family),
        trusts=("local",),
        whole_update=True,
        baseline=True,
        place=4,
    ),
)
