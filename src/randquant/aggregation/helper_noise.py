"""Integer updates without noise of the client: those who open a secure sum add it.

A client clips its update in L2, rotates it and rounds it at random to a grid. The helper of the sum
adds discrete Gaussian noise to the sum of the masks, and the server its own before it decodes.
Derivation: `docs/theory/helper-sums.md`, Propositions 13 to 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from randquant._internal import validate
from randquant.aggregation.additive import HELP, IntegerUpdates, most_bits
from randquant.aggregation.defaults import MechanismDefaults, mean_error
from randquant.aggregation.mechanism import CoordinateError
from randquant.aggregation.rotation import subset_coding
from randquant.channels import wire
from randquant.channels.keys import Key
from randquant.mechanisms.record import (
    MechanismRecord,
    Tuning,
    UpdateFamily,
    UpdateSetting,
    noise_family,
)
from randquant.privacy.guarantee import LARGEST_COHORT

HELPER_NOISE = "helper-noise"
"""Name of the mechanism, in files and on the wire."""


@final
@dataclass(frozen=True, slots=True)
class HelperNoise(IntegerUpdates, MechanismDefaults):
    """Rounds whole updates to integers; the helper of their sum adds the noise, and the server too.

    Args:
        clip_norm: C, L2 clipping threshold of a whole update, within [1e-30, 1e30].
        noise_multiplier: standard deviation of each party's noise over the L2 distance between two
            sums that differ in one client, as in the Gaussian baselines.
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
        >>> mechanism = HelperNoise(clip_norm=1.0, noise_multiplier=2.0, clients=2)
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
            1 << self.bits, HELPER_NOISE, self.clip_norm, self.noise_multiplier, self.clients,
            self.server_noise, self.deviations, self.rotation_seed,
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
        return self.decode(totals, len(payloads), dimension)

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
        return {"mechanism": HELPER_NOISE, **self._fields()}


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


def _updates(setting: UpdateSetting) -> UpdateFamily:
    # One party draws the whole noise, so its table limits the bits as that of one client does.
    bits = min(max(setting.bits, 2), most_bits(1))
    return noise_family(
        setting, setting.cohort, (1e-6, 1e6), bits=bits, server_noise=setting.server_noise
    )


RECORDS = (
    MechanismRecord(
        HELPER_NOISE,
        HelperNoise,
        {**HELP, "server_noise": "whether the server adds as much noise (default True)"},
        example={"clip_norm": 1.0, "noise_multiplier": 1.0},
        tuning=Tuning(update=_updates),
        trusts=("aggregate",),
        whole_update=True,
        run_settings=("clients", "coordinates", "subset_seed"),
        helper_noise=True,
        place=8,
    ),
)
