"""The settings of training runs as flat names and values: checked and compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from randquant._internal import declared, validate
from randquant.aggregation.registry import all_mechanisms
from randquant.training.config import NAMES, PARTS, PLACES, TrainConfig, value_of

_TEXTS: dict[str, Any] = {
    "server_optimizer": declared.Server[str],
    "numbers": declared.Clients[tuple[str, ...]],
}
"""How settings that may be objects in Python are given as texts."""


def _fields() -> dict[str, Any]:
    of_parts = {part: declared.hints(kind) for part, kind in PARTS.items()}
    own = declared.hints(TrainConfig)
    found = {}
    for name in NAMES:
        part, within = PLACES.get(name, ("", name))
        hint = of_parts[part][within] if part else own[name]
        if name in _TEXTS:
            hint = declared.meaning(_TEXTS[name], declared.text(hint))
        found[name] = hint
    return {name: hint for name, hint in found.items() if declared.group(hint)}


FIELDS = {name: hint for name, hint in _fields().items() if name != "parameters"}
"""The declarations of a run's settings by name, as users give them on the command line or in a
file; those of its mechanism are in its record."""


def given() -> dict[str, Any]:
    """Declarations of what users give, with the mechanisms there are."""
    words = Literal[tuple(all_mechanisms())]  # pyright: ignore[reportInvalidTypeForm]
    text = declared.text(FIELDS["mechanism"])
    return {**FIELDS, "mechanism": declared.meaning(declared.Mechanism[words], text)}


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return all settings of a run by name, including the mechanism's parameters.

    Example:
        >>> settings = flat(TrainConfig.of("digits", "mlp", "rqm", {"clip": 0.03}))
        >>> settings["mechanism"], settings["clip"], "parameters" in settings
        ('rqm', 0.03, False)
    """
    # A baseline's own clip_norm and a channel's mean the same; only one of them is set.
    return {**{name: value_of(config, name) for name in FIELDS}, **config.parameters}


def changes(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    """Return what differs in a configuration from another one, by name.

    Example:
        >>> before = TrainConfig.of("digits", "mlp", "rqm", batch=8)
        >>> changes(before, before.changed(batch=16))
        {'batch': 16}
    """
    return {
        name: value_of(after, name)
        for name in NAMES
        if value_of(before, name) != value_of(after, name)
    }


def config(flat: Mapping[str, Any], common: Collection[str] = ()) -> TrainConfig:
    """Build a run's configuration from its settings by name: what `flat` returns, and more.

    Args:
        flat: settings of TrainConfig and parameters of its mechanism, by name. A `clip_norm` is
            used for whichever of them has one, as on the command line. Parameters of other
            mechanisms are ignored.
        common: names of settings for all mechanisms, including those without privacy.

    Raises:
        ValueError, TypeError: the mechanism is unknown, or a setting has the wrong type.
    """
    mechanism = flat["mechanism"]
    taken = parameters_of(mechanism)
    whole = all_mechanisms()[mechanism].whole_update
    of_run = {
        name: declared.check(name, FIELDS[name], value)
        for name, value in flat.items()
        if name in FIELDS and not (name == "clip_norm" and whole)
    }
    own = {name: value for name, value in flat.items() if name in taken}
    if of_run.get("data_dir"):  # a run may be resumed from elsewhere
        of_run["data_dir"] = str(Path(of_run["data_dir"]).expanduser().resolve())
    if not all_mechanisms()[mechanism].trusts:  # it has neither
        for name in {"trust", "stop_at_epsilon"} & set(common):
            of_run.pop(name, None)
    return TrainConfig.of(**of_run, parameters=own)


def differing(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, the mechanism first.

    Example:
        >>> differing([TrainConfig.of("digits", "mlp", "rqm", seed=seed) for seed in (1, 2)])
        ['seed']
    """
    settings = [flat(config) for config in configs]
    names = dict.fromkeys(name for run in settings for name in run)
    differ = [name for name in names if len({repr(run.get(name)) for run in settings}) > 1]
    return sorted(differ, key=lambda name: name != "mechanism")


def parameters_of(mechanism: Any) -> tuple[str, ...]:
    """Return the names of a mechanism's own parameters.

    Raises:
        ValueError: there is no such mechanism.
    """
    known = all_mechanisms()
    return known[validate.choice("mechanism", mechanism, known)].parameters


def check(values: Mapping[str, Collection[Any]], mechanisms: Collection[Any]) -> None:
    """Refuse settings that are unknown or not as declared.

    Args:
        values: possible values by name; each name must be a field of TrainConfig or a parameter of
            one of the mechanisms.
        mechanisms: names.
    """
    taken = {name for mechanism in mechanisms for name in parameters_of(mechanism)}
    hints = given()
    for name, possible in values.items():
        hint = hints.get(name)
        if hint is None and name not in taken:
            known = ", ".join(hints)
            raise ValueError(
                f"Expected parameters of {', '.join(sorted(mechanisms))}, or settings of a run "
                f"({known}); got {name!r}{validate.nearest(name, [*hints, *taken])}"
            )
        for value in possible if hint is not None else ():
            declared.check(name, hint, value)
