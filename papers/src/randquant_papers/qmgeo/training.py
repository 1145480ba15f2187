"""Figures 5 and 6 of the QMGeo paper: training with it, as published and repaired."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from randquant import moments
from randquant_papers import equal, experiment
from randquant_papers.configuration import PaperConfig
from randquant_papers.data import fitted
from randquant_papers.experiment import Curve, Setting, Trained
from randquant_papers.qmgeo.tables import MIXING, PAPER, PRINTED, printed_claim
from randquant_papers.result import Claim, Reproduction

CLIP = 0.05
"""The paper's per-coordinate clipping threshold."""

REACHES = (1.001, 1.003, 1.01, 1.03, 1.1)
"""Outermost levels tried for the optimum, in units of clip; levels are evenly spaced."""

Parameters = tuple[int, Fraction]
"""Levels and p."""


def figure_5(setting: Setting) -> Reproduction:
    """Figure 5: accuracy with p 0.5, with p 0.9 and without quantisation, 8 levels."""
    trained = _trained([(8, Fraction(1, 2)), (8, Fraction(9, 10))], setting)
    half, most, free = trained[0], trained[3], trained[-1]
    claims = [
        experiment.equal(
            f"{each.curve.label} ends at the accuracy of no quantisation",
            each, free, trained, setting,
        )
        for each in (half, most)
    ]  # fmt: skip
    claims.append(
        experiment.equal("Both values of p end at one accuracy", half, most, trained, setting)
    )
    return _reproduction(5, trained, claims, PRINTED[:2], setting)


def figure_6(setting: Setting) -> Reproduction:
    """Figure 6: accuracy with 8 and with 16 levels, p 0.9."""
    trained = _trained([(8, Fraction(9, 10)), (16, Fraction(9, 10))], setting)
    eight, sixteen, free = trained[0], trained[3], trained[-1]
    claims = [
        experiment.equal("8 and 16 levels end at one accuracy", sixteen, eight, trained, setting),
        experiment.equal(
            "16 levels end at the accuracy of no quantisation", sixteen, free, trained, setting
        ),
    ]
    return _reproduction(6, trained, claims, PRINTED[1:], setting)


def _trained(pairs: Sequence[Parameters], setting: Setting) -> list[Trained]:
    """Three curves for each pair of parameters, and one without quantisation."""
    start, curves = _start(setting), []
    for (levels, p), colour in zip(pairs, ("c1", "c2"), strict=True):
        (printed,) = (said for r, q, said in PRINTED if (r, q) == (levels, p))
        published, repaired = (
            _config(start, "qmgeo", levels=levels, p=float(p), **mixing)
            for mixing in ({}, {"mixing": MIXING})
        )
        label = f"{levels} levels, p {float(p):g}"
        why = "The paper's equation 26, order 2, is no bound: see qmgeo-fig4."
        said = (f"{printed} a round, order 2", why)
        curves += [
            Curve(label, colour, published, *said),
            Curve(f"{label}, mixing {MIXING}", f"{colour} dashed", repaired),
            Curve(f"optimum, equal to that of p {float(p):g}, {levels} levels",
                  "c6" if colour == "c1" else "c5", optimum(repaired)),
        ]  # fmt: skip
    curves.append(Curve("no quantisation", "c4 dashed", _config(start, "clipped-sgd")))
    return experiment.train(curves, setting)


def _start(setting: Setting) -> dict[str, Any]:
    source = setting.source("mnist")
    return {
        **source, "dataset": source["dataset"] + fitted.PCA,
        "model": "mlp32", "population": 5, "cohort": 5,
        "batch": 64, "learning_rate": 0.04, "threads": 1,
        "rounds": 300 if setting.quick else 3000, "evaluate_every": 30,
    }  # fmt: skip


def _config(start: dict[str, Any], mechanism: str, **parameters: Any) -> PaperConfig:
    return PaperConfig.of(mechanism=mechanism, parameters={"clip": CLIP, **parameters}, **start)


def optimum(repaired: PaperConfig) -> PaperConfig:
    """The best channel with as many evenly spaced levels and at most the same guarantee."""
    levels, tried = repaired.parameters["levels"], []
    for reach in REACHES:
        values = CLIP * reach * np.linspace(-1, 1, levels)
        with contextlib.suppress(ValueError):  # levels that are too close cost more
            # Of that many inputs, evenly spaced, nearly all levels are one.
            tried.append(equal.optimum(repaired, values.tolist(), 2 * levels - 1))
    return min(tried, key=lambda config: moments(equal.channel(config)).mse)


def _reproduction(
    number: int,
    trained: Sequence[Trained],
    claims: Sequence[Claim],
    printed: Sequence[tuple[int, Fraction, str]],
    setting: Setting,
) -> Reproduction:
    name = f"qmgeo-fig{number}"
    ours = [
        experiment.better(
            f"Ours: the {optimum.curve.label} ends above {repaired.curve.label}",
            optimum, repaired, trained, setting,
        )
        for _, repaired, optimum in (trained[:3], trained[3:6])
    ]  # fmt: skip
    return Reproduction(
        name=name,
        title=f"QMGeo, figure {number}: federated training on MNIST",
        source=f"{PAPER}, section VI",
        setting=_setting(trained[0].curve.config),
        claims=[*claims, *(printed_claim(*each) for each in printed), *ours],
        tables=[experiment.table(trained)],
        figures=experiment.charts(trained),
        command=setting.command(name),
        stand_in=setting.stands_in("mnist"),
        scale=setting.scale,
        guarantees=experiment.stated(trained),
    )


def _setting(config: PaperConfig) -> str:
    return (
        "5 users with equal shares of the training data, all in every round, each with the "
        "gradient of a batch of 64 on 100 principal components (of all users' data, as in the "
        "paper: no guarantee here covers that), a hidden layer "
        f"of 32, step size 0.04, clip 0.05, {config.rounds:,} rounds: the text names no number of "
        "them. The test set is MNIST's own; the paper's is 6,000 of its training images. As "
        "published the mechanism has no finite epsilon; the repaired one, with mixing "
        f"{MIXING}, has. The optimum, unbiased and of least mean squared error, has as many "
        "codes, evenly spaced as well; it costs the whole run no more than the repaired mechanism, "
        f"with at most {equal.LARGEST:g} nats a coordinate. The certified guarantee is that of one "
        "user's whole data and counts on no sampling of batches."
    )
