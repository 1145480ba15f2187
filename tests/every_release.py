"""Releases of every kind, in the groups that may be composed."""

from __future__ import annotations

import dataclasses

import randquant as rq
from randquant.mechanisms import Binomial, Skellam, sparse_ternary
from randquant.privacy import (
    ChannelRelease,
    GaussianRelease,
    LaplaceRelease,
    NoiseRelease,
    Release,
    Sampled,
    VectorRelease,
)

BIT = rq.stochastic_rounding(clip=1.0, levels=2, margin=3.0)
RQM = rq.rqm(clip=1.0, margin=1.0, levels=4, keep=0.4)
NARROW = rq.stochastic_rounding(clip=0.25, levels=2, margin=1.0)
TERNARY = sparse_ternary(clip=1.0, margin=9.0, rate=0.25)
OTHER = {"replace_one": "zero_out", "zero_out": "replace_one"}


def _hidden(one: Release, other: Release, hidden: bool, models: bool) -> dict[str, Release]:
    """Rounds in which a client takes part at random, drawn in every way that may be claimed."""
    replaced = one.neighboring == "replace_one"
    absent = other if replaced else None
    found: dict[str, Release] = {
        "poisson": Sampled(one, 0.05, 60, "poisson", hidden, absent, models),
    }
    if one.trust == "central":
        stand_in = None if replaced else other
        found["fixed"] = Sampled(one, 0.05, 60, "fixed", False, stand_in, models)
    return found


def repeated(release: Release, times: int) -> Release:
    """The same release in so many times the rounds."""
    return dataclasses.replace(release, rounds=release.rounds * times)


def of_group(trust: str, neighboring: str) -> dict[str, Release]:
    """Releases that compose: under one trust, for the same neighbours."""
    far = 2 if neighboring == "replace_one" else 1

    def gaussian(noise: float, where: str, neighbours: str = neighboring) -> GaussianRelease:
        apart = 2 if neighbours == "replace_one" else 1
        return GaussianRelease(noise / apart, 3, 1, where, neighbours)

    def sums(neighbours: str = neighboring) -> VectorRelease:
        return VectorRelease(BIT, 2.0, 3, 1, "aggregate", neighbours, cohort=9)

    if trust == "central":
        one, other = gaussian(2.0, "central"), gaussian(2.0, "central", OTHER[neighboring])
        return {"plain": gaussian(5.0, "central"), **_hidden(one, other, False, False)}
    if trust == "model":
        server = gaussian(2.0, "central"), gaussian(2.0, "central", OTHER[neighboring])
        clients = _hidden(sums(), sums(OTHER[neighboring]), True, True)
        return {
            **_hidden(*server, False, True),
            **{f"{name}, clients' noise": each for name, each in clients.items()},
        }
    if trust == "aggregate":
        return {
            "coordinates": ChannelRelease(BIT, 2, 1, "aggregate", neighboring, 4),
            "updates": sums(),
            "narrow bits": VectorRelease(NARROW, 1.0, 64, 1, "aggregate", neighboring, cohort=20),
            "three codes": VectorRelease(TERNARY, 1.0, 64, 1, "aggregate", neighboring, cohort=4),
            "noise": NoiseRelease(Skellam(50.0), 20, 100 * far**2, 3, 2, neighboring),
            "binomial": NoiseRelease(Binomial(200), 20, 100 * far**2, 3, 2, neighboring),
            "laplace": LaplaceRelease(40.0, 4 * far, 1e-50, 20, 3, 2, neighboring),
            **_hidden(sums(), sums(OTHER[neighboring]), True, False),
        }
    return {
        "coordinates": ChannelRelease(RQM, 2, 1, "local", neighboring),
        "updates": VectorRelease(BIT, 0.5, 3, 1, "local", neighboring),
        "plain": gaussian(5.0, "local"),
        "poisson": Sampled(ChannelRelease(BIT, 2, 1, "local", neighboring), 0.1, 5, hidden=True),
    }


TRUSTS = ("local", "central", "aggregate", "model")
GROUPS = [(trust, each) for trust in TRUSTS for each in ("replace_one", "zero_out")]
ALL = [(*group, name) for group in GROUPS for name in of_group(*group)]
