"""What was run and what was measured: frozen records that are converted to JSON and back.

No key and no client's update ever enters a record. A simulation's seed does, and so does the mean
training loss of a cohort: neither is covered by a run's guarantee (`docs/theory/accounting.md`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from randquant._internal import validate
from randquant.privacy.guarantee import NEIGHBORINGS, Neighboring, Trust

FittedOn = Literal["public", "all"]
"""Which training examples features are fitted on, see `randquant.training.data.features`."""

FITTED_ON: tuple[FittedOn, ...] = ("public", "all")

OLD_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
"""The server's optimisers as version 0.1.0 names them, and their classes in torch.optim."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that determines a training run (two runs with one config give equal bits).

    Attributes:
        dataset: name of a data set (`randquant.training.data.datasets.DATASETS`).
        data_dir: folder of the data files; empty for data sets that scikit-learn ships.
        model: name of a model (`randquant.training.models.MODELS`).
        mechanism: what protects an update: the name of a channel mechanism, or of a baseline for
            whole updates, such as `clipped-sgd` (no privacy).
        parameters: the mechanism's parameters, by name.
        population: how many clients the data is split over.
        cohort: how many clients take part in each round.
        rounds: how many rounds to train, at most.
        partition: how data is split over clients: `iid`, `shards`, `dirichlet`, or `natural` (by
            writer).
        concentration: Dirichlet concentration (used by `dirichlet` only).
        learning_rate: the server's step size.
        delta: the delta of the printed guarantee.
        seed: simulation seed: data split, initial weights, cohorts and simulated client keys; None
            to derive cohorts and clients' keys from a secret key in the run's folder.
        checkpoint_every: rounds between checkpoints.
        evaluate_every: rounds between evaluations on test data.
        threads: torch and encoder threads (part of the configuration because rounding depends on
            it).
        trust: against whom the guarantee holds; None for the mechanism's own (`local` for
            channels, which also work under `aggregate`).
        clip_norm: threshold of a whole update's norm, for channels; None to clip each coordinate
            alone. (Baselines have a parameter of their own.)
        norm: the norm that an update is clipped in, `l2` or `l1`.
        neighboring: the neighbouring relation, `replace_one` or `zero_out`.
        stop_at_epsilon: end the run before the round after which epsilon would exceed this.
        max_participations: most rounds that one client takes part in; None for no cap.
        sampling: `fixed` (cohorts of that size) or `poisson` (each client independently, `cohort`
            clients on average). No guarantee assumes it.
        batch: samples of a local step, drawn at random; None for all of a client's.
        local_epochs: passes over a client's data in a round, with local_learning_rate only.
        local_learning_rate: step size of local SGD; the update is then the model difference after
            it (DP-FedAvg). None to send one gradient at the global model.
        server_optimizer: the server's optimiser: the name of a class in torch.optim.
        server_options: its options by name, such as momentum or betas; its learning rate is
            `learning_rate`.
        features: features to train on: empty for the data as they are, `scattering`, or `pca-K`
            with K components (`randquant.training.data.features`).
        fitted_on: data that components, means and deviations are fitted on: `public` examples
            that no client holds, or `all` clients' data, which no guarantee covers.
        unit: the privacy unit: a whole `client`, or one `example` of a client (each example's
            gradient is then clipped to clip_norm, and the update is their mean).
        device: where updates are computed: `cpu`, or `cuda` (or `cuda:1`, …), which then also
            draws and sums a channel's codes.
        loss: what clients minimise: a name in torch.nn.functional, or `module:function`.
        problem: digest of the model, the data and the loss that the run began with; empty in files
            of older versions.
        parts: patterns of the names of the parameters that are trained; None for all.
        frozen: patterns of the names of the parameters that are not.
        buffers: what becomes of running statistics, such as BatchNorm's.
    """

    dataset: str
    model: str
    mechanism: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    data_dir: str = ""
    population: int = 200
    cohort: int = 40
    rounds: int = 300
    partition: str = "iid"
    concentration: float = 0.3
    learning_rate: float = 1.0
    delta: float = 1e-5
    seed: int | None = 0
    checkpoint_every: int = 50
    evaluate_every: int = 10
    threads: int = 2
    trust: Trust | None = None
    clip_norm: float | None = None
    norm: Literal["l1", "l2"] = "l2"
    neighboring: Neighboring = "replace_one"
    stop_at_epsilon: float | None = None
    max_participations: int | None = None
    sampling: Literal["fixed", "poisson"] = "fixed"
    batch: int | None = None
    local_epochs: int = 1
    local_learning_rate: float | None = None
    server_optimizer: str = "SGD"
    server_options: Mapping[str, Any] = field(default_factory=dict)
    features: str = ""
    fitted_on: FittedOn = "public"
    unit: Literal["client", "example"] = "client"
    device: str = "cpu"
    loss: str = "cross_entropy"
    problem: str = ""
    parts: tuple[str, ...] | None = None
    frozen: tuple[str, ...] | None = None
    buffers: str = "refuse"

    def __post_init__(self) -> None:
        if self.trust == "":  # as files of version 0.1.0 say it
            object.__setattr__(self, "trust", None)
        if self.server_optimizer in OLD_OPTIMIZERS:
            object.__setattr__(self, "server_optimizer", OLD_OPTIMIZERS[self.server_optimizer])
        for name in ("parts", "frozen"):  # lists in JSON and TOML
            if isinstance(patterns := getattr(self, name), list):
                object.__setattr__(self, name, tuple(patterns))


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's JSON fields as this version names them, from those of any older version.

    Example:
        >>> upgraded({"server_momentum": 0.9})
        {'server_options': {'momentum': 0.9}}
        >>> upgraded({"server_momentum": 0.0})
        {}
    """
    fields = dict(record)
    if momentum := fields.pop("server_momentum", 0.0):
        fields["server_options"] = {"momentum": momentum}
    return fields


def check_config(config: TrainConfig) -> None:
    """Refuse a configuration with invalid numbers.

    Raises:
        ValueError, TypeError: a number is out of bounds or of the wrong kind, or the population
            cannot fill every cohort within max_participations.
    """
    validate.whole("rounds", config.rounds, low=1)
    validate.whole("population", config.population, low=1)
    validate.whole("cohort", config.cohort, low=1, high=config.population)
    validate.whole("checkpoint_every", config.checkpoint_every, low=1)
    validate.whole("evaluate_every", config.evaluate_every, low=1)
    validate.whole("threads", config.threads, low=1, high=256)
    if config.seed is not None:
        validate.whole("seed", config.seed, low=0, high=2**63 - 1)
    validate.real("learning_rate", config.learning_rate, above=0, high=1e30)
    validate.real("delta", config.delta, low=0, below=1)
    validate.choice("norm", config.norm, ("l1", "l2"))
    validate.choice("neighboring", config.neighboring, NEIGHBORINGS)
    validate.choice("fitted_on", config.fitted_on, FITTED_ON)
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", config.device):
        raise ValueError(f"Expected device cpu, cuda or cuda:NUMBER, got {config.device!r}.")
    _check_local(config)
    _check_sampling(config)
    if config.stop_at_epsilon is not None:
        validate.real("stop_at_epsilon", config.stop_at_epsilon, above=0)
    if config.max_participations is not None:
        most = validate.whole("max_participations", config.max_participations, low=1, high=2**40)
        fitting = config.population * most // config.cohort
        if config.rounds > fitting:
            raise ValueError(
                f"Expected rounds <= {fitting} if each of {config.population} clients takes "
                f"part at most {most} times in cohorts of {config.cohort}, got {config.rounds}: "
                "raise max_participations, or lower rounds or cohort."
            )


def _check_local(config: TrainConfig) -> None:
    """Check the settings of the clients' and the server's steps."""
    validate.whole("local_epochs", config.local_epochs, low=1, high=10_000)
    if config.batch is not None:
        validate.whole("batch", config.batch, low=1)
    if config.local_learning_rate is not None:
        validate.real("local_learning_rate", config.local_learning_rate, above=0, high=1e30)
    elif config.local_epochs != 1:
        raise ValueError(
            f"Expected local_learning_rate with local_epochs={config.local_epochs}, got none: "
            "several steps need a step size; one epoch without it sends a gradient."
        )
    validate.kind("server_optimizer", config.server_optimizer, str)
    validate.kind("server_options", config.server_options, dict)
    for name in ("lr", "params"):
        if name in config.server_options:
            raise ValueError(
                f"Expected server_options without {name}, got one: the step size is learning_rate, "
                "and the parameters are the model's."
            )
    validate.choice("unit", config.unit, ("client", "example"))
    if config.unit == "example" and config.local_learning_rate is not None:
        raise ValueError(
            "Expected no local_learning_rate with unit example, got one: after a local step every "
            "example's gradient depends on every other example."
        )


def _check_sampling(config: TrainConfig) -> None:
    validate.choice("sampling", config.sampling, ("fixed", "poisson"))
    if config.sampling == "fixed":
        return
    if config.trust == "aggregate":
        raise ValueError(
            "Expected sampling fixed under aggregate trust, got poisson: its guarantee needs a "
            "fixed number of clients in a sum."
        )
    if config.max_participations is not None:
        raise ValueError(
            "Expected max_participations or sampling poisson, got both: the latter has no cap."
        )
