"""The command that trains: from options to a run's configuration, and to what it prints."""

from __future__ import annotations

import argparse
import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from randquant.arguments import (
    DEMO,
    PLAIN,
    given_parameters,
    own_parameters,
    takes,
)
from randquant.option_texts import TRAIN_FIELDS
from randquant.records import RoundMetrics, TrainConfig


def train(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Begin or resume a run and train it to its end: what to print, as JSON and as lines."""
    try:
        from randquant import progress, runs, tensorboard_log
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
            shown.append(stack.enter_context(tensorboard_log.TensorboardLog(folder)).round)

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            for each in shown:
                each(config, metrics)

        finished = runs.execute(folder, on_round, changes)
    return progress.result(folder, finished), progress.table(folder, finished)


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a run that are given, by name."""
    given = {name: getattr(options, name) for name in TRAIN_FIELDS}
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("stop_at_epsilon") == math.inf:  # no epsilon to stop at
        given["stop_at_epsilon"] = None
    return given


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that a run is to go on with."""
    from randquant import run_folder

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
