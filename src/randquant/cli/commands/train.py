"""`randquant train`: from options to a run's configuration, and to what it prints."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from randquant.aggregation.registry import all_mechanisms
from randquant.cli.command import Command, Output
from randquant.cli.options import (
    DATA_DIR,
    NEIGHBORING,
    NORM,
    TRUST,
    flag,
    given_parameters,
    mechanism_options,
    own_parameters,
    takes,
)
from randquant.training.config import TrainConfig
from randquant.training.data.datasets import DATASETS
from randquant.training.records import RoundMetrics

TRAIN_FIELDS = {
    "dataset": (str, f"data set: {', '.join(DATASETS)}"),
    "data_dir": (str, DATA_DIR),
    "features": (str, "what is trained on: the data (default), scattering, or pca-K"),
    "fitted_on": (
        str,
        "what pca-K and standardisation are fitted on: public (default: examples that no client "
        "holds) or all (clients' data; no epsilon covers that)",
    ),
    "model": (str, "softmax, mlp, mlp32, wide or cnn"),
    "mechanism": (str, "one of {mechanisms}"),
    "population": (int, "how many clients the data is split over"),
    "cohort": (int, "how many clients take part in each round"),
    "rounds": (int, "how many rounds, at most"),
    "partition": (str, "how data is split over clients: iid, shards, dirichlet, natural"),
    "concentration": (float, "Dirichlet concentration"),
    "learning_rate": (float, "the server's step size"),
    "delta": (float, "delta of the printed guarantee"),
    "seed": (int, "simulation seed: data split, weights, cohorts, simulated keys"),
    "checkpoint_every": (int, "rounds between checkpoints"),
    "evaluate_every": (int, "rounds between evaluations on test data"),
    "threads": (int, "threads to simulate clients on"),
    "trust": (str, TRUST),
    "norm": (str, NORM),
    "neighboring": (str, NEIGHBORING),
    "stop_at_epsilon": (
        float,
        "end before the round that would take epsilon above this; inf for no such end",
    ),
    "max_participations": (int, "most rounds that one client takes part in"),
    "sampling": (str, "cohorts: fixed in size, or poisson (each client by a coin of its own)"),
    "batch": (int, "samples of a local step; default all of a client's"),
    "local_epochs": (int, "passes over a client's data in a round"),
    "local_learning_rate": (float, "step size of local SGD; default: one gradient is sent"),
    "server_optimizer": (str, "the server's optimiser: the name of a class in torch.optim"),
    "unit": (str, "what the guarantee hides: a whole client, or one example of a client's"),
    "device": (str, "where updates are computed: cpu, or cuda"),
}
"""Options that set a field of the run: how each is read, and its help."""

PLAIN = TrainConfig("digits", "softmax", "", {"clip": 0.03}, learning_rate=1.0)
"""What `randquant train` begins with when a mechanism is named."""

DEMO = TrainConfig(
    dataset="digits",
    model="softmax",
    mechanism="stochastic-rounding",
    parameters={"clip": 0.05, "levels": 2, "margin": 0.275},
    clip_norm=0.5,
    trust="aggregate",
    cohort=200,
    rounds=50,
    learning_rate=2.0,
    stop_at_epsilon=8.0,
)
"""What it does when none is: one bit per coordinate, summed securely, epsilon 8 for the run."""


def _add_options(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(all_mechanisms())
    for name, (kind, text) in TRAIN_FIELDS.items():
        text = text.format(mechanisms=known) + _default(name)
        parser.add_argument(flag(name), type=kind, help=text)
    mechanism_options(parser, all_mechanisms())
    parser.add_argument("--server-momentum", type=float, help="momentum of the server's SGD")
    parser.add_argument("--run", help="folder of the run (default: a new one in runs/)")
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is there")
    parser.add_argument("--no-baseline", action="store_true", help="skip the run without privacy")
    parser.add_argument(
        "--resume", metavar="RUN",
        help="go on with a run that was stopped, or longer with one that has ended, by --rounds, "
        "--stop-at-epsilon, --delta, --neighboring, --checkpoint-every or --evaluate-every",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")
    parser.add_argument(
        "--tensorboard", action="store_true", help="also write RUN/tensorboard, round by round"
    )


def _default(name: str) -> str:
    plain, demo = (getattr(config, name) for config in (PLAIN, DEMO))
    parts = [f"default {plain}"] if plain not in ("", None) else []
    if demo != plain:
        parts.append(f"without --mechanism {demo}")
    return f" ({'; '.join(parts)})" if parts else ""


def _run(options: argparse.Namespace) -> Output:
    """Begin or resume a run and train it to its end."""
    try:
        from randquant.cli import progress
        from randquant.training.runs import execution as runs
        from randquant.training.runs.tensorboard import TensorboardLog
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected the packages that training needs, {error.name} is missing: "
            "install randquant with its train extra, pip install '.[train]'."
        ) from error
    changes: dict[str, Any] = {}
    if options.resume is None:
        config = _config(options)
        baseline = not options.no_baseline and config.mechanism != "clipped-sgd"
        folder = Path(options.run) if options.run else _new_folder(config)
        runs.create(folder, config, baseline=baseline, overwrite=options.overwrite)
    else:
        folder = Path(options.resume)
        changes = _changes(options)
    with contextlib.ExitStack() as stack:
        shown = [stack.enter_context(progress.Display(quiet=options.quiet)).round]
        if options.tensorboard:
            shown.append(stack.enter_context(TensorboardLog(folder)).round)

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            for each in shown:
                each(config, metrics)

        finished = runs.execute(folder, on_round, changes)
    return Output(progress.result(folder, finished), progress.table(folder, finished))


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a run that are given, by name."""
    given = {name: getattr(options, name) for name in TRAIN_FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    if options.server_momentum is not None:
        given["server_options"] = {"momentum": options.server_momentum}
    if given.get("stop_at_epsilon") == math.inf:  # no epsilon to stop at
        given["stop_at_epsilon"] = None
    return given


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a run is to go on with."""
    from randquant.training.runs import folder as run_folder

    given = _given(options)
    others = options.run or options.overwrite or options.no_baseline or given_parameters(options)
    if others or not set(given) <= set(run_folder.FREE):
        raise ValueError(
            f"Expected --resume RUN with no other training options than {run_folder.OPTIONS}: a "
            "run goes on with the configuration it began with."
        )
    return given


def _config(options: argparse.Namespace) -> TrainConfig:
    """The demo's configuration, or a plain one for a named mechanism, with the given options."""
    given = _given(options)
    if "data_dir" in given:  # a run may be resumed from another folder
        given["data_dir"] = str(Path(given["data_dir"]).expanduser().resolve())
    start = PLAIN if "mechanism" in given else DEMO
    if "population" in given:
        given.setdefault("cohort", min(start.cohort, given["population"]))
    mechanism = given.get("mechanism", start.mechanism)
    own, clip_norm = own_parameters(mechanism, options)
    parameters = {**start.parameters, **own}
    if not takes(mechanism, "clip") or "clip_norm" in own:
        parameters = own
    clip_norm = start.clip_norm if clip_norm is None else clip_norm
    return replace(start, **given, parameters=parameters, clip_norm=clip_norm)


def _new_folder(config: TrainConfig) -> Path:
    stem = f"{config.dataset}-{config.model}-{config.mechanism}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


COMMAND = Command(
    help="train a federated model on real data, with a report",
    example="randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    add_options=_add_options,
    run=_run,
    resumable=True,
)
