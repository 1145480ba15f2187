"""Mechanisms for whole updates: what a client uploads, and what the server makes of the uploads.

Training and deployment see only `UpdateMechanism`. `ChannelMechanism` protects; those in BASELINES
are what it is compared with, in the same loop.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from randquant import _validate
from randquant.aggregate.additive import AdditiveMechanism
from randquant.aggregate.channel import ChannelMechanism
from randquant.aggregate.gaussian import (
    CentralGaussian,
    ClippedSGD,
    LocalGaussian,
    SignSGD,
    gaussian,
)
from randquant.aggregate.mechanism import MechanismDefaults, UpdateMechanism
from randquant.aggregate.saved import from_record, load, save
from randquant.aggregate.vector import VectorMechanism
from randquant.mechanisms import MECHANISMS, build
from randquant.mechanisms.noise import NOISES
from randquant.privacy import Trust
from randquant.releases import Norm

BASELINES: dict[str, Callable[..., UpdateMechanism]] = {
    "clipped-sgd": ClippedSGD,
    "gaussian": gaussian,
    "local-gaussian": LocalGaussian,
    "sign-sgd": SignSGD,
    **{kind: functools.partial(AdditiveMechanism, kind) for kind in NOISES},
}
"""Mechanisms for whole updates that are no channel, by the name that commands and records use."""


def update_mechanism(
    name: str,
    parameters: Mapping[str, Any],
    *,
    trust: Trust | None = None,
    cohort: int | None = None,
    clip_norm: float | None = None,
    norm: Norm = "l2",
) -> UpdateMechanism:
    """Build a mechanism for whole updates from its name and parameters.

    Args:
        name: a key of MECHANISMS or BASELINES.
        parameters: the mechanism's own parameters, by name.
        trust: against whom it is to hold; None for the mechanism's own (`local` for channels).
        cohort: how many clients are summed, at least: whose randomness protects each of them where
            a server sees sums only.
        clip_norm: threshold of a whole update's norm, for a channel; None to clip each coordinate
            alone. (Baselines have their own parameter.)
        norm: the norm that updates are clipped in.

    Raises:
        ValueError: the name is unknown, a parameter is missing, unknown or out of bounds, or the
            mechanism does not work under that trust.
    """
    _validate.choice("mechanism", name, [*MECHANISMS, *BASELINES])
    if name in MECHANISMS:
        _validate.choice("trust", trust or "local", ("local", "aggregate"))
        against: Trust = "aggregate" if trust == "aggregate" else "local"
        channel, many = build(name, parameters), cohort or 1
        many = many if against == "aggregate" else 1
        if clip_norm is None:
            if norm != "l2":
                raise ValueError(
                    f"Expected clip_norm with norm={norm!r}, got none: set the threshold too."
                )
            return ChannelMechanism(channel, against, many)
        return VectorMechanism(channel, clip_norm, against, many, norm)
    if clip_norm is not None:
        raise ValueError(
            f"Expected {name}'s own clip_norm among its parameters, got another: leave one out."
        )
    accepted = inspect.signature(BASELINES[name]).parameters
    if cohort is not None and "cohort" in accepted:
        parameters = {**parameters, "cohort": cohort}
    if norm != "l2":
        if "norm" not in accepted:
            raise ValueError(f"Expected norm='l2' with {name}, which has no other, got {norm!r}.")
        parameters = {**parameters, "norm": norm}
    mechanism = _validate.call(name, BASELINES[name], parameters)
    if trust and trust != mechanism.trust:
        own = mechanism.trust or "none, for it protects nothing"
        raise ValueError(
            f"Expected no other trust than {name}'s own ({own}), got {trust!r}: leave it out."
        )
    return mechanism


__all__ = [
    "BASELINES",
    "AdditiveMechanism",
    "CentralGaussian",
    "ChannelMechanism",
    "ClippedSGD",
    "LocalGaussian",
    "MechanismDefaults",
    "SignSGD",
    "UpdateMechanism",
    "VectorMechanism",
    "from_record",
    "load",
    "save",
    "update_mechanism",
]
