"""Distributed SGD with a quantising mechanism, as a pair of functions `init` and `apply`.

One round is Algorithm 1 of the RQM paper: a cohort computes updates, each client clips, encodes
and packs its own, the server adds up the codes, decodes the mean and takes a step. An update is a
gradient, or the model difference after local SGD (DP-FedAvg). The server's step is that of any
optimiser of torch, as a pure function.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from randquant._internal import validate
from randquant._internal.files import pack_arrays, unpack_arrays
from randquant.aggregation.auxiliary_numbers import EXAMPLES
from randquant.aggregation.mechanism import CoordinateError, UpdateMechanism
from randquant.channels.keys import Key
from randquant.local_training.client import Learner
from randquant.local_training.data import error_context
from randquant.local_training.group_steps import KNOWN_ATTENTION
from randquant.privacy.accounting.sampling import HiddenCohorts
from randquant.rounds.offer import UpdatePreparation
from randquant.training.run_store import RoundCost

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""From the trained parameters to an optimiser of them."""

OptimizerState = Mapping[str, Any]
"""The `state_dict` of an optimiser."""


class ServerStep(Protocol):
    """A server's step as a pure function of parameters, state and a round's mean update."""

    def init(self) -> OptimizerState:
        """Return the state before the first round."""
        ...

    def step(
        self, parameters: np.ndarray, mean: np.ndarray, state: OptimizerState
    ) -> tuple[np.ndarray, OptimizerState]:
        """Return new parameters, (d,) float32, and the new state."""
        ...


def torch_optimizer(name: str, learning_rate: float, options: Mapping[str, Any]) -> MakeOptimizer:
    """Return a function that makes an optimiser of torch.optim.

    Args:
        name: of a class in torch.optim, such as `SGD` or `Adam`.
        learning_rate: its step size.
        options: its other options, by name.

    Raises:
        ValueError: there is no such class.

    Example:
        >>> make = torch_optimizer("SGD", 0.5, {"momentum": 0.9})
        >>> make([nn.Parameter(torch.zeros(2))]).defaults["momentum"]
        0.9
    """
    classes = {
        class_name: value
        for class_name, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer)
    }
    classes.pop("Optimizer")  # the abstract class
    kind: Any = classes[validate.choice("server_optimizer", name, sorted(classes))]
    # JSON has lists only, and torch takes only tuples, such as Adam's betas.
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return kind(parameters, lr=learning_rate, **arguments)

    return make


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """The step of an optimiser as a pure function of parameters, state and the mean update.

    Args:
        make: from parameters to their optimiser.
        shapes: of the trained parameters, in the model's order.

    Guarantees:
        A step is the optimiser's own on parameters of these shapes whose gradient is the mean
        update; what was passed to `step` stays as it was.
        It depends only on the means of this and past rounds: it is post-processing, and costs no
        privacy.

    Raises:
        ValueError: the optimiser cannot be made, holds other parameters than those it was passed,
            or needs more than gradients, as LBFGS does.

    References:
        Reddi et al. 2021 (adaptive federated optimisation); Hsu, Qi and Brown 2019 (FedAvgM).

    Example:
        >>> server = OptimizerStep(torch_optimizer("SGD", 0.5, {"momentum": 0.9}), [(1,)])
        >>> parameters, state = np.zeros(1, np.float32), server.init()
        >>> for _ in range(2):
        ...     parameters, state = server.step(parameters, np.ones(1, np.float32), state)
        >>> parameters
        array([-1.45], dtype=float32)
    """

    make: MakeOptimizer
    shapes: Sequence[tuple[int, ...]]

    def __post_init__(self) -> None:
        optimizer = self._optimizer_at_zero()
        name = type(optimizer).__name__
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"Expected a server_optimizer that steps with a gradient, got {name}, which "
                "evaluates the loss again in a step: the server has no data; take SGD or Adam."
            )
        # An optimiser that cannot take such steps must fail before anything is trained.
        zeros = np.zeros(self.dimension, dtype=np.float32)
        try:
            _, state = self.step(zeros, zeros, self.init())
        except (RuntimeError, ValueError, TypeError) as error:
            raise ValueError(
                f"Expected a server_optimizer for dense gradients, got {name}, which refuses one: "
                f"{error}"
            ) from error
        to_tensors(state)  # a state that cannot be stored is an error now, not at a checkpoint

    @property
    def dimension(self) -> int:
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    def init(self) -> OptimizerState:
        return self._optimizer_at_zero().state_dict()

    def described(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the optimiser's class, and its options with the learning rate."""
        optimizer = self._optimizer_at_zero()
        kind = type(optimizer)
        name = kind.__name__
        if getattr(torch.optim, name, None) is not kind:
            name = f"{kind.__module__}:{kind.__qualname__}"
        return name, dict(optimizer.defaults)

    def step(
        self, parameters: np.ndarray, mean: np.ndarray, state: OptimizerState
    ) -> tuple[np.ndarray, OptimizerState]:
        """Return new parameters, (d,) float32, and the new state."""
        tensors = self._split(parameters)
        optimizer = _make(self.make, tensors)
        if state:
            # Loading may keep the tensors themselves, and the step would change the old state.
            optimizer.load_state_dict(copy.deepcopy(dict(state)))
        for tensor, part in zip(tensors, self._split(mean), strict=True):
            tensor.grad = part.detach()
        optimizer.step()
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        return flat.numpy(), optimizer.state_dict()

    def _optimizer_at_zero(self) -> torch.optim.Optimizer:
        return _make(self.make, self._split(np.zeros(self.dimension, dtype=np.float32)))

    def _split(self, vector: np.ndarray) -> list[nn.Parameter]:
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]
        # A copy: the optimiser steps in place, and the vector belongs to the caller.
        parts = torch.from_numpy(vector.copy()).split(sizes)
        return [
            nn.Parameter(part.reshape(shape))
            for part, shape in zip(parts, self.shapes, strict=True)
        ]


def _make(make: MakeOptimizer, tensors: list[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        optimizer = make(tensors)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "Expected a server_optimizer that torch can make, got an error: "
            f"{str(error).rstrip('.')}."
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "Expected server_optimizer to return a torch optimiser of the parameters, got "
            f"{type(optimizer).__name__}: give for example lambda p: torch.optim.Adam(p, lr=0.01); "
            "a step hook of its own may change its lr."
        )
    # An optimiser of other parameters would step without an error, and the model stay as it is.
    stepped = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    if stepped != {id(tensor) for tensor in tensors}:
        raise ValueError(
            f"Expected a server_optimizer of the {len(tensors)} parameters that it is given, got "
            f"{type(optimizer).__name__} of a different set of {len(stepped)}: they are a copy's, "
            "and a step of your model's own would move nothing; give "
            "lambda p: torch.optim.Adam(p, lr=0.01), and leave parameters out by parts or frozen."
        )
    return optimizer


def to_tensors(state: OptimizerState) -> tuple[dict[str, np.ndarray], str]:
    """Split a server step's state into arrays by name, and JSON text for all the rest.

    Guarantees: `from_tensors` inverts it exactly.

    Raises:
        TypeError: the state holds something other than numbers, texts, arrays and tensors.

    Example:
        >>> arrays, text = to_tensors({"step": torch.tensor(2.0), "betas": (0.9, 0.99)})
        >>> list(arrays), from_tensors(arrays, text)
        (['optimizer 0'], {'step': tensor(2.), 'betas': (0.9, 0.99)})
    """
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor | np.ndarray):
            name, tensor = f"optimizer {len(arrays)}", torch.as_tensor(value)
            arrays[name] = tensor.detach().cpu().numpy().copy()
            return {"tensor" if tensor is value else "array": name}
        if isinstance(value, Mapping):
            return {"mapping": [[key, plain(part)] for key, part in value.items()]}
        if isinstance(value, tuple):
            return {"tuple": [plain(part) for part in value]}
        if isinstance(value, list):
            return [plain(part) for part in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(
            "Expected a server_optimizer whose state is numbers and tensors, got a "
            f"{type(value).__name__} in it: it could not be resumed."
        )

    return arrays, json.dumps(plain(state))


def from_tensors(arrays: Mapping[str, np.ndarray], text: str) -> OptimizerState:
    """Invert `to_tensors`."""

    def value(plain: Any) -> Any:
        if isinstance(plain, list):
            return [value(part) for part in plain]
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        if kind in ("array", "tensor"):
            array = arrays[content].copy()
            return array if kind == "array" else torch.from_numpy(array)
        if kind == "tuple":
            return tuple(value(part) for part in content)
        return {key: value(part) for key, part in content}

    return value(json.loads(text))


# One round: a cohort's uploads, their mean, and the state after the server's step.

ABSENT_BATCH_SIZE = 16
"""Absent clients whose zeros are encoded in one call.

One batch holds 16 float32 vectors, whatever the population. Twice as many would take twice the
memory; half as many, twice the calls. No payload depends on it: each client has its own key.
"""


class RoundResult(NamedTuple):
    """The decoded mean of a round, and what the round cost.

    Attributes:
        mean: (d,) float32, decoded.
        losses: (n,) float64, in nats, each client's first step.
        bytes_up: bytes that all clients send, under the trust in force; including the zeros of
            absent clients where they must be sent.
        seconds_gradient: wall time of forward and backward passes, in seconds.
        noise_norm: expected L2 norm of the noise in the mean; None where the mechanism does not
            say.
        numbers: decoded means of the numbers that clients sent with their updates, each with the
            standard deviation of its noise as `NAME_deviation`, or None.
    """

    mean: np.ndarray
    losses: np.ndarray
    bytes_up: int
    seconds_gradient: float
    noise_norm: float | None = None
    numbers: dict[str, float] | None = None


class Upload(NamedTuple):
    """What a group of clients sends, with (n,) losses and the seconds spent on gradients."""

    payloads: list[bytes]
    losses: np.ndarray
    seconds: float


class RoundWork(NamedTuple):
    """What another process computes a round's updates from: `secret` is the key of the round."""

    weights: np.ndarray
    secret: bytes
    public_seed: int
    threads: int  # torch's, in the server's process


ENGINE: ContextVar[Callable[[RoundCollector], AbstractContextManager[Any]]] = ContextVar(
    "ENGINE", default=lambda clients: nullcontext()
)
"""Opens what computes clients elsewhere with a copy of a collector: see `integrations.flower`."""


@dataclass(frozen=True, slots=True)
class RoundCollector:
    """Collects the mean of a cohort: `collector(cohort, key, public_seed)` is one round.

    The key is the round's; the public seed is passed to `UpdateMechanism.in_round`.

    Args:
        learner: computes the clients' updates, which are encoded on the CPU.
        mechanism: protects and aggregates them.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients are sampled if nobody sees which of them take part; None if that is
            seen.
        preparation: what clients do with their updates before they encode them.
        engine: has groups of clients computed in `workers` other processes, each by `uploads`; None
            to compute them here.

    Guarantees:
        With hidden cohorts of varying size, the sum holds a payload of every client, the encoding
        of zeros for those that are absent, and is divided by a public number.
        With hidden cohorts nothing in a payload depends on its client's number.
    """

    learner: Learner
    mechanism: UpdateMechanism
    pool: Executor
    workers: int
    hidden: HiddenCohorts | None = None
    preparation: UpdatePreparation = UpdatePreparation()  # noqa: RUF009 - it is frozen
    engine: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # For `uploads` in another process, which needs neither threads nor an engine.
        return RoundCollector, (self.learner, self.mechanism, None, 1, None, self.preparation)

    def __call__(self, cohort: Sequence[int], key: Key, public_seed: int) -> RoundResult:
        mechanism = self.mechanism.in_round(public_seed)
        uploads, seconds = self._cohort_uploads(cohort, key, mechanism, public_seed)
        payloads = [payload for upload in uploads for payload in upload.payloads]
        senders, varying = len(cohort), self._varying_cohorts
        if varying is not None:
            payloads += self._absent_payloads(varying, cohort, key, mechanism)
            # With noise of the server an absent client sends nothing: its zeros are counted here
            # only so that the mean is divided by the population, as with noise of the clients.
            senders = senders if mechanism.trust == "central" else varying.population
        mean = mechanism.mean(payloads, self.dimension, key.fold_in("server"))
        if varying is not None:
            # theory/sampling.md, Proposition 18: the divisor is the expected size of a cohort,
            # which is public; the actual size would reveal whether one client took part.
            mean = (mean * np.float64(varying.population / varying.cohort)).astype(np.float32)
        noise = self._noise(mechanism, senders, len(cohort))
        mean, numbers = self._split_numbers(mean, noise)
        return RoundResult(
            mean,
            # The empty array keeps the concatenation valid if Poisson sampling selected nobody.
            np.concatenate([np.empty(0), *(upload.losses for upload in uploads)]),
            senders * mechanism.upload_bytes(self.dimension, senders or None),
            seconds,
            None if noise is None else noise.norm(len(mean)),
            numbers,
        )

    @property
    def dimension(self) -> int:
        # A client encodes its update and its numbers as one vector.
        return self.learner.dimension + self.preparation.extra

    @property
    def _varying_cohorts(self) -> HiddenCohorts | None:
        # theory/sampling.md, Proposition 18: without the payloads of absent clients, the noise in
        # a sum would reveal how many took part. A fixed size is public and needs no zeros.
        return None if self.hidden is None or self.hidden.draw == "fixed" else self.hidden

    def uploads(self, groups: Sequence[Sequence[int]], work: RoundWork) -> list[Upload]:
        """Compute groups in another process, to the bits of `workers` threads of this one."""
        # Running statistics are computed on all the threads of the server, updates on one.
        torch.set_num_threads(work.threads)
        self.learner.load(work.weights)
        torch.set_num_threads(1)
        key, mechanism = Key(work.secret), self.mechanism.in_round(work.public_seed)
        with KNOWN_ATTENTION():
            return [self._upload(group, work.weights, key, mechanism) for group in groups]

    def _cohort_uploads(
        self, cohort: Sequence[int], key: Key, mechanism: UpdateMechanism, public_seed: int
    ) -> tuple[list[Upload], float]:
        """Return the uploads of groups of clients, in order, and the wall time of gradients."""
        learner, groups = self.learner, self.learner.groups(cohort, self.workers)
        weights = learner.parameters()

        def upload(clients: Sequence[int]) -> Upload:
            return self._upload(clients, weights, key, mechanism)

        # Torch may round sums differently with another number of threads, and workers have one
        # each. With hidden cohorts an update must not depend on the size of its cohort, not even
        # in its last bit, so a single group is sent to a worker too.
        on_this_thread = learner.on_gpu or (len(groups) == 1 and self.hidden is None)
        if self.engine is not None and len(groups) > (self.hidden is None):
            secret, threads = key.secret_bytes(), torch.get_num_threads()
            work = RoundWork(weights, secret, public_seed, threads)
            uploads = self.engine.uploads(groups, work)
            return uploads, sum(upload.seconds for upload in uploads) / self.workers
        with KNOWN_ATTENTION():
            if learner.one_thread and not learner.on_gpu:
                # One group after the other, on a worker, whose torch has no threads of its own.
                uploads = [self.pool.submit(upload, group).result() for group in groups]
            else:
                uploads = list((map if on_this_thread else self.pool.map)(upload, groups))
        # Workers run at the same time: wall time is their sum divided by how many there are.
        seconds = sum(upload.seconds for upload in uploads)
        return uploads, seconds / (1 if on_this_thread or learner.one_thread else self.workers)

    def _upload(
        self, clients: Sequence[int], weights: np.ndarray, key: Key, mechanism: UpdateMechanism
    ) -> Upload:
        started = time.perf_counter()
        updates, losses = self.learner.updates(clients, key)
        seconds = time.perf_counter() - started
        problem = self.learner.problem
        vectors = np.empty((len(clients), self.dimension), dtype=np.float32)
        for row, client in enumerate(clients):
            relative_loss = (
                1.0 if problem.uniform_loss is None else float(losses[row] / problem.uniform_loss)
            )
            # An error names its client: in this simulation its data are the caller's.
            with error_context(problem.clients.names[client]):
                _check_finite(updates[row])
                vectors[row] = self.preparation.vector(
                    updates[row], weights, relative_loss, self._client_numbers(client)
                )
        return Upload(self._encode(clients, vectors, key, mechanism), losses, seconds)

    def _encode(
        self, clients: Sequence[int], updates: np.ndarray, key: Key, mechanism: UpdateMechanism
    ) -> list[bytes]:
        # theory/sampling.md, Proposition 18: a client's number decides its secret key and nothing
        # else, so payloads of all clients have the same law.
        return mechanism.encode_many(updates, [key.fold_in("client", client) for client in clients])

    def _absent_payloads(
        self, varying: HiddenCohorts, cohort: Sequence[int], key: Key, mechanism: UpdateMechanism
    ) -> list[bytes]:
        absent, payloads = sorted(set(range(varying.population)) - set(cohort)), []
        for start in range(0, len(absent), ABSENT_BATCH_SIZE):
            group = absent[start : start + ABSENT_BATCH_SIZE]
            zeros = np.zeros((len(group), self.dimension), dtype=np.float32)
            payloads += self._encode(group, zeros, key, mechanism)
        return payloads

    def _client_numbers(self, client: int) -> dict[str, float]:
        # Measured before the client trains: afterwards its model would fit its own data.
        if (scalars := self.preparation.scalars) is None:
            return {}
        values = {EXAMPLES: float(self.learner.size(client))}
        # Evaluation costs a pass over the client's data: only if one of its results is sent.
        if {number.name for number in scalars.numbers} & {"accuracy", "loss"}:
            scores = self.learner.evaluate(client)
            scored = {"accuracy": scores.accuracy, "loss": scores.loss}
            values |= {name: value for name, value in scored.items() if value is not None}
        return values

    def _noise(self, mechanism: UpdateMechanism, senders: int, cohort: int) -> _Noise | None:
        """Describe the noise in the decoded mean of `senders` payloads for a cohort of that size.

        Returns:
            None if the mechanism does not state its error: it does not clip whole updates in L2.
        """
        try:
            error = mechanism.expected_error(self.dimension)
        except TypeError:
            return None
        # What the sum is divided by, see `__call__`: the actual size only where that is public.
        divisor = max(1, cohort if self.hidden is None else self.hidden.cohort)
        # The server's noise is added once and does not grow with the senders.
        noisy = divisor if mechanism.trust == "central" else senders
        return _Noise(error, noisy, divisor / noisy)

    def _split_numbers(
        self, mean: np.ndarray, noise: _Noise | None
    ) -> tuple[np.ndarray, dict[str, float] | None]:
        if (scalars := self.preparation.scalars) is None:
            return mean, None
        update, numbers = scalars.separate(mean)
        assert noise is not None  # `prepare` refuses numbers where the mechanism states no error
        deviation = noise.number_deviation
        deviations = {f"{name}_deviation": scalars.deviation(name, deviation) for name in numbers}
        return update, {**numbers, **deviations}


def _check_finite(update: np.ndarray) -> None:
    if not np.isfinite(update).all():
        # The values are not shown: they are a client's data, and messages may be kept or sent.
        raise ValueError(
            "Expected a finite update, got NaN or infinity: check the scale of its features and "
            "targets; very large values overflow in training."
        )


class _Noise(NamedTuple):
    """The noise in a coordinate of a decoded mean.

    Attributes:
        error: the error of one client's decoded coordinate.
        senders: number of clients whose noise is in the sum.
        divisor_share: the divisor of the sum, as a share of the senders.
    """

    error: CoordinateError
    senders: int
    divisor_share: float

    def norm(self, size: int) -> float | None:
        """Return the expected L2 norm of the noise in `size` coordinates; None if all is noise."""
        # `deviation` is that of the unbiased estimate, which is what is decoded over the gain.
        gain = self.error.gain
        if gain <= 0:
            return None
        deviation = self.error.deviation(self.senders, 0.0) / self.divisor_share
        return gain * math.sqrt(size) * deviation

    @property
    def number_deviation(self) -> float:
        """Standard deviation of the noise in a coordinate that holds a number."""
        # theory/alongside.md, Proposition 2: all payloads have noise, also those of absent clients.
        length = self.divisor_share * self.error.longest
        return self.error.deviation(self.senders, length) / self.divisor_share


@dataclass(frozen=True, slots=True)
class State:
    """The progress of a run: all that the next round depends on, but for settings and key.

    Attributes:
        round: rounds finished.
        parameters: (d,) float32, the global model.
        participations: (N,) int64, rounds that each client has taken part in.
        optimizer: the state of the server's optimiser.
    """

    round: int
    parameters: np.ndarray
    participations: np.ndarray
    optimizer: OptimizerState = field(default_factory=dict)

    def to_bytes(self, identity: str) -> bytes:
        """Return a checkpoint of the run with that identity, with a checksum."""
        optimizer_arrays, optimizer = to_tensors(self.optimizer)
        arrays = {"parameters": self.parameters, "participations": self.participations}
        record = {"identity": identity, "round": self.round, "optimizer": optimizer}
        return pack_arrays(record, arrays | optimizer_arrays)

    @classmethod
    def from_bytes(cls, content: bytes, identity: str, path: Path) -> State:
        """Read a checkpoint of the run with that identity.

        Args:
            content: the checkpoint.
            identity: see `SentRounds.identity`.
            path: the file it was in, for messages.

        Raises:
            ValueError: the content is damaged, or of another run.
        """
        try:
            record, arrays = unpack_arrays(content)
            stored_identity = record["identity"]
            number = validate.whole("round", record["round"], low=0)
            parameters, participations = arrays["parameters"], arrays["participations"]
            optimizer = from_tensors(arrays, record["optimizer"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"Expected a checkpoint in {path}, got a damaged one: {error}"
            ) from None
        # An intact checkpoint of other settings would train on with another guarantee. The two
        # digests are not shown: neither says what differs.
        if stored_identity != identity:
            raise ValueError(
                f"Expected the configuration that the checkpoint in {path} was made with, got a "
                "different one: its rounds would not have the guarantee that is printed. Restore "
                "its run or begin a new one."
            )
        return cls(number, parameters, participations, optimizer)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`init()` gives the first State; `apply(state, cohort, key)` one round's (State, RoundCost).

    Both are pure: a round that raises leaves its state as it was.
    """

    init: Callable[[], State]
    apply: Callable[[State, Sequence[int], Key], tuple[State, RoundCost]]


def distributed_sgd(
    learner: Learner,
    mechanism: UpdateMechanism,
    *,
    population: int,
    server: ServerStep,
    pool: Executor, workers: int,
    hidden: HiddenCohorts | None = None,
    public_seed: int = 0,
    preparation: UpdatePreparation = UpdatePreparation(),  # noqa: B008 - it is frozen
    engine: Any = None,
) -> Algorithm:  # fmt: skip
    """Build federated SGD or averaging, one server step a round (RQM paper, Algorithm 1).

    Args:
        learner: computes the clients' updates.
        mechanism: protects and aggregates them.
        population: how many clients there are.
        server: the server's step.
        pool, workers: threads that clients are simulated on; they do not change the result.
        hidden: how clients are sampled if nobody sees which of them take part; None if that is
            seen.
        public_seed: draws what all clients know, such as which coordinates are sent in a round.
            It must not be derived from the key, which is secret.
        preparation: what clients do with their updates before they encode them.
        engine: see `RoundCollector`.

    Returns:
        The algorithm as an (init, apply) pair.
    """

    def init() -> State:
        participations = np.zeros(population, dtype=np.int64)
        return State(0, learner.parameters(), participations, server.init())

    collect = RoundCollector(learner, mechanism, pool, workers, hidden, preparation, engine)
    # Not derived from the secret key: clients see these draws.
    public = Key.from_seed(public_seed).fold_in("rounds")

    def apply(state: State, cohort: Sequence[int], key: Key) -> tuple[State, RoundCost]:
        if len(set(cohort)) < len(cohort):
            # The cost of a round covers one update of each client.
            [repeated, *_] = [client for client, count in Counter(cohort).items() if count > 1]
            raise ValueError(
                f"Expected each client once in a cohort, got client {repeated} more than once: "
                "remove it."
            )
        # Poisson sampling selected nobody: nothing is sent, nothing changes. With hidden cohorts
        # an unchanged model would reveal that (theory/sampling.md, Proposition 18), so the round
        # goes on with the noisy sum of zeros.
        if not cohort and hidden is None:
            return replace(state, round=state.round + 1), RoundCost(None, 0, 0.0, 0.0)
        started = time.perf_counter()
        learner.load(state.parameters)
        number = state.round + 1
        # Everything random in a round follows from these two, so a round that is repeated after a
        # kill sends the same bits: no new release, and no second epsilon.
        seed = int(public.fold_in(number).words(1)[0])
        collected = collect(cohort, key.fold_in(number), seed)
        parameters, optimizer = _server_step(server, state, collected.mean)
        participations = state.participations.copy()  # the old state stays valid if a step fails
        participations[cohort] += 1
        total = time.perf_counter() - started
        return State(number, parameters, participations, optimizer), RoundCost(
            train_loss=float(collected.losses.mean()) if cohort else None,
            bytes_up=collected.bytes_up,
            # Workers' seconds are added up and divided, which may exceed the round by a little.
            seconds_gradient=min(collected.seconds_gradient, total),
            seconds_protect=max(total - collected.seconds_gradient, 0.0),
            # The digest tells a repeated round from a different one without keeping the mean.
            mean=hashlib.sha256(collected.mean.tobytes()).hexdigest(),
            mean_norm=float(np.linalg.norm(collected.mean.astype(np.float64))),
            noise_norm=collected.noise_norm,
            numbers=collected.numbers,
        )

    return Algorithm(init, apply)


def _server_step(
    server: ServerStep, state: State, mean: np.ndarray
) -> tuple[np.ndarray, OptimizerState]:
    parameters, optimizer = server.step(state.parameters, mean, state.optimizer)
    # Raised before a checkpoint is written: NaN would be kept, and every later round be wasted.
    if not np.isfinite(parameters).all():
        raise ValueError(
            "Expected finite parameters after the step, got NaN or infinity: training has "
            "diverged; lower learning_rate."
        )
    return parameters, optimizer
