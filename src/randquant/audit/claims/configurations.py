"""Settings of a private mechanism from files of Flower, NVFlare, pfl and Opacus.

A file is read as calls: in Python the calls of known classes with literal arguments, in JSON the
components (`path` or `name`, and `args`), in TOML and elsewhere settings by name. Nothing is
imported or run.
"""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from randquant._internal import files, validate

NAMES = {
    "clip_norm": ("clipping_norm", "max_grad_norm", "clipping_bound", "l2_norm_clip"),
    "noise_multiplier": ("relative_noise_stddev",),
    "sigma": ("noise_stddev", "std_dev"),
    "sensitivity": (),
    "epsilon": ("target_epsilon", "stated_epsilon"),
    "delta": ("target_delta",),
    "rounds": ("num_server_rounds", "num_rounds", "num_compositions", "num_steps"),
    "rate": ("sampling_probability", "sample_rate", "fraction_train", "fraction_fit"),
    "population": ("num_supernodes", "num_clients", "population_size"),
    "cohort": ("num_sampled_clients", "cohort_size", "min_train_nodes", "min_fit_clients"),
    "sampling": (),
    "dimension": (),
    "unit": (),
    "trust": (),
}
"""What a setting is called here, and elsewhere."""

ALIASES = {alias: name for name, others in NAMES.items() for alias in (name, *others)}

Call = tuple[str, dict[str, Any]]
"""The name of a class or a function, and its arguments; a plain table has none."""

STRATEGY = ("strategy", "noise_multiplier", "clipping_norm", "num_sampled_clients")
POSITIONS = {
    "LocalDpMod": ("clipping_norm", "sensitivity", "epsilon", "delta"),
    "DifferentialPrivacyServerSideFixedClipping": STRATEGY,
    "DifferentialPrivacyClientSideFixedClipping": STRATEGY,
    "GaussianMechanism": ("clipping_bound", "relative_noise_stddev"),
    "SVTPrivacy": (),
    "make_private": (),
    "PLDPrivacyAccountant": (),
    "PRVPrivacyAccountant": (),
    "RDPPrivacyAccountant": (),
}
"""Calls that are read, and their arguments by position."""


def read(path: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read the fields of a `PrivacyClaim` from a file.

    Args:
        path: a .toml, .json or .py file.
        given: fields that are known already: they win, and need not agree with the file.

    Returns:
        (fields, notes): what the file says, and what it leaves open.

    Raises:
        ValueError: the file is of another kind, holds no such settings, or contradicts itself.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OSError(f"Expected a configuration in {path}, cannot read it: {error}.") from None
    readers: dict[str, Callable[[str], Iterator[Call]]] = {
        ".toml": lambda text: _tables(files.parse_toml(text)),
        ".json": lambda text: _tables(json.loads(text)),
        ".py": _python,
    }
    reader = readers[validate.choice("the configuration's ending", path.suffix, readers)]
    try:
        calls = list(reader(text))
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        deep = isinstance(error, RecursionError | MemoryError)  # of the parsers, and of `_tables`
        reason = files.TOO_DEEP if deep else error
        kind = path.suffix[1:].upper().replace("PY", "Python")
        raise ValueError(f"Expected {kind} in {path}: {reason}.") from None
    fields: dict[str, Any] = {}
    notes: list[str] = []
    for name, arguments in calls:
        of_call = _fields(arguments)
        if name in SPECIAL:
            sampled = {"rate": given["rate"]} if "rate" in given else {}
            of_call, remarks = SPECIAL[name](of_call, {**arguments, **sampled})
            notes += remarks
        for key, value in of_call.items():
            if fields.setdefault(key, value) != value and key not in given:
                raise ValueError(
                    f"Expected one {key} in {path}, got {fields[key]} and {value}: give the one "
                    "that counts."
                )
    if not {"noise_multiplier", "sigma"} & fields.keys() and not {"noise_multiplier", "sigma"} & {
        *given
    }:
        raise ValueError(
            f"Expected the noise of a private mechanism in {path}, got none: give noise_multiplier "
            f"or sigma. Known are {', '.join(POSITIONS)}, and settings by name."
        )
    return _of_population(fields, given), tuple(dict.fromkeys(notes))


def _fields(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are known, by the names they have here."""
    fields: dict[str, Any] = {}
    for called, value in arguments.items():
        name = ALIASES.get(called.replace("-", "_"))
        if name and value is not None and fields.setdefault(name, value) != value:
            raise ValueError(
                f"Expected one {name}, got {fields[name]} and {value} under two names: give the "
                "one that counts."
            )
    return fields


def _of_population(fields: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """With the rate of cohorts of a fixed size; without what is no field of a claim."""
    population, cohort = fields.pop("population", None), fields.pop("cohort", None)
    if fields.get("sampling") == "none":
        fields.pop("rate", None)
    known = {*fields, *given}
    if "rate" in fields and cohort and "rate" not in given:
        fields["rate"] = _at_least(fields["rate"], population, cohort)
    if not {"rate", "sampling"} & known and population and cohort:
        population = validate.whole("population", population, low=1)
        if validate.whole("cohort", cohort, low=1) < population:
            fields["rate"] = math.nextafter(cohort / population, 1.0)
    if fields.get("rate") == 1:
        del fields["rate"]
    if "rate" in {*fields, *given} and "sampling" not in known:
        fields["sampling"] = "fixed"
    if given.get("sampling") == "none":
        fields.pop("rate", None)
    for name, other in (("sigma", "noise_multiplier"), ("noise_multiplier", "sigma")):
        if name in given:
            fields.pop(other, None)
    return fields


def _at_least(rate: Any, population: Any, cohort: Any) -> float:
    """The rate of cohorts that have a share of the population, and so many at least."""
    if not population:
        raise ValueError(
            f"Expected the number of clients beside a share of {rate} and at least {cohort} of "
            "them, got none: give rate."
        )
    population = validate.whole("population", population, low=1)
    least = validate.whole("cohort", cohort, low=1) / population
    rate = validate.real("rate", rate, above=0, high=1)
    return min(max(rate, math.nextafter(least, 1.0)), 1.0)


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in table.items() if not isinstance(each, dict | list)}


def _tables(value: Any) -> Iterator[Call]:
    """Components and tables of parsed JSON or TOML, the innermost too."""
    if isinstance(value, list):
        for each in value:
            yield from _tables(each)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("history"), list) and "mechanism" in value:
        yield from (("history", {"entry": entry}) for entry in value["history"])
        return
    path, arguments = value.get("path") or value.get("class_path"), value.get("args")
    if isinstance(name := value.get("name"), str) and name in POSITIONS:
        path = path or name
    if isinstance(path, str):
        yield path.rpartition(".")[2], _plain(arguments) if isinstance(arguments, dict) else {}
        return
    yield "", _plain(value)
    for each in value.values():
        yield from _tables(each)


def _python(text: str) -> Iterator[Call]:
    """Calls of known classes, whose arguments are literals or names of module constants."""
    module = ast.parse(text)
    constants: dict[str, Any] = {}
    named = Counter(_names(module))
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = _literal(node.value, constants)
            # A name that is given twice, or is an argument's too, may stand for something else.
            if value is not None and named[node.targets[0].id] == 1:
                constants[node.targets[0].id] = value
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in POSITIONS:
            arguments = dict(zip(POSITIONS[name], node.args, strict=False))
            arguments |= {each.arg: each.value for each in node.keywords if each.arg}
            literals = {key: _literal(each, constants) for key, each in arguments.items()}
            if "poisson_sampling" in literals and literals["poisson_sampling"] is not True:
                literals["poisson_sampling"] = False  # also where it cannot be read
            yield name, {key: each for key, each in literals.items() if each is not None}


def _names(module: ast.Module) -> Iterator[str]:
    """Every name that is given a value somewhere, as often as it is."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


def _literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of an expression of numbers, words and constants; None for any other."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


Special = Callable[[dict[str, Any], Mapping[str, Any]], tuple[dict[str, Any], tuple[str, ...]]]


def _local(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Flower's LocalDpMod: noise by the classical formula on each client's update."""
    wanted = ("sensitivity", "epsilon", "delta")
    if any(name not in fields for name in wanted):
        raise ValueError(
            "Expected clipping_norm, sensitivity, epsilon and delta of LocalDpMod as numbers."
        )
    sensitivity, epsilon = (
        validate.real(f"{name} of LocalDpMod", fields[name], above=0) for name in wanted[:2]
    )
    delta = validate.real("delta of LocalDpMod", fields["delta"], above=0, below=1)
    sigma = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    return {**fields, "sigma": sigma, "trust": "local"}, ()


def _strategy(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Flower's fixed clipping: noise on the mean of a cohort, by the server."""
    note = (
        "the noise is for a mean in which all clients count alike; FedAvg weights them by their "
        "number of examples, and then one may move the mean further than clipping_norm/cohort"
    )
    return {**fields, "trust": "central"}, (note,)


def _opacus(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Opacus: noise on sums of clipped gradients of single examples, in Poisson batches."""
    if arguments.get("poisson_sampling") is False:
        note = "poisson_sampling=False: batches are shuffled, for which no amplification is claimed"
        return {**fields, "sampling": "none", "unit": "example", "trust": "central"}, (note,)
    sampled = {"sampling": "poisson"} if "rate" in {*fields, *arguments} else {}
    return {**fields, **sampled, "unit": "example", "trust": "central"}, ()


def _history(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Opacus: the state of an accountant, which holds (noise multiplier, rate, steps)."""
    entry = arguments["entry"]
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError(
            f"Expected [noise multiplier, sample rate, steps] in a history, got "
            f"{validate.shown(entry)}."
        )
    noise, rate, steps = entry
    values = {"noise_multiplier": noise, "rate": rate, "rounds": steps, "unit": "example"}
    return {**values, "sampling": "poisson", "trust": "central"}, ()


def _accountant(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """pfl: clients sampled by Poisson; the noise on their sum over the clipping bound."""
    if str(arguments.get("mechanism", "gaussian")).lower() != "gaussian":
        raise ValueError(f"Expected Gaussian noise, got {validate.shown(arguments['mechanism'])}.")
    scale = validate.real("noise_scale", arguments.get("noise_scale", 1.0), above=0, high=1)
    if (noise := arguments.get("noise_parameter")) is not None:
        fields["noise_multiplier"] = validate.real("noise_parameter", noise, low=0) * scale
    note = (
        f"noise_scale={scale:g}: the stated figure is for the noise of a larger cohort than that "
        "which is added"
    )
    return {**fields, "sampling": "poisson", "trust": "central"}, (note,) * (scale != 1)


def _sparse(fields: dict[str, Any], arguments: Mapping[str, Any]) -> Any:
    """NVFlare's sparse vector technique: Laplace noise, for which nothing is proven here."""
    chosen = arguments.get("epsilon", 0.1)
    each = arguments.get("epsilon_release") or arguments.get("noise_var", 0.1)
    whom = "in all" if arguments.get("epsilon_release") else "for each coordinate that is sent"
    raise ValueError(
        f"Expected Gaussian noise, got SVTPrivacy, which is not checked: its epsilon={chosen} is "
        f"for choosing coordinates, in one round; sending them adds {each} {whom}."
    )


SPECIAL: dict[str, Special] = {
    "SVTPrivacy": _sparse,
    "LocalDpMod": _local,
    "DifferentialPrivacyServerSideFixedClipping": _strategy,
    "DifferentialPrivacyClientSideFixedClipping": _strategy,
    "GaussianMechanism": lambda fields, arguments: ({**fields, "trust": "central"}, ()),
    "make_private": _opacus,
    "history": _history,
    "PLDPrivacyAccountant": _accountant,
    "PRVPrivacyAccountant": _accountant,
    "RDPPrivacyAccountant": _accountant,
}
"""What the calls say beyond their arguments."""
