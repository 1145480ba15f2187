"""The configuration of a run: one frozen record of small parts, to JSON and back; its mechanism.

No key and no client's update ever enters a record. A simulation's seed does, and so does the mean
training loss of a cohort: neither is covered by a run's guarantee (`docs/theory/accounting.md`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from randquant._internal import declared, formatting, validate
from randquant._internal.declared import rule, setting
from randquant._internal.formatting import from_json, to_json
from randquant.aggregation.auxiliary_numbers import AuxiliaryNumbers
from randquant.aggregation.mechanism import UpdateMechanism
from randquant.aggregation.registry import (
    all_mechanisms,
    from_record,
    recorded_module,
    update_mechanism,
)
from randquant.local_training.local import Local
from randquant.mechanisms.registry import (
    parameters_from_file,
    parameters_of_0_1_0,
    stored_parameters,
)
from randquant.planning.plans import Privacy
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.privacy.guarantee import DEFAULT_DELTA, NEIGHBORINGS, Trust

AUTO = "auto"
"""The optimiser is chosen by what clients send, see `Server`."""

Callback = Callable[..., None]
"""Called after each round with its RoundMetrics."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server's step with a round's mean update, and what is done from round to round.

    Attributes:
        optimizer: the server's optimiser: the name of a class in torch.optim; in Python also what
            makes an optimiser of parameters, such as lambda p: torch.optim.Adam(p, lr=0.01). auto
            for steps that need no rate where updates are scaled to clip_norm, and plain steps of
            SGD elsewhere.
        options: the optimiser's options by name, such as momentum=0.9.
        learning_rate: the server's step size; by default 1, or that of the optimiser that a
            function makes.
        evaluate_every: rounds between evaluations on test data; by default a tenth of the rounds.
        checkpoint_every: rounds between checkpoints.
        on_round: called after each round with its RoundMetrics, one function or several. What it
            raises stops the run, which can be continued.
        baseline: also train the same run without privacy, for the report.

    Raises:
        TypeError, ValueError: a setting is of the wrong kind or out of bounds.

    Example:
        >>> Server("Adam", learning_rate=0.01).optimizer
        'Adam'
    """

    optimizer: Any = setting(AUTO, "server")
    options: Mapping[str, Any] = field(default_factory=dict, metadata=rule("server"))
    learning_rate: float | None = setting(None, "server", gt=0, le=1e30)
    evaluate_every: int | None = setting(None, "server", ge=1)
    checkpoint_every: int = setting(5, "files", ge=1)
    on_round: Any = ()
    baseline: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_round", _callbacks(self.on_round))
        declared.checked(self)
        if not isinstance(self.optimizer, str):
            self._check_function()
        elif self.optimizer == AUTO and (self.options or self.learning_rate is not None):
            # A rate and options are those of an optimiser of torch: the steps that need none take
            # neither.
            object.__setattr__(self, "optimizer", "SGD")
        if isinstance(self.optimizer, str) and self.optimizer != AUTO:
            # Written out: a run that names the default and one that leaves it out have the same
            # digest.
            object.__setattr__(self, "learning_rate", self.learning_rate or 1.0)
        for name in ("lr", "params"):
            if name in self.options:
                raise ValueError(
                    f"Expected server_options without {name}, got "
                    f"{name}={validate.shown(self.options[name])}: the step size is "
                    "learning_rate, and the parameters are the model's."
                )

    def evaluates(self, round: int, rounds: int) -> bool:
        # Besides, a run always evaluates its last model.
        return round % (self.evaluate_every or max(1, rounds // 10)) == 0

    def _check_function(self) -> None:
        if not callable(self.optimizer):
            raise TypeError(
                "Expected server_optimizer to be the name of a class in torch.optim, or a function "
                f"of parameters, got {validate.shown(self.optimizer)}: give lambda p: "
                "torch.optim.Adam(p, lr=0.01)."
            )
        if self.learning_rate is not None:
            raise ValueError(
                "Expected the learning rate in server_optimizer's own lr, got learning_rate="
                f"{self.learning_rate} too: leave it out."
            )


def _callbacks(on_round: Callback | Sequence[Callback] | None) -> tuple[Callback, ...]:
    several = isinstance(on_round, Sequence)
    callbacks = tuple(on_round) if several else () if on_round is None else (on_round,)
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(
                f"Expected on_round to be a function of a round's metrics, or several, got "
                f"{validate.shown(callback)}."
            )
    return callbacks


Delta = Annotated[float, Meta(ge=0, lt=1)]


# The configuration of a run.

NUMBER_NAMES = ("accuracy", "loss", "num-examples")
"""Names of the numbers that a client may send with its update: accuracy and loss of the model that
it receives on its data, and how many examples it has."""

OWN = "own"
"""Name of a mechanism that was passed as an object; `parameters` hold its record."""

CROSS_ENTROPY = "cross_entropy"
"""The usual loss, in torch.nn.functional."""


@dataclass(frozen=True, slots=True)
class Task:
    """The problem of a run, as far as a file can hold it: neither model nor data are in it.

    Attributes:
        population: how many clients there are.
        loss: what clients minimise: a name in torch.nn.functional, or module:function.
        problem: digest of the model, the loss and the names of the clients.
    """

    population: int = field(metadata=rule("clients", ge=1))
    loss: str = CROSS_ENTROPY
    problem: str = ""

    def __post_init__(self) -> None:
        declared.checked(self)


PARTS: dict[str, type] = {"task": Task, "local": Local, "server": Server, "privacy": Privacy}
"""The parts of a configuration."""

LONG_NAMES = {
    ("local", "epochs"): "local_epochs",
    ("local", "learning_rate"): "local_learning_rate",
    ("server", "optimizer"): "server_optimizer",
    ("server", "options"): "server_options",
}
"""Settings whose names among all settings are longer than within their part."""

PLACES: dict[str, tuple[str, str]] = {
    LONG_NAMES.get((part, each.name), each.name): (part, each.name)
    for part, kind in PARTS.items()
    for each in dataclasses.fields(kind)
}
"""Part and name within it of each setting that is in a part, by its name among all settings."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that determines a training run (two runs with one config give equal bits).

    Each setting is declared once, here or in a part: the options of `randquant train` and all
    checks are read from there. Defaults are those of `randquant.train`. `local` is complete: no
    setting is left to a default that depends on others.

    Attributes:
        task: what is trained, on how many clients' data.
        mechanism: what protects an update.
        parameters: the mechanism's parameters, by name.
        cohort: how many clients take part in each round; by default all, but at most 1,000.
        rounds: how many rounds are declared; a run may end earlier.
        delta: delta of the printed guarantee.
        trust: what the adversary sees: local (codes), aggregate (sums only), or model (the models
            only, and not who takes part: a user must choose it).
        stop_at_epsilon: end before the round that would take epsilon above this; inf for no limit.
        seed: seed of a simulation, which protects nobody; by default cohorts and keys are derived
            from a secret key in the run's folder.
        local: what a client computes.
        server: the server's step.
        privacy: what is protected and how updates are clipped.
    """

    task: Task
    mechanism: str = field(metadata=rule("mechanism"))
    parameters: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=rule("mechanism") | formatting.stored_as("parameters", "stored_parameters"),
    )
    cohort: int = field(kw_only=True, metadata=rule("clients", ge=1))
    rounds: int = setting(50, "server", ge=1, le=1_000_000)
    delta: float = setting(DEFAULT_DELTA, "privacy", ge=0, lt=1)
    trust: Trust | None = setting("aggregate", "privacy")
    stop_at_epsilon: float | None = setting(None, "privacy", gt=0)
    seed: int | None = setting(None, "clients", ge=0, le=2**63 - 1)
    local: Local = Local()  # noqa: RUF009 - it is frozen
    server: Server = Server()
    privacy: Privacy = Privacy()  # noqa: RUF009 - it is frozen

    def __post_init__(self) -> None:
        if self.stop_at_epsilon == float(
            "inf"
        ):  # None means the same: one form of it keeps equal runs equal
            object.__setattr__(self, "stop_at_epsilon", None)
        declared.checked(self)
        # Now, and not where it is used: files and digests state what was done, even if a later
        # version has other defaults.
        object.__setattr__(self, "local", self.local.complete(self.privacy.unit))

    def changed(self, **settings: Any) -> TrainConfig:
        """Return a copy with some settings changed, by their names among all settings.

        Raises:
            TypeError: there is no such setting.
            ValueError: one is out of bounds.

        Example:
            >>> TrainConfig(Task(200), "rqm", cohort=40).changed(batch=8, rounds=5).local.batch
            8
        """
        changes: dict[str, dict[str, Any]] = {}  # by part; those of no part are under ""
        for name, value in settings.items():
            part, within = PLACES.get(name, ("", name))
            changes.setdefault(part, {})[within] = value
        # A setting that is no field is under "" too: `replace` raises the TypeError.
        fields = changes.pop("", {})
        for part, changed in changes.items():
            fields[part] = dataclasses.replace(getattr(self, part), **changed)
        return dataclasses.replace(self, **fields)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TrainConfig:
        """Build a configuration from parsed JSON.

        Raises:
            ValueError, TypeError: a setting is missing, unknown or not as declared.
        """
        fields = dict(record)
        for part, kind in PARTS.items():
            if part in fields:
                fields[part] = from_json(kind, fields[part])
        fields["parameters"] = _read_parameters(fields.get("mechanism"), fields.get("parameters"))
        return from_json(cls, fields)

    @property
    def stored_parameters(self) -> dict[str, Any]:
        """The mechanism's parameters as files have them."""
        # Those of an object are its record, which is as files have it.
        if self.own_mechanism:
            return dict(self.parameters)
        return stored_parameters(self.mechanism, self.parameters)

    @property
    def own_mechanism(self) -> bool:
        # It was passed as an object; `parameters` hold its record.
        return self.mechanism == OWN

    @property
    def protects(self) -> bool:
        """True unless the mechanism is registered as one without privacy."""
        record = all_mechanisms().get(self.mechanism)
        # A mechanism of the user's own is not registered, and counts as one that protects.
        return record is None or bool(record.trusts)

    @property
    def hidden_cohorts(self) -> HiddenCohorts | None:
        """The sampling of clients if the adversary sees the models only; None if it sees more.

        Example:
            >>> TrainConfig(Task(200), "rqm", cohort=40, trust="model").hidden_cohorts.draw
            'fixed'
        """
        # Under any other trust the adversary sees who takes part: nothing is hidden from it.
        if self.trust != "model":
            return None
        return HiddenCohorts(self.privacy.sampling, self.task.population, self.cohort, self.rounds)


def _read_parameters(mechanism: Any, stored: Any) -> Any:
    # Also those of version 0.1.0, which counted noise in another unit.
    if not isinstance(stored, Mapping):
        return {} if stored is None else stored
    if mechanism != OWN:
        return parameters_from_file(mechanism, stored)
    own = stored.get("mechanism", "")
    return stored_parameters(own, parameters_from_file(own, stored))


NAMES = (
    *(each.name for each in dataclasses.fields(TrainConfig) if each.name not in PARTS), *PLACES,
)  # fmt: skip
"""The names of all settings, whatever parts they are in."""


def setting_value(config: TrainConfig, name: str) -> Any:
    """Return a setting by its name among all settings.

    Example:
        >>> setting_value(TrainConfig(Task(200), "rqm", cohort=40), "evaluate_every") is None
        True
    """
    part, within = PLACES.get(name, ("", name))
    return getattr(getattr(config, part) if part else config, within)


_TEXT_TYPES: dict[str, Any] = {
    "server_optimizer": declared.Server[str],
    "numbers": declared.Clients[tuple[str, ...]],
}
"""Types, on the command line and in files, of settings that may be objects in Python."""


def _declared_types() -> dict[str, Any]:
    # The configuration's own fields are under "", as in PLACES.
    types = {"": declared.hints(TrainConfig)}
    types |= {part: declared.hints(kind) for part, kind in PARTS.items()}
    settings = {}
    for name in NAMES:
        part, within = PLACES.get(name, ("", name))
        hint = types[part][within]
        if name in _TEXT_TYPES:
            hint = declared.with_meaning(_TEXT_TYPES[name], declared.text(hint))
        settings[name] = hint
    # A setting without a group has no option: only Python can pass it.
    return {name: hint for name, hint in settings.items() if declared.group(hint)}


FIELDS = {name: hint for name, hint in _declared_types().items() if name != "parameters"}
"""The declarations of a run's settings by name, as users give them on the command line or in a
file; those of its mechanism are in its record."""


def declarations() -> dict[str, Any]:
    """Return the declarations in FIELDS, with the names of all registered mechanisms as choices."""
    # Not at import: mechanisms may be registered later.
    words = Literal[tuple(all_mechanisms())]  # pyright: ignore[reportInvalidTypeForm]
    text = declared.text(FIELDS["mechanism"])
    return {**FIELDS, "mechanism": declared.with_meaning(declared.Mechanism[words], text)}


def flat(config: TrainConfig) -> dict[str, Any]:
    """Return all settings of a run by name, including the mechanism's parameters.

    Example:
        >>> settings = flat(TrainConfig(Task(200), "rqm", {"clip": 0.03}, cohort=40))
        >>> settings["mechanism"], settings["clip"], "parameters" in settings
        ('rqm', 0.03, False)
    """
    # A baseline's own clip_norm and a channel's mean the same; only one of them is set.
    return {**{name: setting_value(config, name) for name in FIELDS}, **config.parameters}


def changes_between(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    """Return the settings of `after` that differ from `before`, by name.

    Example:
        >>> before = TrainConfig(Task(200), "rqm", cohort=40)
        >>> changes_between(before, before.changed(batch=16))
        {'batch': 16}
    """
    return {
        name: setting_value(after, name)
        for name in NAMES
        if setting_value(before, name) != setting_value(after, name)
    }


def differing(configs: Sequence[TrainConfig]) -> list[str]:
    """Return the names of the settings that are not the same in all runs, the mechanism first.

    Example:
        >>> differing([TrainConfig(Task(9), "rqm", cohort=4, seed=seed) for seed in (1, 2)])
        ['seed']
    """
    settings = [flat(config) for config in configs]
    names = dict.fromkeys(name for run in settings for name in run)  # in order, unlike a set
    differ = [name for name in names if len({repr(run.get(name)) for run in settings}) > 1]
    return sorted(differ, key=lambda name: name != "mechanism")


CHANGEABLE_SETTINGS = (
    "rounds", "delta", "neighboring", "stop_at_epsilon", "checkpoint_every", "evaluate_every",
)  # fmt: skip
"""Settings that may change when a run is resumed: when it ends, and what is printed and stored.
`Schedule.check` refuses values that the guarantee does not cover."""

LATER_SETTINGS = {"noise": "clients"}
"""Settings that version 0.1.0 did not have, with the value that means what it did: they are in a
run's digest only with another value, so that its runs can be read. A new field of a setting's class
(`Privacy`, `Local`, ...) belongs here."""


def digest(config: TrainConfig) -> str:
    """Return the SHA-256 of the settings that must not change during a run, in hexadecimal.

    The guarantee covers every round, so all rounds must use one configuration.
    """
    settings = {name: setting_value(config, name) for name in NAMES}
    own = config.parameters.get("mechanism", "") if config.own_mechanism else config.mechanism
    settings["parameters"] = parameters_of_0_1_0(own, config.stored_parameters)
    fields = to_json(settings)
    # With a cap, `sample_capped` draws cohorts that depend on the number of rounds.
    fixed = () if config.privacy.max_participations is None else ("rounds",)
    # The query for statistics has spent a share of both, see `standardization_query`.
    if config.local.standardize is not None:
        fixed += ("delta", "stop_at_epsilon")
    for name in set(CHANGEABLE_SETTINGS) - set(fixed):
        del fields[name]
    for name, usual in LATER_SETTINGS.items():
        if fields[name] == usual:
            del fields[name]
    # Sorted, so that a version whose classes declare their settings in another order reads the run.
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def check_config(config: TrainConfig) -> None:
    """Refuse a configuration with settings that do not go together.

    Raises:
        ValueError: they do not, or the population cannot fill every cohort within
            max_participations.
    """
    population, most = config.task.population, config.privacy.max_participations
    validate.whole("cohort", config.cohort, high=population)
    _check_local(config)
    _check_numbers(config)
    _check_sampling(config)
    # A cohort takes different clients, so all rounds need `rounds * cohort` participations.
    if most is not None:
        fitting = population * most // config.cohort
        if config.rounds > fitting:
            raise ValueError(
                f"Expected rounds <= {fitting} if each of {population} clients takes "
                f"part at most {most} times in cohorts of {config.cohort}, got {config.rounds}: "
                "raise max_participations, or lower rounds or cohort."
            )


def _check_local(config: TrainConfig) -> None:
    local = config.local
    if local.is_gradient and local.epochs != 1:
        raise ValueError(
            f"Expected local_learning_rate with local_epochs={local.epochs}, got None: "
            "several steps need a step size; one epoch without it sends a gradient."
        )
    if config.privacy.unit == "example" and not local.is_gradient:
        raise ValueError(
            f"Expected no local_learning_rate with unit example, got {local.learning_rate}: after "
            "a local step every example's gradient depends on every other example."
        )
    if config.privacy.noise != "clients" and local.standardize is not None:
        raise ValueError(
            f"Expected no standardize with noise={config.privacy.noise!r}, got "
            f"{local.standardize}: the noise of its table is the clients', on whom the run's "
            "figure would then count again; scale features by public numbers instead."
        )


def _check_numbers(config: TrainConfig) -> None:
    privacy = config.privacy
    if (privacy.numbers or privacy.weighted_by) and privacy.unit != "client":
        raise ValueError(
            f"Expected unit=client with numbers, got {privacy.unit}: the numbers of a client "
            "and its update are clipped in L2, and sent, as one vector."
        )
    for number in privacy.read_numbers:
        # Clients of this simulation compute these three: any other would be missing in the first
        # round.
        validate.choice("a number of numbers", number.name, NUMBER_NAMES)


def _check_sampling(config: TrainConfig) -> None:
    privacy = config.privacy
    capped = privacy.max_participations is not None
    if config.trust == "model":
        if capped:
            raise ValueError(
                "Expected no max_participations under model trust, got "
                f"{privacy.max_participations}: a cap makes rounds depend on each other, so "
                "nothing would be amplified; leave it out."
            )
        if privacy.unit == "example":
            raise ValueError(
                "Expected unit client under model trust, got example: a client that is absent "
                "differs from one that is there by all its examples, so nothing is amplified."
            )
        return
    if privacy.sampling == "fixed":
        return
    if config.trust == "aggregate":
        raise ValueError(
            f"Expected sampling fixed under aggregate trust, got {privacy.sampling}: its guarantee "
            "needs a fixed number of clients in a sum."
        )
    if capped:
        raise ValueError(
            f"Expected max_participations or sampling {privacy.sampling}, got "
            f"max_participations={privacy.max_participations} too: such sampling has no cap."
        )


STATED_ORDERS = (1.25, 2.0, 8.0, 32.0)
"""Rényi orders at which the cost of a mechanism without a record enters its fingerprint.

Mechanisms with different noise differ at some of these, from small to large. More would make every
start of a run slower. They must not change: the digests in stores depend on them.
"""


def configured_mechanism(config: TrainConfig) -> UpdateMechanism:
    """Build the mechanism of a run's configuration.

    Raises:
        ValueError: its name is unknown, it does not have such parameters or they are out of
            bounds, or it does not work under that trust.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> noise = {"clip_norm": 1.0, "noise_multiplier": 4.0}
        >>> config = TrainConfig(Task(200), "local-gaussian", noise, cohort=40, trust=None,
        ...                      privacy=Privacy(clip_norm=None))
        >>> configured_mechanism(config).trust
        'local'
    """
    if config.own_mechanism:
        if not config.parameters:
            raise ValueError(
                "Expected the mechanism object of the run, got None: no file holds it; pass it "
                "again as mechanism=."
            )
        # Certified again: a checksum shows damage, not somebody who changed the channel and the
        # checksum.
        return from_record(config.parameters, "in a run's configuration")
    hidden = config.hidden_cohorts
    return update_mechanism(
        config.mechanism,
        config.parameters,
        trust=config.trust,
        # Calibrated for how many payloads a sum holds, which may be more than take part.
        cohort=config.cohort if hidden is None else hidden.summands(None),
        clip_norm=config.privacy.clip_norm,
        coordinates=config.privacy.coordinates,
    )


def describe_upload(config: TrainConfig, dimension: int) -> str:
    """Describe a client's upload in a round.

    Example:
        >>> from randquant import Privacy
        >>> from randquant.training.config import Task
        >>> privacy = Privacy(numbers=("accuracy",))
        >>> describe_upload(TrainConfig(Task(200), "rqm", cohort=40, privacy=privacy), 650)
        '650 coordinates and 1 number beside them'
    """
    count = len(config.privacy.numbers)
    words = f"{dimension:,} coordinates"
    return words + (f" and {formatting.count(count, 'number')} beside them" if count else "")


def scalars_with_updates(
    config: TrainConfig, mechanism: UpdateMechanism
) -> AuxiliaryNumbers | None:
    """Return the scalars that are sent with each update, or None.

    Raises:
        ValueError: the mechanism does not clip whole updates, or the numbers do not go together.
    """
    privacy = config.privacy
    if not privacy.numbers and privacy.weighted_by is None:
        return None
    if mechanism.clip_norm is None:
        raise ValueError(
            "Expected a clip_norm with numbers, got None: numbers share the norm of an update, "
            "and coordinates are clipped one by one here."
        )
    return AuxiliaryNumbers(mechanism.clip_norm, privacy.read_numbers, privacy.weighted_by)


def mechanism_record(mechanism: UpdateMechanism) -> dict[str, Any]:
    """Return a record from which a mechanism can be rebuilt; empty if it has none.

    Example:
        >>> from randquant.aggregation import SignSGD
        >>> mechanism_record(SignSGD(clip_norm=1.0, noise_multiplier=4.0))["mechanism"]
        'sign-sgd'
    """
    try:
        return to_json(mechanism.record())
    # A class of the user's own, which no file can build again: `mechanism_fingerprint` takes its
    # costs.
    except TypeError:
        return {}


def mechanism_fingerprint(config: TrainConfig, mechanism: UpdateMechanism, dimension: int) -> str:
    """Return a hexadecimal digest of the parts of a mechanism that its configuration leaves open.

    These are the channel, which may be read from a file; of a mechanism that was passed as an
    object also its class and its record, or its cost where it has no record. Empty for a mechanism
    of this package without a channel.
    """
    channel = mechanism.channel
    channel_text = "" if channel is None else channel.fingerprint.hex()
    if not config.own_mechanism:
        return channel_text
    kind = type(mechanism)
    record = mechanism_record(mechanism)
    record = parameters_of_0_1_0(record.get("mechanism", ""), record)
    # By the module and the record of version 0.1.0: a class that has moved since is still the
    # mechanism that the run began with.
    facts: list[Any] = [recorded_module(kind), kind.__qualname__, channel_text, record]
    if not record:
        facts.append(_costs(mechanism, dimension))
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _costs(mechanism: UpdateMechanism, dimension: int) -> list[Any]:
    # A class says nothing of its parameters: without its costs, a run could go on with more noise,
    # and the rounds that were sent with less would be stated at the lower cost.
    costs: list[Any] = [mechanism.trust, mechanism.cohort, mechanism.clip_norm]
    for neighboring in NEIGHBORINGS:
        try:
            release = mechanism.release(dimension, 1, neighboring)
        except (TypeError, ValueError):
            release = None  # it does not protect these neighbours
        # In this order and at these orders always: two lists are compared by their digest alone.
        costs += [None if release is None else release.renyi(order) for order in STATED_ORDERS]
    return costs
