"""Figure 4 of the OPTM paper: errors of vectors, and training with its mechanism and others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from randquant.reports import Figure
from randquant.training import RunStatus, load_parameters
from randquant_papers import equal, experiment
from randquant_papers.configuration import PaperConfig, config_of
from randquant_papers.data import fitted
from randquant_papers.experiment import Curve, Setting, Trained
from randquant_papers.optm import vectors as optm_vectors
from randquant_papers.optm.tables import PAPER
from randquant_papers.problems import build as build_model
from randquant_papers.result import Claim, Reproduction, Table, Value


@dataclass(frozen=True, slots=True)
class Task:
    """One data set with the parameters of tables 8 and 9.

    Attributes:
        dataset: its name.
        clip: the paper's threshold of a coordinate.
        batch: examples of a step.
        outer: OPTM's outermost level, in units of clip.
        examples: how many the training set has at hand.
        rounds: steps.
        rates: step sizes where an example's gradient is sent, and where a batch's mean is.
        every: rounds between evaluations.
    """

    dataset: str
    clip: float
    batch: int
    outer: float
    examples: int
    rounds: int
    rates: tuple[float, float]
    every: int


BREAST_CANCER = Task(fitted.BREAST_CANCER, 0.1, 8, 2.2, 455, 284, (1.0, 0.1), 4)
"""Five passes over the 455 training examples."""

MNIST = Task("mnist", 0.01, 32, 2.6, 10_000, 1875, (3.0, 1.0), 25)
"""The number of steps in one pass over 60,000 images."""

PROMISE = (
    "epsilon 1 for each coordinate, once",
    "The paper promises each coordinate of each step epsilon 1, and nothing for the run.",
)

ALL_DATA = (
    "One client is then the whole training set; what is certified holds for one example too, and "
    "counts on no sampling."
)


def figure_4(setting: Setting) -> Reproduction:
    """Figure 4: errors of encoded vectors, and training on breast cancer and MNIST."""
    tasks = [_sized(task, setting) for task in (BREAST_CANCER, MNIST)]
    parts = [
        (task, batched) for task in tasks for batched in (False, True)[: 1 if setting.quick else 2]
    ]
    curves = [_curves(task, mean, setting) for task, mean in parts]
    trained = iter(experiment.train([curve for group in curves for curve in group], setting))
    groups = [[next(trained) for _ in group] for group in curves]
    claims, tables, figures = _vectors(setting)
    guarantees, on_training_data = [], []
    for (task, mean), group in zip(parts, groups, strict=True):
        claims += _claims(task, mean, group, setting)
        title = _title(task, mean)
        tables.append(experiment.table(group, title))
        figures.append(experiment.charts(group, title)[0])
        guarantees += [
            replace(stated, what=f"{stated.what}; {title}") for stated in experiment.stated(group)
        ]
        on_training_data += _on_training_data(title, group)
    columns = ("data", "curve", "accuracy, %", "deviation")
    tables.append(Table("Final models on all of their training data", columns, on_training_data))
    return Reproduction(
        name="optm-fig4",
        title="OPTM, figure 4: errors of vectors, and training on breast cancer and MNIST",
        source=f"{PAPER}, sections 6.2 and 6.3",
        setting=_setting(tasks),
        claims=claims,
        tables=tables,
        figures=figures,
        command=setting.command("optm-fig4"),
        stand_in=setting.stands_in("mnist"),
        scale=setting.scale,
        guarantees=guarantees,
    )


def _sized(task: Task, setting: Setting) -> Task:
    examples = len(setting.loaded(task.dataset).train_labels)
    rounds = min(task.rounds, 60) if setting.quick else task.rounds
    return replace(task, examples=examples, rounds=rounds)


def _vectors(setting: Setting) -> tuple[list[Claim], list[Table], list[Figure]]:
    """Parts a and b: claims, tables and charts."""
    epsilons, count = optm_vectors.EPSILONS, optm_vectors.COUNT
    if setting.quick:
        epsilons, count = (1.0,), 1000
    claims, tables, figures = [], [], []
    for kind in (optm_vectors.UNIFORM, optm_vectors.BALL):
        measured = optm_vectors.measure(kind, epsilons, count)
        names = list(dict.fromkeys(m.name for m in measured))
        pairs = [("OPTM", name) for name in names if name not in ("OPTM", "optimum")]
        pairs += [("optimum", name) for name in ("OPTM", "MVU")]
        claims += [optm_vectors.lower(kind, measured, *pair, setting.quick) for pair in pairs]
        tables.append(optm_vectors.table(kind, measured))
        figures.append(optm_vectors.chart(kind, measured))
    return claims, tables, figures


def _curves(task: Task, mean: bool, setting: Setting) -> list[Curve]:
    """Curves of one data set, with one example's gradient or a batch's mean as the update."""
    start = _start(task, mean, setting)

    def scaled(levels: Sequence[float]) -> list[float]:
        return [level * task.clip for level in levels]

    bins = scaled([-task.outer, -0.4, 0.4, task.outer])
    ours = _config(start, "optm", bins=bins, epsilon=1.0)
    rqm = _config(start, "rqm", margin=1.7 * task.clip, levels=4, keep=0.22)
    mvu = _config(
        start, "optimal", values=scaled(optm_vectors.PUBLISHED[1.0]), epsilon=1.0, inputs=17
    )
    levels = optm_vectors.free_levels(1.0).values.tolist()
    curves = [
        ("OPTM", "c1", ours),
        ("RQM", "c2", rqm),
        ("MVU", "c3", mvu),
        ("optimum, equal guarantee", "c6 dashed", equal.optimum(ours, scaled(levels))),
        ("clipped only", "c4 dashed", _config(start, "clipped-sgd")),
    ]
    promise = (PROMISE[0], f"{PROMISE[1]} {ALL_DATA * mean}".strip())
    return [
        Curve(name, style, config, *(promise if name in optm_vectors.STYLES else ()))
        for name, style, config in curves
    ]


def _title(task: Task, mean: bool) -> str:
    return f"{experiment.TITLES[task.dataset]}, {'batch means' if mean else 'examples'}"


def _start(task: Task, mean: bool, setting: Setting) -> dict[str, Any]:
    most = math.ceil(task.rounds * task.batch / task.examples)
    clients: dict[str, Any] = {
        "population": task.examples, "cohort": task.batch, "max_participations": most,
    }  # fmt: skip
    if mean:
        clients = {"population": 1, "cohort": 1, "batch": task.batch}
    return {
        **setting.source(task.dataset), **clients, "model": "softmax", "rounds": task.rounds,
        "learning_rate": task.rates[mean], "evaluate_every": task.every, "threads": 1,
        "clip": task.clip,
    }  # fmt: skip


def _config(start: dict[str, Any], mechanism: str, **parameters: Any) -> PaperConfig:
    given = {name: value for name, value in start.items() if name != "clip"}
    return PaperConfig.of(
        mechanism=mechanism, parameters={"clip": start["clip"], **parameters}, **given
    )


def _claims(task: Task, mean: bool, group: Sequence[Trained], setting: Setting) -> list[Claim]:
    """The claims of section 6.3 on a data set, and the same claims on our mechanism."""
    ours, rqm, mvu, optimum, free = group
    title = _title(task, mean)

    def better(text: str, first: Trained, other: Trained, since: float) -> Claim:
        return experiment.better(f"{title}: {text}", first, other, group, setting, since=since)

    def alike(text: str, other: Trained) -> Claim:
        return experiment.equal(f"{title}: {text}", ours, other, group, setting)

    if task.dataset == BREAST_CANCER.dataset:
        claims = [
            better("OPTM converges faster than RQM", ours, rqm, 0.0),
            better("OPTM converges faster than MVU", ours, mvu, 0.0),
            alike("OPTM's accuracy is very close to that without privacy", free),
        ]
    else:
        claims = [
            alike("OPTM has the same accuracy as MVU", mvu),
            better("OPTM has a higher accuracy than RQM", ours, rqm, experiment.LATE),
        ]
    text = "Ours: the optimum of equal certified guarantee ends above OPTM"
    return [*claims, better(text, optimum, ours, experiment.LATE)]


def _on_training_data(title: str, group: Sequence[Trained]) -> list[tuple[Value, ...]]:
    """Accuracy of the final models on training data, which the paper plots."""
    rows = []
    for result in group:
        accuracies = [100 * training_accuracy(run) for run in result.runs]
        spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None
        rows.append((title, result.curve.label, float(np.mean(accuracies)), spread))
    return rows


def training_accuracy(run: RunStatus) -> float:
    """Accuracy of a finished run's final model on all training data, in [0, 1]."""
    import torch

    config = config_of(run)
    data = equal.dataset(config)
    model = build_model(config.data.model, data.train_features.shape[1:], data.classes, 0)
    final = torch.from_numpy(load_parameters(run.folder))
    torch.nn.utils.vector_to_parameters(final, model.parameters())
    with torch.no_grad():
        told = model(torch.from_numpy(data.train_features)).argmax(dim=1).numpy()
    return float((told == data.train_labels).mean())


def _setting(tasks: Sequence[Task]) -> str:
    steps = "; ".join(
        f"{experiment.TITLES[task.dataset]}: {task.examples:,} training examples, batches of "
        f"{task.batch}, {task.rounds:,} steps, clip {task.clip:g}, step size {task.rates[0]:g} "
        f"(examples) and {task.rates[1]:g} (batch means)"
        for task in tasks
    )
    return (
        "Four codes for all. Vectors: clip 1, OPTM with levels ±3, ±0.5, RQM with ±3, ±1, MVU with "
        "levels of its own programme; the optimum knows how the inputs are distributed, the others "
        "take them for uniform. The text does not say which epsilons the figure has. Training: "
        "softmax regression with the levels of tables 8 and 9 and, for MVU, which they leave out, "
        f"those of table 4. {steps}. The paper names no step size and no number of steps; the step "
        "sizes are the best for OPTM of 0.03, 0.1, 0.3, 1, 3 (breast cancer) and 1, 3, 10, 30 "
        "(MNIST). Nor does it say whether the gradient of each example or of a batch is clipped "
        "and quantised: clients with one example each, of whom a batch takes part in a step, are "
        "the one; one client that sends batch means (not in a quick run) is the other. The paper "
        "draws accuracy on training data after each batch; the curves here are on test data, and "
        "the last table is on training data. Convergence is compared by the mean accuracy over "
        "the whole run."
    )
