"""Digests of a run's model, loss and data, so that it continues with no others.

All are keyed with the run's key: with a plain hash, anyone who reads the store could check guesses
of a client's data.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch

from randquant._internal.serialization import from_json
from randquant.channels.keys import Key
from randquant.local_training.clients import ClientSet, is_in_memory
from randquant.local_training.examples import Examples, converted, ready_type
from randquant.local_training.models import described, tensors
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
        for part in parts:
            whole = part if isinstance(part, _Content) else _Content.of_text(repr(part))
            # With its length, so that no two lists of parts are the same bytes.
            mac.update(whole.size.to_bytes(8, "big"))
            for piece in whole.pieces:
                mac.update(piece)
        return mac.hexdigest()

    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _weights(tensor))
    ]
    clients, loss = problem.clients, problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest(problem.parts, problem.buffers, *tensors, *_data(problem.statistics)),
        digest(getattr(loss, "__module__", ""), name),
        digest(clients.names, *_clients(clients)),
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
            # The digests are not shown: they say nothing about what differs.
            hint = " (torch.manual_seed before it is built draws the same weights)"
            raise ValueError(
                f"Expected the {_FIELD_NAMES[field.name]} that the run in {store.folder} began "
                f"with, got a different one: give the same again{hint * (field.name == 'model')}, "
                "or choose another folder for a new run."
            )


class _Content(NamedTuple):
    """Bytes of a known number, piece by piece, so that no more than a piece is copied at a time."""

    size: int
    pieces: Iterable[memoryview]

    @classmethod
    def of_text(cls, text: str) -> _Content:
        return cls(len(encoded := text.encode()), [memoryview(encoded)])


# The bytes are those of version 0.1.0, which joined the examples of all clients to one table, so
# that its runs are known again.


def _clients(clients: ClientSet) -> Iterator[object]:
    if not clients.known:  # they are known by their names alone
        return
    if clients.in_memory:
        yield from _joined(clients.sources)
    else:
        yield None
    start = 0
    for source in clients.sources:
        places = np.arange(start, start + len(source), dtype=np.int64)
        yield _Content(places.nbytes, [places.data.cast("B")])
        if clients.in_memory:
            start += len(source)
        elif is_in_memory(source):
            yield from _joined([source])


def _data(examples: Examples | None) -> Iterator[object]:
    if is_in_memory(examples):
        yield from _joined([examples])
    else:
        # Data that is read from elsewhere would have to be read in full: its size must do.
        yield None if examples is None else len(examples)


def _joined(sources: Sequence[Any]) -> Iterator[object]:
    first, count = sources[0], sum(map(len, sources))
    every = [(*tensors(each.features), each.targets) for each in sources]
    for number, tensor in enumerate(every[0]):
        size = ready_type(tensor).itemsize * count * tensor[:1].numel()
        yield _Content(size, _rows(sources, [each[number] for each in every]))
    yield described(first.features, lambda each: str((count, *each.shape[1:])))


def _rows(sources: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Iterator[memoryview]:
    # One client's at a time.
    for source, tensor in zip(sources, tensors, strict=True):
        yield _bytes(converted(source.own(tensor)))


def _weights(tensor: torch.Tensor) -> _Content:
    # Of any type, also of those that NumPy does not have.
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return _Content(len(flat), [_bytes(flat)])


def _bytes(tensor: torch.Tensor) -> memoryview:
    # By NumPy, since torch copies small strided tensors on several threads, which wait longer for
    # each other than the copies take.
    return np.ascontiguousarray(tensor.numpy()).data.cast("B")
