"""The settings of training runs as flat names and values: checked, read from a file, compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from randquant._internal import declared, files, validate
from randquant.aggregation.registry import all_mechanisms
from randquant.training.config import NAMES, PARTS, PLACES, TrainConfig, value_of
from randquant.training.task import Task

_TEXTS: dict[str, Any] = {
    "public": declared.Data[str | None],
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

_PLAIN = TrainConfig(Task("", ""), "")

DEFAULTS = {
    name: value_of(_PLAIN, name) for name in FIELDS if name not in ("dataset", "model", "mechanism")
}


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
    if not all_mechanisms()[mechanism].trusts:  # it has neither
        for name in {"trust", "stop_at_epsilon"} & set(common):
            of_run.pop(name, None)
    return TrainConfig.of(**with_full_paths(of_run), parameters=own)


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


def read(path: Path) -> dict[str, Any]:
    """Return the settings of a run that a TOML file gives, by name, checked.

    Args:
        path: a file with fields of TrainConfig and parameters of its mechanism, `name = value`.

    Raises:
        ValueError, TypeError: it is no TOML, or a setting is unknown or of the wrong kind.
        OSError: it cannot be read.
    """
    try:
        given = files.parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OSError(
            f"Expected a run's settings in {path}, got no readable file: {error}."
        ) from None
    except ValueError as error:
        raise ValueError(f"Expected a run's settings as TOML in {path}: {error}.") from None
    mechanism = given.get("mechanism")
    try:
        check(
            {name: [value] for name, value in given.items()},
            all_mechanisms() if mechanism is None else [mechanism],
        )
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error} (in {path})") from None
    return {
        name: declared.check(name, FIELDS[name], value) if name in FIELDS else value
        for name, value in given.items()
    }


def with_full_paths(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which files have their full path: a run may be resumed from elsewhere.

    Example:
        >>> with_full_paths({"dataset": "digits", "model": "torch.nn:Identity"})
        {'dataset': 'digits', 'model': 'torch.nn:Identity'}
    """
    found = dict(fields)
    if found.get("data_dir"):
        found["data_dir"] = str(Path(found["data_dir"]).expanduser().resolve())
    for name in {"dataset", "model", "loss", "public"} & found.keys():
        path, colon, function = (found[name] or "").rpartition(":")
        if colon and path.endswith(".py"):
            found[name] = f"{Path(path).expanduser().resolve()}:{function}"
    return found


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
