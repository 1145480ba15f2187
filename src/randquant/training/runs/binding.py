"""Digests of a run's model, loss and data, so that it continues with no others.

All are keyed with the run's key: with a plain hash, anyone who reads the store could check guesses
of a client's data.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch

from randquant._internal.serialization import from_json
from randquant.channels.keys import Key
from randquant.local_training.clients import is_in_memory
from randquant.local_training.examples import Examples, converted
from randquant.local_training.models import tensors
from randquant.local_training.problem import Problem, without_addresses
from randquant.training.runs.store import RunStore


@dataclass(frozen=True, slots=True)
class Binding:
    """Digests of a run's problem, in hexadecimal.

    Attributes:
        model: names, shapes and initial weights of the model, which of them are trained, and the
            public examples for running statistics. The initial values of trained weights are in the
            run's store, so other ones may be passed when it goes on.
        loss: the name of the loss, with the settings that its repr shows.
        clients: names, sizes and data of all clients; only names and sizes of data that is read
            from elsewhere during training.
        test: the test data.
    """

    model: str
    loss: str
    clients: str
    test: str


_FIELD_NAMES = {
    "model": "model, frozen weights and trained parts",
    "loss": "loss",
    "clients": "clients' data",
    "test": "test data",
}


def bind(problem: Problem, key: Key) -> Binding:
    """Compute the binding of a run with this key to its problem."""
    secret = key.fold_in("binding").words(4).tobytes()

    def digest(*parts: object) -> str:
        mac = hmac.new(secret, digestmod="sha256")
        # Client by client, so that no more than one client's data are copied at a time.
        for part in itertools.chain.from_iterable(
            each if isinstance(each, Iterator) else [each] for each in parts
        ):
            content = part if isinstance(part, memoryview) else memoryview(repr(part).encode())
            # With its length, so that no two lists of parts are the same bytes.
            mac.update(len(content).to_bytes(8, "big"))
            mac.update(content)
        return mac.hexdigest()

    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _weights(tensor))
    ]
    clients, loss = problem.clients, problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest(problem.parts, problem.buffers, *tensors, _data(problem.statistics)),
        digest(getattr(loss, "__module__", ""), name),
        digest(clients.names, *map(_data, clients.sources if clients.known else ())),
        digest(_data(problem.test)),
    )


def check(store: RunStore, binding: Binding) -> None:
    """Refuse another problem than that of the run in a store.

    Raises:
        ValueError: the run has another model, loss, or data; the error says which.
    """
    begun = from_json(Binding, store.record("problem"))
    for field in fields(Binding):
        if getattr(begun, field.name) != getattr(binding, field.name):
            # The digests are not shown: they say nothing about what differs.
            hint = " (torch.manual_seed before it is built draws the same weights)"
            raise ValueError(
                f"Expected the {_FIELD_NAMES[field.name]} that the run in {store.folder} began "
                f"with, got a different one: give the same again{hint * (field.name == 'model')}, "
                "or choose another folder for a new run."
            )


def _data(examples: Examples | None) -> Iterator[object]:
    # Data that is read from elsewhere would have to be read in full: its size must do.
    if not is_in_memory(examples):
        yield None if examples is None else len(examples)
        return
    for each in (*tensors(examples.features), examples.targets):
        yield tuple(each.shape[1:])
        yield _content(converted(examples.own(each)))


def _weights(tensor: torch.Tensor) -> memoryview:
    # Of any type, also of those that NumPy does not have.
    return _content(tensor.detach().contiguous().reshape(-1).view(torch.uint8))


def _content(tensor: torch.Tensor) -> memoryview:
    # By NumPy, since torch copies small strided tensors on several threads, which wait longer for
    # each other than the copies take.
    return np.ascontiguousarray(tensor.numpy()).data.cast("B")
