"""Settings of a private mechanism from files of Flower, NVFlare, pfl and Opacus.

A file is read as calls: in Python the calls of known classes with literal arguments, in JSON the
components (`path` or `name`, and `args`). Nothing is imported or run.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from randquant_papers.claims.claim import PrivacyClaim

NAMES = {
    **dict.fromkeys(("clipping_norm", "clipping_bound", "max_grad_norm"), "clip_norm"),
    "relative_noise_stddev": "noise_multiplier",
    **dict.fromkeys(("noise_stddev", "std_dev"), "sigma"),
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    **dict.fromkeys(("num_rounds", "num_compositions", "num_steps"), "rounds"),
    **dict.fromkeys(("sampling_probability", "sample_rate"), "rate"),
}
"""What others call a setting, and what it is called here."""

HISTORY = "the history of an accountant"

Arguments = dict[str, Any]

Added = tuple[Arguments, str]
"""What a call says beyond its arguments: settings, and a note or nothing."""


def read(path: Path, given: Mapping[str, Any]) -> tuple[Arguments, tuple[str, ...]]:
    """Read the fields of a `PrivacyClaim` from a file.

    Args:
        path: a .json or .py file.
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
    kinds: dict[str, tuple[str, Callable[[str], Iterator[tuple[str, Arguments]]]]] = {
        ".json": ("JSON", lambda text: _components(json.loads(text))),
        ".py": ("Python", _calls),
    }
    if path.suffix not in kinds:
        raise ValueError(f"Expected a .json or .py file as a configuration, got {path}.")
    kind, reader = kinds[path.suffix]
    try:
        calls = list(reader(text))
    except (RecursionError, MemoryError):
        raise ValueError(f"Expected {kind} in {path}: it is nested too deeply.") from None
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"Expected {kind} in {path}: {error}.") from None
    fields: Arguments = {}
    notes: list[str] = []
    for name, arguments in calls:
        settings = [(NAMES.get(key, key), value) for key, value in arguments.items()]
        added, note = CALLS[name][1](dict(settings), given) if name in CALLS else ({}, "")
        notes += [note] * bool(note)
        for key, value in (*settings, *added.items()):
            if key not in PrivacyClaim.__struct_fields__ or key in given:
                continue
            if fields.setdefault(key, value) != value:
                raise ValueError(
                    f"Expected one {key} in {path}, got {fields[key]} and {value}: give the one "
                    "that counts."
                )
    noise = {"noise_multiplier", "sigma"}
    if not noise & {*fields, *given}:
        raise ValueError(
            f"Expected the noise of a private mechanism in {path}, got none: give noise_multiplier "
            f"or sigma. Known are {', '.join(CALLS)}, and components with arguments by name."
        )
    sampling = given.get("sampling", fields.get("sampling"))
    if sampling is None and "rate" in {*fields, *given}:
        fields["sampling"] = "fixed"
    out = (noise if noise & given.keys() else set()) | ({"rate"} if sampling == "none" else set())
    return {key: value for key, value in fields.items() if key not in out}, (*dict.fromkeys(notes),)


def _components(value: Any) -> Iterator[tuple[str, Arguments]]:
    """Components of parsed JSON, the innermost too, and the state of an accountant."""
    if isinstance(value, list):
        for each in value:
            yield from _components(each)
    if not isinstance(value, dict):
        return
    path, arguments = value.get("path") or value.get("class_path"), value.get("args")
    path = path or (value["name"] if str(value.get("name")) in CALLS else None)
    if isinstance(value.get("history"), list) and "mechanism" in value:
        yield from ((HISTORY, {"entry": entry}) for entry in value["history"])
    elif isinstance(path, str):
        plain = arguments if isinstance(arguments, dict) else {}
        kept = {key: each for key, each in plain.items() if not isinstance(each, dict | list)}
        yield path.rpartition(".")[2], {k: each for k, each in kept.items() if each is not None}
    else:
        yield from _components(list(value.values()))


def _calls(text: str) -> Iterator[tuple[str, Arguments]]:
    """Calls of known classes in Python, with those of their arguments that are literals."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
        if name in CALLS:
            written = dict(zip(CALLS[name][0], node.args, strict=False))
            written |= {each.arg: each.value for each in node.keywords if each.arg}
            literals = {key: _literal(each) for key, each in written.items()}
            if literals.get("poisson_sampling", True) is not True:
                literals["poisson_sampling"] = False  # also where it cannot be read
            yield name, {key: each for key, each in literals.items() if each is not None}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _local(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """Flower's LocalDpMod: noise by the classical formula on each client's update."""
    try:
        sensitivity, epsilon, delta = (settings[key] for key in ("sensitivity", "epsilon", "delta"))
        sigma = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
    except (KeyError, TypeError, ValueError, ArithmeticError):
        sigma = None
    if sigma is None or "clip_norm" not in {*settings, *given}:
        raise ValueError(
            "Expected clipping_norm, sensitivity, epsilon and delta of LocalDpMod as numbers above "
            "0, delta below 1."
        )
    return {"sigma": sigma, "trust": "local"}, ""


def _strategy(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """Flower's fixed clipping: noise on the mean of a cohort, by the server."""
    return {"trust": "central"}, (
        "the noise is for a mean in which all clients count alike; FedAvg weights them by their "
        "number of examples, and then one may move the mean further than clipping_norm/cohort; "
        "the size of cohorts is not read: give sampling and rate"
    )


def _opacus(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """Opacus: noise on sums of clipped gradients of single examples, in Poisson batches."""
    added = {"unit": "example", "trust": "central"}
    if settings.get("poisson_sampling") is False:
        note = "poisson_sampling=False: batches are shuffled, for which no amplification is claimed"
        return {**added, "sampling": "none"}, note
    return {**added, "sampling": "poisson" if "rate" in {*settings, *given} else "none"}, ""


def _history(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """Opacus: the state of an accountant, which holds (noise multiplier, rate, steps)."""
    entry = settings.get("entry")
    if not isinstance(entry, list) or len(entry) != 3:
        raise ValueError("Expected [noise multiplier, sample rate, steps] in a history.")
    added = dict(zip(("noise_multiplier", "rate", "rounds"), entry, strict=True))
    return {**added, "unit": "example", "sampling": "poisson", "trust": "central"}, ""


def _accountant(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """pfl: clients sampled by Poisson; the noise on their sum over the clipping bound."""
    if str(settings.get("mechanism", "gaussian")).lower() != "gaussian":
        raise ValueError("Expected Gaussian noise, got an accountant of another mechanism.")
    added: Arguments = {"sampling": "poisson", "trust": "central"}
    scale, noise = settings.get("noise_scale", 1.0), settings.get("noise_parameter")
    if not isinstance(scale, int | float) or not 0 < scale <= 1:
        raise ValueError("Expected noise_scale of an accountant above 0 and at most 1.")
    if isinstance(noise, int | float):
        added["noise_multiplier"] = noise * scale
    note = (
        f"noise_scale={scale:g}: the stated figure is for the noise of a larger cohort than that "
        "which is added"
    )
    return added, note if scale != 1 else ""


def _sparse(settings: Arguments, given: Mapping[str, Any]) -> Added:
    """NVFlare's sparse vector technique: Laplace noise, for which nothing is proven here."""
    each = settings.get("epsilon_release") or settings.get("noise_var", 0.1)
    whom = "in all" if settings.get("epsilon_release") else "for each coordinate that is sent"
    raise ValueError(
        "Expected Gaussian noise, got SVTPrivacy, which is not checked: its epsilon="
        f"{settings.get('epsilon', 0.1)} is for choosing coordinates, in one round; sending them "
        f"adds {each} {whom}."
    )


STRATEGY = ("strategy", "noise_multiplier", "clipping_norm", "num_sampled_clients")
CALLS: dict[str, tuple[tuple[str, ...], Callable[[Arguments, Mapping[str, Any]], Added]]] = {
    "LocalDpMod": (("clipping_norm", "sensitivity", "epsilon", "delta"), _local),
    "DifferentialPrivacyServerSideFixedClipping": (STRATEGY, _strategy),
    "DifferentialPrivacyClientSideFixedClipping": (STRATEGY, _strategy),
    "GaussianMechanism": (
        ("clipping_bound", "relative_noise_stddev"), lambda _, given: ({"trust": "central"}, ""),
    ),
    "SVTPrivacy": ((), _sparse),
    "make_private": ((), _opacus),
    HISTORY: ((), _history),
    "PLDPrivacyAccountant": ((), _accountant),
    "PRVPrivacyAccountant": ((), _accountant),
    "RDPPrivacyAccountant": ((), _accountant),
}  # fmt: skip
"""Calls that are read: their arguments by position, and what they say beyond them."""
