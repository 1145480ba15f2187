"""Digests of a run's model, loss and data, so that it continues with no others.

All are keyed with the run's key: with a plain hash, anyone who reads the store could check guesses
of a client's data.
"""

from __future__ import annotations

import hmac
import math
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

    def digest(parts: Iterable[object]) -> str:
        mac = hmac.new(secret, digestmod="sha256")
        for part in parts:
            if not isinstance(part, _Content):
                part = _whole(memoryview(repr(part).encode()))
            length, pieces = part
            # With its length, so that no two lists of parts are the same bytes.
            mac.update(length.to_bytes(8, "big"))
            for piece in pieces:
                mac.update(piece)
        return mac.hexdigest()

    tensors = [
        part
        for name, tensor in problem.model.state_dict().items()
        for part in (name, str(tensor.dtype), tuple(tensor.shape), _whole(_bytes(tensor.detach())))
    ]
    loss = problem.loss
    name = getattr(loss, "__qualname__", None) or without_addresses(loss)
    return Binding(
        digest([problem.parts, problem.buffers, *tensors, *_data(problem.statistics)]),
        digest([getattr(loss, "__module__", ""), name]),
        digest(_clients(problem.clients)),
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


class _Content(NamedTuple):
    """The bytes of data: how many, and piece by piece, so that they are not copied at once."""

    length: int
    pieces: Iterable[memoryview]


def _whole(piece: memoryview) -> _Content:
    return _Content(len(piece), [piece])


def _clients(clients: ClientSet) -> Iterator[object]:
    yield clients.names
    # Data that are read from elsewhere would have to be read in full: their sizes must do, or
    # nothing where even those are not known.
    in_memory, start = clients.in_memory, 0
    yield from _stored(clients.sources) if in_memory else [None]
    for source in clients.sources if clients.known else ():
        # Where its rows are among those of all clients.
        rows = np.arange(start, start + len(source), dtype=np.int64)
        yield _whole(rows.data.cast("B"))
        start += len(source) if in_memory else 0


def _data(examples: Examples | None) -> Iterable[object]:
    if is_in_memory(examples):
        return _stored([examples])
    return [None if examples is None else len(examples)]


def _stored(sources: Sequence[Any]) -> Iterator[object]:
    # Tensor by tensor, of all together: the same as if they were joined to one table.
    count = sum(map(len, sources))
    every = [[*tensors(each.features), each.targets] for each in sources]
    for parts in zip(*every, strict=True):
        length = count * math.prod(parts[0].shape[1:]) * ready_type(parts[0]).itemsize
        owned = zip(sources, parts, strict=True)
        yield _Content(length, (_bytes(converted(each.own(part))) for each, part in owned))
    yield described(sources[0].features, lambda each: str((count, *each.shape[1:])))


def _bytes(tensor: torch.Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data.cast("B")
