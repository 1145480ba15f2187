"""Commands on clients' data.

`randquant train`: train the model of a Python file on its clients' data, with a report.

`randquant statistics`: counts, means, quantiles and survival curves, with one guarantee.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import itertools
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

from randquant._internal import declared, imports, validate
from randquant._internal.declared import Clients, Count, Data, Files, Mechanism
from randquant._internal.formatting import count, round_up
from randquant.aggregation.additive import parties_notes
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import all_mechanisms
from randquant.cli.options import (
    COMMON,
    EVERYTHING,
    Command,
    Option,
    Output,
    mechanism_options,
    written_certificate,
    written_page,
)
from randquant.local_training.local import Local
from randquant.mechanisms.registry import notes_on
from randquant.planning.plans import Privacy
from randquant.privacy.accounting.accountant import other_relation_lines
from randquant.privacy.certificates.coordinate import certify
from randquant.privacy.guarantee import DEFAULT_TABLE_DELTA, MODEL_TERMS
from randquant.training.config import (
    PLACES,
    Server,
    Task,
    TrainConfig,
    declarations,
    describe_upload,
    setting_value,
)

if TYPE_CHECKING:
    from randquant.training.run_store import RunRecord, RunSummary

VALUES: dict[str, type] = {"local": Local, "server": Server, "privacy": Privacy}
"""The values that group settings of `randquant.train`; each field with a help text is an option."""

FACTORY_NAMES = ("model", "clients", "test")
"""Arguments that a file may also define as functions without arguments, which return them."""

DEFINABLE_NAMES = (*FACTORY_NAMES, "population", "loss", "mechanism", *VALUES)
"""Arguments of `randquant.train` that a file may define: those that no option can express."""


def run_train(
    options: Mapping[str, Any],
    file: Data[str],
    /,
    *,
    run: Files[str | None] = None,
    overwrite: Files[bool] = False,
    engine: Clients[Literal["flower"] | None] = None,
    processes: Clients[Count | None] = None,
    certificate: str | None = None,
    quiet: bool = False,
) -> Output:
    """Train the model of a file on its clients' data, as `randquant.train` does.

    Args:
        file: a Python file that defines model, clients and, to measure accuracy, test: values, or
            functions without arguments that return them. It may also define loss, mechanism,
            local, server and privacy, as randquant.train takes them; options change these.
        run: folder of the run; by default a new one in runs/. The same command with the same
            folder goes on with a run that was stopped.
        overwrite: replace the run in that folder.
        engine: flower to compute clients in processes of Flower's simulation engine (Ray), here or
            on the cluster that RAY_ADDRESS names; by default in this process. The run is the same.
        processes: processes of that engine on this machine; by default one a processor.
    """
    # torch is an extra: the help of this command works without it.
    with imports.needed("training", "train"):
        from randquant.reports.run import report_run
        from randquant.rounds.statement import certificate_file
        from randquant.training import federated
        from randquant.training.run_store import is_run
    path = Path(file).absolute()
    working_folder = Path.cwd()  # before the file's code runs, which may change it
    # Standard output is the result's: what the file prints goes to standard error.
    with _imports_from(path), _one_line_warnings(), contextlib.redirect_stdout(sys.stderr):
        arguments, notes = _arguments(path, options)
        home = working_folder / run if run else _new_folder(working_folder / "runs", path.stem)
        try:
            with contextlib.ExitStack() as stack:
                if overwrite:
                    stack.enter_context(federated.overwriting())
                stack.enter_context(_computing_on(engine, processes, path))
                trained = federated.train(**arguments, folder=home, progress=not quiet)
        except KeyboardInterrupt:
            if not is_run(home):
                raise  # nothing had begun
            again = "the same command" + " without --overwrite" * overwrite
            again += "" if run else f" with --run {home}"
            raise KeyboardInterrupt(federated.how_to_go_on(home, again)) from None
    report_run(home)
    finished = trained.record
    lines = finished_lines(home, finished, notes)
    try:
        lines += written_certificate(certificate, lambda: certificate_file(trained))
    except ValueError as error:  # the run is done and stored all the same
        lines.append(f"certificate    none: {error}")
    return Output(finished_json(home, finished, notes), lines)


def training_options(words: Sequence[str]) -> list[Option]:
    """Return the arguments of `randquant.train`, and the parameters of the mechanism, as options.

    Raises:
        ValueError: `--resume` is among the words.
    """
    if "--resume" in words:
        raise ValueError(
            "Expected the command that began the run, with --run and its folder, got --resume: "
            "the same command goes on with a run that was stopped."
        )
    known = all_mechanisms()
    named = known.values() if list(words) == [EVERYTHING] else [known.get(_mechanism_name(words))]
    parameters = {
        option.name: option
        for record in named
        if record is not None
        for option in mechanism_options(record)
    }
    return [
        *parameters.values(),
        *(option for name, option in _settings().items() if name not in parameters),
    ]


def _settings() -> dict[str, Option]:
    usual = TrainConfig(Task(1), "", cohort=1)
    bits, baseline = declared.hints(Privacy)["bits"], declared.hints(Server)["baseline"]
    # Declared without a group (a mechanism may have bits of its own), which an option needs.
    hints = {**declarations(), "bits": Mechanism[bits], "baseline": declared.Server[baseline]}
    settings = {}
    for name, hint in hints.items():
        if PLACES.get(name, ("", name))[0] == "task":
            continue  # the file defines it
        default = None if name in ("cohort", "mechanism") else setting_value(usual, name)
        settings[name] = Option(name, hint, default)
    target = declared.with_meaning(hints["stop_at_epsilon"], declared.text(COMMON["epsilon"]))
    settings["epsilon"] = dataclasses.replace(
        settings.pop("stop_at_epsilon"), name="epsilon", hint=target
    )
    return settings


def _mechanism_name(words: Sequence[str]) -> str:
    # Read from the words, since the options, with which they are parsed, depend on it.
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == "--mechanism":
            return value if equals else following
    return ""


def _arguments(path: Path, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    # The arguments of `randquant.train`, and notes on what a mechanism has chosen by itself.
    arguments = _definitions(path)
    name = options.get("mechanism")
    record = all_mechanisms()[name] if name else None
    parameters = () if record is None else record.parameters
    changes: dict[str, dict[str, Any]] = {part: {} for part in VALUES}
    for each, value in options.items():
        part, within = PLACES.get(each, ("", each))
        if each in parameters and (record is None or record.whole_update or each != "clip_norm"):
            continue
        if part in changes:
            changes[part][within] = value
        elif each != "mechanism":
            arguments[each] = value
    for part, changed in changes.items():
        if changed:
            value = arguments.get(part, VALUES[part]())
            validate.kind(part, value, VALUES[part])
            arguments[part] = dataclasses.replace(value, **changed)
    if name is None:
        return arguments, []
    chosen = {each: options[each] for each in parameters if each in options}
    arguments["mechanism"] = _built(name, chosen, arguments)
    # The mechanism has its own: `randquant.train` refuses a second setting of the same.
    privacy = arguments.get("privacy", Privacy())
    arguments["privacy"] = dataclasses.replace(privacy, coordinates=None)
    return arguments, notes_on(name, chosen)


def _built(
    name: str, parameters: Mapping[str, Any], arguments: Mapping[str, Any]
) -> UpdateMechanism:
    from randquant.local_training.data import client_set
    from randquant.local_training.problem import takes_classes
    from randquant.training import federated
    from randquant.training.config import configured_mechanism

    record = all_mechanisms()[name]
    local, privacy = arguments.get("local", Local()), arguments.get("privacy", Privacy())
    classes = takes_classes(arguments["loss"]) if "loss" in arguments else True
    given = arguments["clients"], local.columns, classes, arguments.get("population")
    population = len(client_set(*given))
    settings = {each: arguments[each] for each in ("rounds", "seed") if each in arguments}
    # Sums are the default, as in `randquant.train`; without them a mechanism has one trust only.
    usual = "aggregate" if "aggregate" in record.trusts else None
    config = TrainConfig(
        Task(population),
        name,
        parameters,
        cohort=arguments.get("cohort") or min(population, federated.LARGEST_COHORT),
        trust=arguments.get("trust", usual),
        # Its threshold is among its own parameters, and a second one would be refused.
        privacy=dataclasses.replace(privacy, clip_norm=None) if record.whole_update else privacy,
        **settings,
    )
    return configured_mechanism(config)


# The file.


def _definitions(path: Path) -> dict[str, Any]:
    # By name. Random numbers that the file draws are the same in every call, so that a run that
    # goes on begins with the same weights.
    from torch import nn

    from randquant.local_training.models import seeded

    definitions = {}
    with seeded(0):
        module = _module(path)
        for name in DEFINABLE_NAMES:
            if hasattr(module, name):
                value = getattr(module, name)
                # A torch module is callable too, and is the model itself.
                is_factory = callable(value) and not isinstance(value, nn.Module)
                # With a population, clients are a function of a client's number or name.
                reads = name == "clients" and hasattr(module, "population")
                made = name in FACTORY_NAMES and is_factory and not reads
                definitions[name] = value() if made else value
    if missing := [name for name in ("model", "clients") if name not in definitions]:
        names = ", ".join(each for each in vars(module) if each[:1] != "_")
        raise ValueError(
            f"Expected {path} to define model and clients, got no {' and no '.join(missing)} "
            f"among {names or 'nothing'}."
        )
    return definitions


def _module(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"Expected a Python file that defines model and clients, found no {path}.")
    # No import statement has such a name: the file may be called like a package that it imports.
    name = str(path.resolve())
    loader = _FromSource(name, name)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up what their annotations name there
    try:
        loader.exec_module(module)
    except SystemExit as error:
        raise ValueError(
            f"Expected {path} to define model and clients and go on, got its exit with "
            f"{error.code!r}."
        ) from None
    return module


class _FromSource(SourceFileLoader):
    """Compiles a file anew: Python takes cached bytecode for its own by second and size alone."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextlib.contextmanager
def _imports_from(path: Path) -> Iterator[None]:
    # A file can import the files in its folder, as under `python FILE.py`.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the list
            sys.path.remove(folder)


@contextlib.contextmanager
def _one_line_warnings() -> Iterator[None]:
    # On standard error, without the place in our code that Python would print.
    from randquant.training.federated import Advice

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if not issubclass(category, Advice):  # the table has it
            print(f"randquant train: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _computing_on(
    engine: str | None, processes: int | None, path: Path
) -> contextlib.AbstractContextManager[None]:
    if engine is None:
        if processes is not None:
            raise ValueError(
                f"Expected --engine flower, whose processes --processes counts, got --processes "
                f"{processes} without an engine: add --engine flower."
            )
        return contextlib.nullcontext()
    with imports.needed("Flower's simulation engine", "simulation"):
        from randquant.integrations.flower import simulation
    # No process can import the file, whose name as a module is its path.
    return simulation.engine(processes, modules=[sys.modules[str(path.resolve())]])


def _new_folder(runs: Path, name: str) -> Path:
    # The first free name; `create` refuses a folder that another process has taken meanwhile.
    number = 1
    while (folder := runs / f"{name}-{number}").exists():
        number += 1
    return folder


# A finished run in the terminal: a short table, or one JSON object.


def finished_json(folder: Path, run: RunRecord, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return a finished run as the JSON object that `randquant train --json` prints.

    Args:
        folder: of the run.
        run: its record.
        notes: on what its mechanism has chosen by itself.
    """
    from randquant.reports.run import read_baseline, run_facts

    baseline = read_baseline(folder)
    return {
        "run": str(folder),
        "report": str(folder / "report.html"),
        **run_facts(run, baseline and baseline.summary),
        "seconds": run.seconds,
        "notes": list(notes),
    }


def finished_lines(folder: Path, run: RunRecord, notes: Sequence[str] = ()) -> list[str]:
    """Return a finished run as the short table that ends `randquant train`; see `finished_json`."""
    from randquant.reports.run import read_baseline

    summary, config, baseline = run.summary, run.config, read_baseline(folder)
    reference = None if baseline is None else baseline.summary.accuracy
    comparison = "" if reference is None else f"   (without privacy {reference:.4f})"
    accuracy = "not measured" if summary.accuracy is None else f"{summary.accuracy:.4f}"
    balanced = (f"{name} {value:.4f}" for name, value in summary.figures_if_imbalanced.items())
    rows = [
        ("test accuracy", f"{', '.join([accuracy, *balanced])}{comparison}"),
        (
            "upload",
            f"{summary.bytes_per_upload:,} bytes a client and round "
            f"({summary.bits_per_coordinate:.2f} bits per coordinate{_sent_as(summary, config)})",
        ),
        ("guarantee", _guarantee(summary)),
    ]
    if summary.guarantee is not None:
        rows += [("", text) for text in other_relation_lines(summary.other_relation)]
        rows.append(("", _covered(summary, config)))
        rows += [("", note) for note in parties_notes(config.mechanism, config.parameters)]
        rows += [("", text) for text in _other_guarantee(summary)]
        rows += [("", note) for note in notes]
    if summary.stopped:
        rows.append(("stopped", summary.stopped))
    if summary.advice:
        rows.append(("advice", summary.advice))
    rows += [
        ("time", f"{run.seconds:.1f} s for {count(run.rounds, 'round')}"),
        ("report", str(folder / "report.html")),
    ]
    return [f"{name:<14} {text}" for name, text in rows]


def _guarantee(summary: RunSummary) -> str:
    guarantee = summary.guarantee
    if guarantee is None or math.isinf(guarantee.epsilon):
        return "none: this run protects nothing"
    return f"whole run, one {guarantee.unit}: {guarantee}"


def _other_guarantee(summary: RunSummary) -> list[str]:
    other, stated = summary.beside, summary.guarantee
    # A guarantee under model trust holds only if nobody sees more than the models: print the terms.
    terms = [MODEL_TERMS] if stated is not None and stated.trust == "model" else []
    if other is None:
        return terms
    who = ", if it is seen who takes part" * bool(terms)
    stands = other_relation_lines(summary.beside_other_relation)
    return [*terms, f"the same run, one {other.unit}{who}: {other}", *stands]


def _covered(summary: RunSummary, config: TrainConfig) -> str:
    from randquant.training.setup import stored_channel

    whole = (
        f"{describe_upload(config, summary.dimension)} x {count(summary.participations, 'round')} "
        "of the client with the most rounds"
    )
    # The figure of one coordinate is no guarantee of the run: it follows the run's, with its unit.
    if (channel := stored_channel(config)) is None:
        return whole
    clipped = config.privacy.clip_norm
    if clipped is not None:  # a bound per coordinate could exceed that of the update
        return f"{whole}, updates clipped to an l2 norm of {clipped}"
    upper = certify(channel, math.inf).epsilon.upper
    single = f"<= {round_up(upper)}" if math.isfinite(upper) else "is infinite too"
    return f"{whole}; per coordinate epsilon {single}"


def _sent_as(summary: RunSummary, config: TrainConfig) -> str:
    from randquant.reports.run import summed_clients

    if (clients := summed_clients(summary, config)) is None:
        return ", header included"
    plain = summary.bytes_as_codes
    unmasked = "" if plain is None else f"; {plain:,} bytes as plain codes"
    return f": masked for a sum of {clients:,}, header included, handshake not{unmasked}"


def run_statistics(
    *,
    data: Data[str],
    queries: Data[str],
    epsilon: float,
    delta: declared.Privacy[float] = DEFAULT_TABLE_DELTA,
    trust: declared.Privacy[Literal["central", "aggregate", "local"]] = "central",
    unit: declared.Privacy[Literal["client", "example"]] = "client",
    noise: declared.Privacy[Literal["clients", "helper", "parties"]] = "clients",
    by_client: Clients[str | None] = None,
    seed: declared.Privacy[int | None] = None,
    output: str | None = None,
    certificate: str | None = None,
) -> Output:
    """Ask all queries of a file at once.

    Args:
        data: records in a file: CSV, an empty cell is a missing value; or JSON lines, if its name
            ends in .jsonl or .ndjson. Ids and categories are texts, as they are written.
        queries: a TOML file with a table for each: its kind, its fields and, if it shall be more
            accurate than others, its weight.
        delta: probability with which epsilon may fail.
        trust: central, you may see this file; aggregate or local, simulate the errors of a table
            whose clients share the noise, or each add all of it.
        unit: what is protected, a client or one example (record) of a client.
        noise: with aggregate trust, who adds the noise: the clients together, the helper of a
            secure sum, or the parties that open it: helper and server, each as much.
        by_client: the column by which records belong to the same client; by default each record is
            a client.
        seed: seed of a simulation, which protects nobody.
    """
    # Imported here, so that `randquant statistics --help` does not wait for these imports.
    from randquant.reports import answers
    from randquant.rounds.statement import certificate_file
    from randquant.statistics.table import by_client as grouped_by
    from randquant.statistics.table import read_queries, read_records, statistics

    records = read_records(data)
    parsed, weights = read_queries(queries)
    table = statistics(
        records if by_client is None else grouped_by(records, by_client),
        epsilon, delta, queries=parsed, weights=weights, trust=trust, unit=unit, noise=noise,
        seed=seed,
    )  # fmt: skip
    # First: it may be refused, and then no answer may be left behind, whose epsilon nobody counts.
    certified = written_certificate(certificate, lambda: certificate_file(table))
    written = written_page(output, lambda: answers.page(table)) + certified
    result = {**answers.as_json(table), "output": output}
    return Output(result, [*str(table).splitlines(), *written])


COMMANDS = {
    "train": Command(
        run_train,
        example="randquant train examples/digits.py --epsilon 8",
        settings=training_options,
        bar=False,
    ),
    "statistics": Command(
        run_statistics,
        example="randquant statistics --data patients.csv --queries queries.toml --epsilon 1",
    ),
}
