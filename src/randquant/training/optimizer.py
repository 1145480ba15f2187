"""The server's step with a round's mean update: any optimiser of torch, as a pure function."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from randquant._internal import validate

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
