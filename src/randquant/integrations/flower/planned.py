"""A strategy from a target: plans the mechanism, and says beforehand what cannot be met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp.strategy import FedAvg, Strategy

from randquant._internal import validate
from randquant.integrations.flower.messages import model_arrays
from randquant.local_training.local import Local
from randquant.planning.privacy import CLIP_NORM, Privacy
from randquant.rounds.parameter_free import Predicts
from randquant.rounds.parameter_layout import Layout, trained_names
from randquant.rounds.run import Target, UntunedSteps, default_delta
from randquant.rounds.sums import AmongClients, WithHelper


class ParameterFree(FedAvg):
    """Selects clients as FedAvg does; `QuantizedStrategy` then takes steps that need no rate.

    Clients scale their updates to the mechanism's `clip_norm`, and the server's steps follow from
    public facts and the released means (docs/theory/untuned.md). It is what `QuantizedStrategy`
    takes by default.

    Args:
        predicts: what the model predicts, `classes` or `numbers`.
        options: those of FedAvg; `fraction_evaluate` is 0 by default, since nothing protects what
            clients measure.

    Raises:
        ValueError: `predicts` is neither.

    Example:
        >>> ParameterFree(fraction_train=0.5).fraction_evaluate
        0.0
    """

    def __init__(self, predicts: Predicts = "classes", **options: Any) -> None:
        UntunedSteps(predicts)  # for its ValueError, before anything is wrapped
        self.predicts: Predicts = predicts
        super().__init__(**{"fraction_evaluate": 0.0, **options})


class Wrapper(Protocol):
    """Attributes that `for_target` sets on the strategy it makes."""

    rounds: int
    needed: int


W = TypeVar("W", bound=Wrapper)


def for_target(
    cls: type[W],
    strategy: Strategy | None = None,
    *,
    epsilon: float,
    rounds: int,
    cohort: int,
    model: Any,
    clients: int | None = None,
    dropouts: int = 0,
    delta: float | None = None,
    trust: Literal["aggregate", "local"] = "aggregate",
    privacy: Privacy = Privacy(),  # noqa: B008 - it is frozen
    examples: int | None = None,
    **options: Any,
) -> W:
    """Wrap a strategy so that the whole run meets a target, before any client is asked.

    Args:
        cls: the class.
        strategy: as for the constructor; by default `ParameterFree()`. Its `min_train_nodes` and
            `min_available_nodes` are raised to the cohort where they are lower.
        epsilon: the target in nats, for one client's whole participation; training ends before a
            round that would exceed it.
        rounds: number of rounds, which `start` runs by default.
        cohort: clients that are asked in each round, at least.
        model: what is trained: an ArrayRecord, a torch module, a state dict, or the number of
            coordinates of an update.
        clients: how many clients there are, for the default of delta; the cohort by default.
        dropouts: how many of a cohort may be lost without failing the round: the noise is that of
            the others.
        delta: of the target; by default a tenth of 1 / clients (or of 1 / all examples), and at
            most 1e-5.
        trust: `aggregate`, a server that sees sums only, or `local`, one that sees each client's
            codes.
        privacy: how updates are clipped and sent, and what is sent with them, see `Privacy`. Bits
            of `auto` are one, or, where more lower the error by a fifth, integer noise. A client
            takes part in all rounds unless max_participations says otherwise; fewer need less
            noise, and end the training when too few clients are left.
        examples: protect one example (one patient) instead of a client: the public number by which
            clients divide their sums of clipped gradients, see `QuantizeMod`. Take the number of
            all clients' examples over the number of clients.
        options: further arguments of the constructor: local, sums, folder, patience.

    Returns:
        A strategy with a calibrated mechanism, `stop_at_epsilon=epsilon`, and `rounds`.

    Guarantees:
        `rounds` answers of one client (or max_participations, if fewer) cost it epsilon at most.
        Nothing depends on data.

    Raises:
        OutOfReach: no noise meets the target; the message says what would be needed.
        ValueError, TypeError: the model has running statistics, no number of neighbours withstands
        the losses in a sum of `cohort` clients, or an argument is out of bounds.
        (`start` raises TooFewNodes before round 1 if the cohort is larger than the nodes there
        are.)
        A target that leaves no useful signal is a warning in the log, with what it would take.

    Example:
        >>> from randquant.flower import QuantizedStrategy
        >>> strategy = QuantizedStrategy.for_target(
        ...     epsilon=8.0, rounds=20, cohort=200, model=650)
        >>> strategy.rounds, strategy.least, strategy.accountant.max_epsilon
        (20, 200, 8.0)
    """
    rounds = validate.whole("rounds", rounds, low=1)
    cohort = validate.whole("cohort", cohort, low=2 if trust == "aggregate" else 1)
    population = cohort if clients is None else validate.whole("clients", clients, low=cohort)
    sums: AmongClients | WithHelper = options.get("sums", AmongClients())
    target = Target(
        epsilon, rounds, population,
        # Calibrated for those that are left: their noise alone must protect each of them.
        cohort - _checked_dropouts(cohort, dropouts, trust, privacy, sums),
        default_delta(population, examples) if delta is None else delta, trust, privacy, examples,
    )  # fmt: skip
    if strategy is None:
        strategy = ParameterFree(min_train_nodes=cohort, min_available_nodes=cohort)
    mechanism = target.mechanism(_dimension(model, options.get("local", Local())), log)
    make: Any = cls
    left = replace(  # what the mechanism leaves open
        privacy, unit="client", bits="auto", clip_norm=CLIP_NORM, coordinates=None,
        noise="clients", max_participations=None,
    )  # fmt: skip
    wrapper: W = make(
        strategy, mechanism, stop_at_epsilon=epsilon, delta=target.delta, privacy=left,
        examples=examples, **options,
    )  # fmt: skip
    wrapper.rounds, wrapper.needed = rounds, cohort
    # By default Flower selects as few as two clients, fewer than the noise is calibrated for.
    for name in ("min_train_nodes", "min_available_nodes"):
        setattr(strategy, name, max(cohort, getattr(strategy, name, 0)))
    return wrapper


def _checked_dropouts(
    cohort: int, dropouts: int, trust: str, privacy: Privacy, sums: AmongClients | WithHelper
) -> int:
    dropouts = validate.whole("dropouts", dropouts, low=0, high=cohort - 1)
    # With its own noise, or the helper's, a client is protected with any number of others.
    if trust == "local" or privacy.noise != "clients":
        return 0
    most, why = sums.most_lost(cohort)
    return validate.whole("dropouts", dropouts, high=most, why=why)


def _dimension(model: Any, local: Local) -> int:
    if isinstance(number := validate.number(model), int):
        return validate.whole("model", number, low=1, why="it is a number of coordinates")
    record = model
    if not isinstance(model, ArrayRecord):
        state = model.state_dict() if callable(getattr(model, "state_dict", None)) else model
        try:
            record = ArrayRecord(state)
        except (TypeError, ValueError, AttributeError):
            raise TypeError(
                "Expected model to be an ArrayRecord, a torch module, a state dict or a number of "
                f"coordinates, got {validate.shown(model)}."
            ) from None
    arrays = model_arrays(record)
    layout = Layout.from_model(arrays, trained_names(arrays, local.parts, local.frozen))
    layout.check_running(local.buffers)
    layout.check_tied(arrays)
    return layout.dimension
