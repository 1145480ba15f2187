"""What was run and what was measured: frozen records that are converted to JSON and back.

No key and no client's update ever enters a record. A simulation's seed does, and so does the mean
training loss of a cohort: neither is covered by a run's guarantee (`docs/theory/accounting.md`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from randquant._internal import declared, validate
from randquant._internal.declared import Clients, Count, Data, Files, Mechanism, Privacy, Server
from randquant.aggregation.alongside import Number
from randquant.privacy.accounting.hidden import Draw
from randquant.privacy.guarantee import Neighboring, Trust

FittedOn = Literal["public", "all"]
"""Which training examples features are fitted on, see `randquant.training.data.features`."""

FITTED_ON: tuple[FittedOn, ...] = ("public", "all")

Delta = Annotated[float, Meta(ge=0, lt=1)]
OLD_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
"""The server's optimisers as version 0.1.0 names them, and their classes in torch.optim."""

MostCount = Annotated[int, Meta(ge=1, le=2**40)]
Step = Annotated[float, Meta(gt=0, le=1e30)]
Share = Annotated[float, Meta(gt=0, lt=1)]
NormName = Literal["l1", "l2"]

MEASURED = ("accuracy", "loss", "num-examples")
"""Numbers that a client may send beside its update: of the model that it is given, on its own data;
and how many examples it has."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything that determines a training run (two runs with one config give equal bits).

    Each field is declared once: the options of `randquant train`, the settings of TOML files, their
    JSON Schema and `check_config` are read from here. Bounds and groups are in the annotations.

    Attributes:
        dataset: digits, breast-cancer, mnist, fashion-mnist, emnist, shakespeare,
            shakespeare-last, or module:function or FILE.py:function, which returns clients or
            (clients, test).
        model: softmax, mlp, mlp32, wide, cnn, or for text lstm, lstm-last, transformer (with data
            of your own also the number of classes, as in mlp-10), or module:function or
            FILE.py:function, which returns a torch nn.Module.
        mechanism: what protects an update.
        parameters: the mechanism's parameters, by name.
        data_dir: folder of the data files; digits and breast-cancer need none.
        population: how many clients the data is split over.
        cohort: how many clients take part in each round.
        rounds: how many rounds, at most.
        partition: how data is split over clients; natural is by writer, own as the data are.
        concentration: Dirichlet concentration.
        learning_rate: the server's step size.
        delta: delta of the printed guarantee.
        seed: simulation seed: data split, weights, cohorts, simulated keys; none to derive cohorts
            and keys from a secret key in the run's folder.
        checkpoint_every: rounds between checkpoints.
        evaluate_every: rounds between evaluations on test data.
        threads: threads to simulate clients on; rounding depends on them.
        trust: what the adversary sees: local (codes), aggregate (sums only), or model (the models
            only, and not who takes part: never assume it unasked); by default what the server sees
            of the mechanism.
        clip_norm: threshold of a whole update's norm, for every channel; none clips each coordinate
            alone.
        norm: norm that clip_norm bounds.
        coordinates: how many coordinates of a rotated update are sent, a public random subset that
            is drawn anew in each round; auto for as few as the released means call for, by a
            mechanism whose noise is calibrated to stop_at_epsilon; by default all.
        neighboring: neighbours: replace_one (another update) or zero_out (the zero update).
        stop_at_epsilon: end before the round that would take epsilon above this; inf for no such
            end.
        max_participations: most rounds that one client takes part in.
        sampling: cohorts: fixed in size, each client in each round by itself (poisson), or each
            client in so many rounds that it draws (drawn).
        batch: samples of a local step; by default all of a client's.
        local_epochs: passes over a client's data in a round.
        local_learning_rate: step size of local SGD; without one a gradient is sent.
        server_optimizer: the server's optimiser: the name of a class in torch.optim.
        server_options: the optimiser's options by name, such as momentum=0.9.
        features: what is trained on: empty for the data, or pca-K.
        fitted_on: what pca-K and standardisation are fitted on: public (examples that no client
            holds) or all (clients' data; no epsilon covers that).
        unit: what the guarantee hides: a whole client, or one example of a client's.
        device: where updates are computed: cpu, cuda or cuda:NUMBER.
        loss: what clients minimise: a name in torch.nn.functional, or module:function.
        problem: digest of the model, the data and the loss, where they are given in Python.
        parts: patterns of the names of the parameters that are trained; by default all.
        frozen: patterns of the names of the parameters that are not trained.
        buffers: what becomes of running statistics, such as BatchNorm's: the model is refused, they
            stay frozen, or the server computes them on public examples.
        public: for --buffers server: module:function or FILE.py:function, which returns examples
            that no client holds.
        most_examples: weight clients by their number of examples, up to this public number; by
            default all count alike.
        clip_quantile: let the threshold follow this quantile of the clients' norms, from clip_norm
            on, by a private number that each client sends beside its update; by default it is
            clip_norm throughout.
        numbers: what clients send beside their updates, in the same noisy sum and the same account:
            accuracy, loss, num-examples, each as NAME:LOW:HIGH with public bounds (NAME alone for 0
            to 1); by default nothing.
        weighted_by: weight updates by this one of the numbers, up to its bound; by default all
            count alike.
    """

    dataset: Data[str]
    model: Data[str]
    mechanism: Mechanism[str]
    parameters: Mechanism[Mapping[str, Any]] = field(default_factory=dict)
    data_dir: Data[str] = ""
    population: Clients[Count] = 200
    cohort: Clients[Count] = 40
    rounds: Server[Count] = 300
    partition: Data[Literal["iid", "shards", "dirichlet", "natural", "own"]] = "iid"
    concentration: Data[float] = 0.3
    learning_rate: Server[Step] = 1.0
    delta: Privacy[Delta] = 1e-5
    seed: Clients[Annotated[int, Meta(ge=0, le=2**63 - 1)] | None] = 0
    checkpoint_every: Files[Count] = 50
    evaluate_every: Server[Count] = 10
    threads: Clients[Annotated[int, Meta(ge=1, le=256)]] = 2
    trust: Privacy[Trust | None] = None
    clip_norm: Mechanism[float | None] = None
    norm: Privacy[NormName] = "l2"
    neighboring: Privacy[Neighboring] = "replace_one"
    stop_at_epsilon: Privacy[Annotated[float, Meta(gt=0)] | None] = None
    max_participations: Privacy[MostCount | None] = None
    sampling: Clients[Draw] = "fixed"
    batch: Clients[Count | None] = None
    local_epochs: Clients[Annotated[int, Meta(ge=1, le=10_000)]] = 1
    local_learning_rate: Clients[Step | None] = None
    server_optimizer: Server[str] = "SGD"
    server_options: Server[Mapping[str, Any]] = field(default_factory=dict)
    features: Data[str] = ""
    fitted_on: Data[FittedOn] = "public"
    unit: Privacy[Literal["client", "example"]] = "client"
    device: Clients[Annotated[str, Meta(pattern=r"^(cpu|cuda(:\d{1,3})?)$")]] = "cpu"
    loss: Data[str] = "cross_entropy"
    problem: str = ""
    parts: Data[tuple[str, ...] | None] = None
    frozen: Data[tuple[str, ...] | None] = None
    buffers: Data[Literal["refuse", "frozen", "server"]] = "refuse"
    public: Data[str] = ""
    most_examples: Clients[MostCount | None] = None
    clip_quantile: Mechanism[Share | None] = None
    numbers: Clients[tuple[str, ...] | None] = None
    weighted_by: Clients[str | None] = None
    coordinates: Mechanism[Annotated[int, Meta(ge=1, le=2**30)] | Literal["auto"] | None] = None

    def __post_init__(self) -> None:
        if self.trust == "":  # as files of version 0.1.0 say it
            object.__setattr__(self, "trust", None)
        if self.stop_at_epsilon == math.inf:  # no end
            object.__setattr__(self, "stop_at_epsilon", None)
        if self.server_optimizer in OLD_OPTIMIZERS:
            object.__setattr__(self, "server_optimizer", OLD_OPTIMIZERS[self.server_optimizer])
        for name in ("parts", "frozen", "numbers"):  # lists in JSON and TOML
            if isinstance(patterns := getattr(self, name), list):
                object.__setattr__(self, name, tuple(patterns))


def named_by_function(name: str) -> bool:
    """Return whether a model, a data set or a loss is named by the function that makes it.

    Example:
        >>> named_by_function("package.module:function"), named_by_function("digits")
        (True, False)
    """
    return ":" in name


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's fields as this version names them, from those of any older version.

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


ADDED = {
    "loss": "cross_entropy",
    "problem": "",
    "parts": None,
    "frozen": None,
    "buffers": "refuse",
    "public": "",
    "most_examples": None,
    "coordinates": None,
    "clip_quantile": None,
    "numbers": None,
    "weighted_by": None,
}
"""Settings that version 0.1.0 does not have, and their defaults."""


def as_before(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields named as version 0.1.0 names them where it has them, so that digests stay the same.

    Example:
        >>> as_before({"server_optimizer": "Adam", "loss": "cross_entropy"})
        {'server_optimizer': 'adam'}
        >>> as_before({"server_options": {"momentum": 0.9}})
        {'server_momentum': 0.9}
    """
    older = {new: old for old, new in OLD_OPTIMIZERS.items()}
    found = {name: fields[name] for name in fields if fields[name] != ADDED.get(name, fields)}
    options = found.get("server_options")
    if options is not None and options.keys() <= {"momentum"}:
        found["server_momentum"] = found.pop("server_options").get("momentum", 0.0)
    if found.get("server_optimizer") in older:
        found["server_optimizer"] = older[found["server_optimizer"]]
    return found


def check_config(config: TrainConfig) -> None:
    """Refuse a configuration with settings that are not as declared, or that do not go together.

    Raises:
        ValueError, TypeError: a setting is out of bounds or of the wrong kind, or the population
            cannot fill every cohort within max_participations.
    """
    declared.checked(config)
    validate.whole("cohort", config.cohort, high=config.population)
    _check_local(config)
    _check_beside(config)
    _check_sampling(config)
    most = config.max_participations
    if most is not None:
        fitting = config.population * most // config.cohort
        if config.rounds > fitting:
            raise ValueError(
                f"Expected rounds <= {fitting} if each of {config.population} clients takes "
                f"part at most {most} times in cohorts of {config.cohort}, got {config.rounds}: "
                "raise max_participations, or lower rounds or cohort."
            )


def _check_local(config: TrainConfig) -> None:
    """Check that the settings of the clients' and the server's steps go together."""
    if config.local_learning_rate is None and config.local_epochs != 1:
        raise ValueError(
            f"Expected local_learning_rate with local_epochs={config.local_epochs}, got none: "
            "several steps need a step size; one epoch without it sends a gradient."
        )
    for name in ("lr", "params"):
        if name in config.server_options:
            raise ValueError(
                f"Expected server_options without {name}, got one: the step size is learning_rate, "
                "and the parameters are the model's."
            )
    if config.unit == "example" and config.local_learning_rate is not None:
        raise ValueError(
            "Expected no local_learning_rate with unit example, got one: after a local step every "
            "example's gradient depends on every other example."
        )


def _check_beside(config: TrainConfig) -> None:
    """Check that numbers beside updates, and the quantile, are of whole clients' L2 norms."""
    names = [name for name in ("clip_quantile", "numbers", "weighted_by") if getattr(config, name)]
    if not names:
        return
    for name, plain in (("unit", "client"), ("norm", "l2"), ("most_examples", None)):
        if (given := getattr(config, name)) != plain:
            raise ValueError(
                f"Expected {name}={plain} with {names[0]}, got {given}: the numbers of a client "
                "and its update are clipped in L2, and sent, as one vector."
            )
    for number in map(Number.read, config.numbers or ()):
        validate.choice("a number of numbers", number.name, MEASURED)


def _check_sampling(config: TrainConfig) -> None:
    capped = config.max_participations is not None
    if config.trust == "model":
        if capped:
            raise ValueError(
                "Expected no max_participations under model trust, got one: a cap makes rounds "
                "depend on each other, so nothing would be amplified; take sampling drawn, where "
                "each client takes part equally often."
            )
        if config.unit == "example":
            raise ValueError(
                "Expected unit client under model trust, got example: a client that is absent "
                "differs from one that is there by all its examples, so nothing is amplified."
            )
        return
    if config.sampling == "fixed":
        return
    if config.trust == "aggregate":
        raise ValueError(
            f"Expected sampling fixed under aggregate trust, got {config.sampling}: its guarantee "
            "needs a fixed number of clients in a sum."
        )
    if capped:
        raise ValueError(
            f"Expected max_participations or sampling {config.sampling}, got both: the latter has "
            "no cap."
        )
