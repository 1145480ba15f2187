"""Figures 2, 3 and 4 of the I-MVU paper: accuracy against epsilon, on frontiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from randquant_papers import frontiers
from randquant_papers.configuration import PaperConfig
from randquant_papers.experiment import Setting
from randquant_papers.frontiers import GAUSSIAN, Frontiers, Grid, Kind, alike, better, less_noise
from randquant_papers.imvu.tables import PAPER
from randquant_papers.result import Claim, Reproduction

IMVU = Kind("I-MVU, 1 bit", "imvu")
MVU = Kind("MVU, 1 bit", "mvu")
SIGN = Kind("SignSGD, 1 bit", "sign-sgd")
OPTIMUM = Kind("optimum, 1 bit (ours)", "optimal")
OPTIMUM_2 = Kind("optimum, 2 bits (ours)", "optimal", 2)
WIDER = [Kind(f"I-MVU, {bits} bits", "imvu", bits) for bits in (2, 3, 4)]

SAMPLE_COHORT, SAMPLE_QUICK_ROUNDS = 500, 10
SAMPLE = Grid(epsilons=(2.0, 4.0, 8.0, 16.0), rates=(0.1, 0.3))
SAMPLE_QUICK = Grid(epsilons=(4.0, 16.0), rates=(0.3,))

FEMNIST_SIZE: dict[str, Any] = {"population": 3150, "cohort": 5}
FEMNIST_ROUNDS, FEMNIST_QUICK_ROUNDS = 630, 40
FEMNIST = Grid(epsilons=(1.0, 2.0, 4.0, 8.0), rates=(0.01, 0.03))
FEMNIST_QUICK = Grid(epsilons=(2.0, 8.0), rates=(0.03,))

SHARED = (
    "The server sees what each client sends. Every mechanism has the least noise with which our "
    "accountant certifies the epsilon of the whole run, so frontiers meet at equal guarantees; "
    "neighbours differ in zeros in place of {unit}, the nearest to the paper's removal that our "
    "accountant has. No amplification by sampling is counted. Gradients are clipped in L2 to "
    "length 1. For channels they are rotated and filled up to a power of two, which adds to their "
    "bits, and a coordinate is clipped at 4 standard deviations of a full-length gradient's: that "
    "stands for the paper's beta (64 for 65,536 coordinates; table 1 has 32, 64 and 128). "
)

WHY_MVU = (
    "At one bit an unbiased channel is a straight line: MVU and our optimum are one channel. The "
    "paper's analysis does not bound dithering in L2; ours does, and that costs nothing while the "
    "noise is large beside a coordinate."
)
WHY_SIGN = (
    "Signs are certified by the bound of the Gaussian that they are made from, at pi/2 times its "
    "variance."
)
WHY_OPTIMUM = (
    "At one bit an unbiased channel is a straight line. What a whole update costs in L2 is decided "
    "by where a row is steepest beside its probabilities: at the ends for a straight line, at the "
    "middle for I-MVU, where most coordinates lie."
)
WHY_OPTIMUM_2 = (
    "Four levels come near to what any unbiased channel can reach at equal Fisher information "
    "(docs/theory/plan.md); more would add little."
)


def figure_2(setting: Setting) -> Reproduction:
    """Figure 2, left: MNIST, linear model on scattering features, clients of one sample."""
    return _single_samples("imvu-fig2", "mnist", "figure 2, left", setting)


def figure_2_right(setting: Setting) -> Reproduction:
    """Figure 2, right: CIFAR-10, likewise."""
    return _single_samples("imvu-fig2-cifar", "cifar-10", "figure 2, right", setting)


def _single_samples(name: str, wanted: str, figure: str, setting: Setting) -> Reproduction:
    source: dict[str, Any] = setting.source(wanted)
    source["dataset"] += "-scattering"
    clients = len(setting.loaded(wanted).train_labels)
    rounds = clients // SAMPLE_COHORT
    rounds = min(rounds, SAMPLE_QUICK_ROUNDS) if setting.quick else rounds
    start = PaperConfig.of(
        **source, mechanism="", model="softmax", population=clients, cohort=SAMPLE_COHORT,
        rounds=rounds, max_participations=1, evaluate_every=5, threads=1, clip_norm=1.0,
        neighboring="zero_out",
    )  # fmt: skip
    grid = SAMPLE_QUICK if setting.quick else SAMPLE
    results = frontiers.train(start, [IMVU, MVU, SIGN, GAUSSIAN, OPTIMUM], grid, setting)
    claims = [
        alike("I-MVU performs as well as Gaussian noise", IMVU, GAUSSIAN, results, setting),
        better("I-MVU performs better than SignSGD", IMVU, SIGN, results, setting),
        better("I-MVU performs better than MVU", IMVU, MVU, results, setting),
        less_noise("I-MVU has less noise than MVU at equal guarantee", IMVU, MVU, results, WHY_MVU),
        *_shared_claims(results, setting),
    ]
    text = (
        f"{clients:,} clients of one sample, each in at most one of {rounds} rounds of "
        f"{start.cohort}, one gradient, softmax regression on scattering features. "
        + SHARED.format(unit="a client's gradient")
        + "The paper takes its grids from tables of another paper that we do not have; ours: "
        f"{_grid(grid)}, chosen from 0.1, 0.3, 1 and 3 on MNIST with Gaussian noise at epsilon 1 "
        "and 4."
    )
    return _reproduction(name, figure, "4.1", wanted, text, claims, results, setting)


def figure_3(setting: Setting) -> Reproduction:
    """Figure 3: FEMNIST, one example's privacy, I-MVU beside MVU, SignSGD and Gaussian noise."""
    start, grid = _femnist(setting)
    results = frontiers.train(start, [IMVU, MVU, SIGN, GAUSSIAN, OPTIMUM], grid, setting)
    claims = [
        alike("I-MVU performs on par with Gaussian noise", IMVU, GAUSSIAN, results, setting),
        better("I-MVU performs better than SignSGD at every epsilon", IMVU, SIGN, results, setting),
        less_noise("I-MVU has less noise than MVU at equal guarantee", IMVU, MVU, results, WHY_MVU),
        *_shared_claims(results, setting),
    ]
    text = _femnist_text(start, grid)
    return _reproduction("imvu-fig3", "figure 3", "4.2", "femnist", text, claims, results, setting)


def figure_4(setting: Setting) -> Reproduction:
    """Figure 4: FEMNIST, I-MVU with 1 to 4 bits beside Gaussian noise."""
    start, grid = _femnist(setting)
    kinds = [IMVU, *WIDER, GAUSSIAN, OPTIMUM, OPTIMUM_2]
    results = frontiers.train(start, kinds, grid, setting)
    claims = [
        alike(f"1 bit performs as well as {kind.bits}", IMVU, kind, results, setting)
        for kind in WIDER
    ]
    claims += [
        alike(f"{kind.label}: as good as Gaussian noise", kind, GAUSSIAN, results, setting)
        for kind in (IMVU, *WIDER)
    ]
    text = "Ours: the optimum of four levels"
    claims += [
        alike(f"{text} performs as well as 4 bits", OPTIMUM_2, WIDER[-1], results, setting),
        less_noise(f"{text} has less noise than that of two at equal guarantee", OPTIMUM_2,
                   OPTIMUM, results, WHY_OPTIMUM_2),
    ]  # fmt: skip
    text = _femnist_text(start, grid) + (
        " The paper does not say what I-MVU is with more than one bit: ours counts how many of "
        "3, 7 or 15 one-bit mechanisms answer 1 (docs/theory/imvu.md)."
    )
    return _reproduction("imvu-fig4", "figure 4", "D", "femnist", text, claims, results, setting)


def _femnist(setting: Setting) -> tuple[PaperConfig, Grid]:
    source: dict[str, Any] = setting.source("femnist")
    start = PaperConfig.of(
        **source, **FEMNIST_SIZE, mechanism="", model="cnn", unit="example",
        rounds=FEMNIST_QUICK_ROUNDS if setting.quick else FEMNIST_ROUNDS, max_participations=1,
        partition="own" if source["dataset"] == "femnist" else "iid",
        server_options={"momentum": 0.9}, threads=1, evaluate_every=10 if setting.quick else 30,
        clip_norm=1.0, neighboring="zero_out",
    )  # fmt: skip
    return start, FEMNIST_QUICK if setting.quick else FEMNIST


def _femnist_text(start: PaperConfig, grid: Grid) -> str:
    return (
        f"{start.task.population:,} clients, {start.cohort} a round, each in at most one of "
        f"{start.rounds} rounds, "
        "the mean of all its examples' clipped gradients, server momentum 0.9, two convolutions "
        "and two linear layers. " + SHARED.format(unit="one example's gradient")
        + "The paper names neither its rounds nor its layers. Instead of its grids (tables 1 to 3) "
        f"over noise, clipping and steps: {_grid(grid)} (of 0.003, 0.01 and 0.03 the best with "
        "Gaussian noise at epsilon 1 and at 4, after 315 rounds on Fashion-MNIST), the local rate "
        "included. The paper's steps are smaller for signs, which count as 1 there; here they are "
        "decoded to the scale of what they stand for."
    )  # fmt: skip


def _shared_claims(results: Frontiers, setting: Setting) -> list[Claim]:
    less, good = "has less noise than", "Ours: the optimum of two levels"
    return [
        less_noise(f"I-MVU {less} SignSGD at equal guarantee", IMVU, SIGN, results, WHY_SIGN),
        alike(f"{good} performs as well as I-MVU", OPTIMUM, IMVU, results, setting),
        less_noise(f"{good} {less} I-MVU at equal guarantee", OPTIMUM, IMVU, results, WHY_OPTIMUM),
    ]


def _grid(grid: Grid) -> str:
    epsilons, rates = (", ".join(f"{v:g}" for v in each) for each in (grid.epsilons, grid.rates))
    return f"epsilon {epsilons} at delta 1e-5, steps of {rates}"


def _reproduction(
    name: str,
    figure: str,
    section: str,
    wanted: str,
    text: str,
    claims: Sequence[Claim],
    results: Frontiers,
    setting: Setting,
) -> Reproduction:
    place = "appendix" if section.isalpha() else "section"
    return Reproduction(
        name=name,
        title=f"I-MVU, {figure}: accuracy against the epsilon of a whole run",
        source=f"{PAPER}, {place} {section}",
        setting=text,
        claims=claims,
        tables=frontiers.tables(results),
        figures=[frontiers.scatter(results)],
        command=setting.command(name),
        stand_in=setting.stands_in(wanted),
        scale=setting.scale,
        guarantees=frontiers.stated(results),
    )
