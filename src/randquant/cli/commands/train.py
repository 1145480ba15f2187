"""`randquant train`: train a federated model on real data, with a report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from randquant._internal import declared, extras
from randquant._internal.declared import about
from randquant.aggregation.registry import all_mechanisms
from randquant.cli.command import Command, Output
from randquant.cli.options import Chosen, Option, Quiet, of_mechanism, takes
from randquant.training import settings
from randquant.training.config import TrainConfig, upgraded
from randquant.training.records import RoundMetrics

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


def run(
    given: Mapping[str, Any],
    *,
    config: Annotated[
        str | None,
        about("read settings from this file; options given here win", "files", "RUN.toml"),
    ] = None,
    run: Annotated[
        str | None, about("folder of the run; by default a new one in runs/", "files")
    ] = None,
    overwrite: Annotated[bool, about("replace a run that is there", "files")] = False,
    no_baseline: Annotated[bool, about("skip the run without privacy", "server")] = False,
    resume: Annotated[
        str | None,
        about(
            "go on with a run that was stopped, or longer with one that has ended, by --rounds, "
            "--stop-at-epsilon, --delta, --neighboring, --checkpoint-every or --evaluate-every",
            "files",
            "RUN",
        ),
    ] = None,
    quiet: Quiet = False,
    tensorboard: Annotated[
        bool, about("also write RUN/tensorboard, round by round", "files")
    ] = False,
) -> Output:
    """Begin or resume a run and train it to its end."""
    with extras.needed("training", "train"):
        from randquant.cli import progress
        from randquant.training.runs import execution as runs
        from randquant.training.runs.tensorboard import TensorboardLog
    changes: dict[str, Any] = {}
    if resume is None:
        written = {} if config is None else settings.read(Path(config))
        begun = _config({**written, **upgraded(given)})
        baseline = not no_baseline and begun.mechanism != "clipped-sgd"
        folder = Path(run) if run else _new_folder(begun)
        runs.create(folder, begun, baseline=baseline, overwrite=overwrite)
    else:
        folder = Path(resume)
        changes = _changes(given, others=bool(run or overwrite or no_baseline or config))
    with contextlib.ExitStack() as stack:
        shown = [stack.enter_context(progress.Display(quiet=quiet)).round]
        if tensorboard:
            shown.append(stack.enter_context(TensorboardLog(folder)).round)

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            for each in shown:
                each(config, metrics)

        finished = runs.execute(folder, on_round, changes)
    return Output(progress.result(folder, finished), progress.table(folder, finished))


def options(words: Sequence[str]) -> list[Option]:
    """The settings of a run as options: its fields, and the parameters of every mechanism.

    Help shows those of the mechanism that the command line names.
    """
    hints, known = declared.hints(TrainConfig), all_mechanisms()
    named = _named(words)
    own = of_mechanism(known[named], whole_update=True) if named in known else []
    taken = {option.name for option in own}
    fields = [
        Option(name, hint, shown=_default(name), words=tuple(known) * (name == "mechanism"))
        for name, hint in {**hints, **settings.OLD}.items()
        if name not in ("parameters", *taken)
    ]
    others = {
        option.name: replace(option, hidden=True)
        for record in known.values()
        for option in of_mechanism(record, whole_update=True)
        if option.name not in taken
    }
    return [*own, *fields, *others.values()]


def _named(words: Sequence[str]) -> str:
    """The mechanism that a command line names, or the demo's."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--mechanism":
            return value if equals else "".join(words[place + 1 : place + 2])
    return DEMO.mechanism


def _default(name: str) -> str:
    plain, demo = (getattr(config, name, None) for config in (PLAIN, DEMO))
    parts = [str(plain)] if plain not in ("", None, {}) else []
    if demo != plain:
        parts.append(f"without --mechanism {demo}")
    return "; ".join(parts)


def _changes(given: Mapping[str, Any], others: bool) -> dict[str, Any]:
    """The settings that a run is to go on with."""
    from randquant.training.runs import folder as run_folder

    if others or not set(given) <= set(run_folder.FREE):
        raise ValueError(
            f"Expected --resume RUN with no other training options than {run_folder.OPTIONS}: a "
            "run goes on with the configuration it began with."
        )
    return dict(given)


def _config(given: Mapping[str, Any]) -> TrainConfig:
    """The demo's configuration, or a plain one for a named mechanism, with the given settings."""
    fields = {name: given[name] for name in given if name in settings.FIELDS}
    if "data_dir" in fields:  # a run may be resumed from another folder
        fields["data_dir"] = str(Path(fields["data_dir"]).expanduser().resolve())
    start = PLAIN if "mechanism" in fields else DEMO
    if "population" in fields:
        fields.setdefault("cohort", min(start.cohort, fields["population"]))
    mechanism = fields.get("mechanism", start.mechanism)
    of_mechanisms = {name: value for name, value in given.items() if name not in settings.FIELDS}
    if "clip_norm" in fields:
        of_mechanisms["clip_norm"] = fields.pop("clip_norm")
    own, clip_norm = Chosen(mechanism, of_mechanisms).split()
    parameters = {**start.parameters, **own}
    if not takes(mechanism, "clip") or "clip_norm" in own:
        parameters = own
    clip_norm = start.clip_norm if clip_norm is None else clip_norm
    return replace(start, **fields, parameters=parameters, clip_norm=clip_norm)


def _new_folder(config: TrainConfig) -> Path:
    stem = f"{config.dataset}-{config.model}-{config.mechanism}"
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


COMMAND = Command(
    run,
    example="randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    settings=options,
    resumable=True,
)
