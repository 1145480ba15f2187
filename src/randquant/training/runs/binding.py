"""What a run was begun with: model, loss and data, so that no other can take their place.

Only public facts are hashed as they are. Hashes of data are keyed with the run's key: from a hash
of its own, guesses of a client's data could be checked.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, fields

import numpy as np
import torch

from randquant._internal.serialization import from_json
from randquant.channels.keys import Key
from randquant.local_training.copies import described, tensors
from randquant.local_training.examples import Examples, StoredExamples
from randquant.local_training.problem import Problem, without_addresses
from randquant.training.runs.store import RunStore


@dataclass(frozen=True, slots=True)
class Binding:
    """Digests of what a run is about, in hexadecimal.

    Attributes:
        model: names, shapes and initial weights of the model, which of them are trained, and the
            public examples for running statistics. A run that goes on has its own first weights of
            what is trained, whatever it is given.
        loss: the name of the loss, with the settings that its repr shows.
        clients: names, sizes and data of all clients; of data that is read from elsewhere during
            training, names and sizes.
        test: the test data.
    """

    model: str
    loss: str
    clients: str
    test: str


_NAMED = {
    "model": "model, frozen weights and trained parts",
    "loss": "loss",
    "clients": "clients' data",
    "test": "test data",
}


def bind(problem: Problem, key: Key) -> Binding:
    """The binding of a run with this key to its problem."""
    secret = key.fold_in("binding").words(4).tobytes()

    def digest(*parts: object) -> str:
        found = hmac.new(secret, digestmod="sha256")
        for part in parts:
            content = part if isinstance(part, memoryview) else memoryview(repr(part).encode())
            found.update(len(content).to_bytes(8, "big"))
            found.update(content)
        return found.hexdigest()

    clients = problem.clients
    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _content(tensor))
    ]
    loss = problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest(problem.parts, problem.buffers, *tensors, *_data(problem.statistics)),
        digest(getattr(loss, "__module__", ""), name),
        digest(clients.names, *_data(clients.table), *(_bytes(rows) for rows in clients.places)),
        digest(*_data(problem.test)),
    )


def check(store: RunStore, binding: Binding) -> None:
    """Refuse another problem than that of the run in a store.

    Raises:
        ValueError: the run has another model, loss, or data; the error says which.
    """
    begun = from_json(Binding, store.record("problem"))
    for field in fields(Binding):
        if getattr(begun, field.name) != getattr(binding, field.name):
            drawn = " (torch.manual_seed before it is built draws the same weights)"
            raise ValueError(
                f"Expected the {_NAMED[field.name]} that the run in {store.folder} began with, got "
                f"another: give the same again{drawn * (field.name == 'model')}, or choose another "
                "folder for a new run."
            )


def _data(examples: Examples | None) -> list[object]:
    if not isinstance(examples, StoredExamples):
        return [None if examples is None else len(examples)]
    inputs = tensors(examples.features)
    shapes = described(examples.features, lambda tensor: str(tuple(tensor.shape)))
    return [*map(_content, inputs), _content(examples.targets), shapes]


def _content(tensor: torch.Tensor) -> memoryview:
    return _bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")
