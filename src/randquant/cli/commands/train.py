"""`randquant train`: train a federated model on real data, with a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randquant._internal import extras
from randquant._internal.declared import Data, Files, Server
from randquant.aggregation.registry import all_mechanisms
from randquant.cli.options import EVERYTHING, Command, Option, Output, of_mechanism, takes
from randquant.training import settings
from randquant.training.config import TrainConfig, check_config, value_of
from randquant.training.records import RoundMetrics

PLAIN = TrainConfig.of("digits", "softmax", "", {"clip": 0.03})
"""What `randquant train` begins with when a mechanism is named."""

DEMO = TrainConfig.of(
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
    data: Data[str | None] = None,
    config: Files[str | None] = None,
    run: Files[str | None] = None,
    overwrite: Files[bool] = False,
    no_baseline: Server[bool] = False,
    resume: Files[str | None] = None,
    quiet: bool = False,
) -> Output:
    """Begin or resume a run and train it to its end.

    Args:
        data: your own clients' data, FILE.py:FUNCTION: --dataset by its usual name.
        config: read settings from this file, RUN.toml; options given here win.
        run: folder of the run; by default a new one in runs/.
        overwrite: replace a run that is there.
        no_baseline: skip the run without privacy.
        resume: go on with a run that was stopped. --rounds may be lowered, and --stop-at-epsilon,
            --delta, --neighboring, --checkpoint-every and --evaluate-every may change; rounds
            cannot be added.
    """
    with extras.needed("training", "train"):
        from randquant.cli import progress
        from randquant.reports.run import report_run
        from randquant.training.runs import execution as runs
    changes: dict[str, Any] = {}
    if resume is None:
        written = {} if config is None else settings.read(Path(config))
        dataset = {} if data is None else {"dataset": data}
        chosen = {**written, **given, **dataset}
        begun, objects = _with_problem(_config(chosen), chosen.get("population"))
        begun = begun.changed(baseline=not no_baseline and begun.protects)
        folder = Path(run) if run else _new_folder(begun)
        runs.create(folder, begun, overwrite=overwrite, overrides=objects)
    else:
        folder = Path(resume)
        changes = _changes(given, others=bool(run or overwrite or no_baseline or config or data))
    folder = folder.absolute()  # a user's function may change directory
    with progress.RunBars(quiet) as bars:

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            bars.round(Path(config.mechanism), config, metrics)

        finished = runs.execute(folder, on_round, changes)
    report_run(folder)
    return Output(progress.result(folder, finished), progress.table(folder, finished))


def options(words: Sequence[str]) -> list[Option]:
    """The settings of a run as options: its fields, and the parameters of its mechanism.

    That is the one which the command line, or the file that it names, gives.
    """
    known, named = all_mechanisms(), _mechanism(words)
    start = PLAIN if named else DEMO
    chosen = known.values() if list(words) == [EVERYTHING] else [known.get(named or DEMO.mechanism)]
    own = {
        option.name: option
        for record in chosen
        if record is not None
        for option in of_mechanism(record, whole_update=True)
    }
    fields = [
        Option(name, hint, value_of(start, name))
        for name, hint in settings.given().items()
        if name not in own
    ]
    return [*own.values(), *fields]


def _mechanism(words: Sequence[str]) -> str:
    """The mechanism that a command line names, or its file; none for the demo's."""
    named = _value("--mechanism", words)
    if not named and (path := Path(_value("--config", words) or ".")).is_file():
        named = settings.read(path).get("mechanism", "")
    return named


def _value(option: str, words: Sequence[str]) -> str:
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else following
    return ""


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
    start = PLAIN if "mechanism" in given else DEMO
    fields = {name: value for name, value in settings.flat(start).items() if value is not None}
    fields["cohort"] = min(start.cohort, given.get("population", start.cohort))
    if "clip_norm" in given and takes(given.get("mechanism", ""), "clip_norm"):
        fields.pop("clip", None)  # which some mechanisms take instead
    return settings.config({**fields, **given})


def _with_problem(config: TrainConfig, population: int | None) -> tuple[TrainConfig, Any]:
    """The configuration with what follows from its own problem, and that problem, built once."""
    from randquant.training import functions
    from randquant.training.runs.setup import NO_OVERRIDES, Overrides

    if not functions.is_named(config):
        return config, NO_OVERRIDES
    check_config(config)
    problem = functions.problem_by_function(config)
    return functions.of_problem(config, problem, population), Overrides(problem)


def _new_folder(config: TrainConfig) -> Path:
    names = (config.task.dataset, config.task.model, config.mechanism)
    stem = "-".join(name.rpartition(":")[2] for name in names)
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


COMMAND = Command(
    run,
    example="randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    settings=options,
    resumable=True,
    bar=False,
)
