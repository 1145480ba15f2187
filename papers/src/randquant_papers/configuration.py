"""A run of the papers' experiments: data set and model by names, and the papers' usual settings.

They differ from those of `randquant.train`: one gradient a client and round, every coordinate
clipped alone, and a simulation from a seed.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from randquant import Local, Privacy
from randquant.aggregation import all_mechanisms
from randquant.training import RunStatus, Task, TrainConfig, read_run, settings_of
from randquant_papers.data.datasets import OWN, PARTITIONS, choice


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """A model and a data set that is split over clients, by names.

    Attributes:
        dataset: one of `sets.NAMES`.
        model: one of `problems.MODELS`.
        data_dir: folder of the data files; digits and breast-cancer need none.
        partition: how data is split over clients; own is by the clients that the data come with.
        concentration: Dirichlet concentration.
    """

    dataset: str
    model: str
    data_dir: str = ""
    partition: Literal["iid", "shards", "dirichlet", "own"] = "iid"
    concentration: float = 0.3

    def __post_init__(self) -> None:
        choice("partition", self.partition, (*PARTITIONS, OWN))


DATA_NAMES = tuple(each.name for each in dataclasses.fields(TrainedOn))
"""The settings of TrainedOn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperConfig(TrainConfig):
    """The configuration of a run whose data set and model have names.

    Attributes:
        data: what is trained, by names. The task has the population alone.
    """

    data: TrainedOn

    @classmethod
    def of(
        cls, dataset: str, model: str, mechanism: str, parameters: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> PaperConfig:  # fmt: skip
        """Return a configuration from the names of all settings, whatever parts they are in.

        It is a simulation as in the papers unless said otherwise: from seed 0, 300 rounds of 40 of
        200 clients that send one gradient each, every coordinate clipped alone.

        Example:
            >>> config = PaperConfig.of("digits", "mlp", "rqm", {"clip": 0.03}, local_epochs=2,
            ...                         local_learning_rate=0.1)
            >>> config.local.epochs, config.rounds
            (2, 300)
        """
        plain = cls(
            Task(200), mechanism, parameters or {}, cohort=40, rounds=300, trust=None, seed=0,
            local=Local(epochs=1, learning_rate=0.0), privacy=Privacy(clip_norm=None),
            data=TrainedOn(dataset, model),
        )  # fmt: skip
        return plain.changed(**settings)

    def changed(self, **settings: Any) -> PaperConfig:
        """Return the same with some settings changed, by their names among all settings.

        Example:
            >>> PaperConfig.of("digits", "mlp", "rqm").changed(dataset="mnist", batch=8).data
            TrainedOn(dataset='mnist', model='mlp', data_dir='', partition='iid', concentration=0.3)
        """
        named = {name: settings.pop(name) for name in DATA_NAMES if name in settings}
        changed = TrainConfig.changed(self, **settings)
        assert isinstance(changed, PaperConfig)
        return dataclasses.replace(changed, data=dataclasses.replace(self.data, **named))

    def stored(self, task: Task) -> TrainConfig:
        """Return what a run's store has of it, with the task of its problem."""
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(TrainConfig)}
        return TrainConfig(**{**own, "task": task})


def named_settings(config: PaperConfig) -> dict[str, Any]:
    """Return all settings of a run by name, including the mechanism's parameters.

    Example:
        >>> found = named_settings(PaperConfig.of("digits", "mlp", "rqm", {"clip": 0.03}))
        >>> found["mechanism"], found["dataset"], found["clip"], "parameters" in found
        ('rqm', 'digits', 0.03, False)
    """
    return {**dataclasses.asdict(config.data), **settings_of(config)}


USUAL = named_settings(PaperConfig.of("", "", ""))
"""The papers' usual settings by name, without parameters of mechanisms."""


def of_settings(settings: Mapping[str, Any], common: Collection[str] = ()) -> PaperConfig:
    """Return the configuration with some settings by name: what `named_settings` returns, and more.

    Args:
        settings: settings of a run and parameters of its mechanism. A `clip_norm` is used for
            whichever of them has one. Parameters of other mechanisms are ignored.
        common: names of settings for all mechanisms, including those without privacy.

    Raises:
        ValueError, TypeError: the mechanism is unknown, or a setting is not as declared.
    """
    known = all_mechanisms()
    record = known[choice("mechanism", settings["mechanism"], known)]
    own = {name: value for name, value in settings.items() if name in record.parameters}
    of_run: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in settings.items()
        if name in USUAL and not (name == "clip_norm" and record.whole_update)
    }
    if of_run.get("data_dir"):  # a run may be resumed from elsewhere
        of_run["data_dir"] = str(Path(of_run["data_dir"]).expanduser().resolve())
    if not record.trusts:  # it has neither
        for name in {"trust", "stop_at_epsilon"} & set(common):
            of_run.pop(name, None)
    return PaperConfig.of(**of_run, parameters=own)


def check_settings(
    values: Mapping[str, Collection[Any]], common: Collection[str], others: Collection[str]
) -> None:
    """Refuse settings that are unknown or not as declared.

    Args:
        values: possible values by name; each name must be a setting of a run or a parameter of one
            of its mechanisms.
        common: names of settings for other mechanisms too, which may be parameters of those.
        others: all mechanisms.
    """
    known = all_mechanisms()
    for mechanism in others:
        choice("mechanism", mechanism, known)
    for name in values:
        mechanisms = others if name in common else values["mechanism"]
        taken = {each for mechanism in mechanisms for each in known[mechanism].parameters}
        if name not in USUAL and name not in taken:
            near = difflib.get_close_matches(name, [*USUAL, *taken], 1)
            hint = f": did you mean {near[0]}?" if near else "."
            raise ValueError(
                f"Expected parameters of {', '.join(sorted(mechanisms))}, or settings of a run "
                f"({', '.join(USUAL)}); got {name!r}{hint}"
            )
    first = {name: next(iter(possible)) for name, possible in values.items()}
    for name, possible in values.items():
        for value in possible:
            of_settings({**first, name: value}, common)


def read(folder: Path, config: PaperConfig) -> RunStatus:
    """Return the status of the run in a folder, with the names of its data set and model."""
    status = read_run(folder)
    return status if status.config is None else dataclasses.replace(status, config=config)


def config_of(run: RunStatus) -> PaperConfig:
    """Return the configuration of a run that `read` returned."""
    assert isinstance(run.config, PaperConfig)
    return run.config
