"""`randquant train`: train a federated model on real data, with a report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from randquant._internal import extras
from randquant._internal.declared import Data, Files, Server
from randquant.aggregation.registry import all_mechanisms
from randquant.cli.options import (
    EVERYTHING,
    Command,
    Option,
    Output,
    flag,
    mechanism_options,
    takes,
)
from randquant.training import settings
from randquant.training.config import TrainConfig, check_config, value_of
from randquant.training.records import RoundMetrics

PLAIN = TrainConfig.of("digits", "softmax", "", {"clip": 0.03})
"""The settings that `randquant train` changes if a mechanism is named."""

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
"""The same if no mechanism is named: one bit per coordinate, secure sums, epsilon 8 for the run."""


def run(
    options: Mapping[str, Any],
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
        overwrite: replace an existing run.
        no_baseline: skip the run without privacy.
        resume: go on with a run that was stopped. --rounds may be lowered, and --stop-at-epsilon,
            --delta, --neighboring, --checkpoint-every and --evaluate-every may change; rounds
            cannot be added.
    """
    # torch is an extra: the help of this command works without it.
    with extras.needed("training", "train"):
        from randquant.cli import progress
        from randquant.reports.run import report_run
        from randquant.training.runs import execution as runs
    changes: dict[str, Any] = {}
    # Options on the command line win over the file, and the file over the demo's values.
    if resume is None:
        written = {} if config is None else settings.read(Path(config))
        dataset = {} if data is None else {"dataset": data}
        chosen = {**written, **options, **dataset}
        start, objects = _with_problem(_config(chosen), chosen.get("population"))
        start = start.changed(baseline=not no_baseline and start.protects)
        folder = Path(run) if run else _new_folder(start)
        runs.create(folder, start, overwrite=overwrite, overrides=objects)
    else:
        folder = Path(resume)
        refused = {"--run": run, "--overwrite": overwrite, "--no-baseline": no_baseline,
                   "--config": config, "--data": data}  # fmt: skip
        changes = _changes(options, [name for name, value in refused.items() if value])
    folder = folder.absolute()  # a user's function may change the working directory
    with progress.RunBars(quiet) as bars:

        def on_round(config: TrainConfig, metrics: RoundMetrics) -> None:
            bars.round(Path(config.mechanism), config, metrics)

        finished = runs.execute(folder, on_round, changes)
    report_run(folder)
    return Output(progress.result(folder, finished), progress.table(folder, finished))


def settings_options(words: Sequence[str]) -> list[Option]:
    """Return the settings of a run as options: its fields, and the parameters of its mechanism.

    The mechanism is named on the command line, or in the file of `--config`.
    """
    known, named = all_mechanisms(), _mechanism(words)
    start = PLAIN if named else DEMO  # whose values help shows as defaults
    chosen = known.values() if list(words) == [EVERYTHING] else [known.get(named or DEMO.mechanism)]
    parameters = {
        option.name: option
        for record in chosen
        if record is not None
        for option in mechanism_options(record, whole_update=True)
    }
    fields = [
        Option(name, hint, value_of(start, name))
        for name, hint in settings.given().items()
        if name not in parameters
    ]
    return [*parameters.values(), *fields]


def _mechanism(words: Sequence[str]) -> str:
    # Of the command line or of its --config file; empty for the demo. Read before the options are
    # parsed, because the mechanism decides which options there are.
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


def _changes(options: Mapping[str, Any], refused: Sequence[str]) -> dict[str, Any]:
    from randquant.training.runs import store

    refused = [*refused, *(flag(name) for name in options if name not in store.FREE)]
    if refused:
        raise ValueError(
            f"Expected --resume RUN with no other training options than {store.OPTIONS}, got "
            f"{', '.join(refused)}: a run goes on with the configuration it began with."
        )
    return dict(options)


def _config(options: Mapping[str, Any]) -> TrainConfig:
    start = PLAIN if "mechanism" in options else DEMO
    fields = {name: value for name, value in settings.flat(start).items() if value is not None}
    fields["cohort"] = min(start.cohort, options.get("population", start.cohort))
    if "clip_norm" in options and takes(options.get("mechanism", ""), "clip_norm"):
        fields.pop("clip", None)  # mechanisms with a parameter clip_norm may have no clip
    return settings.config({**fields, **options})


def _with_problem(config: TrainConfig, population: int | None) -> tuple[TrainConfig, Any]:
    # A user's function is called once: it may load data, and the configuration depends on its
    # problem.
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
    # The first free name; `create` refuses a folder that another process has taken meanwhile.
    number = 1
    while (folder := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return folder


COMMAND = Command(
    run,
    example="randquant train --dataset digits --mechanism rqm --clip 0.03 --rounds 100",
    settings=settings_options,
    resumable=True,
    bar=False,
)
