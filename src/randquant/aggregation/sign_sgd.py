"""The signs of a noisy update: a baseline of one bit a coordinate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from scipy.special import erf

from randquant._internal import validate
from randquant.aggregation.baselines import LocalGaussian
from randquant.aggregation.defaults import MechanismDefaults, for_each_payload
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.mechanisms.record import (
    CLIP_NORM,
    NOISE_MULTIPLIER,
    MechanismRecord,
    Tuning,
    noise_family,
)
from randquant.privacy.accounting.release import Release
from randquant.privacy.guarantee import Neighboring, Trust


@final
@dataclass(frozen=True, slots=True)
class SignSGD(MechanismDefaults):
    """One bit a coordinate: the sign of the update, clipped in L2, plus Gaussian noise.

    Args:
        clip_norm: L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation s of each client's noise, over 2 · clip_norm.

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
        LocalGaussian(self.clip_norm, self.noise_multiplier)

    @property
    def coding(self) -> wire.Format:
        return wire.Format.from_facts(2, "sign-sgd", self.clip_norm, self.noise_multiplier)

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
        return {"mechanism": "sign-sgd", **asdict(self)}


RECORDS = (
    MechanismRecord(
        "sign-sgd",
        SignSGD,
        {"clip_norm": CLIP_NORM, "noise_multiplier": NOISE_MULTIPLIER},
        example={"clip_norm": 1.0, "noise_multiplier": 0.5},
        tuning=Tuning(update=noise_family),
        trusts=("local",),
        whole_update=True,
        baseline=True,
        place=4,
    ),
)
